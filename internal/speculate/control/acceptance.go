package control

import (
	"math"
	"slices"

	"strobe/internal/draft"
)

// acceptance is how often the guesses of a source were right, by what it thought of them.
type acceptance struct {
	first [depthClasses][claimClasses]odds // the best candidate, by depth and claimed probability
	other [claimClasses]odds               // other candidates
	// How often the best guess was right by position, given that the earlier ones were: in all blocks, and in those of
	// each size.
	reach    [maxChain]odds
	bySize   [BlockSizes][maxChain]odds
	drafts   int
	survived [BlockSizes]survival // by size; cleared when anything is learnt
	// How many more guesses than expected were right over the last few drafts, and the variance of that.
	excess, variance float64
}

// survival is the expected number of accepted guesses among the first guesses of a block. It is needed in every round
// and changes with drafts only, so it is cached.
type survival struct {
	known int
	sum   [maxChain]float64
}

// odds is a success rate that forgets.
type odds struct{ hit, seen float64 }

func (o *odds) learn(hit bool) {
	if o.seen > tune.rateMemory {
		o.fade(tune.rateFade)
	}
	o.seen++
	if hit {
		o.hit++
	}
}

func (o *odds) fade(f float64) { o.hit, o.seen = f*o.hit, f*o.seen }

// rate mixes what was seen with a prior, whose weight in samples falls with every sample.
func (o *odds) rate(prior, weight float64) float64 {
	weight /= 1 + o.seen/tune.priorHalfLife
	return (o.hit + prior*weight) / (o.seen + weight)
}

// age bounds the weight of everything that was seen: it is no longer true. The rates stay until new samples change
// them.
func (a *acceptance) age(samples float64) {
	a.invalidate()
	for i := range a.first {
		limit(a.first[i][:], samples)
	}
	limit(a.other[:], samples)
	limit(a.reach[:], samples)
	for i := range a.bySize {
		limit(a.bySize[i][:], samples)
	}
}

// claimClass sorts a probability into classes, finer near 0 and 1.
func claimClass(p float64) (class int) {
	for class < len(claimBounds) && p >= claimBounds[class] {
		class++
	}
	return class
}

// claimBounds are the probabilities where classes after the first begin: equal steps of the log-odds around 1/2, out to
// 0.003 and 0.997.
var claimBounds = func() (from [claimClasses - 1]float64) {
	for i := range from {
		from[i] = 1 / (1 + math.Exp(float64(claimClasses/2-1-i)/1.2))
	}
	return from
}()

// depthClass sorts guesses by their depth: the first, the next three, later ones.
func depthClass(depth int) int {
	switch {
	case depth == 0:
		return 0
	case depth < 4:
		return 1
	}
	return 2
}

// model is the success rate of candidates like this one.
func (a *acceptance) model(depth, rank int, p float64) *odds {
	if rank > 0 {
		return &a.other[claimClass(p)]
	}
	return &a.first[depthClass(depth)][claimClass(p)]
}

// guess is the calibrated probability of a drafter's candidate.
func (a *acceptance) guess(depth, rank int, logp float32) float64 {
	p := math.Exp(float64(logp))
	if p != p {
		return 0
	}
	return a.model(depth, rank, p).rate(p, tune.claimWeight)
}

// survival is the expected number of accepted guesses among the first 1 to n of a block of the given size. Until
// seen otherwise, a guess is as good as the one before it, and guesses of a shorter block are as good as those of the
// whole one, for which the drafter was trained.
func (a *acceptance) survival(size, n int) []float64 {
	v := &a.survived[size]
	if v.known < n {
		sum, p, prior := 0.0, 1.0, tune.firstGuess
		for i := range n {
			prior = a.reach[i].rate(prior, tune.positionWeight)
			p *= a.bySize[size][i].rate(prior, tune.blockWeight)
			sum += p
			v.sum[i] = sum
		}
		v.known = n
	}
	return v.sum[:n]
}

// invalidate clears what was computed from the rates.
func (a *acceptance) invalidate() {
	for z := range a.survived {
		a.survived[z].known = 0
	}
}

// reached learns that a guess of a block of some size was reached. What is known of later positions, and of
// the other sizes, fades.
func (a *acceptance) reached(size, at int, hit bool) {
	a.invalidate()
	if at == 0 {
		a.drafts++
	}
	for _, os := range [][]odds{a.reach[:], a.bySize[size][:]} {
		os[at].learn(hit)
		if hit {
			continue
		}
		for i := range os[at+1:] {
			os[at+1+i].fade(tune.missFade)
		}
	}
	for z := range a.bySize {
		if z != size {
			a.bySize[z][at].fade(tune.unusedFade)
		}
	}
}

// forget fades what is known of a source that is not asked, so that it is asked again.
func (a *acceptance) forget() {
	a.invalidate()
	for i := range a.reach {
		a.reach[i].fade(tune.unusedFade)
		for z := range a.bySize {
			a.bySize[z][i].fade(tune.unusedFade)
		}
	}
}

// expect notes a guess before its rate learns from it.
func (a *acceptance) expect(size, at int, hit bool) {
	p := a.bySize[size][at].rate(a.reach[at].rate(tune.firstGuess, tune.positionWeight), tune.blockWeight)
	a.excess -= p
	if hit {
		a.excess++
	}
	a.variance += p * (1 - p)
}

// changed reports whether guesses have lately been so much better or worse than expected that it is no accident
// (TestCollapse).
func (a *acceptance) changed() bool {
	if a.excess*a.excess > tune.changeSigma*tune.changeSigma*(a.variance+tune.changeNoise) {
		a.excess, a.variance = 0, 0
		return true
	}
	a.excess *= tune.changeFade
	a.variance *= tune.changeFade * tune.changeFade
	return false
}

// limit bounds the weight of what was seen.
func limit(os []odds, most float64) {
	for i := range os {
		if o := &os[i]; o.seen > most {
			o.fade(most / o.seen)
		}
	}
}

// judge learns from the tokens that followed where a draft was made. It reports whether the source has changed.
func (a *acceptance) judge(d *streamDraft, tokens []int32) (changed bool) {
	if d.proposal.Len() == 0 && d.paid { // an expensive draft without a guess is a wrong one
		a.expect(d.size, 0, false)
		a.reached(d.size, 0, false)
	}
	for i := range min(d.proposal.Len(), len(tokens), maxChain) {
		at := d.proposal.At[0]
		if i > 0 {
			at = d.proposal.After(i, tokens[i-1])
		}
		if len(at) == 0 {
			break
		}
		hit := at[0].ID == tokens[i]
		a.expect(d.size, i, hit)
		a.reached(d.size, i, hit)
		for rank, c := range at {
			a.model(i, rank, prob(c.LogP)).learn(c.ID == tokens[i])
		}
		if !slices.ContainsFunc(at, func(c draft.Candidate) bool { return c.ID == tokens[i] }) {
			break
		}
	}
	if a.changed() {
		a.age(1)
		return true
	}
	return false
}
