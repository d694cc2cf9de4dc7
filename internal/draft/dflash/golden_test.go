package dflash

import (
	"encoding/binary"
	"fmt"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

var targets = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe"}

// openPair loads a golden target and its drafter.
func openPair(t testing.TB, name string) (*model.Model, *Drafter) {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	t.Cleanup(func() { b.Close() })
	file := func(rel string) *gguf.File {
		f, err := gguf.Open(testkit.Golden(t, rel))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	m, err := model.Open(file(name+"/model.gguf"), testkit.NewDevice(t, b), model.Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(file("dflash-"+name+"/model.gguf"), m, Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	return m, d
}

func ints(t *safetensors.Tensor) (v []int32) {
	for i := 0; i < len(t.Data); i += 4 {
		v = append(v, int32(binary.LittleEndian.Uint32(t.Data[i:])))
	}
	return v
}

// TestGolden compares four rounds with growing context with the authors' drafter in float32: from
// the reference's features, and from the features of our own target.
func TestGolden(t *testing.T) {
	for _, name := range targets {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/own=%v", name, own), func(t *testing.T) {
				m, d := openPair(t, name)
				f, err := safetensors.Open(testkit.Golden(t, "dflash-"+name+"/expected.safetensors"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				tokens := ints(f.Tensor("tokens"))
				feats, _ := f.Tensor("features").Float32s()
				width := len(feats) / len(tokens)
				features := upload(m.Backend(), feats, len(tokens), width)
				if own {
					if err := m.Capture(d.Capture()); err != nil {
						t.Fatal(err)
					}
					seq := m.NewSeq()
					out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: tokens}})
					if err != nil {
						t.Fatal(err)
					}
					features = out.Features
					if e := testkit.RelL2(m.Backend().Read(features), feats); !(e <= 1e-4) {
						t.Errorf("captured features differ by %.2e", e)
					}
				}
				seq := d.NewSeq()
				for r := 0; f.Tensor(fmt.Sprintf("round%d.start", r)) != nil; r++ {
					start := int(f.Tensor(fmt.Sprintf("round%d.start", r)).Data[0])
					var rows []int32
					for i := seq.Len(); i < start; i++ {
						rows = append(rows, int32(i))
					}
					if err := d.Extend(features, []draft.Rows{{Seq: seq, Rows: rows}}); err != nil {
						t.Fatal(err)
					}
					got, err := d.BlockLogits(seq, tokens[start])
					if err != nil {
						t.Fatal(err)
					}
					want, _ := f.Tensor(fmt.Sprintf("round%d.logits", r)).Float32s()
					if e := testkit.RelL2(got, want); !(e <= 1e-4) {
						t.Errorf("round %d at %d: logits differ by %.2e, want at most 1e-4", r, start, e)
					}
				}
			})
		}
	}
}
