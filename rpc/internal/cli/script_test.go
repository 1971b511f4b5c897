package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berthd/berth/rpc"
	"github.com/berthd/berth/rpc/internal/rpctest"
)

// bound is the time after which a test gives up waiting.
const bound = 20 * time.Second

var update = flag.Bool("update", false, "write the goldens in scripts anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"berthctl": func() { os.Exit(Main("1.2.3")) },
	})
}

// TestScripts runs the real berthctl against a real rpc server; what is behind
// the server is a memory. Each script is one behaviour.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Setup:               setup,
		Deadline:            time.Now().Add(3 * bound),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":  daemonCmd,
			"agent":   agentCmd,
			"plan":    planCmd,
			"refuse":  refuseCmd,
			"await":   awaitCmd,
			"called":  calledCmd,
			"session": sessionCmd,
			"hangup":  hangupCmd,
			"state":   stateCmd,
			"damage":  damageCmd,
		},
	})
}

// world is what a script's commands act on.
type world struct {
	mu   sync.Mutex
	svc  *rpctest.Service
	srv  *rpctest.Server
	path string
	plan []string
	lock *os.File // a wrapper's, see stateCmd
}

func setup(env *testscript.Env) error {
	dir, err := os.MkdirTemp("", "bctl")
	if err != nil {
		return err
	}
	w := &world{svc: rpctest.New(), path: filepath.Join(dir, "berth.sock")}
	w.svc.At = time.Now().Add(-5*time.Minute - 5*time.Second)
	w.svc.UID = 1000
	w.svc.Started = w.play
	env.Defer(func() {
		w.stop()
		w.svc.Join()
		os.RemoveAll(dir)
	})
	env.Values["world"] = w
	env.Setenv("BERTH_SOCKET", w.path)
	// Without it every process of a race build sleeps a second when it ends.
	env.Setenv("GORACE", "atexit_sleep_ms=0")
	return w.start()
}

func (w *world) start() error {
	srv, err := rpctest.Serve(w.path, rpc.Config{Service: w.svc})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.srv = srv
	return err
}

func (w *world) stop() {
	w.mu.Lock()
	srv := w.srv
	w.srv = nil
	w.mu.Unlock()
	if srv != nil {
		srv.Stop()
	}
}

func of(ts *testscript.TestScript) *world { return ts.Value("world").(*world) }

// daemonCmd: daemon stop|start
func daemonCmd(ts *testscript.TestScript, _ bool, args []string) {
	switch args[0] {
	case "stop":
		of(ts).stop()
	case "start":
		ts.Check(of(ts).start())
	default:
		ts.Fatalf("daemon %v", args)
	}
}

// agentCmd: agent SESSION stdout=TEXT|stderr=TEXT|pty=TEXT|gap=TEXT|code=N|signal=N|oom|unknown=WHY...
func agentCmd(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(of(ts).act(args[0], args[1:]))
}

// planCmd: plan ACTION...: what the agent of every session does once started.
func planCmd(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan = args
}

func (w *world) play(id string) {
	w.mu.Lock()
	plan := w.plan
	w.mu.Unlock()
	if err := w.act(id, plan); err != nil {
		panic(err)
	}
}

func (w *world) act(id string, actions []string) error {
	for _, action := range actions {
		what, arg, _ := strings.Cut(action, "=")
		n, _ := strconv.Atoi(arg)
		arg = strings.ReplaceAll(arg, `\n`, "\n")
		switch what {
		case "stdout", "stderr", "pty", "gap":
			w.svc.Output(id, what, arg)
		case "code":
			w.svc.Exit(id, rpc.Exit{Kind: "code", Code: n})
		case "signal":
			w.svc.Exit(id, rpc.Exit{Kind: "signal", Signal: n})
		case "oom":
			w.svc.Exit(id, rpc.Exit{Kind: "oom"})
		case "unknown":
			w.svc.Exit(id, rpc.Exit{Kind: "unknown", Unknown: arg})
		default:
			return fmt.Errorf("agent %q", action)
		}
	}
	return nil
}

// refuseCmd: refuse METHOD CODE MESSAGE [SECONDS]; refuse METHOD ends it.
func refuseCmd(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) == 1 {
		of(ts).svc.Fail(args[0], nil)
		return
	}
	e := rpc.Errorf(rpc.Code(args[1]), "%s", args[2])
	if len(args) > 3 {
		s, err := strconv.ParseFloat(args[3], 64)
		ts.Check(err)
		e.Retryable, e.RetryAfter = true, time.Duration(s*float64(time.Second))
	}
	of(ts).svc.Fail(args[0], e)
}

// sessionCmd: session SESSION FIELD=VALUE...: publishes a state that only
// faults lead to.
func sessionCmd(ts *testscript.TestScript, _ bool, args []string) {
	of(ts).svc.Set(args[0], func(s *rpc.Session) {
		for _, f := range args[1:] {
			name, value, _ := strings.Cut(f, "=")
			switch name {
			case "state":
				s.State = value
			case "problem":
				s.Problem = value
			case "adoption":
				s.Adoption = value
			case "stop":
				s.Stop = &rpc.StopState{Reason: value, Attempts: 5, LastError: "still populated", NextTryIn: 600}
			default:
				ts.Fatalf("session %v", args)
			}
		}
	})
}

// awaitCmd: await call METHOD [SESSION] | input SESSION TEXT | file NAME TEXT:
// waits for it.
func awaitCmd(ts *testscript.TestScript, _ bool, args []string) {
	svc := of(ts).svc
	deadline := time.Now().Add(bound)
	for {
		changed := svc.Changed()
		var ok bool
		switch args[0] {
		case "call":
			ok = slices.Contains(svc.Calls(), strings.Join(args[1:], " "))
		case "file":
			data, _ := os.ReadFile(ts.MkAbs(args[1]))
			ok = strings.Contains(string(data), args[2])
		case "input":
			ok = svc.Input(args[1]) == strings.ReplaceAll(args[2], `\n`, "\n")
		default:
			ts.Fatalf("await %v", args)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waited %v for %v; calls %q, input %q", bound, args, svc.Calls(), svc.Input(args[1]))
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond): // calls are no change
		}
	}
}

// hangupCmd: hangup: what is in the background loses its terminal.
func hangupCmd(ts *testscript.TestScript, _ bool, _ []string) {
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(syscall.SIGHUP))
	}
}

// calledCmd: [!] called METHOD [SESSION]
func calledCmd(ts *testscript.TestScript, neg bool, args []string) {
	calls := of(ts).svc.Calls()
	if slices.Contains(calls, strings.Join(args, " ")) == neg {
		ts.Fatalf("calls: %q", calls)
	}
}
