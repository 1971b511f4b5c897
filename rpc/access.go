package rpc

import (
	"fmt"
	"slices"
)

// Access says who may connect, and as what. The zero value admits only the
// server's own uid and root, as operators.
type Access struct {
	OperatorUIDs, OperatorGIDs []uint32
	ReaderUIDs, ReaderGIDs     []uint32
	// AllowUsers admits every other uid as RoleUser, for its own sessions.
	AllowUsers bool
}

// overflowUID is what the kernel shows for a uid that has no name in this
// user namespace: several people, so never a user of its own (user_namespaces(7)).
const overflowUID = 65534

// role is the highest role that uid has by itself or by one of its groups;
// 0 = none. self is the server's own effective uid.
func (a Access) role(self, uid uint32, groups []uint32) Role {
	in := func(list []uint32) bool {
		return slices.ContainsFunc(groups, func(g uint32) bool { return slices.Contains(list, g) })
	}
	switch {
	case uid == 0, uid == self, slices.Contains(a.OperatorUIDs, uid), in(a.OperatorGIDs):
		return RoleOperator
	case slices.Contains(a.ReaderUIDs, uid), in(a.ReaderGIDs):
		return RoleReader
	case a.AllowUsers && uid != overflowUID && uid != ^uint32(0):
		return RoleUser
	}
	return 0
}

// String names the role.
func (r Role) String() string {
	switch r {
	case RoleReader:
		return "reader"
	case RoleUser:
		return "user"
	case RoleOperator:
		return "operator"
	case 0:
		return "none"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}
