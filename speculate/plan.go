package speculate

import (
	"fmt"
	"math"
	"time"

	"strobe/draft"
	"strobe/model"
)

// plan is what one step puts into its batch.
type plan struct {
	rows    int // of the batch
	prompt  int // of them, prompt tokens
	base    int // rows without guesses
	tree    bool
	guesses []*Stream     // streams that verify guesses or paid for a draft
	drafts  int           // tokens asked of the drafter
	draft   time.Duration // time of its pass
	spent   float64       // time of both passes, in plain passes
}

// maxGuesses is the longest chain.
const maxGuesses = 63

// maxBad is how many useless drafts in a row end a drafter's work for a stream.
const maxBad = 3

// plan decides what every stream adds to the batch.
func (r *Runner) plan(live []*Stream, chunk int) (*plan, error) {
	p := &plan{}
	var decode []*Stream
	for _, s := range live {
		s.nodes, s.proposal, s.prefilled, s.round = nodes{}, draft.Proposal{}, 0, s.round[:0]
		if !s.Prefilling() {
			decode = append(decode, s)
		}
	}
	room := model.MaxRows - len(decode)
	for _, s := range live {
		if !s.Prefilling() {
			continue
		}
		// Every prompt gets at least a token, so that no stream starves.
		n := max(1, min(len(s.Prompt), chunk-p.prompt, room-p.prompt))
		s.prefilled = n
		s.nodes.tokens = s.Prompt[:n]
		p.prompt += n
	}
	p.base = p.prompt + len(decode)
	if len(decode) > 0 {
		r.guess(p, decode)
	}
	for _, s := range live {
		p.rows += len(s.nodes.tokens)
		p.tree = p.tree || s.nodes.parents != nil
	}
	return p, nil
}

// guess fills the rows of generating streams: their last token and the guesses worth verifying.
func (r *Runner) guess(p *plan, decode []*Stream) {
	var reqs []draft.Request
	var asked []*Stream
	chains := make([]offer, len(decode))
	for i, s := range decode {
		limit := s.limit()
		if limit <= 0 || s.off(len(decode)) {
			continue
		}
		if s.guessesNGram() {
			chains[i] = s.repeated(limit)
		}
		if s.follows() && r.wants(decode, s, limit) && !r.prefers(&chains[i], s, limit) {
			if r.Drafter.TryCausal() {
				s.otherRule = s.trial.other()
			}
			n := r.blockLen(s.size)
			reqs = append(reqs, draft.Request{Seq: s.draftSeq, Last: s.last, N: n, Other: s.otherRule})
			asked = append(asked, s)
			p.drafts += n
		}
	}
	r.ask(p, reqs, asked)

	trees := make([]offer, len(decode))
	for i, s := range decode {
		if s.proposal.Source == "dflash" {
			own := s.accept.chainOf(&s.proposal)
			if r.ratio(&own) >= r.ratio(&chains[i]) {
				chains[i] = own
				most, least := s.treeSize()
				trees[i] = s.accept.treeOf(&s.proposal, most, least)
			}
		}
		if chains[i].source == "ngram" {
			s.proposal, s.match = chains[i].proposal, chains[i].match
		}
		if len(trees[i].tokens) == 0 {
			trees[i] = chains[i]
		}
	}
	counts, value := r.choose(chains, decode, p, false)
	pick := chains
	if wantsTree(decode) {
		if c, v := r.choose(trees, decode, p, true); v > value+0.02*float64(len(decode)) || fixedTree(decode) {
			counts, pick = c, trees
		}
	}
	for i, s := range decode {
		s.nodes = pick[i].take(s.last, counts[i])
		if counts[i] > 0 || s.proposal.Source == "dflash" {
			p.guesses = append(p.guesses, s)
		}
	}
}

// ask runs the drafter. Its failures cost the round its guesses, nothing more.
func (r *Runner) ask(p *plan, reqs []draft.Request, asked []*Stream) {
	if len(reqs) == 0 {
		return
	}
	start := r.clock()
	err := r.extend()
	var ps []draft.Proposal
	if err == nil {
		ps, err = r.Drafter.Draft(reqs, candidates)
	}
	p.draft = r.clock().Sub(start)
	for i, s := range asked {
		if err != nil {
			s.draftFailed(err)
			continue
		}
		s.proposal = ps[i]
		s.proposal.Source = "dflash"
		unsure := s.proposal.Len() == 0 // of all its guesses, which is no fault
		s.proposal.Sane(r.Target.Vocab)
		s.proposal.Cut(s.limit())
		if s.proposal.Len() > 0 || unsure {
			s.bad = 0
		} else if s.stats.BadDrafts++; s.limit() > 0 {
			if s.bad++; s.bad == maxBad {
				s.draftFailed(fmt.Errorf("%d drafts in a row had no usable token", maxBad))
			}
		}
		s.stats.Drafts++
	}
}

