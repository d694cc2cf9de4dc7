package dflash

import (
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// TestDevices: a drafter on another device than its target, or divided between two, gives the same bits.
func TestDevices(t *testing.T) {
	var others [2]backend.Backend
	for i := range others {
		b := cpu.New(cpu.Options{Threads: 1})
		defer b.Close()
		others[i] = testkit.NewDevice(t, b)
	}
	for _, name := range targets {
		m, d := openPair(t, name)
		if len(d.layers) < 2 {
			t.Fatalf("%s: a drafter of one layer cannot be divided", name)
		}
		if err := m.Capture(d.Capture()); err != nil {
			t.Fatal(err)
		}
		seq := m.NewSeq()
		var features []float32
		rows := 0
		// Longer than a block, and shorter.
		for _, tokens := range [][]int32{slices.Repeat([]int32{3, 9, 27, 81}, d.block), {5, 6}} {
			out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: tokens, Prompt: true}})
			if err != nil {
				t.Fatal(err)
			}
			features = append(features, m.Backend().Read(out.Features)...)
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
			rows += len(tokens)
		}
		x, err := m.Backend().Alloc(rows, len(features)/rows)
		if err != nil {
			t.Fatal(err)
		}
		m.Backend().Write(x, features)
		block := func(d *Drafter) []float32 {
			seq := d.NewSeq()
			defer seq.Close()
			from := 0
			for _, n := range []int{rows - 2, 2} {
				var pick []int32
				for ; len(pick) < n; from++ {
					pick = append(pick, int32(from))
				}
				if err := d.Extend(x, []draft.Rows{{Seq: seq, Tokens: make([]int32, n), Rows: pick}}); err != nil {
					t.Fatal(err)
				}
			}
			v, err := d.BlockLogits(seq, 11)
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(v)
		}
		want := block(d)
		f, err := gguf.Open(testkit.Golden(t, "dflash-"+name+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for what, opt := range map[string]Options{
			"elsewhere":             {Device: others[0]},
			"divided":               {Beside: others[1], Layers: 1},
			"divided and elsewhere": {Device: others[0], Beside: others[1], Layers: 1},
			"divided to the target": {Device: others[0], Beside: m.Backend(), Layers: len(d.layers) - 1},
			"divided by too many":   {Beside: others[1], Layers: 99},
		} {
			opt.KV = cache.Uniform(quant.F32)
			d, err := Open(f, m, opt)
			if err != nil {
				t.Fatal(err)
			}
			if got := block(d); !slices.Equal(got, want) {
				t.Errorf("%s: %s: other logits than on the target's device", name, what)
			}
		}
	}
}
