package man

import (
	"regexp"
	"testing"
)

// berth-metrics.7 has every metric and no other.
func TestMetrics(t *testing.T) {
	t.Parallel()
	var real []string
	walk(t, "daemon/internal/metrics", func(source string) {
		for _, m := range regexp.MustCompile(`\.(?:counter|gauge|histogram)\("(\w+)", "`).FindAllStringSubmatch(source, -1) {
			real = append(real, m[1])
		}
	})
	same(t, "metrics", items(page(t, "berth-metrics.7"), "Li", "METRICS"), real)
}
