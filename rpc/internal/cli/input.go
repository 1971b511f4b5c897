package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input reads a file that may block for ever, such as a terminal, and can be
// told to stop: what is typed after that is not eaten.
type input struct {
	f    *os.File
	wake *os.File // becomes readable when ctx ends
	stop func()
}

// newInput makes an input that ends with ctx. Close it.
func newInput(ctx context.Context, f *os.File) (*input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	release := context.AfterFunc(ctx, func() { w.Close() })
	return &input{f: f, wake: r, stop: func() {
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
			{Fd: int32(i.wake.Fd()), Events: unix.POLLIN},
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
