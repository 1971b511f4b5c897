package rpc_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/rpc"
)

// PROTOCOL.md lists every method, code, frame kind and limit, and no others.
func TestProtocolIsComplete(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	section := func(heading string) string {
		_, rest, ok := strings.Cut(text, heading+"\n")
		if !ok {
			t.Fatalf("no section %q", heading)
		}
		body, _, _ := strings.Cut(rest, "\n#")
		return body
	}
	rows := func(body string) []string {
		var all []string
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|--") {
				all = append(all, line)
			}
		}
		return all
	}
	methods := rows(section("## 1.2 Methods"))[1:]
	for i, m := range rpc.Methods() {
		want := fmt.Sprintf("| %s | `%s %s`%s | %s", m.Name, m.HTTP, m.Path, italics(m), m.Role)
		if i >= len(methods) || !strings.HasPrefix(methods[i], want) {
			t.Errorf("row %d is not %q", i, want)
			continue
		}
		if blocks := strings.Contains(methods[i], "| yes |"); blocks != m.Blocks {
			t.Errorf("%s: blocks is %v", m.Name, blocks)
		}
		if m.Reply != nil && !strings.Contains(methods[i], "`"+m.Reply.Name()+"`") {
			t.Errorf("%s: the reply is %s", m.Name, m.Reply.Name())
		}
	}
	if len(methods) != len(rpc.Methods()) {
		t.Errorf("%d rows for %d methods", len(methods), len(rpc.Methods()))
	}
	errors := section("## 1.4 Replies and errors")
	for _, c := range rpc.Codes() {
		if !strings.Contains(errors, fmt.Sprintf("| `%s` | %d |", c, c.HTTPStatus())) {
			t.Errorf("no row | `%s` | %d |", c, c.HTTPStatus())
		}
	}
	if n := len(rows(errors)) - 1; n != len(rpc.Codes()) {
		t.Errorf("%d rows for %d codes", n, len(rpc.Codes()))
	}
	frames := section("## 2.2 Frames")
	for _, kind := range frameKinds(t) {
		if !strings.Contains(frames, "| `"+kind+"` |") {
			t.Errorf("no frame %q", kind)
		}
	}
	limits := section("## 1.7 Limits")
	for _, want := range []string{
		fmt.Sprintf("%d MiB", rpc.DefaultBodyBytes>>20), fmt.Sprint(rpc.DefaultConns), fmt.Sprint(rpc.DefaultReservedConns),
		fmt.Sprintf("%d and %d", rpc.DefaultConnsPerUID, rpc.DefaultInFlightPerUID), "/ " + seconds(rpc.DefaultReadTimeout),
		"closed after " + seconds(rpc.DefaultWriteTimeout), "closed after 2 min",
	} {
		if !strings.Contains(limits, want) {
			t.Errorf("the limits do not say %q", want)
		}
	}
	if !strings.Contains(text, "every "+seconds(rpc.DefaultHeartbeat)) || !strings.Contains(text, fmt.Sprint(rpc.MaxTerminalFrame)) {
		t.Error("the heartbeat or the longest frame is missing")
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

// italics are a method's query parameters as the table shows them.
func italics(m *rpc.Method) string {
	if m.Query == nil {
		return ""
	}
	var names []string
	for f := range m.Query.Fields() {
		names = append(names, queryName(f.Name))
	}
	return " *" + strings.Join(names, " ") + "*"
}

func queryName(field string) string {
	if field == "ReadOnly" {
		return "read_only"
	}
	return strings.ToLower(field)
}

// frameKinds reads the kinds of the wrappers' frames from their source.
func frameKinds(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "wire/frame.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Kind") && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					kinds = append(kinds, s)
				}
			}
		}
		return true
	})
	if len(kinds) < 5 {
		t.Fatalf("found only %v", kinds)
	}
	return kinds
}
