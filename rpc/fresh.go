package rpc

import (
	"net"
	"net/http"
	"sync"
)

// fresh holds the connections on which nothing has been asked yet. net/http
// counts them as busy for five seconds when it shuts down; clients keep such
// connections in store, so that an end would often take that long.
type fresh struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended bool
}

// note is the server's ConnState hook.
func (f *fresh) note(c net.Conn, state http.ConnState) {
	if f.keep(c, state == http.StateNew) {
		return
	}
	c.Close() // it came in while the server was ending
}

// keep remembers a new connection or forgets another; false = close it.
func (f *fresh) keep(c net.Conn, isNew bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !isNew {
		delete(f.conns, c)
		return true
	}
	if !f.ended {
		f.conns[c] = struct{}{}
	}
	return !f.ended
}

// end closes all, and what comes later.
func (f *fresh) end() {
	f.mu.Lock()
	conns := f.conns
	f.conns, f.ended = nil, true
	f.mu.Unlock()
	for c := range conns {
		c.Close() // nobody has asked for anything
	}
}
