package workspace

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// cloneConfig is put above the configuration of the repository that is being
// made. That has nothing of the other side's, and gets nothing from the host's or
// the user's: nothing runs but git and its transports.
var cloneConfig = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null",
	"core.askPass=true", "credential.helper=", "core.alternateRefsCommand=true", "core.pager=cat",
	"gc.auto=0", "maintenance.auto=false", "fetch.recurseSubmodules=false", "submodule.recurse=false",
	"fetch.unpackLimit=1", "fetch.writeCommitGraph=false", "transfer.bundleURI=false", "advice.detachedHead=false",
	"protocol.ext.allow=never",
}

// protocols are the transports that a clone may use. None of them runs a program
// that the other side names.
const protocols = "file:git:http:https:ssh"

// cloneGit is git on the repository of the workspace while it is being made.
func (p *preparation) cloneGit(args ...string) *exec.Cmd {
	all := []string{"--git-dir=" + filepath.Join(p.root, ".git"), "--work-tree=" + p.root, "--no-pager", "--literal-pathspecs"}
	for _, kv := range cloneConfig {
		all = append(all, "-c", kv)
	}
	cmd := exec.Command("git", append(all, args...)...)
	cmd.Dir = p.root
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + p.Home, "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + p.userConfig(), "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_ALLOW_PROTOCOL=" + protocols,
		"GIT_ASKPASS=true", "SSH_ASKPASS=true", "GIT_SSH_COMMAND=ssh -o BatchMode=yes", "GIT_EDITOR=false",
	}
	return cmd
}

// userConfig is the file that git takes for the user's configuration. While a
// repository is cloned there is one, which says that it may be somebody else's:
// git-upload-pack(1), SECURITY, is made for that, and gets no other setting past
// the environment.
func (p *preparation) userConfig() string {
	if p.cloning {
		return filepath.Join(p.root, ".git/berth/clone.config")
	}
	return "/dev/null"
}

func (p *preparation) git(ctx context.Context, args ...string) error {
	return p.run(ctx, p.cloneGit(args...))
}

// ask runs git for its first line; "" when it fails or says nothing.
func (p *preparation) ask(ctx context.Context, args ...string) string {
	cmd, out := p.cloneGit(args...), Head{Limit: maxStderr}
	cmd.Stdout, cmd.WaitDelay = &out, drainBound
	if err := p.run(ctx, cmd); err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out.Text), "\n")
	return line
}

