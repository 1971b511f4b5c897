// Package packaging has the tests of the built packages as files. What they do
// to a host is tested in smoke/.
package packaging

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// built finds the one file that matches, among the packages that make
// test-packages has built.
func built(t *testing.T, pattern string) string {
	t.Helper()
	dir := os.Getenv("BERTH_TEST_BIN")
	if dir == "" {
		t.Skip("needs the built packages: make test-packages")
	}
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// run runs a program that must succeed and returns its standard output.
func run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var out, errOut bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s%s", args, err, out.String(), errOut.String())
	}
	return strings.TrimSpace(out.String())
}

// need skips a test without a program that this machine may lack.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
}

// TestReproducible builds the packages once more, from a copy elsewhere, as
// somebody with other habits, and compares every byte.
func TestReproducible(t *testing.T) {
	deb, rpm, bill := built(t, "old/*.deb"), built(t, "old/*.rpm"), built(t, "old/*.json")
	dir := t.TempDir()
	tree, dist := filepath.Join(dir, "a copy of", "the tree"), filepath.Join(dir, "dist")
	if err := os.MkdirAll(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "bash", "-c", `set -euo pipefail; umask 077; cd ..
		git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x --no-same-permissions -C "$0"`, tree)
	version := strings.TrimSuffix(run(t, nil, "dpkg-deb", "-f", deb, "Version"), "-1")
	run(t, []string{
		"VERSION=" + version, "SOURCE_DATE_EPOCH=" + run(t, nil, "./version", "time"), "DIST=" + dist,
		"GOCACHE=" + run(t, nil, "go", "env", "GOCACHE"), "GOMODCACHE=" + run(t, nil, "go", "env", "GOMODCACHE"),
		"HOME=" + dir, "USER=somebody", "TZ=Pacific/Kiritimati", "LC_ALL=C.UTF-8", "GOFLAGS=-buildvcs=false",
	}, "bash", "-c", `umask 077; exec "$0" deb rpm`, filepath.Join(tree, "packaging", "build"))
	for _, first := range []string{deb, rpm, bill} {
		again := filepath.Join(dist, filepath.Base(first))
		if a, b := sum(t, first), sum(t, again); a != b {
			t.Errorf("%s differs", filepath.Base(first))
		}
	}
}

