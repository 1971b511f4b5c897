package record

import "google.golang.org/protobuf/encoding/protowire"

func putDeletion(dst []byte, num protowire.Number, d *Deletion) []byte {
	if d == nil {
		return dst
	}
	dst, start := message(dst, num)
	dst = putString(dst, 1, d.Reason)
	dst = putString(dst, 2, d.By)
	dst = putTime(dst, 3, d.Wall)
	dst = putBool(dst, 4, d.Discard)
	dst = putString(dst, 5, d.Step)
	dst = putString(dst, 6, d.Trash)
	dst = putInt(dst, 7, int64(d.Attempts))
	dst = putDuration(dst, 8, d.NextAt)
	dst = putString(dst, 9, d.LastError)
	dst = putBool(dst, 10, d.Salvage)
	dst = putString(dst, 11, d.Saved)
	return messageEnd(dst, start)
}

func takeDeletion(r *reader) *Deletion {
	m := r.message()
	d := new(Deletion)
	for m.next() {
		switch m.num {
		case 1:
			d.Reason = m.string()
		case 2:
			d.By = m.string()
		case 3:
			d.Wall = m.time()
		case 4:
			d.Discard = m.bool()
		case 5:
			d.Step = m.string()
		case 6:
			d.Trash = m.string()
		case 7:
			d.Attempts = m.int()
		case 8:
			d.NextAt = m.duration()
		case 9:
			d.LastError = m.string()
		case 10:
			d.Salvage = m.bool()
		case 11:
			d.Saved = m.string()
		}
	}
	r.join(&m)
	return d
}

func putDebt(dst []byte, num protowire.Number, d *Debt) []byte {
	dst, start := message(dst, num)
	dst = putString(dst, 1, d.Provider)
	dst = putString(dst, 2, d.Handle)
	dst = putUint(dst, 3, d.Generation)
	dst = putInt(dst, 4, int64(d.Attempts))
	dst = putDuration(dst, 5, d.NextAt)
	dst = putString(dst, 6, d.LastError)
	return messageEnd(dst, start)
}

func takeDebt(r *reader) Debt {
	m := r.element()
	var d Debt
	for m.next() {
		switch m.num {
		case 1:
			d.Provider = m.string()
		case 2:
			d.Handle = m.string()
		case 3:
			d.Generation = m.uint()
		case 4:
			d.Attempts = m.int()
		case 5:
			d.NextAt = m.duration()
		case 6:
			d.LastError = m.string()
		}
	}
	r.join(&m)
	return d
}

func putExit(dst []byte, num protowire.Number, x *Exit) []byte {
	if x == nil {
		return dst
	}
	dst, start := message(dst, num)
	dst = putString(dst, 1, x.Instance)
	dst = putUint(dst, 2, x.Generation)
	dst = putString(dst, 3, x.Kind)
	dst = putInt(dst, 4, int64(x.Code))
	dst = putInt(dst, 5, int64(x.Signal))
	dst = putString(dst, 6, x.Unknown)
	dst = putString(dst, 7, x.Reason)
	dst = putString(dst, 8, x.By)
	dst = putTime(dst, 9, x.Wall)
	return messageEnd(dst, start)
}

func takeExit(r *reader) *Exit {
	m := r.message()
	x := new(Exit)
	for m.next() {
		switch m.num {
		case 1:
			x.Instance = m.string()
		case 2:
			x.Generation = m.uint()
		case 3:
			x.Kind = m.string()
		case 4:
			x.Code = m.int()
		case 5:
			x.Signal = m.int()
		case 6:
			x.Unknown = m.string()
		case 7:
			x.Reason = m.string()
		case 8:
			x.By = m.string()
		case 9:
			x.Wall = m.time()
		}
	}
	r.join(&m)
	return x
}

func putPreparation(dst []byte, num protowire.Number, p *Preparation) []byte {
	if p == nil {
		return dst
	}
	dst, start := message(dst, num)
	dst = putInt(dst, 1, int64(p.Done))
	dst = putBool(dst, 2, p.Finished)
	dst = putBool(dst, 3, p.Again)
	dst = putString(dst, 4, p.Step)
	dst = putInt(dst, 5, int64(p.Number))
	dst = putString(dst, 6, p.Failure)
	dst = putInt(dst, 7, int64(p.Code))
	dst = putInt(dst, 8, int64(p.Signal))
	dst = putDuration(dst, 9, p.Took)
	return messageEnd(dst, start)
}

func takePreparation(r *reader) *Preparation {
	m := r.message()
	p := new(Preparation)
	for m.next() {
		switch m.num {
		case 1:
			p.Done = m.int()
		case 2:
			p.Finished = m.bool()
		case 3:
			p.Again = m.bool()
		case 4:
			p.Step = m.string()
		case 5:
			p.Number = m.int()
		case 6:
			p.Failure = m.string()
		case 7:
			p.Code = m.int()
		case 8:
			p.Signal = m.int()
		case 9:
			p.Took = m.duration()
		}
	}
	r.join(&m)
	return p
}
