package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// preparing makes a host whose daemon runs, for tests that fill workspaces, and a
// directory of the sessions' user.
func preparing(t *testing.T, workspaces string) (h *Host, src string) {
	t.Helper()
	needGit(t)
	h = New(t, Options{Config: "[workspaces]\n" + workspaces + "\n" + quickTables()})
	h.Start()
	src = h.Dir + "/src"
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	h.own(t, src)
	return h, src
}

// own gives what is there to the sessions' user.
func (h *Host) own(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if out, err := exec.Command("chown", "-R", "--no-dereference", fmt.Sprintf("%d:%d", Nobody, Nobody), path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// script runs a shell script as the sessions' user would, in a directory.
func (h *Host) script(t *testing.T, dir, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.own(t, dir)
}

// origin is a repository with two branches and a tag.
const origin = `git -c init.defaultBranch=main init -q origin; cd origin
echo one >file; mkdir sub; echo two >sub/other; ln -s file link; git add -A; git commit -qm first; git tag v1
git checkout -qb topic; echo topic >file; git commit -qam topic; git checkout -q main; echo main >file; git commit -qam second`

// steps are the steps of a session's preparation so far, as events tell them.
func (h *Host) stepsOf(t *testing.T, id string) []string {
	t.Helper()
	var all []string
	for _, e := range h.eventsOf(t, id) {
		if e.Kind == "workspace_step" {
			name, _, _ := strings.Cut(e.Detail, " in ")
			name, _, _ = strings.Cut(name, " after ")
			all = append(all, name)
		}
	}
	return all
}

func (h *Host) wantSteps(t *testing.T, id string, want ...string) {
	t.Helper()
	if got := h.stepsOf(t, id); !slices.Equal(got, want) {
		t.Errorf("the steps of %s are %q, want %q", id, got, want)
	}
}

func startErr(t *testing.T, h *Host, id string, spec *rpc.SessionSpec) error {
	t.Helper()
	var err error
	h.Until("an answer to the start of "+id, patience, func() error {
		_, err = h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: spec})
		if rpc.CodeOf(err) == rpc.CodeCleanupPending {
			return err
		}
		return nil
	})
	return err
}

// A workspace is cloned, checked out and set up before the agent first starts, as
// the session's user, and never again; each step is an event, and no event tells a
// command or what it prints.
func TestClonedWorkspace(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin)
	spec := shell("cat file; git branch --show-current; cat made; id -u >agent; stat -c %u made")
	spec.Source = &rpc.Source{Clone: src + "/origin", Branch: "topic", WorkBranch: "agent/x"}
	spec.Setup = []string{"echo canary-text; id -u >made", "test -n \"$WORD\"; echo $WORD >>made"}
	spec.Env = []string{"WORD=canary-secret"}
	h.mustStart(t, "c", spec)
	s := h.untilVacant(t, "c")
	out := h.output(t, "c", 1)
	owner := fmt.Sprint(s.UID)
	if want := "topic\nagent/x\n" + owner + "\ncanary-secret\n" + owner + "\n"; out != want {
		t.Errorf("the agent saw %q, want %q", out, want)
	}
	if s.Preparation == nil || !s.Preparation.Finished || s.Preparation.Done != 5 {
		t.Errorf("preparation %+v", s.Preparation)
	}
	h.wantSteps(t, "c", "workspace: done", "clone: done", "checkout: done", "setup 1: done", "setup 2: done")
	for _, e := range h.eventsOf(t, "c") {
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, "canary") {
			t.Errorf("an event tells too much: %s", text)
		}
	}
	log, err := os.ReadFile(h.State + "/sessions/c/g1/prepare.log")
	if err != nil || !strings.Contains(string(log), "canary-text") {
		t.Errorf("the log of the preparation: %q, %v", log, err)
	}
	if got := strings.TrimSpace(gitOut(t, "-c", "safe.directory=*", "-C", s.Workspace, "rev-parse", "--abbrev-ref", "topic@{upstream}")); got != "origin/topic" {
		t.Errorf("the branch follows %q", got)
	}
	h.mustStart(t, "c", nil)
	h.untilVacant(t, "c")
	if n := len(h.stepsOf(t, "c")); n != 5 {
		t.Errorf("%d steps after the second start", n)
	}
	stamp, err := os.ReadFile(s.Workspace + "/.git/berth/stamp.json")
	if err != nil || !strings.Contains(string(stamp), `"session":"c","generation":1,"finished":true`) {
		t.Errorf("the stamp is %s, %v", stamp, err)
	}
	if err := os.RemoveAll(s.Workspace); err != nil {
		t.Fatal(err)
	}
	refused(t, startErr(t, h, "c", nil), rpc.CodeWorkspaceMissing)
	if _, err := os.Lstat(s.Workspace); err == nil {
		t.Error("a missing workspace was made anew")
	}
}

