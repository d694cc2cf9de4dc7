package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/device"
	"strobe/internal/sample"
	"strobe/internal/testkit"
)

var errGone = errors.New("waiting: the device is gone")

// dying returns a device that is lost when the host has waited for it so many times. The count may be changed while
// nothing runs.
func dying(t *testing.T, waits *int) *testkit.Device {
	d := testkit.NewDevice(t, cpu.New(cpu.Options{Threads: 1}))
	d.Lost = func() error {
		if *waits--; *waits < 0 {
			return errGone
		}
		return nil
	}
	return d
}

// dyingPool returns a pool of a model on a device that is lost when the host has waited for it so many times. A device
// that is opened later works.
func dyingPool(t *testing.T, cfg Config) (p *Pool, waits, opens *int) {
	p = newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen35"), Engine: cfg})
	waits, opens = new(int), new(int)
	*waits = 1 << 30
	p.read = func(path string, opt Options) (*Model, error) {
		opt.Device = "cpu"
		opt.open = func(string, device.Options) (backend.Backend, error) {
			if *opens++; *opens == 1 {
				return dying(t, waits), nil
			}
			return cpu.New(cpu.Options{Threads: 1}), nil
		}
		return Load(path, opt)
	}
	return p, waits, opens
}

// TestDeviceLost: a device that fails ends the requests that run and those that wait with its error, and the engine
// with them; a pool opens the device anew for the next request.
func TestDeviceLost(t *testing.T) {
	p, waits, opens := dyingPool(t, Config{Parallel: 1})
	req := Request{Tokens: randomPrompt(1, 20), MaxTokens: 30, IgnoreEOG: true}
	l := acquire(t, p, "a")
	*waits = 8
	running, waiting := submit(t, l.Engine, req), submit(t, l.Engine, req)
	for _, g := range []*Generation{running, waiting} {
		if r := wait(t, g).Result; r.Reason != ReasonError || !errors.Is(r.Err, errGone) {
			t.Errorf("%v, error %v", r.Reason, r.Err)
		}
	}
	if !errors.Is(l.Engine.Err(), errGone) {
		t.Errorf("the engine goes on: %v", l.Engine.Err())
	}
	if _, err := l.Engine.Submit(t.Context(), req); !errors.Is(err, errGone) {
		t.Errorf("a later request of it: %v", err)
	}
	l.Release()
	l = acquire(t, p, "a")
	defer l.Release()
	if got := ids(generate(t, l.Engine, req).Tokens); *opens != 2 || !slices.Equal(got, plain(t, "qwen35", req)) {
		t.Errorf("opened %d times, then: %v", *opens, got)
	}
}

// TestDeviceLostInEmbedding: whenever the device is lost, no embedding is what it left behind: it ends with the error,
// and the engine with it, and a pool opens the device anew.
func TestDeviceLostInEmbedding(t *testing.T) {
	tokens := randomPrompt(1, 20)
	for last := range 20 {
		p, waits, opens := dyingPool(t, Config{Chunk: 8}) // three passes
		l := acquire(t, p, "a")
		want, err := l.Engine.Embed(t.Context(), tokens)
		if err != nil {
			t.Fatal(err)
		}
		*waits = last
		got, err := l.Engine.Embed(t.Context(), tokens)
		if *waits >= 0 { // it was not lost before the end
			if last < 4 || err != nil || !slices.Equal(got, want) {
				t.Errorf("%d waits: error %v, or another value", last, err)
			}
			l.Release()
			return
		}
		if !errors.Is(err, errGone) {
			t.Errorf("lost after %d waits: error %v", last, err)
		}
		if !errors.Is(l.Engine.Err(), errGone) {
			t.Errorf("lost after %d waits: the engine goes on: %v", last, l.Engine.Err())
		}
		if _, err := l.Engine.Embed(t.Context(), tokens); !errors.Is(err, errGone) {
			t.Errorf("lost after %d waits: a later embedding: %v", last, err)
		}
		l.Release()
		l = acquire(t, p, "a")
		if got, err := l.Engine.Embed(t.Context(), tokens); err != nil || *opens != 2 || !slices.Equal(got, want) {
			t.Errorf("lost after %d waits: opened %d times, then error %v, or another value", last, *opens, err)
		}
		l.Release()
	}
	t.Error("an embedding has no end")
}

// stumbling is a device that works again after it has said so many times that it does not.
type stumbling struct {
	backend.Backend
	fails int
}

func (d *stumbling) Sync() error {
	if d.fails--; d.fails >= 0 {
		return errGone
	}
	return d.Backend.Sync()
}

// TestDeviceStumblesInEmbedding: what fails once costs that embedding.
func TestDeviceStumblesInEmbedding(t *testing.T) {
	d := &stumbling{Backend: cpu.New(cpu.Options{Threads: 1})}
	e := startModel(t, loadOn(t, "qwen35", d), Config{Chunk: 8})
	d.fails = 1
	if _, err := e.Embed(t.Context(), randomPrompt(1, 20)); !errors.Is(err, errGone) {
		t.Errorf("error %v", err)
	}
	if _, err := e.Embed(t.Context(), randomPrompt(1, 20)); err != nil || e.Err() != nil {
		t.Errorf("the next one: %v; the engine: %v", err, e.Err())
	}
}

// TestDeviceLostAnywhere: whenever the device is lost, while the engine generates, saves or restores, nobody is told
// anything that a device which works would not have said, and no file holds anything else.
func TestDeviceLostAnywhere(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		lowered := sample.Params{LogitBias: map[int32]float32{}} // the device's choice is asked about every time
		for id := range int32(500) {
			lowered.LogitBias[id] = -1
		}
		reqs := []Request{
			{Tokens: randomPrompt(1, 70), MaxTokens: 3, IgnoreEOG: true, Spec: fixed, Params: seeded},
			{Tokens: randomPrompt(1, 90), MaxTokens: 3, IgnoreEOG: true, Spec: fixed, Params: lowered},
		}
		// run generates once and then once more with what was saved, and returns what was said and what is on disk.
		run := func(waits *int) (said [][]int32, ended []bool, files map[string][]byte) {
			dir := t.TempDir()
			for _, req := range reqs {
				ok := *waits
				*waits = 1 << 30 // loading goes well
				m := loadOn(t, name, dying(t, waits))
				*waits = ok
				e := New(m, Config{Parallel: 1, CacheDir: dir, CacheMinTokens: 1})
				ev := wait(t, submit(t, e, req))
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				said, ended = append(said, ids(ev.Tokens)), append(ended, ev.Result.Err == nil)
			}
			files = map[string][]byte{}
			for _, f := range prefixFiles(t, dir) {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				files[filepath.Base(f)] = b
			}
			return said, ended, files
		}
		waits := 1 << 20
		want, _, saved := run(&waits)
		all := 1<<20 - waits
		if len(saved) == 0 {
			t.Fatalf("%s: nothing was saved", name)
		}
		t.Logf("%s: %d waits, %d files", name, all, len(saved))
		for last := range all {
			waits := last
			said, ended, files := run(&waits)
			for i := range said {
				if n := len(said[i]); n > len(want[i]) || !slices.Equal(said[i], want[i][:n]) ||
					ended[i] && n < len(want[i]) {
					t.Errorf("%s, lost after %d of %d waits: request %d says %v, want %v", name, last, all, i, said[i], want[i])
				}
			}
			for f, b := range files {
				if good, ok := saved[f]; ok && !bytes.Equal(b, good) {
					t.Errorf("%s, lost after %d of %d waits: a file has other contents", name, last, all)
				}
			}
		}
	}
}
