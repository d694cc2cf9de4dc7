package speculate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
	"strobe/internal/model"
	"strobe/internal/sample"
)

// Each test of this file proves a property that failed in other implementations of speculative decoding. Numbers
// such as F4 count those failures.

// recorder is a scripted drafter that keeps the features it is given, by sequence.
type recorder struct {
	*scripted
	layers []int
	rows   map[*cache.Seq][]float32
}

func record(t testing.TB, m *model.Model, guess func(pos int, last int32, n int) [][]draft.Candidate) *recorder {
	t.Helper()
	return &recorder{scripted: script(t, m, guess), layers: []int{0, m.Layers - 1}, rows: map[*cache.Seq][]float32{}}
}

func (r *recorder) Capture() []int { return r.layers }

func (r *recorder) Extend(features backend.Tensor, items []draft.Rows) error {
	for _, it := range items {
		seq := it.Seq.(*cache.Seq)
		for _, row := range it.Rows {
			r.rows[seq] = append(r.rows[seq], r.m.Backend().Read(features.Slice(int(row), 1))...)
		}
	}
	return r.scripted.Extend(features, items)
}

// check compares what the drafter was told of a sequence with the tokens decoded one by one.
func (r *recorder) check(t *testing.T, seq *cache.Seq, tokens []int32, what string) {
	t.Helper()
	want := plainRows(t, r.m, r.layers, tokens)
	if got := r.rows[seq]; !sameBits(got, want) {
		w := len(r.layers) * r.m.Hidden
		for i := range min(len(got), len(want)) / w {
			if !sameBits(got[i*w:][:w], want[i*w:][:w]) {
				t.Fatalf("%s: features of token %d are not those of plain decoding", what, i)
			}
		}
		t.Fatalf("%s: features of %d tokens, want %d", what, len(got)/w, len(want)/w)
	}
}

