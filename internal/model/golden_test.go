package model

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/synth"
	"strobe/internal/testkit"
)

var targets = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe", "gemma4e"}

// every also has architectures without golden files, whose numbers package modeltest checks, as made-up models.
var every = slices.Concat(targets, []string{"tiny-llama", "tiny-qwen2", "tiny-qwen3moe"})

// file opens a golden or a made-up model.
func file(t testing.TB, name string) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if !strings.HasPrefix(name, "tiny-") {
		path = testkit.Golden(t, name+"/model.gguf")
	} else if err := synth.Write(t.Context(), path, name, "q8_0", 1, synth.Options{}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// open loads a model on a CPU backend of its own.
func open(t testing.TB, name string, threads int, opt Options) *Model {
	t.Helper()
	f := file(t, name)
	b := cpu.New(cpu.Options{Threads: threads})
	t.Cleanup(func() { b.Close(); f.Close() })
	m, err := Open(f, testkit.NewDevice(t, b), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type expectation struct {
	tokens []int32
	logits []float32 // [n, vocab]
	hidden []float32 // [layers+1, n, width]
}

func expected(t testing.TB, name string) expectation {
	t.Helper()
	f, err := safetensors.Open(testkit.Golden(t, name+"/expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var e expectation
	d := f.Tensor("tokens").Data
	for i := 0; i < len(d); i += 4 {
		e.tokens = append(e.tokens, int32(binary.LittleEndian.Uint32(d[i:])))
	}
	for name, dst := range map[string]*[]float32{"logits": &e.logits, "hidden_states": &e.hidden} {
		if *dst, err = f.Tensor(name).Float32s(); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// run feeds tokens in batches of the given size and returns all logits, and hidden states as
// transformers counts them when hidden is set.
func run(t testing.TB, m *Model, seq *cache.Seq, tokens []int32, batch int, hidden bool) (logits, states []float32) {
	t.Helper()
	if hidden {
		layers := []int{}
		for l := -1; l < m.Layers-1; l++ {
			layers = append(layers, l)
		}
		if err := m.Capture(layers); err != nil {
			t.Fatal(err)
		}
		states = make([]float32, (m.Layers+1)*len(tokens)*m.Hidden)
	}
	for from := 0; from < len(tokens); from += batch {
		part := tokens[from:min(from+batch, len(tokens))]
		out, err := m.Forward([]Segment{{Seq: seq, Tokens: part, Logits: LogitsAll}})
		if err != nil {
			t.Fatal(err)
		}
		for r := range part {
			logits = append(logits, out.Row(0, r)...)
			if !hidden {
				continue
			}
			at := func(layer int) []float32 {
				return states[(layer*len(tokens)+from+r)*m.Hidden:][:m.Hidden]
			}
			f := m.Backend().Read(out.FeatureRows(0, r, 1))
			for l := range m.Layers {
				copy(at(l), f[l*m.Hidden:][:m.Hidden])
			}
			copy(at(m.Layers), m.Backend().Read(out.Final.Slice(r, 1)))
		}
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	return logits, states
}

// TestGolden compares logits and every hidden state with transformers in float32.
func TestGolden(t *testing.T) {
	const bound = 1e-4
	for _, level := range kernel.Available() {
		for _, name := range targets {
			want := expected(t, name)
			for _, batch := range []int{len(want.tokens), 1} {
				t.Run(fmt.Sprintf("%s/%s/batch%d", level, name, batch), func(t *testing.T) {
					defer kernel.Set(level)()
					m := open(t, name, 2, Options{KV: cache.Uniform(quant.F32)})
					logits, hidden := run(t, m, m.NewSeq(), want.tokens, batch, true)
					if e := testkit.RelL2(logits, want.logits); !(e <= bound) {
						t.Errorf("logits differ by %.2e, want at most %.0e", e, bound)
					}
					n := len(want.tokens) * m.Hidden
					for l := range m.Layers + 1 {
						if e := testkit.RelL2(hidden[l*n:][:n], want.hidden[l*n:][:n]); !(e <= bound) {
							t.Errorf("hidden state %d differs by %.2e, want at most %.0e", l, e, bound)
						}
					}
				})
			}
		}
	}
}
