package evidence

import "testing"

// What a look costs: at the relist of every period, and of a stop.
func BenchmarkQuick(b *testing.B) {
	h := newHost(b)
	p := h.newPlace("bench", 1)
	b.Run("absent", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r := p.quick(); r.Verdict != Absent {
				b.Fatalf("%+v", r)
			}
		}
	})
	p.wrapper()
	b.Run("present", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r := p.quick(); r.Verdict != Present {
				b.Fatalf("%+v", r)
			}
		}
	})
}

// With the scan of whatever the machine runs.
func BenchmarkFull(b *testing.B) {
	h := newHost(b)
	p := h.newPlace("bench", 1)
	p.wrapper()
	b.ReportAllocs()
	for b.Loop() {
		if r := p.full(); r.Verdict != Present {
			b.Fatalf("%+v", r)
		}
	}
}
