package workspace

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names of what Salvage writes.
const (
	ManifestName = "manifest.json"
	FilesName    = "files.tar"
)

// Manifest says what a salvage holds.
type Manifest struct {
	Version int `json:"version"`
	// Root is the path that the workspace had.
	Root  string  `json:"root"`
	Repos []Saved `json:"repositories"`
	// Files is the archive of the files outside every repository, "" = there were none.
	Files string `json:"files,omitempty"`
	// Findings is what would have been lost.
	Findings []Finding `json:"findings"`
}

// Saved is one repository in a Manifest.
type Saved struct {
	Path string `json:"path"`
	// Bundle holds every ref, and below refs/berth what no ref names: worktree
	// (the working tree with its untracked files, as a commit on top of HEAD),
	// index, stash/N, detached/N, and the heads of unfinished operations.
	Bundle string `json:"bundle"`
	Refs   int    `json:"refs"`
}

// Salvage saves everything that Inspect tells about, and all of the repositories
// that it is in, into the empty directory out. The repositories themselves are
// not changed. It fails when anything cannot be saved.
func Salvage(ctx context.Context, root, out string) (*Report, error) {
	if !filepath.IsAbs(out) {
		return nil, errors.New("the request names no directory to save to")
	}
	report := &Report{Findings: []Finding{}}
	files := newFilesTar(filepath.Join(out, FilesName), root)
	t, err := walk(ctx, root, report, files.add)
	if err != nil {
		return nil, err
	}
	if err := files.close(); err != nil {
		return nil, err
	}
	if len(report.Findings) > 0 {
		return report, errors.New("not everything can be read: " + report.Findings[0].String())
	}
	inspected, err := Inspect(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, f := range inspected.Findings {
		if f.Kind == Unknown {
			return inspected, errors.New("not everything can be read: " + f.String())
		}
	}
	m := Manifest{Version: 1, Root: root, Findings: inspected.Findings, Repos: []Saved{}}
	if files.made {
		m.Files = FilesName
		inspected.Saved = append(inspected.Saved, FilesName)
	}
	seen := map[string]bool{}
	for i, r := range t.repos {
		s := shadow{repo: r, t: t, seen: seen, dir: filepath.Join(out, ".shadow"), out: out, bundle: strconv.Itoa(i) + ".bundle"}
		refs, err := s.save(ctx)
		if err != nil {
			return inspected, fmt.Errorf("saving repository %q: %w", r.rel, err)
		}
		if refs > 0 {
			m.Repos = append(m.Repos, Saved{Path: r.rel, Bundle: s.bundle, Refs: refs})
			inspected.Saved = append(inspected.Saved, s.bundle)
		}
	}
	if err := writeManifest(filepath.Join(out, ManifestName), &m); err != nil {
		return inspected, err
	}
	inspected.Saved = append(inspected.Saved, ManifestName)
	return inspected, nil
}

func writeManifest(path string, m *Manifest) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}

// shadow is an empty repository that borrows the objects of another one: what
// is saved gets its names here, and nothing is written to what is being saved.
type shadow struct {
	*repo
	t      *tree
	seen   map[string]bool // repositories whose refs are saved
	dir    string
	out    string
	bundle string

	common string
	git    *repo // of dir
	names  map[string]string
}

// save writes the bundle and returns how many refs it has, 0 = nothing to save.
func (s *shadow) save(ctx context.Context) (refs int, err error) {
	if s.common, err = s.resolve(ctx); err != nil {
		return 0, err
	}
	if s.workTree == "" && s.seen[s.common] {
		return 0, nil
	}
	s.seen[s.common] = true
	if err := s.create(ctx); err != nil {
		return 0, err
	}
	defer os.RemoveAll(s.dir)
	s.names = map[string]string{}
	for _, step := range []func(context.Context) error{s.refs, s.heads, s.stash, s.index, s.tree} {
		if err := step(ctx); err != nil {
			return 0, err
		}
	}
	if len(s.names) == 0 {
		return 0, nil
	}
	if err := s.update(ctx); err != nil {
		return 0, err
	}
	_, err = s.git.line(ctx, "bundle", "create", "--quiet", filepath.Join(s.out, s.bundle), "--all")
	return len(s.names), err
}

func (s *shadow) create(ctx context.Context) error {
	format, err := s.line(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	s.git = &repo{gitDir: s.dir}
	if _, err := s.git.line(ctx, "init", "--quiet", "--bare", "--template=", "--object-format="+format, s.dir); err != nil {
		return err
	}
	info := filepath.Join(s.dir, "info")
	if err := os.MkdirAll(info, 0o700); err != nil {
		return err
	}
	// Files are saved byte for byte, whatever the repository's attributes say.
	exact := "* -text -filter -ident !eol !working-tree-encoding\n"
	if err := os.WriteFile(filepath.Join(info, "attributes"), []byte(exact), 0o600); err != nil {
		return err
	}
	objects := filepath.Join(s.common, "objects")
	if strings.ContainsAny(objects, "\n") || strings.HasPrefix(objects, `"`) {
		return errors.New("its path has a line feed or begins with a quotation mark")
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "objects", "info"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "objects", "info", "alternates"), []byte(objects+"\n"), 0o600)
}

// refs takes every ref of the repository, when it goes with the workspace.
func (s *shadow) refs(ctx context.Context) error {
	if !within(s.t.root, s.common) {
		return nil
	}
	return s.each(ctx, '\n', func(line string) error {
		if id, name, ok := strings.Cut(line, " "); ok && name != "refs/stash" {
			s.names[name] = id
		}
		return nil
	}, "for-each-ref", "--format=%(objectname) %(refname)")
}

// operationHeads are the commits of unfinished operations.
var operationHeads = []string{"HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD"}

