package evidence

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files anew")

// combination is one row of the rule: what the subject is and what each witness says. "-" was not asked.
type combination struct {
	weak, escapable, known, remote        bool
	leaf, lock, pidfd, markers, link, prv string
}

func (c combination) subject() Subject {
	s := Subject{HostID: "h", Session: "s", Instance: "i", Generation: 1, Weak: c.weak, Escapable: c.escapable, Remote: c.remote, LockPath: "/lock"}
	if !c.weak {
		s.LeafName, s.LeafParentInode = "leaf", 1
	}
	if c.known {
		s.Wrapper.PID = 42
	}
	return s
}

func (c combination) witnesses() []Witness {
	var all []Witness
	for name, says := range map[string]string{Leaf: c.leaf, Lock: c.lock, Pidfd: c.pidfd, Markers: c.markers, Link: c.link, Provider: c.prv} {
		w := Witness{Name: name, At: 1}
		switch says {
		case "-":
			continue
		case "stranger":
			w.Answer, w.Stranger = Present, true
		default:
			if err := w.Answer.UnmarshalText([]byte(says)); err != nil {
				panic(err)
			}
		}
		all = append(all, w)
	}
	return all
}

func (c combination) String() string {
	flag := func(on bool, yes, no string) string {
		if on {
			return yes
		}
		return no
	}
	return fmt.Sprintf("%-6s %-9s %-7s %-6s leaf=%-8s lock=%-8s pidfd=%-8s markers=%-8s link=%-8s provider=%-8s",
		flag(c.weak, "weak", "fenced"), flag(c.escapable, "escapable", "held"), flag(c.known, "known", "unknown"), flag(c.remote, "remote", "local"),
		c.leaf, c.lock, c.pidfd, c.markers, c.link, c.prv)
}

// everyCombination visits all rows. A weak subject has no leaf to ask, an unknown wrapper no pidfd.
func everyCombination(visit func(combination)) {
	answers := []string{"-", "unknown", "absent", "present"}
	locks := append([]string{"stranger"}, answers...)
	bools := []bool{false, true}
	for _, weak := range bools {
		for _, escapable := range bools {
			for _, known := range bools {
				for _, leaf := range answers {
					for _, lock := range locks {
						for _, pidfd := range answers {
							for _, markers := range answers {
								if weak && leaf != "-" || !known && pidfd != "-" {
									continue
								}
								c := combination{weak: weak, escapable: escapable, known: known, leaf: leaf, lock: lock, pidfd: pidfd, markers: markers, link: "-", prv: "-"}
								visit(c)
								c.link = "present"
								visit(c)
								for _, prv := range answers {
									c.link, c.prv, c.remote = "-", prv, true
									visit(c)
								}
							}
						}
					}
				}
			}
		}
	}
}

// The text of the specification, as a formula of its own: what absence needs, each able to answer.
func specAbsent(c combination) bool {
	leafGone := c.leaf == "absent"
	noLock := c.lock == "absent" || c.lock == "stranger" && (c.weak || leafGone)
	noHit := c.markers == "absent"
	if !c.weak && !c.escapable {
		noHit = c.markers != "present" // was not asked, or could not be: the fence needs no finder
	}
	wrapperGone := !c.known || c.pidfd == "absent"
	return (c.weak || leafGone) && noLock && noHit && wrapperGone &&
		(!c.remote || c.prv == "absent") && !(c.weak && c.link == "present")
}

func specPresent(c combination) bool {
	return c.pidfd == "present" && c.lock == "present" && (c.weak || c.leaf == "present")
}

func TestJudgeEveryCombination(t *testing.T) {
	t.Parallel()
	rows := map[Answer]int{}
	everyCombination(func(c combination) {
		got := Judge(c.subject(), c.witnesses())
		rows[got.Verdict]++
		want := Unknown
		switch {
		case specPresent(c):
			want = Present
		case specAbsent(c):
			want = Absent
		}
		if got.Verdict != want {
			t.Errorf("%v: %v, want %v (%s)", c, got.Verdict, want, got.Reason)
		}
		if specPresent(c) && specAbsent(c) {
			t.Errorf("%v: absent and present", c)
		}
		if got.Verdict == Absent && got.Alive || got.Verdict == Present && !got.Alive {
			t.Errorf("%v: verdict %v, alive %v", c, got.Verdict, got.Alive)
		}
		if (got.Strength == Weak) != c.weak {
			t.Errorf("%v: %s", c, got.Strength)
		}
		if got.Verdict == Unknown && got.Reason == "" {
			t.Errorf("%v: unknown without a reason", c)
		}
		// Nothing turns into absence by being asked less, or by failing to answer.
		for _, worse := range lessKnown(c) {
			if j := Judge(worse.subject(), worse.witnesses()); got.Verdict != Absent && j.Verdict == Absent && worse.markers == c.markers {
				t.Errorf("%v is absent although %v is %v", worse, c, got.Verdict)
			}
		}
	})
	t.Logf("%d absent, %d present, %d unknown", rows[Absent], rows[Present], rows[Unknown])
}

