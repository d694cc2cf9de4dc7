package dflash

import (
	"math"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/testkit"
)

// Each test of this file proves a property that failed in other implementations of speculative decoding. Numbers
// such as F4 count those failures.

// TestUnwrittenMemoryIsNotRead (failure F12): memory that nothing has written, or an earlier pass left behind, is
// never read.
func TestUnwrittenMemoryIsNotRead(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, file := range []*drafterFile{golden(t, "qwen35"), markovFile(t, "qwen35", 0), selectorFile(t, "qwen35")} {
		d := file.open(t, m, Options{})
		clean := file.open(t, m, Options{})
		h := newHistory(d, 2, 150)
		seq, ref := d.NewSeq(), clean.NewSeq()
		for _, n := range []int{3, 20, 1, 64, 40, 22} {
			d.poisonScratch()
			feed(t, d, seq, h.rows(seq.Len(), seq.Len()+n))
			feed(t, clean, ref, h.rows(ref.Len(), ref.Len()+n))
			for _, k := range []int{d.Max(), 1, 6} {
				d.poisonScratch()
				got := propose(t, d, 3, draft.Request{Seq: seq, Last: 4, N: k})[0]
				want := propose(t, clean, 3, draft.Request{Seq: ref, Last: 4, N: k})[0]
				for i := range want.At {
					if !slices.Equal(got.At[i], want.At[i]) {
						t.Fatalf("after %d tokens, position %d of %d: %v from poisoned memory, %v otherwise", seq.Len(), i, k, got.At[i],
							want.At[i])
					}
				}
			}
		}
	}
}

// TestRepeatedStepGivesTheSameBits (failure F66): every input of a step is written anew: a step that is repeated
// after others of other sizes gives the same bits.
func TestRepeatedStepGivesTheSameBits(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	seq, _ := context(t, d, 1, 50)
	other, _ := context(t, d, 2, 90)
	want := propose(t, d, 3, draft.Request{Seq: seq, Last: 1, N: 7})[0]
	for step := range 12 {
		propose(t, d, 3, draft.Request{Seq: other, Last: 9, N: 1 + step}, draft.Request{Seq: seq, Last: 8, N: d.Max() - step})
		got := propose(t, d, 3, draft.Request{Seq: seq, Last: 1, N: 7})[0]
		for i := range want.At {
			if !slices.Equal(got.At[i], want.At[i]) {
				t.Fatalf("step %d, position %d: %v, at first %v", step, i, got.At[i], want.At[i])
			}
		}
	}
}

// TestNothingToAddOrGuess (failure F13): nothing to add and nothing to guess are no special cases.
func TestNothingToAddOrGuess(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	seq := d.NewSeq()
	if err := d.Extend(backend.Tensor{}, nil); err != nil {
		t.Error(err)
	}
	if err := d.Extend(backend.Tensor{}, []draft.Rows{{Seq: seq}}); err != nil {
		t.Error(err)
	}
	// A draft without any context works and is finite.
	p := propose(t, d, 1, draft.Request{Seq: seq, Last: 0, N: 4})[0]
	if p.Sane(m.Vocab); p.Len() != 4 {
		t.Errorf("%d guesses without context, want 4", p.Len())
	}
}

// inputNorm is the length of the embedding row a block starts with.
func inputNorm(t *testing.T, d *Drafter, id int32) float64 {
	t.Helper()
	ids, err := d.b.AllocInts(1)
	if err != nil {
		t.Fatal(err)
	}
	d.b.SetInts(ids, []int32{id})
	x := upload(d.b, make([]float32, d.hidden), 1, d.hidden)
	d.b.Embed(x, d.embed, ids, d.embScale)
	s := 0.0
	for _, v := range d.b.Read(x) {
		s += float64(v) * float64(v)
	}
	return math.Sqrt(s)
}

