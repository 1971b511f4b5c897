package engine

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berthd/berth/statefs/record"
)

// opKey names one operation: keys are per caller and kind. The zero opKey is
// no operation.
type opKey struct {
	uid  uint32
	kind string
	key  string
}

func (k opKey) bytes() []byte { return fmt.Appendf(nil, "%d\x00%s\x00%s", k.uid, k.kind, k.key) }

// The kinds of operations that have a ledger row.
const (
	opStart   = "start"
	opStop    = "stop"
	opDelete  = "delete"
	opResolve = "resolve"
	opDrain   = "drain"
	opUndrain = "undrain"
)

// Ending is what the answer of an operation is made from once its outcome is
// known: the session as it is then, or its tombstone.
type Ending struct {
	View      *View
	Tombstone *record.Tombstone
}

// operation returns the ledger's row, nil when there is none.
func (t *tx) operation(k opKey) *record.Operation {
	if op, ok := t.ops[k]; ok {
		return op
	}
	op, _ := t.e.snapshot.Load().operations.Get(k.bytes())
	return op
}

// putOperation appends a row as a record. Its time is that of the request.
func (t *tx) putOperation(op record.Operation) {
	if op.Wall.IsZero() {
		op.Wall, op.Age = t.wall, t.e.age(t.now)
	}
	t.append(record.TypeOperation, op.Session, op.Generation, op.Append(nil))
	t.keepOperation(opKey{op.UID, op.Kind, op.Key}, &op)
}

// dropOperation forgets a row: a retryable refusal leaves none. On disk that is
// a row without a digest.
func (t *tx) dropOperation(k opKey, session string) {
	op := record.Operation{UID: k.uid, Kind: k.kind, Key: k.key, Session: session, Wall: t.wall}
	t.append(record.TypeOperation, session, 0, op.Append(nil))
	t.keepOperation(k, nil)
}

func (t *tx) keepOperation(k opKey, op *record.Operation) {
	if t.ops == nil {
		t.ops = map[opKey]*record.Operation{}
	}
	t.ops[k] = op
}

// claim looks the operation up before its request is carried out. row is the
// row that answers it or that it may join; nil = it is new.
func (t *tx) claim(k opKey, digest string) (row *record.Operation, err error) {
	if k.key == "" {
		return nil, nil
	}
	op := t.operation(k)
	if op == nil {
		return nil, nil
	}
	if op.Digest != digest {
		counted := *op
		counted.Conflicts++
		t.putOperation(counted)
		return nil, refusal(codeOperationConflict, false,
			"operation key %q was used for another %s request, of session %q", k.key, k.kind, op.Session).
			with(map[string]any{"session": op.Session, "conflicts": counted.Conflicts})
	}
	return op, nil
}

// finish completes a row with its answer.
func (t *tx) finish(k opKey, answer any, failure *Refusal) {
	op := t.operation(k)
	if op == nil {
		return
	}
	if failure != nil && failure.Retryable {
		t.dropOperation(k, op.Session)
		return
	}
	done := *op
	done.Done, done.Wall, done.Age = true, t.wall, t.e.age(t.now)
	if failure != nil {
		done.ErrorCode = string(failure.Code)
		done.Result, _ = json.Marshal(truncate(failure.Message, resultMax/2)) // a string always encodes
	} else {
		result, err := json.Marshal(answer)
		if err != nil || len(result) > resultMax { // the api package bounds what makes it long
			t.e.log.Error("an answer does not fit a ledger row: its operation is forgotten",
				"session", op.Session, "bytes", len(result), "error", err)
			t.dropOperation(k, op.Session)
			return
		}
		done.Result = result
	}
	t.putOperation(done)
}

// open notes a row whose outcome is still to come, with its session, so that it
// is completed in the batch that brings the outcome.
func (t *tx) open(d *draft, k opKey, c *Caller) {
	t.putOperation(record.Operation{
		UID: k.uid, Kind: k.kind, Key: k.key, Session: c.Session, Digest: c.Digest,
		Generation: d.state.NextGeneration - 1,
	})
	d.openKeys = append(slices.Clip(d.openKeys), k)
}

// complete writes the answers of operations whose outcome the draft is: a stop's
// when nothing of the session is left, a deletion's when there is the tombstone.
func (t *tx) complete(d *draft, tomb *record.Tombstone) {
	if len(d.openKeys) == 0 || tomb == nil && !d.state.Vacant() {
		return
	}
	var left []opKey
	end := Ending{View: &View{Lease: d.lease, State: d.state, Spec: d.spec}, Tombstone: tomb}
	for _, k := range d.openKeys {
		if k.kind == opDelete && tomb == nil {
			left = append(left, k)
			continue
		}
		t.finish(k, json.RawMessage(t.e.opts.Answer(k.kind, end)), nil)
	}
	d.openKeys = left
}

// Operation returns the newest published row, nil when there is none.
func (e *Engine) Operation(c *Caller, kind string) *record.Operation {
	if c.Key == "" {
		return nil
	}
	op, _ := e.Snapshot().operations.Get(c.operation(kind).bytes())
	return op
}

// Operations calls yield with every row of the ledger, by uid, kind and key.
func (s *Snapshot) Operations(yield func(*record.Operation) bool) {
	s.operations.Root().Walk(func(_ []byte, op *record.Operation) bool { return !yield(op) })
}

// InFlight reports whether somebody in this daemon brings the outcome of an
// open row: a start under way, or the end of a session. Without one the row is
// what is left of a request whose session's record was lost.
func (v *View) InFlight(op *record.Operation) bool {
	return slices.Contains(v.open, opKey{op.UID, op.Kind, op.Key})
}

// orphaned refuses a repeat of a request whose outcome is not known: its row is
// open and nobody brings an answer, as its session's record was lost before this
// daemon began. After takeoverAfter the repeat is carried out in its place; what it asks for is then decided by what there is.
func (t *tx) orphaned(row *record.Operation, keys []opKey) error {
	if row == nil || row.Done || slices.Contains(keys, opKey{row.UID, row.Kind, row.Key}) {
		return nil
	}
	left := t.e.startedAt + takeoverAfter - t.now
	if left <= 0 {
		return nil
	}
	return refusal(codeReconcilePending, true, "what became of operation %q is not known yet", row.Key).after(left)
}

// replay turns a completed row into the answer that it recorded.
func replay[T any](op *record.Operation) (T, error) {
	var answer T
	if op.ErrorCode != "" {
		var message string
		if err := json.Unmarshal(op.Result, &message); err != nil {
			message = "the recorded failure cannot be read"
		}
		return answer, refusal(Code(op.ErrorCode), false, "%s", message)
	}
	if err := json.Unmarshal(op.Result, &answer); err != nil {
		return answer, fmt.Errorf("decoding the recorded answer of operation %q: %w", op.Key, err)
	}
	return answer, nil
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
