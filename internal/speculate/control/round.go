package control

import (
	"math"
	"slices"
	"time"

	"strobe/internal/draft"
)

// Round is one pass of the target: the last token of every generating stream, guesses after some of them, and parts of
// prompts.
type Round struct {
	c        *Controller
	streams  []*Stream // generating ones
	prompt   int       // rows of prompts
	base     int       // rows without guesses
	rows     int       // all rows
	tree     bool      // some stream verifies a tree
	branches bool      // some draft has more than one candidate for a token
	asks     []*Ask    // drafts, finished and waiting
	next     int       // the first that waits
	decided  bool      // whether sources that cost something draft
	promise  float64   // expected speed with the best source, relative to plain decoding
	spent    float64   // time in plain passes, without disturbances
	actual   float64   // the same with disturbances
}

// Ask is a draft to make: one source guesses for several streams.
type Ask struct {
	Source  int
	Streams []*Stream
	N       []int // per stream: tokens to guess
	Tree    bool  // trees may be verified; set by Next
	sizes   []int // per stream: size of the block, 0 for a whole one
	paid    bool  // the draft costs something
	took    time.Duration
}

func (a *Ask) add(c *Controller, s *Stream, size int) {
	a.Streams = append(a.Streams, s)
	a.N = append(a.N, c.BlockLen(a.Source, size))
	a.sizes = append(a.sizes, size)
}

// tokens is the number of guesses asked for.
func (a *Ask) tokens() int {
	n := 0
	for _, k := range a.N {
		n += k
	}
	return n
}

// Took sets how long a draft took, with the time that Drafted needed for its guesses.
func (a *Ask) Took(d time.Duration) { a.took = d }

// streamDraft is a draft for one stream.
type streamDraft struct {
	source, size int
	paid         bool
	proposal     draft.Proposal
}

// Begin starts a round of the generating streams, in a pass with so many rows of prompts.
func (c *Controller) Begin(streams []*Stream, prompt int) *Round {
	r := &Round{c: c, streams: streams, prompt: prompt, base: prompt + len(streams)}
	r.rows = r.base
	if len(streams) >= 2*c.maxStreams { // the gains of fewer streams say little (TestSharedPasses, experts)
		c.maxStreams, c.paid, c.free = max(1, len(streams)), newLedger(), newLedger()
	}
	plain := c.measures(streams)
	for _, s := range streams {
		s.turn = turn{drafts: s.drafts[:0], best: -1, drafting: s.Fixed || !plain}
		s.drafting = s.drafting && s.Limit > 0 && slices.Contains(s.Usable, true)
	}
	for i := range c.blockLen {
		a, free := &Ask{Source: i}, c.isFree(i, len(streams))
		for _, s := range streams {
			if s.drafting && s.Usable[i] && !s.Warming[i] && (s.Fixed || free && c.free.credit > 0) {
				a.add(c, s, 0)
			}
		}
		if len(a.Streams) > 0 {
			r.asks = append(r.asks, a)
		}
	}
	return r
}

// measures reports whether this round decodes without drafts: the credit is spent, or plain decoding has to be
// measured, for which no stream may draft.
func (c *Controller) measures(streams []*Stream) bool {
	n := len(streams)
	return max(c.paid.credit, c.free.credit) <= 0 || !c.costs.plains.agree() || n < c.costs.unitRows ||
		slices.ContainsFunc(streams, func(s *Stream) bool { return c.costs.stale(s.promise, n) })
}

// isFree reports whether drafts of a source cost next to nothing. An unknown source is asked once to measure it.
func (c *Controller) isFree(source, streams int) bool {
	t := &c.costs.draft[source]
	return !t.any() || t.at(streams*c.blockLen[source]) < tune.freeShare
}

// Next is the next draft to make, nil when there is none.
func (r *Round) Next() *Ask {
	if r.next == len(r.asks) && !r.decided {
		r.decided = true
		r.decide()
	}
	if r.next == len(r.asks) {
		return nil
	}
	r.next++
	a := r.asks[r.next-1]
	a.Tree = r.wantsTree()
	return a
}

