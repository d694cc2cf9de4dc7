package spec

import (
	"fmt"
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
}

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
		if s.follows() && (s.Fixed || r.pays(decode, limit)) && !r.prefers(&chains[i], s, limit) {
			if r.Drafter.TryCausal() {
				s.otherRule = s.trial.other()
			}
			s.size = r.chooseSize(s, limit)
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
				trees[i] = s.accept.treeOf(&s.proposal, s.treeSize())
			}
		}
		if chains[i].source == "ngram" {
			s.proposal, s.match = chains[i].proposal, chains[i].match
		}
		if trees[i].tokens == nil {
			trees[i] = chains[i]
		}
	}
	counts, value := r.choose(chains, decode, p, false)
	pick := chains
	if wantsTree(decode) {
		if c, v := r.choose(trees, decode, p, true); v > value*1.02 || fixedTree(decode) {
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
	n := min(s.left-1, s.Context-s.seq.Len()-2, 63)
	if s.Config.Options.Max > 0 {
		n = min(n, s.Config.Options.Max)
	}
	return n
}

// off reports whether this round decodes plainly.
func (s *Stream) off(streams int) bool {
	if s.Draft == Off {
		return true
	}
	if s.Fixed {
		return false
	}
	c := &s.runner.costs
	if streams == 1 && c.stale(s.ledger.rich()) {
		return true // measure what speculation has to beat
	}
	return s.ledger.paused()
}

// treeSize is the largest tree a stream may verify.
func (s *Stream) treeSize() int {
	if s.Tree > 0 {
		return min(s.Tree, maxTree)
	}
	return maxTree
}

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
func (r *Runner) blockLen(size int) int { return max(1, (r.Drafter.Max()+1)>>size-1) }

// chooseSize decides how long a block to draft.
func (r *Runner) chooseSize(s *Stream, limit int) int {
	if s.Fixed {
		return 0
	}
	best, value := r.worth(s, limit)
	// A size is worth trying if it would win, and pay, with guesses as good as the whole block's.
	promise := func(size int) float64 {
		v := r.sizeValue(s, size, 0, limit)
		if s.accept.reach[0][0].seen < sizeSamples || v < 1.05*value || v*r.costs.verify(1, false) < 1.03 {
			return 0
		}
		return v
	}
	if t := s.accept.trial(s.stats.Drafts, promise); t >= 0 {
		return t
	}
	return best
}

// worth is the best size of block to ask the drafter for, and the expected tokens per second of that.
func (r *Runner) worth(s *Stream, limit int) (size int, value float64) {
	for z := range blockSizes {
		if s.accept.known(z) {
			if v := r.sizeValue(s, z, z, limit); v > value*1.01 {
				size, value = z, v
			}
		}
	}
	return size, value
}

// sizeValue is the expected tokens per second of drafting a block of a size and verifying the best
// part of it, up to limit guesses, if its guesses are as good as those of blocks of size like.
func (r *Runner) sizeValue(s *Stream, size, like, limit int) float64 {
	n := r.blockLen(size)
	d := r.costs.draft.at(n)
	best := 0.0
	for k := range min(n, limit) {
		if t := d + r.costs.verify(k+2, false); t > 0 {
			best = max(best, (1+s.accept.survival(like, k+1))/t)
		}
	}
	return best
}

// pays reports whether drafting for several streams promises more than a pass without guesses. A single
// stream finds out by trying, within the limits of its ledger; but a draft for many costs as many times
// more, while verifying for many leaves less of the machine unused.
func (r *Runner) pays(decode []*Stream, limit int) bool {
	n := len(decode)
	plain := r.costs.verify(n, false)
	if n == 1 || plain == 0 {
		return true
	}
	for z := range blockSizes {
		size := r.blockLen(z)
		d := r.costs.draft.at(n * size)
		for k := range min(size, limit) {
			tokens := float64(n)
			for _, s := range decode {
				if s.accept.known(z) {
					tokens += s.accept.survival(z, k+1)
				}
			}
			if tokens/(d+r.costs.verify(n*(k+2), false)) > 1.05*float64(n)/plain {
				return true
			}
		}
	}
	return false
}

// hopeful reports whether, by all that is known, guesses like this round's pay.
func (r *Runner) hopeful(decode []*Stream, s *Stream, perToken float64) bool {
	switch {
	case s.proposal.Source != "dflash":
		return true // repetitions are verified only when they have been right often enough
	case !s.follows():
		return false
	case len(decode) > 1:
		return r.pays(decode, s.limit())
	}
	_, value := r.worth(s, s.limit())
	return value > 1/perToken
}

// prefers reports whether a repetition promises more than a draft would.
func (r *Runner) prefers(o *offer, s *Stream, limit int) bool {
	if len(o.tokens) == 0 || s.Fixed {
		return false
	}
	_, value := r.worth(s, limit)
	return r.ratio(o) > value
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
// stream as long as that raises the expected tokens per second of the whole batch.
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
	value = tokens / cost(0)
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
		tokens += offers[best].gain[taken[best]]
		taken[best]++
		if v := tokens / cost(n); v > value {
			value = v
			copy(counts, taken)
		}
	}
	if k := min(2, len(offers[0].tokens)); len(ss) == 1 && counts[0] == 0 && k > 0 && ss[0].ledger.trial == 0 && r.costs.chain.doubtful(p.base+k) {
		// What a few rows cost was measured once, perhaps at a bad moment. A trial that would verify
		// nothing looks again.
		counts[0] = k
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
	if len(p.guesses) > 0 && plain > 0 && p.prompt == 0 {
		perToken := plain / float64(len(decode))
		// Expected times, not this round's: what disturbs one round is not the drafter's fault.
		// Streams share the cost of what they add to the pass.
		spent := r.costs.verify(p.rows, p.tree) + r.draftCost(p)
		cost := 1 + (spent-plain)/perToken/float64(len(p.guesses))
		for _, s := range p.guesses {
			drafted := s.proposal.Source == "dflash"
			if s.ledger.settle(float64(s.emitted), cost, drafted, r.hopeful(decode, s, perToken)) && drafted {
				s.accept.age()
			}
		}
	}
	for _, s := range live {
		if s.done && s.stats.Rounds > 0 {
			r.prior = s.accept
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
	for d, at := range s.proposal.At {
		if d >= len(s.round) || d > accepted {
			return
		}
		hit := at[0].ID == s.round[d]
		if s.proposal.Source == "ngram" {
			s.accept.ngram[min(s.match+d, len(s.accept.ngram)-1)].learn(hit)
			continue
		}
		s.accept.reach[s.size][min(d, len(s.accept.reach[0])-1)].learn(hit)
		for rank, c := range at {
			s.accept.model(d, rank, prob(c.LogP)).learn(c.ID == s.round[d])
		}
	}
}
