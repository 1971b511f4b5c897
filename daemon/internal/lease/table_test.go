package lease

import "testing"

// TestTableIsTotal: every state has a named cell with a step for every event.
func TestTableIsTotal(t *testing.T) {
	t.Parallel()
	for _, k := range Kinds() {
		for _, e := range EventKinds() {
			c := table[k][e]
			if c.step == nil || c.name == "" {
				t.Errorf("%s × %s: nil cell", k, e)
			}
			seen := map[string]bool{}
			for _, g := range c.guards {
				if g.name == "" || g.check == nil || seen[g.name] {
					t.Errorf("%s × %s: guard %q is unnamed, nil or listed twice", k, e, g.name)
				}
				seen[g.name] = true
			}
		}
	}
}
