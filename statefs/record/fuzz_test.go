package record

import "testing"

func FuzzDecode(f *testing.F) {
	for _, rt := range recordTypes {
		f.Add(uint16(rt.typ), rt.zero.Append(nil))
	}
	l := plainLease()
	l.Stop, l.Exit, l.Deletion, l.Debts = &Stop{Reason: "operator"}, &Exit{Kind: "code"}, &Deletion{}, []Debt{{}, {Handle: "h"}}
	f.Add(uint16(TypeLease), l.Append(nil))
	f.Add(uint16(TypeForget), []byte{})
	f.Fuzz(func(t *testing.T, typ uint16, body []byte) {
		checkDecode(t, Type(typ), body)
	})
}

func FuzzGenerationFiles(f *testing.F) {
	f.Add([]byte(`{"host":"h","session":"s","instance":"i","generation":1,"kind":"code","at":"2026-11-29T19:00:00Z"}`))
	f.Add([]byte(`{"host":"h","session":"s","instance":"i","generation":1,"pid":1,"start_ticks":1,"epoch":"e","phase":"running"}`))
	f.Add([]byte("{}{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var x GenerationExit
		if err := decodeGenerationFile(data, &x); err == nil && x.validate() == nil && x.Kind == "" {
			t.Errorf("%q was taken for an exit", data)
		}
		var s GenerationStatus
		if err := decodeGenerationFile(data, &s); err == nil && s.validate() == nil && s.PID <= 0 {
			t.Errorf("%q was taken for a status", data)
		}
	})
}
