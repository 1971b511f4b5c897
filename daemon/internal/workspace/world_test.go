package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// world is a workspace with a git checkout and its origin, made by random steps
// that remember what of value they have made.
type world struct {
	t       *testing.T
	r       *rand.Rand
	dir     string
	origin  string
	root    string
	commits []string // every commit that nobody has rewritten
	stashes []string
	log     []string
	n       int
}

// gitEnv is a developer's git: their own name, no host configuration.
var gitEnv = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost",
	"GIT_EDITOR=true", "GIT_TERMINAL_PROMPT=0")

func needGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
}

// try runs git and returns its output; some steps are refused, which is fine.
func try(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir, cmd.Env = dir, gitEnv
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := try(dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return out
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	dir := t.TempDir()
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), dir: dir, origin: dir + "/origin.git", root: dir + "/work"}
	git(t, dir, "init", "-q", "--bare", w.origin)
	git(t, dir, "clone", "-q", w.origin, w.root)
	write(t, w.root+"/readme", "hello\n")
	write(t, w.root+"/.gitignore", "*.o\n/build/\n")
	write(t, w.root+"/.gitattributes", "*.txt text=auto eol=lf\n")
	git(t, w.root, "add", "-A")
	git(t, w.root, "commit", "-q", "-m", "first")
	git(t, w.root, "push", "-q", "origin", "HEAD:main")
	git(t, w.root, "fetch", "-q")
	w.commits = append(w.commits, w.head())
	return w
}

func (w *world) head() string { return git(w.t, w.root, "rev-parse", "HEAD") }

// some is a text that was never there before.
func (w *world) some() string {
	w.n++
	return fmt.Sprintf("%d %d\r\nline\n", w.n, w.r.Uint64())
}

var oddNames = []string{"plain", "with space", "quo\"te", "line\nfeed", "ünïcode", "dir/deep/file", "crlf.txt", "-dash", "tab\there", ":(top)x"}

func (w *world) name() string { return oddNames[w.r.IntN(len(oddNames))] }

// steps are what agents do to a checkout.
var steps = map[string]func(*world) error{
	"write": func(w *world) error { write(w.t, filepath.Join(w.root, w.name()), w.some()); return nil },
	"ignored": func(w *world) error {
		write(w.t, w.root+"/build/out.o", w.some())
		return nil
	},
	"stage":  func(w *world) error { return w.git("add", "-A") },
	"unlink": func(w *world) error { return ignoreMissing(os.Remove(filepath.Join(w.root, w.name()))) },
	"link": func(w *world) error {
		_ = os.Remove(w.root + "/link")
		return os.Symlink(w.name(), w.root+"/link")
	},
	"mode": func(w *world) error { return os.Chmod(w.root+"/readme", os.FileMode(0o644|w.r.IntN(2)*0o111)) },
	"commit": func(w *world) error {
		if err := w.git("add", "-A"); err != nil {
			return err
		}
		return w.committed(w.git("commit", "-q", "--allow-empty", "-m", w.some()))
	},
	"branch":   func(w *world) error { return w.git("checkout", "-q", "-b", fmt.Sprintf("b%d", w.n)) },
	"back":     func(w *world) error { return w.git("checkout", "-q", "main") },
	"detach":   func(w *world) error { return w.git("checkout", "-q", "--detach") },
	"push":     func(w *world) error { return w.git("push", "-q", "origin", "HEAD:refs/heads/main", "--force") },
	"push all": func(w *world) error { return w.git("push", "-q", "--all", "--force", "origin") },
	"tag":      func(w *world) error { return w.git("tag", fmt.Sprintf("t%d", w.n)) },
	"stash": func(w *world) error {
		if err := w.git("stash", "push", "-q", "--include-untracked"); err != nil {
			return err
		}
		if id, err := try(w.root, "rev-parse", "--verify", "--quiet", "refs/stash"); err == nil {
			if n := len(w.stashes); n == 0 || w.stashes[n-1] != id {
				w.stashes = append(w.stashes, id)
			}
		}
		return nil
	},
	"conflict": func(w *world) error {
		if err := w.git("checkout", "-q", "-b", fmt.Sprintf("c%d", w.n)); err != nil {
			return err
		}
		write(w.t, w.root+"/readme", w.some())
		if err := w.committed(w.git("commit", "-q", "-am", "ours")); err != nil {
			return err
		}
		if err := w.git("checkout", "-q", "-b", fmt.Sprintf("d%d", w.n), "HEAD~1"); err != nil {
			return err
		}
		write(w.t, w.root+"/readme", w.some())
		if err := w.committed(w.git("commit", "-q", "-am", "theirs")); err != nil {
			return err
		}
		verb := []string{"merge", "rebase", "cherry-pick"}[w.r.IntN(3)]
		_ = w.git(verb, fmt.Sprintf("c%d", w.n-2)) // stops in the conflict
		return nil
	},
	"loose repository": func(w *world) error {
		dir := filepath.Join(w.root, fmt.Sprintf("nested%d", w.r.IntN(2)))
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		if _, err := try(w.dir, "init", "-q", dir); err != nil {
			return err
		}
		write(w.t, dir+"/inner", w.some())
		if w.r.IntN(2) == 0 {
			return nil // a repository without any commit
		}
		if _, err := try(dir, "add", "-A"); err != nil {
			return err
		}
		if _, err := try(dir, "commit", "-q", "-m", "nested"); err != nil {
			return err
		}
		w.commits = append(w.commits, git(w.t, dir, "rev-parse", "HEAD"))
		return nil
	},
	"hidden": func(w *world) error {
		write(w.t, w.root+"/readme", w.some())
		return w.git("update-index", "--assume-unchanged", "readme")
	},
	"worktree": func(w *world) error {
		return w.git("worktree", "add", "-q", "--detach", filepath.Join(w.root, fmt.Sprintf("wt%d", w.n)))
	},
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (w *world) git(args ...string) error {
	out, err := try(w.root, args...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (w *world) committed(err error) error {
	if err == nil {
		w.commits = append(w.commits, w.head())
	}
	return err
}

// run does n random steps; what git refuses in a state is left out.
func (w *world) run(n int) {
	names := make([]string, 0, len(steps))
	for name := range steps {
		names = append(names, name)
	}
	slices.Sort(names)
	for range n {
		name := names[w.r.IntN(len(names))]
		err := steps[name](w)
		w.log = append(w.log, fmt.Sprintf("%s: %v", name, err))
	}
}

// files are the working tree's files that git does not ignore: path → content.
func files(t *testing.T, root string) map[string]string {
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch {
		case e.Name() == ".git" || rel == "build":
			if e.IsDir() {
				return filepath.SkipDir
			}
		case e.Type() == os.ModeSymlink:
			target, err := os.Readlink(path)
			found[rel] = "-> " + target
			return err
		case e.Type().IsRegular():
			data, err := os.ReadFile(path)
			info, err2 := e.Info()
			if err == nil && err2 == nil {
				found[rel] = fmt.Sprintf("%t %s", info.Mode()&0o100 != 0, bytes.Clone(data))
			}
			return errors.Join(err, err2)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