// plainRows decodes tokens one at a time and returns their captured features.
func plainRows(t *testing.T, m *model.Model, layers []int, tokens []int32) (rows []float32) {
	t.Helper()
	if err := m.Capture(layers); err != nil {
		t.Fatal(err)
	}
	seq := m.NewSeq()
	defer seq.Close()
	for _, id := range tokens {
		out, err := m.Forward([]model.Segment{{Seq: seq, Tokens: []int32{id}}})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, m.Backend().Read(out.Features)...)
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// flow is a stream under test.
type flow struct {
	*Stream
	in, out  []int32
	logits   [][]float32 // of every token
	draftSeq *cache.Seq  // the drafter's context, nil without one
}

// text is what the caches should hold: all but the newest token.
func (f *flow) text() []int32 {
	all := append(slices.Clone(f.in), f.out...)
	return all[:f.seq.Len()]
}

func start(t testing.TB, r *Runner, opt Options, s Sampler, in []int32, n int) *flow {
	t.Helper()
	f := &flow{in: in}
	c := Config{Options: opt, Seq: r.Target.NewSeq(), Prompt: in, Sampler: s, Max: n,
		Observe: func(l []float32, _ *sample.Shortlist) { f.logits = append(f.logits, slices.Clone(l)) },
		Emit:    func(tok Token) bool { f.out = append(f.out, tok.ID); return true }}
	c.Contexts = r.NewContexts()
	f.draftSeq, _ = c.Contexts[0].(*cache.Seq)
	var err error
	if f.Stream, err = r.NewStream(c); err != nil {
		t.Fatal(err)
	}
	return f
}

func step(t testing.TB, r *Runner, chunk int, fs ...*flow) {
	t.Helper()
	var ss []*Stream
	for _, f := range fs {
		ss = append(ss, f.Stream)
	}
	if err := r.Step(ss, chunk); err != nil {
		t.Fatal(err)
	}
	for _, f := range fs {
		// Whatever happened, the caches hold the text so far without its newest token.
		if !f.Prefilling() && f.seq.Len() != len(f.in)+len(f.out)-1 {
			t.Fatalf("target holds %d tokens after %d", f.seq.Len(), len(f.in)+len(f.out))
		}
		if !f.follows(0) {
			continue
		}
		n, extended := f.seq.Len(), f.extendedLen(0)
		if f.featureLen == n && extended+len(f.featureRows) < n || extended > n {
			t.Fatalf("drafter knows %d tokens, %d wait, the target %d", f.draftSeq.Len(), len(f.featureRows), n)
		}
	}
}

func finish(t testing.TB, r *Runner, chunk int, fs ...*flow) {
	t.Helper()
	for slices.ContainsFunc(fs, func(f *flow) bool { return !f.Done() }) {
		step(t, r, chunk, fs...)
	}
	for _, f := range fs {
		if f.Err() != nil {
			t.Fatal(f.Err())
		}
		if err := r.Sync(f.Stream); err != nil {
			t.Fatal(err)
		}
	}
}

func runner(t testing.TB, m *model.Model, d draft.Source) *Runner {
	t.Helper()
	sources := []draft.Source{ngram.Source{}}
	if d != nil {
		sources = []draft.Source{d, ngram.Source{}}
	}
	r, err := NewRunner(m, sources...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// plain decodes without speculation.
func plain(t testing.TB, m *model.Model, s Sampler, in []int32, n int) *flow {
	t.Helper()
	r := runner(t, m, nil)
	f := start(t, r, Options{Draft: Off}, s, in, n)
	finish(t, r, 16, f)
	return f
}

// along guesses from a known continuation: right guesses, of which wrong says which to spoil.
func along(in, want []int32, wrong func(pos int) bool) func(pos int, last int32, n int) [][]draft.Candidate {
	return func(pos int, _ int32, n int) (at [][]draft.Candidate) {
		for i := pos - len(in) + 1; i < min(len(want), pos-len(in)+1+n); i++ {
			id := want[i]
			if wrong != nil && wrong(i) {
				id = (id + 1) % 500
			}
			at = append(at, []draft.Candidate{{ID: id, LogP: -0.05}})
		}
		return at
	}
}

var chain = Options{Fixed: true, Draft: drafter, Tree: TreeOff}

// sameLogits: every token was drawn from the bits that plain decoding draws from.
func sameLogits(t *testing.T, what string, got, want *flow) {
	t.Helper()
	if !slices.Equal(got.out, want.out) {
		t.Errorf("%s: tokens differ\n got %v\nwant %v", what, got.out, want.out)
		return
	}
	if len(got.logits) != len(want.logits) {
		t.Errorf("%s: %d tokens drawn, want %d", what, len(got.logits), len(want.logits))
		return
	}
	for i := range want.logits {
		if !sameBits(got.logits[i], want.logits[i]) {
			t.Errorf("%s: token %d was drawn from other logits than in plain decoding", what, i)
			return
		}
	}
}

// TestPromptOfAnyLengthReachesTheDrafter (failure F1): prompts of any length relative to the chunk reach the drafter
// whole.
func TestPromptOfAnyLengthReachesTheDrafter(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		for _, n := range []int{1, 15, 16, 17, 3*16 + 7} {
			d := record(t, m, nil)
			r := runner(t, m, d)
			f := start(t, r, chain, greedy{}, prompt(n), 1)
			finish(t, r, 16, f)
			d.check(t, f.draftSeq, f.text(), fmt.Sprintf("%s, prompt of %d", name, n))
			if f.seq.Len() != n {
				t.Errorf("%d tokens in the cache, want %d", f.seq.Len(), n)
			}
		}
	}
}

// TestFirstDraftSeesTheWholePrompt (failure F2): the first draft after a prompt sees the features of all of it.
func TestFirstDraftSeesTheWholePrompt(t *testing.T) {
	m := target(t, "qwen35")
	for _, n := range []int{1, 16, 40} {
		seen := -1
		d := record(t, m, func(pos int, _ int32, _ int) [][]draft.Candidate {
			if seen < 0 {
				seen = pos
			}
			return nil
		})
		r := runner(t, m, d)
		finish(t, r, 16, start(t, r, chain, greedy{}, prompt(n), 4))
		if seen != n {
			t.Errorf("first draft after a prompt of %d sees %d rows", n, seen)
		}
	}
}

// TestNewStreamLeavesOthersAlone (failure F3): a stream that starts while another generates leaves that one's context
// alone.
func TestNewStreamLeavesOthersAlone(t *testing.T) {
	m := target(t, "qwen35")
	want := plain(t, m, greedy{}, prompt(20), 40)
	d := record(t, m, along(prompt(20), want.out, func(i int) bool { return i%5 == 4 }))
	r := runner(t, m, d)
	a := start(t, r, chain, greedy{}, prompt(20), 40)
	for range 5 {
		step(t, r, 16, a)
	}
	b := start(t, r, chain, greedy{}, prompt(50), 10)
	finish(t, r, 16, a, b)
	same(t, a.out, want.out)
	d.check(t, a.draftSeq, a.text(), "first stream")
	d.check(t, b.draftSeq, b.text(), "second stream")
}

// TestDrafterKnowsTheAcceptedTokens (failure F4): however much of each draft is accepted, the drafter knows the
// accepted tokens and no others, after every round. In trees the accepted path may leave the first branch (F125,
// F126).
func TestDrafterKnowsTheAcceptedTokens(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4", "qwen3next"} {
		for _, tree := range []int{TreeOff, 20} {
			m := target(t, name)
			in := prompt(11)
			want := plain(t, m, greedy{}, in, 60)
			rnd := rand.New(rand.NewPCG(5, 5))
			guess := along(in, want.out, func(int) bool { return rnd.IntN(4) == 0 })
			d := record(t, m, func(pos int, last int32, n int) [][]draft.Candidate {
				at := guess(pos, last, n)
				for i := range at {
					// The right token is now and then the second or third guess.
					id := want.out[pos-len(in)+1+i]
					at[i] = append(at[i], draft.Candidate{ID: (id + 7) % 500, LogP: -2}, draft.Candidate{ID: id, LogP: -3})
				}
				return at
			})
			r := runner(t, m, d)
			f := start(t, r, Options{Fixed: true, Draft: drafter, Tree: tree}, greedy{}, in, 60)
			for !f.Done() {
				step(t, r, 16, f)
				if err := r.Sync(f.Stream); err != nil {
					t.Fatal(err)
				}
				// Looking at the features runs the target; it must capture the same layers afterwards.
				d.check(t, f.draftSeq, f.text(), fmt.Sprintf("%s, tree %d, %d tokens", name, tree, len(f.out)))
			}
			sameLogits(t, name, f, want)
			if st := f.Stats(); st.Accepted == 0 || st.Accepted == st.Guessed {
				t.Errorf("%d of %d accepted: the test shows nothing", st.Accepted, st.Guessed)
			}
		}
	}
}

// saved is what a prefix cache keeps of a stream.
type saved struct {
	seq, draft *cache.Seq
	tokens     []int32
}

func save(t *testing.T, r *Runner, f *flow) saved {
	t.Helper()
	if err := r.Sync(f.Stream); err != nil {
		t.Fatal(err)
	}
	s, err := f.seq.Fork()
	if err != nil {
		t.Fatal(err)
	}
	d, err := f.draftSeq.Fork()
	if err != nil {
		t.Fatal(err)
	}
	return saved{s, d, f.text()}
}

// restore starts a stream whose prompt begins with a saved prefix.
func restore(t *testing.T, r *Runner, p saved, withDrafter bool, s Sampler, in []int32, n int) *flow {
	t.Helper()
	if !slices.Equal(p.tokens, in[:len(p.tokens)]) {
		t.Fatal("the prompt does not begin with the saved prefix")
	}
	f := &flow{in: in}
	seq, err := p.seq.Fork()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Options: chain, Seq: seq, Known: p.tokens, Prompt: in[len(p.tokens):], Sampler: s, Max: n,
		Observe: func(l []float32, _ *sample.Shortlist) { f.logits = append(f.logits, slices.Clone(l)) },
		Emit:    func(tok Token) bool { f.out = append(f.out, tok.ID); return true }}
	if withDrafter {
		if f.draftSeq, err = p.draft.Fork(); err != nil {
			t.Fatal(err)
		}
		c.Contexts = []draft.Context{f.draftSeq}
	}
	if f.Stream, err = r.NewStream(c); err != nil {
		t.Fatal(err)
	}
	return f
}

