package admit

import (
	"errors"
	"flag"
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40
)

// TestMain keeps failures of the properties out of the tree; the command line
// wins.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "3000", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestPure: the package cannot measure anything, since it imports nothing that
// could.
func TestPure(t *testing.T) {
	t.Parallel()
	allowed := []string{"errors", "fmt", "strconv", "strings", "time"}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// disk is a reading of a disk of 100 GiB and a million inodes.
func disk(freeBytes, freeInodes uint64) Room {
	return Room{Known: true, FreeBytes: freeBytes, TotalBytes: 100 * gib, FreeInodes: freeInodes, TotalInodes: 1_000_000}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	request := Default()
	btrfs := disk(50*gib, 0)
	btrfs.TotalInodes = 0
	big := Room{Known: true, FreeBytes: 40 * tib, TotalBytes: 1000 * tib, FreeInodes: 10, TotalInodes: 10}
	for name, c := range map[string]struct {
		room        Room
		outstanding Reservation
		marks       Marks
		wasLow      bool
		verdict     Verdict
		low         bool
		short       Reservation
	}{
		"plenty":           {room: disk(50*gib, 900_000), verdict: Admit},
		"exactly":          {room: disk(6*gib, 70_000), verdict: Admit},
		"a byte less":      {room: disk(6*gib-1, 70_000), verdict: Rejected, short: Reservation{Bytes: 1}},
		"an inode less":    {room: disk(6*gib, 69_999), verdict: Rejected, short: Reservation{Inodes: 1}},
		"promised already": {room: disk(6*gib, 70_000), outstanding: Reservation{Bytes: 1}, verdict: Rejected, short: Reservation{Bytes: 1}},
		"inodes promised":  {room: disk(50*gib, 70_000), outstanding: Reservation{Inodes: 5}, verdict: Rejected, short: Reservation{Inodes: 5}},
		"at the low mark":  {room: disk(5*gib, 900_000), verdict: Rejected, short: Reservation{Bytes: gib}},
		"below it":         {room: disk(5*gib-1, 900_000), verdict: Rejected, low: true, short: Reservation{Bytes: gib + 1}},
		"low in inodes":    {room: disk(50*gib, 49_999), verdict: Rejected, low: true, short: Reservation{Inodes: 20_001}},
		"over-promised":    {room: disk(50*gib, 900_000), outstanding: Reservation{Bytes: 60 * gib}, verdict: Rejected, low: true, short: Reservation{Bytes: 16 * gib}},
		"still low":        {room: disk(7*gib-1, 900_000), wasLow: true, verdict: Rejected, low: true, short: Reservation{Bytes: 1}},
		"no longer low":    {room: disk(7*gib, 900_000), wasLow: true, verdict: Admit},
		"low in promises":  {room: disk(8*gib, 900_000), outstanding: Reservation{Bytes: gib + 1}, wasLow: true, verdict: Rejected, low: true, short: Reservation{Bytes: 1}},
		"inodes still low": {room: disk(50*gib, 69_999), wasLow: true, verdict: Rejected, low: true, short: Reservation{Inodes: 1}},
		"full":             {room: disk(0, 0), verdict: Rejected, low: true, short: Reservation{Bytes: 6 * gib, Inodes: 70_000}},
		"no inodes at all": {room: btrfs, verdict: Admit}, // case T70: files == 0 means not applicable
		"5 percent rule":   {room: big, verdict: Rejected, low: true, short: Reservation{Bytes: 10*tib + gib, Inodes: 19_990}},
		"2 GiB rule": {
			room:    Room{Known: true, FreeBytes: 3*gib - 1, TotalBytes: 10 * gib, FreeInodes: 9e5, TotalInodes: 1e6},
			verdict: Rejected, short: Reservation{Bytes: 1},
		},
		"state root": {room: disk(gib+64*mib, 21_024), marks: RootMarks(), verdict: Admit},
		"state root, a byte less": {
			room: disk(gib+64*mib-1, 21_023), marks: RootMarks(), verdict: Rejected, short: Reservation{1, 1},
		},
		"state root, low": {room: disk(96*mib, 1535), marks: RootMarks(), wasLow: true, verdict: Rejected, low: true,
			short: Reservation{gib - 32*mib, 19_489}},
	} {
		if c.marks == (Marks{}) {
			c.marks = DefaultMarks()
		}
		d := Decide(c.room, c.outstanding, request, c.marks, c.wasLow)
		if d.Verdict != c.verdict || d.Low != c.low || d.Short != c.short || d.Err != nil || d.Hard {
			t.Errorf("%s: %s low %v short %+v hard %v, %v", name, d.Verdict, d.Low, d.Short, d.Hard, d.Err)
		}
		if d.Verdict == Admit && !fits(c.room.FreeBytes, c.outstanding.Bytes, request.Bytes, d.Left.Bytes) {
			t.Errorf("%s: %d left", name, d.Left.Bytes)
		}
		if d.Room != c.room || d.Outstanding != c.outstanding || d.Request != request {
			t.Errorf("%s: not all numbers are told", name)
		}
	}
}

// TestNumbers: the numbers that go into the answer.
func TestNumbers(t *testing.T) {
	t.Parallel()
	percents := DefaultMarks()
	percents.AbsoluteOnly = true
	for name, c := range map[string]struct {
		got        Decision
		mark, left Reservation
	}{
		"admitted": {
			Decide(disk(50*gib, 900_000), Reservation{gib, 7}, Default(), DefaultMarks(), false),
			Reservation{5 * gib, 50_000}, Reservation{48 * gib, 879_993},
		},
		"no longer low": {
			Decide(disk(50*gib, 900_000), Reservation{gib, 7}, Default(), DefaultMarks(), true),
			Reservation{5 * gib, 50_000}, Reservation{48 * gib, 879_993},
		},
		"still low": {
			Decide(disk(6*gib, 60_000), Reservation{}, Default(), DefaultMarks(), true),
			Reservation{7 * gib, 70_000}, Reservation{5 * gib, 40_000},
		},
		"nothing left": {
			Decide(disk(mib, 60_000), Reservation{}, Default(), DefaultMarks(), false),
			Reservation{5 * gib, 50_000}, Reservation{0, 40_000},
		},
		"percentages ignored": {
			Decide(disk(50*gib, 900_000), Reservation{}, Reservation{}, percents, false),
			Reservation{2 * gib, 0}, Reservation{50 * gib, 900_000},
		},
	} {
		if c.got.Mark != c.mark || c.got.Left != c.left {
			t.Errorf("%s: mark %+v, left %+v", name, c.got.Mark, c.got.Left)
		}
	}
	if RootMarks().MaxAge != DefaultMarks().MaxAge {
		t.Error("readings of a root age at another pace")
	}
}

// TestUnknown: what cannot be known admits nothing, and does not change whether
// the file system counts as low.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Room, *Marks){
		"not measured":   func(r *Room, _ *Marks) { r.Known = false },
		"too old":        func(r *Room, _ *Marks) { r.Age = 31 * time.Second },
		"of the future":  func(r *Room, _ *Marks) { r.Age = -1 },
		"without a size": func(r *Room, _ *Marks) { r.TotalBytes, r.FreeBytes = 0, 0 },
		"absurd":         func(r *Room, _ *Marks) { r.FreeBytes = r.TotalBytes + 1 },
		"absurd inodes":  func(r *Room, _ *Marks) { r.FreeInodes = r.TotalInodes + 1 },
		"bad marks":      func(_ *Room, m *Marks) { m.LowPercent = math.NaN() },
	} {
		room, marks := disk(50*gib, 900_000), DefaultMarks()
		spoil(&room, &marks)
		for _, wasLow := range []bool{false, true} {
			d := Decide(room, Reservation{}, Reservation{}, marks, wasLow)
			if d.Verdict != UnknownCapacity || d.Low != wasLow || !errors.Is(d.Err, ErrRoom) && !errors.Is(d.Err, ErrMarks) {
				t.Errorf("%s: %s low %v, %v", name, d.Verdict, d.Low, d.Err)
			}
			if d.Explain() == "" {
				t.Errorf("%s: not explained", name)
			}
		}
	}
	room, marks := disk(50*gib, 900_000), DefaultMarks()
	room.Age = 30 * time.Second
	if d := Decide(room, Reservation{}, Reservation{}, marks, false); d.Verdict != Admit {
		t.Errorf("just fresh enough: %s", d.Verdict)
	}
	room.Age, marks.MaxAge = time.Hour, 0
	if d := Decide(room, Reservation{}, Reservation{}, marks, false); d.Verdict != Admit {
		t.Errorf("any age: %s", d.Verdict)
	}
}

