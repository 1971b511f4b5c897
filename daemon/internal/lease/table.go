package lease

// cell is what happens to one event in one state: the guards in order, then the
// step, both by name.
type cell struct {
	name   string
	guards []guard
	step   step
}

func when(name string, do step, guards ...guard) cell {
	return cell{name, guards, do}
}

// The cells that change nothing.
var (
	// nothingOwned: the instance that the event is about is gone.
	nothingOwned = when("stale: no instance is owned", outdated)
	// noAttempt, noRecheck: the attempt or quarantine that the event is about is
	// over.
	noAttempt = when("stale: no attempt is running", outdated)
	noRecheck = when("stale: not quarantined", outdated)
	// alreadySo: the event says what the state says.
	alreadySo = when("indifferent: already so", indifferent, sameInstance)
	// nothingAccepted: idle is news only after work was accepted.
	nothingAccepted = when("indifferent: nothing was accepted", indifferent, sameInstance)
	// inUse: a delivery goes to the instance as it is.
	inUse = when("indifferent: in use already", indifferent, sameInstance)
	// overtaken: a stop is owed and wins over news of the instance.
	overtaken = when("indifferent: a stop is owed", indifferent, sameInstance)
	// notNeeded: only quarantine needs to be told to look.
	notNeeded = when("indifferent: not quarantined", indifferent)
	// oldEpochVacant: nothing was owed in the old epoch.
	oldEpochVacant = when("indifferent: nothing was owed", indifferent)

	isOwned        = when("refused: owned", refusing(ErrOwned))
	isCleaning     = when("refused: cleanup pending", refusing(ErrCleanupPending))
	notQuarantined = when("refused: not quarantined", refusing(ErrNotQuarantined))
)

// The cells that several states share.
var (
	stopOwned = when("need stop", needStop,
		reasonKnown, reasonScope, currentTarget, reasonHolds, timerDue, clockRuns)
	stopAgain = when("indifferent: a stop is owed already", indifferent,
		reasonKnown, reasonScope, currentTarget)
	goActive = when("become active", becomeActive, sameInstance)
	goGone   = when("vacate: gone", vacateGone, sameInstance)
	goEpoch  = when("vacate: new epoch", vacateEpoch)
	lost     = when("note link lost", noteLost, sameInstance)
	regained = when("note link regained", noteRegained, sameInstance)
	frozen   = when("freeze", freeze, sameInstance)
	thawed   = when("thaw", thaw, sameInstance)
	reuse    = when("restart on the same instance", restart, sameInstance, exactlyOne, deadlineAhead)
	floor    = when("raise floor", raiseFloor, floorGiven)
)

