package cgroupfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Gone reports whether the cgroup with that id, which is its directory's inode number, is proven not to
// exist any more, wherever in the hierarchy it was. Then nothing that was in it is there: only an empty
// cgroup can be removed, and version 2 has no way to move one. false with no error: it exists. An error
// means that nothing is known; without privileges that is so wherever a part of the hierarchy is hidden.
//
// Ids are 64 bits and not reused during a boot, so the caller must know that the id is of this boot.
func Gone(id uint64) (bool, error) {
	doing := fmt.Sprintf("looking for cgroup %d", id)
	mount, mode := Detect()
	if mode == None {
		return false, fmt.Errorf("%s: %w", doing, ErrUnavailable)
	}
	if id == 0 {
		return false, fmt.Errorf("%s: not the id of a cgroup", doing)
	}
	root, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("%s: opening %s: %w", doing, mount, err)
	}
	defer unix.Close(root)
	exists, err := openByID(root, id)
	if errors.Is(err, unix.EPERM) {
		exists, err = searchID(root, id)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return !exists, nil
}

// fileIDKernfs is FILEID_KERNFS (include/linux/exportfs.h): a handle that is the 64 bits of the id.
const fileIDKernfs = 0xfe

// openByID asks the kernel for a cgroup by its id, whatever part of the hierarchy this process sees. It
// needs CAP_DAC_READ_SEARCH, see open_by_handle_at(2), which answers ESTALE where there is no such cgroup.
// One that was removed while somebody holds it open may be found on some kernels, which errs on the safe side.
func openByID(root int, id uint64) (exists bool, err error) {
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_PATH|unix.O_CLOEXEC)
	switch {
	case err == nil:
		unix.Close(fd)
		return true, nil
	case errors.Is(err, unix.ESTALE):
		return false, nil
	}
	return false, err
}

// maxSearched bounds searchID, in directories.
const maxSearched = 1 << 16

// searchID looks at every cgroup. What is removed meanwhile need not be looked at any more; what is made
// meanwhile has another id.
func searchID(root int, id uint64) (exists bool, err error) {
	if !isRoot(root) {
		return false, errors.New("only a part of the hierarchy is to be seen here")
	}
	todo := []string{"."}
	for looked := 0; len(todo) > 0; looked++ {
		if looked == maxSearched {
			return false, fmt.Errorf("more than %d cgroups", maxSearched)
		}
		rel := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		inode, children, err := look(root, rel)
		if err != nil && !vanished(err) {
			return false, err
		}
		if err == nil && inode == id {
			return true, nil
		}
		for _, c := range children {
			todo = append(todo, path.Join(rel, c))
		}
	}
	return false, nil
}

// look returns the inode number of a directory and the names of those in it. One that was removed has none.
func look(root int, rel string) (inode uint64, children []string, err error) {
	fd, err := openAt(root, rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, nil, err
	}
	if st.Nlink == 2 { // as in subdirs
		return st.Ino, nil, nil
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return 0, nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			children = append(children, e.Name())
		}
	}
	return st.Ino, children, nil
}
