package evidence

// Bounds of one report.
const (
	// maxLooked is how many processes of a leaf are looked at one by one, for candidates and stuck ones. A
	// leaf's pids limit is of this order; what lies beyond is not lost, the leaf counts it.
	maxLooked = 4096
	// maxListed is how many entries each list of a report has at most; sessions have tens of processes.
	maxListed = 256
	// lockTries is how often a held lock whose holder cannot be found is asked again.
	lockTries = 3
)
