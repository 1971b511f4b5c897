package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func sampleFrames() []Frame {
	at := time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC)
	return []Frame{
		{Kind: KindHello, Hello: &Hello{Version: 1, Session: "s", Generation: 3, PID: 7, Status: Status{Phase: PhaseRunning}}},
		{Kind: KindStatus, Status: &Status{Phase: PhaseExited, Exit: &Exit{Kind: ExitCode, Code: 3, At: at}}},
		{Kind: KindInput, ID: 9, Input: &Input{Message: "m", Data: []byte{0, 0xff, '\n'}, EOF: true}},
		{Kind: KindResize, ID: 1<<64 - 1, Resize: &Size{Rows: 1, Cols: 65535}},
		{Kind: KindStop, Stop: &Stop{Reason: "operator", Grace: 10 * time.Second, Signal: true}},
		{Kind: KindSignal, Signal: 15},
		{Kind: KindWatch, Watch: true},
		{Kind: KindReply, ID: 9, Error: "a \"quoted\" line\nand another"},
		{Kind: KindWelcome},
	}
}

func TestFramesRoundTrip(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for _, f := range sampleFrames() {
		if err := WriteFrame(&b, &f); err != nil {
			t.Fatal(err)
		}
	}
	if n := bytes.Count(b.Bytes(), []byte("\n")); n != len(sampleFrames()) {
		t.Errorf("%d lines for %d frames", n, len(sampleFrames()))
	}
	for name, r := range map[string]io.Reader{
		"whole":   bytes.NewReader(b.Bytes()),
		"bytes":   iotest.OneByteReader(bytes.NewReader(b.Bytes())),
		"dataerr": iotest.DataErrReader(bytes.NewReader(b.Bytes())),
	} {
		reader := NewReader(r, 0)
		for i, want := range sampleFrames() {
			got, err := reader.ReadFrame()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %d: %+v, %v", name, i, got, err)
			}
		}
		if _, err := reader.ReadFrame(); err != io.EOF {
			t.Errorf("%s: at the end %v", name, err)
		}
	}
}

// The frames that are encoded by hand are those of encoding/json, and cost
// nothing. Not parallel: it counts allocations.
func TestPlainFrames(t *testing.T) {
	plain := []Frame{
		{Kind: KindWelcome}, {}, {Kind: KindReply, ID: 1<<64 - 1}, {Kind: KindSpool, LastSeq: 12},
		{Kind: KindStatus, Status: &Status{}}, {Kind: KindStatus, Status: &Status{AgentPID: -3}},
		{Kind: KindStatus, Status: &Status{Phase: PhaseRunning, AgentPID: 1234, LastSeq: 1 << 63, DroppedBytes: 7, JournalDropped: 8}},
		{Kind: KindHello, Hello: &Hello{Version: 1, Host: "h", Session: "a.b_c-1", Instance: "i", Generation: 3, Token: "t", PID: 4, Status: Status{Phase: PhaseRunning, AgentPID: 5}}},
		{Kind: KindHello, Hello: &Hello{}},
	}
	for _, f := range append(plain, sampleFrames()...) {
		got, err := AppendFrame(nil, &f)
		want, _ := json.Marshal(f)
		if err != nil || string(got) != string(want)+"\n" {
			t.Errorf("got %s, want %s, %v", got, want, err)
		}
	}
	if got, _ := AppendFrame(nil, &plain[0]); string(got) != welcomeLine+"\n" {
		t.Errorf("a welcome is %s, not %s", got, welcomeLine)
	}
	for _, f := range plain {
		if !f.plain() {
			t.Errorf("%+v is not plain", f)
		}
	}
	w := NewWriter(io.Discard)
	if n := testing.AllocsPerRun(100, func() { _ = w.WriteFrame(&plain[6]) }); n != 0 && !raceEnabled {
		t.Errorf("a heartbeat costs %v allocations", n)
	}
}

