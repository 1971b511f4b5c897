package journal_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/statefs/journal"
)

// killedWriter, set in the environment, makes the test binary the writer of TestKillWriter in that directory.
const killedWriter = "BERTH_TEST_JOURNAL_WRITER"

// writeUntilKilled goes on where the journal ends, and prints the id of every acknowledged entry.
func writeUntilKilled(dir string) error {
	var got replayed
	j, rec, err := journal.Open(dir, journal.Options{SegmentBytes: small}, got.take)
	if err != nil {
		return err
	}
	if rec.Ambiguous || len(rec.Damages)+len(rec.Covered) > 0 {
		return fmt.Errorf("a kill is called damage: %+v", rec)
	}
	w := world{live: orEmpty(got.state), seq: rec.LastSeq}
	for _, id := range w.live {
		w.next = max(w.next, id)
	}
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	fmt.Println("ready", w.next)
	for {
		if err := w.append(j, journal.Ordinary, 1+r.IntN(4)); err != nil {
			return err
		}
		fmt.Println("acked", w.acked)
		if j.NeedsSnapshot() || r.IntN(20) == 0 {
			if err := w.snapshot(j); err != nil {
				return err
			}
		}
	}
}

// TestKillWriter kills a real writer process again and again.
func TestKillWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	acked, total := uint64(0), 0
	for round := range effort(12) {
		last, n, err := runAndKill(dir, 1+r.IntN(60), acked)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		acked, total = last, total+n
	}
	var got replayed
	rec, err := journal.Read(dir, got.take)
	if err != nil || rec.Ambiguous || len(rec.Damages) > 0 || got.fake != nil {
		t.Fatalf("%+v, %v, %v", rec, err, got.fake)
	}
	last := uint64(0)
	for _, id := range got.state {
		last = max(last, id)
	}
	if last < acked {
		t.Errorf("entries up to %d were acknowledged, up to %d are there", acked, last)
	}
	t.Logf("%d appends were acknowledged", total)
}

// runAndKill starts a writer and kills it when it has said stopAt lines; what it does at that moment is up to chance. It
// returns the id of the last acknowledged entry and how many acknowledgements came.
func runAndKill(dir string, stopAt int, acked uint64) (last uint64, n int, err error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedWriter+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, 0, err
	}
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	last = acked
	lines := bufio.NewScanner(out)
	for said := 0; lines.Scan(); said++ {
		word, number, _ := strings.Cut(lines.Text(), " ")
		id, parseErr := strconv.ParseUint(number, 10, 64)
		switch {
		case parseErr != nil:
			err = fmt.Errorf("the writer says %q", lines.Text())
		case word == "ready" && id < acked:
			err = fmt.Errorf("the writer found entries up to %d, %d was acknowledged", id, acked)
		case word == "acked":
			n++
		}
		last = max(last, id)
		if said == stopAt {
			err = errors.Join(err, cmd.Process.Kill())
		}
	}
	if waitErr := cmd.Wait(); waitErr == nil || cmd.ProcessState.Exited() {
		err = errors.Join(err, fmt.Errorf("the writer was not killed: %v", waitErr))
	}
	return last, n, err
}