func TestHardMark(t *testing.T) {
	t.Parallel()
	m := DefaultMarks()
	m.HardBytes, m.HardPercent = gib, 2
	promised := Reservation{Bytes: 90 * gib}
	if d := Decide(disk(2*gib, 900_000), promised, Reservation{}, m, true); d.Hard || !d.Low {
		t.Errorf("at the hard mark: %+v", d)
	}
	if d := Decide(disk(2*gib-1, 900_000), Reservation{}, Reservation{}, m, true); !d.Hard {
		t.Errorf("below the hard mark: %+v", d)
	}
}

func TestReservation(t *testing.T) {
	t.Parallel()
	const most = math.MaxUint64
	if got := (Reservation{most, 5}).Add(Reservation{1, 6}); got != (Reservation{most, 11}) {
		t.Errorf("sum %+v", got)
	}
	if got := (Reservation{3, 10}).Shrink(Reservation{4, 3}); got != (Reservation{0, 7}) {
		t.Errorf("rest %+v", got)
	}
	if got := (Reservation{10, 5}).Shrink(Reservation{3, 6}); got != (Reservation{7, 0}) {
		t.Errorf("rest %+v", got)
	}
	if got := Default(); got != (Reservation{gib, 20_000}) {
		t.Errorf("default %+v", got)
	}
}

