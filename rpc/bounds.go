package rpc

import "time"

// Bounds limits what peers can take from the server. Every zero field means
// its default.
type Bounds struct {
	// BodyBytes is the longest request body.
	BodyBytes int64
	// Conns is the number of connections at one time; ReservedConns of them
	// are for operators only, so that users cannot lock them out.
	Conns, ReservedConns int
	// ConnsPerUID and InFlightPerUID bound each uid that is no operator:
	// connections, and requests that are being served (streams count).
	ConnsPerUID, InFlightPerUID int
	// ReadTimeout bounds the arrival of one request, its body included.
	ReadTimeout time.Duration
	// IdleTimeout closes a connection on which nothing is asked.
	IdleTimeout time.Duration
	// WriteTimeout bounds writing one reply, one record or one terminal frame:
	// the time that a peer may stop reading.
	WriteTimeout time.Duration
	// Heartbeat is the time between the empty lines that show on a silent
	// stream that the server lives.
	Heartbeat time.Duration
}

// Defaults of Bounds. PROTOCOL.md lists them.
const (
	DefaultBodyBytes      = 1 << 20
	DefaultConns          = 4096
	DefaultReservedConns  = 64
	DefaultConnsPerUID    = 1024
	DefaultInFlightPerUID = 512
	DefaultReadTimeout    = 30 * time.Second
	DefaultIdleTimeout    = 2 * time.Minute
	DefaultWriteTimeout   = 30 * time.Second
	DefaultHeartbeat      = 15 * time.Second
)

const (
	// readHeaderTimeout bounds the arrival of a request's header.
	readHeaderTimeout = 10 * time.Second
	// headerBytes is the longest header; net/http adds 4 KiB of slack.
	headerBytes = 16 << 10
	// streamStart is how long a stream without a record may keep its caller
	// waiting for the status line: errors that come sooner have a status of
	// their own, later ones are the stream's last line.
	streamStart = 250 * time.Millisecond
	// streamBuffer is the number of records that may wait to be written.
	streamBuffer = 64
	// refusalTimeout bounds the talk with somebody who may not connect, and
	// refusals how many such talks are held at one time; others are closed
	// without a word.
	refusalTimeout = time.Second
	refusals       = 32
	// busyRetry is what a refused peer is told to wait.
	busyRetry = time.Second
	// shutdownRetry is what a caller is told to wait for the next daemon.
	shutdownRetry = 2 * time.Second
	// nameTTL is how long the name of a uid is remembered.
	nameTTL = time.Minute
)

func (b Bounds) withDefaults() Bounds {
	setDefault(&b.BodyBytes, DefaultBodyBytes)
	setDefault(&b.Conns, DefaultConns)
	setDefault(&b.ReservedConns, min(DefaultReservedConns, b.Conns/4))
	setDefault(&b.ConnsPerUID, DefaultConnsPerUID)
	setDefault(&b.InFlightPerUID, DefaultInFlightPerUID)
	setDefault(&b.ReadTimeout, DefaultReadTimeout)
	setDefault(&b.IdleTimeout, DefaultIdleTimeout)
	setDefault(&b.WriteTimeout, DefaultWriteTimeout)
	setDefault(&b.Heartbeat, DefaultHeartbeat)
	return b
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
