package engine

import (
	"encoding/json"
	"fmt"

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
	opStart  = "start"
	opStop   = "stop"
	opDelete = "delete"
)

// operation returns the ledger's row, nil when there is none.
func (t *tx) operation(k opKey) *record.Operation {
	if op, ok := t.ops[k]; ok {
		return op
	}
	op, _ := t.e.snapshot.Load().operations.Get(k.bytes())
	return op
}

// putOperation appends a row as a record.
func (t *tx) putOperation(op record.Operation) {
	op.Wall = t.wall
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
	done.Done = true
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