func TestMarksValidate(t *testing.T) {
	t.Parallel()
	for _, m := range []Marks{DefaultMarks(), RootMarks(), {}} {
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
	}
	for name, spoil := range map[string]func(*Marks){
		"percent below 0":    func(m *Marks) { m.LowPercent = -1 },
		"percent above 100":  func(m *Marks) { m.ExitLowPercent = 100.5 },
		"inode percent":      func(m *Marks) { m.LowInodePercent = 101 },
		"exit inode percent": func(m *Marks) { m.ExitLowInodePercent = math.Inf(1) },
		"hard percent":       func(m *Marks) { m.HardPercent = math.NaN() },
		"age":                func(m *Marks) { m.MaxAge = -1 },
		"exit bytes":         func(m *Marks) { m.ExitLowBytes = m.LowBytes - 1 },
		"exit percent":       func(m *Marks) { m.ExitLowPercent = 4 },
		"exit inodes":        func(m *Marks) { m.LowInodes = 1 },
		"exit inode share":   func(m *Marks) { m.ExitLowInodePercent = 4 },
		"hard bytes":         func(m *Marks) { m.HardBytes = m.LowBytes + 1 },
		"hard above low":     func(m *Marks) { m.HardPercent = 6 },
	} {
		m := DefaultMarks()
		spoil(&m)
		if err := m.Validate(); !errors.Is(err, ErrMarks) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]Decision{
		"6.0 GiB free of 100.0 GiB, 512.0 MiB promised, 1.0 GiB asked for, 5.0 GiB must be left; " +
			"70000 inodes free of 1000000, 7 promised, 20000 asked for, 50000 must be left; short of 512.0 MiB and 7 inodes": Decide(
			disk(6*gib, 70_000), Reservation{512 * mib, 7}, Default(), DefaultMarks(), false),
		"50.0 GiB free of 100.0 GiB, 0 B promised, 1.0 KiB asked for, 5.0 GiB must be left; " +
			"900000 inodes free of 1000000, 0 promised, 0 asked for, 50000 must be left": Decide(
			disk(50*gib, 900_000), Reservation{}, Reservation{Bytes: 1024}, DefaultMarks(), false),
		"1023 B free of 2.0 KiB, 0 B promised, 1 B asked for, 1023 B must be left; short of 1 B": Decide(
			Room{Known: true, FreeBytes: 1023, TotalBytes: 2048}, Reservation{}, Reservation{Bytes: 1},
			Marks{LowBytes: 1023, ExitLowBytes: 1023}, false),
		"5.0 EiB free of 16.0 EiB, 0 B promised, 0 B asked for, 0 B must be left; " +
			"1 inodes free of 2, 0 promised, 2 asked for, 0 must be left; short of 1 inodes": Decide(
			Room{Known: true, FreeBytes: 5 << 60, TotalBytes: math.MaxUint64, FreeInodes: 1, TotalInodes: 2},
			Reservation{}, Reservation{Inodes: 2}, Marks{}, false),
		"measuring failed: the room is not known": Decide(Room{}, Reservation{}, Default(), DefaultMarks(), false),
	} {
		if got := d.Explain(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	for v, want := range map[Verdict]string{Admit: "admit", Rejected: "rejected", UnknownCapacity: "unknown_capacity", 0: "verdict(0)"} {
		if v.String() != want {
			t.Errorf("%s is not %s", v, want)
		}
	}
}

// TestWorse: a full log root rejects a session whose workspace would fit, and
// the other way round (case T68: each file system is asked for itself).
func TestWorse(t *testing.T) {
	t.Parallel()
	roomy := Decide(disk(50*gib, 900_000), Reservation{}, Default(), DefaultMarks(), false)
	full := Decide(disk(mib, 900_000), Reservation{}, Reservation{}, RootMarks(), false)
	unknown := Decide(Room{}, Reservation{}, Reservation{}, RootMarks(), false)
	for _, c := range []struct {
		a, b Decision
		want Verdict
	}{{roomy, roomy, Admit}, {roomy, full, Rejected}, {full, unknown, UnknownCapacity}, {unknown, roomy, UnknownCapacity}} {
		if got, back := Worse(c.a, c.b), Worse(c.b, c.a); got.Verdict != c.want || back.Verdict != c.want {
			t.Errorf("%s and %s: %s, %s", c.a.Verdict, c.b.Verdict, got.Verdict, back.Verdict)
		}
	}
}
