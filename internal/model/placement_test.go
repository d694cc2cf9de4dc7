package model

import (
	"errors"
	"math"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// TestPlacement: a model whose layers or experts lie on two devices gives the same bits as on one, whatever the cut:
// prompts, chains, trees, features, and a sequence that goes on after a commit.
func TestPlacement(t *testing.T) {
	one, two := cpu.New(cpu.Options{Threads: 1}), cpu.New(cpu.Options{Threads: 2})
	defer one.Close()
	defer two.Close()
	first := testkit.NewDevice(t, one)
	second := &counted{Device: testkit.NewDevice(t, two)}
	for _, name := range every {
		t.Run(name, func(t *testing.T) {
			f := file(t, name)
			defer f.Close()
			whole, err := Open(f, first, Options{KV: cache.Uniform(quant.F32)})
			if err != nil {
				t.Fatal(err)
			}
			want := placementRun(t, whole)
			everyOther := func(layer int) int { return layer % 2 }
			for what, opt := range map[string]Options{
				"all layers but one":      {Place: func(layer int) int { return min(1, layer) }},
				"the last layer":          {Place: func(layer int) int { return layer / max(1, whole.Layers-1) }},
				"every other layer":       {Place: everyOther},
				"all experts":             {Experts: func(int) int { return 1 }},
				"experts of every other":  {Experts: everyOther},
				"layers and experts":      {Place: everyOther, Experts: func(layer int) int { return layer / 2 % 2 }},
				"layers without experts":  {Place: everyOther, Experts: func(int) int { return 0 }},
				"experts of other layers": {Place: everyOther, Experts: func(layer int) int { return 1 - layer%2 }},
			} {
				opt.KV = cache.Uniform(quant.F32)
				m, err := Open(f, first, opt, second)
				if err != nil {
					t.Fatal(err)
				}
				second.experts = 0
				if got := placementRun(t, m); !slices.Equal(got, want) {
					t.Errorf("%s on another device: other bits than on one", what)
				}
				if what == "all experts" && (second.experts > 0) != (whole.Experts > 0) {
					t.Errorf("%d products with experts on the other device", second.experts)
				}
			}
		})
	}
}

// counted is a device that counts products with experts.
type counted struct {
	*testkit.Device
	experts int
}

func (c *counted) ExpertMatMul(x backend.Tensor, ids backend.Ints, used int, ps ...backend.Product) {
	c.experts++
	c.Device.ExpertMatMul(x, ids, used, ps...)
}

// placementRun returns the logits and features of a prompt, a chain and a tree of one sequence, as bits.
func placementRun(t *testing.T, m *Model) (bits []uint32) {
	t.Helper()
	if err := m.Capture([]int{-1, 0, m.Layers - 1}); err != nil {
		t.Fatal(err)
	}
	seq := m.NewSeq()
	defer seq.Close()
	for _, s := range []struct {
		seg  Segment
		path []int32
	}{
		{Segment{Tokens: []int32{1, 2, 3, 4, 5}, Prompt: true, Logits: LogitsLast}, []int32{0, 1, 2, 3, 4}},
		{Segment{Tokens: []int32{6, 7, 8}, Logits: LogitsAll}, []int32{0, 1}},
		{Segment{Tokens: []int32{8, 9, 10, 11}, Parents: []int32{-1, 0, 0, 2}, Logits: LogitsAll}, []int32{0, 2, 3}},
		{Segment{Tokens: []int32{12}, Logits: LogitsAll}, []int32{0}},
	} {
		s.seg.Seq = seq
		out, err := m.Forward([]Segment{s.seg})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Sync(); err != nil {
			t.Fatal(err)
		}
		for _, x := range []backend.Tensor{out.Logits, out.Features} {
			for _, v := range m.Backend().Read(x) {
				bits = append(bits, math.Float32bits(v))
			}
		}
		if err := seq.Commit(s.path); err != nil {
			t.Fatal(err)
		}
	}
	return bits
}

// gone is a device that fails: what it was asked for is anything.
type gone struct {
	backend.Backend
	err error
}

func (g *gone) Ints(v backend.Ints) []int32 {
	if g.err != nil {
		return slices.Repeat([]int32{1 << 20}, v.Len())
	}
	return g.Backend.Ints(v)
}

func (g *gone) Sync() error { return g.err }

// TestLostBeforeExperts: the choice of experts of a failed device is not used.
func TestLostBeforeExperts(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen35moe/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, experts := cpu.New(cpu.Options{Threads: 1}), cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	defer experts.Close()
	dev := &gone{Backend: b}
	m, err := Open(f, dev, Options{Experts: func(int) int { return 1 }}, experts)
	if err != nil {
		t.Fatal(err)
	}
	dev.err = errors.New("the device is gone")
	if _, err := m.Forward([]Segment{{Seq: m.NewSeq(), Tokens: []int32{1, 2}}}); !errors.Is(err, dev.err) {
		t.Errorf("error %v", err)
	}
}

// TestBound: Options.Bound is called for every weight.
func TestBound(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen35/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	sum, calls := 0, 0
	m, err := Open(f, b, Options{Bound: func(bytes int) { sum, calls = sum+bytes, calls+1 }})
	if err != nil {
		t.Fatal(err)
	}
	if sum != m.WeightBytes() || calls < m.Layers {
		t.Errorf("told of %d bytes in %d weights, the model has %d", sum, calls, m.WeightBytes())
	}
}
