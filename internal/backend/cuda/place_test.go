//go:build !nogpu

package cuda_test

import (
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft/dflash"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
	"strobe/internal/testkit/modeltest"
)

func processor(t testing.TB) backend.Backend {
	b := cpu.New(cpu.Options{Threads: 1})
	t.Cleanup(func() { b.Close() })
	return b
}

// TestDivided: a model of which a part lies elsewhere, its experts or its layers on the processor or on a second GPU (a
// second context of the same one), gives the reference's logits, and a token the same bits alone and in a batch. Two
// GPUs give the bits of one.
func TestDivided(t *testing.T) {
	names := []string{"qwen35moe", "qwen3next", "gemma4moe", "qwen3", "gemma4e"}
	everyOther := func(layer int) int { return layer % 2 }
	b, second := open(t), open(t)
	for _, name := range names {
		f, err := safetensors.Open(testkit.Golden(t, name+"/expected.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want, err := f.Tensor("logits").Float32s()
		if err != nil {
			t.Fatal(err)
		}
		tokens := modeltest.Tokens(t, f)
		if os.Getenv("STROBE_CUDA") != "cuda" {
			tokens = tokens[:4]
		}
		run := func(m *model.Model, rows int) (got []float32) {
			seq := m.NewSeq()
			defer seq.Close()
			for at := 0; at < len(tokens); at += rows {
				out := modeltest.Forward(t, m, model.Segment{Seq: seq, Tokens: tokens[at:min(at+rows, len(tokens))],
					Logits: model.LogitsAll})
				got = append(got, m.Backend().Read(out.Logits)...)
				if err := seq.CommitAll(); err != nil {
					t.Fatal(err)
				}
			}
			return got
		}
		whole := run(modeltest.Target(t, b, name, model.Options{KV: cache.Uniform(quant.F32)}), len(tokens))
		for _, c := range []struct {
			what   string
			opt    model.Options
			beside backend.Backend
			same   bool // bits as on one GPU
		}{
			{"experts on the processor", model.Options{Experts: func(int) int { return 1 }}, processor(t), false},
			{"some layers and experts on the processor", model.Options{Place: func(l int) int { return 1 - min(1, l) }, Experts: everyOther},
				processor(t), false},
			{"layers on two GPUs", model.Options{Place: everyOther}, second, true},
			{"layers on one GPU twice", model.Options{Place: everyOther}, b, true}, // steps of a pass take turns there
			// With weights in tiles the bits would be others: what crosses is rounded as a tensor is, where on one GPU a
			// product takes the norm's factor afterwards.
			{"experts on another GPU", model.Options{Experts: everyOther}, second, true},
		} {
			if os.Getenv("STROBE_CUDA") != "cuda" && c.what != "layers on two GPUs" && name != "qwen35moe" {
				continue // the emulation is slow
			}
			t.Run(name+"/"+c.what, func(t *testing.T) {
				c.opt.KV = cache.Uniform(quant.F32)
				m, err := model.Open(modeltest.File(t, testkit.Golden(t, name+"/model.gguf")), b, c.opt, c.beside)
				if err != nil {
					t.Fatal(err)
				}
				all := run(m, len(tokens))
				if e := testkit.RelL2(all, want[:len(all)]); !(e <= 1e-4) {
					t.Errorf("relative error %.2e", e)
				}
				if !modeltest.SameBits(run(m, 1), all) {
					t.Error("a token has other bits alone than in a batch")
				}
				if c.same && !modeltest.SameBits(all, whole) {
					t.Error("other bits than on one GPU")
				}
			})
		}
	}
}

// TestDrafterElsewhere: a drafter on another device than its target, or a target of which a part is elsewhere, changes
// nothing of what is said.
func TestDrafterElsewhere(t *testing.T) {
	const name = "qwen35"
	gpu, host := open(t), processor(t)
	for _, c := range []struct {
		what            string
		target, drafter backend.Backend
	}{{"drafter on the GPU", host, gpu}, {"drafter on the processor", gpu, host}, {"two GPUs", gpu, open(t)}} {
		if c.target == gpu && os.Getenv("STROBE_CUDA") != "cuda" {
			continue // the emulation is slow, and what crosses is the same
		}
		t.Run(c.what, func(t *testing.T) {
			m := modeltest.Target(t, c.target, name, model.Options{})
			d, err := dflash.Open(modeltest.File(t, testkit.Golden(t, "dflash-"+name+"/model.gguf")), m,
				dflash.Options{Device: c.drafter})
			if err != nil {
				t.Fatal(err)
			}
			short().Same(t, m, d, []int32{1, 5, 9, 13}, 24)
		})
	}
}
