package platform

import (
	"context"
	"errors"
	"os"
	"time"
)

// lockPoll is how often a taken lock is tried again.
const lockPoll = 200 * time.Millisecond

// LockFile waits until this process holds the exclusive advisory lock on the
// file at path, which it creates, and returns the function that lets go. Other
// programs that lock whole files, such as Python's filelock, are respected.
func LockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	for {
		taken, err := tryLock(f)
		if errors.Is(err, errors.ErrUnsupported) {
			err = nil // two downloads of one file at once are then the user's to avoid
		}
		if err != nil {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		if !taken {
			return func() { f.Close() }, nil // closing releases the lock
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// TryLock takes the exclusive advisory lock on an open file, which closing the file releases, and so does the end of
// the process. It does not wait: held is false when another holder has it. The error is errors.ErrUnsupported
// where files cannot be locked, as on some network file systems.
func TryLock(f *os.File) (held bool, err error) {
	taken, err := tryLock(f)
	return !taken && err == nil, err
}
