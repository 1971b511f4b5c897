package statefs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Modes of the layout. Agents of other uids pass through the state directory
// and workspaces to their own workspace and can list neither.
const (
	stateMode   = 0o711
	passMode    = 0o711
	privateMode = 0o700
)

// subdirs are the directories below the state directory.
var subdirs = []struct {
	name string
	mode uint32
}{
	{journalName, privateMode},
	{sessionsName, privateMode},
	{workspacesName, passMode},
	{trashName, privateMode},
	{cacheName, privateMode},
}

// Errors of Open; match with errors.Is.
var (
	// ErrLocked is a state directory that another daemon holds; the message
	// names its process where that is known.
	ErrLocked = errors.New("locked by another daemon")
	// ErrUnfit is a directory with another owner, a wider mode or other
	// content than berth's.
	ErrUnfit = errors.New("not usable as a state directory")
)

// Dir is an open, locked state directory. Its methods may be called at once
// from several goroutines.
type Dir struct {
	Layout
	dir     *os.File
	lock    *os.File
	machine machine
	trash   *Trash
}

// Open opens the state directory dir, an absolute path, and makes what is
// missing of it: the directory itself (0711, with parents 0755), journal,
// sessions, trash, cache (0700), workspaces (0711) and host.json with a new host id.
// The lock comes first: whoever does not get it has changed nothing but the
// mode of an empty directory. It is held until Close or the process's end.
//
// What exists must belong to the effective uid and grant no more than the
// layout's mode (a tighter mode is set right: a crash can leave one); a
// directory that is not empty and has nothing of berth's is refused, as is a
// symbolic link instead of a subdirectory. workspaces may be a mount point.
//
// Errors: ErrLocked, ErrUnfit, ErrForeign (another machine's directory),
// ErrHost (host.json damaged, or gone while sessions are there), EROFS for a
// read-only file system, else the operating system's.
func Open(dir string) (*Dir, error) {
	d, err := open(dir, machineSources)
	if errors.Is(err, unix.EROFS) {
		return nil, fmt.Errorf("opening state directory %q: it is on a read-only file system: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening state directory %q: %w", dir, err)
	}
	return d, nil
}

func open(dir string, sources []string) (_ *Dir, err error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: not an absolute path", ErrUnfit)
	}
	d := &Dir{Layout: Layout{path: filepath.Clean(dir)}}
	defer func() {
		if err != nil {
			_ = d.Close() // the cause matters more
		}
	}()
	if d.dir, err = claim(d.path); err != nil {
		return nil, err
	}
	if d.lock, err = takeLock(d.dir); err != nil {
		return nil, err
	}
	if err := d.makeLayout(); err != nil {
		return nil, err
	}
	h, err := openHost(d.dir, sources)
	if err != nil {
		return nil, err
	}
	d.hostID, d.machine = h.HostID, machine{id: h.MachineID, source: h.MachineSource}
	d.trash = newTrash(d.Layout)
	for _, root := range []string{d.Sessions(), d.Workspaces()} {
		if err := d.trash.AddRoot(root); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Close gives the lock back. The Dir's paths stay valid, its methods must not
// be called any more.
func (d *Dir) Close() error {
	var err error
	if d.lock != nil {
		err = dropLock(d.lock)
	}
	if d.dir != nil {
		err = errors.Join(err, d.dir.Close())
	}
	return err
}

// MachineSource returns the file that the machine's identity was read from, or
// "" when this machine shows none: a copied state directory then cannot be
// told from the original, which the daemon should say.
func (d *Dir) MachineSource() string { return d.machine.source }

// Trash returns the trash of this state directory.
func (d *Dir) Trash() *Trash { return d.trash }

// MakeGenerationDir makes the directory of a generation of session id (0700,
// the daemon's uid) and returns its path. One that is there already is
// accepted when it has the right owner: the effect may be repeated after a
// crash. SyncGenerationDir puts it on stable storage. Errors: ErrName, ErrUnfit,
// else the operating system's.
func (d *Dir) MakeGenerationDir(id string, generation uint64) (string, error) {
	path := d.GenerationDir(id, generation)
	if !SafeName(id) || generation == 0 {
		return "", fmt.Errorf("making the directory of generation %d of session %q: %w", generation, id, ErrName)
	}
	if err := d.makeGenerationDir(id, generation); err != nil {
		return "", fmt.Errorf("making %q: %w", path, err)
	}
	return path, nil
}

func (d *Dir) makeGenerationDir(id string, generation uint64) error {
	parent, err := openDir(int(d.dir.Fd()), sessionsName)
	if err != nil {
		return err
	}
	for _, name := range []string{id, generationName(generation)} {
		child, _, err := ensureDir(int(parent.Fd()), name, privateMode)
		_ = parent.Close()
		if err != nil {
			if child != nil {
				_ = child.Close()
			}
			return err
		}
		parent = child
	}
	return parent.Close()
}

// SyncGenerationDir puts the entries that MakeGenerationDir has made on stable
// storage. It is a step of its own because nothing that is started needs it: it
// keeps what the wrapper will have written from being lost with its directory.
func (d *Dir) SyncGenerationDir(id string) error {
	for _, path := range []string{d.SessionDir(id), d.Sessions()} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = f.Sync()
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("syncing %q: %w", path, err)
		}
	}
	return nil
}

// claim opens the state directory, or makes it, and refuses one that is
// evidently something else, without writing into it.
func claim(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, stateMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := checkClaim(dir); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

func checkClaim(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it belongs to uid %d, this process is uid %d", ErrUnfit, st.Uid, os.Geteuid())
	}
	empty, ours, err := contents(dir)
	switch {
	case err != nil:
		return err
	case empty:
		// Nobody relies on the mode of an empty directory (a fresh mount's,
		// mkdir's by hand). Before the lock, so that no crash leaves a lock
		// in a directory that the next Open refuses for its mode.
		return dir.Chmod(stateMode)
	case !ours:
		return fmt.Errorf("%w: it is not empty and holds nothing of berth's", ErrUnfit)
	}
	return nil
}

// contents looks for berth's names. The directory that mkfs makes on ext4 and
// our own unfinished files do not count.
func contents(dir *os.File) (empty, ours bool, err error) {
	list, err := dir.Readdirnames(-1)
	if err != nil {
		return false, false, err
	}
	empty = true
	for _, name := range list {
		switch name {
		case lockName, hostName:
			ours = true
		case "lost+found":
			continue
		}
		empty = empty && strings.HasPrefix(name, tempPrefix)
	}
	return empty, ours, nil
}

// makeLayout checks the state directory, makes and checks what belongs below
// it, and sweeps what unfinished WriteFile calls have left.
func (d *Dir) makeLayout() error {
	if err := checkOwn(d.dir, stateMode); err != nil {
		return err
	}
	for _, sub := range subdirs {
		f, made, err := ensureDir(int(d.dir.Fd()), sub.name, sub.mode)
		if err == nil {
			err = f.Close()
		}
		if err == nil && made {
			err = d.dir.Sync()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", sub.name, err)
		}
	}
	return sweep(d.dir)
}

func sweep(dir *os.File) error {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	list, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range list {
		if !strings.HasPrefix(name, tempPrefix) {
			continue
		}
		err := unix.Unlinkat(int(dir.Fd()), name, 0)
		if err != nil && err != unix.ENOENT && err != unix.EISDIR {
			return fmt.Errorf("removing %q: %w", name, err)
		}
	}
	return nil
}
