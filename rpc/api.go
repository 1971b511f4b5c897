package rpc

import (
	"context"
	"reflect"
	"strings"
)

// Stream says how a method's reply travels. Zero is invalid.
type Stream uint8

// The kinds of replies.
const (
	// StreamNone is one JSON object.
	StreamNone Stream = iota + 1
	// StreamNDJSON is one JSON object per line until the end.
	StreamNDJSON
	// StreamUpgrade is a connection that becomes a terminal (see TerminalProtocol).
	StreamUpgrade
	// StreamDocument is what the server makes itself, without the Service.
	StreamDocument
)

// Method is one row of the table.
type Method struct {
	// Name is the method's name, the berthctl verb where there is one.
	Name string
	// HTTP is GET for what has no side effects, else POST.
	HTTP string
	// Path is the URL path; "{id}" stands for a session id.
	Path string
	// Query, Request and Reply are the struct types of the query parameters,
	// of the JSON body and of the reply (of one record for StreamNDJSON); nil = none.
	Query, Request, Reply reflect.Type
	Stream                Stream
	// Role is the least role that may call it. Whose session it is, the
	// Service checks.
	Role Role
	// Blocks marks a call that may take long by design. Its context ends as
	// soon as the server shuts down, and the call can be repeated.
	Blocks bool
	// Summary is one line for the OpenAPI document.
	Summary string

	call invoke
}

// Changes tells whether the method has side effects.
func (m *Method) Changes() bool { return m.HTTP != "GET" }

// invoke calls the Service. emit is set for StreamNDJSON, term for
// StreamUpgrade; body and query are pointers to the row's types.
type invoke func(s Service, ctx context.Context, in *input) (any, error)

// input is a decoded request.
type input struct {
	peer    Peer
	session string
	query   any
	body    any
	emit    func(any) error
	term    Terminal
}

// methods is the table. Everything else about the interface follows from it.
var methods = []*Method{
	row("status", "GET", "/v1/status", RoleReader, "The daemon's account of itself.", onHost(Service.Status)),
	row("version", "GET", "/v1/version", RoleReader, "Versions of the programs and protocols.", onHost(Service.Version)),
	row("capacity", "GET", "/v1/capacity", RoleReader, "Room on the file systems that berth uses.", onHost(Service.Capacity)),
	row("gc", "GET", "/v1/gc", RoleReader, "Which workspaces would be reclaimed if room were needed, and why not.", blocks, onHost(Service.GC)),
	row("providers", "GET", "/v1/providers", RoleReader, "The sandbox providers and their processes.", onHost(Service.Providers)),
	row("scan", "GET", "/v1/scan", RoleReader, "What runs on the host: ours, legacy and strays.", onHost(Service.Scan)),
	row("openapi", "GET", "/v1/openapi.json", RoleReader, "This interface as an OpenAPI 3.1 document.", document),
	row("events", "GET", "/v1/events", RoleReader, "Durable events, oldest first.", events),
	row("operations", "GET", "/v1/operations", RoleReader, "Operations by their keys, and what they were answered.", onHostWithQuery(Service.Operations)),
	row("list", "GET", "/v1/sessions", RoleReader, "All sessions that the caller may see, by id.", onHost(Service.List)),
	row("get", "GET", "/v1/sessions/{id}", RoleReader, "One session.", onSession(Service.Get)),
	row("explain", "GET", "/v1/sessions/{id}/explain", RoleReader, "Every witness of a session with its answer and age.", onSession(Service.Explain)),
	row("wait", "GET", "/v1/sessions/{id}/wait", RoleReader, "Answers when the session owns no instance any more.", blocks, onSession(Service.Wait)),
	row("logs", "GET", "/v1/sessions/{id}/logs", RoleReader, "The output of one generation.", logs),
	row("attach", "GET", "/v1/sessions/{id}/attach", RoleReader, "Join the session's terminal; to write needs the user role.", attach),
	row("start", "POST", "/v1/sessions/{id}/start", RoleUser, "Start a session; answers when its wrapper is verified.", blocks, withBody(Service.Start)),
	row("send", "POST", "/v1/sessions/{id}/send", RoleUser, "Give bytes to the agent's input.", withBody(Service.Send)),
	row("stop", "POST", "/v1/sessions/{id}/stop", RoleUser, "Stop a session.", blocks, withBody(Service.Stop)),
	row("delete", "POST", "/v1/sessions/{id}/delete", RoleUser, "Delete a session for good.", blocks, withBody(Service.Delete)),
	row("drain", "POST", "/v1/drain", RoleOperator, "Start nothing any more; on request stop all sessions.", blocks, onHostWithBody(Service.Drain)),
	row("undrain", "POST", "/v1/undrain", RoleOperator, "Let sessions be started again.", onHostWithBody(Service.Undrain)),
	row("resolve", "POST", "/v1/sessions/{id}/resolve", RoleOperator, "Settle a lease that berth cannot settle.", withBody(Service.Resolve)),
}