// Drafted takes the proposals of a draft and how long it took so far. There are none when it failed. Proposal.Sane must
// have been applied to them.
func (r *Round) Drafted(a *Ask, ps []draft.Proposal, took time.Duration) {
	a.took = took
	trees := r.wantsTree()
	for i, s := range a.Streams {
		s.paid = s.paid || a.paid
		if i >= len(ps) {
			continue
		}
		ps[i].Cut(s.Limit)
		s.drafts = append(s.drafts, streamDraft{a.Source, a.sizes[i], a.paid, ps[i]})
		p := &s.drafts[len(s.drafts)-1].proposal
		if p.Len() == 0 {
			continue
		}
		chain := s.accept[a.Source].chainOf(p)
		if s.Continue != nil && !s.Fixed && a.Source != s.Tail {
			chain = s.continued(chain)
		}
		if r.c.ratio(&chain) >= r.c.ratio(&s.chain) {
			s.best, s.chain, s.tree = len(s.drafts)-1, chain, chain
			if trees && (s.Fixed || p.Branches()) {
				most, least := s.treeSize()
				s.tree = s.accept[a.Source].treeOf(p, most, least)
				r.branches = true
			}
		}
	}
}

// decide asks the sources that cost something, if that should pay. While they pause nothing is computed: for many
// streams that takes the host a while.
func (r *Round) decide() {
	if r.c.Paused(len(r.streams)) || r.c.paid.credit <= 0 {
		return
	}
	var left []*Stream
	for _, s := range r.streams {
		if s.drafting && !s.Fixed {
			left = append(left, s)
		}
	}
	if len(left) > 0 {
		r.c.unprofitable = len(r.streams)
	}
	for len(left) > 0 {
		var best choice
		var group []*Stream // streams that the best source may draft for
		for i := range r.c.blockLen {
			if r.c.isFree(i, len(r.streams)) {
				continue
			}
			var usable []*Stream
			for _, s := range left {
				if s.Usable[i] {
					usable = append(usable, s)
				}
			}
			if len(usable) == 0 {
				continue
			}
			if w := r.c.worth(usable, i, len(r.streams)); w.gain > best.gain {
				best, group = w, usable
			}
		}
		if group == nil {
			return
		}
		delivered := 1.0
		if len(r.streams) > 1 {
			delivered = r.c.delivery(len(r.streams)).ratio()
		}
		if best.gain*delivered > 1 {
			r.c.unprofitable = 0
		}
		ready := slices.DeleteFunc(slices.Clone(group), func(s *Stream) bool { return s.Warming[best.source] })
		// Beside prompts the cost of a trial cannot be measured, and a trial of some streams says little of all.
		tries := r.c.paid.trials > 0 && r.prompt == 0
		if len(ready) < len(group) {
			best, tries = r.c.worth(ready, best.source, len(r.streams)), false
		}
		r.promise = max(r.promise, best.gain)
		best.gain *= delivered
		a := &Ask{Source: best.source, paid: true}
		for _, s := range ready {
			s.promise = best.gain
			if (tries || best.gain > 1) && !r.c.prefers(s, best.source) {
				a.add(r.c, s, s.wants(best))
			}
		}
		if len(a.Streams) > 0 {
			r.asks = append(r.asks, a)
		}
		left = slices.DeleteFunc(left, func(s *Stream) bool { return slices.Contains(group, s) })
	}
}

// choice is a source with the best size of its block.
type choice struct {
	source, size int
	gain         float64 // expected speed relative to plain decoding
	cost         float64 // of the round, in plain passes
	explore      bool    // a larger pass than any so far might gain more
	loss         float64 // what trying such a pass is expected to cost a stream, in plain tokens
}

// wants decides which size of block to ask for.
func (s *Stream) wants(w choice) (size int) {
	size = w.size
	a := &s.accept[w.source]
	powerOfTwo := a.drafts&(a.drafts-1) == 0
	if powerOfTwo && (a.drafts >= tune.wholeBlockEvery || w.explore) && s.c.paid.credit > tune.startCredit {
		// Less and less often, to see whether the whole block has become better (TestShortBlocksWorse).
		size, s.explore = 0, w.explore
	}
	if w.gain > 1 {
		return size
	}
	// A trial. Some are of the whole block (TestHardCases: "short worse").
	if w.gain < 1 && a.drafts%tune.wholeBlockEvery == 0 {
		size = 0
	}
	s.risk = w.cost * (1 - w.gain)
	if w.explore {
		size, s.explore, s.risk = 0, true, max(s.risk, w.loss)
	}
	return size
}