// limit is the largest number of guesses that can still be used.
func (s *Stream) limit() int {
	n := min(s.left-1, s.Context-s.seq.Len()-2, maxGuesses)
	if s.Config.Options.Max > 0 {
		n = min(n, s.Config.Options.Max)
	}
	return n
}

// off reports whether this round decodes plainly.
func (s *Stream) off(streams int) bool {
	switch {
	case s.Draft == Off:
		return true
	case s.Fixed:
		return false
	case s.ledger.credit <= 0:
		return true
	}
	c := &s.runner.costs
	return !c.plains.agree() || streams == 1 && c.stale(s.promise) // measure what speculation has to beat
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
	return min(most, s.runner.costs.safe()), least
}

// hopeless is the probability below which no guess is worth a row of any pass.
const hopeless = 0.01

func wantsTree(ss []*Stream) bool {
	for _, s := range ss {
		if s.Tree == TreeOff || s.Fixed && s.Tree == TreeAuto {
			return false
		}
	}
	return true
}

func fixedTree(ss []*Stream) bool {
	for _, s := range ss {
		if !s.Fixed || s.Tree <= 0 {
			return false
		}
	}
	return true
}

// repeated offers what followed the last occurrence of the newest tokens.
func (s *Stream) repeated(limit int) offer {
	tokens, match := s.history.Guess(min(limit, 24))
	o := offer{source: "ngram", proposal: draft.Proposal{Source: "ngram"}, match: match}
	p := 1.0
	for i, id := range tokens {
		p *= s.accept.repeat(match + i)
		o.tokens = append(o.tokens, id)
		o.gain = append(o.gain, p)
		o.proposal.At = append(o.proposal.At, []draft.Candidate{{ID: id}})
	}
	return o
}

// blockLen is the number of guesses in a block of the given size.
func (r *Runner) blockLen(size int) int { return max(1, (r.Drafter.Max()+1)/(size+1)-1) }

// wants decides whether to ask the drafter for a stream, and for how long a block.
func (r *Runner) wants(decode []*Stream, s *Stream, limit int) bool {
	s.size, s.risk = 0, 0
	if s.Fixed {
		return true
	}
	size, gain, cost := r.worth(decode, limit)
	s.size, s.promise = size, gain
	if d := s.accept.drafts; d&(d-1) == 0 && s.ledger.credit > s.ledger.start {
		s.size = 0 // ever more rarely, to see whether the whole block has become better
	}
	switch {
	case gain > payMargin:
		return true
	case len(decode) > 1 || s.ledger.trials <= 0:
		return false
	}
	// A trial. The text may have become another since the last one.
	if s.ledger.since > 16 {
		s.accept.age(4)
	}
	if gain < 1 && s.accept.drafts%4 == 0 {
		s.size = 0
	}
	s.risk = cost * (payMargin - gain)
	return true
}

// payMargin is the gain below which drafting is not worth its uncertainty.
const payMargin = 1.04

// worth is the best size of block to ask the drafter for, how many times as fast as plain decoding the streams
// would be with it, and what the round would cost, in plain passes. A draft for many streams costs
// as many times more, while verifying for many leaves less of the machine unused.
func (r *Runner) worth(ss []*Stream, limit int) (size int, gain, cost float64) {
	n := len(ss)
	plain := r.costs.verify(n, false)
	for z := range blockSizes {
		block := r.blockLen(z)
		d := r.costs.draft.at(n * block)
		var tokens [maxGuesses]float64
		for _, s := range ss {
			for i, x := range s.accept.survival(z, min(block, limit)) {
				tokens[i] += 1 + x
			}
		}
		for k, tokens := range tokens[:min(block, limit)] {
			// Of each draft only the promising part is verified: something between the guesses that will be right, with one
			// more, and all of them.
			all, right := n*(k+2), int(math.Round(tokens))+n
			c := (d + (r.costs.verify(all, false)+r.costs.verify(min(all, right), false))/2) / plain
			if g := tokens / float64(n) / c; g > gain {
				size, gain, cost = z, g, c
			}
		}
	}
	return size, gain, cost
}

// prefers reports whether a repetition promises more than a draft would.
func (r *Runner) prefers(o *offer, s *Stream, limit int) bool {
	if len(o.tokens) == 0 || s.Fixed {
		return false
	}
	_, gain, _ := r.worth([]*Stream{s}, limit)
	return r.ratio(o)*r.costs.verify(1, false) > gain
}

// ratio is the expected tokens per second of the best part of one stream's offer.
func (r *Runner) ratio(o *offer) float64 {
	best, sum := 0.0, 1.0
	for i, g := range o.gain {
		sum += g
		if t := r.costs.verify(i+2, false); t > 0 {
			best = max(best, sum/t)
		}
	}
	return best
}

