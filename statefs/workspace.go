package statefs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeWorkspace makes the directory id below root, an existing directory that
// only the daemon can write to, for uid and gid with mode 0700, and returns
// its path. It may be repeated: a directory that already has that owner is
// kept with its content, and one that a crash has left empty and ours is given
// away. Nothing is followed or changed by path. It is on stable storage when
// MakeWorkspace returns.
//
// Errors: ErrName; ErrUnfit when something else is there (another owner, a
// link, a file); EPERM when an unprivileged daemon is asked for another uid;
// else the operating system's.
func MakeWorkspace(root, id string, uid, gid uint32) (string, error) {
	path := filepath.Join(root, safeBase(id))
	if !SafeName(id) {
		return "", fmt.Errorf("making a workspace for session %q: %w", id, ErrName)
	}
	if err := makeWorkspace(root, id, uid, gid); err != nil {
		return "", fmt.Errorf("making workspace %q: %w", path, err)
	}
	return path, nil
}

func makeWorkspace(root, id string, uid, gid uint32) error {
	r, err := os.OpenFile(root, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return pathless(err)
	}
	defer r.Close()
	rootfd := int(r.Fd())
	err = eintr(func() error { return unix.Mkdirat(rootfd, id, privateMode) })
	if err != nil && err != unix.EEXIST {
		return err
	}
	// O_PATH: the owner may have taken every permission from its directory.
	fd, err := openat(rootfd, id, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return fmt.Errorf("%w: something that is no directory is there", ErrUnfit)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := giveAway(fd, uid, gid); err != nil {
		return err
	}
	if err := r.Sync(); err != nil {
		return pathless(err)
	}
	return nil
}

// giveAway makes the directory fd (O_PATH) the uid's and gid's. Crash points:
// (1) after mkdir it is empty and ours; (2) after chown only the mode may be
// tighter. Both are finished by the next call.
func giveAway(fd int, uid, gid uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != uid {
		empty, err := isEmpty(fd)
		if err != nil {
			return err
		}
		if int(st.Uid) != os.Geteuid() || !empty {
			return fmt.Errorf("%w: it belongs to uid %d and not to uid %d", ErrUnfit, st.Uid, uid)
		}
	}
	if st.Uid != uid || st.Gid != gid {
		if err := unix.Fchownat(fd, "", int(uid), int(gid), unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("giving it to uid %d, gid %d: %w", uid, gid, err)
		}
	}
	if st.Mode&0o7777 == privateMode {
		return nil
	}
	if err := unix.Chmod(procFD(fd), privateMode); err != nil {
		return fmt.Errorf("setting its mode: %w", err)
	}
	return nil
}

// isEmpty says whether the directory fd (O_PATH) has no entries.
func isEmpty(fd int) (bool, error) {
	f, err := os.Open(procFD(fd))
	if err != nil {
		return false, pathless(err)
	}
	defer f.Close()
	if _, err = f.Readdirnames(1); err == io.EOF {
		return true, nil
	}
	return false, pathless(err)
}