// targetNorm is the length of the embedding as the target uses it: its captured input.
func targetNorm(t *testing.T, m *model.Model, id int32) float64 {
	t.Helper()
	if err := m.Capture([]int{-1}); err != nil {
		t.Fatal(err)
	}
	seq := m.NewSeq()
	defer seq.Close()
	out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: []int32{id}}})
	if err != nil {
		t.Fatal(err)
	}
	s := 0.0
	for _, v := range m.Backend().Read(out.Features) {
		s += float64(v) * float64(v)
	}
	return math.Sqrt(s)
}

// TestBorrowedEmbeddingEntersAsInTheTarget (failure F15): a borrowed embedding enters the drafter exactly as it
// enters the target, whichever dialect the file has.
func TestBorrowedEmbeddingEntersAsInTheTarget(t *testing.T) {
	for _, name := range []string{"qwen3", "gemma4", "gemma4moe"} {
		m := openTarget(t, name)
		want := targetNorm(t, m, 42)
		for i, e := range []*drafterFile{golden(t, name), asBeellama(golden(t, name)),
			asLucebox(golden(t, name), "gemma4-dflash-draft")} {
			if got := inputNorm(t, e.open(t, m, Options{}), 42); got != want {
				t.Errorf("%s, file %d: embedding of length %v, the target's has %v", name, i, got, want)
			}
		}
	}
}

// TestStatedScaleReplacesTheInherited (failure F16): a scale that the file states replaces the inherited one instead
// of adding to it.
func TestStatedScaleReplacesTheInherited(t *testing.T) {
	m := openTarget(t, "gemma4")
	want := targetNorm(t, m, 42)
	d := golden(t, "gemma4").set("dflash.embedding_scale", m.EmbScale).open(t, m, Options{})
	if got := inputNorm(t, d, 42); got != want {
		t.Errorf("embedding of length %v, the target's has %v", got, want)
	}
	seq, _ := context(t, d, 1, 10)
	inherited := golden(t, "gemma4").open(t, m, Options{})
	same, _ := context(t, inherited, 1, 10)
	if !sameBits(blockLogits(t, d, seq, 1), blockLogits(t, inherited, same, 1)) {
		t.Error("a stated scale and the same scale inherited give other bits")
	}
}

