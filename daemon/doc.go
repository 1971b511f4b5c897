// Package daemon is a map of berthd and its wrapper; there is no code here.
//
// # Processes
//
// berthd is one process. It starts one berth-wrap for each running session and
// one plugin for each sandbox provider; berth-workspace fills a workspace before
// the first start and looks into it before that is deleted. A wrapper outlives the daemon: it holds its
// generation's lock, its agent, its output and its exit record, and calls the
// daemon home for ever.
//
// # Data flow
//
//	operators' socket ─ rpc.Server ─ api ──request──▶ engine.Run ──▶ journal (one fsync a batch)
//	                                  ▲                   │  publishes a snapshot, then
//	                                  └────reads──────────┤  starts effects
//	                                                      ▼
//	wrappers' socket ── link.Server ──hello──▶ engine   effect.Host: launch, stop ladder, witnesses,
//	pidfds ─ spawn.Watcher ──exited──▶ engine            release, deletion; one result each ──▶ engine
//
// A request is decided by the engine's goroutine alone: it reduces the
// session's lease (package lease, pure), appends the new value to the journal,
// and only when that is on disk answers, and starts what the lease asks for.
// Reads never enter that goroutine: they use the newest published snapshot.
//
// # Who owns which goroutine
//
//	engine.Run           the state; the effects that it starts, which it waits for
//	link.Server          one goroutine for each connected wrapper
//	spawn.Watcher        two, for all pidfds
//	plugins/host         one for each provider
//	rpc.Server           net/http's, one for each connection
//	journal              one, which prepares segments ahead of need
//	keep                 one, which tells the service manager
//	systemd/scope        those of one connection to PID 1, while there is one
//	daemon.Run           starts and ends all of the above, in order
//
// # Packages
//
//	lease, admit         pure decisions: a state and an event, numbers and marks
//	engine               the only goroutine that changes durable state; recovery
//	effect               what the engine decides, done: processes, cgroups, plugins, files
//	appraise, workspace  filling a workspace; what it holds that its deletion would lose, saving that
//	keep                 wrappers' process descriptors, left with the service manager
//	metrics, tally       the daemon in Prometheus' text form; the sums for it
//	reclaim              making room: what goes first, what may go, one at a time
//	link                 the daemon's end of the wrappers' socket
//	evidence, discover   witnesses and their verdict; the scan of /proc
//	spawn, sys           starting parked wrappers and watching them; identities, epochs, clocks
//	api                  requests and replies of the operators' socket
//	wrap                 the wrapper's program
//	config, daemon       settings; putting it all together; whether there can be scopes
//	systemd/scope        has PID 1 make scopes of leaves, the only thing it is asked for
//	daemontest           the real daemon under test, and the checks all such tests share
//
// Which package may import which is in imports_test.go.
//
// # Where each promise is tested
//
//	at most one live wrapper      daemontest TestCrash (sampled each ms), lease walks, TestOneWrapper
//	nothing acknowledged is lost  daemontest TestCrash, journal's kill and power-cut tests
//	persist, then act             engine's model test
//	any crash can be gone on from  daemontest TestFailpoints, TestFailingSteps
//	strangers are never signalled sys, evidence, daemontest TestStranger…
//	generations never fall        lease walks, engine and daemontest damage tests
//	nothing is left behind        every test of daemontest, at its end
//	PID 1 holds up nobody         systemd/scope TestSilent, daemontest TestScopeLost
//	a workspace is filled once    daemontest TestPreparationGoesOn, TestPreparationSurvivesKills, TestNotEmpty
//	work is never lost unasked    workspace TestRandomStates, daemontest TestDeleteKeepsWork, TestLateWork
//	reads never wait              daemontest TestStopped…, TestReads…
package daemon
