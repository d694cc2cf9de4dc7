package speculate

import (
	"errors"
	"math"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/model"
	"strobe/internal/sample"
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

// hidden is a sampler that keeps the choice to itself.
type hidden struct{ s *sample.Sampler }

func (h hidden) Sample(logits []float32) int32 { return h.s.Sample(logits) }
func (h hidden) Accept(id int32)               { h.s.Accept(id) }

// TestDeviceChoosesWithBias: the device chooses for a greedy stream that lowers some logits, and where it has chosen
// such a token the sampler does. A raised logit is the sampler's alone.
func TestDeviceChoosesWithBias(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	run := func(s Sampler) []int32 {
		got, _ := runWith(t, r, chain, s, prompt(9), 30)
		return got
	}
	free := run(sample.New(sample.Params{}, m.Vocab))
	for _, bias := range []float32{float32(math.Inf(-1)), -0.01, 3} {
		p := sample.Params{LogitBias: map[int32]float32{free[2]: bias, free[5]: bias, (free[5] + 1) % 500: bias}}
		s := sample.New(p, m.Vocab)
		if s.Greedy(m.Vocab) != (bias < 0) {
			t.Errorf("bias %g: the device may choose: %t", bias, bias > 0)
		}
		got := run(s)
		same(t, got, run(hidden{sample.New(p, m.Vocab)}))
		if bias < -1 && slices.Equal(got, free) {
			t.Errorf("bias %g changes nothing: %v", bias, got)
		}
	}
}
