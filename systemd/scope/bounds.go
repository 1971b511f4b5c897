package scope

import "time"

const (
	// callBound bounds everything that is asked of PID 1 for one scope, the connection included. It takes 2 ms
	// on a calm machine; a reload of a thousand units keeps PID 1 busy for a second or two.
	callBound = 5 * time.Second
	// callsAtOnce is how many callers may wait for PID 1, which answers one after the other. The others wait
	// here, where a deadline ends that, and not in the socket of a PID 1 that has stopped reading.
	callsAtOnce = 4
	// reexecPause is the time between two attempts while PID 1 executes itself anew, which takes 0.1 s.
	reexecPause = 20 * time.Millisecond
)
