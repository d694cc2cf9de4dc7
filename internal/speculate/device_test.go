package speculate

import (
	"errors"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/model"
)

// lost is a device that fails in its n-th pass, as a GPU does: operations go on as if nothing had happened.
type lost struct {
	backend.Backend
	n int
}

var errLost = errors.New("device lost")

func (l *lost) Sync() error {
	if l.n--; l.n < 0 {
		return errLost
	}
	return l.Backend.Sync()
}

// TestDeviceLost: what a failed pass left behind is not sampled from.
func TestDeviceLost(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	dev := &lost{b, 1}
	m, err := model.Open(open(t, "qwen3/model.gguf"), dev, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dev.n = 3
	r := runner(t, m, nil)
	f := start(t, r, Options{}, greedy{}, prompt(5), 20)
	for range 3 {
		step(t, r, 64, f)
	}
	before := len(f.out)
	if err := r.Step([]*Stream{f.Stream}, 64); !errors.Is(err, errLost) {
		t.Errorf("got error %v, want %v", err, errLost)
	}
	if n := len(f.out); n != before || n == 0 {
		t.Errorf("%d tokens after the failure, %d before", n, before)
	}
}
