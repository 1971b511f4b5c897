package discover

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/daemon/internal/discover/discovertest"
)

//go:embed testdata/environs.c
var environsSource []byte

// The promise about the cost of a scan, as multiples of the plainest C program's and of procfs's time.
const (
	mostOverC       = 1.2
	leastUnderProcs = 2.5
)

// cost is what one pass took: by the clock, and of processor time, which neighbours disturb less. The
// garbage that a pass makes is part of its cost.
type cost struct{ wall, cpu time.Duration }

func measure(f func()) cost {
	runtime.GC() // of the pass before
	wall, cpu := time.Now(), cpuTime()
	f()
	return cost{time.Since(wall), cpuTime() - cpu}
}

func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func median(all []cost) cost {
	by := func(measure func(cost) time.Duration) time.Duration {
		slices.SortFunc(all, func(a, b cost) int { return cmp.Compare(measure(a), measure(b)) })
		return measure(all[len(all)/2])
	}
	return cost{by(func(c cost) time.Duration { return c.wall }), by(func(c cost) time.Duration { return c.cpu })}
}

// BenchmarkScan compares a scan with a C program that only opens and reads every environment and with
// prometheus/procfs: on what this machine runs, for what it is worth, and on 2,000 and 10,000 processes,
// which root has in a pid namespace of their own, so that nobody else's come and go among them. The three
// take turns within one run, so that a noisy neighbour hits all of them. The table holds medians,
// by the clock, which is what the promise is about, and of processor time: a scan uses two processors
// where there are two.
func BenchmarkScan(b *testing.B) {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "processes\tscan\tC\tprocfs\tscan/C\tprocfs/scan\tCPU: scan\tC\tprocfs\ta process\tscan/C\tprocfs/scan\t")
	for _, n := range []int{0, 2000, 10000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			root := "/proc"
			if n > 0 {
				root = many(b, n)
			}
			c := startEnvirons(b, root)
			s := newScanner(b, Options{Root: root})
			fs, err := procfs.NewFS(root)
			if err != nil {
				b.Fatal(err)
			}
			var scans, plain, procs []cost
			var res Result
			for len(scans) < 9 || b.Loop() {
				scans = append(scans, measure(func() { res = scan(b, s) }))
				plain = append(plain, c.pass(b))
				procs = append(procs, measure(func() { readWithProcfs(b, fs) }))
			}
			row(b, w, n, res.Scanned, median(scans), median(plain), median(procs))
		})
	}
	w.Flush()
	fmt.Printf("\n%s", table.String()) // b.Log is not shown when all is well
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// row prints one line of the table and holds it against the promise.
func row(b *testing.B, w io.Writer, n, scanned int, s, c, p cost) {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	overC, underProcs := ratio(s.wall, c.wall), ratio(p.wall, s.wall)
	fmt.Fprintf(w, "%d\t%v\t%v\t%v\t%.2f\t%.2f\t%v\t%v\t%v\t%v\t%.2f\t%.2f\t\n", scanned,
		round(s.wall), round(c.wall), round(p.wall), overC, underProcs,
		round(s.cpu), round(c.cpu), round(p.cpu), (s.cpu / time.Duration(scanned)).Round(10*time.Nanosecond), ratio(s.cpu, c.cpu), ratio(p.cpu, s.cpu))
	b.ReportMetric(float64(s.cpu.Nanoseconds())/float64(scanned), "cpu-ns/proc")
	b.ReportMetric(overC, "scan/C")
	b.ReportMetric(underProcs, "procfs/scan")
	if n > 0 && (overC > mostOverC || underProcs < leastUnderProcs) {
		b.Errorf("%.2f of C's time, at most %v was promised; %.2f times faster than procfs, at least %v was", overC, mostOverC, underProcs, leastUnderProcs)
	}
}

// readWithProcfs does with procfs what a scan does: all environments, looking for one variable.
func readWithProcfs(b *testing.B, fs procfs.FS) (found int) {
	all, err := fs.AllProcs()
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range all {
		env, err := p.Environ()
		if err != nil {
			continue
		}
		for _, e := range env {
			if strings.HasPrefix(e, EnvSession+"=") {
				found++
			}
		}
	}
	return found
}

// many starts n sleepers that carry an environment of an ordinary size, and returns the proc file system
// that shows them: their own when we are root, else everybody's.
func many(b *testing.B, n int) (root string) {
	b.Helper()
	var env []string
	for i := range 30 {
		env = append(env, fmt.Sprintf("VARIABLE_%d=/usr/local/share/some/where:%d", i, i))
	}
	role := discovertest.Role{Args: []string{"many", strconv.Itoa(n)}, Env: env}
	root = "/proc"
	if os.Geteuid() == 0 {
		root = b.TempDir()
		role.Args = append(role.Args, root)
		role.Attr = func(attr *syscall.SysProcAttr) { attr.Cloneflags = syscall.CLONE_NEWPID }
		b.Cleanup(func() {
			if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
				b.Errorf("unmounting %s: %v", root, err)
			}
		})
	}
	if a := discovertest.Start(b, role); a.N != n {
		b.Fatalf("%d of %d processes could be made", a.N, n)
	}
	return root
}

// environs is the C program, one pass on request.
type environs struct {
	in  io.Writer
	out *bufio.Reader
}

func startEnvirons(b *testing.B, root string) *environs {
	b.Helper()
	cmd := exec.Command(discovertest.Compile(b, "environs", environsSource), root)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	return &environs{in, bufio.NewReader(out)}
}

func (e *environs) pass(b *testing.B) cost {
	b.Helper()
	if _, err := io.WriteString(e.in, "\n"); err != nil {
		b.Fatal(err)
	}
	var c cost
	var count int64
	if _, err := fmt.Fscan(e.out, &c.wall, &c.cpu, &count); err != nil || count == 0 {
		b.Fatalf("the C program read %d environments: %v", count, err)
	}
	return c
}
