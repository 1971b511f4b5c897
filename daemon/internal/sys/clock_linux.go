package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since boot, suspend included (CLOCK_BOOTTIME, clock_gettime(2)). It never runs
// backwards and means nothing outside its epoch. The call cannot fail on any kernel since 2.6.39.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("internal error: no CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
