package daemontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/statefs/cgroupfs"
)

func (h *Host) stop(session string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = h.Client.Stop(ctx, session, rpc.StopRequest{Why: "the test ends"}) // StopAll looks again
}

// Leaks reports processes that carry the host's marker, and leaves, as they
// are now that every session has ended.
func (h *Host) Leaks() error {
	var errs []error
	deadline := time.Now().Add(20 * time.Second)
	for {
		procs, err := h.Marked()
		if err != nil {
			return err
		}
		if len(procs) == 0 {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("processes %v carry the host's marker", procs))
			break
		}
		time.Sleep(5 * time.Millisecond) // the poll's period
	}
	for _, base := range []string{h.CgroupBase(), h.Slice()} {
		entries, err := os.ReadDir(base)
		if base == "" || err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				errs = append(errs, fmt.Errorf("cgroup %s is left", filepath.Join(base, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// selfTest is in the environment of the child by which a daemon proves, for a
// moment at its start, that it can read other processes' markers.
var selfTest = []byte("BERTH_INSTANCE=00000000000000000000000000000000")

// scrub ends, after a test that has failed, whatever carries the host's marker
// or is in its cgroup tree: the next test shall not see it.
func (h *Host) scrub() {
	if _, err := os.Stat(h.State + "/host.json"); err != nil || !h.t.Failed() {
		return
	}
	if h.Running() {
		_ = h.cmd.Process.Kill() // its own child
		_ = h.wait()
	}
	if procs, err := h.Marked(); err == nil {
		for _, pid := range procs {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	base := h.CgroupBase() // scopes go by themselves
	if base == "" || os.WriteFile(base+"/cgroup.kill", []byte("1"), 0) != nil {
		return
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // the poll's period
		var dirs []string
		_ = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		if len(dirs) == 0 {
			return
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(dirs[i]) // busy until its processes have ended
		}
	}
}

// Marked lists the processes whose environment names the host, zombies aside.
func (h *Host) Marked() ([]int, error) {
	marker := []byte("BERTH_HOST=" + h.ID() + "\x00")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !bytes.Contains(append(env, 0), marker) || bytes.Contains(env, selfTest) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Wrappers lists, by session, the generations whose wrapper lives at this
// moment, from the cgroup tree alone.
func (h *Host) Wrappers() (map[string][]uint64, error) {
	live := map[string][]uint64{}
	for _, base := range []string{h.CgroupBase(), h.Slice()} {
		if err := wrappersIn(base, live); base != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return live, nil
}

func wrappersIn(base string, live map[string][]uint64) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range entries {
		session, generation, ok := cgroupfs.ParseLeafName(e.Name())
		if !ok {
			continue
		}
		// In a scope it begins in the leaf itself.
		own, _ := os.ReadFile(filepath.Join(base, e.Name(), "cgroup.procs"))
		procs, err := os.ReadFile(filepath.Join(base, e.Name(), "wrap", "cgroup.procs"))
		if err == nil && len(bytes.TrimSpace(append(own, procs...))) > 0 {
			live[session] = append(live[session], generation)
		}
	}
	return nil
}

// Sampler watches a host's invariants while a test runs.
type Sampler struct {
	stop    chan struct{}
	done    chan struct{}
	samples int
	faults  []string
	highest map[string]uint64
}

// Sample looks about every millisecond, until Stop, that no session has two
// live wrappers and that generations never fall.
func (h *Host) Sample() *Sampler {
	s := &Sampler{stop: make(chan struct{}), done: make(chan struct{}), highest: map[string]uint64{}}
	go func() { // ended by Stop
		defer close(s.done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				live, err := h.Wrappers()
				if err == nil {
					s.look(live)
				}
			}
		}
	}()
	return s
}

func (s *Sampler) look(live map[string][]uint64) {
	s.samples++
	for session, generations := range live {
		if len(generations) > 1 {
			s.faults = append(s.faults, fmt.Sprintf("session %s has wrappers of generations %v at once", session, generations))
		}
		for _, g := range generations {
			if g < s.highest[session] {
				s.faults = append(s.faults, fmt.Sprintf("session %s runs generation %d after %d", session, g, s.highest[session]))
			}
			s.highest[session] = max(s.highest[session], g)
		}
	}
}

// Stop ends the watch and returns how many samples it took and what it saw.
func (s *Sampler) Stop() (samples int, faults []string) {
	close(s.stop)
	<-s.done
	return s.samples, s.faults
}
