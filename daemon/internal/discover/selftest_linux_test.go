package discover

import (
	"strings"
	"syscall"
	"testing"
)

func TestSelfTest(t *testing.T) {
	t.Parallel()
	s := newScanner(t, Options{})
	for range 2 {
		if err := s.SelfTest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !s.proven.Load() {
		t.Error("not remembered")
	}
}

// case T24: without the privilege to read another uid's memory the self-test must say so.
func TestSelfTestWithoutPrivileges(t *testing.T) {
	t.Parallel()
	needRoot(t)
	out, err := as(t, "drop-caps", nil)
	if err == nil || !strings.Contains(out, "unreadable") {
		t.Errorf("%v: %s", err, out)
	}
}

// case T24: an ordinary user sees its own children under hidepid=2.
func TestSelfTestUnderHidepid(t *testing.T) {
	t.Parallel()
	needRoot(t)
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	if out, err := as(t, "hidepid", attr); err != nil || out != "" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestSelfTestOfAnotherTree(t *testing.T) {
	t.Parallel()
	s := newScanner(t, Options{Root: t.TempDir()})
	if err := s.SelfTest(t.Context()); err == nil {
		t.Error("an empty tree shows no child, and the self-test succeeded")
	}
}
