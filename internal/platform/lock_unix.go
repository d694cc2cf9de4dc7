//go:build unix && !aix && !solaris

package platform

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock reports whether someone else holds the lock.
func tryLock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOLCK):
		return false, errors.ErrUnsupported // some network file systems have no locks
	}
	return false, err
}
