package effect

import (
	"os/user"
	"strconv"
)

// homeOf is the home directory that an agent of this uid is told of: the
// user's own, else the workspace.
func homeOf(uid uint32, workspace string) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil || u.HomeDir == "" || u.HomeDir == "/" || u.HomeDir == "/nonexistent" {
		return workspace
	}
	return u.HomeDir
}

// groupsOf is the supplementary groups of a uid; nil when it is the daemon's
// own, which the agent inherits.
func groupsOf(uid, daemon uint32) []uint32 {
	if uid == daemon {
		return nil
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	names, err := u.GroupIds()
	if err != nil {
		return nil
	}
	var groups []uint32
	for _, name := range names {
		if gid, err := strconv.ParseUint(name, 10, 32); err == nil {
			groups = append(groups, uint32(gid))
		}
	}
	return groups
}
