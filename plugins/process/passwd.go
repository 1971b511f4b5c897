package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxPasswdBytes bounds how much of the passwd file is read.
const maxPasswdBytes = 16 << 20

// user is what the environment tells an agent about itself.
type user struct {
	name  string
	shell string
}

// lookup finds uid in a passwd(5) file. Users that are not in it, as those of a
// directory service, get their uid as name and /bin/sh as shell: asking
// NSS could block for as long as its servers do. The first entry of several
// wins, as in getpwuid(3).
func lookup(path string, uid uint32) (user, error) {
	f, err := os.Open(path)
	if err != nil {
		return user{}, fmt.Errorf("reading users: %w", err)
	}
	defer f.Close()
	u, err := find(io.LimitReader(f, maxPasswdBytes), uid)
	if err != nil {
		return user{}, fmt.Errorf("reading users from %q: %w", path, err)
	}
	return u, nil
}

// find reads passwd(5) lines. Malformed ones are skipped.
func find(r io.Reader, uid uint32) (user, error) {
	id := strconv.FormatUint(uint64(uid), 10)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Split(lines.Text(), ":")
		if len(f) != 7 || f[2] != id || f[0] == "" || strings.IndexByte(lines.Text(), 0) >= 0 {
			continue
		}
		return user{name: f[0], shell: usable(f[6])}, nil
	}
	if err := lines.Err(); err != nil {
		return user{}, err
	}
	return user{name: id, shell: usable("")}, nil
}

// usable replaces shells that only refuse: agents use SHELL to run commands.
func usable(shell string) string {
	refusing := []string{"nologin", "false", "true", "sync"}
	base := shell[strings.LastIndexByte(shell, '/')+1:]
	if !strings.HasPrefix(shell, "/") || slices.Contains(refusing, base) {
		return "/bin/sh"
	}
	return shell
}
