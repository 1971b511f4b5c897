package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// repo is one repository below the workspace.
type repo struct {
	rel      string // of its working tree, or of itself when it has none
	gitDir   string // what --git-dir is given
	workTree string // "" for a repository without one
	filters  []string
}

// fixedConfig is put above everything that the repository's own configuration
// says: nothing of it may run a program, open a connection, or hide a file.
var fixedConfig = []string{
	"core.fsmonitor=false", "core.hooksPath=/dev/null", "core.untrackedCache=false", "core.ignoreStat=false",
	"core.attributesFile=/dev/null", "core.excludesFile=/dev/null", "core.pager=cat", "core.sshCommand=false",
	"core.alternateRefsCommand=true", "core.askPass=true", "core.quotePath=false", "core.bare=false",
	"core.logAllRefUpdates=false", "core.splitIndex=false", "core.trustctime=true",
	"diff.external=", "diff.ignoreSubmodules=none", "status.showUntrackedFiles=normal", "status.submoduleSummary=false",
	"submodule.recurse=false", "protocol.allow=never", "credential.helper=", "gc.auto=0", "maintenance.auto=false",
	"log.showSignature=false", "gpg.program=false", "commit.gpgSign=false", "user.name=berth", "user.email=berth@localhost",
}

// environment is all that git gets to know.
func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0",
		"GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none",
		"GIT_PAGER=cat", "GIT_EDITOR=false", "GIT_ASKPASS=true", "SSH_ASKPASS=true",
	}
}

// command is git with everything of the repository's own will switched off.
func (r *repo) command(ctx context.Context, args ...string) *exec.Cmd {
	all := []string{"--git-dir=" + r.gitDir, "--no-pager", "--literal-pathspecs"}
	if r.workTree != "" {
		all = append(all, "--work-tree="+r.workTree)
	}
	for _, kv := range fixedConfig {
		if kv == "core.bare=false" && r.workTree == "" {
			continue
		}
		all = append(all, "-c", kv)
	}
	for _, name := range r.filters {
		all = append(all, "-c", name)
	}
	cmd := exec.CommandContext(ctx, "git", append(all, args...)...)
	cmd.Env = environment()
	cmd.Dir = "/"
	if r.workTree != "" {
		cmd.Dir = r.workTree
	}
	return cmd
}

// disarm finds the filters that the repository defines and switches each off: a
// clean filter would otherwise run on every file that is compared.
func (r *repo) disarm(ctx context.Context) error {
	err := r.each(ctx, 0, func(name string) error {
		i := strings.LastIndexByte(name, '.')
		if !strings.HasPrefix(name, "filter.") || i <= len("filter.") || strings.ContainsAny(name, "=\n") {
			return nil
		}
		base := name[:i]
		for _, key := range []string{".clean=", ".smudge=", ".process=", ".required=false"} {
			r.filters = append(r.filters, base+key)
		}
		if len(r.filters) > 4*maxFilters {
			return fmt.Errorf("the configuration has more than %d filters", maxFilters)
		}
		return nil
	}, "config", "-z", "--name-only", "--get-regexp", `^filter\.`)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // there are none
	}
	return err
}

const (
	maxFilters = 100
	maxField   = 64 << 10 // bytes of one name in git's output
	maxStderr  = 4 << 10
)

// each runs git and calls f for each field of its output, which sep ends.
func (r *repo) each(ctx context.Context, sep byte, f func(string) error, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := r.command(ctx, args...)
	stderr := Head{Limit: maxStderr}
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git: %w", err)
	}
	failed := fields(out, sep, f)
	if failed != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, out) // what is left, so that git ends
	err = cmd.Wait()
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return fmt.Errorf("git %s: %w", args[0], ctx.Err())
	case err != nil:
		return fmt.Errorf("git %s: %w: %s", args[0], err, clip(strings.TrimSpace(string(stderr.Text))))
	}
	return nil
}

func fields(in io.Reader, sep byte, f func(string) error) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 0, 4<<10), maxField)
	sc.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, sep); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	for sc.Scan() {
		if err := f(sc.Text()); err != nil {
			return err
		}
	}
	return sc.Err()
}

// line runs git and returns its first line; "" when it says nothing.
func (r *repo) line(ctx context.Context, args ...string) (string, error) {
	first, got := "", false
	err := r.each(ctx, '\n', func(s string) error {
		if !got {
			first, got = s, true
		}
		return nil
	}, args...)
	return first, err
}

// exists reports whether a revision names a commit.
func (r *repo) exists(ctx context.Context, rev string) bool {
	s, err := r.line(ctx, "rev-parse", "--quiet", "--verify", "--end-of-options", rev+"^{commit}")
	return err == nil && s != ""
}

// Head keeps the first Limit bytes of what is written to it.
type Head struct {
	Limit int
	Text  []byte
}

func (h *Head) Write(p []byte) (int, error) {
	h.Text = append(h.Text, p[:min(len(p), h.Limit-len(h.Text))]...)
	return len(p), nil
}

// has reports whether the repository's own directory has an entry.
func (r *repo) has(name string) bool {
	_, err := os.Lstat(filepath.Join(r.gitDir, name))
	return err == nil
}

// output runs a command of git and returns its first line.
func output(cmd *exec.Cmd) (string, error) {
	stdout, stderr := Head{Limit: maxStderr}, Head{Limit: maxStderr}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git: %w: %s", err, clip(strings.TrimSpace(string(stderr.Text))))
	}
	line, _, _ := strings.Cut(string(stdout.Text), "\n")
	return line, nil
}
