package workspace

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What a mirror holds: the packs of an earlier clone, and a list of its refs. It
// is no repository: no git ever works on it, and nothing of it is a name or a
// setting that one would believe.
const (
	MirrorPacks = "packs"
	MirrorRefs  = "refs"
)

// PackName is what the files of a pack are called, without their endings.
var PackName = regexp.MustCompile(`^pack-([0-9a-f]{40}|[0-9a-f]{64})$`)

// RefLine is a line of a mirror's refs: what a clone has under packed-refs.
var RefLine = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64}) refs/(remotes/origin|tags)/[^\x00-\x20\x7f]+$`)

// seed copies the objects of the mirror into the new repository, under the names
// that they had, so that the fetch which follows gets the rest only. The copies
// are whole: what happens to one has no effect on another.
func (p *preparation) seed(ctx context.Context) (bool, error) {
	mirror := fmt.Sprintf("/proc/self/fd/%d", mirrorFD)
	packs, err := os.ReadDir(filepath.Join(mirror, MirrorPacks))
	if err != nil {
		return false, err
	}
	to := filepath.Join(p.root, ".git/objects/pack")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return false, err
	}
	copied := 0
	for _, e := range packs {
		name := e.Name()
		if base := strings.TrimSuffix(strings.TrimSuffix(name, ".pack"), ".idx"); !PackName.MatchString(base) || base == name {
			continue
		}
		if err := copyFile(ctx, filepath.Join(mirror, MirrorPacks, name), filepath.Join(to, name), 0o444); err != nil {
			return copied > 0, err
		}
		copied++
	}
	if copied == 0 {
		return false, nil
	}
	return true, p.seedRefs(filepath.Join(mirror, MirrorRefs))
}

// seedRefs writes the mirror's refs, by which git tells the other side what is
// here. The fetch puts right what they say.
func (p *preparation) seedRefs(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var lines []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if RefLine.MatchString(sc.Text()) {
			lines = append(lines, sc.Text())
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		return strings.Compare(a[strings.IndexByte(a, ' '):], b[strings.IndexByte(b, ' '):])
	})
	text := "# pack-refs with: sorted \n" + strings.Join(lines, "\n") + "\n"
	return os.WriteFile(filepath.Join(p.root, ".git/packed-refs"), []byte(text), 0o644)
}
