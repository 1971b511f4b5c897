package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	h := start(t, options(t, "serve"))
	p := provider(t, h, "test")
	ctx := t.Context()
	d, err := p.Describe(ctx)
	if err != nil || d.Kind != "test" || !d.Capabilities.Has(sandbox.Terminal) {
		t.Errorf("describe: %+v, %v", d, err)
	}
	r, err := p.Prepare(ctx, ask("ok", "a b"))
	if err != nil || !slices.Equal(r.Argv, []string{"ok", "a b"}) {
		t.Errorf("prepare: %+v, %v", r, err)
	}
	if o, err := p.Observe(ctx, "h"); err != nil || o.Presence != sandbox.Absent {
		t.Errorf("observe: %+v, %v", o, err)
	}
	if r, err := p.Release(ctx, "h"); err != nil || r.Detail != "gone" {
		t.Errorf("release: %+v, %v", r, err)
	}
	s := h.Status()[0]
	if s.State != Ready || s.PID == 0 || s.Version != "0.1" || s.Restarts != 0 || s.LastError != "" || s.Since.IsZero() {
		t.Errorf("status: %+v", s)
	}
}

func TestErrorsOfCalls(t *testing.T) {
	t.Parallel()
	p := provider(t, start(t, options(t, "serve")), "test")
	for what, want := range map[string]sandbox.Error{
		"refuse": {Reason: sandbox.CreationFailed, Message: "no image", Retryable: true},
		"newer":  {Reason: sandbox.InfrastructureFailed, Message: `who knows ("from_the_future")`},
		"bad":    {Reason: sandbox.CreationUnsettled, Message: `provider "test" did not answer prepare: the answer is not usable: directory "relative" is not an absolute path in its shortest form (invalid_request)`},
		"":       {Reason: sandbox.InvalidRequest, Message: "the command is empty"},
	} {
		_, err := p.Prepare(t.Context(), ask(what))
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || *e != want {
			t.Errorf("%q: got %#v, want %#v", what, err, want)
		}
	}
	_, err := p.Observe(t.Context(), "bad")
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.InfrastructureFailed || e.Retryable {
		t.Errorf("bad observation: %v", err)
	}
}

// case H9: what is not configured, or is not what it should be, is refused with
// its reason; nothing else takes its place.
func TestProvidersThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	write(t, plain, "#!/bin/sh\n", 0o644)
	open := filepath.Join(dir, "open")
	write(t, open, "#!/bin/sh\n", 0o777)
	binary := filepath.Join(dir, "no-program")
	write(t, binary, "\x7fELF?", 0o755)
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(shared, "p"), "#!/bin/sh\n", 0o755)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(shared, "p"), link); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		mode   string
		change func(*Config)
		reason sandbox.Reason
		text   string
	}{
		"missing":   {"", func(c *Config) { c.Path = "/nonexistent/p" }, sandbox.NotConfigured, "no such file"},
		"directory": {"", func(c *Config) { c.Path = dir }, sandbox.NotConfigured, "not a regular file"},
		"plain":     {"", func(c *Config) { c.Path = plain }, sandbox.NotConfigured, "not executable"},
		"writable":  {"", func(c *Config) { c.Path = open }, sandbox.NotConfigured, "written by others"},
		"shared":    {"", func(c *Config) { c.Path = filepath.Join(shared, "p") }, sandbox.NotConfigured, "everybody can write"},
		"link":      {"", func(c *Config) { c.Path = link }, sandbox.NotConfigured, "everybody can write"},
		"no format": {"", func(c *Config) { c.Path = binary }, sandbox.RuntimeNotRunning, "exec format error"},
		"checksum":  {"serve", func(c *Config) { c.SHA256 = strings.Repeat("0", 64) }, sandbox.ConfigurationDrift, "configured is 0000"},
		"kind":      {"kind other", nil, sandbox.NotConfigured, `of kind "other"`},
		"contract":  {"contract", nil, sandbox.NotConfigured, "contract version 2"},
		"garbage":   {"garbage", nil, sandbox.RuntimeNotRunning, "Hello, I am no plugin"},
		"flood":     {"flood", nil, sandbox.RuntimeNotRunning, "xxxxx"},
		"exit":      {"exit", nil, sandbox.RuntimeNotRunning, "exit status 3; it last said: no runtime on this host"},
		"version":   {"announce 1|9|unix|/x|grpc|", nil, sandbox.RuntimeNotRunning, "version: 9"},
		"tcp":       {"announce 1|1|tcp|127.0.0.1:1|grpc|", nil, sandbox.RuntimeNotRunning, `"tcp" socket`},
		"elsewhere": {"announce 1|1|unix|/run/other.sock|grpc|", nil, sandbox.RuntimeNotRunning, "outside its directory"},
		"net/rpc":   {"announce 1|1|unix|/x|netrpc|", nil, sandbox.RuntimeNotRunning, "outside its directory"},
		"stranger":  {"foreign", nil, sandbox.RuntimeNotRunning, "listens on the socket of plugin process"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t, c.mode)
			o.Bounds.BackoffMin, o.Bounds.BackoffMax = time.Hour, time.Hour
			if c.change != nil {
				c.change(&o.Providers[0])
			}
			h := start(t, o)
			e := refused(t, h, "test")
			if e.Reason != c.reason || !strings.Contains(e.Message, c.text) || strings.Contains(e.Message, "\n") {
				t.Errorf("got %#v\nwant %s with %q", e, c.reason, c.text)
			}
			if s := h.Status()[0]; s.State != Backoff || s.PID != 0 || !strings.Contains(s.LastError, c.text) || s.NextTry.IsZero() {
				t.Errorf("status: %+v", s)
			}
		})
	}
}