func sum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// TestLintian: nothing to complain about, but for what lintian-overrides gives
// reasons for.
func TestLintian(t *testing.T) {
	t.Parallel()
	need(t, "lintian")
	cmd := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", built(t, "old/*.deb"))
	if out, err := cmd.CombinedOutput(); err != nil || regexp.MustCompile(`(?m)^[EW]: `).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// file is one entry of a package's list.
type file struct{ mode, owner, path string }

func contents(t *testing.T, deb string) []file {
	t.Helper()
	var files []file
	for line := range strings.Lines(run(t, nil, "dpkg-deb", "-c", deb)) {
		f := strings.Fields(line)
		files = append(files, file{f[0], f[1], strings.TrimPrefix(f[5], ".")})
	}
	return files
}

// programPaths are where the programs of the tree are installed. What a
// program finds beside itself in bin/ is missed on a host only.
func programPaths(t *testing.T) (paths []string) {
	t.Helper()
	for _, folder := range []string{"daemon", "rpc", "plugins"} {
		mains, err := filepath.Glob("../" + folder + "/cmd/*")
		if err != nil || len(mains) == 0 {
			t.Fatalf("no programs in %s: %v", folder, err)
		}
		for _, main := range mains {
			dir := "/usr/libexec/berth/"
			switch filepath.Base(main) {
			case "berthd":
				dir = "/usr/sbin/"
			case "berthctl":
				dir = "/usr/bin/"
			}
			paths = append(paths, dir+filepath.Base(main))
		}
	}
	return paths
}

// TestContents: all pages, units and programs of the tree are in the packages,
// and belong to root.
func TestContents(t *testing.T) {
	t.Parallel()
	deb, rpm := built(t, "old/*.deb"), built(t, "old/*.rpm")
	var paths []string
	for _, f := range contents(t, deb) {
		if f.owner != "root/root" || !regexp.MustCompile(`^(d|-)rw(x|-)r-(x|-)r-(x|-)$`).MatchString(f.mode) {
			t.Errorf("%+v", f)
		}
		if !strings.HasSuffix(f.path, "/") {
			paths = append(paths, f.path)
		}
	}
	want := []string{
		"/etc/berth/berthd.toml", "/usr/share/doc/berth/prometheus/prometheus.yml", "/usr/share/doc/berth/prometheus/alerts.yml",
		"/usr/share/doc/berth/prometheus/dashboard.json",
		"/usr/libexec/berth/sessions-alive",
		"/usr/lib/sysusers.d/berth.conf", "/usr/lib/tmpfiles.d/berth.conf", "/usr/lib/systemd/catalog/berth.catalog",
		"/usr/share/bash-completion/completions/berthctl", "/usr/share/fish/vendor_completions.d/berthctl.fish",
		"/usr/share/zsh/vendor-completions/_berthctl",
	}
	want = append(want, programPaths(t)...)
	for _, name := range []string{"THIRD-PARTY", "berth.cdx.json", "copyright", "changelog.gz", "changelog.Debian.gz", "README.md"} {
		want = append(want, "/usr/share/doc/berth/"+name)
	}
	for pattern, target := range map[string]string{
		"../man/*.1": "man/man1/*.gz", "../man/*.5": "man/man5/*.gz", "../man/*.7": "man/man7/*.gz", "../man/*.8": "man/man8/*.gz",
		"../systemd/*.service": "../lib/systemd/system/*", "../systemd/*.socket": "../lib/systemd/system/*",
		"../systemd/*.slice": "../lib/systemd/system/*", "../systemd/*.preset": "../lib/systemd/system-preset/*",
	} {
		found, _ := filepath.Glob(pattern)
		if len(found) == 0 {
			t.Errorf("%s matches nothing", pattern)
		}
		for _, f := range found {
			want = append(want, filepath.Join("/usr/share", strings.Replace(target, "*", filepath.Base(f), 1)))
		}
	}
	for _, w := range want {
		if !slices.Contains(paths, w) {
			t.Errorf("%s is not in the package", w)
		}
	}
	if got := run(t, nil, "dpkg-deb", "-I", deb, "conffiles"); got != "/etc/berth/berthd.toml" {
		t.Errorf("configuration files: %s", got)
	}
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Log("rpm is not installed: the rpm's list is not compared")
		return
	}
	// Without what only one of them has, the lists are the same.
	own := regexp.MustCompile(`/zsh/|/lintian/|/licenses/|changelog\.Debian|/copyright$|\.d$|^$`)
	other := func(p string) bool { return own.MatchString(p) }
	inRPM := slices.DeleteFunc(strings.Split(run(t, nil, "rpm", "-qlp", rpm), "\n"), other)
	paths = slices.DeleteFunc(paths, other)
	slices.Sort(inRPM)
	slices.Sort(paths)
	if !slices.Equal(inRPM, paths) {
		t.Errorf("the deb has\n%q\nthe rpm\n%q", paths, inRPM)
	}
	if got := run(t, nil, "rpm", "-qcp", rpm); got != "/etc/berth/berthd.toml" {
		t.Errorf("the rpm's configuration files: %s", got)
	}
}

// TestPrograms: they need no library and say the package's version; the bill of
// materials has their checksums, and THIRD-PARTY has every module of it.
func TestPrograms(t *testing.T) {
	t.Parallel()
	deb, dir := built(t, "old/*.deb"), t.TempDir()
	run(t, nil, "dpkg-deb", "-x", deb, dir)
	version := strings.TrimSuffix(run(t, nil, "dpkg-deb", "-f", deb, "Version"), "-1")
	if got := run(t, nil, filepath.Join(dir, "usr/sbin/berthd"), "--version"); !strings.Contains(got, version) {
		t.Errorf("berthd --version: %q, the package is %q", got, version)
	}
	var bill struct {
		Components []struct {
			Name, Version string
			Hashes        []struct{ Content string }
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "usr/share/doc/berth/berth.cdx.json"))
	if err == nil {
		err = json.Unmarshal(data, &bill)
	}
	if err != nil {
		t.Fatal(err)
	}
	terms, err := os.ReadFile(filepath.Join(dir, "usr/share/doc/berth/THIRD-PARTY"))
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]string{}
	for _, path := range programPaths(t) {
		path = filepath.Join(dir, path)
		checkStatic(t, path)
		programs[filepath.Base(path)] = sum(t, path)
	}
	seen := 0
	for _, c := range bill.Components {
		if want, ok := programs[c.Name]; ok {
			if seen++; len(c.Hashes) != 1 || c.Hashes[0].Content != want {
				t.Errorf("the bill of materials has another %s", c.Name)
			}
		} else if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(c.Name) + ` +` + regexp.QuoteMeta(c.Version) + ` +\S`).Match(terms) {
			t.Errorf("THIRD-PARTY lacks %s %s", c.Name, c.Version)
		}
	}
	if seen != len(programs) || len(bill.Components) < 20 {
		t.Errorf("the bill of materials has %d programs and %d components", seen, len(bill.Components))
	}
}

func checkStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is linked dynamically", path)
		}
	}
}
