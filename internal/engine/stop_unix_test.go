//go:build unix

package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOnlyFilesAreModels: a pipe that nobody writes to, a device and a folder that are named like models are none.
// Opening them used to hang the list, every load and the end of the server.
func TestOnlyFilesAreModels(t *testing.T) {
	dir := modelDir(t, "a=qwen3")
	pipe := filepath.Join(dir, "pipe.gguf")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero.gguf")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(pipe, filepath.Join(dir, "a-dflash.gguf")); err != nil { // is looked at as a drafter
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.gguf"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "a.gguf"), filepath.Join(dir, "link.gguf")); err != nil {
		t.Fatal(err)
	}
	p := newPool(t, PoolConfig{Dir: dir})
	if got := states(p); got != "a unloaded, link unloaded" {
		t.Errorf("models: %s", got)
	}
	acquire(t, p, "link").Release()
	var load *LoadError
	p = newPool(t, PoolConfig{Files: []string{pipe}})
	if _, err := p.Acquire(t.Context(), "pipe"); !errors.As(err, &load) ||
		!strings.Contains(err.Error(), "only regular files") {
		t.Errorf("a pipe that was named: %v", err)
	}
}

// TestFolderDoesNotAnswer: a folder that hangs, as one on a network drive may, holds nobody up: what is known
// is listed and served, and the pool can be closed.
func TestFolderDoesNotAnswer(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3")})
	answer := make(chan struct{})
	defer close(answer)
	p.stat = func(path string) (os.FileInfo, error) {
		<-answer
		return os.Stat(path)
	}
	if got := states(p); got != "a unloaded" {
		t.Errorf("models: %s", got)
	}
	acquire(t, p, "a").Release()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var unknown *UnknownModelError
	if _, err := p.Acquire(gone, "b"); !errors.As(err, &unknown) {
		t.Errorf("a model that is not known: %v", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileLoading: a pool does not wait for a load, and what was loaded too late is closed at once: nothing
// closes the pool a second time.
func TestCloseWhileLoading(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen3")})
	begun, goOn := make(chan struct{}), make(chan struct{})
	var late *Model
	p.read = func(path string, opt Options) (*Model, error) {
		close(begun)
		<-goOn
		var err error
		late, err = Load(path, opt)
		return late, err
	}
	failed := make(chan error)
	go func() {
		_, err := p.Acquire(context.Background(), "a")
		failed <- err
	}()
	<-begun
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	close(goOn)
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("who waited for it gets %v", err)
	}
	// Who waited goes on after the load has ended.
	if late.backends != nil || len(p.Resident()) > 0 {
		t.Error("a model that was loaded while the pool closed stays loaded")
	}
	if got := states(p); got != "a failed" {
		t.Errorf("models: %s", got)
	}
}
