//go:build !unix

package bench

import "time"

// usage is unknown here.
func usage() (cpu time.Duration, faults int64) { return 0, 0 }
