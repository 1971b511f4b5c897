// Package wrap is the program berth-wrap: the supervising process of one
// session. It holds the generation's lock, starts the agent from the recipe
// that it reads from descriptor 3, owns the agent's terminal or pipes, writes
// the spool and the exit record, and calls the daemon home for ever.
//
// It refuses to know leases, providers and policy: what to run is data, why it
// runs is the daemon's business. It never waits for the daemon, and nothing
// that it does for the agent depends on a pipe or a socket that somebody else
// has to read. Losing the daemon is no reason to exit.
//
// Goroutines and their owner, Run:
//
//	reapLoop    waits for SIGCHLD, reaps the agent and adopted orphans
//	pump        one per output of the agent: reads it, hands buffers on
//	spoolLoop   the only caller of spool.Append, so that a slow disk holds up
//	            nothing else
//	mirrorLoop  once there is output to copy, sends it to journald
//	inputLoop   writes queued input to the agent
//	linkLoop    connects, says hello, sends frames; per connection readLoop
//	settle      once, writes the files that the hello does not wait for
//	diary       writes the wrapper's own log
//	ladder      only during a stop with Signal and at the end without a cgroup
package wrap
