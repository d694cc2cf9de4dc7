package grammar

import (
	"math"
	"math/rand"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// realVocab is a vocabulary of about 250 000 tokens.
func realVocab(t testing.TB) (*Vocab, *tokenizer.Tokenizer) {
	t.Helper()
	f, err := gguf.Open(testkit.Shared(t, "vocab/ggml-vocab-qwen35.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	pieces := make([][]byte, tok.Size())
	for id := range pieces {
		if k := tok.Kind(int32(id)); k == tokenizer.Normal || k == tokenizer.Byte {
			pieces[id] = tok.Piece(int32(id), false)
		}
	}
	return NewVocab(pieces, tok.EOG()), tok
}

const personSchema = `{"type":"object","properties":{
	"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
	"email":{"type":"string","pattern":"^[a-z0-9.]+@[a-z0-9.]+$"},
	"tags":{"type":"array","items":{"type":"string","minLength":1,"maxLength":40},"maxItems":10},
	"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},"zip":{"type":"string"}},"required":["street","city"]},
	"kind":{"enum":["person","robot"]},"bio":{"type":"string"}},"required":["name","age","kind","bio"]}`

const personDoc = `{
  "name": "Jürgen \"JJ\" Müller",
  "age": 42,
  "email": "jj.mueller@example.org",
  "tags": ["engineer", "father of two", "likes 🌦 weather"],
  "address": {"street": "1 Main Street", "city": "Springfield"},
  "kind": "person",
  "bio": "Born in 1983, he went to school in the small town where his parents ran a bakery.\nLater he moved north."
}`

// TestRealVocab checks masks of a real vocabulary against the tokens one by
// one along a real tokenisation, and that random walks end in JSON.
func TestRealVocab(t *testing.T) {
	v, tok := realVocab(t)
	g := mustCompile(t, personSchema)
	m := g.NewMatcher(v)
	logits := make([]float32, v.Size())
	for i, id := range tok.Encode(personDoc, tokenizer.EncodeOptions{}) {
		clear(logits)
		m.Mask(logits)
		if i%16 == 0 {
			for id := range int32(v.Size()) {
				if got, want := m.Allows(id), !math.IsInf(float64(logits[id]), -1); got != want {
					t.Fatalf("token %d: Allows(%d %q) = %t, mask says %t", i, id, v.pieces[id], got, want)
				}
			}
		}
		if math.IsInf(float64(logits[id]), -1) {
			t.Fatalf("token %d %q is masked", i, v.pieces[id])
		}
		m.Accept(id)
	}
	if !m.Complete() {
		t.Error("the document is complete, the matcher not")
	}
	o := oracle(t, personSchema)
	r := rand.New(rand.NewSource(1))
	for range 3 {
		if text, complete := generate(t, g, v, r, false); complete {
			if err := validate(o, text); err != nil {
				t.Errorf("emitted %s\n%v", text, err)
			}
		}
	}
}

func BenchmarkNewVocab(b *testing.B) {
	v, _ := realVocab(b)
	b.ReportMetric(float64(len(v.char)), "nodes")
	for b.Loop() {
		NewVocab(v.pieces, v.eog)
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		mustCompile(b, personSchema)
	}
}

// BenchmarkMask is one document: the first time with everything to compute,
// then as later requests see it.
func BenchmarkMask(b *testing.B) {
	v, tok := realVocab(b)
	ids := tok.Encode(personDoc, tokenizer.EncodeOptions{})
	logits := make([]float32, v.Size())
	for _, warm := range []bool{false, true} {
		name := "cold"
		if warm {
			name = "warm"
		}
		b.Run(name, func(b *testing.B) {
			g := mustCompile(b, personSchema)
			for b.Loop() {
				if !warm {
					v.bases, v.chars = map[baseKey]*base{}, nil
					g = mustCompile(b, personSchema)
				}
				m := g.NewMatcher(v)
				for _, id := range ids {
					m.Mask(logits)
					m.Accept(id)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(ids)), "µs/token")
		})
	}
	// A long string: nothing but the mask of one configuration.
	b.Run("steady", func(b *testing.B) {
		m := mustCompile(b, personSchema).NewMatcher(v)
		for _, id := range tok.Encode(`{"name": "`, tokenizer.EncodeOptions{}) {
			m.Accept(id)
		}
		id := tok.Encode("word", tokenizer.EncodeOptions{})[0]
		for b.Loop() {
			m.Mask(logits)
			m.Accept(id)
		}
	})
}