// worth is the best size of block when a source drafts for a group of the streams of a pass.
//
// Each extra row is cheaper on MoE targets. That cannot be known without trying, so worth also reports whether a larger
// pass than any so far could win, if it cost no more than the largest one.
func (c *Controller) worth(group []*Stream, source, streams int) choice {
	best := choice{source: source}
	n, others := len(group), streams-len(group)
	plain := c.costs.verify(streams, false)
	largest, safe, hope := max(c.costs.largest, streams), c.costs.safe(), 1.0
	for z := range BlockSizes {
		block := min(c.BlockLen(source, z), maxChain)
		draft := c.costs.draft[source].at(n * block)
		var tokens [maxChain]float64 // of all streams of the group, by verified guesses
		deepest := 0
		for _, s := range group {
			sum := 0.0
			survival := s.accept[source].survival(z, min(block, s.Limit))
			deepest = max(deepest, len(survival))
			for i := range block {
				if i < len(survival) {
					sum = survival[i]
				}
				tokens[i] += 1 + sum
			}
		}
		for k, t := range tokens[:deepest] {
			// Only the probable part of each draft is verified: something between all guesses, and those that will be right
			// with one more.
			rows, right := others+n*(k+2), others+int(math.Round(t))+n
			each := (t + float64(others)) / float64(streams)
			cost := (draft + (c.costs.verify(rows, false)+c.costs.verify(min(rows, right), false))/2) / plain
			if g := each / cost; g > best.gain {
				best.size, best.gain, best.cost = z, g, cost
			}
			if z > 0 || rows > safe {
				continue
			}
			best.loss = (draft+c.costs.verify(rows, false))/plain - each
			if rows > largest {
				hope = max(hope, each*plain/(draft+c.costs.verify(largest, false)))
			}
		}
	}
	best.explore = hope > max(best.gain, 1)
	return best
}

// prefers reports whether the guesses that a stream already has are expected to yield more than a draft of a source.
func (c *Controller) prefers(s *Stream, source int) bool {
	if len(s.chain.tokens) == 0 {
		return false
	}
	return c.ratio(&s.chain)*c.costs.verify(1, false) > c.worth([]*Stream{s}, source, 1).gain
}

// ratio is the expected tokens per second of the best part of one stream's offer.
func (c *Controller) ratio(o *offer) float64 {
	best, sum := 0.0, 1.0
	for i, g := range o.gain {
		sum += g
		if t := c.costs.verify(i+2, false); t > 0 {
			best = max(best, sum/t)
		}
	}
	return best
}

// treeSize is the largest tree a stream may verify in one pass, and how probable its guesses have to be.
func (s *Stream) treeSize() (most int, least float64) {
	most, least = maxTree, tune.minProbability
	if s.Tree > 0 {
		most = min(s.Tree, maxTree)
	}
	if s.Fixed {
		return most, 0
	}
	return min(most, s.c.costs.safe()), least
}

// wantsTree reports whether trees may be verified. With several streams the best guesses of each are worth more than
// the second best of one, and building trees takes the host longer than they save.
func (r *Round) wantsTree() bool {
	return (len(r.streams) == 1 || r.fixedTree()) && !slices.ContainsFunc(r.streams, func(s *Stream) bool {
		return s.Tree == TreeOff || s.Fixed && s.Tree == TreeAuto
	})
}

// explores reports whether the round verifies as many guesses as possible, to measure a larger pass.
func (r *Round) explores() bool {
	return slices.ContainsFunc(r.streams, func(s *Stream) bool { return s.explore })
}

// fixedTree reports whether trees must be verified.
func (r *Round) fixedTree() bool {
	return !slices.ContainsFunc(r.streams, func(s *Stream) bool { return !s.Fixed || s.Tree <= 0 })
}

// Choose decides which guesses to verify, in a pass of at most maxRows rows.
func (r *Round) Choose(maxRows int) {
	counts, value := r.choose(func(s *Stream) *offer { return &s.chain }, maxRows, false)
	tree := false
	if r.branches && !r.explores() {
		c, v := r.choose(func(s *Stream) *offer { return &s.tree }, maxRows, true)
		if v > value+tune.treeMargin*float64(len(r.streams)) || r.fixedTree() {
			counts, tree = c, true
		}
	}
	for i, s := range r.streams {
		s.chosen, s.count = &s.chain, counts[i]
		if tree {
			s.chosen = &s.tree
		}
		r.rows += s.count
		if _, parents := s.Guesses(); parents != nil {
			r.tree = true
		}
	}
}

