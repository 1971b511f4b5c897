package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// joinTimeout bounds the wait for a reader that was told to stop.
const joinTimeout = 200 * time.Millisecond

// join waits for a goroutine that reads an input and was told to stop. It may
// not come back: between poll's answer and read, an interrupt key empties a
// terminal's queue, and another process can empty a pipe. berthctl is about to
// end then, and the kernel ends the read.
func join(done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(joinTimeout):
	}
}

// input reads a file that may block for ever, such as a terminal, and can be
// told to stop: what is typed after that is not eaten.
type input struct {
	f    *os.File
	wake int // a descriptor that becomes readable when ctx ends
	stop func()
}

// newInput makes an input that ends with ctx. Close it.
func newInput(ctx context.Context, f *os.File) (*input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	release := context.AfterFunc(ctx, func() { w.Close() })
	return &input{f: f, wake: int(r.Fd()), stop: func() {
		if release() {
			w.Close()
		}
		r.Close()
	}}, nil
}

// Read waits for bytes. io.EOF: there are no more, or ctx has ended.
func (i *input) Read(buf []byte) (int, error) {
	for {
		fds := []unix.PollFd{
			{Fd: int32(i.f.Fd()), Events: unix.POLLIN},
			{Fd: int32(i.wake), Events: unix.POLLIN},
		}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return 0, fmt.Errorf("waiting for input: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		n, err := unix.Read(int(i.f.Fd()), buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EIO): // a terminal that was hung up
			return 0, io.EOF
		case err != nil:
			return 0, fmt.Errorf("reading standard input: %w", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Close releases the descriptors.
func (i *input) Close() { i.stop() }