func TestReaderStaysInStep(t *testing.T) {
	t.Parallel()
	long := `{"kind":"` + strings.Repeat("x", 200) + `"}`
	input := "\n{\"kind\":\"welcome\"}\r\n  \nnot json\n[]\n{\"id\":-1}\n{}\n" + long + "\n{\"kind\":\"watch\"}\n" + long + long + "\n{\"kind\":\"stop\""
	for _, step := range []int{1, 3, 100, 4096} {
		r := NewReader(stepReader{strings.NewReader(input), step}, 100)
		var got []string
		for {
			f, err := r.ReadFrame()
			var syntax *SyntaxError
			switch {
			case err == nil:
				got = append(got, string(f.Kind))
			case errors.As(err, &syntax):
				got = append(got, "syntax")
			case errors.Is(err, ErrTooLong):
				got = append(got, "long")
			default:
				got = append(got, err.Error())
			}
			if err != nil && !errors.As(err, &syntax) && !errors.Is(err, ErrTooLong) {
				break
			}
		}
		want := "welcome syntax syntax syntax syntax long watch long unexpected EOF"
		if strings.Join(got, " ") != want {
			t.Errorf("step %d: %q, want %q", step, got, want)
		}
	}
}

type stepReader struct {
	r    io.Reader
	step int
}

func (s stepReader) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.step)]) }

func TestLargestFrame(t *testing.T) {
	t.Parallel()
	f := Frame{Kind: KindInput, Input: &Input{Data: make([]byte, MaxInput)}}
	var b bytes.Buffer
	if err := WriteFrame(&b, &f); err != nil {
		t.Fatal(err)
	}
	r := NewReader(io.MultiReader(&b, strings.NewReader("{\"kind\":\"watch\"}\n")), MaxFrame)
	if got, err := r.ReadFrame(); err != nil || len(got.Input.Data) != MaxInput {
		t.Errorf("got %v", err)
	}
	if got, err := r.ReadFrame(); err != nil || got.Kind != KindWatch {
		t.Errorf("got %v, %v", got, err)
	}
	if len(r.buf) > readStep {
		t.Errorf("keeps a buffer of %d bytes", len(r.buf))
	}
	f.Input.Data = make([]byte, MaxFrame)
	if err := WriteFrame(&b, &f); !errors.Is(err, ErrTooLong) || b.Len() != 0 {
		t.Errorf("too large: %v, wrote %d bytes", err, b.Len())
	}
}

// A peer that does not read: the write ends by its deadline and says how much
// of the line is on its way.
func TestWriteDeadline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	f := Frame{Kind: KindInput, Input: &Input{Data: make([]byte, MaxInput)}}
	c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	for err == nil {
		err = WriteFrame(c, &f)
	}
	var w *WriteError
	if !errors.As(err, &w) || !errors.Is(err, os.ErrDeadlineExceeded) || w.Written >= w.Size {
		t.Errorf("got %#v", err)
	}
}

func TestErrorsDoNotQuoteTheLine(t *testing.T) {
	t.Parallel()
	for _, line := range []string{`{"kind":"hello","hello":{"token":"hunter2`, `"hunter2"`, `{"kind":17,"error":"hunter2"}`, `hunter2`} {
		_, err := NewReader(strings.NewReader(line+"\n"), 0).ReadFrame()
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", line, err)
		}
		_, err = ReadLaunch(strings.NewReader(line))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("launch %s: %v", line, err)
		}
	}
}

