package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/user"
	"reflect"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Config makes a Server.
type Config struct {
	// Service does the work. Required.
	Service Service
	Access  Access
	Bounds  Bounds
	// Name gives the login name of a uid, for Peer.Name; nil = os/user.
	Name func(uid uint32) string
	// Panicked is told of a panic below a method; the caller gets CodeInternal.
	// nil = the panic is only answered.
	Panicked func(method string, value any, stack []byte)
	// Done is told of every request that was answered, and of refusals once a
	// peer is known; nil = nobody is told. It must not block.
	Done func(Call)
	// Metrics answers GET /metrics; nil = UNKNOWN_METHOD.
	Metrics http.Handler
}

// Call is one request that was answered.
type Call struct {
	Method  string // empty when no method was found
	Session string
	Peer    Peer
	Took    time.Duration
	// Err is what the Service or the server refused it with; nil = success.
	Err error
}

// Server serves the operators' socket.
type Server struct {
	cfg      Config
	access   atomic.Pointer[Access]
	http     *http.Server
	places   *places
	names    *names
	fresh    fresh
	refusing chan struct{}
	openapi  func() []byte
	draining atomic.Bool
	// blocking is cancelled at the start of Shutdown, base at its end.
	blocking, base             context.Context
	cancelBlocking, cancelBase context.CancelFunc
	// background counts refusals and terminals, which net/http does not know.
	background sync.WaitGroup
}

// SetAccess says who may do what from now on. A connection that is open keeps
// the role that it has.
func (s *Server) SetAccess(a Access) { s.access.Store(&a) }

// errShutdown is the cause of contexts that end because the server does.
var errShutdown = errors.New("the daemon is shutting down")

// NewServer makes a server; it serves nothing before Serve.
func NewServer(cfg Config) *Server {
	cfg.Bounds = cfg.Bounds.withDefaults()
	if cfg.Name == nil {
		cfg.Name = loginName
	}
	s := &Server{
		cfg:      cfg,
		places:   &places{bounds: cfg.Bounds, perUID: map[uint32]int{}, inFlight: map[uint32]int{}},
		names:    &names{lookup: cfg.Name, known: map[uint32]knownName{}},
		fresh:    fresh{conns: map[net.Conn]struct{}{}},
		refusing: make(chan struct{}, refusals),
		openapi:  sync.OnceValue(OpenAPI),
	}
	s.SetAccess(cfg.Access)
	s.base, s.cancelBase = context.WithCancel(context.Background())
	s.blocking, s.cancelBlocking = context.WithCancel(s.base)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.http = &http.Server{
		Handler:           s,
		Protocols:         protocols,
		ReadHeaderTimeout: min(readHeaderTimeout, cfg.Bounds.ReadTimeout),
		ReadTimeout:       cfg.Bounds.ReadTimeout,
		IdleTimeout:       cfg.Bounds.IdleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // what matters is told by Panicked and Done
		ConnState:         s.fresh.note,
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*admittedConn).peer)
		},
	}
	return s
}

type peerKey struct{}

func loginName(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return ""
	}
	return u.Username
}

// Serve accepts connections from l, a listening Unix socket, until Shutdown,
// which makes it return nil. Several listeners may be served at one time.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(&gate{Listener: l, s: s}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving requests: %w", err)
	}
	return nil
}

// Shutdown closes the listeners, ends what blocks by design (streams, waits,
// terminals: their callers come back to the next daemon), lets the rest finish
// until ctx ends and then cuts it off. It returns ctx's error when something
// had to be cut off; nothing of the server runs afterwards except a Service
// call that ignores its context.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.cancelBlocking()
	s.fresh.end()
	err := s.http.Shutdown(ctx)
	s.cancelBase()
	if err != nil {
		s.http.Close()
	}
	gone := make(chan struct{})
	go func() { // ends with the last refusal and terminal
		s.background.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("shutting down the rpc server: %w", err)
	}
	return nil
}

// request is one request on its way through the server.
type request struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	method *Method
	in     input
	// begun: a status line was written. upgraded: net/http has no more to do
	// with the connection, which is closed.
	begun, upgraded bool
}

// ServeHTTP answers one request of an admitted peer.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peer, _ := r.Context().Value(peerKey{}).(Peer)
	peer.Name = s.names.of(peer.UID)
	q := &request{s: s, w: w, r: r, in: input{peer: peer}}
	start := time.Now()
	err := q.serve()
	if s.cfg.Done != nil {
		s.cfg.Done(q.account(start, err))
	}
	if err != nil && !q.upgraded {
		q.fail(err)
	}
}

func (q *request) account(start time.Time, err error) Call {
	c := Call{Session: q.in.session, Peer: q.in.peer, Took: time.Since(start), Err: err}
	if q.method != nil {
		c.Method = q.method.Name
	}
	return c
}

