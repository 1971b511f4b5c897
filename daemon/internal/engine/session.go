package engine

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/evidence"
	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/daemon/internal/sys"
	"github.com/berthd/berth/rpc/wire"
	"github.com/berthd/berth/statefs/record"
)

// Adoption says how far the daemon has got with a wrapper that it has not
// launched itself. The zero value: nothing to adopt.
type Adoption string

// The steps of an adoption.
const (
	Reconciling Adoption = "reconciling" // nobody has looked yet
	Present     Adoption = "present"     // the witnesses agree that it is there
	Adopted     Adoption = "adopted"     // it has said hello
	Unknown     Adoption = "unknown"     // it is there, or may be, and says nothing
)

// session is one session as Run sees it. lease, state and spec are as they are
// on disk; the rest is volatile and is made again after a restart.
type session struct {
	id    string
	lease record.Lease
	state lease.State
	spec  *record.Spec
	view  *View

	link       Link
	status     wire.Status
	adoption   Adoption
	linkDownAt time.Duration // when the link was lost, or the daemon started
	lookAt     time.Duration // when to look at the witnesses again; 0 = no plan
	looking    bool          // an observation is under way
	lookAgain  bool          // another one was asked for meanwhile
	heldFor    WrapperKey    // the instance whose end is being watched
	leftFor    WrapperKey    // the instance that was seen to have left something
	launch     *work         // the launch under way
	attempt    *work         // the stop attempt under way
	releasing  bool
	deleting   *work
	reclaiming bool
	reclaimed  []func(Reclaimed, error) // who waits for the end of that
	startKeys  []opKey                  // start operations in flight
	openKeys   []opKey                  // stop and delete operations in flight
	waiters    []func(Started, error)
	parked     []command        // starts that wait for the adoption
	token      string           // of an allocation whose launch has not begun
	firstUse   bool             // of that allocation: the workspace is new
	lastReport *evidence.Report // of the newest look
	due        time.Duration    // when Run must look at it again, see due.go
	dueIndex   int              // place in the queue, -1 = not queued
	raiseTo    uint64           // what generations must not fall below, from the journal
}

// work is one effect under way.
type work struct {
	id     string
	cancel context.CancelFunc
	done   chan struct{}
}

// instance is the key of the instance that the lease names.
func (s *session) instance() WrapperKey {
	return WrapperKey{Session: s.id, Instance: s.state.Instance.ID, Generation: s.state.Instance.Generation}
}

// identity is the recorded wrapper process; the zero Identity before it was verified.
func identity(l *record.Lease) sys.Identity {
	w := l.Wrapper
	return sys.Identity{PID: w.PID, StartTicks: w.StartTicks, PidfdInode: w.PidfdInode, BootID: w.BootID}
}

// subject is what the witnesses are asked about.
func (e *Engine) subject(l *record.Lease, linkUp bool) evidence.Subject {
	s := evidence.Subject{
		HostID: e.opts.HostID, Session: l.Session, Instance: l.Instance, Generation: l.Generation,
		OwnerUID: l.UID, DaemonUID: e.opts.UID, Escapable: l.UID == e.opts.UID,
		LeafPath: l.Wrapper.Leaf, LeafParentInode: l.Wrapper.LeafParentInode,
		Wrapper: identity(l), Since: l.Wrapper.Since,
	}
	if l.Generation > 0 {
		s.LockPath = e.opts.GenerationDir(l.Session, l.Generation) + "/lock"
	} else {
		e.rebase(&s, l)
	}
	s.Weak = s.LeafPath == ""
	if linkUp {
		s.Link, s.LinkAt = evidence.Present, e.opts.Now()
	}
	return s
}

// rebase makes a subject without an instance be about the tree of today. That
// the last leaf is gone was proven when the session became vacant; the tree it
// was in may be gone since, by a reboot or by the end of an empty daemon, and
// one that is made anew must not leave its end in doubt for ever.
func (e *Engine) rebase(s *evidence.Subject, l *record.Lease) {
	if l.Wrapper.Leaf != "" {
		if path, inode := e.opts.LeafAt(filepath.Base(l.Wrapper.Leaf)); path != "" {
			s.LeafPath, s.LeafParentInode = path, inode
		}
	}
	if boot, _, _ := strings.Cut(e.opts.Epoch, ":"); l.Wrapper.BootID != boot {
		s.Since = 0 // a time of another boot says nothing in this one
	}
}

// problem is one line on what is wrong with a session, empty = nothing.
func (s *session) problem() string {
	switch {
	case s.lease.Unreadable != "":
		return s.lease.Unreadable
	case s.state.Kind == lease.Quarantined:
		return "quarantined: " + s.state.Stop.LastError
	case s.lease.Deletion != nil && s.lease.Deletion.LastError != "":
		return "deletion is held up: " + s.lease.Deletion.LastError
	case s.state.Vacant() && len(s.lease.Debts) > 0 && s.lease.Debts[0].LastError != "":
		return "provider " + s.lease.Debts[0].Provider + " has not released what it had: " + s.lease.Debts[0].LastError
	case s.state.Owned() && s.adoption == Unknown:
		return "the wrapper does not answer"
	}
	return ""
}
