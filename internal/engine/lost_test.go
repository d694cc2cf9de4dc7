package engine

import (
	"errors"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/device"
)

// dying is a device that fails for good after so many passes, as a GPU does: operations go on as if nothing had
// happened.
type dying struct {
	backend.Backend
	passes int
}

var errGone = errors.New("waiting: the device is gone")

func (d *dying) Sync() error {
	if d.passes--; d.passes < 0 {
		return errGone
	}
	return d.Backend.Sync()
}

// TestDeviceLost: a device that fails ends the requests that run and those that wait with its error, and the engine
// with them; a pool opens the device anew for the next request. What fails once costs no more than those concerned.
func TestDeviceLost(t *testing.T) {
	p := newPool(t, PoolConfig{Dir: modelDir(t, "a=qwen35"), Engine: Config{Parallel: 1}})
	opens := 0
	p.read = func(path string, opt Options) (*Model, error) {
		opt.Device = "cpu"
		opt.open = func(string, device.Options) (backend.Backend, error) {
			d := &dying{cpu.New(cpu.Options{Threads: 1}), 1 << 30}
			if opens++; opens == 1 {
				d.passes = 8
			}
			return d, nil
		}
		return Load(path, opt)
	}
	req := Request{Tokens: randomPrompt(1, 20), MaxTokens: 30, IgnoreEOG: true}
	l := acquire(t, p, "a")
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
	if got := ids(generate(t, l.Engine, req).Tokens); opens != 2 || !slices.Equal(got, plain(t, "qwen35", req)) {
		t.Errorf("opened %d times, then: %v", opens, got)
	}
}
