package admit

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestNIntoK: of many sessions that ask at once, exactly those are admitted for
// which there is room, although none has written a byte (cases E1, T67).
func TestNIntoK(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, request := DefaultMarks(), Reservation{
			Bytes:  rapid.Uint64Range(1, 4*gib).Draw(t, "bytes"),
			Inodes: rapid.Uint64Range(1, 50_000).Draw(t, "inodes"),
		}
		k := rapid.Uint64Range(0, 12).Draw(t, "k")
		room := disk(5*gib+k*request.Bytes+rapid.Uint64Range(0, request.Bytes-1).Draw(t, "rest"), 1_000_000)
		if rapid.Bool().Draw(t, "inodes decide") {
			room.FreeBytes = 95 * gib
			room.FreeInodes = 50_000 + k*request.Inodes + rapid.Uint64Range(0, request.Inodes-1).Draw(t, "inode rest")
		}
		var outstanding Reservation
		admitted, low := uint64(0), false
		for range 30 {
			d := Decide(room, outstanding, request, m, low)
			low = d.Low
			if d.Verdict == Admit {
				admitted++
				outstanding = outstanding.Add(request)
			}
		}
		if admitted != k && (room.FreeBytes != 95*gib || admitted > k) {
			t.Fatalf("%d admitted, there is room for %d", admitted, k)
		}
	})
}

// draw makes any room, reservations and marks, extreme ones preferred.
func draw(t *rapid.T) (Room, Reservation, Reservation, Marks, bool) {
	number := rapid.OneOf(
		rapid.SampledFrom([]uint64{0, 1, mib, 2 * gib, 5 * gib, tib, 1 << 53, math.MaxUint64 - 1, math.MaxUint64}),
		rapid.Uint64(), rapid.Uint64Range(0, 200*gib))
	reservation := func(name string) Reservation {
		return Reservation{number.Draw(t, name+" bytes"), number.Draw(t, name+" inodes")}
	}
	room := Room{Known: true, TotalBytes: number.Draw(t, "bytes"), TotalInodes: number.Draw(t, "inodes")}
	room.FreeBytes = rapid.Uint64Range(0, room.TotalBytes).Draw(t, "free bytes")
	room.FreeInodes = rapid.Uint64Range(0, room.TotalInodes).Draw(t, "free inodes")
	percent := rapid.SampledFrom([]float64{0, 0.1, 5, 7, 99.9, 100})
	m := Marks{
		LowBytes: number.Draw(t, "low"), LowPercent: percent.Draw(t, "low %"),
		LowInodes: number.Draw(t, "low inodes"), LowInodePercent: percent.Draw(t, "low inode %"),
		AbsoluteOnly: rapid.Bool().Draw(t, "absolute"),
	}
	m.ExitLowBytes = rapid.Uint64Range(m.LowBytes, math.MaxUint64).Draw(t, "exit")
	m.ExitLowInodes = rapid.Uint64Range(m.LowInodes, math.MaxUint64).Draw(t, "exit inodes")
	m.ExitLowPercent, m.ExitLowInodePercent = 100, m.LowInodePercent
	return room, reservation("outstanding"), reservation("request"), m, rapid.Bool().Draw(t, "was low")
}

// fits is the rule in numbers that cannot overflow.
func fits(free uint64, needs ...uint64) bool {
	left := new(big.Int).SetUint64(free)
	for _, n := range needs {
		left.Sub(left, new(big.Int).SetUint64(n))
	}
	return left.Sign() >= 0
}

// TestNoOverflow: for any numbers the decision is that of exact arithmetic.
func TestNoOverflow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room, out, request, m, wasLow := draw(t)
		d := Decide(room, out, request, m, wasLow)
		if room.TotalBytes == 0 {
			if d.Verdict != UnknownCapacity {
				t.Fatalf("%+v", d)
			}
			return
		}
		low, stay := m.low(room), m.low(room)
		if wasLow {
			stay = m.exit(room)
		}
		wantLow := !fits(room.FreeBytes, out.Bytes, stay.Bytes)
		want := fits(room.FreeBytes, out.Bytes, request.Bytes, low.Bytes)
		if room.TotalInodes != 0 {
			wantLow = wantLow || !fits(room.FreeInodes, out.Inodes, stay.Inodes)
			want = want && fits(room.FreeInodes, out.Inodes, request.Inodes, low.Inodes)
		}
		if d.Low != wantLow || (d.Verdict == Admit) != (want && !wantLow) {
			t.Fatalf("want low %v, admit %v: %+v", wantLow, want && !wantLow, d)
		}
		if (d.Verdict == Admit) != (d.Short == Reservation{}) || d.Explain() == "" {
			t.Fatalf("%+v", d)
		}
		if want := m.mark(0, 100, room.TotalBytes); !m.AbsoluteOnly && want != room.TotalBytes {
			t.Fatalf("100 %% of %d is %d", room.TotalBytes, want)
		}
	})
}

// TestMonotone: more room, fewer promises or a smaller request never turn an
// admission into a rejection, and what Short says is enough and not too much.
func TestMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room, out, request, m, wasLow := draw(t)
		d := Decide(room, out, request, m, wasLow)
		more := room
		more.FreeBytes = rapid.Uint64Range(room.FreeBytes, room.TotalBytes).Draw(t, "more bytes")
		more.FreeInodes = rapid.Uint64Range(room.FreeInodes, room.TotalInodes).Draw(t, "more inodes")
		less := Reservation{
			rapid.Uint64Range(0, out.Bytes).Draw(t, "fewer bytes"), rapid.Uint64Range(0, out.Inodes).Draw(t, "fewer inodes"),
		}
		smaller := request.Shrink(Reservation{mib, 10})
		for name, better := range map[string]Decision{
			"more room":       Decide(more, out, request, m, wasLow),
			"fewer promises":  Decide(room, less, request, m, wasLow),
			"smaller request": Decide(room, out, smaller, m, wasLow),
			"not low before":  Decide(room, out, request, m, false),
		} {
			if d.Verdict == Admit && better.Verdict != Admit || !d.Low && better.Low {
				t.Fatalf("%s: %s low %v became %s low %v", name, d.Verdict, d.Low, better.Verdict, better.Low)
			}
		}
		if d.Verdict != Rejected {
			return
		}
		freed := Room{Known: true, TotalBytes: room.TotalBytes, TotalInodes: room.TotalInodes,
			FreeBytes: add(room.FreeBytes, d.Short.Bytes), FreeInodes: add(room.FreeInodes, d.Short.Inodes)}
		if freed.Check(0) != nil || freed.FreeBytes-room.FreeBytes != d.Short.Bytes ||
			freed.FreeInodes-room.FreeInodes != d.Short.Inodes || max(d.Short.Bytes, d.Short.Inodes) == math.MaxUint64 {
			return // there is not that much
		}
		if got := Decide(freed, out, request, m, wasLow); got.Verdict != Admit {
			t.Fatalf("freed %+v, still %+v", d.Short, got)
		}
		if d.Short.Bytes > 0 {
			freed.FreeBytes--
			if got := Decide(freed, out, request, m, wasLow); got.Verdict == Admit {
				t.Fatalf("short of %d was too much", d.Short.Bytes)
			}
		}
	})
}
