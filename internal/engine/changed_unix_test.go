//go:build unix

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	driver "strobe/internal/backend/gpu"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// Files that change while they are served. Windows does not let anybody change a mapped file.

// held starts a generation that has made one token and waits.
func held(t *testing.T, e *Engine, req Request) (*Generation, *gate) {
	t.Helper()
	hold := newGate(1)
	req.Constraint = hold
	g := submit(t, e, req)
	<-hold.ready
	return g, hold
}

// TestFileChanges: a model whose file is cut short or written to while it is served fails with a clear error,
// alone; one whose file is replaced goes on with the old one. In every case the next request gets what the file
// is now.
func TestFileChanges(t *testing.T) {
	old := must(os.ReadFile(testkit.Golden(t, "qwen3/model.gguf")))
	next := must(os.ReadFile(testkit.Golden(t, "qwen35/model.gguf")))
	req := Request{Tokens: randomPrompt(1, 30), MaxTokens: 20, IgnoreEOG: true}
	was, now := plain(t, "qwen3", req), plain(t, "qwen35", req)

	for _, c := range []struct {
		name   string
		change func(path string) error
		goesOn bool
		now    []int32
	}{
		{"cut short", func(path string) error { return os.Truncate(path, 4096) }, false, nil},
		{"emptied", func(path string) error { return os.Truncate(path, 0) }, false, nil},
		{"overwritten by another model", func(path string) error { return os.WriteFile(path, next, 0o644) }, false, now},
		{"overwritten by the same size", func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(old, 0) // not different, but who knows
			return err
		}, false, was},
		{"replaced", func(path string) error {
			if err := os.WriteFile(path+".new", next, 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}, true, now},
		{"removed", func(path string) error { return os.Remove(path) }, true, was},
	} {
		for _, threads := range []int{1, 3} {
			dir := modelDir(t, "a=qwen3", "b=qwen3")
			p := newPool(t, PoolConfig{Dir: dir})
			p.cfg.Load.Threads = threads
			a, b := acquire(t, p, "a"), acquire(t, p, "b")
			ga, holdA := held(t, a.Engine, req)
			gb, holdB := held(t, b.Engine, req)
			if err := c.change(filepath.Join(dir, "a.gguf")); err != nil {
				t.Fatal(err)
			}
			close(holdA.open)
			close(holdB.open)
			ev := wait(t, ga)
			switch {
			case c.goesOn && (ev.Result.Err != nil || !slices.Equal(ids(ev.Tokens), was)):
				t.Errorf("%s: the generation differs, error %v", c.name, ev.Result.Err)
			case !c.goesOn && !errors.Is(ev.Result.Err, ErrFileChanged):
				t.Errorf("%s: error %v", c.name, ev.Result.Err)
			case !c.goesOn && !slices.Equal(ids(ev.Tokens), was[:len(ev.Tokens)]):
				t.Errorf("%s: wrong tokens before the error", c.name)
			}
			if ev := wait(t, gb); ev.Result.Err != nil || !slices.Equal(ids(ev.Tokens), was) {
				t.Errorf("%s: the generation of another model differs, error %v", c.name, ev.Result.Err)
			}
			a2, err := p.Acquire(t.Context(), "a")
			var load *LoadError
			switch {
			case c.now == nil && !errors.As(err, &load):
				t.Errorf("%s: loading what is left: %v", c.name, err)
			case c.now != nil && err != nil:
				t.Errorf("%s: %v", c.name, err)
			case c.now != nil:
				if ev := generate(t, a2.Engine, req); !slices.Equal(ids(ev.Tokens), c.now) {
					t.Errorf("%s: the next request does not get the new file", c.name)
				}
				a2.Release()
			}
			a.Release()
			b.Release()
			if err := os.WriteFile(filepath.Join(dir, "a.gguf"), old, 0o644); err != nil {
				t.Fatal(err)
			}
			a3 := acquire(t, p, "a")
			if ev := generate(t, a3.Engine, req); !slices.Equal(ids(ev.Tokens), was) {
				t.Errorf("%s: the file that came back says something else", c.name)
			}
			a3.Release()
		}
	}
}

// cutting is a device that cuts a file short in the middle of a pass.
type cutting struct {
	backend.Backend
	path string
	cut  bool
}

func (b *cutting) KVWrite(group, layer int, k, v backend.Tensor) {
	if b.cut {
		b.cut = false
		os.Truncate(b.path, 4096)
	}
	b.Backend.KVWrite(group, layer, k, v)
}

