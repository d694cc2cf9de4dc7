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
	now   bool  // rehearses
	rows  []int // of products in rehearsals
	heads []int // rows of which the best token was chosen there
	tops  []int // and of which the best few were
}

func (l *late) Compiling() time.Duration { return l.spent }

func (l *late) Rehearse(passes func() error) error {
	l.now = true
	defer func() { l.now = false }()
	return passes()
}

func (l *late) note(rows *[]int, n int) {
	if l.now && !slices.Contains(*rows, n) {
		*rows = append(*rows, n)
	}
}

func (l *late) MatMul(x backend.Tensor, ps ...backend.Product) {
	l.note(&l.rows, x.Rows)
	l.Backend.MatMul(x, ps...)
}

func (l *late) ArgMax(ids backend.Ints, x backend.Tensor) {
	l.note(&l.heads, x.Rows)
	l.Backend.ArgMax(ids, x)
}

func (l *late) TopK(ids backend.Ints, logp, x backend.Tensor, k int) {
	l.note(&l.tops, x.Rows)
	l.Backend.TopK(ids, logp, x, k)
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

// TestCalibrateCompiles: devices that compile rehearse passes of all kinds, with or without a drafter; not if a
// processor has a part in them.
func TestCalibrateCompiles(t *testing.T) {
	for _, c := range []struct {
		what               string
		drafter, processor bool
	}{{"a drafter", true, false}, {"no drafter", false, false}, {"a drafter on the processor", true, true}} {
		b := cpu.New(cpu.Options{Threads: 1})
		defer b.Close()
		dev := &late{Backend: b}
		m, err := model.Open(open(t, "qwen35/model.gguf"), dev, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var sources []draft.Source
		if c.drafter {
			opt := dflash.Options{}
			if c.processor {
				opt.Device = b
			}
			d, err := dflash.Open(open(t, "dflash-qwen35/model.gguf"), m, opt)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, d)
		}
		r, err := NewRunner(m, sources...)
		if err == nil {
			err = r.Calibrate(-1)
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.processor {
			if len(dev.rows) > 0 {
				t.Errorf("%s: passes of %v rows", c.what, dev.rows)
			}
			continue
		}
		for _, n := range []int{1, 2, 4, 8, 16, 24, 32, 40, 48, 64} { // chains have logits of all rows
			if !slices.Contains(dev.rows, n) || !slices.Contains(dev.heads, n) {
				t.Errorf("%s: no pass of %d rows, or not with all logits: %v, %v", c.what, n, dev.rows, dev.heads)
			}
		}
		if n := model.MaxRows / 2; !slices.Contains(dev.rows, n) || slices.Contains(dev.heads, n) {
			t.Errorf("%s: no prompt of %d rows, or one with all logits: %v, %v", c.what, n, dev.rows, dev.heads)
		}
		if drafts := len(dev.tops); drafts > 1 != c.drafter {
			t.Errorf("%s: drafts of %v rows", c.what, dev.tops)
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
		if want := s.Wants(m.Vocab); (want == sample.WantBest) != (bias < 0) {
			t.Errorf("bias %g: the device may choose: %t", bias, bias > 0)
		}
		got := run(s)
		same(t, got, run(hidden{sample.New(p, m.Vocab)}))
		if bias < -1 && slices.Equal(got, free) {
			t.Errorf("bias %g changes nothing: %v", bias, got)
		}
	}
}
