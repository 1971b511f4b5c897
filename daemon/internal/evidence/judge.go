package evidence

import "fmt"

// Judge applies the rule. It is pure: the same answers give the same judgement. Of several answers of
// one witness the worst counts; a witness that is missing was not asked and is unknown.
//
// Absence needs every one of these:
//   - the leaf is gone from under the parent that was recorded, or with it, or holds no live process; where
//     no leaf was made this cannot be asked, and the verdict is weak;
//   - so is every further cgroup that the lease lists;
//   - nobody holds the generation's lock; a holder that was found and proven a stranger does not count,
//     unless there is a leaf and it does not say absent;
//   - no process counts by its marker; where there is no leaf, or the agent could leave it, the scan must
//     have been made and complete, elsewhere it need not have been made;
//   - the recorded wrapper process is gone;
//   - work that no leaf covers: the provider says so.
//
// The wrapper's connection decides nothing, since the end of one is noticed late, except where there is no
// leaf: an open one forbids absence.
//
// Presence needs the verified process, a populated leaf, where there is one, and the lock held.
func Judge(s Subject, witnesses []Witness) Judgement {
	a := map[string]Witness{}
	for _, w := range witnesses {
		if have, ok := a[w.Name]; ok {
			w = worse(have, w)
		}
		a[w.Name] = w
	}
	j := Judgement{Strength: Weak, Alive: alive(&s, a)}
	if s.fenced() {
		j.Strength = Strong
	}
	if isPresent(&s, a) {
		j.Verdict = Present
		return j
	}
	j.Reason = obstacle(&s, a)
	if j.Reason == "" {
		j.Verdict, j.Alive = Absent, false
		j.Reason = basis(&s, a)
	}
	return j
}

// alive: somebody is there for certain. A lock that is held although nothing is in the leaf may be
// anybody's.
func alive(s *Subject, a map[string]Witness) bool {
	for _, name := range []string{Leaf, Paths, Pidfd, Markers} {
		if a[name].Answer == Present {
			return true
		}
	}
	return a[Lock].Answer == Present && !a[Lock].Stranger && !(s.fenced() && a[Leaf].Answer == Absent)
}

func isPresent(s *Subject, a map[string]Witness) bool {
	return a[Pidfd].Answer == Present &&
		a[Lock].Answer == Present && !a[Lock].Stranger &&
		(!s.fenced() || a[Leaf].Answer == Present)
}

// obstacle returns what stands between the answers and absence, "" when nothing does.
func obstacle(s *Subject, a map[string]Witness) string {
	for _, need := range []struct {
		name string
		asks bool
	}{
		{Leaf, s.fenced()},
		{Paths, len(s.CgroupPaths) > 0},
		{Lock, s.LockPath != ""},
		{Pidfd, s.Wrapper.PID != 0},
		{Markers, s.needsMarkers() || a[Markers].Answer == Present},
		{Provider, s.Remote},
		{Link, !s.fenced() && a[Link].Answer == Present},
	} {
		w := a[need.name]
		if !need.asks || w.Answer == Absent {
			continue
		}
		if need.name == Lock && w.Stranger && (!s.fenced() || a[Leaf].Answer == Absent) {
			continue
		}
		text := fmt.Sprintf("%s: %v", need.name, w.Answer)
		if w.At == 0 && w.Answer == Unknown {
			text = need.name + ": not asked"
		}
		if w.Detail != "" {
			text += ": " + w.Detail
		}
		return text
	}
	return ""
}

// basis names what carries a verdict of absence.
func basis(s *Subject, a map[string]Witness) string {
	switch {
	case s.fenced() && s.Escapable:
		return "leaf: " + a[Leaf].Detail + "; markers: " + a[Markers].Detail
	case s.fenced():
		return "leaf: " + a[Leaf].Detail
	}
	return "no leaf; markers: " + a[Markers].Detail
}