// choose decides how many guesses of each offer to verify. It adds the most probable guess of any stream as long as
// that is worth its time.
func (r *Round) choose(of func(*Stream) *offer, maxRows int, tree bool) (counts []int, value float64) {
	streams, costs := r.streams, &r.c.costs
	counts = make([]int, len(streams))
	fixed := true
	for i, s := range streams {
		fixed = fixed && s.Fixed
		if s.Fixed {
			counts[i] = len(of(s).tokens)
		}
	}
	if fixed {
		return counts, 0
	}
	prompt := 0.0
	if r.prompt > 0 {
		prompt = costs.verify(r.prompt, false)
	}
	drafts := r.draftCost()
	cost := func(guesses int) float64 {
		return max(1e-9, costs.verify(r.base+guesses, tree && guesses > 0)-prompt) + drafts
	}
	tokens := float64(len(streams))
	explore := !tree && r.explores()
	taken := make([]int, len(streams))
	// A guess is worth verifying if it yields more than the same time does otherwise: at the streams' recent pace, or
	// with plain decoding.
	recent := 0.0
	var open []int // streams with guesses left
	for i, s := range streams {
		recent += s.pace.rate()
		if len(of(s).gain) > 0 {
			open = append(open, i)
		}
	}
	pace := max(recent, tokens/costs.verify(r.base, false))
	value = tokens - pace*cost(0)
	maxRows = max(r.base+1, min(maxRows, r.base+costs.safe()-len(streams)))
	for n := 1; r.base+n <= maxRows && len(open) > 0; n++ {
		best, gain := 0, -1.0
		for k, i := range open {
			if g := of(streams[i]).gain[taken[i]]; g > gain {
				best, gain = k, g
			}
		}
		i := open[best]
		tokens += gain
		if taken[i]++; taken[i] == len(of(streams[i]).gain) {
			open = slices.Delete(open, best, best+1)
		}
		if v := tokens - pace*cost(n); v > value || explore {
			value = v
			copy(counts, taken)
		}
	}
	return counts, value
}

// draftCost is the expected time of the round's drafts.
func (r *Round) draftCost() float64 {
	sum := 0.0
	for _, a := range r.asks {
		sum += r.c.costs.draft[a.Source].at(a.tokens())
	}
	return sum
}

// Passed takes the time of the target pass.
func (r *Round) Passed(took time.Duration) { r.c.costs.learn(r, took) }

// Verified takes the tokens that a stream's round yielded and learns how good its drafts were.
func (s *Stream) Verified(tokens []int32) {
	s.emitted = len(tokens)
	if s.Continue != nil {
		s.tail.judge(&s.tails, tokens)
	}
	for i := range s.drafts {
		d := &s.drafts[i]
		if s.accept[d.source].judge(d, tokens) {
			s.c.ledger(!s.c.isFree(d.source, 1)).distrust()
		}
		if !d.paid {
			continue
		}
		for k := range s.accept {
			if k != d.source && !s.c.isFree(k, 1) {
				s.accept[k].forget()
			}
		}
	}
}

// Pretended takes the number of tokens of a synthetic round, from which there is nothing to learn.
func (s *Stream) Pretended(tokens int) { s.emitted = tokens }

// Settle books what the round cost and yielded.
func (r *Round) Settle() {
	plain := r.c.costs.chain.at(r.base)
	n := float64(len(r.streams))
	tokens, guessed, paid, risk := 0.0, false, false, 0.0
	dear := false // guesses of a source that costs something were verified, perhaps to find that out
	for _, s := range r.streams {
		emitted := float64(s.emitted) / n
		took := emitted
		if plain > 0 {
			took = min(took, r.spent/plain/n)
		}
		r.c.paid.earn(emitted, took, s.promise, len(r.streams))
		r.c.free.earn(emitted, took, 1, len(r.streams))
		s.pace.learn(float64(s.emitted), r.spent)
		tokens += float64(s.emitted) / n
		if s.count > 0 || s.paid {
			guessed, paid = true, paid || s.paid
			dear = dear || s.paid || s.best >= 0 && !r.c.isFree(s.Source(), len(r.streams))
			risk = max(risk, s.risk)
		}
	}
	if guessed && plain > 0 && r.prompt == 0 {
		r.c.ledger(dear).settle(tokens, r.spent/plain, risk)
		if paid && len(r.streams) > 1 {
			r.c.delivery(len(r.streams)).learn(tokens, r.promise*r.actual/plain)
		}
	}
}