// asCold compares a stream on a restored prefix with one that ran its whole prompt.
func asCold(t *testing.T, what string, f, cold *flow) {
	t.Helper()
	sameLogits(t, what, f, cold)
	a, b := f.Stats(), cold.Stats()
	if a.Guessed != b.Guessed || a.Accepted != b.Accepted || a.Reached != b.Reached || a.BadDrafts != 0 || a.Cold {
		t.Errorf("%s: %d of %d guesses accepted (%d bad drafts, cold %v); %d of %d without the cache",
			what, a.Accepted, a.Guessed, a.BadDrafts, a.Cold, b.Accepted, b.Guessed)
	}
}

// TestRestoredPrefixDraftsAsAColdRun (failures F5 and F164): a second turn on a restored prefix drafts and accepts
// exactly as a cold run does, and without the drafter's part of the prefix it does not draft at all.
func TestRestoredPrefixDraftsAsAColdRun(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		m := target(t, name)
		r := runner(t, m, dflashFor(t, m, name))
		first := start(t, r, chain, newSeeded(1), prompt(30), 25)
		finish(t, r, 16, first)
		p := save(t, r, first)
		in := append(append(slices.Clone(first.in), first.out...), 7, 8, 9, 10, 11)
		cold := start(t, r, chain, newSeeded(2), in, 30)
		finish(t, r, 16, cold)
		f := restore(t, r, p, true, newSeeded(2), in, 30)
		finish(t, r, 16, f)
		asCold(t, name, f, cold)

		f = restore(t, r, p, false, newSeeded(2), in, 30)
		finish(t, r, 16, f)
		sameLogits(t, name+" without the drafter's context", f, cold)
		if st := f.Stats(); !st.Cold || st.Drafts != 0 || st.BadDrafts != 0 {
			t.Errorf("%s: a stream without the drafter's context drafted: %+v", name, st)
		}
	}
}

