package record

// Append appends h's encoding to dst and returns the extended slice.
func (h Host) Append(dst []byte) []byte {
	dst = putUint(dst, fieldVersion, Version)
	dst = putString(dst, 2, h.HostID)
	dst = putUint(dst, 3, h.GenerationFloor)
	dst = putString(dst, 4, h.Epoch)
	dst = putString(dst, 5, h.ScanProven)
	dst = putBool(dst, 6, h.Draining)
	dst = putString(dst, 7, h.DrainBy)
	dst = putString(dst, 8, h.DrainWhy)
	dst = putTime(dst, 9, h.DrainWall)
	dst = putDuration(dst, 10, h.Age)
	return putDuration(dst, 11, h.AgeAt)
}

// DecodeHost decodes what Host.Append has written, as DecodeLease does.
func DecodeHost(body []byte) (Host, error) {
	var h Host
	r := newReader(body)
	for r.next() {
		switch r.num {
		case fieldVersion:
			r.takeVersion()
		case 2:
			h.HostID = r.string()
		case 3:
			h.GenerationFloor = r.uint()
		case 4:
			h.Epoch = r.string()
		case 5:
			h.ScanProven = r.string()
		case 6:
			h.Draining = r.bool()
		case 7:
			h.DrainBy = r.string()
		case 8:
			h.DrainWhy = r.string()
		case 9:
			h.DrainWall = r.time()
		case 10:
			h.Age = r.duration()
		case 11:
			h.AgeAt = r.duration()
		}
	}
	if err := r.end(TypeHost); err != nil {
		return Host{}, err
	}
	return h, nil
}

// Append appends o's encoding to dst and returns the extended slice.
func (o Operation) Append(dst []byte) []byte {
	dst = putUint(dst, fieldVersion, Version)
	dst = putUint(dst, 2, uint64(o.UID))
	dst = putString(dst, 3, o.Kind)
	dst = putString(dst, 4, o.Key)
	dst = putString(dst, 5, o.Session)
	dst = putString(dst, 6, o.Digest)
	dst = putBool(dst, 7, o.Done)
	dst = putBytes(dst, 8, o.Result)
	dst = putString(dst, 9, o.ErrorCode)
	dst = putUint(dst, 10, o.Conflicts)
	dst = putTime(dst, 11, o.Wall)
	dst = putUint(dst, 12, o.Generation)
	dst = putString(dst, 20, o.Allocation)
	return putDuration(dst, 21, o.Age)
}

// DecodeOperation decodes what Operation.Append has written, as DecodeLease does.
func DecodeOperation(body []byte) (Operation, error) {
	var o Operation
	r := newReader(body)
	for r.next() {
		o.take(&r)
	}
	if err := r.end(TypeOperation); err != nil {
		return Operation{}, err
	}
	return o, nil
}

func (o *Operation) take(r *reader) {
	switch r.num {
	case fieldVersion:
		r.takeVersion()
	case 2:
		o.UID = r.uint32()
	case 3:
		o.Kind = r.string()
	case 4:
		o.Key = r.string()
	case 5:
		o.Session = r.string()
	case 6:
		o.Digest = r.string()
	case 7:
		o.Done = r.bool()
	case 8:
		o.Result = r.bytes()
	case 9:
		o.ErrorCode = r.string()
	case 10:
		o.Conflicts = r.uint()
	case 11:
		o.Wall = r.time()
	case 12:
		o.Generation = r.uint()
	case 21:
		o.Age = r.duration()
	case 20:
		o.Allocation = r.string()
	}
}

// Append appends t's encoding to dst and returns the extended slice.
func (t Tombstone) Append(dst []byte) []byte {
	dst = putUint(dst, fieldVersion, Version)
	dst = putString(dst, 2, t.Session)
	dst = putUint(dst, 3, uint64(t.UID))
	dst = putUint(dst, 4, t.LastGeneration)
	dst = putTime(dst, 5, t.Wall)
	dst = putString(dst, 6, t.Reason)
	dst = putString(dst, 7, t.By)
	dst = putBytes(dst, 8, t.Evidence)
	dst = putString(dst, 9, t.Saved)
	dst = putStrings(dst, 10, t.Abandoned)
	return putDuration(dst, 11, t.Age)
}

// DecodeTombstone decodes what Tombstone.Append has written, as DecodeLease does.
func DecodeTombstone(body []byte) (Tombstone, error) {
	var t Tombstone
	r := newReader(body)
	for r.next() {
		switch r.num {
		case fieldVersion:
			r.takeVersion()
		case 2:
			t.Session = r.string()
		case 3:
			t.UID = r.uint32()
		case 4:
			t.LastGeneration = r.uint()
		case 5:
			t.Wall = r.time()
		case 6:
			t.Reason = r.string()
		case 7:
			t.By = r.string()
		case 8:
			t.Evidence = r.bytes()
		case 9:
			t.Saved = r.string()
		case 11:
			t.Age = r.duration()
		case 10:
			t.Abandoned = r.strings(t.Abandoned)
		}
	}
	if err := r.end(TypeTombstone); err != nil {
		return Tombstone{}, err
	}
	return t, nil
}
