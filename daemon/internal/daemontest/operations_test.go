package daemontest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/berthd/berth/rpc"
)

// raw is the answer to a request, byte for byte.
func (h *Host) raw(t *testing.T, path string, body any) (int, string) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.Run+"/berth.sock")
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodPost, "http://berth"+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// TestAnswersRepeat: each request that changes something and has a key gets the
// same bytes again, from the same daemon, from one that comes after a kill, and
// whatever became of the session meanwhile; nothing is done twice.
func TestAnswersRepeat(t *testing.T) {
	t.Parallel()
	h := running(t, "")
	long := shell("while :; do sleep 1; done # " + strings.Repeat("x", 8<<10)) // too long for an answer that is kept
	requests := []struct {
		name, path string
		body       any
	}{
		{"start", "/v1/sessions/x/start", rpc.StartRequest{Key: "k", Spec: long}},
		{"stop", "/v1/sessions/x/stop", rpc.StopRequest{Key: "k", Wait: true}},
		{"drain", "/v1/drain", rpc.DrainRequest{Key: "k", Why: "test"}},
		{"undrain", "/v1/undrain", rpc.UndrainRequest{Key: "k"}},
		{"start again", "/v1/sessions/x/start", rpc.StartRequest{Key: "k2"}},
		{"delete", "/v1/sessions/x/delete", rpc.DeleteRequest{Key: "k", Discard: true, Wait: true}},
	}
	first := map[string]string{}
	repeat := func(upTo int, when string) {
		for _, r := range requests[:upTo] {
			if _, answer := h.raw(t, r.path, r.body); answer != first[r.name] {
				t.Errorf("%s, %s: %s\nwas %s", r.name, when, answer, first[r.name])
			}
		}
	}
	for i, r := range requests {
		var status int
		h.Until(r.name, patience, func() error {
			status, first[r.name] = h.raw(t, r.path, r.body)
			if strings.Contains(first[r.name], string(rpc.CodeCleanupPending)) {
				return &rpc.Error{Message: first[r.name]}
			}
			return nil
		})
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s\n%s", r.name, status, first[r.name], h.Log())
		}
		repeat(i+1, "at once")
	}
	if !strings.Contains(first["delete"], "tombstone") {
		t.Errorf("the deletion: %s", first["delete"])
	}
	h.Kill()
	h.Start()
	repeat(len(requests), "after a kill")
	if h.status(t).Drain != nil {
		t.Error("a repeated drain drains the host")
	}
	_, err := h.Client.Stop(bounded(t), "y", rpc.StopRequest{Key: "k"})
	refused(t, err, rpc.CodeOperationConflict)
	reply, err := h.Client.Operations(bounded(t), rpc.OperationsQuery{Key: "k"})
	if err != nil || len(reply.Operations) != 5 {
		t.Fatalf("the ledger: %+v, %v", reply, err)
	}
	for _, op := range reply.Operations {
		if op.State != "done" || strings.TrimSpace(first[op.Kind]) != string(op.Result) || op.Kind == "stop" && op.Conflicts != 1 {
			t.Errorf("%+v: %s, answered was %s", op, op.Result, first[op.Kind])
		}
	}
	if code, out := h.ctl(t, "op", "list", "--session", "x"); code != 0 || !strings.Contains(out, "delete") {
		t.Errorf("berthctl op list: %d %s", code, out)
	}
}