// TestSamePromptFromTheCache (failure F6): the same prompt again and again, all of it but the last token from the
// cache.
func TestSamePromptFromTheCache(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	in := prompt(48)
	first := start(t, r, chain, greedy{}, in, 20)
	for first.seq.Len() < 47 {
		step(t, r, min(16, 47-first.seq.Len()), first)
	}
	p := save(t, r, first)
	finish(t, r, 16, first)
	for i := range 5 {
		f := restore(t, r, p, true, greedy{}, in, 20)
		finish(t, r, 16, f)
		asCold(t, fmt.Sprintf("time %d", i+2), f, first)
	}
}

// TestPrefixesOfMemoryThatCannotBeCut (failure F7): prefixes kept while a prompt runs, on models whose memory cannot
// be cut: recurrent and windowed.
func TestPrefixesOfMemoryThatCannotBeCut(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen3next", "gemma4"} {
		m := target(t, name)
		r := runner(t, m, dflashFor(t, m, name))
		in := prompt(70)
		first := start(t, r, chain, greedy{}, in, 20)
		var kept []saved
		for first.Prefilling() {
			kept = append(kept, save(t, r, first))
			step(t, r, 13, first)
		}
		finish(t, r, 16, first)
		for _, p := range kept {
			f := restore(t, r, p, true, greedy{}, in, 20)
			finish(t, r, 16, f)
			asCold(t, fmt.Sprintf("%s from %d tokens", name, len(p.tokens)), f, first)
		}
	}
}

// TestDrafterIsWhereTheTargetIs (failure F8): see step: after every round the drafter is where the target is. Here
// with a drafter that is never right, always right and right by turns.
func TestDrafterIsWhereTheTargetIs(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 50)
	for k := 1; k < 6; k++ {
		r := runner(t, m, record(t, m, along(in, want.out, func(i int) bool { return i%k == k-1 })))
		f := start(t, r, chain, greedy{}, in, 50)
		finish(t, r, 16, f)
		if f.draftSeq.Len() != f.seq.Len() {
			t.Errorf("drafter at %d, target at %d", f.draftSeq.Len(), f.seq.Len())
		}
		same(t, f.out, want.out)
	}
}

// TestNothingRemainsForTheNextRequest (failure F9): nothing of a request remains for the next one, which is shorter.
func TestNothingRemainsForTheNextRequest(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		r := runner(t, m, dflashFor(t, m, name))
		for _, n := range []int{100, 40, 12, 3, 1} {
			f := start(t, r, chain, greedy{}, prompt(n), 20)
			finish(t, r, 16, f)
			alone := runner(t, m, dflashFor(t, m, name))
			g := start(t, alone, chain, greedy{}, prompt(n), 20)
			finish(t, alone, 16, g)
			asCold(t, fmt.Sprintf("%s, prompt of %d", name, n), f, g)
			f.Close()
			f.seq.Close()
			f.draftSeq.Close()
		}
	}
}

