package sys

import (
	"strings"
	"testing"
)

// Lines of Linux 6.18 and 6.1.
const (
	statSleep  = "4211 (sleep) S 4200 4211 4200 34816 4211 4194304 98 0 0 0 0 0 0 0 20 0 1 0 81234 2703360 180 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	statZombie = "77 (a) R (b\n) Z 1 77 77 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 9\n"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	st, err := ParseStat([]byte(statSleep))
	want := Stat{PID: 4211, Comm: "sleep", State: 'S', PPID: 4200, Flags: 4194304, StartTicks: 81234}
	if st != want || err != nil {
		t.Fatalf("%+v, %v", st, err)
	}
	st, err = ParseStat([]byte(statZombie))
	want = Stat{PID: 77, Comm: "a) R (b\n", State: 'Z', PPID: 1, Flags: 4227084, StartTicks: 5}
	if st != want || err != nil || !st.Zombie() {
		t.Fatalf("%+v, %v", st, err)
	}
}

func TestParseStatRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "(", ")", "1 ()", ") 1 (", "x (a) S" + strings.Repeat(" 1", 30), "-1 (a) S" + strings.Repeat(" 1", 30),
		statSleep[:60], strings.Replace(statSleep, "81234", "-1", 1), strings.Replace(statSleep, " S ", " SS ", 1),
	} {
		if st, err := ParseStat([]byte(s)); err == nil {
			t.Errorf("%q: %+v", s, st)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(statSleep))
	f.Add([]byte(statZombie))
	f.Add([]byte("1 () S"))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := ParseStat(b)
		if err != nil && st != (Stat{}) {
			t.Fatalf("error and a value: %+v", st)
		}
		if err == nil && st.PID < 1 {
			t.Fatalf("%+v", st)
		}
	})
}