func TestLaunch(t *testing.T) {
	t.Parallel()
	want := Launch{Version: Version, Session: "s", Recipe: json.RawMessage(`{"version":1}`), Dir: "/d", HeartbeatEvery: time.Second}
	var b bytes.Buffer
	if err := WriteLaunch(&b, &want); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	if got, err := ReadLaunch(&b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"nothing":  {"", ErrAbandoned},
		"space":    {" \n", ErrAbandoned},
		"too long": {strings.Repeat(" ", MaxLaunch+1), ErrTooLong},
		"cut":      {whole[:len(whole)-3], &SyntaxError{}},
		"twice":    {whole + whole, &SyntaxError{}},
		"newer":    {`{"version":2}`, &SyntaxError{}},
		"none":     {`{}`, &SyntaxError{}},
	} {
		_, err := ReadLaunch(strings.NewReader(c.text))
		var syntax *SyntaxError
		if _, wantSyntax := c.want.(*SyntaxError); wantSyntax && !errors.As(err, &syntax) || !wantSyntax && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	want.Token = strings.Repeat("x", MaxLaunch)
	if err := WriteLaunch(&b, &want); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
}

// case G8: an exit that does not say how is refused, not read as code 0.
func TestExitFileMustSayHow(t *testing.T) {
	t.Parallel()
	good := []Exit{
		{Kind: ExitCode}, {Kind: ExitCode, Code: 255}, {Kind: ExitSignal, Signal: 9}, {Kind: ExitOOM, Signal: 9},
		{Kind: ExitUnknown, Unknown: "killed_by_stop"},
	}
	bad := []Exit{{}, {Kind: "code "}, {Kind: ExitSignal}, {Kind: ExitUnknown}, {Kind: ExitCode, Signal: 9}, {Kind: ExitOOM}}
	encode := func(e Exit) []byte {
		data, err := json.Marshal(ExitFile{Version: FilesVersion, Session: "s", Exit: e})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, e := range good {
		if f, err := ParseExitFile(encode(e)); err != nil || f.Exit != e {
			t.Errorf("%+v: %v", e, err)
		}
	}
	for _, e := range bad {
		if f, err := ParseExitFile(encode(e)); err == nil || f != (ExitFile{}) {
			t.Errorf("%+v: %+v, %v", e, f, err)
		}
	}
	for _, text := range []string{"", "{}", "null", `{"version":2,"exit":{"kind":"code"}}`, `{"version":1,"exit":{"kind":"co`} {
		if _, err := ParseExitFile([]byte(text)); err == nil {
			t.Errorf("%q parses", text)
		}
		if _, err := ParseStatusFile([]byte(text)); err == nil {
			t.Errorf("%q parses as status", text)
		}
	}
}

// FuzzReader: any bytes in any pieces give frames that encode again, or typed
// errors, within the size limit and in bounded memory.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	for _, frame := range sampleFrames() {
		if err := WriteFrame(&b, &frame); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), 7, 200)
	f.Add([]byte("\n\n{}\n{\"kind\":\"x\"}"), 1, 5)
	f.Fuzz(func(t *testing.T, data []byte, step, limit int) {
		if step < 1 || limit < 1 || limit > 1<<16 {
			return
		}
		r := NewReader(stepReader{bytes.NewReader(data), step}, limit)
		for n := 0; ; n++ {
			frame, err := r.ReadFrame()
			if len(r.buf) > max(limit, readStep) {
				t.Fatalf("buffer of %d bytes for a limit of %d", len(r.buf), limit)
			}
			var syntax *SyntaxError
			switch {
			case err == nil:
				if frame.Kind == "" {
					t.Fatal("frame without a kind")
				}
				if _, err := AppendFrame(nil, &frame); err != nil {
					t.Fatalf("does not encode again: %v", err)
				}
			case errors.As(err, &syntax), errors.Is(err, ErrTooLong):
			case err == io.EOF, err == io.ErrUnexpectedEOF:
				return
			default:
				t.Fatalf("untyped error %v", err)
			}
			if n > len(data) {
				t.Fatal("does not end")
			}
		}
	})
}

// FuzzLaunch: any bytes decode or fail with a typed error.
func FuzzLaunch(f *testing.F) {
	f.Add([]byte(`{"version":1,"session":"s","recipe":{"argv":["x"]}}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ReadLaunch(bytes.NewReader(data))
		var syntax *SyntaxError
		switch {
		case err == nil:
			if l.Version != Version {
				t.Fatalf("version %d", l.Version)
			}
		case errors.Is(err, ErrAbandoned), errors.Is(err, ErrTooLong), errors.As(err, &syntax):
		default:
			t.Fatalf("untyped error %v", err)
		}
	})
}
