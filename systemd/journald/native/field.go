package native

// The fields that berth sends beside MESSAGE, MESSAGE_ID, PRIORITY,
// SYSLOG_IDENTIFIER and CODE_*. They are a closed set; man/berth-journald.7
// explains each.
const (
	Host       = "BERTH_HOST"       // the host's id
	Session    = "BERTH_SESSION"    // the session's id
	Generation = "BERTH_GENERATION" // of the instance
	Instance   = "BERTH_INSTANCE"   // the instance's id
	Provider   = "BERTH_PROVIDER"   // the kind of sandbox
	Event      = "BERTH_EVENT"      // the kind of transition
	Operation  = "BERTH_OPERATION"  // the key of the client's request
	State      = "BERTH_STATE"      // of the lease, after the event
	Reason     = "BERTH_REASON"     // of a stop or a deletion
	By         = "BERTH_BY"         // who asked for it
	Owner      = "BERTH_OWNER"      // the session's uid
	Exit       = "BERTH_EXIT"       // how the agent ended
	Seq        = "BERTH_SEQ"        // the event's number in berth's own journal
	Subsystem  = "BERTH_SUBSYSTEM"  // the part of the daemon that speaks
	Stream     = "BERTH_STREAM"     // which output of the agent
	SpoolSeq   = "BERTH_SPOOL_SEQ"  // the spool's record in which the line ends
	Line       = "BERTH_LINE"       // numbers the entries of one generation's output
	Dropped    = "BERTH_DROPPED"    // how many entries are missing here
)

// Fields lists the names above; the slice is the caller's.
func Fields() []string {
	return []string{
		Host, Session, Generation, Instance, Provider, Event, Operation, State, Reason, By, Owner, Exit, Seq,
		Subsystem, Stream, SpoolSeq, Line, Dropped,
	}
}

// Names by which journalctl -t finds what berth sends.
const (
	DaemonIdentifier = "berthd"
	AgentIdentifier  = "berth-agent"
)

// SocketPath is where journald listens; namespace is empty for the default one,
// see systemd-journald.service(8), "Journal Namespaces".
func SocketPath(namespace string) string {
	if namespace == "" {
		return "/run/systemd/journal/socket"
	}
	return "/run/systemd/journal." + namespace + "/socket"
}
