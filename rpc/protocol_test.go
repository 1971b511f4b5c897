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

// protocol returns the text of PROTOCOL.md below a heading.
func protocol(t *testing.T, heading string) string {
	t.Helper()
	data, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), heading+"\n")
	if !ok {
		t.Fatalf("PROTOCOL.md has no section %q", heading)
	}
	body, _, _ := strings.Cut(rest, "\n#")
	return body
}

// rows are the lines of a section's tables, the headings left out.
func rows(body string) []string {
	var all []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "|--") {
			all = all[:len(all)-1]
		} else if strings.HasPrefix(line, "| ") {
			all = append(all, line)
		}
	}
	return all
}

// PROTOCOL.md lists every method, and no others, in the order of the table.
func TestProtocolMethods(t *testing.T) {
	t.Parallel()
	lines := rows(protocol(t, "## 1.2 Methods"))
	if len(lines) != len(rpc.Methods()) {
		t.Fatalf("%d rows for %d methods", len(lines), len(rpc.Methods()))
	}
	for i, m := range rpc.Methods() {
		want := fmt.Sprintf("| %s | `%s %s`%s | %s", m.Name, m.HTTP, m.Path, italics(m), m.Role)
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("row %d is not %q", i, want)
		}
		if strings.Contains(lines[i], "| yes |") != m.Blocks {
			t.Errorf("%s: blocks is %v", m.Name, m.Blocks)
		}
		if m.Reply != nil && !strings.Contains(lines[i], "`"+m.Reply.Name()+"`") {
			t.Errorf("%s: the reply is %s", m.Name, m.Reply.Name())
		}
	}
}

// The same for codes.
func TestProtocolCodes(t *testing.T) {
	t.Parallel()
	body := protocol(t, "## 1.4 Replies and errors")
	for _, c := range rpc.Codes() {
		if !strings.Contains(body, fmt.Sprintf("| `%s` | %d |", c, c.HTTPStatus())) {
			t.Errorf("no row | `%s` | %d |", c, c.HTTPStatus())
		}
	}
	if n := len(rows(body)); n != len(rpc.Codes()) {
		t.Errorf("%d rows for %d codes", n, len(rpc.Codes()))
	}
}

// The same for the wrappers' frames.
func TestProtocolFrames(t *testing.T) {
	t.Parallel()
	body := protocol(t, "## 2.2 Frames")
	kinds := frameKinds(t)
	for _, kind := range kinds {
		if !strings.Contains(body, "| `"+kind+"` |") {
			t.Errorf("no frame %q", kind)
		}
	}
	if n := len(rows(body)); n != len(kinds) {
		t.Errorf("%d rows for %d frames", n, len(kinds))
	}
}

// The limits are those of the code.
func TestProtocolLimits(t *testing.T) {
	t.Parallel()
	body := protocol(t, "## 1.7 Limits")
	for _, want := range []string{
		fmt.Sprintf("%d MiB", rpc.DefaultBodyBytes>>20), fmt.Sprint(rpc.DefaultConns), fmt.Sprint(rpc.DefaultReservedConns),
		fmt.Sprintf("%d and %d", rpc.DefaultConnsPerUID, rpc.DefaultInFlightPerUID), "/ " + seconds(rpc.DefaultReadTimeout),
		"closed after " + seconds(rpc.DefaultWriteTimeout), "closed after 2 min",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the limits do not say %q", want)
		}
	}
	if !strings.Contains(protocol(t, "## 1.5 Streams"), "every "+seconds(rpc.DefaultHeartbeat)) {
		t.Error("the heartbeat is another")
	}
	if !strings.Contains(protocol(t, "## 1.6 Terminals"), fmt.Sprint(rpc.MaxTerminalFrame)) {
		t.Error("the longest frame is another")
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
