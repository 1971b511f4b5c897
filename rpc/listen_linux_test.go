package rpc_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

// helpers are the other processes of tests.
var helpers = map[string]func(args []string) int{
	"racer":  racer,
	"binder": binder,
	"caller": caller,
}

func TestListen(t *testing.T) {
	t.Parallel()
	path := rpctest.SocketPath(t)
	l, err := rpc.Listen(path, 0o640, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o7777 != 0o640 || st.Gid != uint32(os.Getegid()) {
		t.Errorf("mode %o, group %d", st.Mode&0o7777, st.Gid)
	}
	if _, err := rpc.Listen(path, 0o600, -1); !errors.Is(err, rpc.ErrSocketInUse) {
		t.Errorf("a second server: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after Close: %v", err)
	}
}

func TestListenStale(t *testing.T) {
	t.Parallel()
	path := rpctest.SocketPath(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := rpc.Listen(path, 0o600, -1)
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	// Somebody has removed it by hand and another server has come: its socket
	// is not ours to remove.
	os.Remove(path)
	other, err := rpc.Listen(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.Close()
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the successor's socket: %v", err)
	}
}

// A server whose queue is full still listens.
func TestListenFullQueue(t *testing.T) {
	t.Parallel()
	path := rpctest.SocketPath(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path) // fills the queue
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := rpc.Listen(path, 0o600, -1); !errors.Is(err, rpc.ErrSocketInUse) {
		t.Errorf("err = %v", err)
	}
}

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{ // path: what the error says
		"relative.sock":                    "not absolute",
		"@abstract":                        "not absolute",
		"/" + strings.Repeat("x", 107):     "108 bytes long; a Unix socket's path may have 107", // case T77
		file:                               "not a socket",
		link:                               "not a socket",
		dir:                                "not a socket",
		filepath.Join(dir, "no", "b.sock"): "no such file",
	}
	for path, want := range tests {
		if l, err := rpc.Listen(path, 0o600, -1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
			if err == nil {
				l.Close()
			}
		}
	}
	if data, _ := os.ReadFile(file); string(data) != "precious" {
		t.Error("the file was changed")
	}
}

// case T76: a process of another uid that watches the directory and connects
// the instant that the socket appears is never accepted, whatever the umask;
// where the mode admits it, it is, which shows that it tries hard enough.
func TestListenHasNoWindow(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, tc := range []struct {
		mode   string
		admits bool
	}{{"600", false}, {"660", false}, {"666", true}} {
		t.Run(tc.mode, func(t *testing.T) {
			t.Parallel()
			path := rpctest.SocketPath(t)
			racing := helper(t, 54321, nil, "racer", path)
			out, err := racing.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stop, err := racing.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := racing.Start(); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(out)
			if _, err := r.ReadString('\n'); err != nil { // it watches
				t.Fatal(err)
			}
			if text, err := helper(t, -1, nil, "binder", path, tc.mode, "300").Output(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			stop.Close()
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var seen, tries, accepted int
			if _, err := fmt.Sscan(line, &seen, &tries, &accepted); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d sockets seen, %d connects, %d accepted", seen, tries, accepted)
			if seen == 0 || tries < 300 || (accepted > 0) != tc.admits {
				t.Errorf("%d sockets seen, %d connects, %d accepted", seen, tries, accepted)
			}
			if err := racing.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// racer connects to args[0] as fast as it can whenever it is created, until
// standard input ends, and says how often that worked.
func racer(args []string) int {
	path := args[0]
	in, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	if _, err := unix.InotifyAddWatch(in, filepath.Dir(path), unix.IN_CREATE); err != nil {
		return fail(err)
	}
	fmt.Println("ready")
	var seen, tries, accepted int
	buf := make([]byte, 4096)
	for {
		fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}, {Fd: 0, Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fail(err)
		}
		if n, _ := unix.Read(in, buf); n > 0 {
			seen++
			// Well into the time when the socket has its final mode.
			for range 200 {
				tries++
				if connects(path) {
					accepted++
				}
			}
			continue
		}
		if fds[1].Revents != 0 {
			fmt.Println(seen, tries, accepted)
			return 0
		}
	}
}

func connects(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == nil
}

// binder listens and closes again, with nothing in its umask.
func binder(args []string) int {
	syscall.Umask(0)
	mode, _ := strconv.ParseUint(args[1], 8, 32)
	n, _ := strconv.Atoi(args[2])
	for range n {
		l, err := rpc.Listen(args[0], os.FileMode(mode), -1)
		if err != nil {
			return fail(err)
		}
		if err := l.Close(); err != nil {
			return fail(err)
		}
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// caller sends the request args[1] to the socket args[0] and prints the status
// and the body; "closed" when it gets no answer.
func caller(args []string) int {
	c, err := net.Dial("unix", args[0])
	if err != nil {
		fmt.Println("not connected")
		return 0
	}
	defer c.Close()
	fmt.Fprint(c, args[1])
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		fmt.Println("closed")
		return 0
	}
	defer resp.Body.Close()
	fmt.Print(resp.StatusCode, " ")
	bufio.NewReader(resp.Body).WriteTo(os.Stdout)
	return 0
}

func output(t *testing.T, cmd *exec.Cmd) (status int, body string) {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s, body, _ := strings.Cut(string(out), " ")
	status, _ = strconv.Atoi(s)
	if status == 0 {
		body = string(out)
	}
	return status, body
}
