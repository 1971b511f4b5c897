package main

import (
	"bytes"
	"fmt"
	"strings"
)

const preface = `berth is under the Apache License 2.0. Its programs contain the following modules
of others, under the terms that follow. The source of each is what the Go module
proxy, or the module's own repository, has under the path and version shown; it
is used unchanged. "std" is the Go distribution: its runtime and library.

`

// licenceText is the list of all modules and the terms of each. Terms that
// several share word by word stand once.
func licenceText(modules []*module) []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	for _, m := range modules {
		fmt.Fprintf(&b, "%-50s %-42s %s\n", m.Path, m.Version, strings.Join(m.Licences, ", "))
	}
	same := map[string][]string{} // who has this text
	var texts []string
	for _, m := range modules {
		for _, n := range m.Notices {
			if same[n.text] == nil {
				texts = append(texts, n.text)
			}
			same[n.text] = append(same[n.text], m.Path+" "+m.Version+", "+n.name)
		}
	}
	rule := strings.Repeat("=", 80) + "\n"
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s%s\n%s\n%s\n", rule, strings.Join(same[text], "\n"), rule, strings.TrimRight(text, "\n"))
	}
	return b.Bytes()
}
