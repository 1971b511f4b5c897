package spawn

import (
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkWatcherAddRemove(b *testing.B) {
	w := watcher(b)
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Add(fd, 1); err != nil {
			b.Fatal(err)
		}
		w.Remove(1)
	}
}

// Start to the end of the parked process, which does nothing.
func BenchmarkStartTrue(b *testing.B) {
	w := watcher(b)
	for b.Loop() {
		p, err := Start(b.Context(), Request{Path: "/bin/true"})
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Add(p.PidFD, 1); err != nil {
			b.Fatal(err)
		}
		<-w.Events()
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// A Go program, from Start to having read its recipe and left.
func BenchmarkStartRelease(b *testing.B) {
	w := watcher(b)
	req := self(b, "wrap")
	for b.Loop() {
		p, err := Start(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Add(p.PidFD, 1); err != nil {
			b.Fatal(err)
		}
		if err := p.Release(b.Context(), []byte("exit 0")); err != nil {
			b.Fatal(err)
		}
		<-w.Events()
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