// TestStreamsHandOverTheirOwnFeatures (failure F10): streams that run prompts and generate in the same passes each
// hand their own features to the drafter (F115, F116).
func TestStreamsHandOverTheirOwnFeatures(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		d := record(t, m, nil)
		texts := map[int][]int32{}
		d.guess = func(pos int, last int32, n int) (at [][]draft.Candidate) {
			for i := range n {
				at = append(at, []draft.Candidate{{ID: (last + int32(i)) % 500, LogP: -1}})
			}
			return at
		}
		var fs []*flow
		r := runner(t, m, d)
		for i := range 4 {
			texts[i] = plain(t, m, newSeeded(uint64(i)), prompt(5+19*i), 30).out
			if err := m.Capture(d.layers); err != nil {
				t.Fatal(err)
			}
			fs = append(fs, start(t, r, chain, newSeeded(uint64(i)), prompt(5+19*i), 30))
			step(t, r, 8, fs...) // the next one starts while these run
		}
		finish(t, r, 8, fs...)
		for i, f := range fs {
			same(t, f.out, texts[i])
			d.check(t, f.draftSeq, f.text(), fmt.Sprintf("%s, stream %d", name, i))
		}
	}
}

// TestEveryStreamIsDraftedFor (failure F11): every stream is drafted for, not only the first.
func TestEveryStreamIsDraftedFor(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	a := start(t, r, chain, greedy{}, prompt(10), 20)
	b := start(t, r, chain, greedy{}, prompt(14), 20)
	finish(t, r, 16, a, b)
	for i, f := range []*flow{a, b} {
		if st := f.Stats(); st.Drafts == 0 || st.Guessed == 0 {
			t.Errorf("stream %d: %d drafts, %d guesses", i, st.Drafts, st.Guessed)
		}
	}
}

// TestStepWithoutStreams (failure F13): a step without streams, or with finished ones, is no step.
func TestStepWithoutStreams(t *testing.T) {
	m := target(t, "qwen35")
	d := record(t, m, nil)
	r := runner(t, m, d)
	step(t, r, 16)
	f := start(t, r, chain, greedy{}, prompt(3), 1)
	finish(t, r, 16, f)
	n := f.seq.Len()
	step(t, r, 16, f)
	if f.seq.Len() != n || len(f.out) != 1 {
		t.Error("a finished stream went on")
	}
}

// TestAcceptedRowsAreKept (failure F14): for every number of accepted guesses exactly those rows are kept.
func TestAcceptedRowsAreKept(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 40)
	for accepted := range 16 {
		d := record(t, m, along(in, want.out, func(i int) bool { return i == 1+accepted }))
		r := runner(t, m, d)
		f := start(t, r, chain, greedy{}, in, 40)
		step(t, r, 16, f)
		step(t, r, 16, f)
		if err := r.Sync(f.Stream); err != nil {
			t.Fatal(err)
		}
		if got := f.draftSeq.Len(); got != len(in)+1+accepted || len(f.out) != 2+accepted {
			t.Errorf("%d accepted: drafter holds %d tokens, %d generated; want %d and %d", accepted, got, len(f.out),
				len(in)+1+accepted, 2+accepted)
		}
		d.check(t, f.draftSeq, f.text(), fmt.Sprintf("%d accepted", accepted))
	}
}

// TestEveryArchitectureRollsBack (failure F34): every architecture rolls back whole drafts of any length, round after
// round.
func TestEveryArchitectureRollsBack(t *testing.T) {
	for _, name := range architectures {
		m := target(t, name)
		in := prompt(13)
		want := plain(t, m, greedy{}, in, 30)
		for _, n := range []int{1, 4, 15} {
			opt := chain
			opt.Max = n
			r := runner(t, m, script(t, m, along(in, want.out, func(int) bool { return true })))
			f := start(t, r, opt, greedy{}, in, 30)
			finish(t, r, 16, f)
			sameLogits(t, fmt.Sprintf("%s, %d wrong guesses a round", name, n), f, want)
			if st := f.Stats(); st.Accepted != 0 || st.Guessed == 0 {
				t.Errorf("%d of %d accepted", st.Accepted, st.Guessed)
			}
		}
	}
}

