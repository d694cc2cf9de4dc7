package model

import (
	"math"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// TestPlacement: a model whose layers lie on two devices gives the same bits as on one, whatever the cut: prompts,
// chains, trees, features, and a sequence that goes on after a commit.
func TestPlacement(t *testing.T) {
	first, second := cpu.New(cpu.Options{Threads: 1}), cpu.New(cpu.Options{Threads: 2})
	defer first.Close()
	defer second.Close()
	for _, name := range targets {
		t.Run(name, func(t *testing.T) {
			f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			whole, err := Open(f, first, Options{KVF32: true})
			if err != nil {
				t.Fatal(err)
			}
			want := placementRun(t, whole)
			for _, place := range []func(int) int{
				func(layer int) int { return min(1, layer) },                        // all but one
				func(layer int) int { return min(1, layer/max(1, whole.Layers-1)) }, // the last one
				func(layer int) int { return layer % 2 },                            // to and fro
			} {
				m, err := Open(f, first, Options{KVF32: true, Place: place}, second)
				if err != nil {
					t.Fatal(err)
				}
				if got := placementRun(t, m); !slices.Equal(got, want) {
					t.Errorf("other bits on two devices")
				}
			}
		})
	}
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

// TestBound: whoever shows progress is told of every weight.
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
