package journal

// FS is one directory as the journal uses it, in terms of system calls: results may be short and errors are errno values.
// The real one is used unless Options.FS names another; statefstest has one that loses power.
// All methods may be called by several goroutines at once.
type FS interface {
	// Open opens a file of the directory. A missing file is an error that matches fs.ErrNotExist; with Create an
	// existing one is an error that matches fs.ErrExist.
	Open(name string, mode Mode) (File, error)
	// Rename replaces to if it exists.
	Rename(from, to string) error
	Remove(name string) error
	// Names lists the directory in no particular order.
	Names() ([]string, error)
	// Sync makes all earlier changes of names durable: fsync(2) of the directory.
	Sync() error
}

// File is an open file of an [FS].
type File interface {
	// Pread and Pwrite may transfer less than asked and may fail with EINTR. At the end of the file Pread returns 0, nil.
	Pread(p []byte, off int64) (int, error)
	Pwrite(p []byte, off int64) (int, error)
	// Datasync is fdatasync(2). Its error is final: a second call proves nothing.
	Datasync() error
	Info() (FileInfo, error)
	Close() error
}

// FileInfo is what the journal asks of stat(2).
type FileInfo struct {
	Bytes          int64
	AllocatedBytes int64 // less than Bytes for a file with holes
	Inode          uint64
}

// Mode says how [FS.Open] opens a file.
type Mode uint8

// Modes of FS.Open.
const (
	ReadOnly  Mode = iota + 1
	ReadWrite      // must exist
	Create         // read and write, must not exist, permission bits 0600
)
