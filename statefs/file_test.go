package statefs

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, body := range []string{"one", "", "two, longer"} {
		for _, perm := range []fs.FileMode{0o600, 0o666, 0o444} {
			if err := WriteFile(path, []byte(body), perm); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != body {
				t.Errorf("content %q, %v; want %q", got, err, body)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != perm {
				t.Errorf("mode %v, %v; want %v", info.Mode(), err, perm)
			}
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// A link under the name is replaced, what it points to stays.
func TestWriteFileReplacesLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	link := filepath.Join(dir, "link")
	if err := os.WriteFile(precious, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(precious); string(b) != "keep" {
		t.Errorf("the link was followed: %q", b)
	}
	if info, _ := os.Lstat(link); !info.Mode().IsRegular() {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestWriteFileErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		path string
		want error
	}{
		"no directory":       {filepath.Join(dir, "none", "f"), fs.ErrNotExist},
		"a directory there":  {filepath.Join(dir, "d"), syscall.EISDIR},
		"name too long":      {filepath.Join(dir, strings.Repeat("n", 256)), syscall.ENAMETOOLONG},
		"no name":            {dir + "/", nil},
		"parent":             {dir + "/..", nil},
		"file as directory":  {filepath.Join("/proc/self/status", "f"), syscall.ENOTDIR},
		"proc creates none":  {"/proc/self/berth-test", nil},
		"empty path, no cwd": {"", nil},
	}
	for name, tt := range tests {
		err := WriteFile(tt.path, []byte("x"), 0o600)
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: err = %v, want %v", name, err, tt.want)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// On a full disk the old content stays and no temporary file does.
func TestWriteFileFull(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "size=64k")
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := WriteFile(path, make([]byte, 1<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("err = %v, want ENOSPC", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "old" {
		t.Errorf("content %q", b)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// Readers see whole files only, writers do not disturb each other.
func TestWriteFileConcurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, bytes.Repeat([]byte{'a'}, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for range 25 {
				if err := WriteFile(path, bytes.Repeat([]byte{'a' + byte(w)}, 4096+w), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			b, err := os.ReadFile(path)
			if err != nil || len(b) < 4096 || len(b) != 4096+int(b[0]-'a') || len(bytes.Trim(b, string(b[:1]))) != 0 {
				t.Errorf("torn read: %d bytes, %v", len(b), err)
				return
			}
		}
	})
	writers.Wait()
	close(done)
	reader.Wait()
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// case T77
func TestCheckSocketPath(t *testing.T) {
	t.Parallel()
	// A relative path keeps the lengths under control of the test.
	for n, ok := range map[int]bool{1: true, 107: true, 108: false, 500: false} {
		err := CheckSocketPath(strings.Repeat("s", n))
		if (err == nil) != ok || !ok && !errors.Is(err, ErrSocketPath) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// The kernel's opinion is the same.
	dir, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, n := range []int{107, 108} {
		path := dir + "/" + strings.Repeat("s", n-len(dir)-1)
		l, err := net.Listen("unix", path)
		if (err == nil) != (CheckSocketPath(path) == nil) {
			t.Errorf("%d bytes: listen says %v, CheckSocketPath %v", n, err, CheckSocketPath(path))
		}
		if err == nil {
			l.Close()
		}
	}
}

func TestSafeName(t *testing.T) {
	t.Parallel()
	good := []string{"a", "A.b-c_d", "0", "a..b", strings.Repeat("x", 128)}
	bad := []string{"", ".", "..", ".a", "-a", "_a", "a/b", "/", "a b", "a\x00", "é", "aé", "a\n", strings.Repeat("x", 129)}
	for _, s := range good {
		if !SafeName(s) {
			t.Errorf("%q refused", s)
		}
	}
	for _, s := range bad {
		if SafeName(s) {
			t.Errorf("%q accepted", s)
		}
	}
}

func FuzzSafeName(f *testing.F) {
	for _, s := range []string{"a", "..", "a/../b", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if SafeName(s) && (filepath.Base(s) != s || filepath.Join("/r", s) != "/r/"+s || s[0] == '.' || s[0] == '-') {
			t.Errorf("%q accepted", s)
		}
	})
}

func TestEINTR(t *testing.T) {
	t.Parallel()
	n := 0
	err := eintr(func() error {
		if n++; n < 3 {
			return unix.EINTR
		}
		return unix.EIO
	})
	if err != unix.EIO || n != 3 {
		t.Errorf("err = %v after %d calls", err, n)
	}
}