func (s *shadow) heads(ctx context.Context) error {
	for _, name := range operationHeads {
		if id, err := s.line(ctx, "rev-parse", "--quiet", "--verify", name+"^{commit}"); err == nil && id != "" {
			s.names["refs/berth/"+name] = id
		}
	}
	detached, err := s.detached(ctx)
	for i, id := range detached {
		s.names["refs/berth/detached/"+strconv.Itoa(i)] = id
	}
	return err
}

func (s *shadow) stash(ctx context.Context) error {
	if !within(s.t.root, s.common) || !s.exists(ctx, "refs/stash") {
		return nil
	}
	i := 0
	err := s.each(ctx, '\n', func(id string) error {
		s.names["refs/berth/stash/"+strconv.Itoa(i)] = id
		i++
		return nil
	}, "reflog", "show", "--format=%H", "refs/stash")
	if err != nil || i > 0 {
		return err
	}
	id, err := s.line(ctx, "rev-parse", "--verify", "refs/stash")
	s.names["refs/berth/stash/0"] = id
	return err
}

// index saves what is staged. An index with conflicts has no tree; its sides are
// commits that are saved.
func (s *shadow) index(ctx context.Context) error {
	if s.workTree == "" || !s.has("index") {
		return nil
	}
	conflict, err := s.line(ctx, "ls-files", "--unmerged")
	if err != nil || conflict != "" {
		return err
	}
	cmd := s.command(ctx, "write-tree")
	cmd.Env = append(cmd.Env, "GIT_OBJECT_DIRECTORY="+filepath.Join(s.dir, "objects"),
		"GIT_ALTERNATE_OBJECT_DIRECTORIES="+filepath.Join(s.common, "objects"))
	id, err := output(cmd)
	if err != nil {
		return err
	}
	return s.commit(ctx, "refs/berth/index", id, "berth: what was staged")
}

// tree saves the working tree with what is untracked, as it is on the disk.
// Repositories inside it are saved by themselves.
func (s *shadow) tree(ctx context.Context) error {
	if s.workTree == "" {
		return nil
	}
	g := &repo{gitDir: s.dir, workTree: s.workTree}
	index := "GIT_INDEX_FILE=" + filepath.Join(s.dir, "tree.index")
	run := func(args ...string) (string, error) {
		cmd := g.command(ctx, args...)
		cmd.Env = append(cmd.Env, index)
		return output(cmd)
	}
	if head := s.names["refs/berth/HEAD"]; head != "" {
		if _, err := run("read-tree", head); err != nil {
			return err
		}
	}
	cmd := g.command(ctx, append([]string{"add", "--all", "--", ":/"}, s.others()...)...)
	cmd.Args = without(cmd.Args, "--literal-pathspecs")
	cmd.Env = append(cmd.Env, index)
	if _, err := output(cmd); err != nil {
		return err
	}
	id, err := run("write-tree")
	if err != nil {
		return err
	}
	return s.commit(ctx, "refs/berth/worktree", id, "berth: the working tree, with untracked files")
}

// others are the repositories inside this working tree, as pathspecs that leave
// them out.
func (s *shadow) others() []string {
	var specs []string
	for _, o := range s.t.repos {
		rel, err := filepath.Rel(s.rel, o.rel)
		if err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../") && !strings.HasPrefix(rel, ".git/") {
			specs = append(specs, ":(top,exclude,literal)"+rel)
		}
	}
	return specs
}

func without(args []string, unwanted string) []string {
	kept := args[:0:0]
	for _, a := range args {
		if a != unwanted {
			kept = append(kept, a)
		}
	}
	return kept
}

// commit names a tree, as a commit on top of HEAD.
func (s *shadow) commit(ctx context.Context, ref, tree, message string) error {
	args := []string{"commit-tree", tree, "-m", message}
	if head := s.names["refs/berth/HEAD"]; head != "" {
		args = append(args, "-p", head)
	}
	id, err := s.git.line(ctx, args...)
	s.names[ref] = id
	return err
}

// update gives everything its name in the shadow.
func (s *shadow) update(ctx context.Context) error {
	cmd := s.git.command(ctx, "update-ref", "--stdin", "-z")
	var in strings.Builder
	for name, id := range s.names {
		fmt.Fprintf(&in, "update %s\x00%s\x00\x00", name, id)
	}
	cmd.Stdin = strings.NewReader(in.String())
	_, err := output(cmd)
	return err
}

// filesTar archives files outside every repository; it makes its file with the first.
type filesTar struct {
	path, root string
	made       bool
	file       *os.File
	tar        *tar.Writer
	err        error
}

func newFilesTar(path, root string) *filesTar { return &filesTar{path: path, root: root} }

func (a *filesTar) add(rel string, e fs.DirEntry) {
	if a.err != nil || !e.Type().IsRegular() && e.Type() != fs.ModeSymlink {
		return // a socket or a pipe holds nothing
	}
	if !a.made {
		if a.file, a.err = os.OpenFile(a.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); a.err != nil {
			return
		}
		a.made, a.tar = true, tar.NewWriter(a.file)
	}
	if err := a.one(rel, e); err != nil {
		a.err = fmt.Errorf("saving %q: %w", rel, err)
	}
}

func (a *filesTar) one(rel string, e fs.DirEntry) error {
	path := filepath.Join(a.root, rel)
	if e.Type() == fs.ModeSymlink {
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: rel, Linkname: target, Mode: 0o777})
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: rel, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if err := a.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(a.tar, f, info.Size())
	return err
}

func (a *filesTar) close() error {
	if !a.made {
		return a.err
	}
	return errors.Join(a.err, a.tar.Close(), a.file.Close())
}
