package platform

import "errors"

// IsFault reports whether a recovered panic came from memory that could not be read: a page of a mapped file
// that is gone because another program cut the file short, or that the disk no longer gives. Such a
// fault ends the process unless the goroutine has called debug.SetPanicOnFault.
func IsFault(recovered any) bool {
	err, ok := recovered.(error)
	var fault interface{ Addr() uintptr }
	return ok && errors.As(err, &fault)
}
