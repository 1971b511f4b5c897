package daemontest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

func needGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
}

// gitSession is a session that has made a git checkout with what script adds,
// and has ended.
func (h *Host) gitSession(t *testing.T, id, script string) rpc.Session {
	t.Helper()
	const prelude = `set -e; cd "$HOME" 2>/dev/null || true; cd "$1"
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost
git -c init.defaultBranch=main init -q . && git init -q --bare .git/origin && git remote add origin .git/origin
echo one >file && git add file && git commit -qm first && git push -q origin HEAD:main && git fetch -q
`
	h.mustStart(t, id, &rpc.SessionSpec{Command: []string{"sh", "-c", prelude + script, "sh", filepath.Join(h.State, "workspaces", id)}})
	vacant := h.untilVacant(t, id)
	if e := vacant.Exit; e == nil || e.Kind != "code" || e.Code != 0 {
		t.Fatalf("the script ended with %+v:\n%s", e, h.output(t, id, 1))
	}
	return vacant
}

// refusedAsDirty tries a deletion and returns the kinds of work that it names.
func (h *Host) refusedAsDirty(t *testing.T, id string) []string {
	t.Helper()
	_, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Wait: true})
	var refusal *rpc.Error
	if !errors.As(err, &refusal) || refusal.Code != rpc.CodeDirty {
		t.Fatalf("deleting %s: %v, want %s", id, err, rpc.CodeDirty)
	}
	data, _ := json.Marshal(refusal.Details["findings"])
	var findings []struct{ Kind string }
	if err := json.Unmarshal(data, &findings); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, f := range findings {
		kinds = append(kinds, f.Kind)
	}
	return kinds
}

// cases F1, F2: work is named and refused on the way to a deletion, saved by a
// salvage that can be restored, and a checkout without any is deleted.
func TestDeleteKeepsWork(t *testing.T) {
	t.Parallel()
	needGit(t)
	h := New(t, Options{Config: Sessions()})
	h.Start()
	h.gitSession(t, "clean", "")
	if _, err := h.Client.Delete(bounded(t), "clean", rpc.DeleteRequest{Wait: true}); err != nil {
		t.Errorf("deleting a checkout that holds no work: %v", err)
	}
	h.gitSession(t, "work", "echo two >>file; echo new >untracked; git stash -q; git checkout -q -b b; echo three >file; git commit -qam unpushed; git checkout -q --detach; echo four >file; git commit -qam four; git checkout -q main")
	kinds := strings.Join(h.refusedAsDirty(t, "work"), " ")
	if kinds != "untracked unpushed detached stash" {
		t.Errorf("the refusal names %q", kinds)
	}
	if s := h.mustGet(t, "work"); s.Deleting != nil {
		t.Error("a refused deletion was begun")
	}
	reply, err := h.Client.Delete(bounded(t), "work", rpc.DeleteRequest{Salvage: true, Wait: true})
	if err != nil || reply.Tombstone == nil || reply.Tombstone.Saved == "" {
		t.Fatalf("deleting with salvage: %+v, %v", reply, err)
	}
	saved := reply.Tombstone.Saved
	if info, err := os.Stat(saved); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the salvage: %v, %v", info, err)
	}
	log := gitOut(t, "ls-remote", saved+"/0.bundle")
	for _, ref := range []string{"refs/heads/b", "refs/berth/stash/0", "refs/berth/worktree", "refs/berth/detached/0"} {
		if !strings.Contains(log, ref) {
			t.Errorf("the bundle has no %s:\n%s", ref, log)
		}
	}
	restored := h.Dir + "/restored"
	gitOut(t, "init", "-q", restored)
	gitOut(t, "-C", restored, "fetch", "-q", saved+"/0.bundle", "+refs/*:refs/saved/*")
	if got := gitOut(t, "-C", restored, "show", "refs/saved/berth/worktree:untracked"); got != "new\n" {
		t.Errorf("the untracked file came back as %q", got)
	}
}

