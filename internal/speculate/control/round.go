package control

import (
	"math"
	"slices"
	"time"

	"strobe/internal/draft"
)

// Round is one pass of the target in the making: the last token of every generating stream, guesses after some of
// them, and parts of prompts.
type Round struct {
	c        *Controller
	streams  []*Stream // that generate
	prompt   int       // rows of prompts
	base     int       // rows without guesses
	rows     int
	tree     bool
	branches bool    // some draft has more than one candidate for a token
	asks     []*Ask  // made or waiting
	next     int     // first of them that waits
	decided  bool    // about the sources that cost something
	promise  float64 // how many times as fast as plain decoding the best source should be
	spent    float64 // time in plain passes
	real     float64 // the same, of passes as they come, disturbed or not
}

// Ask is a draft to make: one source guesses for several streams.
type Ask struct {
	Source  int
	Streams []*Stream
	N       []int // per stream: tokens to guess
	sizes   []int // per stream: of the block
	paid    bool  // the draft costs something
	took    time.Duration
}

func (a *Ask) add(c *Controller, s *Stream, size int) {
	a.Streams = append(a.Streams, s)
	a.N = append(a.N, c.BlockLen(a.Source, size))
	a.sizes = append(a.sizes, size)
}

// tokens asked for.
func (a *Ask) tokens() int {
	n := 0
	for _, k := range a.N {
		n += k
	}
	return n
}

// Took says how long an ask took, what Drafted did with its guesses included.
func (a *Ask) Took(d time.Duration) { a.took = d }

// made is a draft that a stream was given.
type made struct {
	source, size int
	paid         bool
	proposal     draft.Proposal
}

// BlockSizes is the number of block sizes a stream tries: whole, half, a third, a quarter. A shorter block is
// cheaper to draft; whether its guesses are worse depends on how the drafter was trained.
const BlockSizes = 4

// maxChain bounds what is computed per round; no source guesses more.
const maxChain = 64

// Begin starts a round of the generating streams, in a pass with so many rows of prompts.
func (c *Controller) Begin(streams []*Stream, prompt int) *Round {
	r := &Round{c: c, streams: streams, prompt: prompt, base: prompt + len(streams)}
	r.rows = r.base
	if len(streams) >= 2*c.most { // what drafting gains fewer streams says little (TestSharedPasses, experts)
		c.most, c.ledger = max(1, len(streams)), ledger{credit: startCredit, trials: maxTrials}
	}
	plain := c.measures(streams)
	for _, s := range streams {
		s.turn = turn{drafts: s.drafts[:0], best: -1, on: s.Fixed || !plain}
		s.on = s.on && s.Limit > 0 && slices.Contains(s.Usable, true)
	}
	for i := range c.longest {
		a, free := &Ask{Source: i}, c.free(i, len(streams))
		for _, s := range streams {
			if s.on && s.Usable[i] && !s.Late[i] && (s.Fixed || free) {
				a.add(c, s, 0)
			}
		}
		if len(a.Streams) > 0 {
			r.asks = append(r.asks, a)
		}
	}
	return r
}

// measures reports whether this round decodes plainly: there is nothing left to lose, or what drafting has to beat is
// to be measured, by all streams at once or not at all.
func (c *Controller) measures(streams []*Stream) bool {
	n := len(streams)
	return c.ledger.credit <= 0 || !c.costs.plains.agree() || n < c.costs.unit ||
		slices.ContainsFunc(streams, func(s *Stream) bool { return c.costs.stale(s.promise, n) })
}

// free reports whether asking a source costs so little that there is nothing to decide. What it costs is found out by
// asking once.
func (c *Controller) free(source, streams int) bool {
	t := &c.costs.draft[source]
	return !t.any() || t.at(streams*c.longest[source]) < freeShare
}

// freeShare of a plain pass is too little to decide about.
const freeShare = 0.02

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
	return r.asks[r.next-1]
}

// Drafted takes what an ask brought and how long it took so far; no proposals when it failed. They have to be sane.
func (r *Round) Drafted(a *Ask, ps []draft.Proposal, took time.Duration) {
	a.took = took
	trees := r.wantsTree()
	for i, s := range a.Streams {
		s.paid = s.paid || a.paid
		if i >= len(ps) {
			continue
		}
		ps[i].Cut(s.Limit)
		s.drafts = append(s.drafts, made{a.Source, a.sizes[i], a.paid, ps[i]})
		p := &s.drafts[len(s.drafts)-1].proposal
		if p.Len() == 0 {
			continue
		}
		own := s.accept[a.Source].chainOf(p)
		if r.c.ratio(&own) >= r.c.ratio(&s.chain) {
			s.best, s.chain, s.tree = len(s.drafts)-1, own, own
			if trees && (s.Fixed || p.Branches()) {
				most, least := s.treeSize()
				s.tree = s.accept[a.Source].treeOf(p, most, least)
				r.branches = true
			}
		}
	}
}

