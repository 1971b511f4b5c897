package api

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthd/berth/daemon/internal/engine"
	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/record"
)

const (
	setupMax  = 64      // commands
	branchMax = 255     // bytes of a branch's name
	depthMax  = 1 << 30 // what git takes
)

// validateSource checks what a workspace is to be filled with, as far as that needs
// no look at anything: whether it is there the owner finds out.
func validateSource(in *rpc.SessionSpec) error {
	invalid := func(format string, args ...any) error { return rpc.Errorf(rpc.CodeInvalidRequest, format, args...) }
	size := 0
	for i, command := range in.Setup {
		if command == "" || strings.IndexByte(command, 0) >= 0 {
			return invalid("spec.setup[%d]: is empty or holds a NUL byte", i)
		}
		size += len(command)
	}
	if len(in.Setup) > setupMax || size > specMax/2 {
		return invalid("spec.setup: %d commands of %d bytes, at most %d and %d", len(in.Setup), size, setupMax, specMax/2)
	}
	s := in.Source
	if s == nil {
		return nil
	}
	switch {
	case in.Workspace != "":
		return invalid("spec.source: a workspace that is there already is not filled")
	case (s.Copy == "") == (s.Clone == ""):
		return invalid("spec.source: exactly one of copy and clone is needed")
	case s.Copy != "" && (s.Branch != "" || s.WorkBranch != "" || s.Depth != 0):
		return invalid("spec.source: branch, work_branch and depth are for clone")
	case s.Depth > depthMax:
		return invalid("spec.source.depth: at most %d", depthMax)
	}
	for name, value := range map[string]string{"branch": s.Branch, "work_branch": s.WorkBranch} {
		if value != "" && !branchName(value) {
			return invalid("spec.source.%s: %q is not the name of a branch", name, value)
		}
	}
	if s.Copy != "" {
		if !cleanPath(s.Copy) {
			return invalid("spec.source.copy: %q is not an absolute path without \".\" and \"..\"", s.Copy)
		}
		return nil
	}
	return validateClone(s.Clone)
}

func cleanPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) <= pathMax && strings.IndexByte(path, 0) < 0
}

// schemes are the transports that a clone may use: none of them names a program
// to run.
var schemes = []string{"https", "http", "ssh", "git", "file"}

// validateClone takes an absolute path, a URL, or HOST:PATH as ssh has it.
func validateClone(clone string) error {
	invalid := func(why string) error {
		return rpc.Errorf(rpc.CodeInvalidRequest, "spec.source.clone: %s", why)
	}
	control := strings.ContainsFunc(clone, func(c rune) bool { return c < ' ' || c == 0x7f })
	switch {
	case len(clone) > pathMax || control || strings.HasPrefix(clone, "-"):
		return invalid("it is too long, begins with a dash or holds control characters")
	case filepath.IsAbs(clone):
		if !cleanPath(clone) {
			return invalid("the path holds \".\" or \"..\"")
		}
		return nil
	case strings.Contains(clone, "::"):
		return invalid("remote helpers are not allowed")
	}
	if !strings.Contains(clone, "://") {
		host, path, ok := strings.Cut(clone, ":")
		if !ok || host == "" || path == "" || strings.ContainsAny(host, "/ ") {
			return invalid("want a URL, an absolute path or HOST:PATH")
		}
		return nil
	}
	u, err := url.Parse(clone)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return invalid("want a URL with https, http, ssh, git or file")
	}
	if _, secret := u.User.Password(); secret {
		return invalid("the URL holds a password, which would be kept and shown: let the owner's ssh or .netrc have it")
	}
	return nil
}

// branchName is the rule of git-check-ref-format(1), and a little stricter.
func branchName(name string) bool {
	if len(name) > branchMax || strings.HasPrefix(name, "-") || name == "@" || strings.HasPrefix(name, "refs/") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") || strings.HasSuffix(part, ".") {
			return false
		}
	}
	return !strings.Contains(name, "..") && !strings.Contains(name, "@{") &&
		!strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune("~^:?*[\\", c) })
}

func sourceOf(s *rpc.Source) *record.Source {
	if s == nil {
		return nil
	}
	return &record.Source{Copy: s.Copy, Clone: s.Clone, Branch: s.Branch, WorkBranch: s.WorkBranch, Depth: s.Depth}
}

func shownSource(s *record.Source) *rpc.Source {
	if s == nil {
		return nil
	}
	return &rpc.Source{Copy: s.Copy, Clone: s.Clone, Branch: s.Branch, WorkBranch: s.WorkBranch, Depth: s.Depth}
}

func preparationOf(v *engine.View) *rpc.Preparation {
	p := v.Lease.Preparation
	if p == nil {
		return nil
	}
	return &rpc.Preparation{
		Finished: p.Finished, Done: p.Done, Step: p.Step, Number: p.Number, Failure: p.Failure,
		Code: p.Code, Signal: p.Signal, TookSeconds: p.Took.Seconds(),
	}
}
