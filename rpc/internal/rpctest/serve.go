package rpctest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// Server is an rpc.Server on a real socket.
type Server struct {
	*rpc.Server
	Path string
	done chan error
}

// Serve starts a server at path.
func Serve(path string, cfg rpc.Config) (*Server, error) {
	l, err := rpc.Listen(path, 0o666, -1)
	if err != nil {
		return nil, err
	}
	s := &Server{Server: rpc.NewServer(cfg), Path: path, done: make(chan error, 1)}
	go func() { s.done <- s.Serve(l) }() // Stop waits for it
	return s, nil
}

// Stop shuts the server down within two seconds.
func (s *Server) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.Shutdown(ctx)
	if e := <-s.done; e != nil {
		return e
	}
	return err
}

// Start serves svc on a socket of the test and stops with it.
func Start(t testing.TB, cfg rpc.Config) *Server {
	t.Helper()
	s, err := Serve(SocketPath(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stopping the server: %v", err)
		}
	})
	return s
}

// SocketPath returns a path that is short enough for a socket, whatever the
// test is called, in a directory that ends with the test.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "brpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // other uids connect in some tests
		t.Fatal(err)
	}
	return filepath.Join(dir, "berth.sock")
}
