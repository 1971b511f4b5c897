package journal_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/statefstest"
)

func openDir(t *testing.T, dir string, replay func(journal.Record) error) (*journal.Journal, journal.Recovery) {
	t.Helper()
	j, rec, err := journal.Open(dir, journal.Options{SegmentBytes: small}, replay)
	if err != nil {
		t.Fatal(err)
	}
	return j, rec
}

func TestTwoWritersExcludeEachOther(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	j, _ := openDir(t, dir, nil)
	if _, _, err := journal.Open(dir, journal.Options{}, nil); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("second Open: %v", err)
	}
	mustClose(t, j)
	j, _ = openDir(t, dir, nil)
	mustClose(t, j)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
}

func TestOpenNeedsItsParent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "no", "journal")
	if _, _, err := journal.Open(dir, journal.Options{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open: %v", err)
	}
	if _, err := journal.Read(dir, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read: %v", err)
	}
}

// TestNewerVersionIsRefused: by name, and nothing is touched. case E8
func TestNewerVersionIsRefused(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{".log", ".snap"} {
		disk, _ := specimen(t, true)
		for name, data := range disk.Files() {
			if strings.HasSuffix(name, suffix) && inUse(name, data) {
				for _, at := range []int{0, 2048} {
					journal.SetVersion(data[at:], 2)
				}
				disk.Put(name, data)
			}
		}
		before := disk.Files()
		_, _, err := journal.Open("disk", journal.Options{FS: disk}, func(journal.Record) error {
			t.Error("a record was delivered")
			return nil
		})
		var newer *journal.NewerVersionError
		if !errors.As(err, &newer) || newer.Version != 2 || !strings.HasSuffix(newer.File, suffix) {
			t.Errorf("%s: error is %v", suffix, err)
		}
		if !maps.EqualFunc(before, disk.Files(), bytes.Equal) || disk.Handles() != 0 {
			t.Errorf("%s: something was touched", suffix)
		}
	}
}

// TestReadOnlyFileSystem needs root for a read-only mount; the modelled disk shows the same without.
func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	disk, _ := specimen(t, true)
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if op.Kind.Changes() {
			return statefstest.Outcome{Err: unix.EROFS}
		}
		return statefstest.Outcome{}
	})
	if _, _, err := journal.Open("disk", journal.Options{FS: disk, SegmentBytes: small}, nil); !errors.Is(err, unix.EROFS) {
		t.Errorf("modelled: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot mount a read-only tmpfs")
	}
	dir := mountTmpfs(t, "1m")
	sub := filepath.Join(dir, "journal")
	j, _ := openDir(t, sub, nil)
	mustClose(t, j)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, _, err := journal.Open(sub, journal.Options{SegmentBytes: small}, nil)
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), sub) {
		t.Errorf("read-only tmpfs: %v", err)
	}
	if _, err := journal.Read(sub, nil); err != nil {
		t.Errorf("reading there: %v", err)
	}
}

// TestReadBesideWriter reads all the time while a writer appends, rotates and compacts.
func TestReadBesideWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := openDir(t, dir, nil)
	var w world
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	wg.Go(func() {
		defer stop()
		if err := w.work(j, rand.New(rand.NewPCG(3, 3)), 400); err != nil {
			t.Error(err)
		}
	})
	reads, compacted := 0, 0
	for ctx.Err() == nil {
		p := w.promise()
		var got replayed
		rec, err := journal.Read(dir, got.take)
		if errors.Is(err, journal.ErrCompacted) {
			compacted++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		reads++
		if err := p.noLower(&got, rec); err != nil || rec.Ambiguous || len(rec.Damages) > 0 || rec.TornTail {
			t.Fatalf("read %d: %v, %+v", reads, err, rec)
		}
	}
	wg.Wait()
	t.Logf("%d reads, %d more were overtaken", reads, compacted)
	if reads == 0 {
		t.Error("no read succeeded")
	}
	if rec, err := journal.Verify(dir); err != nil || !rec.Live || len(rec.Damages)+len(rec.Covered) > 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	mustClose(t, j)
	if rec, err := journal.Verify(dir); err != nil || rec.Live || len(rec.Damages)+len(rec.Covered) > 0 || rec.LastSeq != w.seq {
		t.Errorf("%+v, %v", rec, err)
	}
}

