package man

import (
	"slices"
	"testing"

	"github.com/berthd/berth/systemd/journald/catalog"
	"github.com/berthd/berth/systemd/journald/native"
)

// berth-journald.7 has every field and every message with its id, and no other.
func TestJournald(t *testing.T) {
	t.Parallel()
	lines := page(t, "berth-journald.7")
	same(t, "fields", items(lines, "Li", "JOURNAL FIELDS"), native.Fields())
	var documented, real []string
	for _, l := range lines {
		if l.macro == "It" && l.sh == "MESSAGES" {
			if !slices.Equal(append(l.args[:1:1], l.args[2:5]...), []string{"Li", "No", "=", "Li"}) || len(l.args) != 6 {
				t.Errorf("berth-journald.7: %q is not \".It Li EVENT No = Li ID\"", l.text)
				continue
			}
			documented = append(documented, l.args[1]+" "+l.args[5])
		}
	}
	for _, m := range catalog.Messages() {
		real = append(real, m.Event+" "+m.ID)
	}
	same(t, "messages", documented, real)
}
