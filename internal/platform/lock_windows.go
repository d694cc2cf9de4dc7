package platform

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock reports whether someone else holds the lock. One byte is enough, and
// it is the byte Python's filelock takes.
func tryLock(f *os.File) (taken bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0,
		1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}
