package control

import (
	"testing"

	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
)

// quoted is how many tokens of a text are quoted again and again, with changes: of every so many tokens the first few
// are new.
const quoted = 400

func quoting(every, changed int) func(i int) int32 {
	return func(i int) int32 {
		k := i - quoted
		if k >= 0 && k%every >= changed {
			return int32(k % quoted)
		}
		return int32(i)
	}
}

// edit runs a world whose text quotes its beginning, with a drafter of a short block or of a long one.
func edit(w world, use sources, seed uint64, guesses int, tails bool) *rounds {
	x := together(w, use, seed, 1)
	x.c = New(guesses, ngram.Source{}.Max(), guesses)
	s := x.all[0]
	s.Stream = x.c.NewStream(Options{})
	copy(s.Usable, use)
	s.Limit, s.at, x.tokens, x.followed = 63, quoted, quoted, quoted
	if tails {
		s.Tail, s.Continue = lookback, x.continues(s)
	}
	return x
}

// continues is what a runner's stream does.
func (x *rounds) continues(s *writer) func(guesses []int32) []draft.Proposal {
	return func(guesses []int32) []draft.Proposal {
		x.remember(s)
		return ngram.Source{}.Continue(draft.Request{Seq: &s.history, Last: x.token(s, s.at), N: 63}, guesses)
	}
}

// editing is the mean gain of several runs.
func editing(w world, use sources, guesses int, tails bool) float64 {
	const seeds = 6
	sum := 0.0
	for seed := range uint64(seeds) {
		sum += edit(w, use, seed, guesses, tails).until(quoted + 1000).gain()
	}
	return sum / seeds
}

// TestContinued: a block that is continued by what follows in the text is not slower than without tails, whatever
// passes cost, and faster where a text is quoted with changes and passes of many rows are cheap, most of all with a
// short block.
func TestContinued(t *testing.T) {
	for _, m := range []int{0, 2} { // a GPU and a slow CPU
		for _, guesses := range []int{7, 15} {
			for _, every := range []int{16, 40, 1 << 20} {
				for _, p := range []float64{0.6, 0.9} {
					w := world{verify: machines[m].verify, draft: machines[m].draft, right: fixed(p), text: quoting(every, 3),
						noise: jitter}
					without, with := editing(w, both, guesses, false), editing(w, both, guesses, true)
					want := 0.97
					if m == 0 && every == 16 && p == 0.9 {
						want = map[int]float64{7: 1.25, 15: 1.02}[guesses]
					}
					if !(with >= want*without) {
						t.Errorf("%s, block of %d, changes every %d, right with %.1f: speed %.2f, without tails %.2f",
							machines[m].name, guesses, every, p, with, without)
					}
				}
			}
		}
	}
}

// TestContinuedIsLearnt: tails that are never right are no longer verified, whatever they claim.
func TestContinuedIsLearnt(t *testing.T) {
	w := world{verify: machines[0].verify, draft: machines[0].draft, right: fixed(0.95), noise: jitter}
	x := edit(w, sources{true, false}, 1, 7, false)
	s := x.all[0]
	s.Tail, s.Continue = lookback, func(guesses []int32) []draft.Proposal {
		out := make([]draft.Proposal, len(guesses))
		at := []draft.Candidate{{ID: 1 << 28, LogP: -0.01}}
		out[len(guesses)-1].At = [][]draft.Candidate{at, at, at, at}
		return out
	}
	early, late := 0, 0
	for i := range 400 {
		x.round()
		if from := s.TailFrom(); from == 0 || s.count-from < 2 { // a single row costs next to nothing here
			continue
		}
		if i < 40 {
			early++
		} else if i >= 100 {
			late++
		}
	}
	if early < 3 || late > 3 {
		t.Errorf("tails in %d of the first 40 rounds and in %d of the last 300", early, late)
	}
}

