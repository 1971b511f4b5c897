package cgroupfs

import "testing"

func BenchmarkPopulated(b *testing.B) {
	l := make1(b, base(b), LeafName("bench", 1))
	within(b, l, "sleep", "600")
	b.ReportAllocs()
	for b.Loop() {
		if p, err := l.Populated(); !p || err != nil {
			b.Fatal(p, err)
		}
	}
}

func BenchmarkWorkProcs(b *testing.B) {
	l := make1(b, base(b), LeafName("bench", 1))
	for range 10 {
		within(b, l, "sleep", "600")
	}
	b.ReportAllocs()
	for b.Loop() {
		if pids, err := l.WorkProcs(); len(pids) != 10 || err != nil {
			b.Fatal(pids, err)
		}
	}
}

func BenchmarkOpenAbsent(b *testing.B) {
	tree := base(b)
	for b.Loop() {
		if _, err := tree.Open("berth-none-g1"); err == nil {
			b.Fatal("opened")
		}
	}
}

func BenchmarkMakeRemove(b *testing.B) {
	tree := base(b)
	ctx := bound(b)
	for b.Loop() {
		l, err := tree.Make("berth-bench-g1")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Remove(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeafOf(b *testing.B) {
	tree := base(b)
	l := make1(b, tree, LeafName("bench", 1))
	c := within(b, l, "sleep", "600")
	for b.Loop() {
		if _, ok, err := tree.LeafOf(c.Process.Pid); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
