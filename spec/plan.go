package spec

import (
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

// refreshPlain is how many passes may go by before plain decoding is measured again.
const refreshPlain = 512

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
		if n := r.draftSize(s, limit, len(decode)); n > 0 && !r.prefers(&chains[i], s, n, p) {
			if r.Drafter.TryCausal() {
				s.otherRule = s.trial.other()
			}
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
			if r.ratio(&own, p) >= r.ratio(&chains[i], p) {
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
		s.proposal.Sane(r.Target.Vocab)
		if s.proposal.Len() == 0 {
			s.stats.BadDrafts++
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
	if streams == 1 && (!c.chain.known(1) || c.sinceOne > refreshPlain) {
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

// draftSize chooses how many tokens to ask of the drafter; 0 means not to ask.
func (r *Runner) draftSize(s *Stream, limit, streams int) int {
	if !s.follows() {
		return 0
	}
	limit = min(limit, r.Drafter.Max())
	if s.Fixed || s.stats.Drafts%16 == 15 {
		return limit // now and then a whole block, to learn how far guesses reach
	}
	best, value := limit, 0.0
	for n := range limit {
		n++
		if n > 4 && n%4 != 3 && n != limit {
			continue
		}
		if v := r.worth(s, n, streams); v > value*1.01 {
			best, value = n, v
		}
	}
	return best
}

// worth is the expected tokens per second of drafting n tokens and verifying the best part.
func (r *Runner) worth(s *Stream, n, streams int) float64 {
	best := 0.0
	d := r.costs.draft.at(n*streams) / float64(streams)
	for k := range n {
		t := d + r.costs.verify(1+k+1, false)
		if t > 0 {
			best = max(best, (1+s.accept.survival(k+1))/t)
		}
	}
	return best
}

// prefers reports whether a repetition promises more than a draft of n would.
func (r *Runner) prefers(o *offer, s *Stream, n int, p *plan) bool {
	if len(o.tokens) == 0 || s.Fixed {
		return false
	}
	return r.ratio(o, p) > r.worth(s, n, 1)
}

// ratio is the expected tokens per second of the best part of one stream's offer.
func (r *Runner) ratio(o *offer, p *plan) float64 {
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
		return max(1e-9, r.costs.verify(p.base+guesses, tree && guesses > 0)-prompt) + p.draft.Seconds()
	}
	tokens := float64(len(ss))
	taken := make([]int, len(offers))
	value = tokens / cost(0)
	for n := 1; p.base+n <= model.MaxRows; n++ {
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
	return counts, value
}

// settle learns from a step: how good the guesses were and what they cost.
func (r *Runner) settle(live []*Stream, p *plan, took time.Duration) {
	plain := r.costs.chain.at(p.base)
	if p.prompt > 0 {
		plain -= r.costs.chain.at(p.prompt)
	}
	decode, extra := 0, 0
	for _, s := range live {
		if s.prefilled == 0 {
			decode++
			extra += s.emitted - 1
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
		perToken := plain / float64(decode)
		loss := (took.Seconds()-plain)/perToken - float64(extra)
		for _, s := range p.guesses {
			s.ledger.settle(loss / float64(len(p.guesses)))
		}
	}
	for _, s := range live {
		if s.done {
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
		s.accept.reach[min(d, len(s.accept.reach)-1)].learn(hit)
		for rank, c := range at {
			s.accept.model(d, rank, prob(c.LogP)).learn(c.ID == s.round[d])
		}
	}
}
