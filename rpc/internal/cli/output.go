package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// colour is an SGR parameter; empty = none.
type colour string

const (
	green  colour = "32"
	yellow colour = "33"
	red    colour = "31"
	bold   colour = "1"
)

// cell is one field of a table.
type cell struct {
	text string
	sgr  colour
}

// table is aligned columns for people. The first row is the heading.
type table [][]cell

func heading(names ...string) table {
	row := make([]cell, len(names))
	for i, n := range names {
		row[i] = cell{n, bold}
	}
	return table{row}
}

// add appends a row; fields are strings, cells, or anything that prints.
func (t *table) add(fields ...any) {
	row := make([]cell, len(fields))
	for i, f := range fields {
		switch f := f.(type) {
		case cell:
			row[i] = f
		case string:
			row[i] = cell{text: f}
		default:
			row[i] = cell{text: fmt.Sprint(f)}
		}
	}
	*t = append(*t, row)
}

// show prints v as JSON or, for people, with text.
func (a *app) show(v any, text func()) error {
	if a.output == "json" {
		return a.json(v, "  ")
	}
	text()
	return nil
}

// json prints v; with an indent over several lines, else on one.
func (a *app) json(v any, indent string) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// print writes the table with two blanks between its columns.
func (a *app) print(t table) {
	var widths []int
	for _, row := range t {
		for i := range row {
			row[i].text = printable(row[i].text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	var b strings.Builder
	for _, row := range t {
		last := len(row) - 1
		for last > 0 && row[last].text == "" {
			last--
		}
		for i, c := range row[:last+1] {
			b.WriteString(a.paint(c.sgr, c.text))
			if i < last {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprint(a.out, b.String())
}

// fields prints name: value lines, leaving out empty values.
func (a *app) fields(pairs ...any) {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(pairs[i].(string)))
	}
	for i := 0; i < len(pairs); i += 2 {
		name := pairs[i].(string)
		c, ok := pairs[i+1].(cell)
		if !ok {
			c.text = fmt.Sprint(pairs[i+1])
		}
		if c.text != "" {
			fmt.Fprintf(a.out, "%s:%s%s\n", name, strings.Repeat(" ", width-len(name)+2), a.paint(c.sgr, printable(c.text)))
		}
	}
}

func (a *app) paint(sgr colour, text string) string {
	_, off := os.LookupEnv("NO_COLOR")
	if sgr == "" || text == "" || !a.tty || a.noColor || off {
		return text
	}
	return "\x1b[" + string(sgr) + "m" + text + "\x1b[0m"
}

// printable shows control characters as escapes: names and details come from
// processes that may want to play with the terminal.
func printable(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// bytesText is n in the largest unit that leaves at least 1.
func bytesText(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), -1
	for v >= 1024 && unit < 5 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[unit])
}

// ageText is d in its largest unit: 5s, 12m, 3h, 4d.
func ageText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// since is the age of a wall time; empty for none.
func (a *app) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ageText(a.now().Sub(t))
}

// seconds is a number of seconds from the daemon as a duration for people.
func seconds(s float64) string {
	return (time.Duration(s * float64(time.Second))).Round(10 * time.Millisecond).String()
}

// orDash shows that a field is empty on purpose.
func orDash[T comparable](v T) string {
	var zero T
	if v == zero {
		return "-"
	}
	return fmt.Sprint(v)
}

// commandText is an argv as a line that a shell would read the same way.
func commandText(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("@%_-+=:,./", r)
		}) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}
