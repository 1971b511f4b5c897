package rpc

import (
	"net/url"
	"slices"
	"strings"
)

// route finds the method of an HTTP method and an escaped path, and the
// session id in it. There is no cleaning and no redirecting: a path is one of
// the table's or it is refused.
func route(verb, path string) (*Method, string, error) {
	given := strings.Split(path, "/")
	var allowed []string
	for _, m := range methods {
		id, ok := match(strings.Split(m.Path, "/"), given)
		if !ok {
			continue
		}
		if m.HTTP != verb {
			allowed = append(allowed, m.HTTP)
			continue
		}
		if !strings.Contains(m.Path, "{id}") {
			return m, "", nil
		}
		session, err := url.PathUnescape(id)
		if err != nil {
			return nil, "", CheckSessionID(id)
		}
		return m, session, CheckSessionID(session)
	}
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	if allowed != nil {
		slices.Sort(allowed)
		return nil, "", Errorf(CodeUnknownMethod, "%s is not for %q, which takes %s", verb, path, strings.Join(allowed, ", ")).
			with("allowed", allowed)
	}
	return nil, "", Errorf(CodeUnknownMethod, "there is no %s %q; GET /v1/openapi.json lists what there is", verb, path)
}

func match(pattern, given []string) (id string, ok bool) {
	if len(pattern) != len(given) {
		return "", false
	}
	for i, p := range pattern {
		if p == "{id}" {
			id = given[i]
		} else if p != given[i] {
			return "", false
		}
	}
	return id, true
}
