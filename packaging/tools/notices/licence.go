package main

import (
	"strings"

	"github.com/google/licensecheck"
)

// accepted are the licences that may be linked into a program under Apache-2.0
// and passed on with no more than their text and where the source is. Another
// one is for a person to look at before it is added here.
var accepted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// sure is how much of a file has to be a known licence for the file to be one.
// The rest is names and years.
const sure = 75

// licences recognizes the licences whose text a file holds; none in a file that
// grants or tells something else beside a licence.
func licences(name string, text []byte) []string {
	upper := strings.ToUpper(name)
	if strings.HasPrefix(upper, "PATENTS") || strings.HasPrefix(upper, "NOTICE") {
		return nil
	}
	coverage := licensecheck.Scan(text)
	if coverage.Percent < sure {
		return nil
	}
	var ids []string
	for _, m := range coverage.Match {
		if !m.IsURL {
			ids = append(ids, m.ID)
		}
	}
	return ids
}
