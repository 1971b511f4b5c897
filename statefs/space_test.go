package statefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newProber(t testing.TB, wait, maxAge time.Duration) *Prober {
	t.Helper()
	p := NewProber(wait, maxAge)
	t.Cleanup(p.Close)
	return p
}

func mustProbe(t testing.TB, p *Prober, path string) Space {
	t.Helper()
	before := boottime()
	s, err := p.Probe(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	if s.At < before || s.At > boottime() || s.Age < 0 || s.Age > boottime()-before {
		t.Errorf("%s: measured at %v, %v old; asked at %v", path, s.At, s.Age, before)
	}
	return s
}

// The numbers are statfs's own, also on a directory that is a mount point, by
// way of links, and of a file.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := newProber(t, time.Minute, time.Minute)
	dir := t.TempDir()
	inner := filepath.Join(dir, "a", "b")
	if err := errors.Join(os.MkdirAll(inner, 0o755), os.WriteFile(filepath.Join(inner, "f"), nil, 0o600),
		os.Symlink("a/../a/b/", filepath.Join(dir, "relative")), os.Symlink(filepath.Join(dir, "relative"), filepath.Join(dir, "absolute")),
		os.Symlink("loop", filepath.Join(dir, "loop")), os.Symlink("none", filepath.Join(dir, "dangling"))); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	var sf unix.Statfs_t
	if err := errors.Join(unix.Stat(dir, &st), unix.Statfs(dir, &sf)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "a", "a/b/f", "relative", "absolute", "absolute/f", "a/./b/../b//"} {
		s := mustProbe(t, p, dir+"/"+name)
		if s.TotalBytes != sf.Blocks*uint64(sf.Frsize) || s.TotalInodes != sf.Files || s.ReadOnly {
			t.Errorf("%q: %+v, want %+v", name, s, sf)
		}
		if s.Device != st.Dev {
			t.Logf("device %d, st_dev %d (as on btrfs)", s.Device, st.Dev)
		}
	}
	for name, want := range map[string]error{"none": fs.ErrNotExist, "dangling": fs.ErrNotExist, "loop": syscall.ELOOP, "a/b/f/x": syscall.ENOTDIR} {
		if _, err := p.Probe(context.Background(), dir+"/"+name); !errors.Is(err, want) || errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	for _, name := range []string{"", "a", "./a"} {
		if _, err := p.Probe(context.Background(), name); err == nil {
			t.Errorf("%q was measured", name)
		}
	}
}

// Every root is measured by itself, a bind of one is the same device, and what
// is mounted now counts. case T68
func TestProbeMounts(t *testing.T) {
	t.Parallel()
	p := newProber(t, time.Minute, time.Minute)
	a, b := mountTmpfs(t, "size=4m,nr_inodes=100"), mountTmpfs(t, "size=8m,nr_inodes=200")
	sa, sb := mustProbe(t, p, a), mustProbe(t, p, b)
	if sa.TotalBytes != 4<<20 || sa.TotalInodes != 100 || sb.TotalBytes != 8<<20 || sb.TotalInodes != 200 || sa.Device == sb.Device {
		t.Errorf("%+v, %+v", sa, sb)
	}
	fillDisk(t, b)
	if again := mustProbe(t, p, a); again.FreeBytes != sa.FreeBytes {
		t.Errorf("filling the other one changed it: %+v", again)
	}
	if full := mustProbe(t, p, b); full.FreeBytes != 0 {
		t.Errorf("full: %+v", full)
	}
	// Something else is mounted over a path that is known.
	sub := filepath.Join(a, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if s := mustProbe(t, p, sub); s.Device != sa.Device {
		t.Errorf("%+v", s)
	}
	mount(t, b, sub, "", unix.MS_BIND, "")
	if s := mustProbe(t, p, sub); s.Device != sb.Device || s.TotalBytes != 8<<20 {
		t.Errorf("mounted over: %+v", s)
	}
	mount(t, "berth-test", sub, "tmpfs", unix.MS_RDONLY, "size=2m")
	if s := mustProbe(t, p, sub); s.TotalBytes != 2<<20 || !s.ReadOnly {
		t.Errorf("mounted over twice: %+v", s)
	}
	unmount(t, sub)
	unmount(t, sub)
	if s := mustProbe(t, p, sub); s.Device != sa.Device {
		t.Errorf("unmounted: %+v", s)
	}
}

// Bytes are free, inodes are not; and a file system that has no such number.
// case T70
func TestProbeInodes(t *testing.T) {
	t.Parallel()
	p := newProber(t, time.Minute, time.Minute)
	dir := mountLoop(t, 16<<20, "rw", "mkfs.ext4", "-q", "-N", "64")
	before := mustProbe(t, p, dir)
	if before.TotalInodes != 64 || before.FreeInodes == 0 {
		t.Fatalf("%+v", before)
	}
	fillInodes(t, filepath.Join(dir, "many"))
	if s := mustProbe(t, p, dir); s.FreeInodes != 0 || s.FreeBytes < 1<<20 {
		t.Errorf("%+v", s)
	}
	if s := mustProbe(t, p, "/proc"); s.TotalInodes != 0 {
		t.Errorf("/proc: %+v", s)
	}
}

// A project quota shows in the numbers of the directory that has it. case T72
func TestProbeQuota(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if _, err := exec.LookPath("xfs_quota"); err != nil {
		t.Skip("needs xfs_quota")
	}
	dir := mountLoop(t, 320<<20, "prjquota", "mkfs.xfs", "-q")
	ws := filepath.Join(dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	p := newProber(t, time.Minute, time.Minute)
	free := mustProbe(t, p, ws)
	run(t, "xfs_quota", "-x", "-D", "/dev/null", "-P", "/dev/null", "-c", "project -s -p "+ws+" 42", dir)
	run(t, "xfs_quota", "-x", "-D", "/dev/null", "-P", "/dev/null", "-c", "limit -p bhard=8m ihard=50 42", dir)
	s := mustProbe(t, p, ws)
	if s.TotalBytes != 8<<20 || s.TotalInodes != 50 || s.Device != free.Device {
		t.Errorf("with a quota %+v, without %+v", s, free)
	}
	if s := mustProbe(t, p, dir); s.TotalBytes != free.TotalBytes {
		t.Errorf("beside it: %+v", s)
	}
}

// mountDead mounts a FUSE file system whose server never answers: whatever
// touches it waits, until wake ends the connection.
func mountDead(t *testing.T) (dir string, wake func()) {
	t.Helper()
	needRoot(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	awake := sync.OnceFunc(func() { unix.Close(fd) })
	dir = t.TempDir()
	mount(t, "berth-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	t.Cleanup(awake) // before unmount
	return dir, awake
}

// threadsInFuse counts this process's threads that wait for a FUSE server.
func threadsInFuse(t *testing.T) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/wchan")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, task := range tasks {
		if b, err := os.ReadFile(task); err == nil && (strings.Contains(string(b), "fuse") || strings.Contains(string(b), "request_wait")) {
			n++
		}
	}
	return n
}

// A file system that hangs keeps one thread and nobody who asks for another
// one; its own readings grow old and then end.
func TestProbeHung(t *testing.T) { // not parallel: counts threads
	const wait, maxAge = time.Second, 3 * time.Second
	p := newProber(t, wait, maxAge)
	outside, dir := t.TempDir(), ""
	good := filepath.Join(outside, "good")
	link := filepath.Join(outside, "link")
	if err := os.Mkdir(good, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Probe(context.Background(), good); err != nil {
		t.Fatal(err)
	}
	dir, wake := mountDead(t)
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if d := probeUnknown(t, p, dir, link); d > 20*wait {
		t.Errorf("80 calls took %v", d)
	}
	if n := threadsInFuse(t); n != 1 {
		t.Errorf("%d threads are in the kernel", n)
	}
	// Who asks again is not kept waiting again; others never are.
	for _, path := range []string{good, outside, "/", "/proc"} {
		mustProbe(t, p, path)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Probe(ctx, filepath.Join(dir, "other")); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrUnknown) {
		t.Errorf("cancelled: %v", err)
	}
	wake()
	waitFor(t, func() bool { // ENOTCONN, or what was tried after it
		_, err := p.Probe(context.Background(), dir)
		return err != nil && !errors.Is(err, ErrUnknown)
	})
	unmount(t, dir)
	waitFor(t, func() bool {
		_, err := p.Probe(context.Background(), dir)
		return err == nil
	})
}

// probeUnknown asks 80 times at once for what is on dir, to which link leads.
func probeUnknown(t *testing.T, p *Prober, dir, link string) time.Duration {
	t.Helper()
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 20 {
		for _, path := range []string{dir, link, filepath.Join(dir, fmt.Sprint(i)), link + "/x/y"} {
			wg.Go(func() {
				if _, err := p.Probe(context.Background(), path); !errors.Is(err, ErrUnknown) {
					t.Errorf("%s: %v", path, err)
				}
			})
		}
	}
	wg.Wait()
	return time.Since(began)
}

// A reading is given out with its age as long as that is small enough.
func TestProbeAge(t *testing.T) {
	t.Parallel()
	const wait, maxAge = 50 * time.Millisecond, 2 * time.Second
	p := newProber(t, wait, maxAge)
	dir := t.TempDir()
	first := mustProbe(t, p, dir)
	// Another worker is on the device and does not come back.
	release, held := make(chan struct{}), make(chan struct{})
	go func() { // ended by release
		_ = p.onDevice(first.Device, func() error { close(held); <-release; return nil })
	}()
	<-held
	var aged bool
	waitFor(t, func() bool {
		s, err := p.Probe(context.Background(), dir)
		if err == nil && s.At == first.At && s.Age >= wait && s.Age <= maxAge+time.Second {
			aged = true
		}
		return errors.Is(err, ErrUnknown)
	})
	if !aged {
		t.Error("the old reading was never given out")
	}
	close(release)
	waitFor(t, func() bool {
		s, err := p.Probe(context.Background(), dir)
		return err == nil && s.At > first.At
	})
}

// Callers share workers, and no reading is older than its call. case T67
func TestProbeShared(t *testing.T) {
	t.Parallel()
	p := newProber(t, time.Minute, time.Minute)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				mustProbe(t, p, dir)
			}
		})
	}
	wg.Wait()
}

