// Package rpc is berth's operators' interface: HTTP/1.1 and JSON on a Unix
// socket, described by one table (see Methods), from which the server, the
// typed client, the OpenAPI document and PROTOCOL.md's list are made.
//
// It owns names, shapes, error codes, who may call what, strict decoding and
// the limits on peers. It refuses to know sessions, leases and journals: those
// are behind Service, which berthd's api package implements. The wrappers'
// socket is rpc/wire.
package rpc
