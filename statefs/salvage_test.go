package statefs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func salvages(t *testing.T) Salvages {
	t.Helper()
	return Salvages{filepath.Join(t.TempDir(), "salvage")}
}

func begin(t *testing.T, s Salvages, name string) *Salvage {
	t.Helper()
	one, err := s.Begin(name, uint32(os.Geteuid()), uint32(os.Getegid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close() })
	return one
}

// What was named is kept, the daemon's alone and under its name; the rest goes.
func TestSalvageFinish(t *testing.T) {
	s := salvages(t)
	one := begin(t, s, "a-2")
	for name, mode := range map[string]os.FileMode{"0.bundle": 0o644, "scratch": 0o666} {
		if err := os.WriteFile(filepath.Join(one.Path(), name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.Find("a-2"); ok {
		t.Error("an unfinished salvage is found")
	}
	path, err := one.Finish([]string{"0.bundle"})
	if err != nil {
		t.Fatal(err)
	}
	if found, ok := s.Find("a-2"); !ok || found != path {
		t.Errorf("found %q, %t; it is in %q", found, ok, path)
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 1 || entries[0].Name() != "0.bundle" {
		t.Errorf("holds %v, %v", entries, err)
	}
	if info, err := os.Stat(path + "/0.bundle"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

// The session's user may have put anything there.
func TestSalvageRefusesWhatIsNoFile(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"link":       func(path string) error { return os.Symlink(outside, path) },
		"hard link":  func(path string) error { return os.Link(outside, path) },
		"directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"missing":    func(string) error { return nil },
		"other name": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := salvages(t)
			one := begin(t, s, "a-2")
			if err := put(filepath.Join(one.Path(), "0.bundle")); err != nil {
				t.Skip(err) // a hard link over file systems
			}
			file := "0.bundle"
			if name == "other name" {
				file = "../../outside"
			}
			if path, err := one.Finish([]string{file}); err == nil {
				t.Errorf("finished as %q", path)
			}
			if _, ok := s.Find("a-2"); ok {
				t.Error("it is found")
			}
			if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("what lies outside: %v, %v", info, err)
			}
			if err := one.Abandon(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What a daemon that died has begun is begun anew.
func TestSalvageBeginsAnew(t *testing.T) {
	s := salvages(t)
	one := begin(t, s, "a-2")
	if err := os.WriteFile(filepath.Join(one.Path(), "half"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	two := begin(t, s, "a-2")
	if entries, err := os.ReadDir(two.Path()); err != nil || len(entries) > 0 {
		t.Errorf("holds %v, %v", entries, err)
	}
	if _, err := s.Begin("../a", 0, 0); !errors.Is(err, ErrName) {
		t.Errorf("a name that leads elsewhere: %v", err)
	}
}

// A second try replaces the first: the workspace may have changed.
func TestSalvageReplaced(t *testing.T) {
	s := salvages(t)
	for _, content := range []string{"old", "new"} {
		one := begin(t, s, "a-2")
		if err := os.WriteFile(filepath.Join(one.Path(), "0.bundle"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Finish([]string{"0.bundle"}); err != nil {
			t.Fatal(err)
		}
	}
	path, _ := s.Find("a-2")
	if data, err := os.ReadFile(path + "/0.bundle"); err != nil || string(data) != "new" {
		t.Errorf("holds %q, %v", data, err)
	}
	if entries, err := os.ReadDir(s.Path()); err != nil || len(entries) != 1 {
		t.Errorf("beside it: %v, %v", entries, err)
	}
}

// Only periods that were counted make a salvage older.
func TestSalvageAge(t *testing.T) {
	s := salvages(t)
	if gone, err := s.Age(1); err != nil || len(gone) > 0 {
		t.Errorf("without a directory: %v, %v", gone, err)
	}
	for _, name := range []string{"old-2", "bad-2"} {
		if _, err := begin(t, s, name).Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, s, "unfinished-2")
	for range 2 {
		if gone, err := s.Age(2); err != nil || len(gone) > 0 {
			t.Fatalf("too early: %v, %v", gone, err)
		}
	}
	bad, _ := s.Find("bad-2")
	if err := os.WriteFile(bad+"/.age", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Age(2); err != nil || len(gone) != 1 || gone[0] != "old-2" {
		t.Errorf("removed %v, %v", gone, err)
	}
	if _, ok := s.Find("bad-2"); !ok {
		t.Error("one whose age cannot be read is gone")
	}
	if entries, err := os.ReadDir(s.Path()); err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
