package engine

import (
	"context"
	"strings"
	"time"

	"github.com/berthd/berth/daemon/internal/lease"
	"github.com/berthd/berth/statefs/journal"
	"github.com/berthd/berth/statefs/record"
)

// DrainRequest asks that nothing be started on this host any more.
type DrainRequest struct {
	By, Why string
	// Kill also stops every session that owns something.
	Kill bool
}

// Drain puts it on disk that no instance is started until Undrain, also not
// after a restart. What runs goes on, unless Kill is set; to be asked twice
// keeps the first answer to who and when.
func (e *Engine) Drain(ctx context.Context, req DrainRequest) error {
	_, err := ask(ctx, e, journal.Reserved, func(t *tx, reply func(struct{}, error)) {
		if h := t.hostNow(); !h.Draining {
			h.Draining, h.DrainBy, h.DrainWhy, h.DrainWall = true, req.By, req.Why, t.wall
			t.putHost(h)
			t.then(func() { e.log.Warn("draining: nothing is started any more", "by", req.By, "why", req.Why) })
		}
		if req.Kill {
			t.stopAll(req)
		}
		t.answer(func() { reply(struct{}{}, nil) })
	})
	return err
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

// Undrain lets instances be started again.
func (e *Engine) Undrain(ctx context.Context, by string) error {
	_, err := ask(ctx, e, journal.Reserved, func(t *tx, reply func(struct{}, error)) {
		if h := t.hostNow(); h.Draining {
			h.Draining, h.DrainBy, h.DrainWhy, h.DrainWall = false, "", "", time.Time{}
			t.putHost(h)
			t.then(func() { e.log.Info("no longer draining", "by", by) })
		}
		t.answer(func() { reply(struct{}{}, nil) })
	})
	return err
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
