package engine

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/berthd/berth/statefs/record"
)

// specConflict says in which fields two specifications of a session differ. A
// session keeps its specification for life.
func specConflict(session string, have, want *record.Spec) *Refusal {
	details := map[string]any{}
	h, w := reflect.ValueOf(*have), reflect.ValueOf(*want)
	var names []string
	for i := range h.NumField() {
		name, _, _ := strings.Cut(h.Type().Field(i).Tag.Get("json"), ",")
		if name == "digest" || name == "env" || reflect.DeepEqual(h.Field(i).Interface(), w.Field(i).Interface()) {
			continue
		}
		names = append(names, name)
		if name == "setup" { // commands may hold what is not for an error text either
			continue
		}
		details[name] = map[string]any{"have": h.Field(i).Interface(), "want": w.Field(i).Interface()}
	}
	if !reflect.DeepEqual(have.Env, want.Env) { // its values are not for an error text
		names = append(names, "env")
	}
	return refusal(codeSpecConflict, false,
		"session %q has another specification (differs in %s); delete it or use another id",
		session, orSpelling(strings.Join(names, ", "))).with(map[string]any{"difference": details, "fields": fmt.Sprint(names)})
}

// orSpelling names the difference where the completed values are equal: the
// request spelled a default out, or left out what was given before.
func orSpelling(names string) string {
	if names == "" {
		return "what it leaves to defaults"
	}
	return names
}
