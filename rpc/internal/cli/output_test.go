package cli

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

func TestBytesText(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 30: "5.0 GiB", math.MaxUint64: "16.0 EiB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAgeText(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 9000 * time.Hour: "375d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestBytesFlag(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"0": 0, "4096": 4096, "1K": 1024, "1kb": 1024, "1KiB": 1024, "1.5M": 3 << 19, "2GiB": 2 << 30, "1T": 1 << 40,
	} {
		var b bytesFlag
		if err := b.Set(text); err != nil || uint64(b) != want {
			t.Errorf("%q: %d, %v", text, b, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "1X", "1KBB", "NaN", "Inf", "1e30T", "GiB", "1 K"} {
		var b bytesFlag
		if err := b.Set(bad); err == nil {
			t.Errorf("%q is %d", bad, b)
		}
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain é 😀": "plain é 😀", "\x1b[2J": `\x1b[2J`, "a\nb": `a\nb`, "\xff": `\xff`, "": "",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestCommandText(t *testing.T) {
	t.Parallel()
	got := commandText([]string{"sh", "-c", "echo $HOME", "", "it's", "a=b/c.d"})
	if want := `sh -c 'echo $HOME' '' 'it'\''s' a=b/c.d`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAgentCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		exit *rpc.Exit
		code int
		ok   bool
	}{
		{&rpc.Exit{Kind: "code"}, 0, true},
		{&rpc.Exit{Kind: "code", Code: 42}, 42, true},
		{&rpc.Exit{Kind: "signal", Signal: 15}, 143, true},
		{&rpc.Exit{Kind: "oom", Signal: 9}, 137, true},
		{&rpc.Exit{Kind: "unknown", Unknown: "x"}, 0, false},
		{&rpc.Exit{}, 0, false},
		{nil, 0, false},
	}
	for _, tc := range tests {
		if code, err := agentCode(tc.exit); code != tc.code || (err == nil) != tc.ok {
			t.Errorf("%+v: %d, %v", tc.exit, code, err)
		}
	}
}

func TestMadeID(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"claude", "/usr/bin/x y", "", "..", "-x", "é", strings.Repeat("a", 300)} {
		if id := madeID(program); rpc.CheckSessionID(id) != nil {
			t.Errorf("%q gives %q", program, id)
		}
	}
}

// Every code of the protocol has a hint, and none that is not in it.
func TestHints(t *testing.T) {
	t.Parallel()
	for _, c := range rpc.Codes() {
		if hints[c] == "" {
			t.Errorf("no hint for %s", c)
		}
	}
	if len(hints) != len(rpc.Codes()) {
		t.Errorf("%d hints for %d codes", len(hints), len(rpc.Codes()))
	}
}
