package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// fileName names the file whose first record is number first. Twenty digits
// hold every number, so that names sort as numbers do.
func fileName(first uint64) string { return fmt.Sprintf("%020d%s", first, fileSuffix) }

// parseFileName returns the first record's number of a file called name.
func parseFileName(name string) (first uint64, ok bool) {
	digits, found := strings.CutSuffix(name, fileSuffix)
	if !found || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

// listFiles returns the first sequence numbers of the files in dir, ascending;
// other names are passed over. A missing directory has none.
func listFiles(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []uint64
	for _, e := range entries {
		if first, ok := parseFileName(e.Name()); ok {
			files = append(files, first)
		}
	}
	slices.Sort(files)
	return files, nil
}

// Usage is the size of a spool.
type Usage struct {
	// FirstSeq is the oldest number that is kept, 0 when there are no files.
	FirstSeq uint64
	Files    int
	Bytes    int64
}

// Stat measures the spool in dir without reading its records. A missing
// directory is an empty spool. Under a live writer the answer is a moment's.
func Stat(dir string) (Usage, error) {
	files, err := listFiles(dir)
	if err != nil {
		return Usage{}, fmt.Errorf("listing spool: %w", err)
	}
	u := Usage{Files: len(files)}
	for i, first := range files {
		if i == 0 {
			u.FirstSeq = first
		}
		info, err := os.Stat(dir + "/" + fileName(first))
		if errors.Is(err, fs.ErrNotExist) {
			continue // rotated away meanwhile
		}
		if err != nil {
			return Usage{}, fmt.Errorf("measuring spool: %w", err)
		}
		u.Bytes += info.Size()
	}
	return u, nil
}
