package lease

import (
	"errors"
	"testing"
)

// TestNames: names are unique and parse back; strangers are told apart.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	name := func(n string) {
		if n == "" || seen[n] {
			t.Errorf("name %q is empty or used twice", n)
		}
		seen[n] = true
	}
	for _, k := range Kinds() {
		name(k.String())
		if got, err := ParseKind(k.String()); got != k || err != nil {
			t.Errorf("%s parses to %s, %v", k, got, err)
		}
		if k.Owned() && k.Cleaning() || (State{Kind: k}).Vacant() == (k.Owned() || k.Cleaning()) {
			t.Errorf("%s is owned %v, cleaning %v", k, k.Owned(), k.Cleaning())
		}
	}
	for _, r := range Reasons() {
		name(r.String())
		if got, err := ParseReason(r.String()); got != r || err != nil {
			t.Errorf("%s parses to %s, %v", r, got, err)
		}
	}
	for _, k := range EventKinds() {
		name(k.String())
	}
	clear(seen)
	for k := Launch; k < effectEnd; k++ {
		name(k.String())
	}
	for o := Changed; o < outcomeEnd; o++ {
		name(o.String())
	}
	for c := CauseGone; c < causeEnd; c++ {
		name(c.String())
	}
	for _, odd := range []string{
		Kind(0).String(), kindEnd.String(), reasonEnd.String(), EventKind(0).String(), eventEnd.String(),
		EffectKind(0).String(), effectEnd.String(), Outcome(0).String(), outcomeEnd.String(), causeEnd.String(),
	} {
		name(odd)
	}
	for _, s := range []string{"", "none", "kind(0)", "Vacant", "reason(17)"} {
		if k, err := ParseKind(s); k != 0 || !errors.Is(err, ErrUnknownName) {
			t.Errorf("kind %q: %s %v", s, k, err)
		}
		if r, err := ParseReason(s); r != 0 || !errors.Is(err, ErrUnknownName) {
			t.Errorf("reason %q: %s %v", s, r, err)
		}
	}
	if Reason(0).String() != "none" || Cause(0).String() != "none" || (Reason(99).Emission() != Emission{}) {
		t.Error("the zero names")
	}
	if (Instance{}).String() != "none" || (Target{}).String() != "session" || (Target{Instance{"a", 2}}).String() != "a/g2" {
		t.Error("the names of instances and targets")
	}
}
