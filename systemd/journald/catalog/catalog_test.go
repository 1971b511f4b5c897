package catalog

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const file = "berth.catalog"

func TestIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range Messages() {
		if !regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`).MatchString(m.ID) {
			t.Errorf("%s: %q is no random id of 128 bits", m.Event, m.ID)
		}
		if seen[m.ID] || seen[m.Event] {
			t.Errorf("%s or its id is there twice", m.Event)
		}
		seen[m.ID], seen[m.Event] = true, true
		if !slices.Contains([]string{"debug", "info", "warn", "error"}, m.Level) || m.Text == "" {
			t.Errorf("%s: level %q, text %q", m.Event, m.Level, m.Text)
		}
		if found, ok := Of(m.Event); !ok || found != m {
			t.Errorf("Of(%q) is %v", m.Event, found)
		}
	}
	if _, ok := Of(""); ok {
		t.Error("the empty event has a message")
	}
}

// berth.catalog explains every message, and no other, and journalctl takes it.
func TestCatalog(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, entry := range strings.Split(string(data), "\n-- ")[1:] {
		id, text, _ := strings.Cut(entry, "\n")
		explained = append(explained, id)
		head, body, _ := strings.Cut(text, "\n\n")
		if !strings.HasPrefix(head, "Subject: ") || strings.TrimSpace(body) == "" {
			t.Errorf("%s explains nothing: %q", id, text)
		}
	}
	var want []string
	for _, m := range Messages() {
		want = append(want, m.ID)
	}
	if !slices.Equal(explained, want) {
		t.Errorf("%s has\n%q\nthe list is\n%q", file, explained, want)
	}
	compile(t, data, want)
}

// compile has journalctl make its database of the file.
func compile(t *testing.T, data []byte, ids []string) {
	t.Helper()
	if _, err := exec.LookPath("journalctl"); err != nil {
		t.Skip("journalctl is not installed: whether it takes the catalog is not known")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "usr/lib/systemd/catalog")
	for _, d := range []string{dir, filepath.Join(root, "var/lib/systemd/catalog")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("journalctl", "--update-catalog", "--root="+root).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("journalctl --update-catalog: %v\n%s", err, out)
	}
	out, err := exec.Command("journalctl", "--list-catalog", "--root="+root).CombinedOutput()
	if err != nil {
		t.Fatalf("journalctl --list-catalog: %v\n%s", err, out)
	}
	for _, id := range ids {
		if !strings.Contains(string(out), id+" berth: ") {
			t.Errorf("journalctl does not list %s", id)
		}
	}
}