// clone makes a repository in the empty workspace and fetches everything that is
// asked for; nothing is checked out. It begins anew: what an earlier try has left
// is its own.
func (p *preparation) clone(ctx context.Context) error {
	if err := p.wipe(); err != nil {
		return err
	}
	defer func() { p.cloning = false }()
	seeded, err := p.begin(ctx, p.Mirror && p.Depth == 0)
	if err != nil {
		return err
	}
	err = p.fetch(ctx)
	if err != nil && seeded && ctx.Err() == nil {
		// The objects of an earlier clone may be no good: once more without them.
		p.end.SeedBad = true
		p.cloning = false
		if err = p.wipe(); err != nil {
			return err
		}
		if _, err = p.begin(ctx, false); err != nil {
			return err
		}
		err = p.fetch(ctx)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(p.userConfig()); err != nil {
		return err
	}
	p.cloning = false
	return p.git(ctx, "pack-refs", "--all")
}

// begin makes the empty repository, with the objects of the mirror if it is to.
func (p *preparation) begin(ctx context.Context, seed bool) (seeded bool, err error) {
	if err := p.git(ctx, "init", "--quiet", "--template=", "--initial-branch=main"); err != nil {
		return false, err
	}
	if err := p.stamp(false); err != nil {
		return false, err
	}
	p.cloning = true
	if err := os.WriteFile(p.userConfig(), []byte("[safe]\n\tdirectory = *\n"), 0o644); err != nil {
		return false, err
	}
	for _, kv := range [][2]string{{"remote.origin.url", p.Clone}, {"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"}} {
		if err := p.git(ctx, "config", "--local", kv[0], kv[1]); err != nil {
			return false, err
		}
	}
	if !seed {
		return false, nil
	}
	if seeded, err = p.seed(ctx); err != nil {
		fmt.Fprintf(p.log, "berth: the objects of an earlier clone are not used: %v\n", err)
		return true, nil // what is half there is found out by the fetch
	}
	return seeded, nil
}

// fetch gets the branches and tags, or with a depth those of one branch, and
// notes which branch the other side has as its own.
func (p *preparation) fetch(ctx context.Context) error {
	head := p.remoteHead(ctx)
	args := []string{"fetch", "--progress", "--force", "--prune", "--no-recurse-submodules", "--no-write-fetch-head"}
	specs := []string{"+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"}
	if p.Depth > 0 {
		args = append(args, "--depth="+strconv.FormatUint(p.Depth, 10), "--no-tags")
		specs = p.shallow(ctx, head)
	}
	if len(specs) > 0 {
		if err := p.git(ctx, append(append(args, "--", "origin"), specs...)...); err != nil {
			return err
		}
	}
	if head == "" {
		return nil
	}
	return p.git(ctx, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/"+head)
}

// shallow are the refs to fetch where not everything is wanted: what is to be
// checked out.
func (p *preparation) shallow(ctx context.Context, head string) (specs []string) {
	has := func(ref string) bool { return p.ask(ctx, "ls-remote", "--", "origin", ref) != "" }
	base := p.Branch
	if base == "" {
		base = head
	}
	for _, branch := range []string{base, p.WorkBranch} {
		switch {
		case branch == "":
		case has("refs/heads/" + branch):
			specs = append(specs, "+refs/heads/"+branch+":refs/remotes/origin/"+branch)
		case branch == p.Branch && has("refs/tags/"+branch):
			specs = append(specs, "+refs/tags/"+branch+":refs/tags/"+branch)
		}
	}
	return specs
}

// remoteHead is the branch that the other side has checked out, "" when it says
// none.
func (p *preparation) remoteHead(ctx context.Context) string {
	line := p.ask(ctx, "ls-remote", "--symref", "--", "origin", "HEAD")
	ref, isRef := strings.CutPrefix(line, "ref: refs/heads/")
	branch, _, _ := strings.Cut(ref, "\t")
	if !isRef {
		return ""
	}
	return branch
}

// checkout checks out the branch that was asked for, and on top of it the work
// branch. It may be repeated: no agent was here before.
func (p *preparation) checkout(ctx context.Context) error {
	if err := p.unlock(); err != nil {
		return err
	}
	if err := p.checkoutBranch(ctx); err != nil {
		return err
	}
	switch {
	case p.WorkBranch == "":
		return nil
	case p.known(ctx, "refs/remotes/origin/"+p.WorkBranch):
		return p.track(ctx, p.WorkBranch)
	case p.ask(ctx, "rev-parse", "--quiet", "--verify", "HEAD^{commit}") == "":
		return p.git(ctx, "symbolic-ref", "HEAD", "refs/heads/"+p.WorkBranch) // an empty repository
	}
	return p.git(ctx, "checkout", "--progress", "--no-track", "-B", p.WorkBranch)
}

func (p *preparation) checkoutBranch(ctx context.Context) error {
	branch := p.Branch
	if branch == "" {
		branch = strings.TrimPrefix(p.ask(ctx, "symbolic-ref", "--quiet", "refs/remotes/origin/HEAD"), "refs/remotes/origin/")
	}
	switch {
	case branch == "":
		return nil // the other side has nothing to check out
	case p.known(ctx, "refs/remotes/origin/"+branch):
		return p.track(ctx, branch)
	case p.Branch != "" && p.known(ctx, "refs/tags/"+branch):
		return p.git(ctx, "checkout", "--progress", "--detach", "refs/tags/"+branch)
	case p.Branch != "":
		return failed(FailedBranch, "the repository has neither a branch nor a tag %q", branch)
	}
	return p.git(ctx, "symbolic-ref", "HEAD", "refs/heads/"+branch) // it has no commit yet
}

// track checks out a branch of the other side's as one of the same name.
func (p *preparation) track(ctx context.Context, branch string) error {
	return p.git(ctx, "checkout", "--progress", "--track", "-B", branch, "refs/remotes/origin/"+branch)
}

func (p *preparation) known(ctx context.Context, ref string) bool {
	return p.ask(ctx, "rev-parse", "--quiet", "--verify", "--end-of-options", ref+"^{commit}") != ""
}

// unlock removes the locks that a git which was killed has left: nobody else
// works here.
func (p *preparation) unlock() error {
	return filepath.WalkDir(filepath.Join(p.root, ".git"), func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == "objects":
			return filepath.SkipDir
		case e.Type().IsRegular() && strings.HasSuffix(path, ".lock"):
			return os.Remove(path)
		}
		return nil
	})
}

// wipe removes what an earlier try of this step has left. The workspace was seen
// to be empty before the first one, and no agent has been in it.
func (p *preparation) wipe() error {
	entries, err := os.ReadDir(p.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(p.root, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
