package rpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// gate is a listener that lets in only peers that have a role and room. The
// rest are told why, if they ask within refusalTimeout, and closed; nothing of
// what they send reaches net/http.
type gate struct {
	net.Listener
	s *Server
}

// admittedConn is a connection of a known peer.
type admittedConn struct {
	*net.UnixConn
	peer    Peer
	release func()
}

// Close closes the connection and gives its place back, once.
func (c *admittedConn) Close() error {
	c.release()
	return c.UnixConn.Close()
}

// Accept returns the next admitted connection.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			c.Close()
			return nil, errors.New("internal error: the listener is not a Unix socket")
		}
		cred, err := peerCredentials(u)
		if err != nil { // it is gone already
			u.Close()
			continue
		}
		peer := Peer{PID: cred.pid, UID: cred.uid, GID: cred.gid}
		peer.Role = g.s.access.Load().role(uint32(os.Geteuid()), cred.uid, cred.groups)
		if peer.Role == 0 {
			g.s.refuse(u, Errorf(CodeForbidden, "uid %d may not use this daemon", cred.uid))
			continue
		}
		release, refusal := g.s.places.conn(peer)
		if refusal != nil {
			g.s.refuse(u, refusal)
			continue
		}
		return &admittedConn{UnixConn: u, peer: peer, release: sync.OnceFunc(release)}, nil
	}
}

// refuse answers whatever c asks with e and closes it.
func (s *Server) refuse(c *net.UnixConn, e *Error) {
	select {
	case s.refusing <- struct{}{}:
	default:
		c.Close()
		return
	}
	s.background.Add(1)
	go func() { // owned by the server: Shutdown waits for it, refusalTimeout ends it
		defer s.background.Done()
		defer func() { <-s.refusing }()
		defer c.Close()
		c.SetDeadline(time.Now().Add(refusalTimeout))
		// A client that is answered before it has asked may miss the answer.
		r := bufio.NewReaderSize(c, 4096)
		for n := 0; n < headerBytes; {
			line, err := r.ReadSlice('\n')
			if n += len(line); err != nil || len(bytes.TrimSpace(line)) == 0 {
				break
			}
		}
		body, err := json.Marshal(e)
		if err != nil {
			return
		}
		status := e.Code.HTTPStatus()
		fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s\n",
			status, http.StatusText(status), contentJSON, len(body)+1, body)
	}()
}

// places counts connections and requests.
type places struct {
	bounds Bounds

	mu       sync.Mutex
	conns    int
	perUID   map[uint32]int
	inFlight map[uint32]int
}

// conn takes a place for a connection of p.
func (p *places) conn(peer Peer) (release func(), refusal *Error) {
	operator := peer.Role == RoleOperator
	free := p.bounds.Conns
	if !operator {
		free -= p.bounds.ReservedConns
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.conns >= free:
		return nil, Errorf(CodeBusy, "the daemon has %d connections and takes no more", p.conns).retryIn(busyRetry)
	case !operator && p.perUID[peer.UID] >= p.bounds.ConnsPerUID:
		return nil, Errorf(CodeBusy, "uid %d has %d connections and may have no more", peer.UID, p.perUID[peer.UID]).retryIn(busyRetry)
	}
	p.conns++
	p.perUID[peer.UID]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns--
		decrement(p.perUID, peer.UID)
	}, nil
}

// request takes a place for a request of p.
func (p *places) request(peer Peer) (release func(), refusal *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.inFlight[peer.UID]; peer.Role != RoleOperator && n >= p.bounds.InFlightPerUID {
		return nil, Errorf(CodeBusy, "uid %d has %d requests under way and may have no more", peer.UID, n).retryIn(busyRetry)
	}
	p.inFlight[peer.UID]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		decrement(p.inFlight, peer.UID)
	}, nil
}

func decrement(m map[uint32]int, uid uint32) {
	if m[uid]--; m[uid] <= 0 {
		delete(m, uid)
	}
}

// names remembers login names for the audit log.
type names struct {
	lookup func(uid uint32) string

	mu    sync.Mutex
	known map[uint32]knownName
}

type knownName struct {
	name  string
	until time.Time
}

// of returns the login name of uid; empty when it has none.
func (n *names) of(uid uint32) string {
	now := time.Now()
	n.mu.Lock()
	k, ok := n.known[uid]
	n.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.name
	}
	name := n.lookup(uid)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) >= 1024 { // uids of passing containers
		clear(n.known)
	}
	n.known[uid] = knownName{name, now.Add(nameTTL)}
	return name
}
