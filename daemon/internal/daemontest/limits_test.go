package daemontest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// resourceLimits are those that need a resource controller, and what a
// specification asks for.
var resourceLimits = map[string]rpc.Limits{
	"limits_pids":   {Processes: 30},
	"limits_memory": {MemoryBytes: 32 << 20},
	"limits_cpu":    {CPUPercent: 20},
}

// capabilitiesOf are those of the host's one provider.
func (h *Host) capabilitiesOf(t *testing.T) []string {
	t.Helper()
	h.pluginOf(t)
	r, err := h.Client.Providers(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return r.Providers[0].Capabilities
}

// TestLimitsAreNamed: what this host cannot limit is named before anything
// starts, for good; what needs no controller holds everywhere. case G14, H9
func TestLimitsAreNamed(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	has := h.capabilitiesOf(t)
	for capability, limits := range resourceLimits {
		if slices.Contains(has, capability) {
			continue
		}
		_, err := h.Client.Start(bounded(t), "s", rpc.StartRequest{Spec: &rpc.SessionSpec{Command: []string{"true"}, Limits: limits}})
		e := refused(t, err, rpc.CodeCapability)
		if e.Retryable || !strings.Contains(fmt.Sprint(e.Details["missing"]), capability) {
			t.Errorf("%s: %+v", capability, e)
		}
		_, err = h.Client.Get(bounded(t), "s")
		refused(t, err, rpc.CodeNotFound)
	}
	h.mustStart(t, "s", &rpc.SessionSpec{
		Command: []string{"sh", "-c", "ulimit -n; exec sleep 1000"}, Limits: rpc.Limits{OpenFiles: 64},
	})
	h.untilOutput(t, "s", "64\n")
}

// limiting makes a host that can set a limit, and skips the test where none
// can: a hybrid host keeps that controller in another hierarchy.
func limiting(t *testing.T, capability string) *Host {
	t.Helper()
	needFence(t)
	h := running(t, "")
	if has := h.capabilitiesOf(t); !slices.Contains(has, capability) {
		controllers, _ := os.ReadFile(filepath.Dir(h.CgroupBase()) + "/cgroup.controllers") // for the message
		t.Skipf("needs %s: the cgroup v2 tree %s (%s) has the controllers %q", capability,
			filepath.Dir(h.CgroupBase()), h.status(t).Cgroup, strings.TrimSpace(string(controllers)))
	}
	return h
}

// control reads a control file of a session's work.
func (h *Host) control(t *testing.T, id, file string) string {
	t.Helper()
	data, err := os.ReadFile(h.leafOf(id, 1) + "/work/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// counter is one line of a flat keyed control file.
func (h *Host) counter(t *testing.T, id, file, key string) uint64 {
	t.Helper()
	for line := range strings.Lines(h.control(t, id, file)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == key {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", file, key)
	return 0
}

// TestProcessLimit: a storm of forks stays in its bound, its wrapper is not
// bound with it, also under the next daemon, and the stop ends it. case G14
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	h := limiting(t, "limits_pids")
	spec := &rpc.SessionSpec{Command: []string{"sh", "-c", runaways["storm"]}, Limits: resourceLimits["limits_pids"]}
	started := h.mustStartAs(t, "s", rpc.StartRequest{Spec: spec, Owner: fmt.Sprint(ownUID(t))})
	for range 2 {
		h.Until("the storm is at its bound", patience, func() error {
			if n := len(membersOf(t, h.leafOf("s", 1)+"/work")); n < 25 || n > 30 {
				return fmt.Errorf("%d processes", n)
			}
			if h.counter(t, "s", "pids.events", "max") == 0 {
				return errors.New("no fork was refused")
			}
			return nil
		})
		h.Kill()
		h.Start()
		h.untilAdopted(t, started)
	}
	if n := h.control(t, "s", "pids.max"); n != "30\n" {
		t.Errorf("pids.max is %q", n)
	}
	h.mustStop(t, "s")
}

// TestMemoryLimit: what takes more memory than it may is killed by the kernel,
// and the exit says so; what stays below runs on. case G14
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	h := limiting(t, "limits_memory")
	grow := func(bytes int) *rpc.SessionSpec {
		script := fmt.Sprintf(`a=xxxxxxxxxxxxxxxx; while [ ${#a} -lt %d ]; do a=$a$a; done; echo grown; exec sleep 1000`, bytes)
		return &rpc.SessionSpec{Command: []string{"sh", "-c", script}, Limits: resourceLimits["limits_memory"]}
	}
	h.mustStart(t, "modest", grow(1<<20))
	h.untilOutput(t, "modest", "grown\n")
	if n := h.control(t, "modest", "memory.max"); n != "33554432\n" {
		t.Errorf("memory.max is %q", n)
	}
	h.mustStart(t, "greedy", grow(1<<30))
	if s := h.untilVacant(t, "greedy"); s.Exit == nil || s.Exit.Kind != "oom" {
		t.Errorf("exit %+v", s.Exit)
	}
	if s := h.mustGet(t, "modest"); s.State != "active" {
		t.Errorf("the modest one is %+v", s)
	}
}

// TestCPULimit: two busy processes get together no more time than the limit
// grants in each period. case G14
func TestCPULimit(t *testing.T) {
	t.Parallel()
	h := limiting(t, "limits_cpu")
	spec := shell("while :; do :; done & while :; do :; done")
	spec.Limits = resourceLimits["limits_cpu"]
	h.mustStart(t, "s", spec)
	if n := h.control(t, "s", "cpu.max"); n != "20000 100000\n" {
		t.Errorf("cpu.max is %q", n)
	}
	h.Until("the processes are throttled", patience, func() error {
		if n := h.counter(t, "s", "cpu.stat", "nr_throttled"); n < 20 {
			return fmt.Errorf("throttled %d times", n)
		}
		return nil
	})
	used := h.counter(t, "s", "cpu.stat", "usage_usec")
	periods := h.counter(t, "s", "cpu.stat", "nr_periods") // read later, so it is never too small
	if granted := (periods + 1) * 20_000; used > granted+granted/2 {
		t.Errorf("%d µs were used in %d periods of 20,000 µs each", used, periods)
	}
}
