package platform

import (
	"context"
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
