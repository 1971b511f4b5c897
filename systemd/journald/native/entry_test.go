package native

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEntry(t *testing.T) {
	t.Parallel()
	var e Entry
	e.Priority(Warning)
	e.Set("MESSAGE", "two\nlines\x00")
	e.Set("EMPTY", "")
	e.Message(nil)
	e.Uint(Generation, 18446744073709551615)
	want := "PRIORITY=4\nMESSAGE\n\x0a\x00\x00\x00\x00\x00\x00\x00two\nlines\x00\nMESSAGE=\nBERTH_GENERATION=18446744073709551615\n"
	if got := string(e.Bytes()); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	e.Reset()
	if len(e.Bytes()) != 0 {
		t.Errorf("after Reset it holds %q", e.Bytes())
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"A": true, "A1_B": true, strings.Repeat("A", 64): true,
		"": false, "_A": false, "1A": false, "a": false, "A-B": false, "A=B": false, "A\n": false, strings.Repeat("A", 65): false,
	} {
		if ValidName(name) != good {
			t.Errorf("ValidName(%q) is %v", name, !good)
		}
	}
	fields := Fields()
	for i, f := range fields {
		if !ValidName(f) || !strings.HasPrefix(f, "BERTH_") || slices.Contains(fields[:i], f) {
			t.Errorf("field %q is no good name, or there twice", f)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a bad name passes")
		}
	}()
	new(Entry).Set("bad", "x")
}

// listen makes a datagram socket that nobody reads.
func listen(t *testing.T) (path string, fd int) {
	t.Helper()
	path = t.TempDir() + "/socket"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	return path, fd
}

// A receiver that is stopped or slow holds nobody up for longer than was said,
// and one that reads again wakes the sender.
func TestPatience(t *testing.T) {
	t.Parallel()
	path, fd := listen(t)
	s := Socket{Path: path}
	defer s.Close()
	var e Entry
	e.Set("MESSAGE", "x")
	sent := 0
	for ; sent < 10_000; sent++ {
		begin := time.Now()
		err := s.Send(&e, 20*time.Millisecond)
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("a send took %v", took)
		}
		if err == ErrBusy {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if sent == 0 || sent == 10_000 {
		t.Fatalf("%d sends before the receiver is full", sent)
	}
	done := make(chan error)
	go func() { done <- s.Send(&e, time.Minute) }()
	for i := 0; i <= sent; i++ {
		buf := make([]byte, 100)
		n, err := unix.Read(fd, buf)
		if err != nil || string(buf[:n]) != "MESSAGE=x\n" {
			t.Fatalf("datagram %d is %q, %v", i, buf[:max(n, 0)], err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A socket that is not there, and one that was made anew.
func TestAway(t *testing.T) {
	t.Parallel()
	path, fd := listen(t)
	s := Socket{Path: path}
	defer s.Close()
	var e Entry
	e.Set("MESSAGE", "x")
	if err := s.Send(&e, time.Second); err != nil {
		t.Fatal(err)
	}
	unix.Shutdown(fd, unix.SHUT_RDWR)
	if err := unix.Unlink(path); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&e, time.Second); err != ErrAway {
		t.Fatalf("without a receiver: %v", err)
	}
	again, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(again)
	if err := unix.Bind(again, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&e, time.Second); err != nil {
		t.Errorf("to the new receiver: %v", err)
	}
}