func TestProbeClosed(t *testing.T) {
	t.Parallel()
	p := NewProber(time.Second, time.Second)
	mustProbe(t, p, "/")
	p.Close()
	p.Close()
	if _, err := p.Probe(context.Background(), "/"); err == nil {
		t.Error("measured after Close")
	}
}

// What is remembered of paths does not grow for ever.
func TestProbeForgets(t *testing.T) {
	t.Parallel()
	p := newProber(t, time.Minute, 0)
	dir := t.TempDir()
	for i := range 3 * maxIdlePaths {
		_, _ = p.Probe(context.Background(), filepath.Join(dir, fmt.Sprint(i)))
	}
	if len(p.paths) > maxIdlePaths+1 {
		t.Errorf("%d paths are remembered", len(p.paths))
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	var s Space
	s.fill(&unix.Statfs_t{Bavail: 1 << 60, Blocks: 10, Frsize: 4096, Bsize: 1 << 20, Ffree: math.MaxUint64, Files: 5})
	if s.FreeBytes != math.MaxUint64 || s.TotalBytes != 40960 || s.FreeInodes != 0 || s.TotalInodes != 5 {
		t.Errorf("%+v", s)
	}
	s.fill(&unix.Statfs_t{Bavail: math.MaxUint64, Blocks: 10, Bsize: 512})
	if s.FreeBytes != 0 || s.TotalBytes != 5120 {
		t.Errorf("%+v", s)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come true within a minute")
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	p := newProber(b, time.Second, time.Second)
	dir := b.TempDir()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Probe(context.Background(), dir); err != nil {
			b.Fatal(err)
		}
	}
}
