package journal_test

import (
	"bufio"
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
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedWriter+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		stopAt := 1 + r.IntN(60)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			word, number, _ := strings.Cut(lines.Text(), " ")
			id, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				t.Fatalf("round %d: the writer says %q", round, lines.Text())
			}
			switch word {
			case "ready":
				if id < acked {
					t.Fatalf("round %d: the writer found entries up to %d, %d was acknowledged", round, id, acked)
				}
			case "acked":
				total++
			}
			acked = max(acked, id)
			if n == stopAt { // what it does at this moment is up to chance
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		kill.Stop()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("round %d: the writer was not killed: %v", round, err)
		}
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
