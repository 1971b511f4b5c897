package discover

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
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

func medians(all []cost) cost {
	by := func(of func(cost) time.Duration) time.Duration {
		slices.SortFunc(all, func(a, b cost) int { return cmp.Compare(of(a), of(b)) })
		return of(all[len(all)/2])
	}
	return cost{by(func(c cost) time.Duration { return c.wall }), by(func(c cost) time.Duration { return c.cpu })}
}

// BenchmarkScan compares a scan with a C program that only opens and reads every environment and with
// prometheus/procfs, on this machine plus 2,000 and 10,000 processes. The three take turns within one
// run, so that a noisy neighbour hits all of them; the table holds medians.
func BenchmarkScan(b *testing.B) {
	c := startEnvirons(b)
	s := newScanner(b, Options{})
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		b.Fatal(err)
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "extra\tscan\tC\tprocfs\tscan/C\tprocfs/scan\tCPU: scan\tC\tprocfs\ta process\tscan/C\tprocfs/scan\t")
	for _, n := range []int{0, 2000, 10000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			if n > 0 {
				many(b, n)
			}
			var scans, plain, procs []cost
			var res Result
			for len(scans) < 9 || b.Loop() {
				scans = append(scans, measure(func() { res = scan(b, s) }))
				plain = append(plain, c.pass(b))
				if len(procs) < 15 {
					procs = append(procs, measure(func() { readWithProcfs(b, fs) }))
				}
			}
			row(b, w, n, res.Scanned, medians(scans), medians(plain), medians(procs))
		})
	}
	w.Flush()
	b.Log("\n" + table.String())
}

// row prints one line of the table and holds it against the promise, by processor time.
func row(b *testing.B, w io.Writer, n, scanned int, ours, plain, other cost) {
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	overC, underProcs := ratio(ours.cpu, plain.cpu), ratio(other.cpu, ours.cpu)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	fmt.Fprintf(w, "%d\t%v\t%v\t%v\t%.2f\t%.2f\t%v\t%v\t%v\t%v\t%.2f\t%.2f\t\n", n,
		round(ours.wall), round(plain.wall), round(other.wall), ratio(ours.wall, plain.wall), ratio(other.wall, ours.wall),
		round(ours.cpu), round(plain.cpu), round(other.cpu), (ours.cpu / time.Duration(scanned)).Round(10*time.Nanosecond), overC, underProcs)
	b.ReportMetric(float64(ours.cpu.Nanoseconds())/float64(scanned), "ns/proc")
	b.ReportMetric(overC, "scan/C")
	b.ReportMetric(underProcs, "procfs/scan")
	if n > 0 && (overC > mostOverC || underProcs < leastUnderProcs) {
		b.Errorf("%.2f of C's time, at most %v was promised; %.2f times faster than procfs, at least %v was", overC, mostOverC, underProcs, leastUnderProcs)
	}
}

// readWithProcfs does with procfs what a scan does: all environments, looking for one variable.
func readWithProcfs(b *testing.B, fs procfs.FS) {
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
				b.Logf("process %d has a marker", p.PID)
			}
		}
	}
}

// many starts n sleepers that carry an environment of an ordinary size.
func many(b *testing.B, n int) {
	b.Helper()
	var env []string
	for i := range 30 {
		env = append(env, fmt.Sprintf("VARIABLE_%d=/usr/local/share/some/where:%d", i, i))
	}
	a := discovertest.Start(b, discovertest.Role{Args: []string{"many", strconv.Itoa(n)}, Env: env})
	if a.N != n {
		b.Fatalf("%d of %d processes could be made", a.N, n)
	}
}

// environs is the C program, one pass on request.
type environs struct {
	in  io.Writer
	out *bufio.Reader
}

func startEnvirons(b *testing.B) *environs {
	b.Helper()
	cmd := exec.Command(discovertest.Compile(b, "environs", environsSource))
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