// oneByOne guesses nothing for the first rounds, then spoils whole drafts.
func oneByOne(in, want []int32, rounds int) func(pos int, last int32, n int) [][]draft.Candidate {
	guess := along(in, want, func(i int) bool { return i%3 == 0 })
	return func(pos int, last int32, n int) [][]draft.Candidate {
		if pos < len(in)+rounds {
			return nil
		}
		return guess(pos, last, n)
	}
}

// TestRejectedDraftsAfterManySteps (failure F35): many single-token steps, then drafts that are rejected: the
// recurrent state is that of plain decoding.
func TestRejectedDraftsAfterManySteps(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen35moe", "qwen3next"} {
		for _, s := range []func() Sampler{func() Sampler { return greedy{} }, func() Sampler { return newSeeded(4) }} {
			m := target(t, name)
			in := prompt(13)
			want := plain(t, m, s(), in, 220)
			r := runner(t, m, script(t, m, oneByOne(in, want.out, 100)))
			f := start(t, r, chain, s(), in, 220)
			finish(t, r, 16, f)
			sameLogits(t, name, f, want)
		}
	}
}

// TestRejectedDraftsBesideOtherStreams (failures F108 and F109): the same on the last of four sequences, while the
// others do other things.
func TestRejectedDraftsBesideOtherStreams(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		var wants []*flow
		for i := range 4 {
			wants = append(wants, plain(t, m, newSeeded(uint64(i)), prompt(10+i), 80))
		}
		// A sequence is known by its length and last token here; the script looks both up.
		guess := func(pos int, last int32, n int) [][]draft.Candidate {
			for i, w := range wants {
				if at := pos - len(w.in); at >= 0 && at < len(w.out) && w.out[at] == last {
					k := []int{2, 5, 1000, 1}[i]
					return along(w.in, w.out, func(i int) bool { return i%k == k-1 })(pos, last, n)
				}
			}
			return nil
		}
		r := runner(t, m, script(t, m, guess))
		var fs []*flow
		for i := range 4 {
			fs = append(fs, start(t, r, chain, newSeeded(uint64(i)), prompt(10+i), 80))
		}
		finish(t, r, 7, fs...)
		for i, f := range fs {
			sameLogits(t, fmt.Sprintf("%s, sequence %d", name, i), f, wants[i])
		}
		if st := fs[3].Stats(); st.Guessed == 0 || st.Accepted == st.Guessed {
			t.Errorf("%d of %d accepted on the last sequence: the test shows nothing", st.Accepted, st.Guessed)
		}
	}
}

// TestLongGenerationFitsTheDrafter (failure F36): a long generation never fills the drafter's memory up.
func TestLongGenerationFitsTheDrafter(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		r := runner(t, m, dflashFor(t, m, name))
		for _, opt := range []Options{chain, {Draft: drafter}} {
			f := start(t, r, opt, greedy{}, prompt(5), 400)
			f.Observe = nil
			finish(t, r, 16, f)
			if st := f.Stats(); st.DraftErr != nil || st.BadDrafts != 0 || f.draftSeq.Len() != f.seq.Len() {
				t.Errorf("%s: %d bad drafts, error %v, drafter at %d of %d", name, st.BadDrafts, st.DraftErr, f.draftSeq.Len(),
					f.seq.Len())
			}
		}
	}
}

