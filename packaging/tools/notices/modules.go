package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// module is one module that is linked into a program, the Go distribution
// being one of them, with what its authors want told.
type module struct {
	Path, Version string
	Sum           string // h1:…, as in go.sum; empty for the Go distribution
	Programs      []string
	Licences      []string // SPDX identifiers
	Notices       []notice
}

// notice is one file that has to go with the module's code.
type notice struct{ name, text string }

// noticeFile matches the files of a module's top directory that tell its terms.
// AUTHORS and the like are not terms; PATENTS of the Go modules is.
var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// linked reads out of the programs which modules they consist of, and returns
// the main module's path and the others, in the order of their paths. The
// linker writes that list: what is only required, or only tested with, is not
// in it.
func linked(programs []string) (main string, modules []*module, err error) {
	byPath := map[string]*module{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return "", nil, err
		}
		main = info.Main.Path
		deps := append(slices.Clone(info.Deps), &debug.Module{Path: "std", Version: info.GoVersion})
		for _, dep := range deps {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			m := byPath[dep.Path]
			if m == nil {
				m = &module{Path: dep.Path, Version: dep.Version, Sum: dep.Sum}
				byPath[dep.Path] = m
			}
			if m.Version != dep.Version || m.Sum != dep.Sum {
				return "", nil, fmt.Errorf("%s is linked as %s and as %s", dep.Path, m.Version, dep.Version)
			}
			m.Programs = append(m.Programs, filepath.Base(program))
		}
	}
	return main, slices.SortedFunc(maps.Values(byPath), func(a, b *module) int { return strings.Compare(a.Path, b.Path) }), nil
}

// directories finds where the text of each module is, downloading what is
// missing, and checks that it is the very text that was linked.
func directories(modules []*module) (map[string]string, error) {
	dirs := map[string]string{}
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		if m.Sum != "" {
			args = append(args, m.Path+"@"+m.Version)
		}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("downloading the modules: %w", withStderr(err))
	}
	sums := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var got struct{ Path, Dir, Sum string }
		if err := d.Decode(&got); err != nil {
			return nil, err
		}
		dirs[got.Path], sums[got.Path] = got.Dir, got.Sum
	}
	for _, m := range modules {
		if m.Sum == "" {
			root, err := exec.Command("go", "env", "GOROOT").Output()
			if err != nil {
				return nil, fmt.Errorf("asking for GOROOT: %w", withStderr(err))
			}
			dirs[m.Path] = strings.TrimSpace(string(root))
		} else if sums[m.Path] != m.Sum {
			return nil, fmt.Errorf("%s %s: the module cache has %q, linked was %q", m.Path, m.Version, sums[m.Path], m.Sum)
		}
	}
	return dirs, nil
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}

// readNotices fills in a module's licences and notices from its directory.
func (m *module) readNotices(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !noticeFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		m.Notices = append(m.Notices, notice{e.Name(), string(text)})
		m.Licences = append(m.Licences, licences(e.Name(), text)...)
	}
	slices.Sort(m.Licences)
	m.Licences = slices.Compact(m.Licences)
	if len(m.Licences) == 0 {
		return fmt.Errorf("%s %s: no licence is recognized in %q", m.Path, m.Version, dir)
	}
	for _, l := range m.Licences {
		if !slices.Contains(accepted, l) {
			return fmt.Errorf("%s %s: licence %s is not one of %s", m.Path, m.Version, l, strings.Join(accepted, ", "))
		}
	}
	return nil
}
