package rpc_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// pair returns the two ends of a connection.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

func terminals(t testing.TB) (a, b *rpc.TerminalConn, raw net.Conn) {
	ca, cb := pair(t)
	return rpc.NewTerminalConn(ca, bufio.NewReader(ca), bound), rpc.NewTerminalConn(cb, bufio.NewReader(cb), bound), ca
}

// case G1: bytes travel as they are, wherever a character is cut.
func TestTerminalBytes(t *testing.T) {
	t.Parallel()
	a, b, _ := terminals(t)
	text := []byte("é😀\xff\x00\x1b[2J")
	for cut := range len(text) + 1 {
		var got []byte
		for i, part := range [][]byte{text[:cut], text[cut:]} {
			if err := a.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: part, Seq: 1<<63 + uint64(i)}); err != nil {
				t.Fatal(err)
			}
			f, err := b.Recv()
			if err != nil || f.Kind != rpc.TerminalData || f.Seq != 1<<63+uint64(i) {
				t.Fatalf("%+v, %v", f, err)
			}
			got = append(got, f.Data...)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

func TestTerminalLimits(t *testing.T) {
	t.Parallel()
	a, b, _ := terminals(t)
	big := bytes.Repeat([]byte("x"), 2*rpc.MaxTerminalFrame+7)
	go a.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: big, Seq: 5}) // ends when b has read it
	total := 0
	for total < len(big) {
		f, err := b.Recv()
		if err != nil || f.Seq != 5 || len(f.Data) > rpc.MaxTerminalFrame {
			t.Fatalf("%d bytes, seq %d, %v", len(f.Data), f.Seq, err)
		}
		total += len(f.Data)
	}
	if err := a.Send(rpc.TerminalFrame{Kind: rpc.TerminalNotice, Data: big}); err == nil {
		t.Error("a notice may be as long as it likes")
	}
}

func TestTerminalNonsense(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, bytes string
		want        error
	}{
		{"nothing", "", io.EOF},
		{"cut header", "\x01\x00\x00", io.ErrUnexpectedEOF},
		{"cut payload", "\x01\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01abc", io.ErrUnexpectedEOF},
		{"no payload", "\x01\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01", io.ErrUnexpectedEOF},
		{"kind 0", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", rpc.ErrTerminalFrame},
		{"reserved", "\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", rpc.ErrTerminalFrame},
		{"too long", "\x01\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00", rpc.ErrTerminalFrame},
		{"http", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", rpc.ErrTerminalFrame},
	}
	for _, tc := range tests {
		_, b, raw := terminals(t)
		io.WriteString(raw, tc.bytes)
		raw.Close()
		if _, err := b.Recv(); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	// A kind of a later version is passed over.
	_, b, raw := terminals(t)
	io.WriteString(raw, "\x09\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00x"+
		"\x04\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00y")
	if f, err := b.Recv(); err != nil || f.Kind != rpc.TerminalNotice || string(f.Data) != "y" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestTerminalSlowPeer(t *testing.T) {
	t.Parallel()
	a, _, _ := terminals(t)
	a.SetSendTimeout(50 * time.Millisecond)
	var err error
	for range 1000 {
		if err = a.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: make([]byte, rpc.MaxTerminalFrame)}); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if err := a.Send(rpc.TerminalFrame{Kind: rpc.TerminalData}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after a part of a frame: %v", err)
	}
}

// Frames of several goroutines do not mix.
func TestTerminalConcurrentSend(t *testing.T) {
	t.Parallel()
	a, b, _ := terminals(t)
	var wg sync.WaitGroup
	const senders, each = 8, 200
	for i := range senders {
		wg.Go(func() {
			for range each {
				data := bytes.Repeat([]byte{byte('a' + i)}, 100+i)
				if err := a.Send(rpc.TerminalFrame{Kind: rpc.TerminalData, Data: data, Seq: uint64(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range senders * each {
		f, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte{byte('a' + f.Seq)}, 100+int(f.Seq))
		if !bytes.Equal(f.Data, want) {
			t.Fatalf("seq %d: %q", f.Seq, f.Data)
		}
	}
	wg.Wait()
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	if s, err := rpc.ParseSize(rpc.ResizeFrame(rpc.Size{Rows: 24, Cols: 80}).Data); err != nil || s.Rows != 24 || s.Cols != 80 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "{}", `{"rows":0,"cols":80}`, `{"rows":24,"cols":80,"x":1}`, `{"rows":70000,"cols":80}`, "24x80"} {
		if s, err := rpc.ParseSize([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
	}
}

func FuzzTerminalRecv(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01abcde"))
	f.Add([]byte("\x09\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := rpc.NewTerminalConn(nil, bufio.NewReader(bytes.NewReader(data)), 0)
		for {
			fr, err := c.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, rpc.ErrTerminalFrame) {
					t.Fatal(err)
				}
				return
			}
			if fr.Kind == 0 || fr.Kind > rpc.TerminalError || len(fr.Data) > rpc.MaxTerminalFrame {
				t.Fatalf("%+v", fr)
			}
		}
	})
}