// TestGuessesOutsideTheVocabulary (failure F39): guesses outside the vocabulary are never verified and never fail the
// stream, at any rank and position; a drafter that gives nothing else is left alone.
func TestGuessesOutsideTheVocabulary(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(7)
	want := plain(t, m, greedy{}, in, 30)
	for _, bad := range []int32{-1, int32(m.Vocab), math.MaxInt32, math.MinInt32} {
		for rank := range 3 {
			for depth := range 3 {
				d := script(t, m, func(pos int, last int32, n int) [][]draft.Candidate {
					at := along(in, want.out, nil)(pos, last, n)
					for i := range at {
						at[i] = append(at[i], draft.Candidate{ID: 3, LogP: -1}, draft.Candidate{ID: 4, LogP: -1})
					}
					if depth < len(at) {
						at[depth][rank].ID = bad
					}
					return at
				})
				for _, opt := range []Options{chain, {Fixed: true, Draft: drafter, Tree: 30}} {
					r := runner(t, m, d)
					f := start(t, r, opt, greedy{}, in, 30)
					finish(t, r, 16, f)
					sameLogits(t, fmt.Sprintf("id %d at rank %d, depth %d", bad, rank, depth), f, want)
				}
			}
		}
	}
	d := script(t, m, func(int, int32, int) [][]draft.Candidate { return sure(-1, -1, -1) })
	r := runner(t, m, d)
	f := start(t, r, chain, greedy{}, in, 30)
	finish(t, r, 16, f)
	sameLogits(t, "no usable guess", f, want)
	if st := f.Stats(); d.n != 3 || st.BadDrafts != 3 || st.DraftErr == nil {
		t.Errorf("%d drafts asked, %d bad, error %v; want three and an error", d.n, st.BadDrafts, st.DraftErr)
	}
	if got := f.Stats().BySource[drafter]; got.Drafts != 3 || got.Bad != 3 || got.Failed != 1 || got.Guessed != 0 {
		t.Errorf("counted %+v, want three bad drafts and a failure", got)
	}
}

// TestManyRowsGiveSingleStepLogits (failure F43): passes of 2 to 17 rows give the logits of single steps, with
// windows, full attention and recurrence.
func TestManyRowsGiveSingleStepLogits(t *testing.T) {
	for _, name := range []string{"gemma4", "gemma4e", "qwen35", "qwen3"} {
		m := target(t, name)
		in := prompt(30)
		want := plain(t, m, greedy{}, in, 60)
		for b := 1; b <= 16; b++ {
			opt := chain
			opt.Max = b
			d := script(t, m, along(in, want.out, func(i int) bool { return i%7 == 3 }))
			r := runner(t, m, wide{d})
			f := start(t, r, opt, greedy{}, in, 60)
			finish(t, r, 64, f)
			sameLogits(t, fmt.Sprintf("%s, passes of %d rows", name, b+1), f, want)
		}
	}
}

// wide is a scripted drafter with a larger block.
type wide struct{ *scripted }

func (wide) Max() int { return 16 }

// TestGreedyLeavesNothingForSampled (failure F60): a greedy request leaves nothing behind for a sampled one on the
// same runner.
func TestGreedyLeavesNothingForSampled(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, newSeeded(5), in, 30)
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	finish(t, r, 16, start(t, r, chain, greedy{}, in, 30))
	f := start(t, r, chain, newSeeded(5), in, 30)
	finish(t, r, 16, f)
	sameLogits(t, "sampled after greedy", f, want)
}

// TestSeedRepeatsARun (failure F87): a seed gives the same text whatever ran before or beside.
func TestSeedRepeatsARun(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		sampler := func() Sampler { return sample.New(sample.Params{Temp: 1, TopK: 40, Seed: seed}, m.Vocab) }
		want := plain(t, m, sampler(), prompt(9), 30)
		if err := r.Capture(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			f := start(t, r, Options{}, sampler(), prompt(9), 30)
			g := start(t, r, Options{}, newSeeded(seed), prompt(40), 30)
			finish(t, r, 16, f, g)
			sameLogits(t, fmt.Sprintf("seed %d", seed), f, want)
		}
	}
}

// TestPerfectDrafterIsAccepted (failure F97): losslessness hides a broken drafter, so a perfect one must be accepted
// in full, with any sampler and any controller.
func TestPerfectDrafterIsAccepted(t *testing.T) {
	for _, name := range architectures {
		m := target(t, name)
		in := prompt(10)
		for _, s := range []func() Sampler{func() Sampler { return greedy{} }, func() Sampler { return newSeeded(2) }} {
			want := plain(t, m, s(), in, 65)
			for _, opt := range []Options{chain, {Draft: drafter}, {Draft: drafter, Fixed: true, Tree: 12}} {
				r := runner(t, m, record(t, m, along(in, want.out, nil)))
				f := start(t, r, opt, s(), in, 65)
				finish(t, r, 16, f)
				same(t, f.out, want.out)
				if st := f.Stats(); st.Accepted != st.Guessed || opt.Fixed && st.Guessed == 0 {
					t.Errorf("%s: %d of %d guesses of a perfect drafter accepted", name, st.Accepted, st.Guessed)
				}
			}
		}
	}
}