func gitOut(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// A repository that an agent has written runs nothing when the daemon looks at
// it, neither as root nor as the session's user.
func TestHostileRepository(t *testing.T) {
	t.Parallel()
	needGit(t)
	h := New(t, Options{Config: Sessions()})
	h.Start()
	h.gitSession(t, "evil", `trap="sh -c 'touch $PWD/../evil.ran; touch $PWD/.git/ran; kill -9 \$PPID'"
git config core.fsmonitor "$trap"; git status >/dev/null 2>&1 || true; test -e .git/ran # it would run
git config core.hooksPath .git/hooks; git config core.pager "$trap"; git config core.sshCommand "$trap"
git config filter.x.clean "$trap"; git config filter.x.process "$trap"; git config diff.external "$trap"; git config core.alternateRefsCommand "$trap"
git config core.editor "$trap"; git config gpg.program "$trap"; git config credential.helper "!$trap"; git config uploadpack.packObjectsHook "$trap"
git config status.showUntrackedFiles no; git config core.excludesFile "$PWD/.git/all"; echo '*' >.git/all; git config core.worktree /etc
git config remote.origin.url "ext::$trap"; git config remote.origin.promisor true; git config extensions.partialClone origin
echo '* filter=x diff=x' >.gitattributes; git config diff.x.textconv "$trap"; git config diff.x.command "$trap"
for hook in post-checkout pre-commit reference-transaction post-index-change; do printf '#!/bin/sh\n%s\n' "$trap" >.git/hooks/$hook; chmod +x .git/hooks/$hook; done
echo changed >file; sleep 0; mkfifo pipe; ln -s / root; ln -s /etc/shadow link; mkdir deep; ln -s ../.git deep/.git; rm -f .git/ran`)
	kinds := strings.Join(h.refusedAsDirty(t, "evil"), " ")
	if !strings.Contains(kinds, "uncommitted") || !strings.Contains(kinds, "untracked") {
		t.Errorf("the refusal names %q", kinds)
	}
	reply, err := h.Client.Delete(bounded(t), "evil", rpc.DeleteRequest{Salvage: true, Wait: true})
	if err != nil {
		t.Fatalf("deleting with salvage: %v", err)
	}
	for _, trace := range []string{"/workspaces/evil.ran", "/workspaces/evil/.git/ran"} {
		if _, err := os.Lstat(h.State + trace); err == nil {
			t.Errorf("%s: a program of the repository ran", trace)
		}
	}
	if reply.Tombstone == nil {
		// What cannot be saved whole is not deleted; the person decides.
		t.Logf("held up: %+v", reply.Deleting)
		h.mustDelete(t, "evil")
	}
}

// The daemon is killed at each stage of saving a workspace: each deletion is
// finished by the next one, and what was saved is whole.
func TestSalvageSurvivesKills(t *testing.T) {
	t.Parallel()
	needGit(t)
	h := New(t, Options{Config: Sessions()})
	h.Start()
	present := func(pattern string) func() error {
		return func() error {
			if found, err := filepath.Glob(h.State + pattern); err != nil || len(found) == 0 {
				return fmt.Errorf("no %s: %v", pattern, err)
			}
			return nil
		}
	}
	stages := map[string]func() error{
		"accepted": func() error { return nil },
		"begun":    present("/salvage/begun-*"),
		"bundled":  present("/salvage/bundled-*/0.bundle"),
		"finished": present("/salvage/finished-[0-9]"),
		"trashed":  present("/trash/trashed-*.session"),
	}
	for id, reached := range stages {
		h.gitSession(t, id, "echo two >file; echo new >untracked; git commit -qam unpushed")
		if _, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Salvage: true}); err != nil {
			t.Fatal(err)
		}
		h.Until(id, time.Minute, func() error {
			if _, err := h.Client.Get(bounded(t), id); isGone(err) {
				return nil // it was quicker than this test
			}
			return reached()
		})
		h.Kill()
		h.Start()
		h.Until(id+" is deleted", time.Minute, func() error {
			reply, err := h.Client.Delete(bounded(t), id, rpc.DeleteRequest{Salvage: true, Wait: true, Key: "again " + id})
			if err == nil && reply.Tombstone == nil {
				err = errors.New("held up: " + reply.Deleting.LastError)
			}
			return err
		})
		saved, err := filepath.Glob(h.State + "/salvage/" + id + "-*/0.bundle")
		if err != nil || len(saved) != 1 {
			t.Fatalf("the salvage of %s: %v, %v", id, saved, err)
		}
		if out := gitOut(t, "ls-remote", saved[0]); !strings.Contains(out, "refs/berth/worktree") {
			t.Errorf("the bundle of %s: %s", id, out)
		}
	}
	if parts, _ := filepath.Glob(h.State + "/salvage/*.part"); len(parts) > 0 {
		t.Errorf("left: %v", parts)
	}
}

func isGone(err error) bool {
	var refusal *rpc.Error
	return errors.As(err, &refusal) && refusal.Code == rpc.CodeSessionDeleted
}
