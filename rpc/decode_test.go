package rpc

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestDecodeBody(t *testing.T) {
	t.Parallel()
	var start StartRequest
	text := `{"key":"k","spec":{"command":["a","\u00e9\ud83d\ude00 \ufffd"],"grace_seconds":0,"limits":{"processes":5},"rows":24}}`
	if err := decodeBody([]byte(text), &start); err != nil {
		t.Fatal(err)
	}
	if start.Spec.Command[1] != "é😀 \uFFFD" || *start.Spec.GraceSeconds != 0 || start.Spec.Limits.Processes != 5 {
		t.Errorf("%+v", start.Spec)
	}
	for _, empty := range []string{"", " \n", "{}"} {
		var stop StopRequest
		if err := decodeBody([]byte(empty), &stop); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
	var send SendRequest
	if err := decodeBody([]byte(`{"data":"AAECAw=="}`), &send); err != nil || len(send.Data) != 4 {
		t.Errorf("%v %v", send, err)
	}
	if err := decodeBody([]byte(`{"spec":null}`), &start); err != nil {
		t.Error(err)
	}
}

func TestDecodeBodyRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		into       any
		want       string
	}{
		{"not JSON", `{`, &StartRequest{}, "not one JSON object"},
		{"text", `hello`, &StartRequest{}, "byte 1"},
		{"array", `[]`, &StartRequest{}, "must be an object"},
		{"null", `null`, &StartRequest{}, "must not be null"},
		{"string", `"x"`, &StartRequest{}, "must be an object"},
		{"trailing", `{} {}`, &StartRequest{}, "after top-level value"},
		{"trailing comma", `{"key":"x",}`, &StartRequest{}, "not one JSON object"},
		{"unknown", `{"keys":"x"}`, &StartRequest{}, `field "keys" is unknown; known are key, spec, owner`},
		{"unknown below", `{"spec":{"limits":{"cpus":1}}}`, &StartRequest{}, `"spec.limits.cpus" is unknown`},
		{"case", `{"KEY":"x"}`, &StartRequest{}, `"KEY" is unknown`},
		{"twice", `{"key":"x","key":"y"}`, &StartRequest{}, `"key" is given twice`},
		{"twice escaped", `{"key":"x","\u006bey":"y"}`, &StartRequest{}, `"key" is given twice`},
		{"twice below", `{"spec":{"command":["a"],"command":["b"]}}`, &StartRequest{}, `"spec.command" is given twice`},
		{"number for string", `{"key":5}`, &StartRequest{}, `"key" must be a string, not number`},
		{"object for string", `{"key":{}}`, &StartRequest{}, `"key" must be a string`},
		{"string for object", `{"spec":"x"}`, &StartRequest{}, `"spec" must be an object`},
		{"string for array", `{"spec":{"command":"x"}}`, &StartRequest{}, `"spec.command" must be an array`},
		{"null for string", `{"key":null}`, &StartRequest{}, `"key" must not be null`},
		{"null in array", `{"spec":{"command":[null]}}`, &StartRequest{}, `"spec.command[0]" must not be null`},
		{"number in array", `{"spec":{"command":["a",5]}}`, &StartRequest{}, `must be a string`},
		{"too big", `{"spec":{"rows":70000}}`, &StartRequest{}, `"spec.rows" must be a whole number from 0 to 2^16-1`},
		{"negative", `{"spec":{"rows":-1}}`, &StartRequest{}, `"spec.rows"`},
		{"fraction", `{"spec":{"rows":1.5}}`, &StartRequest{}, `"spec.rows"`},
		{"bool", `{"wait":"true"}`, &StopRequest{}, `"wait" must be true or false`},
		{"base64", `{"data":"***"}`, &SendRequest{}, `"data" must be base64`},
		{"not UTF-8", "{\"why\":\"a\xffb\"}", &StopRequest{}, `"why" is not valid UTF-8`},
		{"not UTF-8 in name", "{\"wh\xff\":\"\"}", &StopRequest{}, "not valid Unicode"},
		{"lone surrogate", `{"why":"\ud800"}`, &StopRequest{}, `"why" is not valid UTF-8`},
		{"surrogate beside U+FFFD", `{"why":"\ufffd\ud800"}`, &StopRequest{}, `"why" is not valid UTF-8`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := decodeBody([]byte(tc.body), tc.into)
			if CodeOf(err) != CodeInvalidRequest || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want %q", err, tc.want)
			}
		})
	}
}

// What is accepted means the same to every decoder: it survives a round trip,
// and a text that is accepted is never read as two different requests.
func FuzzDecodeBody(f *testing.F) {
	for _, s := range []string{
		`{"key":"k","spec":{"command":["a"],"env":["A=b"],"grace_seconds":0.5,"reserve_bytes":1,"limits":{"processes":5}}}`,
		`{"key":"k","key":"l"}`, `{"KEY":"k"}`, `{"spec":null}`, `{"key":"\ud83d\ude00"}`, `{"key":"\ud800"}`, "{\"key\":\"\xff\"}", `[]`, `{} x`, ``,
		strings.Repeat(`{"spec":`, 200), strings.Repeat(`[`, 11000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got StartRequest
		if err := decodeBody(data, &got); err != nil {
			if CodeOf(err) != CodeInvalidRequest {
				t.Fatalf("not a refusal: %v", err)
			}
			if _, err := json.Marshal(err); err != nil {
				t.Fatal(err)
			}
			return
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var back StartRequest
		if err := decodeBody(again, &back); err != nil {
			t.Fatalf("its own encoding %s is refused: %v", again, err)
		}
		third, err := json.Marshal(back)
		if err != nil || string(again) != string(third) {
			t.Fatalf("%s became %s (%v)", again, third, err)
		}
	})
}

func FuzzDecodeQuery(f *testing.F) {
	for _, s := range []string{"since=1&follow", "generation=2&since=%31&follow=true", "since=1;x", "a=%zz", "since=1&since=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var got, back LogsQuery
		if err := decodeQuery(raw, &got); err != nil {
			if CodeOf(err) != CodeInvalidRequest {
				t.Fatalf("not a refusal: %v", err)
			}
			return
		}
		if err := decodeQuery(EncodeQuery(got), &back); err != nil || got != back {
			t.Fatalf("%+v became %+v (%v)", got, back, err)
		}
	})
}

func TestErrorJSON(t *testing.T) {
	t.Parallel()
	e := Errorf(CodeBusy, "busy").retryIn(1500e6).with("n", 3.0)
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"code":"BUSY","message":"busy","retryable":true,"retry_after":1.5,"details":{"n":3}}`; string(data) != want {
		t.Errorf("got %s, want %s", data, want)
	}
	var back Error
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(&back, e) {
		t.Errorf("back: %+v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"code":"BUSY","retry_after":1e300,"new_field":1}`), &back); err != nil || back.RetryAfter != 0 {
		t.Errorf("%+v %v", back, err)
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	if CodeOf(nil) != "" || CodeOf(errors.New("x")) != "" {
		t.Error("a code out of nothing")
	}
	if c := Code("NEW"); c.HTTPStatus() != 500 {
		t.Error("an unknown code has no status")
	}
}