// TestBorrowedHeadIsSoftCapped (failure F17): probabilities of a borrowed head are those of the target's soft-capped
// logits.
func TestBorrowedHeadIsSoftCapped(t *testing.T) {
	m := openTarget(t, "gemma4")
	e := golden(t, "gemma4")
	// A final norm that drives the logits far beyond the cap.
	e.random("output_norm.weight", 5000, 0, 64)
	d := e.open(t, m, Options{})
	seq, _ := context(t, d, 1, 10)
	p := propose(t, d, 2, draft.Request{Seq: seq, Last: 1, N: d.Max()})[0]
	for i, cs := range p.At {
		// Two capped logits are at most 60 apart, and so are two log-probabilities.
		if gap := cs[0].LogP - cs[1].LogP; !(gap <= 60) {
			t.Errorf("position %d: best two are %v apart", i, gap)
		}
	}
	pass, err := d.forward([]draft.Request{{Seq: seq, Last: 1, N: d.Max()}}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.top(pass, 2)
	pass.EndStep()
	for i, v := range d.b.Read(pass.logits) {
		if !(math.Abs(float64(v)) <= 30) {
			t.Fatalf("logit %d is %v after the cap of 30", i, v)
		}
	}
}

// TestWindowsPerLayer (failure F18): windows and their pattern are honoured per layer, far beyond the window.
func TestWindowsPerLayer(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, pattern := range [][]bool{{true, true, false}, {false, true, false}, {true, true, true}, {false, false, true}} {
		e := golden(t, "qwen35").set("dflash.attention.sliding_window_pattern", pattern)
		d := e.open(t, m, Options{})
		r := referenceOf(t, e, m)
		r.sees = func(il, q, k, _ int) bool { return !pattern[il] || q-k < 12 }
		for _, n := range []int{11, 12, 13, 40, 90} {
			seq, features := context(t, d, uint64(n), n)
			_, want := r.run(wide(features), r.tokens(2, 16))
			if e := testkit.RelL2(blockLogits(t, d, seq, 2), flat(want)); !(e <= 2e-5) {
				t.Errorf("pattern %v after %d tokens: logits differ by %.2e", pattern, n, e)
			}
		}
	}
}

// TestWindowPatternOfAnyType (failure F194): a pattern stored as bytes, words or booleans means the same.
func TestWindowPatternOfAnyType(t *testing.T) {
	m := openTarget(t, "qwen35")
	want := golden(t, "qwen35").open(t, m, Options{}).window
	pattern := make([]bool, 3)
	for i, w := range want {
		pattern[i] = w > 0
	}
	bytes, words := make([]uint8, 3), make([]int32, 3)
	for i, s := range pattern {
		if s {
			bytes[i], words[i] = 1, 1
		}
	}
	for _, v := range []any{pattern, bytes, words} {
		if got := golden(t, "qwen35").set("dflash.attention.sliding_window_pattern", v).open(t, m,
			Options{}).window; !slices.Equal(got, want) {
			t.Errorf("pattern %v: windows %v, want %v", v, got, want)
		}
	}
}

// TestCapturedLayersComeFromTheFile (failure F19): captured layers come from the file, are never guessed, and must
// exist.
func TestCapturedLayersComeFromTheFile(t *testing.T) {
	m := openTarget(t, "qwen35")
	mustFail(t, golden(t, "qwen35").del("dflash.target_layers").write(t), m, Options{}, "dflash.target_layers")
	mustFail(t, golden(t, "qwen35").set("dflash.target_layers", []int32{1, 2, int32(m.Layers) + 1}).write(t), m, Options{},
		"dflash.target_layers")
	mustFail(t, asBeellama(golden(t, "qwen35")).del("dflash-draft.dflash.target_layer_ids").write(t), m, Options{},
		"target_layer_ids")
	d := golden(t, "qwen35").set("dflash.target_layers", []int32{1, 3, int32(m.Layers)}).open(t, m, Options{})
	if !slices.Equal(d.Capture(), []int{0, 2, m.Layers - 1}) {
		t.Errorf("captures %v", d.Capture())
	}
}

// TestDialectsNameTheSameFeatures (failure F20): the output of a layer is the input of the next: "id" in one dialect
// and "id + 1" in the other name the same features.
func TestDialectsNameTheSameFeatures(t *testing.T) {
	m := openTarget(t, "qwen35")
	in := []int32{3, 1, 4, 1, 5, 9, 2, 6}
	features := func(d *Drafter) []float32 {
		if err := m.Capture(d.Capture()); err != nil {
			t.Fatal(err)
		}
		seq := m.NewSeq()
		defer seq.Close()
		out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: in}})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(m.Backend().Read(out.Features))
	}
	up, bee := golden(t, "qwen35").open(t, m, Options{}), asBeellama(golden(t, "qwen35")).open(t, m, Options{})
	if !sameBits(features(up), features(bee)) {
		t.Error("the same layers written in two dialects capture other features")
	}
}

// TestContextNeverFillsUp (failure F36): the context slides on every path: whatever is added and drafted, nothing
// fills up.
func TestContextNeverFillsUp(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").set("dflash.attention.sliding_window_pattern", []bool{true, true, true}).open(t, m, Options{})
	const n = 1500
	h := newHistory(d, 3, n)
	seq := d.NewSeq()
	for seq.Len() < n {
		k := min(1+seq.Len()%5, n-seq.Len())
		feed(t, d, seq, h.rows(seq.Len(), seq.Len()+k))
		p := propose(t, d, 1, draft.Request{Seq: seq, Last: 1, N: d.Max()})[0]
		if p.Sane(m.Vocab); p.Len() != d.Max() {
			t.Fatalf("after %d tokens: %d usable guesses", seq.Len(), p.Len())
		}
	}
	if used := d.mem.Pool(0).Used(); used > 3 {
		t.Errorf("%d pages in use for a window of 12", used)
	}
}