func TestUnknownKind(t *testing.T) {
	t.Parallel()
	h := start(t, options(t))
	if e := refused(t, h, "nope"); e.Reason != sandbox.NotConfigured || e.Retryable {
		t.Errorf("got %#v", e)
	}
	h, err := New(options(t, "serve"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = h.Provider(ctx, "test") // before Start it waits, as long as the caller has time
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Reason != sandbox.RuntimeNotRunning || h.Status()[0].State != Stopped {
		t.Errorf("before Start: %v, %+v", err, h.Status())
	}
}

// case A16: nothing waits for a plugin that does not start.
func TestStartWaitsForNobody(t *testing.T) {
	t.Parallel()
	o := options(t, "mute", "serve")
	o.Bounds.Start = 2 * time.Second
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h.Start(context.Background())
	s := h.Status()
	if took := time.Since(began); took > 50*time.Millisecond {
		t.Errorf("Start and Status took %s", took)
	}
	if len(s) != 2 || s[0].Kind != "test" {
		t.Errorf("status: %+v", s)
	}
	defer stop(t, h)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := h.Provider(ctx, "test"); err == nil || !strings.Contains(err.Error(), "being started") {
		t.Errorf("a waiter that gave up: %v", err)
	}
	provider(t, h, "test1") // is not held up
	if e := refused(t, h, "test"); e.Reason != sandbox.RuntimeNotRunning || !e.Retryable {
		t.Errorf("mute plugin: %#v", e)
	}
}

func TestPinnedChecksum(t *testing.T) {
	t.Parallel()
	o := options(t, "serve")
	f, err := os.Open(o.Providers[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	o.Providers[0].SHA256 = strings.ToUpper(hex.EncodeToString(sum.Sum(nil)))
	provider(t, start(t, o), "test")
}

func TestReplacedBetweenCheckAndExec(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	write(t, path, "one", 0o755)
	p, err := verify(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.unchanged(); err != nil {
		t.Errorf("untouched: %v", err)
	}
	write(t, path+"2", "two", 0o755)
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	if err := p.unchanged(); err == nil {
		t.Error("a replaced program passed")
	}
}

func TestProgramIsAFifo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	if err := unix.Mkfifo(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := verify(Config{Path: path}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
