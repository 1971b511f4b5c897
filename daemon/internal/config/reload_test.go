package config

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestReload: what can change does, what cannot is named and stays.
func TestReload(t *testing.T) {
	t.Parallel()
	old, next := Default(), Default()
	next.Log.Level, next.Sessions.Grace, next.Stop.Attempts = "debug", Duration(time.Second), 7
	next.StateDir, next.Wrapper.SpoolFiles = "/elsewhere", 9
	next.Providers = []Provider{{Kind: "other"}}
	next.Socket.OperatorUsers = []string{} // as good as none
	merged, changed, refused := old.Reload(&next)
	if want := []string{"sessions.grace", "stop.attempts", "log.level"}; !slices.Equal(changed, want) {
		t.Errorf("changed %q, want %q", changed, want)
	}
	if want := []string{"state_dir", "wrapper.spool_files", "provider"}; !slices.Equal(refused, want) {
		t.Errorf("refused %q, want %q", refused, want)
	}
	want := Default()
	want.Log.Level, want.Sessions.Grace, want.Stop.Attempts = "debug", Duration(time.Second), 7
	if !reflect.DeepEqual(merged, want) {
		t.Errorf("merged is %+v\nwant %+v", merged, want)
	}
	if !reflect.DeepEqual(old, Default()) {
		t.Error("the old configuration was changed")
	}
}

// TestReloadableKeysExist: each entry of the list names keys that there are.
func TestReloadableKeysExist(t *testing.T) {
	t.Parallel()
	var keys []string
	a, b := Default(), Default()
	walk(reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem(), "", func(key string, _, _ reflect.Value) { keys = append(keys, key) })
	for _, entry := range reloadable {
		if !slices.ContainsFunc(keys, func(key string) bool { return key == entry || len(key) > len(entry) && key[:len(entry)+1] == entry+"." }) {
			t.Errorf("there is no key %q", entry)
		}
	}
}
