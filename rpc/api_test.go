package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/berthd/berth/rpc"
)

var update = flag.Bool("update", false, "write generated files and goldens anew")

// golden compares got with a committed file, or writes it.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not current; go test ./rpc -run %s -update writes it", path, t.Name())
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range rpc.Methods() {
		for _, key := range []string{m.Name, m.HTTP + " " + m.Path} {
			if seen[key] {
				t.Errorf("%s is there twice", key)
			}
			seen[key] = true
		}
		if m.Summary == "" || !strings.HasSuffix(m.Summary, ".") || !strings.HasPrefix(m.Path, "/v1/") {
			t.Errorf("%s: path %q, summary %q", m.Name, m.Path, m.Summary)
		}
		if m.Changes() != (m.HTTP == "POST") || m.Changes() && m.Role < rpc.RoleUser {
			t.Errorf("%s: %s for role %v", m.Name, m.HTTP, m.Role)
		}
		if rpc.MethodNamed(m.Name) != m {
			t.Errorf("MethodNamed(%q)", m.Name)
		}
	}
	// Every method of Service is in the table.
	svc := reflect.TypeFor[rpc.Service]()
	for i := range svc.NumMethod() {
		name := strings.ToLower(svc.Method(i).Name)
		if !seen[name] {
			t.Errorf("no row calls Service.%s", svc.Method(i).Name)
		}
	}
}

// codes reads the Code constants from the source.
func codes(t *testing.T) []rpc.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []rpc.Code
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Code") || len(v.Values) != 1 {
			return true
		}
		if lit, ok := v.Values[0].(*ast.BasicLit); ok {
			s, _ := strconv.Unquote(lit.Value)
			all = append(all, rpc.Code(s))
		}
		return true
	})
	slices.Sort(all)
	return all
}

// The set of codes is closed, each has a status, and each survives the wire.
func TestCodes(t *testing.T) {
	t.Parallel()
	all := codes(t)
	if !slices.Equal(all, rpc.Codes()) {
		t.Errorf("declared: %v\nmapped:   %v", all, rpc.Codes())
	}
	for _, c := range all {
		if s := c.HTTPStatus(); s < 400 || s > 599 || http.StatusText(s) == "" {
			t.Errorf("%s has status %d", c, s)
		}
		data, err := json.Marshal(&rpc.Error{Code: c, Message: "m"})
		if err != nil {
			t.Fatal(err)
		}
		var back rpc.Error
		if err := json.Unmarshal(data, &back); err != nil || back.Code != c {
			t.Errorf("%s came back as %q (%v)", c, back.Code, err)
		}
		if e := rpc.ParseTerminalError([]byte(string(c) + ": why: so")); e.Code != c || e.Message != "why: so" {
			t.Errorf("%s came back from a terminal as %+v", c, e)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(rpc.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, m := range rpc.Methods() {
		item := doc.Paths.Value(m.Path)
		if item == nil || item.GetOperation(m.HTTP) == nil || item.GetOperation(m.HTTP).OperationID != m.Name {
			t.Errorf("%s %s is missing", m.HTTP, m.Path)
		}
	}
	golden(t, "testdata/openapi.json", rpc.OpenAPI())
}

// What the server answers is what the document says.
func TestRepliesMatchOpenAPI(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(rpc.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	_, srv := start(t, rpc.Config{})
	w := dial(t, srv.Path)
	ask := func(m *rpc.Method) {
		t.Helper()
		request := get(m.Expand("s"))
		if m.Changes() {
			request = post(m.Expand("s"), map[string]string{
				"start": `{"spec":{"command":["a"]}}`, "resolve": `{"action":"adopt","verified":true,"why":"w"}`, "delete": `{"wait":true}`,
			}[m.Name])
		}
		status, body := w.ask(t, request)
		op := doc.Paths.Value(m.Path).GetOperation(m.HTTP)
		reply := op.Responses.Value(strconv.Itoa(status))
		if reply == nil {
			reply = op.Responses.Default()
		}
		for kind, media := range reply.Value.Content {
			lines := []string{body}
			if strings.HasSuffix(kind, "ndjson") {
				lines = strings.Split(strings.TrimSpace(body), "\n")
			}
			for _, line := range lines {
				var v any
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatalf("%s: %v: %q", m.Name, err, line)
				}
				if err := media.Schema.Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
					t.Errorf("%s: %v", m.Name, err)
				}
			}
		}
	}
	order := []string{"get", "start", "get", "list", "send", "explain", "events", "stop", "wait", "resolve", "delete", "explain"}
	for _, m := range rpc.Methods() {
		if !strings.Contains(m.Path, "{id}") && m.Name != "openapi" {
			order = append(order, m.Name)
		}
	}
	for _, name := range order {
		ask(rpc.MethodNamed(name))
	}
}

// openapi_docs.go holds the comments of the fields in types.go and service.go.
func TestFieldDocs(t *testing.T) {
	t.Parallel()
	docs := map[string]string{}
	for _, name := range []string{"types.go", "service.go", "terminal.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && spec.Name.IsExported() {
				for _, f := range s.Fields.List {
					text := strings.TrimSpace(f.Doc.Text() + " " + f.Comment.Text())
					if len(f.Names) > 0 && text != "" {
						for _, id := range f.Names {
							docs[spec.Name.Name+"."+id.Name] = strings.Join(strings.Fields(text), " ")
						}
					}
				}
			}
			return true
		})
	}
	var b bytes.Buffer
	b.WriteString("// Code generated by go test ./rpc -run TestFieldDocs -update; DO NOT EDIT.\n\npackage rpc\n\n")
	b.WriteString("// fieldDocs are the comments of fields, for the OpenAPI document.\nvar fieldDocs = map[string]string{\n")
	keys := make([]string, 0, len(docs))
	for k := range docs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		b.WriteString("\t" + strconv.Quote(k) + ": " + strconv.Quote(docs[k]) + ",\n")
	}
	b.WriteString("}\n")
	src, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "openapi_docs.go", src)
}
