package rpc

import (
	"strings"
	"testing"
)

func TestRole(t *testing.T) {
	t.Parallel()
	a := Access{OperatorUIDs: []uint32{10}, OperatorGIDs: []uint32{20}, ReaderUIDs: []uint32{30}, ReaderGIDs: []uint32{40}}
	users := a
	users.AllowUsers = true
	tests := []struct {
		name   string
		access Access
		uid    uint32
		groups []uint32
		want   Role
	}{
		{"root", Access{}, 0, nil, RoleOperator},
		{"own uid", Access{}, 7, nil, RoleOperator},
		{"stranger", Access{}, 8, []uint32{8}, 0},
		{"operator", a, 10, nil, RoleOperator},
		{"operator by group", a, 8, []uint32{1, 20}, RoleOperator},
		{"reader", a, 30, nil, RoleReader},
		{"reader by group", a, 8, []uint32{40}, RoleReader},
		{"reader in the operators' group", a, 30, []uint32{20}, RoleOperator},
		{"stranger with lists", a, 8, []uint32{8}, 0},
		{"user", users, 8, nil, RoleUser},
		{"reader beside users", users, 30, nil, RoleReader},
		{"nobody", users, overflowUID, nil, 0},
		{"no uid", users, ^uint32(0), nil, 0},
		{"nobody by name", Access{ReaderUIDs: []uint32{overflowUID}}, overflowUID, nil, RoleReader},
	}
	for _, tc := range tests {
		if got := tc.access.role(7, tc.uid, tc.groups); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	p := &places{
		bounds: Bounds{Conns: 6, ReservedConns: 2, ConnsPerUID: 3, InFlightPerUID: 2},
		perUID: map[uint32]int{}, inFlight: map[uint32]int{},
	}
	user, other, operator := Peer{UID: 1, Role: RoleUser}, Peer{UID: 2, Role: RoleReader}, Peer{UID: 0, Role: RoleOperator}
	take := func(peer Peer, want string) func() {
		t.Helper()
		release, refusal := p.conn(peer)
		if (refusal != nil) != (want != "") || refusal != nil && (!strings.Contains(refusal.Message, want) || !refusal.Retryable) {
			t.Fatalf("refusal %v, want %q", refusal, want)
		}
		return release
	}
	first := take(user, "")
	take(user, "")
	take(user, "")
	take(user, "uid 1 has 3 connections")
	take(other, "")
	take(other, "takes no more") // two of six are the operators'
	take(operator, "")
	take(operator, "")
	take(operator, "takes no more")
	first()
	take(user, "takes no more") // still: the operators have used theirs
	if p.conns != 5 || p.perUID[1] != 2 {
		t.Errorf("%+v", p)
	}
	for i := range 4 {
		_, refusal := p.request(user)
		_, never := p.request(operator)
		if (refusal != nil) != (i >= 2) || never != nil {
			t.Errorf("request %d: %v, %v", i, refusal, never)
		}
	}
}
