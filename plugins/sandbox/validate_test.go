package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func request() PrepareRequest {
	return PrepareRequest{
		Handle: "h.s-1_g3", Session: "s", Generation: 3, Workspace: "/w", Home: "/h",
		Command: []string{"true"}, Env: []string{"A=", "B=c=d"},
	}
}

func TestRequestRefusals(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*PrepareRequest)
		want   string
	}{
		"good":               {func(*PrepareRequest) {}, ""},
		"no handle":          {func(r *PrepareRequest) { r.Handle = "" }, "1 to 255 bytes"},
		"long handle":        {func(r *PrepareRequest) { r.Handle = Handle(strings.Repeat("a", 256)) }, "1 to 255 bytes"},
		"handle with slash":  {func(r *PrepareRequest) { r.Handle = "a/b" }, "more than"},
		"handle not ASCII":   {func(r *PrepareRequest) { r.Handle = "a\u00e9" }, "more than"},
		"handle dots":        {func(r *PrepareRequest) { r.Handle = ".." }, "no name"},
		"no session":         {func(r *PrepareRequest) { r.Session = "" }, "names its session"},
		"generation 0":       {func(r *PrepareRequest) { r.Generation = 0 }, "names its session"},
		"relative workspace": {func(r *PrepareRequest) { r.Workspace = "w" }, "workspace"},
		"unclean workspace":  {func(r *PrepareRequest) { r.Workspace = "/w/../etc" }, "workspace"},
		"NUL in workspace":   {func(r *PrepareRequest) { r.Workspace = "/w\x00" }, "NUL"},
		"relative home":      {func(r *PrepareRequest) { r.Home = "" }, "home"},
		"no command":         {func(r *PrepareRequest) { r.Command = nil }, "empty"},
		"empty command name": {func(r *PrepareRequest) { r.Command = []string{"", "x"} }, "empty"},
		"NUL in argument":    {func(r *PrepareRequest) { r.Command = []string{"a", "b\x00c"} }, "argument 1"},
		"long argument":      {func(r *PrepareRequest) { r.Command = []string{strings.Repeat("a", MaxStringBytes+1)} }, "at most"},
		"env without =":      {func(r *PrepareRequest) { r.Env = []string{"A=b", "SECRET"} }, "entry 1"},
		"env without name":   {func(r *PrepareRequest) { r.Env = []string{"=b"} }, "entry 0"},
		"NUL in env":         {func(r *PrepareRequest) { r.Env = []string{"A=s3cret\x00"} }, "NUL"},
		"forged marker":      {func(r *PrepareRequest) { r.Env = []string{"BERTH_SESSION=other"} }, "daemon's own"},
	}
	for name, c := range cases {
		r := request()
		c.change(&r)
		check(t, name, r.Validate(), c.want)
	}
}

// case H2: a refusal never repeats a value that may be secret.
func TestRefusalKeepsSecrets(t *testing.T) {
	t.Parallel()
	for _, e := range []string{"A=s3cret\x00", "s3cret", "BERTH_HOST=s3cret", "A=s3cret" + strings.Repeat("x", MaxStringBytes)} {
		r := request()
		r.Env = []string{e}
		if err := r.Validate(); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("refusal of %.20q: %.80v", e, err)
		}
	}
}

func TestRecipeRefusals(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Recipe)
		want   string
	}{
		"good":          {func(*Recipe) {}, ""},
		"version":       {func(r *Recipe) { r.Version = 2 }, "version 2"},
		"argv":          {func(r *Recipe) { r.Argv = nil }, "empty"},
		"env":           {func(r *Recipe) { r.Env = []string{"BERTH_GENERATION=1"} }, "daemon's own"},
		"dir":           {func(r *Recipe) { r.Dir = "x" }, "directory"},
		"umask":         {func(r *Recipe) { r.Umask = 0o1000 }, "umask"},
		"rlimit name":   {func(r *Recipe) { r.Rlimits = []Rlimit{{Name: "NPROC"}} }, "unknown"},
		"rlimit values": {func(r *Recipe) { r.Rlimits = []Rlimit{{Name: "nproc", Soft: 2, Hard: 1}} }, "above hard"},
	}
	for name, c := range cases {
		r := Recipe{Version: Version, Argv: []string{"a"}, Dir: "/", Rlimits: []Rlimit{{"nofile", 1, 2}}}
		c.change(&r)
		check(t, name, r.Validate(), c.want)
	}
}

func TestObservationRefusals(t *testing.T) {
	t.Parallel()
	check(t, "absent", Observation{Presence: Absent}.Validate(), "")
	check(t, "zero", Observation{}.Validate(), "presence")
	check(t, "word", Observation{Presence: "gone"}.Validate(), "presence")
	check(t, "cgroup", Observation{Presence: Present, Cgroups: []string{"a"}}.Validate(), "cgroup")
}

func TestReasonSet(t *testing.T) {
	t.Parallel()
	if !RuntimeNotRunning.Known() || Reason("").Known() || Reason("x").Known() {
		t.Error("Known does not follow the closed set")
	}
}

func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: got %v, want %q", name, err, want)
	case err != nil:
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != InvalidRequest || e.Retryable {
			t.Errorf("%s: not a final invalid_request: %#v", name, err)
		}
	}
}
