package wrap

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/plugins/sandbox"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/spool"
)

// The test binary is also the real wrapper, under its own name.
func TestMain(m *testing.M) {
	if os.Args[0] == StageName {
		os.Exit(Stage())
	}
	if filepath.Base(os.Args[0]) == "berth-wrap" {
		os.Exit(Run(3))
	}
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	if left := markedPIDs("BERTH_HOST=" + testHost); len(left) > 0 {
		os.Stderr.WriteString("processes left behind: " + strings.Join(left, " ") + "\n")
		code = 1
	}
	if fds := openFDs(); code == 0 && fds > 40 {
		os.Stderr.WriteString("descriptors left open: " + strconv.Itoa(fds) + "\n")
		code = 1
	}
	if n := runtime.NumGoroutine(); code == 0 && n > 10 {
		buf := make([]byte, 1<<20)
		os.Stderr.Write(buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// testHost marks everything that this run of the tests starts.
var testHost = randomHex()

// patience bounds waiting for something that is about to happen.
const patience = time.Minute

func randomHex() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// markedPIDs lists the live processes whose environment holds marker.
func markedPIDs(marker string) []string {
	var pids []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+marker+"\x00")) {
			pids = append(pids, filepath.Base(d))
		}
	}
	return pids
}

// session is one wrapper process.
type session struct {
	t      *testing.T
	daemon *fakeDaemon
	launch wire.Launch
	recipe sandbox.Recipe
	cmd    *exec.Cmd
	done   chan struct{} // closed when it was waited for
	ready  *os.File      // write end of descriptor 3
	binary string        // another wrapper than this test binary
	env    []string
	prefix []string // a command that executes the wrapper
	leak   int      // descriptors without close-on-exec that it is given
}

// newSession prepares a session that runs argv; change it before start.
func newSession(t *testing.T, argv ...string) *session {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "g1"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t}
	s.recipe = sandbox.Recipe{
		Version: sandbox.Version, Argv: argv, Dir: "/",
		Env: []string{"PATH=" + os.Getenv("PATH")},
	}
	s.launch = wire.Launch{
		Version: 1, Host: testHost, Session: "s1", Instance: randomHex(), Generation: 1,
		Token: "secret-" + randomHex(), Dir: filepath.Join(dir, "g1"), Socket: filepath.Join(dir, "w.sock"),
		DrainTimeout: 500 * time.Millisecond, HeartbeatEvery: 50 * time.Millisecond,
	}
	return s
}

// withDaemon makes the daemon listen.
func (s *session) withDaemon() *session {
	s.t.Helper()
	s.daemon = newDaemon(s.t, s.launch.Socket)
	return s
}

// park starts the wrapper without its Launch object.
func (s *session) park() *session {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	if s.binary != "" {
		self = s.binary
	}
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(s.launch.Dir, "wrap.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = &exec.Cmd{
		Path: self, Args: []string{"berth-wrap"}, Dir: s.launch.Dir, Stdout: log, Stderr: log,
		Env: append([]string{
			"BERTH_HOST=" + testHost, "BERTH_SESSION=s1", "BERTH_INSTANCE=" + s.launch.Instance, "BERTH_GENERATION=1",
			"GORACE=atexit_sleep_ms=0",
		}, s.env...),
		ExtraFiles:  []*os.File{r},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	for range s.leak {
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, log)
	}
	if s.prefix != nil {
		// bash can name argv[0]; what is between must execute in place.
		args := append(append([]string{}, s.prefix...), "bash", "-c", `exec -a berth-wrap "$0"`, self)
		path, err := exec.LookPath(args[0])
		if err != nil {
			s.t.Skip("needs " + args[0])
		}
		s.cmd.Path, s.cmd.Args = path, args
		s.cmd.Env = append(s.cmd.Env, "PATH="+os.Getenv("PATH"))
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	r.Close()
	log.Close()
	s.ready = w
	s.done = make(chan struct{})
	go func() {
		s.cmd.Wait() // the state is in cmd.ProcessState
		close(s.done)
	}()
	s.t.Cleanup(s.cleanup)
	return s
}

// start starts the wrapper and gives it the go.
func (s *session) start() *session {
	s.t.Helper()
	return s.park().goOn()
}

// goOn sends the Launch object.
func (s *session) goOn() *session {
	s.t.Helper()
	s.launch.Recipe, _ = json.Marshal(s.recipe)
	if err := wire.WriteLaunch(s.ready, &s.launch); err != nil {
		s.t.Fatal(err)
	}
	s.ready.Close()
	return s
}

// cleanup ends what is left, by pidfd, and shows the log of a failed test.
func (s *session) cleanup() {
	s.ready.Close()
	s.cmd.Process.Kill() // an ended one is fine
	<-s.done
	end := time.Now().Add(patience)
	for {
		left := markedPIDs("BERTH_INSTANCE=" + s.launch.Instance)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			s.t.Errorf("processes left: %v", left)
			break
		}
		for _, p := range left {
			killMarked(p, "BERTH_INSTANCE="+s.launch.Instance)
		}
		time.Sleep(time.Millisecond)
	}
	if s.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(s.launch.Dir, "wrap.log"))
		s.t.Logf("wrap.log:\n%s", log)
	}
}

// killMarked opens the process first and looks at it then.
func killMarked(text, marker string) {
	pid, _ := strconv.Atoi(text)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	env, err := os.ReadFile("/proc/" + text + "/environ")
	if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+marker+"\x00")) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// wait returns the wrapper's exit code, or fails the test.
func (s *session) wait() int {
	s.t.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		s.t.Fatal("the wrapper does not end")
		return 0
	}
}

// exit reads exit.json.
func (s *session) exit() wire.ExitFile {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.launch.Dir, wire.ExitName))
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := wire.ParseExitFile(data)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// records reads the whole spool.
func (s *session) records() []spool.Record {
	s.t.Helper()
	r, err := spool.Open(filepath.Join(s.launch.Dir, wire.SpoolName))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	var all []spool.Record
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, rec)
	}
}

// output returns the bytes of one stream.
func (s *session) output(stream spool.Stream) string {
	s.t.Helper()
	var b strings.Builder
	for _, rec := range s.records() {
		if rec.Stream == stream {
			b.Write(rec.Data)
		}
	}
	return b.String()
}

// eventually polls until ok, with a deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// statusFile reads status.json; the zero value until it is there.
func (s *session) statusFile() wire.StatusFile {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.launch.Dir, wire.StatusName))
	if err != nil {
		return wire.StatusFile{}
	}
	f, err := wire.ParseStatusFile(data)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
