//go:build race

package wire

// raceEnabled: the race detector changes what is allocated.
const raceEnabled = true
