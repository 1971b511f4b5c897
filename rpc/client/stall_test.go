package client

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// A daemon that hangs in the middle of a stream is given up; one that is only
// silent, with heartbeats, is not.
func TestStall(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "bstall")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	const beats, pause = 75, 20 * time.Millisecond
	hang := make(chan struct{})
	done := make(chan struct{})
	go func() { // ends with hang
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 4096))
		conn.Write([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
		for range beats {
			time.Sleep(pause) // what is tested is a pause
			conn.Write([]byte("1\r\n\n\r\n"))
		}
		<-hang
	}()
	t.Cleanup(func() { close(hang); <-done; l.Close() })
	c := New(filepath.Join(dir, "s"))
	t.Cleanup(c.Close)
	c.stall = time.Second // far above a pause, also on a busy machine
	began := time.Now()
	for r, err := range c.Logs(t.Context(), "s", rpc.LogsQuery{Follow: true}) {
		var ue *UnreachableError
		if !errors.As(err, &ue) || !ue.Sent || !errors.Is(err, errStalled) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if took := time.Since(began); took < beats*pause {
		t.Errorf("given up after %v, with heartbeats", took)
	}
}