// What can be asked of a clone: the default branch, a tag, a work branch that is
// there, a shallow one, an empty repository; and a branch that is not there.
func TestCloneKinds(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin+"; git init -q -b main ../empty")
	show := "git log --format=%s; git symbolic-ref -q --short HEAD || echo detached"
	for id, c := range map[string]struct {
		source rpc.Source
		want   string
	}{
		"default": {rpc.Source{Clone: src + "/origin"}, "second\nfirst\nmain\n"},
		"tag":     {rpc.Source{Clone: src + "/origin", Branch: "v1"}, "first\ndetached\n"},
		"work":    {rpc.Source{Clone: src + "/origin", WorkBranch: "topic"}, "topic\nfirst\ntopic\n"},
		"new":     {rpc.Source{Clone: src + "/origin", Branch: "v1", WorkBranch: "mine"}, "first\nmine\n"},
		"shallow": {rpc.Source{Clone: src + "/origin", Depth: 1}, "second\nmain\n"},
		"branch":  {rpc.Source{Clone: "file://" + src + "/origin", Depth: 1, Branch: "topic"}, "topic\ntopic\n"},
		"deeptag": {rpc.Source{Clone: src + "/origin", Depth: 1, Branch: "v1"}, "first\ndetached\n"},
		"empty":   {rpc.Source{Clone: src + "/empty", WorkBranch: "w"}, "w\n"},
	} {
		spec := shell(show)
		spec.Source = &c.source
		h.mustStart(t, id, spec)
		h.untilVacant(t, id)
		if got := h.output(t, id, 1); !strings.HasSuffix(got, c.want) || len(got) > len(c.want)+200 {
			t.Errorf("%s: the agent saw %q, want %q", id, got, c.want)
		}
	}
	for id, source := range map[string]rpc.Source{
		"nobranch": {Clone: src + "/origin", Branch: "none"}, "nothing": {Clone: src + "/none"}, "plain": {Clone: src},
	} {
		spec := shell("true")
		spec.Source = &source
		e := refused(t, startErr(t, h, id, spec), rpc.CodeUnprepared)
		if failure := e.Details["failure"]; failure != map[bool]string{true: "no_branch", false: "exit"}[id == "nobranch"] {
			t.Errorf("%s: %+v", id, e)
		}
	}
}

