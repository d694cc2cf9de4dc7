package platform

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrFileChanged reports a model whose file another program changed while it was read.
var ErrFileChanged = errors.New("the model's file was changed while it was in use")

// Reading calls fn, which reads the mapped model file at path. A part of the file that is gone because another program
// cut it short is an error then; it would end the process otherwise.
func Reading(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); IsFault(p) {
			err = fmt.Errorf("%s: %w", path, ErrFileChanged)
		} else if p != nil {
			panic(p)
		}
	}()
	return fn()
}

// IsFault reports whether a recovered panic came from memory that could not be read: a page of a mapped file
// that is gone because another program cut the file short, or that the disk no longer gives. Such a
// fault ends the process unless the goroutine has called debug.SetPanicOnFault.
func IsFault(recovered any) bool {
	err, ok := recovered.(error)
	var fault interface{ Addr() uintptr }
	return ok && errors.As(err, &fault)
}