// decide asks the sources that cost something, if that should pay. While they pause it is not worked out again: for
// many streams that takes the host a while.
func (r *Round) decide() {
	if r.c.Paused(len(r.streams)) {
		return
	}
	var left []*Stream
	for _, s := range r.streams {
		if s.on && !s.Fixed {
			left = append(left, s)
		}
	}
	if len(left) > 0 {
		r.c.hopeless = len(r.streams)
	}
	for len(left) > 0 {
		var best choice
		var ss []*Stream
		for i := range r.c.longest {
			if r.c.free(i, len(r.streams)) {
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
				best, ss = w, usable
			}
		}
		if ss == nil {
			return
		}
		kept := 1.0
		if len(r.streams) > 1 {
			kept = r.c.promises(len(r.streams)).kept()
		}
		if best.gain*kept > 1 {
			r.c.hopeless = 0
		}
		ready := slices.DeleteFunc(slices.Clone(ss), func(s *Stream) bool { return s.Late[best.source] })
		// Beside prompts nobody sees what a trial costs, and one of few streams says little of all.
		tries := r.c.ledger.trials > 0 && r.prompt == 0
		if len(ready) < len(ss) {
			best, tries = r.c.worth(ready, best.source, len(r.streams)), false
		}
		r.promise = max(r.promise, best.gain)
		best.gain *= kept
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
		left = slices.DeleteFunc(left, func(s *Stream) bool { return slices.Contains(ss, s) })
	}
}

// choice is a source and a size of block to ask it for, how many times as fast as plain decoding that should be,
// and what the round would cost, in plain passes.
type choice struct {
	source, size int
	gain, cost   float64
	explore      bool    // a larger pass than was ever measured might gain more
	loss         float64 // what trying one should cost a stream, in plain tokens
}

// wants decides how long a block to ask for.
func (s *Stream) wants(w choice) (size int) {
	size = w.size
	a := &s.accept[w.source]
	if d := a.drafts; d&(d-1) == 0 && (d >= 4 || w.explore) && s.c.ledger.credit > startCredit {
		// Ever more rarely, to see whether the whole block has become better (TestShortBlocksWorse).
		size, s.explore = 0, w.explore
	}
	if w.gain > 1 {
		return size
	}
	// A trial, now and then of the whole block (TestHardCases: "short worse").
	if w.gain < 1 && a.drafts%4 == 0 {
		size = 0
	}
	s.risk = w.cost * (1 - w.gain)
	if w.explore {
		size, s.explore, s.risk = 0, true, max(s.risk, w.loss)
	}
	return size
}

// worth is the best size of block to ask a source for on behalf of some of the streams of a pass. A draft for many
// streams costs as many times more, while verifying for many leaves less of the machine unused.
//
// It also looks for a reason to try a larger pass than was ever measured: on a mixture of experts many rows share
// what a few have to load, so that each further one costs less, which nobody knows who never tried. It is one if
// drafting would gain more with larger passes as cheap as the largest known.
func (c *Controller) worth(ss []*Stream, source, streams int) choice {
	best := choice{source: source}
	n, others := len(ss), streams-len(ss)
	plain := c.costs.verify(streams, false)
	largest, safe, hope := max(c.costs.largest, streams), c.costs.safe(), 1.0
	for z := range BlockSizes {
		block := min(c.BlockLen(source, z), maxChain)
		d := c.costs.draft[source].at(n * block)
		var tokens [maxChain]float64
		long := 0
		for _, s := range ss {
			sum := 0.0
			survival := s.accept[source].survival(z, min(block, s.Limit))
			long = max(long, len(survival))
			for i := range block {
				if i < len(survival) {
					sum = survival[i]
				}
				tokens[i] += 1 + sum
			}
		}
		for k, t := range tokens[:long] {
			// Of each draft only the promising part is verified: something between the guesses that will be right,
			// with one more, and all of them.
			rows, right := others+n*(k+2), others+int(math.Round(t))+n
			each := (t + float64(others)) / float64(streams)
			cost := (d + (c.costs.verify(rows, false)+c.costs.verify(min(rows, right), false))/2) / plain
			if g := each / cost; g > best.gain {
				best.size, best.gain, best.cost = z, g, cost
			}
			if z > 0 || rows > safe {
				continue
			}
			best.loss = (d+c.costs.verify(rows, false))/plain - each
			if rows > largest {
				hope = max(hope, each*plain/(d+c.costs.verify(largest, false)))
			}
		}
	}
	best.explore = hope > max(best.gain, 1)
	return best
}

// prefers reports whether what a stream has been offered already promises more than a draft of a source would.
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
	most, least = maxTree, hopeless
	if s.Tree > 0 {
		most = min(s.Tree, maxTree)
	}
	if s.Fixed {
		return most, 0
	}
	return min(most, s.c.costs.safe()), least
}

// hopeless is the probability below which no guess is worth a row of any pass.
const hopeless = 0.01

