package sys

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkObserve(b *testing.B) {
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if p, _, err := Observe(id); p != Alive || err != nil {
			b.Fatal(p, err)
		}
	}
}

func BenchmarkOpenVerified(b *testing.B) {
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	id, err := IdentityOf(c.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		fd, err := OpenVerified(id)
		if err != nil {
			b.Fatal(err)
		}
		unix.Close(fd)
	}
}
