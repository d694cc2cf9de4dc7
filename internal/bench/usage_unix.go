//go:build unix

package bench

import (
	"syscall"
	"time"
)

// usage is the processor time of the process, and its page faults.
func usage() (cpu time.Duration, faults int64) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(u.Minflt) + int64(u.Majflt)
}