// lessKnown are the rows in which one more witness fails to answer.
func lessKnown(c combination) []combination {
	var all []combination
	for _, f := range []func(*combination) *string{
		func(c *combination) *string { return &c.leaf }, func(c *combination) *string { return &c.lock },
		func(c *combination) *string { return &c.pidfd }, func(c *combination) *string { return &c.prv },
	} {
		less := c
		if p := f(&less); *p != "-" && *p != "unknown" {
			*p = "unknown"
			all = append(all, less)
		}
	}
	return all
}

// The table of the plain cases, for review.
func TestJudgeGolden(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	everyCombination(func(c combination) {
		if c.remote || c.link != "-" || c.leaf == "-" && !c.weak || c.lock == "-" || c.pidfd == "-" && c.known || c.markers == "-" {
			return
		}
		j := Judge(c.subject(), c.witnesses())
		alive := "."
		if j.Alive {
			alive = "alive"
		}
		asked, _, _ := strings.Cut(c.String(), " local ")
		says, _, _ := strings.Cut(c.String()[len(asked)+len(" local "):], " link=")
		fmt.Fprintf(&b, "%s %s => %-7v %s\n", asked, says, j.Verdict, alive)
	})
	const golden = "testdata/judge.golden"
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("differs from %s; run with -update and look at the difference", golden)
	}
}

func TestJudgeTakesTheWorstOfSeveralAnswers(t *testing.T) {
	t.Parallel()
	s := combination{}.subject()
	free := Witness{Name: Lock, Answer: Absent, At: 1}
	for _, c := range []struct {
		first, second Witness
		want          Answer
	}{
		{Witness{Name: Leaf, Answer: Absent}, Witness{Name: Leaf, Answer: Absent}, Absent},
		{Witness{Name: Leaf, Answer: Absent}, Witness{Name: Leaf, Answer: Unknown}, Unknown},
		{Witness{Name: Leaf, Answer: Absent}, Witness{Name: Leaf, Answer: Present}, Unknown},
	} {
		for _, w := range [][]Witness{{c.first, c.second, free}, {c.second, free, c.first}} {
			if j := Judge(s, w); j.Verdict != c.want {
				t.Errorf("%v then %v: %v", w[0].Answer, w[1].Answer, j.Verdict)
			}
		}
	}
	leaf := Witness{Name: Leaf, Answer: Absent}
	stranger, held := Witness{Name: Lock, Answer: Present, Stranger: true}, Witness{Name: Lock, Answer: Present}
	if j := Judge(s, []Witness{leaf, stranger, held}); j.Verdict != Unknown || j.Alive {
		t.Errorf("a stranger's lock, then held by others: %+v", j)
	}
	if j := Judge(s, []Witness{leaf, stranger, free}); j.Verdict != Absent {
		t.Errorf("a stranger's lock, then free: %+v", j)
	}
}

func TestReasonNamesTheObstacle(t *testing.T) {
	t.Parallel()
	s := combination{escapable: true, known: true}.subject()
	all := map[string]Witness{}
	for _, name := range []string{Leaf, Lock, Pidfd, Markers} {
		all[name] = Witness{Name: name, Answer: Absent, At: 1, Detail: "fine"}
	}
	judge := func() Judgement {
		var w []Witness
		for _, one := range all {
			w = append(w, one)
		}
		return Judge(s, w)
	}
	if j := judge(); j.Verdict != Absent || j.Reason != "leaf: fine; markers: fine" {
		t.Errorf("%+v", j)
	}
	for name := range all {
		was := all[name]
		all[name] = Witness{Name: name, At: 1, Detail: "input/output error"}
		if j := judge(); j.Verdict != Unknown || j.Reason != name+": unknown: input/output error" {
			t.Errorf("%s: %+v", name, j)
		}
		delete(all, name)
		if j := judge(); j.Verdict != Unknown || j.Reason != name+": not asked" {
			t.Errorf("%s: %+v", name, j)
		}
		all[name] = was
	}
}
