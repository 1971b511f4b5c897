package journal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// listing is the directory sorted by what its names mean. Unknown names are left out and alone.
type listing struct {
	files   []string // N.log and N.snap
	fresh   []string // new-N
	bad     []string // bad-N, oldest first
	highest uint64   // of all N
	mark    bool
}

func logFile(n uint64) string    { return fmt.Sprintf("%d.log", n) }
func snapFile(n uint64) string   { return fmt.Sprintf("%d.snap", n) }
func newName(name string) string { return "new-" + name }
func badName(name string) string { return "bad-" + name }
func isLogName(name string) bool { return strings.HasSuffix(name, ".log") }
func numberOf(name string) (n uint64, prefix string, ok bool) {
	stem, isLog := strings.CutSuffix(name, ".log")
	if !isLog {
		var isSnap bool
		if stem, isSnap = strings.CutSuffix(name, ".snap"); !isSnap {
			return 0, "", false
		}
	}
	if before, after, found := strings.Cut(stem, "-"); found {
		prefix, stem = before, after
	}
	n, err := strconv.ParseUint(stem, 10, 64)
	return n, prefix, err == nil && stem == strconv.FormatUint(n, 10)
}

func list(f FS) (listing, error) {
	names, err := f.Names()
	if err != nil {
		return listing{}, fmt.Errorf("listing: %w", err)
	}
	slices.SortFunc(names, func(a, b string) int {
		na, _, _ := numberOf(a)
		nb, _, _ := numberOf(b)
		return int(min(max(int64(na-nb), -1), 1))
	})
	var l listing
	for _, name := range names {
		if name == markName {
			l.mark = true
		}
		n, prefix, ok := numberOf(name)
		if !ok {
			continue
		}
		switch prefix {
		case "":
			l.files = append(l.files, name)
		case "new":
			l.fresh = append(l.fresh, name)
		case "bad":
			l.bad = append(l.bad, name)
		}
		l.highest = max(l.highest, n)
	}
	return l, nil
}