// maxTree is the largest tree the controller builds.
const maxTree = 63

// wantsTree and fixedTree report whether trees may, and must, be verified. Of several streams the best guesses of each
// are worth more than the second best of one, and looking for those takes the host longer than they save.
func (r *Round) wantsTree() bool {
	return (len(r.streams) == 1 || r.fixedTree()) && !slices.ContainsFunc(r.streams, func(s *Stream) bool {
		return s.Tree == TreeOff || s.Fixed && s.Tree == TreeAuto
	})
}

func (r *Round) explores() bool {
	return slices.ContainsFunc(r.streams, func(s *Stream) bool { return s.explore })
}

func (r *Round) fixedTree() bool {
	return !slices.ContainsFunc(r.streams, func(s *Stream) bool { return !s.Fixed || s.Tree <= 0 })
}

// Choose decides which guesses to verify, in a pass of no more than most rows.
func (r *Round) Choose(most int) {
	counts, value := r.choose(func(s *Stream) *offer { return &s.chain }, most, false)
	tree := false
	if r.branches && !r.explores() {
		c, v := r.choose(func(s *Stream) *offer { return &s.tree }, most, true)
		if v > value+0.02*float64(len(r.streams)) || r.fixedTree() {
			counts, tree = c, true
		}
	}
	for i, s := range r.streams {
		s.take, s.count = &s.chain, counts[i]
		if tree {
			s.take = &s.tree
		}
		r.rows += s.count
		if _, parents := s.Guesses(); parents != nil {
			r.tree = true
		}
	}
}

// choose decides how many guesses of each offer to verify: it adds the most probable guess of any
// stream as long as that is worth its time.
func (r *Round) choose(of func(*Stream) *offer, most int, tree bool) (counts []int, value float64) {
	ss, cs := r.streams, &r.c.costs
	counts = make([]int, len(ss))
	fixed := true
	for i, s := range ss {
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
		prompt = cs.verify(r.prompt, false)
	}
	drafts := r.draftCost()
	cost := func(guesses int) float64 {
		return max(1e-9, cs.verify(r.base+guesses, tree && guesses > 0)-prompt) + drafts
	}
	tokens := float64(len(ss))
	explore := !tree && r.explores()
	taken := make([]int, len(ss))
	// A guess is worth verifying if it yields more than the same time does otherwise: at the streams' own
	// pace, or plainly.
	own := 0.0
	var open []int // streams with guesses left
	for i, s := range ss {
		own += s.pace.rate()
		if len(of(s).gain) > 0 {
			open = append(open, i)
		}
	}
	pace := max(own, tokens/cs.verify(r.base, false))
	value = tokens - pace*cost(0)
	most = max(r.base+1, min(most, r.base+cs.safe()-len(ss)))
	for n := 1; r.base+n <= most && len(open) > 0; n++ {
		best, gain := 0, -1.0
		for k, i := range open {
			if g := of(ss[i]).gain[taken[i]]; g > gain {
				best, gain = k, g
			}
		}
		i := open[best]
		tokens += gain
		if taken[i]++; taken[i] == len(of(ss[i]).gain) {
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

// Passed takes what the pass took.
func (r *Round) Passed(took time.Duration) { r.c.costs.learn(r, took) }

// Verified takes the tokens that a stream's round yielded and learns how good its drafts were.
func (s *Stream) Verified(tokens []int32) {
	s.emitted = len(tokens)
	for i := range s.drafts {
		d := &s.drafts[i]
		if s.accept[d.source].judge(d, tokens) {
			l := &s.c.ledger
			l.credit = min(l.credit, startCredit/3) // what was gained before says nothing now
		}
		if !d.paid {
			continue
		}
		for k := range s.accept { // what is known of sources that are not asked fades, so that they are asked again
			if k != d.source && !s.c.free(k, 1) {
				s.accept[k].forget()
			}
		}
	}
}

// Pretended takes how many tokens a stream's round yielded that were made up, from which there is nothing to learn.
func (s *Stream) Pretended(tokens int) { s.emitted = tokens }

// Settle books what the round cost and yielded.
func (r *Round) Settle() {
	plain := r.c.costs.chain.at(r.base)
	n := float64(len(r.streams))
	tokens, guessed, paid, risk := 0.0, false, false, 0.0
	for _, s := range r.streams {
		r.c.ledger.earn(float64(s.emitted)/n, s.promise, len(r.streams))
		s.pace.learn(float64(s.emitted), r.spent)
		tokens += float64(s.emitted) / n
		if s.count > 0 || s.paid {
			guessed, paid = true, paid || s.paid
			risk = max(risk, s.risk)
		}
	}
	if guessed && plain > 0 && r.prompt == 0 {
		r.c.ledger.settle(tokens, r.spent/plain, risk)
		if paid && len(r.streams) > 1 {
			r.c.promises(len(r.streams)).learn(tokens, r.promise*r.real/plain)
		}
	}
}
