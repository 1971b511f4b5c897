package engine

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// DrainRequest asks that nothing be started on this host any more.
type DrainRequest struct {
	Caller
	Why string
	// Kill also stops every session that owns something.
	Kill bool
}

// Drain puts it on disk that no instance is started until Undrain, also not
// after a restart. What runs goes on, unless Kill is set; to be asked twice
// keeps the first answer to who and when. With a key, answer is the recorded one
// of a request that was made before, else nil: Finish then records it.
func (e *Engine) Drain(ctx context.Context, req DrainRequest) (answer []byte, err error) {
	return e.onceForHost(ctx, opDrain, &req.Caller, func(t *tx) {
		if h := t.hostNow(); !h.Draining {
			h.Draining, h.DrainBy, h.DrainWhy, h.DrainWall = true, req.By, req.Why, t.wall
			t.putHost(h)
			t.then(func() { e.log.Warn("draining: nothing is started any more", "by", req.By, "why", req.Why) })
		}
		if req.Kill {
			t.stopAll(req)
		}
	})
}

// onceForHost carries out a change of the host and opens its ledger row. A repeat
// changes nothing: it gets the recorded answer, or nil where there is none yet.
func (e *Engine) onceForHost(ctx context.Context, kind string, c *Caller, change func(t *tx)) ([]byte, error) {
	return ask(ctx, e, journal.Reserved, func(t *tx, reply func([]byte, error)) {
		key := c.operation(kind)
		row, err := t.claim(key, c.Digest)
		var answer []byte
		switch {
		case err != nil:
		case row == nil:
			change(t)
			if key.key != "" {
				t.putOperation(record.Operation{UID: key.uid, Kind: key.kind, Key: key.key, Digest: c.Digest})
			}
		case row.Done:
			answer = row.Result
		}
		t.answer(func() { reply(answer, err) })
	})
}

// Finish records the answer of an operation of the host; the first one stays. It
// returns what is recorded.
func (e *Engine) Finish(ctx context.Context, c *Caller, kind string, answer []byte) ([]byte, error) {
	return ask(ctx, e, journal.Reserved, func(t *tx, reply func([]byte, error)) {
		key := c.operation(kind)
		if row := t.operation(key); row != nil && row.Done {
			answer = row.Result
		} else {
			t.finish(key, json.RawMessage(answer), nil)
		}
		t.answer(func() { reply(answer, nil) })
	})
}

// stopAll asks for the end of everything that owns something. What is being
// stopped already goes on as it does.
func (t *tx) stopAll(req DrainRequest) {
	for id, s := range t.e.sessions {
		if !s.state.Owned() {
			continue
		}
		if d := t.draft(id); d != nil && d.state.Owned() {
			t.requestStop(d, lease.HostDrain, lease.Target{}, req.By, req.Why, "")
		}
	}
}

// Undrain lets instances be started again; its answer is as Drain's.
func (e *Engine) Undrain(ctx context.Context, c Caller) (answer []byte, err error) {
	return e.onceForHost(ctx, opUndrain, &c, func(t *tx) {
		if h := t.hostNow(); h.Draining {
			h.Draining, h.DrainBy, h.DrainWhy, h.DrainWall = false, "", "", time.Time{}
			t.putHost(h)
			t.then(func() { e.log.Info("no longer draining", "by", c.By) })
		}
	})
}

// drained is the refusal of a start on a host that is being drained.
func (t *tx) drained() error {
	h := t.hostNow()
	if !h.Draining {
		return nil
	}
	return refusal(codeDraining, true, "this host is being drained%s: nothing is started until \"berthctl undrain\"", drainText(&h)).
		with(map[string]any{"by": h.DrainBy, "why": h.DrainWhy, "since": h.DrainWall})
}

// drainText says who drains the host, and why.
func drainText(h *record.Host) string {
	text := ""
	if h.DrainBy != "" {
		text = " by " + h.DrainBy
	}
	if why := strings.TrimSpace(h.DrainWhy); why != "" {
		text += " (" + why + ")"
	}
	return text
}
