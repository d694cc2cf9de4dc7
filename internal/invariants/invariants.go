// Package invariants holds checks of what must always be true inside the program: pages that are counted, rows that are
// on a tape, steps that begin and end in turn. Builds with the tag invariants, and those with the race detector, run
// them and panic when one fails; in other builds they cost nothing.
//
//	if invariants.Enabled {
//		invariants.Check(refs > 0, "page %d is free", page)
//	}
package invariants

import "fmt"

// Check panics if something that must be true is not.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
