package statefs

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Errors about host.json; match with errors.Is.
var (
	// ErrForeign is a state directory that was made on another machine. To
	// move one on purpose, take machine_id out of its host.json.
	ErrForeign = errors.New("state directory of another machine")
	// ErrHost is a host.json that cannot be understood, or none beside a
	// journal or sessions. It is never made anew then: the host id is what
	// running wrappers are found by.
	ErrHost = errors.New("host.json is damaged or missing")
)

// machineSources are the files that a machine's identity is taken from, the
// best first: machine-id(5), D-Bus's older copy of it, and the firmware's
// (for root; containers see their host's). Where none can be read, in a bare
// container say, a copied state directory is not noticed.
var machineSources = []string{
	"/etc/machine-id",
	"/var/lib/dbus/machine-id",
	"/sys/class/dmi/id/product_uuid",
}

// maxHostFile bounds what is read of host.json and of the sources, in bytes.
const maxHostFile = 16 << 10

// host is host.json.
type host struct {
	HostID string `json:"host_id"`
	// MachineID and MachineSource say on which machine the directory was made,
	// and from which file that was read; empty = not known.
	MachineID     string    `json:"machine_id,omitempty"`
	MachineSource string    `json:"machine_source,omitempty"`
	MadeAt        time.Time `json:"made_at"` // wall time, for people
}

// machine is an identity and the file that it was read from.
type machine struct{ id, source string }

// openHost reads host.json of the locked directory dir, or makes it in a new
// one, and compares the machine.
func openHost(dir *os.File, sources []string) (host, error) {
	h, err := readHostAt(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return makeHost(dir, sources)
	}
	if err != nil {
		return host{}, err
	}
	m, err := checkMachine(h, sources)
	if err != nil {
		return host{}, err
	}
	if m.id != h.MachineID || m.source != h.MachineSource {
		h.MachineID, h.MachineSource = m.id, m.source
		if err := writeHost(dir, h); err != nil {
			return host{}, err
		}
	}
	return h, nil
}

func makeHost(dir *os.File, sources []string) (host, error) {
	for _, name := range []string{journalName, sessionsName} {
		used, err := hasEntries(dir, name)
		if err != nil {
			return host{}, err
		}
		if used {
			return host{}, fmt.Errorf("%w: there is none, but %s is not empty", ErrHost, name)
		}
	}
	var id [16]byte
	rand.Read(id[:]) // never fails, by its documentation
	m := readMachine(sources)
	h := host{HostID: hex.EncodeToString(id[:]), MachineID: m.id, MachineSource: m.source, MadeAt: time.Now().UTC().Round(0)}
	return h, writeHost(dir, h)
}

func hasEntries(dir *os.File, name string) (bool, error) {
	f, err := openDir(int(dir.Fd()), name)
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return err == nil, nil
}

func writeHost(dir *os.File, h host) error {
	data, err := json.MarshalIndent(h, "", "\t")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", hostName, err)
	}
	if err := writeFileAt(dir, hostName, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", hostName, err)
	}
	return nil
}

// checkMachine refuses the directory of another machine. It returns the
// identity to be recorded from now on: the same, or one from a better source
// that has appeared since (a first boot that made /etc/machine-id).
func checkMachine(h host, sources []string) (machine, error) {
	best := readMachine(sources)
	if h.MachineID == "" {
		return best, nil
	}
	now, ok := readMachineID(h.MachineSource)
	if !ok {
		// Not the same machine as far as anybody can tell.
		return machine{}, fmt.Errorf("%w: it was made on %s (from %s), and that file does not tell now", ErrForeign, h.MachineID, h.MachineSource)
	}
	if now != h.MachineID {
		return machine{}, fmt.Errorf("%w: it was made on %s, this is %s (from %s)", ErrForeign, h.MachineID, now, h.MachineSource)
	}
	return best, nil
}

// readMachine returns the best identity that this machine shows, or none.
func readMachine(sources []string) machine {
	for _, source := range sources {
		if id, ok := readMachineID(source); ok {
			return machine{id: id, source: source}
		}
	}
	return machine{}
}

// readMachineID reads an identity of 32 hexadecimal digits, with or without
// dashes. Files that say "uninitialized", are empty or hold one digit
// throughout (firmware that was never set) do not count.
func readMachineID(path string) (string, bool) {
	data, err := readBounded(path)
	if err != nil {
		return "", false
	}
	id := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(string(data)), "-", ""))
	return id, isHexID(id) && strings.Trim(id, id[:1]) != ""
}

func isHexID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

func readHostAt(dir *os.File) (host, error) {
	fd, err := openat(int(dir.Fd()), hostName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return host{}, fmt.Errorf("opening %s: %w", hostName, err)
	}
	f := os.NewFile(uintptr(fd), hostName)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHostFile))
	if err != nil {
		return host{}, fmt.Errorf("reading %s: %w", hostName, err)
	}
	return parseHost(data)
}

// readHost is readHostAt for a path, without a lock.
func readHost(path string) (host, error) {
	data, err := readBounded(path)
	if err != nil {
		return host{}, err
	}
	return parseHost(data)
}

func parseHost(data []byte) (host, error) {
	var h host
	if err := json.Unmarshal(data, &h); err != nil {
		return host{}, fmt.Errorf("%w: %v", ErrHost, err)
	}
	if !isHexID(h.HostID) {
		return host{}, fmt.Errorf("%w: host_id %q is not 32 hexadecimal digits", ErrHost, h.HostID)
	}
	return h, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxHostFile))
}