// TestSplitPromptTellsTheSame (failure F105): a prompt split at any offset tells the drafter the same.
func TestSplitPromptTellsTheSame(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(21)
	for split := 1; split < 21; split++ {
		d := record(t, m, nil)
		r := runner(t, m, d)
		f := start(t, r, chain, greedy{}, in, 2)
		step(t, r, split, f)
		finish(t, r, 64, f)
		d.check(t, f.draftSeq, f.text(), fmt.Sprintf("split after %d", split))
	}
}

// trigger is a sampler whose rules change once a token was drawn: from then on the best token is
// forbidden, as a grammar that starts at a marker would do.
type trigger struct {
	at     int32
	active bool
}

func (s *trigger) Sample(l []float32) int32 {
	best := greedy{}.Sample(l)
	if !s.active {
		return best
	}
	l[best] = float32(math.Inf(-1))
	return greedy{}.Sample(l)
}

func (s *trigger) Accept(id int32) { s.active = s.active || id == s.at }

// TestRulesChangeInsideABlock (failure F148): where the rules change inside a block, at whatever offset, the tokens
// are those of plain decoding and the caches hold exactly what was emitted.
func TestRulesChangeInsideABlock(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		in := prompt(9)
		free := plain(t, m, greedy{}, in, 40).out
		for _, offset := range []int{0, 1, 2, 7, 14, 15, 16, 17} {
			at := free[offset]
			want := plain(t, m, &trigger{at: at}, in, 40)
			// The drafter does not know of the rule.
			d := record(t, m, along(in, free, nil))
			r := runner(t, m, d)
			f := start(t, r, chain, &trigger{at: at}, in, 40)
			for !f.Done() {
				step(t, r, 16, f)
			}
			sameLogits(t, fmt.Sprintf("%s, trigger at %d", name, offset), f, want)
			if err := r.Sync(f.Stream); err != nil {
				t.Fatal(err)
			}
			d.check(t, f.draftSeq, f.text(), fmt.Sprintf("%s, trigger at %d", name, offset))
		}
	}
}

// TestRequestsKeepTheirSettings (failure F162): requests in one batch keep their own settings.
func TestRequestsKeepTheirSettings(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, dflashFor(t, m, "qwen35"))
	params := []sample.Params{{}, {Temp: 0.3, Seed: 1}, {Temp: 1.5, TopK: 20, Seed: 2},
		{Temp: 1, RepeatPenalty: 1.4, Seed: 3}}
	var wants, fs []*flow
	for _, p := range params {
		wants = append(wants, plain(t, m, sample.New(p, m.Vocab), prompt(12), 30))
	}
	if err := r.Capture(); err != nil {
		t.Fatal(err)
	}
	for _, p := range params {
		fs = append(fs, start(t, r, chain, sample.New(p, m.Vocab), prompt(12), 30))
	}
	finish(t, r, 16, fs...)
	for i := range fs {
		sameLogits(t, fmt.Sprintf("stream %d", i), fs[i], wants[i])
	}
}

// TestEveryTokenIsObservedOnce (failure F166): every token is observed once, with the logits it was drawn from,
// accepted guesses too.
func TestEveryTokenIsObservedOnce(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 40)
	for _, opt := range []Options{chain, {Fixed: true, Draft: drafter, Tree: 16}} {
		r := runner(t, m, script(t, m, along(in, want.out, func(i int) bool { return i%6 == 5 })))
		f := start(t, r, opt, greedy{}, in, 40)
		finish(t, r, 16, f)
		if len(f.logits) != len(f.out) {
			t.Errorf("%d tokens, %d observed", len(f.out), len(f.logits))
		}
		sameLogits(t, "observed", f, want)
	}
}

// TestRollbacksFollowEachOther (failure F167): rollbacks follow each other without anything in between, of any depth.
func TestRollbacksFollowEachOther(t *testing.T) {
	for _, name := range architectures {
		m := target(t, name)
		in := prompt(9)
		want := plain(t, m, greedy{}, in, 60)
		for seed := range uint64(3) {
			rnd := rand.New(rand.NewPCG(seed, 6))
			r := runner(t, m, script(t, m, along(in, want.out, func(int) bool { return rnd.IntN(3) == 0 })))
			f := start(t, r, chain, greedy{}, in, 60)
			finish(t, r, 16, f)
			sameLogits(t, name, f, want)
		}
	}
}