// TestReadersChangeNothing compares every byte and every name.
func TestReadersChangeNothing(t *testing.T) {
	t.Parallel()
	disk, _ := specimen(t, false)
	name, data := firstLog(disk)
	data[journal.HeadArea+60] ^= 1
	disk.Put(name, data)
	before := disk.Files()
	disk.Hook(func(op statefstest.Op) statefstest.Outcome {
		if op.Kind.Changes() {
			t.Errorf("reading did %+v", op)
		}
		return statefstest.Outcome{}
	})
	for _, all := range []bool{true, false} {
		if _, err := journal.ReadFS(disk, "a", nil, all); err != nil {
			t.Error(err)
		}
	}
	if !maps.EqualFunc(before, disk.Files(), bytes.Equal) {
		t.Error("something changed")
	}
}

func TestVerifyListsWhatASnapshotCovers(t *testing.T) {
	t.Parallel()
	disk, _ := specimen(t, true)
	name, data := firstLog(disk)
	data[journal.HeadArea+64] ^= 1 // first record's body or session; both snapshots cover it
	disk.Put(name, data)
	read, err := journal.ReadFS(disk, "a", nil, false)
	if err != nil {
		t.Fatal(err)
	}
	verify, err := journal.ReadFS(disk, "a", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Damages)+len(verify.Damages) != 0 || verify.Ambiguous || len(verify.Covered) != 1 {
		t.Errorf("read %+v, verify %+v", read, verify)
	}
}

func TestDump(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := openDir(t, dir, nil)
	var w world
	for range 3 {
		if err := w.append(j, journal.Ordinary, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.snapshot(j); err != nil {
		t.Fatal(err)
	}
	if err := w.append(j, journal.Ordinary, 1); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := journal.Dump(dir, &out, func(r journal.Record) (any, error) {
		if idOf(r.Entry) == 7 {
			return nil, errors.New("type 9 is not known")
		}
		return idOf(r.Entry), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 7 { // 5 live sessions, 1 record, the end
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	var last journal.DumpedRecord
	if err := json.Unmarshal([]byte(lines[5]), &last); err != nil {
		t.Fatal(err)
	}
	if last.Seq != 7 || last.Snapshot || last.Error == "" || last.Session != "session-2" {
		t.Errorf("record line is %s", lines[5])
	}
	if want := `{"end":{"last_seq":7,"records":6,"snapshot_seq":6,"live":true,"torn_tail":false,"ambiguous":false,"damages":[]}}`; lines[6] != want {
		t.Errorf("end line is %s\nwant %s", lines[6], want)
	}
}

// TestGoldenVersion1 reads the directory that the first release wrote. It must be readable for ever.
func TestGoldenVersion1(t *testing.T) {
	t.Parallel()
	disk := statefstest.New()
	files, err := filepath.Glob("testdata/v1/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		disk.Put(filepath.Base(f), data)
	}
	want, err := os.ReadFile("testdata/v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	show := func(r journal.Record) error {
		_, err := fmt.Fprintf(&got, "%d %v %#x %q %d %x\n", r.Seq, r.Snapshot, r.Type, r.Session, r.Generation, r.Body)
		return err
	}
	rec, err := journal.ReadFS(disk, "golden", show, false)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&got, "last %d snapshot %d damages %d\n", rec.LastSeq, rec.SnapshotSeq, len(rec.Damages))
	if got.String() != string(want) {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	j, _ := mustOpen(t, disk, "later", nil)
	if _, err := j.Append(journal.Ordinary, entry(1)); err != nil {
		t.Error(err)
	}
	mustClose(t, j)
}

// TestWriteGolden makes testdata of the version that is current, once: BERTH_WRITE_GOLDEN=v1 go test -run WriteGolden.
func TestWriteGolden(t *testing.T) {
	version := os.Getenv("BERTH_WRITE_GOLDEN")
	if version == "" {
		t.Skip("BERTH_WRITE_GOLDEN is not set: golden files are written once per format version")
	}
	disk := statefstest.New()
	j, _ := mustOpen(t, disk, "golden", nil)
	w := world{}
	for i := range 5 {
		if err := w.append(j, journal.Ordinary, 1+i%3); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.snapshot(j); err != nil {
		t.Fatal(err)
	}
	for _, e := range []journal.Entry{
		{Type: 0x8001, Generation: 1<<64 - 1, Body: []byte("skippable, of the host")},
		{Type: 7, Session: strings.Repeat("s", 128)},
		{Type: 0xffff, Session: "x", Body: make([]byte, 3000)},
	} {
		if _, err := j.Append(journal.Reserved, e); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, j)
	dir := filepath.Join("testdata", version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(disk.Files()))
	for _, name := range names {
		if data := disk.Files()[name]; inUse(name, data) {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