// TestSlidingKeepsTheNewestRows (failure F68): sliding keeps the newest rows whole. Crossing a page, a window or any
// other capacity gives the bits of a context built from scratch. (TestSlidesForever does so for thousands of tokens.)
func TestSlidingKeepsTheNewestRows(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	h := newHistory(d, 3, 400)
	seq := d.NewSeq()
	for _, n := range []int{11, 12, 13, 15, 16, 17, 63, 64, 65, 75, 76, 77, 127, 128, 129, 255, 256, 257, 399} {
		for seq.Len() < n {
			feed(t, d, seq, h.rows(seq.Len(), seq.Len()+1))
		}
		again := d.NewSeq()
		feed(t, d, again, h.rows(0, n))
		if !sameBits(blockLogits(t, d, seq, 7), blockLogits(t, d, again, 7)) {
			t.Errorf("after %d tokens: other bits than from scratch", n)
		}
		again.Close()
	}
}

// TestEveryArchitectureTakesItsDrafter (failure F40): every architecture's target takes its drafter, drafts and gives
// finite guesses.
func TestEveryArchitectureTakesItsDrafter(t *testing.T) {
	for _, name := range targets {
		m, d := openPair(t, name)
		seq, _ := context(t, d, 1, 33)
		p := propose(t, d, 2, draft.Request{Seq: seq, Last: 1, N: d.Max()})[0]
		if p.Sane(m.Vocab); p.Len() != d.Max() {
			t.Errorf("%s: %d usable guesses of %d", name, p.Len(), d.Max())
		}
	}
}

// TestBlockAttendsToTheFeatures (failure F63): the block attends to what the target's features say; without them it
// guesses otherwise.
func TestBlockAttendsToTheFeatures(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	a, _ := context(t, d, 1, 30)
	b, _ := context(t, d, 2, 30)
	la, lb, none := blockLogits(t, d, a, 1), blockLogits(t, d, b, 1), blockLogits(t, d, d.NewSeq(), 1)
	if testkit.RelL2(la, none) < 0.05 || testkit.RelL2(la, lb) < 0.05 {
		t.Errorf("logits barely depend on the context: %.3f from none, %.3f from another", testkit.RelL2(la, none),
			testkit.RelL2(la, lb))
	}
}

// TestPromptsLongerThanTheWindow (failures F67 and F69): a prompt longer than the window, and one that ends exactly
// at a page or window.
func TestPromptsLongerThanTheWindow(t *testing.T) {
	m := openTarget(t, "qwen35")
	e := golden(t, "qwen35")
	d, r := e.open(t, m, Options{}), referenceOf(t, e, m)
	for _, n := range []int{11, 12, 13, 36, 63, 64, 65, 128} {
		seq, features := context(t, d, uint64(n), n)
		_, want := r.run(wide(features), r.tokens(1, 16))
		if e := testkit.RelL2(blockLogits(t, d, seq, 1), flat(want)); !(e <= 2e-5) {
			t.Errorf("prompt of %d tokens: logits differ by %.2e", n, e)
		}
	}
}

// TestPortionsGiveTheBitsOfTheWhole (failure F70): a context fed in portions has the bits of one fed whole.
func TestPortionsGiveTheBitsOfTheWhole(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	h := newHistory(d, 9, 230)
	whole := d.NewSeq()
	feed(t, d, whole, h.v)
	want := blockLogits(t, d, whole, 1)
	for _, k := range []int{1, 2, 64, 100, 229} {
		seq := d.NewSeq()
		for seq.Len() < 230 {
			feed(t, d, seq, h.rows(seq.Len(), min(230, seq.Len()+k)))
		}
		if !sameBits(blockLogits(t, d, seq, 1), want) {
			t.Errorf("portions of %d: other bits than in one", k)
		}
	}
}

