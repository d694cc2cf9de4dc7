package speculate

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
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

// late is a device that compiles its kernels when they are needed.
type late struct {
	backend.Backend
	spent time.Duration
	rows  []int // of products
	heads []int // rows of which the best token was chosen
}

func (l *late) Compiling() time.Duration { return l.spent }

func (l *late) MatMul(x backend.Tensor, ps ...backend.Product) {
	if !slices.Contains(l.rows, x.Rows) {
		l.rows = append(l.rows, x.Rows)
	}
	l.Backend.MatMul(x, ps...)
}

func (l *late) ArgMax(ids backend.Ints, x backend.Tensor) {
	if !slices.Contains(l.heads, x.Rows) {
		l.heads = append(l.heads, x.Rows)
	}
	l.Backend.ArgMax(ids, x)
}

// TestClockStandsStill: the time in which a device of the target or of a drafter compiles is no cost of a pass, and is
// taken off once.
func TestClockStandsStill(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	first, second := &late{Backend: b}, &late{Backend: b}
	m, err := model.Open(open(t, "qwen35/model.gguf"), first, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []*late{first, second} {
		d, err := dflash.Open(open(t, "dflash-qwen35/model.gguf"), m, dflash.Options{Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		r := runner(t, m, d)
		before := r.clock()
		dev.spent += time.Hour // in no time
		if passed := r.clock().Sub(before) + time.Hour; passed < 0 || passed > time.Minute {
			t.Errorf("%v passed besides an hour of compiling", passed)
		}
	}
}

// TestCalibrateCompiles: a device that compiles runs passes of all kinds once, with or without a drafter, and no more
// of them when they take long; a processor runs none.
func TestCalibrateCompiles(t *testing.T) {
	all := []int{24, 32, 40, 48, 64, model.MaxRows / 2}
	for _, c := range []struct {
		what            string
		drafter, device bool
		pass            time.Duration
		large           []int
	}{
		{"a drafter", true, true, 0, all}, {"no drafter", false, true, 0, all},
		{"slow passes", true, true, compileTime / 2, all[:2]}, {"a processor", true, false, 0, nil},
	} {
		b := cpu.New(cpu.Options{Threads: 1})
		defer b.Close()
		dev := &late{Backend: b}
		m, err := model.Open(open(t, "qwen35/model.gguf"), dev, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var sources []draft.Source
		if c.drafter {
			sources = append(sources, dflashFor(t, m, "qwen35"))
		}
		r, err := NewRunner(m, sources...)
		if err != nil {
			t.Fatal(err)
		}
		r.compiles = c.device
		now := time.Now()
		r.clock = func() time.Time { // each pass looks at it once while kernels are compiled
			now = now.Add(c.pass)
			return now
		}
		if err := r.Calibrate(-1); err != nil {
			t.Fatal(err)
		}
		small := func(n int) bool { return n <= 16 }
		if large := slices.DeleteFunc(dev.rows, small); !slices.Equal(large, c.large) {
			t.Errorf("%s: passes of %v rows, want %v", c.what, large, c.large)
		}
		// Chains have logits of all rows.
		chains := c.large[:min(len(c.large), len(all)-1)]
		if heads := slices.DeleteFunc(dev.heads, small); !slices.Equal(heads, chains) {
			t.Errorf("%s: tokens chosen for %v rows, want %v", c.what, heads, chains)
		}
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
