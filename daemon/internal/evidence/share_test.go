package evidence

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/daemon/internal/sys"
)

// Many who ask at once share scans, and nobody gets one that began before it asked.
func TestScansAreShared(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	var mu sync.Mutex
	scans := map[time.Duration]int{}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			asked := sys.Now()
			res, err := h.share.scan(t.Context(), h.scanner)
			if err != nil {
				t.Error(err)
				return
			}
			if res.At < asked {
				t.Errorf("got a scan of %v, asked at %v", res.At, asked)
			}
			mu.Lock()
			scans[res.At]++
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Logf("64 questions, %d scans", len(scans))
	if len(scans) > 32 {
		t.Errorf("%d scans", len(scans))
	}
}

// When the one who should scan gives up, the others do not.
func TestScanOfOneWhoGaveUp(t *testing.T) {
	t.Parallel()
	h := newBareHost(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				cancel()
			}
			_, err := h.share.scan(ctx, h.scanner)
			if err != nil && i%2 == 1 { // who gives up may find the answer there all the same
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if h.share.running != nil || h.share.next != nil {
		t.Error("a batch is left")
	}
}