// table is the whole machine: every state against every event.
var table = [kindEnd][eventEnd]cell{
	Vacant: {
		Allocate: when("start", start,
			absenceVerified, instanceGiven, counterKnown, generationFresh, generationLeft, deadlineAhead),
		Verified:    nothingOwned,
		Accepted:    nothingOwned,
		Idle:        nothingOwned,
		Reuse:       nothingOwned,
		OwnedAbsent: nothingOwned,
		RequestStop: when("need stop of the session", needStop,
			reasonKnown, reasonScope, currentTarget, timerDue),
		BeginAttempt:        noAttempt,
		AttemptAbsent:       noAttempt,
		AttemptNotConfirmed: noAttempt,
		AttemptExpired:      noAttempt,
		Exhaust:             noAttempt,
		RecheckAbsent:       noRecheck,
		RecheckDone:         noRecheck,
		NewEpoch:            oldEpochVacant,
		LinkLost:            nothingOwned,
		LinkRegained:        nothingOwned,
		Frozen:              nothingOwned,
		Thawed:              nothingOwned,
		Adopt:               notQuarantined,
		Abandon:             notQuarantined,
		WorkerStuck:         noAttempt,
		RecheckDue:          noRecheck,
		RecheckForced:       notNeeded,
		FloorRaised:         floor,
	},
	Starting: owned(map[EventKind]cell{
		Verified:    when("become ready", becomeReady, sameInstance, deadlineAhead),
		Accepted:    goActive,
		Idle:        when("become warm again", becomeWarm, sameInstance, reused, deadlineAhead),
		Reuse:       inUse,
		OwnedAbsent: when("vacate: gone", vacateGone, sameInstance, launchOver),
	}),
	Ready: owned(map[EventKind]cell{
		Verified:    alreadySo,
		Accepted:    goActive,
		Idle:        nothingAccepted,
		Reuse:       reuse,
		OwnedAbsent: goGone,
	}),
	Active: owned(map[EventKind]cell{
		Verified:    alreadySo,
		Accepted:    alreadySo,
		Idle:        when("become warm", becomeWarm, sameInstance, deadlineAhead),
		Reuse:       inUse,
		OwnedAbsent: goGone,
	}),
	Warm: owned(map[EventKind]cell{
		Verified:    alreadySo,
		Accepted:    goActive,
		Idle:        alreadySo,
		Reuse:       reuse,
		OwnedAbsent: goGone,
	}),
	StopNeeded: cleaning(map[EventKind]cell{
		BeginAttempt: when("begin attempt", attempt,
			attemptDue, workerJoined, budgetLeft, freshAttempt, deadlineAhead),
		AttemptAbsent:       when("worker joined", joined, sameAttempt, workerOut),
		AttemptNotConfirmed: when("worker joined", joined, sameAttempt, workerOut),
		AttemptExpired:      noAttempt,
		Exhaust:             when("quarantine", quarantine, budgetSpent),
		RecheckAbsent:       noRecheck,
		RecheckDone:         noRecheck,
		Adopt:               notQuarantined,
		Abandon:             notQuarantined,
		WorkerStuck:         when("quarantine: worker stuck", quarantineStuck, sameAttempt, workerOut, joinOverdue),
		RecheckDue:          noRecheck,
		RecheckForced:       notNeeded,
	}),
	Stopping: cleaning(map[EventKind]cell{
		BeginAttempt:        when("stale: an attempt is running", outdated),
		AttemptAbsent:       when("vacate: stopped", vacateStopped, sameAttempt),
		AttemptNotConfirmed: when("try again", tryAgain, sameAttempt),
		AttemptExpired:      when("expire attempt", expire, sameAttempt, expired),
		Exhaust:             when("expire attempt and quarantine", expireSpent, budgetSpent, expired),
		RecheckAbsent:       noRecheck,
		RecheckDone:         noRecheck,
		Adopt:               notQuarantined,
		Abandon:             notQuarantined,
		WorkerStuck:         when("quarantine: worker stuck", quarantineStuck, sameAttempt, expired),
		RecheckDue:          noRecheck,
		RecheckForced:       notNeeded,
	}),
	Quarantined: cleaning(map[EventKind]cell{
		BeginAttempt:        noAttempt,
		AttemptAbsent:       when("worker joined, may go on", unstuck, sameAttempt, workerOut),
		AttemptNotConfirmed: when("worker joined, may go on", unstuck, sameAttempt, workerOut),
		AttemptExpired:      noAttempt,
		Exhaust:             when("indifferent: quarantined already", indifferent),
		RecheckAbsent:       when("vacate: rechecked", vacateRechecked, sameInstance, sameAttempt, workerAway),
		RecheckDone:         when("note recheck", noteRecheck, sameInstance, sameAttempt),
		Adopt: when("adopt", adopt,
			decided, instanceGiven, adoptable, counterKnown, generationLeft, noOther, workerBack),
		Abandon:       when("vacate: abandoned", vacateAbandoned, decided),
		WorkerStuck:   when("note worker stuck", quarantineStuck, sameAttempt, workerOut, joinOverdue),
		RecheckDue:    when("recheck", recheckNow, recheckDue),
		RecheckForced: when("observe once", observe),
	}),
}

// owned completes the row of an owned kind with the cells that all four share.
func owned(own map[EventKind]cell) [eventEnd]cell {
	return row(own, map[EventKind]cell{
		Allocate:            isOwned,
		RequestStop:         stopOwned,
		BeginAttempt:        noAttempt,
		AttemptAbsent:       noAttempt,
		AttemptNotConfirmed: noAttempt,
		AttemptExpired:      noAttempt,
		Exhaust:             noAttempt,
		RecheckAbsent:       noRecheck,
		RecheckDone:         noRecheck,
		NewEpoch:            goEpoch,
		LinkLost:            lost,
		LinkRegained:        regained,
		Frozen:              frozen,
		Thawed:              thawed,
		Adopt:               notQuarantined,
		Abandon:             notQuarantined,
		WorkerStuck:         noAttempt,
		RecheckDue:          noRecheck,
		RecheckForced:       notNeeded,
		FloorRaised:         floor,
	})
}

// cleaning completes the row of a cleaning kind.
func cleaning(own map[EventKind]cell) [eventEnd]cell {
	return row(own, map[EventKind]cell{
		Allocate:     isCleaning,
		Verified:     overtaken,
		Accepted:     overtaken,
		Idle:         overtaken,
		Reuse:        isCleaning,
		OwnedAbsent:  overtaken,
		RequestStop:  stopAgain,
		NewEpoch:     goEpoch,
		LinkLost:     overtaken,
		LinkRegained: overtaken,
		Frozen:       overtaken,
		Thawed:       overtaken,
		FloorRaised:  floor,
	})
}

// row lays own cells over shared ones. A cell in both is a mistake that shows
// as a name in the golden file.
func row(own, shared map[EventKind]cell) [eventEnd]cell {
	var cells [eventEnd]cell
	for k, c := range shared {
		cells[k] = c
	}
	for k, c := range own {
		cells[k] = c
	}
	return cells
}
