package daemontest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// diskKinds are the file systems that room is tried on.
var diskKinds = []string{"ext4", "xfs", "tmpfs"}

// disk makes a file system of a kind and returns where it is mounted, as smallDisk
// does; options are for mkfs, or for mount where the kind is tmpfs.
func disk(t *testing.T, kind string, megabytes int, options ...string) string {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("", "berth-disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, mnt := dir+"/image", dir+"/mnt"
	if err := errors.Join(os.Mkdir(mnt, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	commands := [][]string{
		{"truncate", "-s", fmt.Sprintf("%dM", megabytes), image},
		slices.Concat([]string{"mkfs." + kind, "-q"}, options, []string{image}), {"mount", "-o", "loop", image, mnt},
	}
	if kind == "tmpfs" {
		commands = [][]string{{"mount", "-t", "tmpfs", "-o", strings.Join(append(options, fmt.Sprintf("size=%dm", megabytes)), ","), "tmpfs", mnt}}
	}
	for _, args := range commands {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs %s and mounts: %v: %v: %s", kind, args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mnt).CombinedOutput(); err != nil {
			t.Errorf("unmounting: %v: %s", err, out)
		}
	})
	return mnt
}

// reclaiming makes a host on a disk whose marks are low and where workspaces may go
// at once.
func reclaiming(t *testing.T, mnt, capacity string) (h *Host, src string) {
	t.Helper()
	needGit(t)
	h = New(t, Options{
		Config: "[workspaces]\nclone_cache = false\n" + quickTables(), StateDir: mnt + "/state",
		Capacity: "low_percent = 0\nlow_inode_percent = 0\nstate_low_bytes = 1048576\nreclaim_after = \"0s\"\ncheck_every = \"0s\"\n" + capacity,
	})
	h.Start()
	src = h.Dir + "/src"
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	return h, src
}

// workspaces are the sessions whose workspace is on the disk.
func (h *Host) workspaces(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(h.State + "/workspaces")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// atRest waits until a session is vacant and owes nothing: only then its workspace
// may go.
func (h *Host) atRest(t *testing.T, id string) {
	t.Helper()
	h.until(t, id, "is at rest", func(s rpc.Session) bool { return s.State == "vacant" && s.LastEvent == "released" })
}

// reclaimSize is the size of a workspace in MiB; BERTH_TEST_RECLAIM_MB sets it.
func reclaimSize(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("BERTH_TEST_RECLAIM_MB"))
	if err != nil {
		return 10
	}
	return n
}

// Twenty workspaces can go and room for one is needed: exactly one goes, the one
// that was released first, and its session's next start makes it again. case T67, E5
func TestReclaimOne(t *testing.T) {
	t.Parallel()
	for _, kind := range diskKinds {
		t.Run(kind, func(t *testing.T) {
			size := reclaimSize(t)
			h, src := reclaiming(t, disk(t, kind, 21*size+max(400, size)), "low_bytes = 1048576\n")
			h.script(t, src, fmt.Sprintf(`git init -q -b main repo; cd repo; echo '*.bin binary -delta' >.gitattributes
head -c %dM /dev/urandom >half.bin; git add -A; git -c core.compression=0 commit -qm data
git init -q --bare ../bare; git remote add origin ../bare; git push -q origin main; git fetch -q`, size/2))
			prepared := func(i int) {
				spec := shell("cat half.bin | wc -c")
				spec.Source = &rpc.Source{Copy: src + "/repo"}
				id := fmt.Sprintf("w%02d", i)
				h.mustStart(t, id, spec)
				h.atRest(t, id)
			}
			prepared(0) // the oldest
			var others sync.WaitGroup
			for i := 1; i < 20; i++ {
				others.Go(func() { prepared(i) })
			}
			others.Wait()
			if code, out := h.ctl(t, "gc", "--explain"); code != 0 || strings.Count(out, " yes ") != 20 {
				t.Errorf("gc --explain: %d\n%s", code, out)
			}
			room := h.roomOf(t, "workspaces")
			reserve := room.FreeBytes - room.LowBytes + uint64(size)*mega/2 // lacks a little less than one workspace
			spec := shell("exec sleep 1000")
			spec.ReserveBytes = &reserve
			h.mustStart(t, "needy", spec)
			left := h.workspaces(t)
			if len(left) != 20 || slices.Contains(left, "w00") {
				t.Errorf("left: %v, want all but w00, and needy", left)
			}
			var kinds []string
			for _, e := range h.eventsOf(t, "w00") {
				if strings.HasPrefix(e.Kind, "workspace_recl") {
					kinds = append(kinds, e.Kind)
					if !strings.Contains(e.Detail, "unpushed") {
						t.Errorf("%s tells no evidence: %q", e.Kind, e.Detail)
					}
				}
			}
			if !slices.Equal(kinds, []string{"workspace_reclaim", "workspace_reclaimed"}) {
				t.Errorf("events: %v", kinds)
			}
			h.mustStop(t, "needy")
			h.mustStart(t, "w00", nil)
			h.untilVacant(t, "w00")
			if got := strings.TrimSpace(h.output(t, "w00", 0)); got != fmt.Sprint(size/2*mega) {
				t.Errorf("made again, it holds %q", got)
			}
			if steps := h.stepsOf(t, "w00"); len(steps) != 4 {
				t.Errorf("steps: %q", steps)
			}
		})
	}
}

// What holds anything of value is kept, whatever is needed, and gc says why.
func TestReclaimKeeps(t *testing.T) {
	t.Parallel()
	h, src := reclaiming(t, disk(t, "ext4", 400), "low_bytes = 1048576\n")
	h.script(t, src, origin+"; echo '*.o' >.gitignore; git add -A; git commit -qm ignore")
	for id, c := range map[string]struct{ script, why string }{
		"changed":   {"echo x >>file", "uncommitted"},
		"untracked": {"echo x >new", "untracked"},
		"ignored":   {"echo x >a.o", "ignored"},
		"unpushed":  {"git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x", "unpushed"},
		"stashed":   {"echo x >>file; git -c user.name=a -c user.email=a@b stash -q", "stashed"},
		"detached":  {"git checkout -q --detach; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; git checkout -q main", "unpushed"},
		"closed":    {"mkdir -p sub2; echo x >sub2/x; chmod 000 sub2", "not known"},
		"nested":    {"git init -q .git/modules/x; cd .git/modules/x; echo x >f; git add f; git -c user.name=a -c user.email=a@b commit -qm x", "unpushed"},
		"pinned":    {"true", "pinned"},
		"running":   {"exec sleep 1000", "not vacant"},
		"plain":     {"true", "cannot make it again"},
	} {
		spec := shell(c.script)
		spec.Source = &rpc.Source{Clone: src + "/origin"}
		if id == "plain" {
			spec.Source = nil
		}
		spec.Pinned = id == "pinned"
		h.mustStart(t, id, spec)
		if id != "running" {
			h.untilVacant(t, id)
		}
		gc, err := h.Client.Gc(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(gc.Workspaces, func(w rpc.Eligibility) bool { return w.Session == id })
		if i < 0 || gc.Workspaces[i].Eligible || !strings.Contains(strings.Join(gc.Workspaces[i].WhyNot, "; "), c.why) {
			t.Errorf("%s: %+v, want %q", id, gc.Workspaces, c.why)
		}
	}
	before := h.workspaces(t)
	huge := uint64(1 << 40)
	spec := shell("true")
	spec.ReserveBytes = &huge
	refused(t, startErr(t, h, "needy", spec), rpc.CodeCapacityRejected)
	if after := h.workspaces(t); !slices.Equal(before, after) {
		t.Errorf("workspaces were %v and are %v", before, after)
	}
}

// The kept objects of clones go first, then what is in the trash, then workspaces,
// and no more than is needed of each.
func TestReclaimOrder(t *testing.T) {
	t.Parallel()
	mnt := disk(t, "ext4", 400)
	needGit(t)
	h := New(t, Options{
		Config: quickTables(), StateDir: mnt + "/state",
		Capacity: "low_bytes = 1048576\nlow_percent = 0\nlow_inode_percent = 0\nstate_low_bytes = 1048576\nreclaim_after = \"0s\"\ncheck_every = \"0s\"\n",
	})
	h.Start()
	src := h.Dir + "/src"
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	h.script(t, src, "git init -q -b main repo; cd repo; head -c 20M /dev/urandom >data; git add -A; git commit -qm data")
	spec := shell("true")
	spec.Source = &rpc.Source{Clone: src + "/repo"}
	h.mustStart(t, "w", spec)
	h.atRest(t, "w")
	packs := func() int {
		found, _ := os.ReadDir(h.State + "/cache/git")
		return len(found)
	}
	if packs() != 1 {
		t.Fatal("nothing is kept of the clone")
	}
	needs := func(id string, lacks uint64) {
		room := h.roomOf(t, "workspaces")
		reserve := room.FreeBytes - room.LowBytes + lacks
		s := shell("exec sleep 1000")
		s.ReserveBytes = &reserve
		h.mustStart(t, id, s)
		h.mustStop(t, id)
	}
	needs("first", 10*mega)
	if packs() != 0 || !slices.Contains(h.workspaces(t), "w") {
		t.Errorf("kept objects: %d, workspaces: %v", packs(), h.workspaces(t))
	}
	needs("second", 10*mega)
	if slices.Contains(h.workspaces(t), "w") {
		t.Errorf("workspaces: %v", h.workspaces(t))
	}
}

// The daemon is killed while it gives up a workspace: it finishes that, and a start
// makes the workspace again.
func TestReclaimSurvivesKills(t *testing.T) {
	t.Parallel()
	h, src := reclaiming(t, disk(t, "ext4", 400), "low_bytes = 1048576\n")
	h.script(t, src, "git init -q -b main repo; cd repo; i=0; while test $i -lt 500; do echo $i >f$i; i=$((i+1)); done; git add -A; git commit -qm data")
	for i := range 5 {
		id := fmt.Sprintf("k%d", i)
		spec := shell("ls | wc -l")
		spec.Source = &rpc.Source{Clone: src + "/repo"}
		h.mustStart(t, id, spec)
		h.atRest(t, id)
		room := h.roomOf(t, "workspaces")
		reserve := room.FreeBytes - room.LowBytes + mega
		needy := shell("exec sleep 1000")
		needy.ReserveBytes = &reserve
		var started sync.WaitGroup
		started.Go(func() { // the daemon dies meanwhile
			_, _ = h.Client.Start(t.Context(), fmt.Sprintf("n%d", i), rpc.StartRequest{Spec: needy})
		})
		h.Until("the workspace is being given up", patience, func() error {
			for _, e := range h.eventsOf(t, id) {
				if e.Kind == "workspace_reclaim" {
					return nil
				}
			}
			return errors.New("not yet")
		})
		for range i * 400 { // at another moment each time
			_ = unix.Getpid()
		}
		h.Kill()
		started.Wait()
		h.Start()
		h.StopAll()
		h.mustStart(t, id, nil)
		h.untilVacant(t, id)
		if got := strings.TrimSpace(h.output(t, id, 0)); got != "500" {
			t.Errorf("%s: made again, it holds %q files", id, got)
		}
		h.mustDelete(t, id)
	}
}

// Bytes are free and inodes are not: the start is refused with the numbers of both,
// and a workspace with many files goes for it. case T70
func TestInodesExhausted(t *testing.T) {
	t.Parallel()
	h, src := reclaiming(t, disk(t, "ext4", 300, "-N", "6000"), "low_bytes = 1048576\n")
	h.script(t, src, "git init -q -b main repo; cd repo; i=0; while test $i -lt 2000; do echo $i >f$i; i=$((i+1)); done; git add -A; git commit -qm data")
	spec := shell("true")
	spec.Source = &rpc.Source{Clone: src + "/repo"}
	h.mustStart(t, "w", spec)
	h.atRest(t, "w")
	room := h.roomOf(t, "workspaces")
	inodes := room.FreeInodes + 1000
	needy := shell("true")
	needy.ReserveInodes = &inodes
	h.mustStart(t, "n1", needy)
	h.untilVacant(t, "n1")
	if slices.Contains(h.workspaces(t), "w") {
		t.Errorf("workspaces: %v", h.workspaces(t))
	}
	inodes = room.FreeInodes + 4000
	e := refused(t, startErr(t, h, "n2", needy), rpc.CodeCapacityRejected)
	if short, _ := e.Details["short_inodes"].(float64); short == 0 || e.Details["short_bytes"] != 0.0 {
		t.Errorf("%+v", e.Details)
	}
}

// Twenty starts at one time into room for seven, where nothing can be given up:
// exactly seven are admitted.
func TestAdmitSeven(t *testing.T) {
	t.Parallel()
	for _, kind := range diskKinds {
		t.Run(kind, func(t *testing.T) {
			h, _ := reclaiming(t, disk(t, kind, 800), "low_bytes = 33554432\n")
			room := h.roomOf(t, "workspaces")
			const fit = 7
			reserve := (room.FreeBytes - room.LowBytes) / (fit + 1) * 21 / 20
			if started := h.startReserving(t, 20, reserve); len(started) != fit {
				t.Errorf("%d were admitted, there was room for %d", len(started), fit)
			}
		})
	}
}
