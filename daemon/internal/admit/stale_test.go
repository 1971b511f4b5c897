package admit

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// old is a workspace without anything against reclaiming it.
func old() Facts {
	return Facts{
		Vacant: Yes, Alive: No, Pinned: No, Released: Yes, ReleasedFor: 20 * time.Minute, Remakeable: Yes,
		Git: Yes, Unpushed: No, Uncommitted: No, Stashed: No, Untracked: No, Ignored: No,
	}
}

// TestStale: any fact that speaks against it, or is not known, keeps the
// workspace, unless the policy gives it up.
func TestStale(t *testing.T) {
	t.Parallel()
	var (
		careful = DefaultPolicy()
		discard = Policy{MinAge: careful.MinAge, Discard: true}
		ignored = Policy{MinAge: careful.MinAge, DiscardIgnored: true}
		noGit   = Policy{MinAge: careful.MinAge, DiscardWithoutGit: true}
	)
	if stale, why := Stale(old(), careful); !stale || why != nil {
		t.Fatalf("nothing against it: %v %v", stale, why)
	}
	for name, c := range map[string]struct {
		fact    func(*Facts) *Fact
		against Fact
		gives   []Policy // the policies that give it up
	}{
		"vacant":      {func(f *Facts) *Fact { return &f.Vacant }, No, nil},
		"alive":       {func(f *Facts) *Fact { return &f.Alive }, Yes, nil},
		"pinned":      {func(f *Facts) *Fact { return &f.Pinned }, Yes, nil},
		"released":    {func(f *Facts) *Fact { return &f.Released }, No, nil},
		"remakeable":  {func(f *Facts) *Fact { return &f.Remakeable }, No, []Policy{discard}},
		"git":         {func(f *Facts) *Fact { return &f.Git }, No, []Policy{discard, noGit}},
		"unpushed":    {func(f *Facts) *Fact { return &f.Unpushed }, Yes, []Policy{discard}},
		"uncommitted": {func(f *Facts) *Fact { return &f.Uncommitted }, Yes, []Policy{discard}},
		"stashed":     {func(f *Facts) *Fact { return &f.Stashed }, Yes, []Policy{discard}},
		"untracked":   {func(f *Facts) *Fact { return &f.Untracked }, Yes, []Policy{discard}},
		"ignored":     {func(f *Facts) *Fact { return &f.Ignored }, Yes, []Policy{discard, ignored}},
	} {
		for _, value := range []Fact{c.against, Unknown, 9} {
			for _, p := range []Policy{careful, discard, ignored, noGit} {
				f := old()
				*c.fact(&f) = value
				gives := slices.Contains(c.gives, p)
				if name == "git" && p == noGit {
					gives = value == No // a tree that nobody could look into is not one without git
				}
				stale, why := Stale(f, p)
				if stale != gives || (len(why) == 0) != gives {
					t.Errorf("%s %s under %+v: %v %v", name, value, p, stale, why)
				}
				if !stale && (value != c.against) != strings.HasPrefix(why[0], "not known: ") {
					t.Errorf("%s %s: %v", name, value, why)
				}
			}
		}
	}
}

func TestStaleAge(t *testing.T) {
	t.Parallel()
	for _, p := range []Policy{DefaultPolicy(), {MinAge: 20 * time.Minute, Discard: true}} {
		f := old()
		for age, want := range map[time.Duration]bool{-time.Hour: false, 0: false, 20*time.Minute - 1: false, 20 * time.Minute: true} {
			f.ReleasedFor = age
			if stale, _ := Stale(f, p); stale != want {
				t.Errorf("released %s ago: %v", age, stale)
			}
		}
	}
}

// TestStaleTellsAll: every reason is told, not only the first.
func TestStaleTellsAll(t *testing.T) {
	t.Parallel()
	stale, why := Stale(Facts{}, DefaultPolicy())
	if stale || len(why) != 6 {
		t.Errorf("nothing known: %v %q", stale, why)
	}
	f := Facts{Git: Yes}
	if stale, why := Stale(f, DefaultPolicy()); stale || len(why) != 10 {
		t.Errorf("only git known: %v %q", stale, why)
	}
	if Yes.String() != "yes" || No.String() != "no" || Unknown.String() != "unknown" || Fact(9).String() != "fact(9)" {
		t.Error("the names of facts")
	}
}

func TestOldest(t *testing.T) {
	t.Parallel()
	all := []Candidate{{"b", 5}, {"c", 7}, {"a", 7}, {"d", 1}, {"0", 7}, {"1", 6}}
	if got := Oldest(all); got != 4 {
		t.Errorf("oldest is %d", got)
	}
	if got := Oldest(nil); got != -1 {
		t.Errorf("oldest of none is %d", got)
	}
}