// TestCutInPass: the pages of the weights are gone while workers read them. That is a fault, which ends the
// process where nobody expects it.
func TestCutInPass(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		for _, embed := range []bool{false, true} {
			dir := modelDir(t, "m=qwen3", "d=dflash-qwen3")
			path := filepath.Join(dir, "m.gguf")
			dev := &cutting{Backend: cpu.New(cpu.Options{Threads: threads}), path: path}
			e := New(loadPair(t, path, filepath.Join(dir, "d.gguf"), dev), Config{})
			dev.cut = true
			// Many rows, so that every worker has a part of the pass.
			var err error
			if embed {
				_, err = e.Embed(t.Context(), randomPrompt(1, 200))
			} else {
				err = wait(t, submit(t, e, Request{Tokens: randomPrompt(1, 200), MaxTokens: 20})).Result.Err
			}
			if !errors.Is(err, ErrFileChanged) || !errors.Is(e.Err(), ErrFileChanged) {
				t.Errorf("%d threads: error %v, engine %v", threads, err, e.Err())
			}
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCutWhileLoading: the same before there is an engine.
func TestCutWhileLoading(t *testing.T) {
	path := filepath.Join(modelDir(t, "m=qwen3"), "m.gguf")
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFiles(Source{Target: f}, Options{Threads: 2}); !errors.Is(err, ErrFileChanged) {
		t.Errorf("error %v", err)
	}
}

// idleGPU is a driver of a GPU that computes nothing.
type idleGPU struct {
	next   driver.Addr
	closed bool
}

func (d *idleGPU) Props() driver.Props {
	return driver.Props{Major: 9, Units: 132, Memory: 1 << 40, SharedBlock: 1 << 17}
}
func (d *idleGPU) Free() (free, total int) { return 1 << 40, 1 << 40 }
func (d *idleGPU) Alloc(bytes int) (driver.Addr, error) {
	d.next += driver.Addr(bytes/256+1) * 256
	return d.next, nil
}
func (d *idleGPU) Release(driver.Addr)                              {}
func (d *idleGPU) Upload(driver.Addr, []byte)                       {}
func (d *idleGPU) Download([]byte, driver.Addr) error               { return nil }
func (d *idleGPU) Copy(driver.Addr, driver.Addr, int)               {}
func (d *idleGPU) Fill(driver.Addr, byte, int)                      {}
func (d *idleGPU) Kernel(driver.Kernel) (driver.Handle, error)      { return nil, nil }
func (d *idleGPU) Compiling() time.Duration                         { return 0 }
func (d *idleGPU) Launch(*driver.Launch)                            {}
func (d *idleGPU) Record([]driver.Launch) (driver.Recording, error) { return &recordedGPU{}, nil }
func (d *idleGPU) Replay(driver.Recording)                          {}
func (d *idleGPU) Wait() error                                      { return nil }
func (d *idleGPU) Close() error                                     { d.closed = true; return nil }

type recordedGPU struct{}

func (*recordedGPU) Close() {}

// cuttingGPU cuts a file short when weights are to be read from it.
type cuttingGPU struct {
	*driver.Backend
	path string
}

func (b *cuttingGPU) Weight(m backend.Matrix) (backend.Weight, error) {
	os.Truncate(b.path, 4096)
	return b.Backend.Weight(m)
}

func (b *cuttingGPU) Unpark(w backend.Weight, m backend.Matrix) error {
	os.Truncate(b.path, 4096)
	return b.Backend.Unpark(w, m)
}

// TestCutOnGPU: the same while weights are read to be uploaded, at loading and when those of a parked drafter return.
// Who wanted the model gets one line that names it, and the device is given back.
func TestCutOnGPU(t *testing.T) {
	for _, parked := range []bool{false, true} {
		dir := modelDir(t, "m=qwen3", "d=dflash-qwen3")
		path, drafter := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "d.gguf")
		idle := &idleGPU{}
		on, err := driver.New(idle)
		if err != nil {
			t.Fatal(err)
		}
		dev := &cuttingGPU{Backend: on}
		if !parked {
			dev.path = path
		}
		m, err := Load(path, Options{Threads: 1, Device: "cuda:0", Drafter: drafter,
			open: func(string, device.Options) (backend.Backend, error) { return dev, nil }})
		if parked && err == nil {
			m.Drafter.Weights().Park()
			dev.path = drafter
			e := New(m, Config{})
			err = wait(t, submit(t, e, Request{Tokens: randomPrompt(1, 20), MaxTokens: 20, Spec: fixed})).Result.Err
			e.Close(t.Context())
		}
		if !errors.Is(err, ErrFileChanged) || !strings.HasPrefix(err.Error(), path+": ") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("parked %t: error %v", parked, err)
		}
		if !idle.closed {
			t.Errorf("parked %t: the device is still open", parked)
		}
	}
}

// TestReplacedInUse: a model whose file was replaced stays as long as somebody uses it, counts as memory until
// then, and is unloaded after it.
func TestReplacedInUse(t *testing.T) {
	dir := modelDir(t, "a=qwen3")
	path := filepath.Join(dir, "a.gguf")
	p := newPool(t, PoolConfig{Dir: dir, MemoryBytes: 1})
	a := acquire(t, p, "a")
	if err := os.WriteFile(path+".new", must(os.ReadFile(path)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	got := make(chan *Lease)
	go func() {
		l, err := p.Acquire(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	for { // it waits for the memory of the old one
		p.mu.Lock()
		waiting := len(p.room) > 0 && len(p.retired) == 1
		p.mu.Unlock()
		if waiting {
			break
		}
		time.Sleep(time.Millisecond)
	}
	generate(t, a.Engine, Request{Tokens: randomPrompt(1, 5), MaxTokens: 3})
	a.Release()
	l := <-got
	defer l.Release()
	if l.Engine == a.Engine || a.Engine.Err() != nil {
		t.Errorf("the old engine is handed out, or failed: %v", a.Engine.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.retired) != 0 {
		t.Errorf("%d replaced models are still there", len(p.retired))
	}
}