// choose decides how many guesses of each offer to verify: it adds the most probable guess of any
// stream as long as that is worth its time.
func (r *Runner) choose(offers []offer, ss []*Stream, p *plan, tree bool) (counts []int, value float64) {
	counts = make([]int, len(offers))
	fixed := true
	for i, s := range ss {
		fixed = fixed && s.Fixed
		if s.Fixed {
			counts[i] = len(offers[i].tokens)
		}
	}
	if fixed {
		return counts, 0
	}
	prompt := 0.0
	if p.prompt > 0 {
		prompt = r.costs.verify(p.prompt, false)
	}
	cost := func(guesses int) float64 {
		return max(1e-9, r.costs.verify(p.base+guesses, tree && guesses > 0)-prompt) + r.draftCost(p)
	}
	tokens := float64(len(ss))
	taken := make([]int, len(offers))
	// A guess is worth verifying if it yields more than the same time does otherwise: at the streams' own
	// pace, or plainly.
	own := 0.0
	for _, s := range ss {
		own += s.pace.rate()
	}
	pace := max(own, tokens/r.costs.verify(p.base, false))
	value = tokens - pace*cost(0)
	most := max(p.base+1, min(model.MaxRows, p.base+r.costs.safe()-len(ss)))
	for n := 1; p.base+n <= most; n++ {
		best := -1
		for i := range offers {
			if taken[i] < len(offers[i].gain) && (best < 0 || offers[i].gain[taken[i]] > offers[best].gain[taken[best]]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		if len(ss) == 1 && cost(n) > (4+ss[0].ledger.credit)*r.costs.verify(1, false) {
			break // a stake is never larger than the credit
		}
		tokens += offers[best].gain[taken[best]]
		taken[best]++
		if v := tokens - pace*cost(n); v > value {
			value = v
			copy(counts, taken)
		}
	}
	return counts, value
}

// draftCost is the expected time of the step's draft.
func (r *Runner) draftCost(p *plan) float64 {
	if p.drafts == 0 {
		return 0
	}
	return r.costs.draft.at(p.drafts)
}

// settle learns from a step: how good the guesses were and what they cost.
func (r *Runner) settle(live []*Stream, p *plan, took time.Duration) {
	plain := r.costs.chain.at(p.base)
	if p.prompt > 0 {
		plain -= r.costs.chain.at(p.prompt)
	}
	var decode []*Stream
	for _, s := range live {
		if s.prefilled == 0 {
			decode = append(decode, s)
		}
	}
	for _, s := range live {
		if s.prefilled > 0 {
			s.stats.PromptTime += took
			continue
		}
		s.stats.DecodeTime += took
		s.learn()
	}
	for _, s := range decode {
		s.ledger.earn(float64(s.emitted), s.promise)
		s.pace.learn(float64(s.emitted), p.spent)
	}
	if len(p.guesses) > 0 && plain > 0 && p.prompt == 0 {
		perToken := plain / float64(len(decode))
		// Streams share the cost of what they add to the pass.
		cost := 1 + (p.spent-plain)/perToken/float64(len(p.guesses))
		for _, s := range p.guesses {
			s.ledger.settle(float64(s.emitted), cost, s.risk)
		}
	}
	for _, s := range live {
		if s.done && s.stats.Rounds > 0 {
			r.prior = s.accept
			r.bank = min(max(r.bank+s.ledger.won, 0), maxBank)
		}
	}
}

// learn updates the acceptance rates from the round's tokens.
func (s *Stream) learn() {
	accepted := len(s.path) - 1
	guessed := len(s.nodes.tokens) - 1
	s.stats.learn(guessed, accepted, s.proposal.Source)
	if guessed > 0 && s.Synthetic > 0 {
		return
	}
	if s.proposal.Source == "dflash" && s.runner.Drafter.TryCausal() {
		s.trial.learn(s.otherRule, accepted)
	}
	for d := range s.proposal.At {
		if d >= len(s.round) || d > accepted {
			break
		}
		at := s.proposal.At[0]
		if d > 0 {
			at = s.proposal.After(d, s.round[d-1])
		}
		if len(at) == 0 {
			break
		}
		hit := at[0].ID == s.round[d]
		if s.proposal.Source == "ngram" {
			s.accept.ngram[min(s.match+d, len(s.accept.ngram)-1)].learn(hit)
			continue
		}
		s.accept.expect(s.size, d, hit)
		s.accept.reached(s.size, d, hit)
		for rank, c := range at {
			s.accept.model(d, rank, prob(c.LogP)).learn(c.ID == s.round[d])
		}
	}
	if s.proposal.Source == "dflash" && s.accept.changed() {
		s.accept.age(1)
		s.ledger.credit = min(s.ledger.credit, startCredit/3) // what was gained before says nothing now
	}
}