// TestOddPortionsGiveTheDefinition (failure F71): five windows in odd portions give what the definition gives.
func TestOddPortionsGiveTheDefinition(t *testing.T) {
	m := openTarget(t, "qwen35")
	e := golden(t, "qwen35")
	d, r := e.open(t, m, Options{}), referenceOf(t, e, m)
	h := newHistory(d, 9, 60)
	_, want := r.run(wide(h.v), r.tokens(1, 16))
	for _, k := range []int{3, 7, 11, 13, 17, 25} {
		seq := d.NewSeq()
		for seq.Len() < 60 {
			feed(t, d, seq, h.rows(seq.Len(), min(60, seq.Len()+k)))
		}
		if e := testkit.RelL2(blockLogits(t, d, seq, 1), flat(want)); !(e <= 2e-5) {
			t.Errorf("portions of %d: logits differ by %.2e", k, e)
		}
	}
}

// TestQueryHeadsShareKeyHeadsInBlocks (failure F91): query heads share key heads in blocks, not interleaved; heads
// differ in the golden files.
func TestQueryHeadsShareKeyHeadsInBlocks(t *testing.T) {
	m := openTarget(t, "qwen3")
	e := golden(t, "qwen3")
	d, r := e.open(t, m, Options{}), referenceOf(t, e, m)
	seq, features := context(t, d, 1, 9)
	_, want := r.run(wide(features), r.tokens(1, 8))
	if e := testkit.RelL2(blockLogits(t, d, seq, 1), flat(want)); !(e <= 2e-5) {
		t.Errorf("logits differ by %.2e", e)
	}
}

// TestBorrowedTensorsAreThereAfterOpen (failure F123): what a drafter borrows is there when Open returns, and a file
// that would need more is refused.
func TestBorrowedTensorsAreThereAfterOpen(t *testing.T) {
	m := openTarget(t, "gemma4")
	d := golden(t, "gemma4").open(t, m, Options{})
	if embed, head, err := m.Vocabulary(m.Backend()); err != nil || d.embed != embed || d.head != head {
		t.Error("the drafter does not use the target's matrices")
	}
	p := propose(t, d, 1, draft.Request{Seq: d.NewSeq(), Last: 1, N: d.Max()})[0]
	if p.Sane(m.Vocab); p.Len() != d.Max() {
		t.Errorf("%d usable guesses right after loading", p.Len())
	}
	mustFail(t, golden(t, "gemma4").putD2T([]int64{1, 2}).write(t), m, Options{}, "output.weight")
}

// TestLeastProbabilityIsNoLogarithm (failure F160): the least probability is compared with probabilities, not with
// their logarithms. With a selector it is the probability among its candidates.
func TestLeastProbabilityIsNoLogarithm(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, file := range []*drafterFile{golden(t, "qwen35"), selectorFile(t, "qwen35")} {
		all := file.open(t, m, Options{})
		seq, features := context(t, all, 1, 20)
		ps := propose(t, all, 5, draft.Request{Seq: seq, Last: 1, N: 15})[0]
		for _, least := range []float32{1e-9, 0.003, 0.01, 0.3, 0.6, 0.99} {
			want := 0
			for ; want < 15; want++ {
				p, sum := math.Exp(float64(ps.At[want][0].LogP)), 1.0
				if all.selector != nil { // it has five candidates
					sum = 0
					for _, c := range ps.At[want] {
						sum += math.Exp(float64(c.LogP))
					}
				}
				if p/sum < float64(least) {
					break
				}
			}
			d := file.open(t, m, Options{PMin: least})
			seq := d.NewSeq()
			feed(t, d, seq, features)
			if got := propose(t, d, 1, draft.Request{Seq: seq, Last: 1, N: 15})[0].Len(); got != want {
				t.Errorf("least %v: %d guesses, want %d", least, got, want)
			}
		}
	}
}
