package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// The text form by hand is what its own parser reads, whatever is in it.
func TestPage(t *testing.T) {
	t.Parallel()
	p := &page{}
	p.gauge("odd", "A help with \\ and\na second line.")
	p.add(1.5, "label", "a \"quoted\" \\ word\nand more", "other", "")
	p.counter("none_total", "A family without a value, which is not shown.")
	p.histogram("long_seconds", "Classes that include each other.")
	p.classes([]time.Duration{time.Millisecond, time.Second}, []uint64{2, 0, 1}, 3*time.Second)
	want := `# HELP odd A help with \\ and\na second line.
# TYPE odd gauge
odd{label="a \"quoted\" \\ word\nand more",other=""} 1.5
# HELP long_seconds Classes that include each other.
# TYPE long_seconds histogram
long_seconds_bucket{le="0.001"} 2
long_seconds_bucket{le="1"} 2
long_seconds_bucket{le="+Inf"} 3
long_seconds_sum 3
long_seconds_count 3
`
	if got := string(p.text); got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
	if problems, err := promlint.New(strings.NewReader(string(p.text))).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
