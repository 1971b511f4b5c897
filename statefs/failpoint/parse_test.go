//go:build failpoints

package failpoint

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTerms(t *testing.T) {
	t.Parallel()
	p, err := parse("berthd", `
# a comment
berthd a.b = 2*off->1*error(ENOSPC) -> delay(20ms)
berth-wrap a.c = kill
berthd a.d = error
berthd a.e = 1*kill
`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []action{{}, {}, {kind: actionError, errno: unix.ENOSPC}, {kind: actionDelay, delay: 20 * time.Millisecond}, {kind: actionDelay, delay: 20 * time.Millisecond}} {
		got := p.next("a.b")
		if got.kind != want.kind || got.errno != want.errno || got.delay != want.delay {
			t.Errorf("hit %d of a.b: %+v, want %+v", i+1, got, want)
		}
	}
	if got := p.next("a.c"); got.kind != actionOff {
		t.Errorf("another program's point: %+v", got)
	}
	if got := p.next("a.d"); got.kind != actionError || got.errno != unix.EIO {
		t.Errorf("an error without a name: %+v", got)
	}
	if first, second := p.next("a.e"), p.next("a.e"); first.kind != actionKill || second.kind != actionOff {
		t.Errorf("once: %+v, then %+v", first, second)
	}
	if got := p.next("never.armed"); got.kind != actionOff {
		t.Errorf("a point that is not armed: %+v", got)
	}
}

func TestBadTerms(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"berthd a", "a = kill", "berthd a b = kill", "berthd a = die", "berthd a = x*kill", "berthd a = -1*kill",
		"berthd a = delay(soon)", "berthd a = error(ENOTHING)", "berthd a = ", "berthd a = kill->",
	} {
		if _, err := parse("berthd", text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