// serve returns the error that is still to be answered.
func (q *request) serve() error {
	s := q.s
	if s.draining.Load() {
		return shutdownError()
	}
	if q.r.URL.Path == "/metrics" && q.r.Method == http.MethodGet && s.cfg.Metrics != nil {
		if q.in.peer.Role < RoleReader {
			return Errorf(CodeForbidden, "metrics need the %s role; uid %d has the %s role", RoleReader, q.in.peer.UID, q.in.peer.Role)
		}
		q.deadline()
		s.cfg.Metrics.ServeHTTP(q.w, q.r)
		return nil
	}
	method, session, err := route(q.r.Method, q.r.URL.EscapedPath())
	if err != nil {
		return err
	}
	q.method, q.in.session = method, session
	if q.in.peer.Role < method.Role {
		return Errorf(CodeForbidden, "%s needs the %s role; uid %d has the %s role", method.Name, method.Role, q.in.peer.UID, q.in.peer.Role)
	}
	release, refusal := s.places.request(q.in.peer)
	if refusal != nil {
		return refusal
	}
	defer release()
	if err := q.decode(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	if method.Blocks {
		defer context.AfterFunc(s.blocking, cancel)()
	}
	switch method.Stream {
	case StreamNDJSON:
		return q.stream(ctx)
	case StreamUpgrade:
		return q.upgrade(ctx)
	case StreamDocument:
		return q.write(http.StatusOK, s.openapi())
	}
	reply, err := q.call(ctx)
	if err != nil {
		return err
	}
	return q.reply(reply)
}

// decode reads the query and the body.
func (q *request) decode() error {
	var query any
	if t := q.method.Query; t != nil {
		query = reflect.New(t).Interface()
	}
	if err := decodeQuery(q.r.URL.RawQuery, query); err != nil {
		return err
	}
	q.in.query = query
	if q.method.Request == nil {
		if q.r.ContentLength != 0 {
			return Errorf(CodeInvalidRequest, "%s takes no body", q.method.Name)
		}
		return nil
	}
	data, err := q.body()
	if err != nil {
		return err
	}
	q.in.body = reflect.New(q.method.Request).Interface()
	return decodeBody(data, q.in.body)
}

// body reads the body, or refuses one that is too long without reading it;
// net/http then closes the connection.
func (q *request) body() ([]byte, error) {
	limit := q.s.cfg.Bounds.BodyBytes
	tooLarge := Errorf(CodeTooLarge, "the body is longer than %d bytes", limit).with("limit_bytes", limit)
	if enc := q.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, Errorf(CodeInvalidRequest, "content encoding %q is not supported", enc)
	}
	if q.r.ContentLength > limit {
		q.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	data, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, limit))
	var mbe *http.MaxBytesError
	switch {
	case errors.As(err, &mbe):
		return nil, tooLarge
	case err != nil:
		return nil, Errorf(CodeInvalidRequest, "the body did not arrive whole: %s", err)
	}
	return data, nil
}

// call calls the Service and turns a panic into CodeInternal.
func (q *request) call(ctx context.Context) (reply any, err error) {
	defer func() {
		if v := recover(); v != nil {
			if f := q.s.cfg.Panicked; f != nil {
				f(q.method.Name, v, debug.Stack())
			}
			reply, err = nil, Errorf(CodeInternal, "internal error in %s; the daemon's log has it", q.method.Name)
		}
	}()
	return q.method.call(q.s.cfg.Service, ctx, &q.in)
}

func (q *request) reply(v any) error {
	data, err := json.Marshal(withoutNilSlices(v))
	if err != nil {
		return fmt.Errorf("encoding the reply: %w", err)
	}
	return q.write(http.StatusOK, append(data, '\n'))
}

const contentJSON = "application/json"

// write sends one whole reply. A peer that does not take it is closed.
func (q *request) write(status int, data []byte) error {
	q.begun = true
	q.deadline()
	h := q.w.Header()
	h.Set("Content-Type", contentJSON)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	q.w.WriteHeader(status)
	q.w.Write(data) // a failure closes the connection; nobody is left to tell
	return nil
}

// deadline gives the peer the time of one reply to read.
func (q *request) deadline() {
	// Only a connection that is no longer there refuses a deadline.
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(q.s.cfg.Bounds.WriteTimeout))
}

// fail answers with err, or cuts the connection where an answer has begun or
// nobody waits for it.
func (q *request) fail(err error) {
	e := q.refusal(err)
	if q.begun || e == nil {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	data, err := json.Marshal(e)
	if err != nil { // details that are no JSON
		data = []byte(`{"code":"INTERNAL","message":"internal error","retryable":false}`)
	}
	q.write(e.Code.HTTPStatus(), append(data, '\n'))
}

// refusal turns err into what the peer may see; nil when it has gone.
func (q *request) refusal(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case q.s.draining.Load() && errors.Is(err, context.Canceled):
		return shutdownError()
	case errors.Is(err, context.Canceled) && q.r.Context().Err() != nil:
		return nil
	case q.in.peer.Role == RoleOperator:
		return Errorf(CodeInternal, "internal error: %s", err)
	}
	return Errorf(CodeInternal, "internal error; the daemon's log has it")
}

func shutdownError() *Error {
	return Errorf(CodeReconciling, "%s", errShutdown).retryIn(shutdownRetry)
}
