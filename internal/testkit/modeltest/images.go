package modeltest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// WithImages are the golden models that can have images: three axes of positions, rows that see each other, rows with
// embeddings per layer.
var WithImages = []string{"qwen35", "gemma4", "gemma4e"}

// Pictures is a text with two images of random rows, as model and reference take it.
func Pictures(hidden int, seed uint64) (tokens []int32, images []model.Image, pictures []Picture) {
	r := rand.New(rand.NewPCG(seed, 7))
	text := func(n int) {
		for range n {
			tokens = append(tokens, int32(r.IntN(500)))
		}
	}
	image := func(w, h int) {
		rows := make([]float32, w*h*hidden)
		for i := range rows {
			rows[i] = float32(r.NormFloat64())
		}
		images = append(images, model.Image{At: len(tokens), W: w, H: h, Rows: rows})
		pictures = append(pictures, Picture{len(tokens), w, h, rows})
		for i := range w * h {
			tokens = append(tokens, -2-int32(i))
		}
	}
	text(9)
	image(5, 3)
	text(4)
	image(2, 4)
	text(7)
	return tokens, images, pictures
}

// Images: texts with images have the logits of the reference and the same bits whatever the batch: in parts, beside
// others, after a copy of their beginning, in a tree, and in a pass that the device runs again with other images.
func (s Suite) Images(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			b := s.Backend
			// With so small a base, neighbours in an image differ much in their angles.
			file := edit.Golden(t, name)
			file.Set(file.Arch()+".rope.freq_base", float32(100))
			m, err := model.Open(File(t, file.Write(t)), b, model.Options{KV: cache.Uniform(quant.F32)})
			if err != nil {
				t.Fatal(err)
			}
			// run reads a text from the end of seq on, in parts of so many rows that cut no image of rows which see each
			// other, with others in the same batches, and returns the logits.
			run := func(seq *cache.Seq, tokens []int32, images []model.Image, part int, beside ...model.Segment) []float32 {
				var all []float32
				for from := seq.Len(); from < len(tokens); from = seq.Len() {
					to := min(from+part, len(tokens))
					for _, p := range images {
						if m.Mutual && to > p.At && to < p.At+p.Len() {
							to = p.At + p.Len()
						}
					}
					seg := model.Segment{Seq: seq, Tokens: tokens[from:to], Images: images, Logits: model.LogitsAll}
					all = append(all, b.Read(Forward(t, m, append([]model.Segment{seg}, beside...)...).Logits)[:(to-from)*m.Vocab]...)
					for _, g := range append(beside, seg) {
						if err := g.Seq.CommitAll(); err != nil {
							t.Fatal(err)
						}
					}
				}
				return all
			}
			tokens, images, pictures := Pictures(m.Hidden, 1)
			want := run(m.NewSeq(), tokens, images, len(tokens))
			if e := testkit.RelL2(want, Reference(t, m.File(), tokens, pictures...)); !(e <= 1e-4) {
				t.Errorf("logits differ from the reference by %.2e", e)
			}
			if s.Few > 0 { // an emulation is slow
				if !SameBits(run(m.NewSeq(), tokens, images, 20), want) {
					t.Error("in parts: other bits than as a whole")
				}
				return
			}
			others, more, _ := Pictures(m.Hidden, 2)
			if other := run(m.NewSeq(), others, more, len(others)); SameBits(other, want) {
				t.Error("other images and other text have the same logits")
			}
			for _, part := range []int{1, 6} {
				if !SameBits(run(m.NewSeq(), tokens, images, part), want) {
					t.Errorf("in parts of %d: other bits than as a whole", part)
				}
			}
			beside := []model.Segment{
				{Seq: m.NewSeq(), Tokens: []int32{3, 4, 5}, Logits: model.LogitsLast},
				{Seq: m.NewSeq(), Tokens: others, Images: more, Logits: model.LogitsLast}}
			if !SameBits(run(m.NewSeq(), tokens, images, len(tokens), beside...), want) {
				t.Error("beside others: other bits than alone")
			}
			// A copy of the beginning, up to the end of the first image, goes on with the same bits. The rows of that image
			// are no longer needed.
			base := m.NewSeq()
			end := images[0].At + images[0].Len()
			run(base, tokens[:end], images, end)
			hit, err := base.Fork()
			if err != nil {
				t.Fatal(err)
			}
			known := slices.Clone(images)
			known[0].Rows = nil
			if !SameBits(run(hit, tokens, known, len(tokens)), want[end*m.Vocab:]) {
				t.Error("after a copied beginning: other bits")
			}
			s.imageTree(t, m, hit, known)
		})
	}
}

// imageTree: rows of a tree behind images have the bits of chains, and so have those after a rejected draft.
func (s Suite) imageTree(t *testing.T, m *model.Model, seq *cache.Seq, images []model.Image) {
	guesses, parents := []int32{7, 8, 9, 10}, []int32{-1, 0, 0, 1}
	pass := func(seq *cache.Seq, tokens, parents []int32) []float32 {
		return slices.Clone(s.Backend.Read(Forward(t, m, model.Segment{Seq: seq, Tokens: tokens, Parents: parents,
			Images: images, Logits: model.LogitsAll}).Logits))
	}
	tree := pass(seq, guesses, parents)
	if err := seq.Commit(nil); err != nil { // nothing of it was right
		t.Fatal(err)
	}
	chain, err := seq.Fork()
	if err != nil {
		t.Fatal(err)
	}
	rows := pass(chain, []int32{7, 8, 10}, nil)
	v := m.Vocab
	if !SameBits(rows, slices.Concat(tree[:2*v], tree[3*v:])) {
		t.Error("a tree behind images has other bits than a chain")
	}
	if again := pass(seq, guesses[:1], nil); !SameBits(again, rows[:v]) {
		t.Error("after a rejected draft: other bits")
	}
}
