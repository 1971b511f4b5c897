package rpc

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// APIVersion is the number in every path, "/v1".
const APIVersion = 1

// OpenAPI returns the interface as an OpenAPI 3.1 document in JSON, made from
// the table. The same program always returns the same bytes.
func OpenAPI() []byte {
	b := &openAPI{schemas: obj{}, requests: requestTypes()}
	paths := obj{}
	for _, m := range methods {
		item, ok := paths[m.Path].(obj)
		if !ok {
			item = obj{}
			paths[m.Path] = item
		}
		item[strings.ToLower(m.HTTP)] = b.operation(m)
	}
	b.ref(reflect.TypeFor[Size]())
	b.ref(reflect.TypeFor[Exit]())
	b.schemas["Error"] = errorSchema()
	doc := obj{
		"openapi": "3.1.0",
		"info": obj{
			"title":       "berth",
			"version":     "1",
			"description": openAPIIntro,
			"license":     obj{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []any{obj{"url": "http://berth", "description": "The Unix socket /run/berth/berth.sock; the host part of the URL is ignored."}},
		"paths":      paths,
		"components": obj{"schemas": b.schemas},
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic("internal error: encoding the OpenAPI document: " + err.Error())
	}
	return append(data, '\n')
}

const openAPIIntro = "berth's operators' interface: HTTP/1.1 on a Unix socket. " +
	"Fields may be added to replies at any time and must be ignored by who does not know them; " +
	"fields of requests that the daemon does not know are refused. See PROTOCOL.md."

type obj = map[string]any

// openAPI collects schemas by type name.
type openAPI struct {
	schemas  obj
	requests map[reflect.Type]bool
}

func (b *openAPI) operation(m *Method) obj {
	op := obj{
		"operationId":    m.Name,
		"summary":        m.Summary,
		"x-berth-role":   m.Role.String(),
		"x-berth-blocks": m.Blocks,
		"responses": obj{
			"default": obj{
				"description": "A refusal.",
				"content":     content(contentJSON, obj{"$ref": "#/components/schemas/Error"}),
			},
		},
	}
	if params := b.parameters(m); params != nil {
		op["parameters"] = params
	}
	if m.Request != nil {
		op["requestBody"] = obj{"required": false, "content": content(contentJSON, b.ref(m.Request))}
	}
	status, reply := b.success(m)
	op["responses"].(obj)[status] = reply
	return op
}

func content(kind string, schema any) obj { return obj{kind: obj{"schema": schema}} }

func (b *openAPI) success(m *Method) (status string, reply obj) {
	switch m.Stream {
	case StreamNDJSON:
		return "200", obj{
			"description": "One object per line; empty lines are heartbeats; a last line {\"error\": …} says why the stream failed.",
			"content":     content(contentNDJSON, b.ref(m.Reply)),
		}
	case StreamUpgrade:
		return "101", obj{"description": "The connection now speaks " + TerminalProtocol + "; PROTOCOL.md has its frames."}
	case StreamDocument:
		return "200", obj{"description": "This document.", "content": content(contentJSON, obj{"type": "object"})}
	}
	return "200", obj{"description": "Done.", "content": content(contentJSON, b.ref(m.Reply))}
}

func (b *openAPI) parameters(m *Method) []any {
	var params []any
	if strings.Contains(m.Path, "{id}") {
		params = append(params, obj{
			"name": "id", "in": "path", "required": true, "description": "The session's id.",
			"schema": obj{"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"},
		})
	}
	if m.Stream == StreamUpgrade {
		params = append(params, obj{
			"name": "Upgrade", "in": "header", "required": true,
			"schema": obj{"type": "string", "const": TerminalProtocol},
		})
	}
	if m.Query == nil {
		return params
	}
	for f := range m.Query.Fields() {
		p := obj{"name": queryName(f.Name), "in": "query", "required": false, "schema": b.schema(f.Type)}
		if d := fieldDocs[m.Query.Name()+"."+f.Name]; d != "" {
			p["description"] = d
		}
		params = append(params, p)
	}
	return params
}

// ref returns a reference to the schema of a named struct type, which it adds.
func (b *openAPI) ref(t reflect.Type) obj {
	r := obj{"$ref": "#/components/schemas/" + t.Name()}
	if _, ok := b.schemas[t.Name()]; ok {
		return r
	}
	s := obj{"type": "object"}
	b.schemas[t.Name()] = s // before its fields: types refer to each other
	props, required := obj{}, []string{}
	for f := range t.Fields() {
		name := jsonName(f)
		if name == "" {
			continue
		}
		p := b.schema(f.Type)
		if d := fieldDocs[t.Name()+"."+f.Name]; d != "" {
			p["description"] = d
		}
		props[name] = p
		if !strings.Contains(f.Tag.Get("json"), ",omit") {
			required = append(required, name)
		}
	}
	s["properties"] = props
	if len(required) > 0 {
		s["required"] = required
	}
	if b.requests[t] {
		s["additionalProperties"] = false
	}
	return r
}

func (b *openAPI) schema(t reflect.Type) obj {
	switch t.Kind() {
	case reflect.Pointer:
		return b.schema(t.Elem())
	case reflect.Bool:
		return obj{"type": "boolean"}
	case reflect.String:
		return obj{"type": "string"}
	case reflect.Float64:
		return obj{"type": "number"}
	case reflect.Int:
		return obj{"type": "integer"}
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return obj{"type": "integer", "minimum": 0}
	case reflect.Slice:
		if t == reflect.TypeFor[json.RawMessage]() {
			return obj{} // anything
		}
		if t.Elem().Kind() == reflect.Uint8 {
			return obj{"type": "string", "contentEncoding": "base64"}
		}
		return obj{"type": "array", "items": b.schema(t.Elem())}
	case reflect.Map:
		return obj{"type": "object", "additionalProperties": b.schema(t.Elem())}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return obj{"type": "string", "format": "date-time"}
		}
		return b.ref(t)
	}
	panic("internal error: no OpenAPI schema for " + t.String())
}

func errorSchema() obj {
	return obj{
		"type":     "object",
		"required": []string{"code", "message", "retryable"},
		"properties": obj{
			"code":        obj{"type": "string", "enum": Codes()},
			"message":     obj{"type": "string", "description": "What was refused, and why, for people."},
			"retryable":   obj{"type": "boolean", "description": "The same request may succeed later."},
			"retry_after": obj{"type": "number", "minimum": 0, "description": "Seconds to wait before the next try."},
			"details":     obj{"type": "object", "description": "Values for programs, by name."},
		},
	}
}

// requestTypes are the types that are decoded strictly and appear in no reply.
func requestTypes() map[reflect.Type]bool {
	in, out := map[reflect.Type]bool{}, map[reflect.Type]bool{}
	for _, m := range methods {
		if m.Request != nil {
			structs(m.Request, in)
		}
		if m.Reply != nil {
			structs(m.Reply, out)
		}
	}
	for t := range out {
		delete(in, t)
	}
	return in
}

// structs adds t and the structs below it to set.
func structs(t reflect.Type, set map[reflect.Type]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || set[t] {
		return
	}
	set[t] = true
	for f := range t.Fields() {
		structs(f.Type, set)
	}
}