// TestUselessTogether: two drafters that are always wrong, beside repetitions that never come, cost less than 4 %, with
// tails or without.
func TestUselessTogether(t *testing.T) {
	for _, m := range machines {
		for name, claim := range claims {
			for _, tails := range []bool{false, true} {
				useless := world{verify: m.verify, draft: m.draft, right: fixed(0), claim: claim, noise: jitter}
				w := useless
				w.second = &useless
				const seeds = 8
				sum := 0.0
				for seed := range uint64(seeds) {
					sum += edit(w, sources{true, true, true}, seed, block, tails).until(quoted + 512).gain()
				}
				if g := sum / seeds; !(g >= 0.96) {
					t.Errorf("%s, %s drafters, tails %v: %.3f of plain decoding's speed", m.name, name, tails, g)
				}
			}
		}
	}
}

// TestBetterSourceAlone: repetitions together with a drafter that does not pay, or hardly pays, are about as fast as
// the better of the two alone: what the one gains does not pay for the other. The rest is what it costs to get to know
// the drafter: some six plain tokens of the two to seven hundred that these texts take.
func TestBetterSourceAlone(t *testing.T) {
	for _, m := range machines {
		for _, every := range []int{16, 40} {
			for _, p := range []float64{0.3, 0.6} {
				w := world{verify: m.verify, draft: m.draft, right: fixed(p), text: quoting(every, 3), noise: jitter}
				better := max(editing(w, auto, block, false), editing(w, repeated, block, false))
				for _, tails := range []bool{false, true} {
					if g := editing(w, both, block, tails); !(g >= 0.94*better) {
						t.Errorf("%s, changes every %d, right with %.1f, tails %v: speed %.3f, the better source alone %.3f",
							m.name, every, p, tails, g, better)
					}
				}
			}
		}
	}
}

// TestTailJudged: a tail learns from the tokens that led to it, up to its first wrong guess, and from no others.
func TestTailJudged(t *testing.T) {
	at := func(ids ...int32) (p draft.Proposal) {
		for _, id := range ids {
			p.At = append(p.At, []draft.Candidate{{ID: id, LogP: -0.7}})
		}
		return p
	}
	for _, c := range []struct {
		tokens    []int32
		hit, seen float64
	}{
		{[]int32{1, 2, 3, 4, 5, 6}, 3, 3}, {[]int32{1, 2, 3, 4, 9}, 2, 3}, {[]int32{1, 2, 3, 9, 5, 6}, 1, 2},
		{[]int32{1, 2, 9}, 0, 1}, {[]int32{1, 2}, 0, 0}, {[]int32{1, 9, 3, 4}, 0, 0}, {nil, 0, 0},
	} {
		var a acceptance
		x := tail{[]int32{1, 2}, at(3, 4, 5)}
		x.judge(&a, c.tokens)
		var sum odds
		for _, class := range a.first {
			for _, o := range class {
				sum.hit, sum.seen = sum.hit+o.hit, sum.seen+o.seen
			}
		}
		if sum.hit != c.hit || sum.seen != c.seen {
			t.Errorf("after %v: %v of %v, want %v of %v", c.tokens, sum.hit, sum.seen, c.hit, c.seen)
		}
	}
	// A chain with its tail is no longer than what the stream can use.
	s := New(7, 24).NewStream(Options{})
	s.Tail, s.c.costs.chain = 1, table{}
	s.Continue = func(guesses []int32) []draft.Proposal {
		out := make([]draft.Proposal, len(guesses))
		for i := range out {
			out[i] = at(7, 8, 9, 10, 11, 12)
		}
		return out
	}
	s.c.MeasuredPass(1, unit)
	for s.Limit = 3; s.Limit < 12; s.Limit++ {
		o := s.continued(offer{tokens: []int32{1, 2, 3}, gain: []float64{0.9, 0.8, 0.7}})
		if len(o.tokens) != len(o.gain) || len(o.tokens) > s.Limit || len(s.tail.after)+s.tail.Len() > s.Limit {
			t.Errorf("limit %d: %d guesses, a tail of %d after %d", s.Limit, len(o.tokens), s.tail.Len(), len(s.tail.after))
		}
	}
}
