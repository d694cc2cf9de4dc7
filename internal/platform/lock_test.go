package platform

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := LockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockFile(gone, path); !errors.Is(err, context.Canceled) {
		t.Errorf("second lock: got error %v, want it to wait until cancelled", err)
	}
	got := make(chan error)
	go func() {
		again, err := LockFile(context.Background(), path)
		if err == nil {
			again()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Errorf("lock after release: %v", err)
	}
}