// A failed step refuses the start, says which and how, and the next start goes on
// with it; what was done is not done again.
func TestPreparationGoesOn(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "step_limit = \"3s\"\nstep_quiet = \"1s\"")
	h.script(t, src, origin)
	spec := shell("cat count")
	spec.Source = &rpc.Source{Clone: src + "/origin"}
	spec.Setup = []string{
		"echo first >>count",
		"case $(cat " + src + "/how) in exit) exit 3;; kill) kill -9 $$;; quiet) sleep 1000 & sleep 1000;; long) while :; do echo x; sleep 0.1; done;; esac; echo second >>count",
	}
	for _, c := range []struct {
		how, failure string
		detail       float64
		field        string
	}{
		{"exit", "exit", 3, "code"}, {"kill", "signal", 9, "signal"}, {"quiet", "no_output", 9, "signal"}, {"long", "too_long", 9, "signal"},
	} {
		if err := os.WriteFile(src+"/how", []byte(c.how), 0o644); err != nil {
			t.Fatal(err)
		}
		e := refused(t, startErr(t, h, "p", spec), rpc.CodeUnprepared)
		if e.Details["failure"] != c.failure || e.Details["step"] != "setup" || e.Details["number"] != 2.0 || e.Details[c.field] != c.detail {
			t.Errorf("%s: %+v", c.how, e.Details)
		}
		h.until(t, "p", "is vacant", func(s rpc.Session) bool { return s.State == "vacant" && s.Preparation.Failure == c.failure })
	}
	if err := os.WriteFile(src+"/how", []byte("well"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.mustStart(t, "p", spec)
	h.untilVacant(t, "p")
	if got := h.output(t, "p", 0); got != "first\nsecond\n" {
		t.Errorf("the commands have left %q", got)
	}
}

// The daemon is killed in each step: the next start ends what is left of it and
// finishes the preparation, and the agent finds everything once.
func TestPreparationSurvivesKills(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin)
	for _, id := range []string{"one", "two"} {
		spec := shell("cat file made")
		spec.Source = &rpc.Source{Clone: src + "/origin"}
		spec.Setup = []string{"echo 1 >made", fmt.Sprintf("touch %s/%s.at; setsid sleep 1000 & while ! test -e %s/%s.go; do sleep 0.05; done; echo 2 >>made", src, id, src, id)}
		go func() { _, _ = h.Client.Start(t.Context(), id, rpc.StartRequest{Spec: spec}) }() // the daemon dies meanwhile
		h.Until(id+" is set up", patience, func() error { _, err := os.Stat(src + "/" + id + ".at"); return err })
		h.Kill()
		h.Start()
		if err := os.WriteFile(src+"/"+id+".go", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		h.Until("the start of "+id, patience, func() error { // one that joins the start which was cut off is told so
			_, err := h.Client.Start(bounded(t), id, rpc.StartRequest{Spec: spec})
			return err
		})
		h.untilVacant(t, id)
		if got := h.output(t, id, 0); got != "main\n1\n2\n" {
			t.Errorf("%s: the agent saw %q", id, got)
		}
		h.wantSteps(t, id, "workspace: done", "clone: done", "checkout: done", "setup 1: done", "setup 2: done")
	}
}

// A session that is deleted while its workspace is being filled: the start in
// flight loses, and nothing of the commands is left.
func TestDeleteWhilePreparing(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	spec := shell("true")
	spec.Setup = []string{"touch " + src + "/at; setsid sleep 1000 & sleep 1000"}
	failed := make(chan error, 1)
	go func() {
		_, err := h.Client.Start(t.Context(), "d", rpc.StartRequest{Spec: spec})
		failed <- err
	}()
	h.Until("the command runs", patience, func() error { _, err := os.Stat(src + "/at"); return err })
	h.mustDelete(t, "d")
	if err := <-failed; err == nil {
		t.Error("the start has won")
	}
	if left, _ := filepath.Glob(h.CgroupBase() + "/prepare-*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A directory is copied with its modes, times and links, holes stay holes, and what
// the copy would share with the original is refused.
func TestCopiedWorkspace(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, `mkdir tree tree/closed; cd tree; echo x >file; chmod 640 file; ln -s /etc/passwd link; truncate -s 300M sparse
echo deep >closed/deep; chmod 500 closed; mkfifo pipe; touch -d 2001-02-03T04:05:06Z file closed; cd ..
mkdir git; cd git; `+origin+`; mkdir -p .git/berth; echo '{"version":1,"host":"h","session":"other","finished":true}' >.git/berth/stamp.json
git worktree add -q ../linked topic; cd ..; git clone -q --shared origin borrowing; mkdir links; ln -s ../origin/.git links/.git`)
	spec := shell("stat -c '%n %a %Y' file closed; readlink link; cat closed/deep; stat -c '%s %b' sparse; test -e pipe || echo none")
	spec.Source = &rpc.Source{Copy: src + "/tree"}
	s := h.mustStart(t, "copy", spec)
	h.untilVacant(t, "copy")
	want := "file 640 981173106\nclosed 500 981173106\n/etc/passwd\ndeep\n314572800 0\nnone\n"
	if got := h.output(t, "copy", 1); got != want {
		t.Errorf("the agent saw %q, want %q", got, want)
	}
	if data, err := os.ReadFile(s.Workspace + "/file"); err != nil || string(data) != "x\n" {
		t.Errorf("%q, %v", data, err)
	}
	spec = shell("git log --format=%s | head -1; cat .git/berth/stamp.json")
	spec.Source = &rpc.Source{Copy: src + "/git/origin"}
	h.mustStart(t, "repo", spec)
	h.untilVacant(t, "repo")
	if got := h.output(t, "repo", 1); !strings.HasPrefix(got, "second\n") || !strings.Contains(got, `"session":"repo","generation":1,"finished":true`) {
		t.Errorf("the agent saw %q", got)
	}
	if os.Geteuid() == 0 {
		if err := os.WriteFile(src+"/secret", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		h.script(t, src, "mkdir hidden; cp secret hidden; chmod 000 hidden")
		if err := os.Chown(src+"/hidden", 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for id, path := range map[string]string{
		"linked": src + "/git/linked", "borrowing": src + "/git/borrowing", "links": src + "/git/links", "gone": src + "/gone", "hidden": src + "/hidden",
	} {
		spec := shell("true")
		spec.Source = &rpc.Source{Copy: path}
		e := refused(t, startErr(t, h, id, spec), rpc.CodeUnprepared)
		if e.Details["failure"] != "source" {
			t.Errorf("%s: %+v", id, e)
		}
	}
}

// A repository that its author means ill with is cloned and copied, and runs
// nothing: neither as the session's user nor as root.
func TestHostileSource(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin+`
trap="touch `+src+`/ran"
git config uploadpack.packObjectsHook "$trap"; git config core.fsmonitor "$trap"; git config core.sshCommand "$trap"; git config core.alternateRefsCommand "$trap"
git config core.hooksPath "$PWD/.git/hooks"; git config filter.x.smudge "$trap"; git config filter.x.clean "$trap"; git config filter.x.process "$trap"; git config core.gitProxy "$trap"
for hook in post-checkout pre-commit reference-transaction post-index-change pre-upload post-receive; do printf '#!/bin/sh\n%s\n' "$trap" >.git/hooks/$hook; chmod +x .git/hooks/$hook; done
echo '* filter=x' >.gitattributes; printf '[submodule "s"]\n path=s\n url=ext::%s\n update=!%s\n' "$trap" "$trap" >.gitmodules
mkdir -p hooks; printf '#!/bin/sh\n%s\n' "$trap" >hooks/post-checkout; chmod +x hooks/post-checkout
git -c filter.x.clean= -c filter.x.process= -c filter.x.smudge= -c core.fsmonitor=false -c core.hooksPath=/dev/null add -A
git -c filter.x.clean= -c filter.x.process= -c core.fsmonitor=false -c core.hooksPath=/dev/null commit -qm hostile
git config include.path "$PWD/.git/included"; printf '[core]\n fsmonitor = %s\n' "$trap" >.git/included
git config extensions.partialClone evil; git config core.repositoryFormatVersion 1; git config remote.evil.url "ext::$trap"; git config remote.evil.promisor true
rm -f `+src+`/ran`)
	if os.Geteuid() == 0 { // whoever owns it
		if out, err := exec.Command("sh", "-c", "cp -a $1/origin $1/bin; chown -R 1:1 $1/bin", "sh", src).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for id, source := range map[string]rpc.Source{"clone": {Clone: src + "/origin"}, "copied": {Copy: src + "/origin"}, "others": {Clone: src + "/bin"}} {
		if os.Geteuid() != 0 && id == "others" {
			continue
		}
		spec := shell("cat file")
		spec.Source = &source
		h.mustStart(t, id, spec)
		h.untilVacant(t, id)
		if got := h.output(t, id, 1); got != "main\n" {
			t.Errorf("%s: the agent saw %q", id, got)
		}
		if _, err := os.Lstat(src + "/ran"); err == nil {
			t.Fatalf("%s: a program of the repository ran", id)
		}
	}
	for _, url := range []string{"ext::sh -c 'touch " + src + "/ran'", "fd::17", "--upload-pack=x", "https://me:secret@localhost/x", "-x:y"} {
		spec := shell("true")
		spec.Source = &rpc.Source{Clone: url}
		_, err := h.Client.Start(bounded(t), "bad", rpc.StartRequest{Spec: spec})
		refused(t, err, rpc.CodeInvalidRequest)
	}
}

// The objects of a clone are kept for the next one of the same user and repository;
// no session reaches them, what a session does to its own copy changes no other,
// and ones that have become bad cost time only.
func TestCloneCache(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin)
	start := func(id string) string {
		t.Helper()
		spec := shell("git fsck --no-progress 2>&1 && cat file; chmod -R u+w .git/objects; find .git/objects -type f -exec sh -c 'echo bad >$1' sh {} \\;")
		spec.Source = &rpc.Source{Clone: src + "/origin"}
		h.mustStart(t, id, spec)
		s := h.untilVacant(t, id)
		if got := h.output(t, id, 1); got != "main\n" {
			t.Errorf("%s: the agent saw %q", id, got)
		}
		return s.Workspace
	}
	start("a")
	packs, err := filepath.Glob(h.State + "/cache/git/*/packs/pack-*.pack")
	if err != nil || len(packs) != 1 {
		t.Fatalf("kept: %v, %v", packs, err)
	}
	info, err := os.Stat(packs[0])
	if err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(h.State + "/cache"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the cache: %v, %v", info, err)
	}
	b := start("b") // after a has spoilt its own
	if same, err := filepath.Glob(b + "/.git/objects/pack/" + filepath.Base(packs[0])); err != nil || len(same) != 1 {
		t.Errorf("the second clone does not have the pack of the first: %v", same)
	}
	h.script(t, src+"/origin", "echo main >new; git add new; git commit -qm third")
	start("c")
	if more, _ := filepath.Glob(h.State + "/cache/git/*/packs/pack-*.pack"); len(more) != 2 {
		t.Errorf("kept after news: %v", more)
	}
	for _, pack := range packs {
		if err := os.WriteFile(pack, []byte("spoilt"), 0o444); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
	}
	start("d")
	start("e")
}

// A workspace that is kept and set up: the stamp tells of who has prepared it.
func TestStamps(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin)
	stamp := src + "/origin/.git/berth/stamp.json"
	spec := shell("cat count")
	spec.Workspace, spec.Setup = src+"/origin", []string{"echo setup >>count"}
	h.mustStart(t, "first", spec)
	h.untilVacant(t, "first")
	h.mustDelete(t, "first")
	h.mustStart(t, "second", spec)
	h.untilVacant(t, "second")
	if got := h.output(t, "second", 1); got != "setup\nsetup\n" {
		t.Errorf("the agent saw %q", got)
	}
	var details []string
	for _, e := range h.eventsOf(t, "second") {
		details = append(details, e.Detail)
	}
	if all := strings.Join(details, "\n"); !strings.Contains(all, `prepared by session "first"`) {
		t.Errorf("no event tells whose it was: %s", all)
	}
	h.mustDelete(t, "second")
	if err := os.WriteFile(stamp, []byte(`{"version":1,"host":"elsewhere","session":"other","generation":7}`), 0o644); err != nil {
		t.Fatal(err)
	}
	e := refused(t, startErr(t, h, "third", spec), rpc.CodeUnprepared)
	if e.Details["failure"] != "foreign" {
		t.Errorf("%+v", e)
	}
	h.mustDelete(t, "third")
	if err := os.WriteFile(stamp, []byte(`{"version":1,"host":"`+h.ID()+`","session":"fourth","generation":1,"finished":true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	h.mustStart(t, "fourth", spec)
	h.untilVacant(t, "fourth")
	h.wantSteps(t, "fourth", "workspace: done")
}

// What lies where the workspace is to be made is nobody's to remove.
func TestNotEmpty(t *testing.T) {
	t.Parallel()
	h, src := preparing(t, "")
	h.script(t, src, origin)
	dir := h.State + "/workspaces/full"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/precious", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.own(t, dir)
	spec := shell("true")
	spec.Source = &rpc.Source{Clone: src + "/origin"}
	for range 2 {
		e := refused(t, startErr(t, h, "full", spec), rpc.CodeUnprepared)
		if e.Details["failure"] != "not_empty" {
			t.Errorf("%+v", e)
		}
		h.until(t, "full", "is vacant", func(s rpc.Session) bool { return s.State == "vacant" })
	}
	if data, err := os.ReadFile(dir + "/precious"); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
}
