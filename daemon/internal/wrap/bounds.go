package wrap

import "time"

// Every bound of the wrapper that is not in the Launch object.
const (
	// defaultHeartbeat, defaultDrain apply where Launch leaves them 0.
	defaultHeartbeat = 5 * time.Second
	defaultDrain     = time.Second

	// reconnectMin and reconnectMax bound the random pause before the next
	// connection. A daemon that has been away for patientAfter is not restarting
	// but down, and a thousand wrappers that knock each second cost a third of a
	// processor: from then on patientMax bounds it. A daemon that comes back
	// pokes whom it finds.
	reconnectMin = 100 * time.Millisecond
	reconnectMax = time.Second
	patientAfter = time.Minute
	patientMax   = 10 * time.Second
	// writeBound is for one frame: a daemon that does not read for that long
	// is as good as none.
	writeBound = 5 * time.Second
	// welcomeBound is how long a hello may go unanswered before it is tried on
	// a new connection. A stopped daemon's backlog is not to be filled, so it
	// is long; a poke (SIGUSR1) tries at once.
	welcomeBound = 30 * time.Second
	// spoolNoticeEvery coalesces spool frames of a watched session.
	spoolNoticeEvery = 10 * time.Millisecond
	// exitNoticeBound is how long the end is offered to a daemon that is there
	// but slow: it verifies the wrapper while the wrapper still lives.
	exitNoticeBound = 2 * time.Second

	// startTries and startPause bound retries of an executable that somebody
	// still has open for writing (ETXTBSY): about a second.
	startTries = 20
	// stageBound is how long the stage for resource limits may take.
	stageBound = 10 * time.Second
	startPause = 50 * time.Millisecond

	// outputBuffer is the size of one read from the agent, outputBuffers how
	// many may wait for the disk.
	outputBuffer  = 32 << 10
	outputBuffers = 8
	// eventBuffers is how many event records may wait for the disk.
	eventBuffers = 64
	// stallBound is how long the agent's output waits for a disk that hangs
	// before it is dropped and counted.
	stallBound = time.Second
	// quickDrain is how long the exit record waits for the last output before
	// it is written a first time without the final sequence number.
	quickDrain = 50 * time.Millisecond
	// syncBound is how long the exit record waits for the spool's fsync.
	syncBound = 2 * time.Second
	// diskBound is how long the wrapper stays for a record that hangs, once the
	// end has been told.
	diskBound = 30 * time.Second

	// mirrorBytes bounds output that waits for journald, lineMax is the longest
	// text of one entry.
	mirrorBytes = 256 << 10
	lineMax     = 16 << 10
	// sendBound is how long one send waits for room in journald's queue,
	// awayPause what is between two tries while nobody listens there.
	sendBound = time.Second
	awayPause = 200 * time.Millisecond
	// lossNoticeEvery is how long after the last line a loss is told of.
	lossNoticeEvery = time.Second
	// mirrorBound is how long the end waits for journald.
	mirrorBound = time.Second

	// logLines is how many lines of the wrapper's log may wait for the disk,
	// logBound how long the end waits for them.
	logLines = 64
	logBound = time.Second

	// inputBytes and inputItems bound input that the agent has not taken.
	inputBytes = 1 << 20
	inputItems = 1024
	// inputIDs is how many message ids are remembered.
	inputIDs = 4096

	// reapEvery is a second look for children where a SIGCHLD got lost.
	reapEvery = 5 * time.Second

	// leftoverGrace is between TERM and KILL for descendants that outlive the
	// agent where there is no cgroup for the daemon to empty.
	leftoverGrace = 2 * time.Second
	// ladderEvery is the pause between two looks for descendants, ladderBound
	// how long after KILL the wrapper insists before it says that it failed.
	ladderEvery = 20 * time.Millisecond
	ladderBound = 30 * time.Second
	// killEvery is the pause between two looks while killing.
	killEvery = time.Millisecond

	// noteAfter is how long the daemon must be away to be worth a line in the
	// wrapper's log: restarts are not.
	noteAfter = 10 * time.Second
	// noteEvery bounds how often the wrapper's log repeats itself.
	noteEvery = time.Minute
)

// The exit codes of berth-wrap.
const (
	ExitOK     = 0  // the agent has ended and is recorded, or the wrapper was abandoned
	ExitUsage  = 64 // called by hand
	ExitLaunch = 65 // the Launch object does not decode
	ExitState  = 73 // lock or spool could not be made
	ExitLocked = 75 // another wrapper holds the generation's lock
)
