package modeltest

import (
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/model"
	"strobe/internal/testkit"
	"strobe/models"
)

// TestReference: where there are golden numbers of another implementation, the reference has them.
func TestReference(t *testing.T) {
	for _, name := range Targets {
		f := File(t, testkit.Golden(t, name+"/model.gguf"))
		tokens, want := expected(t, name, f)
		got := Reference(t, f, tokens[:12])
		if e := testkit.RelL2(got, want[:len(got)]); !(e <= 1e-5) {
			t.Errorf("%s: relative error %.2e", name, e)
		}
	}
}

// TestPlain: architectures without golden files on the processor: logits of the reference, the same bits whatever the
// batch, and the same text whatever drafts.
func TestPlain(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	s := Suite{Backend: b}
	t.Run("logits", func(t *testing.T) { s.Golden(t, Plain...) })
	t.Run("identity", func(t *testing.T) { s.Identity(t, Plain...) })
	t.Run("prompts", func(t *testing.T) { s.Prompts(t, Plain...) })
	t.Run("padding", func(t *testing.T) { s.Padding(t, Plain...) })
	t.Run("text", func(t *testing.T) { s.Text(t, Plain...) })
}

// TestImages: rows of images instead of tokens, on the processor.
func TestImages(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	Suite{Backend: b}.Images(t, WithImages...)
}

// TestSamplers: on the processor, with a tiny vocabulary, and with one that has more tokens than are chosen of a row.
func TestSamplers(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	s := Suite{Backend: b}
	t.Run("tiny", func(t *testing.T) { s.Samplers(t, Target(t, b, "qwen35", model.Options{}), []int32{1, 5, 9, 13}, 24) })
	t.Run("built in", func(t *testing.T) {
		tf, _, err := models.Open()
		if err != nil {
			t.Skipf("needs the built-in models, which the tag nomodels leaves out: %v", err)
		}
		m, err := model.Open(tf, b, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.Samplers(t, m, []int32{1, 500, 900, 1300}, 10) // two drafts of a chain
	})
}

// TestEagle3: EAGLE-3 drafters on the processor, where nothing else says that the text stays the same with them.
func TestEagle3(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	Suite{Backend: b}.MTP(t, "eagle3-qwen3", "eagle3-qwen35", "eagle3-gemma4")
}
