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
