package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string, dropIns map[string]string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berthd.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range dropIns {
		if err := os.WriteFile(filepath.Join(path+".d", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(Default(), path, false, func(*Config) {})
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	c, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Providers) != 1 || c.Providers[0].Path != "/usr/libexec/berth/berth-sandbox-process" {
		t.Errorf("providers are %+v", c.Providers)
	}
}

func TestDropInsInOrder(t *testing.T) {
	t.Parallel()
	c, err := load(t, "[sessions]\ngrace = \"1s\"\nlaunches = 2\n", map[string]string{
		"20-b.toml": "[sessions]\ngrace = \"3s\"\n",
		"10-a.toml": "[sessions]\ngrace = \"2s\"\nreserve_bytes = 7\n",
		"ignored":   "nonsense",
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Sessions; s.Grace.D() != 3*time.Second || s.ReserveBytes != 7 || s.Launches != 2 {
		t.Errorf("sessions are %+v", s)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":     {"state_dir = \"/x\"\n[sessions]\ngrce = \"1s\"\n", `line 3: unknown key "sessions.grce"`},
		"unknown table":   {"[sesions]\n", `unknown key "sesions"`},
		"wrong type":      {"[sessions]\nlaunches = \"many\"\n", "line 2"},
		"not a duration":  {"[sessions]\ngrace = \"soon\"\n", "soon"},
		"not TOML":        {"state_dir = \n", "line 1"},
		"relative path":   {"state_dir = \"x\"\n", `state_dir = "x"`},
		"grace too long":  {"[sessions]\ngrace = \"61m\"\n", "sessions.grace"},
		"lost too early":  {"[wrapper]\nlost_after = \"1s\"\n", "wrapper.lost_after"},
		"no attempts":     {"[stop]\nattempts = 0\n", "stop.attempts"},
		"bad level":       {"[log]\nlevel = \"loud\"\n", "log.level"},
		"unknown leaves":  {"leaves = \"slice\"\n", "leaves"},
		"bad socket mode": {"[socket]\nmode = 0o70\n", "socket.mode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := load(t, c.text, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.toml")
	if _, err := Load(Default(), missing, false, func(*Config) {}); err == nil {
		t.Error("a named file that is missing is accepted")
	}
	if _, err := Load(Default(), missing, true, func(*Config) {}); err != nil {
		t.Errorf("the default file is missing: %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("state_dir = \"/x\"\n[[provider]]\nkind = \"process\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "c.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Default()
		if c.merge(path) == nil {
			c.complete()
			_ = c.Validate() // must not panic
		}
	})
}
