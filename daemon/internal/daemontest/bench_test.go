//go:build bench

package daemontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
	"golang.org/x/sys/unix"
)

// These are the gates of time and memory, run by "make bench" without the race
// detector. Ratios are of medians of one interleaved run.

const benchConfig = "[wrapper]\nrelist_every = \"1m\"\n"

// sleeper builds a program that sleeps until a signal ends it.
func sleeper(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	os.Chmod(filepath.Dir(dir), 0o755)
	src := dir + "/sleeper.c"
	if err := os.WriteFile(src, []byte("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-static", "-O2", "-o", dir+"/sleeper", src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir + "/sleeper"
}

func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func gate(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	mark := "ok  "
	if !ok {
		mark = "MISS"
		t.Fail()
	}
	fmt.Printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// TestBenchStart: a start, from the call to the verified wrapper, against "crun
// run -d" of the same static program, and a stop to proven absence.
func TestBenchStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	bundle, program := bundle(t), ""
	program = bundle + "/rootfs/sleeper"
	h := New(t, Options{Config: benchConfig + Sessions()})
	h.Start()
	ctx := context.Background()
	const n = 100
	var start, stop, crun []time.Duration
	crunThread(t, func(run func(args ...string) time.Duration) {
		for i := range n + 5 {
			id := fmt.Sprintf("s%d", i)
			began := time.Now()
			_, err := h.Client.Start(ctx, id, rpc.StartRequest{Key: id, Spec: &rpc.SessionSpec{Command: []string{program}}})
			started := time.Since(began)
			if err != nil {
				t.Fatal(err)
			}
			began = time.Now()
			if _, err := h.Client.Stop(ctx, id, rpc.StopRequest{Wait: true}); err != nil {
				t.Fatal(err)
			}
			stopped := time.Since(began)
			name := fmt.Sprintf("berth-bench-%d-%d", os.Getpid(), i)
			ran := run("run", "-d", "--bundle", bundle, name)
			run("delete", "-f", name)
			if i >= 5 { // the first ones warm the caches
				start, stop, crun = append(start, started), append(stop, stopped), append(crun, ran)
			}
		}
	})
	fmt.Printf("start and stop, %d times, interleaved with crun\n", n)
	for _, row := range []struct {
		name string
		d    []time.Duration
	}{{"berth start to verified", start}, {"berth stop to proven absence", stop}, {"crun run -d", crun}} {
		fmt.Printf("  %-30s p50 %8s  p90 %8s  p99 %8s\n", row.name, quantile(row.d, 0.5).Round(10*time.Microsecond),
			quantile(row.d, 0.9).Round(10*time.Microsecond), quantile(row.d, 0.99).Round(10*time.Microsecond))
	}
	ratio := float64(quantile(start, 0.5)) / float64(quantile(crun, 0.5))
	gate(t, ratio <= 1.0/3, "start p50 is %.2f of crun's (gate 0.33, aim 0.20)", ratio)
	// 10 ms is what crun took at most where the gates were set.
	gate(t, quantile(stop, 0.5) < max(10*time.Millisecond, quantile(crun, 0.5)), "stop p50 %s (gate 10ms, or crun's run where that is slower)",
		quantile(stop, 0.5).Round(10*time.Microsecond))
}

// bundle makes an OCI bundle of the static sleeper for crun.
func bundle(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("needs crun")
	}
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	os.Chmod(filepath.Dir(dir), 0o755)
	os.MkdirAll(dir+"/rootfs", 0o755)
	if err := os.Rename(sleeper(t), dir+"/rootfs/sleeper"); err != nil {
		t.Fatal(err)
	}
	spec := exec.Command("crun", "spec")
	spec.Dir = dir
	if out, err := spec.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(dir + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	p := c["process"].(map[string]any)
	p["terminal"], p["args"] = false, []string{"/sleeper"}
	data, _ = json.Marshal(c)
	if err := os.WriteFile(dir+"/config.json", data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// crunThread runs f with a function that runs crun and measures it. On a hybrid
// host crun refuses to work beside cgroup v2, so it runs where that is not
// mounted: in a mount namespace of one thread.
func crunThread(t *testing.T, f func(run func(args ...string) time.Duration)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Error(err)
			return
		}
		_ = unix.Unmount("/sys/fs/cgroup/unified", 0) // not mounted on pure v2
		f(func(args ...string) time.Duration {
			began := time.Now()
			cmd := exec.Command("crun", args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			log, _ := os.CreateTemp("", "crun")
			defer os.Remove(log.Name())
			cmd.Stdout, cmd.Stderr = log, log
			err := cmd.Run()
			took := time.Since(began)
			if err != nil {
				text, _ := os.ReadFile(log.Name())
				t.Errorf("crun %v: %v: %s", args, err, text)
			}
			return took
		})
	}()
	<-done
}

// TestBenchThousand: a daemon with 1,000 idle sessions, its memory and theirs,
// and its restart, with 20 wrappers stopped.
func TestBenchThousand(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const n, stopped = 1000, 20
	program := sleeper(t)
	h := New(t, Options{Config: benchConfig + Sessions()})
	h.Start()
	began := time.Now()
	startMany(t, h, n, program)
	fmt.Printf("%d idle sessions, started in %s\n", n, time.Since(began).Round(time.Millisecond))
	memory(t, h)
	for i := range stopped {
		s, err := h.Client.Get(context.Background(), fmt.Sprintf("s%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(s.PID, syscall.SIGSTOP); err != nil { // the test's own wrapper
			t.Fatal(err)
		}
		defer syscall.Kill(s.PID, syscall.SIGCONT)
	}
	var bare, socket, present, adopted []time.Duration
	for range 7 {
		h.Kill()
		bare = append(bare, bareRestart(t, h))
		a, b, c := restart(t, h, n, stopped)
		socket, present, adopted = append(socket, a), append(present, b), append(adopted, c)
	}
	fmt.Printf("restart; the bare work of it (replay, pidfds, listen) takes %s here\n", quantile(bare, 0.5).Round(time.Millisecond))
	within(t, "the socket answers", socket, 50*time.Millisecond, bare)
	within(t, "all are found", present, 200*time.Millisecond, bare)
	within(t, fmt.Sprintf("%d are adopted", n-stopped), adopted, 2*time.Second, bare)
}

// bareThere is what the bare work took where the gates of a restart were set.
const bareThere = 34 * time.Millisecond

// within is a gate of absolute time: target where the bare work takes bareThere,
// and the same multiple of it everywhere else.
func within(t *testing.T, what string, d []time.Duration, target time.Duration, bare []time.Duration) {
	t.Helper()
	here, there := float64(quantile(d, 0.5))/float64(quantile(bare, 0.5)), float64(target)/float64(bareThere)
	gate(t, quantile(d, 0.5) <= target || here <= there, "restart: %s after %s, %.1f of the bare work (gate %s, or %.1f)",
		what, quantile(d, 0.5).Round(time.Millisecond), here, target, there)
}

func startMany(t *testing.T, h *Host, n int, program string) {
	t.Helper()
	ids := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range ids {
				_, err := h.Client.Start(context.Background(), fmt.Sprintf("s%d", i),
					rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{program}}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		ids <- i
	}
	close(ids)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// memory measures the daemon's RSS and the wrappers' PSS.
func memory(t *testing.T, h *Host) {
	t.Helper()
	time.Sleep(3 * time.Second) // idle is what is measured: let the start's garbage go
	list, err := h.Client.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var pss uint64
	for _, s := range list.Sessions {
		pss += field(t, fmt.Sprintf("/proc/%d/smaps_rollup", s.PID), "Pss:")
	}
	perWrapper := float64(pss) / float64(len(list.Sessions)) / 1024
	rss := float64(field(t, fmt.Sprintf("/proc/%d/status", h.PID()), "VmRSS:")) / 1024
	gate(t, rss < 40, "daemon RSS %.1f MiB (gate 40)", rss)
	gate(t, perWrapper < 1.2, "wrapper PSS %.2f MiB each (gate 1.2)", perWrapper)
}

// field is a kB value in a /proc file.
func field(t *testing.T, path, name string) uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), name)
	if !ok {
		t.Fatalf("%s has no %s", path, name)
	}
	v, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// restart measures from exec: to the first answer, until nobody is waiting to
// be looked at, until all but the stopped ones are adopted.
func restart(t *testing.T, h *Host, n, stopped int) (socket, present, adopted time.Duration) {
	t.Helper()
	ctx := context.Background()
	began := time.Now()
	h.StartAsync()
	deadline := began.Add(30 * time.Second)
	for adopted == 0 {
		s, err := h.Client.Status(ctx)
		now := time.Since(began)
		switch {
		case err != nil:
		case socket == 0:
			socket = now
			fallthrough
		default:
			if present == 0 && s.Adoption["reconciling"] == 0 {
				present = now
			}
			if s.Adoption["adopted"] == n-stopped {
				adopted = now
			}
		}
		if time.Now().After(deadline) {
			t.Fatal(errors.Join(fmt.Errorf("after 30s: %+v", s.Adoption), err))
		}
		time.Sleep(3 * time.Millisecond) // the poll's period
	}
	return socket, present, adopted
}
