package modeltest

import (
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft/dflash"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// TestReference: where there are golden numbers of another implementation, the reference has them.
func TestReference(t *testing.T) {
	x, err := safetensors.Open(testkit.Golden(t, "qwen3/expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	want, err := x.Tensor("logits").Float32s()
	if err != nil {
		t.Fatal(err)
	}
	f := File(t, testkit.Golden(t, "qwen3/model.gguf"))
	n := 12
	got := Reference(t, f, Tokens(t, x)[:n])
	if e := testkit.RelL2(got, want[:len(got)]); !(e <= 1e-5) {
		t.Errorf("relative error %.2e", e)
	}
}

// TestPlain: architectures without golden files on the processor: logits of the reference, the same bits whatever the
// batch, and the same text whatever drafts.
func TestPlain(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	s := Suite{Backend: b}
	for _, name := range Plain {
		t.Run(name, func(t *testing.T) {
			f := File(t, Synth(t, name, "f32"))
			m, err := model.Open(f, b, model.Options{KV: cache.Uniform(quant.F32)})
			if err != nil {
				t.Fatal(err)
			}
			tokens := []int32{3, 500, 120, 77, 9, 1400}
			out := Forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: tokens, Logits: model.LogitsAll})
			if e := testkit.RelL2(b.Read(out.Logits), Reference(t, f, tokens)); !(e <= 1e-4) {
				t.Errorf("relative error %.2e", e)
			}
			d, err := dflash.Open(File(t, Synth(t, name+"-dflash", "q8_0")), m, dflash.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.Same(t, m, d, tokens, 24)
		})
	}
	t.Run("identity", func(t *testing.T) { s.Identity(t, Plain...) })
	t.Run("padding", func(t *testing.T) { s.Padding(t, Plain...) })
}