// Methods returns the table. The caller must not change the rows.
func Methods() []*Method { return append([]*Method(nil), methods...) }

// MethodNamed returns the row of that name; nil when there is none.
func MethodNamed(name string) *Method {
	for _, m := range methods {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Expand returns the method's path for a session.
func (m *Method) Expand(session string) string {
	return strings.ReplaceAll(m.Path, "{id}", session)
}

type option func(*Method)

func row(name, verb, path string, role Role, summary string, opts ...option) *Method {
	m := &Method{Name: name, HTTP: verb, Path: path, Role: role, Summary: summary, Stream: StreamNone}
	for _, o := range opts {
		o(m)
	}
	return m
}

func blocks(m *Method) { m.Blocks = true }

func document(m *Method) { m.Stream = StreamDocument }

func onHost[R any](f func(Service, context.Context, Peer) (R, error)) option {
	return func(m *Method) {
		m.Reply = reflect.TypeFor[R]()
		m.call = func(s Service, ctx context.Context, in *input) (any, error) {
			return f(s, ctx, in.peer)
		}
	}
}

func onHostWithBody[Q, R any](f func(Service, context.Context, Peer, Q) (R, error)) option {
	return func(m *Method) {
		m.Request, m.Reply = reflect.TypeFor[Q](), reflect.TypeFor[R]()
		m.call = func(s Service, ctx context.Context, in *input) (any, error) {
			return f(s, ctx, in.peer, *in.body.(*Q))
		}
	}
}

func onHostWithQuery[Q, R any](f func(Service, context.Context, Peer, Q) (R, error)) option {
	return func(m *Method) {
		m.Query, m.Reply = reflect.TypeFor[Q](), reflect.TypeFor[R]()
		m.call = func(s Service, ctx context.Context, in *input) (any, error) {
			return f(s, ctx, in.peer, *in.query.(*Q))
		}
	}
}

func onSession[R any](f func(Service, context.Context, Peer, string) (R, error)) option {
	return func(m *Method) {
		m.Reply = reflect.TypeFor[R]()
		m.call = func(s Service, ctx context.Context, in *input) (any, error) {
			return f(s, ctx, in.peer, in.session)
		}
	}
}

func withBody[Q, R any](f func(Service, context.Context, Peer, string, Q) (R, error)) option {
	return func(m *Method) {
		m.Request, m.Reply = reflect.TypeFor[Q](), reflect.TypeFor[R]()
		m.call = func(s Service, ctx context.Context, in *input) (any, error) {
			return f(s, ctx, in.peer, in.session, *in.body.(*Q))
		}
	}
}

func logs(m *Method) {
	stream[LogsQuery, LogRecord](m)
	m.call = func(s Service, ctx context.Context, in *input) (any, error) {
		return nil, s.Logs(ctx, in.peer, in.session, *in.query.(*LogsQuery), func(r LogRecord) error { return in.emit(r) })
	}
}

func events(m *Method) {
	stream[EventsQuery, Event](m)
	m.call = func(s Service, ctx context.Context, in *input) (any, error) {
		return nil, s.Events(ctx, in.peer, *in.query.(*EventsQuery), func(e Event) error { return in.emit(e) })
	}
}

func stream[Q, R any](m *Method) {
	m.Stream, m.Blocks = StreamNDJSON, true
	m.Query, m.Reply = reflect.TypeFor[Q](), reflect.TypeFor[R]()
}

func attach(m *Method) {
	m.Stream, m.Blocks = StreamUpgrade, true
	m.Query = reflect.TypeFor[AttachQuery]()
	m.call = func(s Service, ctx context.Context, in *input) (any, error) {
		q := *in.query.(*AttachQuery)
		// Reading a terminal is reading; writing to it is not.
		if !q.ReadOnly && in.peer.Role < RoleUser {
			return nil, Errorf(CodeForbidden, "writing to the terminal of session %q needs the user role; read_only=true does not", in.session)
		}
		return nil, s.Attach(ctx, in.peer, in.session, q, in.term)
	}
}
