package control

import (
	"math"
	"slices"

	"strobe/internal/draft"
)

// acceptance is how often the guesses of a source were right, by what it thought of them.
type acceptance struct {
	first [3][16]odds // by depth (first, next three, later) and claimed probability
	other [16]odds    // candidates after the best one
	// reach is how often the best guess was right by position, given that the earlier ones were:
	// in all blocks, and in those of each size.
	reach    [64]odds
	bySize   [BlockSizes][64]odds
	drafts   int
	survived [BlockSizes]survival // by size; nothing after anything was learnt
	// How many more guesses than expected were right over the last few drafts, and the variance of that.
	excess, spread float64
}

// survival is the expected number of accepted guesses among the first so many of a block. It is asked for in every
// round and changes with drafts only.
type survival struct {
	known int
	sum   [maxChain]float64
}

// odds is a success rate that forgets.
type odds struct{ hit, seen float64 }

func (o *odds) learn(hit bool) {
	if o.seen > 60 {
		o.fade(0.97)
	}
	o.seen++
	if hit {
		o.hit++
	}
}

func (o *odds) fade(f float64) { o.hit, o.seen = f*o.hit, f*o.seen }

// rate mixes what was seen with a prior of the given weight, which counts ever less (TestHardCases, as the rules of
// fading below).
func (o *odds) rate(prior, weight float64) float64 {
	weight /= 1 + o.seen/20
	return (o.hit + prior*weight) / (o.seen + weight)
}

// age leaves as much weight to what was seen as so many samples have: it is old, or no longer true. What
// it says is kept until new samples say otherwise.
func (a *acceptance) age(samples float64) {
	a.learnt()
	for i := range a.first {
		limit(a.first[i][:], samples)
	}
	limit(a.other[:], samples)
	limit(a.reach[:], samples)
	for i := range a.bySize {
		limit(a.bySize[i][:], samples)
	}
}

// claim sorts a probability into 16 classes, finer near 0 and 1.
func claim(p float64) (class int) {
	for class < len(classes) && p >= classes[class] {
		class++
	}
	return class
}

// classes is where those after the first begin: log-odds of which each has an equal share.
var classes = func() (from [15]float64) {
	for i := range from {
		from[i] = 1 / (1 + math.Exp(float64(7-i)/1.2))
	}
	return from
}()

func depthClass(depth int) int {
	switch {
	case depth == 0:
		return 0
	case depth < 4:
		return 1
	}
	return 2
}

func (a *acceptance) model(depth, rank int, p float64) *odds {
	if rank > 0 {
		return &a.other[claim(p)]
	}
	return &a.first[depthClass(depth)][claim(p)]
}

// guess is the calibrated probability of a drafter's candidate.
func (a *acceptance) guess(depth, rank int, logp float32) float64 {
	p := math.Exp(float64(logp))
	if p != p {
		return 0
	}
	return a.model(depth, rank, p).rate(p, 3)
}

// survival is the expected number of accepted guesses among the first n of a block of the given size. Until
// seen otherwise, a guess is as good as the one before it, and those of a shorter block as good as
// those of the whole one, which is what the drafter was trained for.
func (a *acceptance) survival(size, n int) []float64 {
	v := &a.survived[size]
	if v.known < n {
		sum, p, prior := 0.0, 1.0, firstGuess
		for i := range n {
			prior = a.reach[i].rate(prior, 2)
			p *= a.bySize[size][i].rate(prior, 8)
			sum += p
			v.sum[i] = sum
		}
		v.known = n
	}
	return v.sum[:n]
}

// learnt says that what was seen has changed.
func (a *acceptance) learnt() {
	for z := range a.survived {
		a.survived[z].known = 0
	}
}

// firstGuess is how good an unknown drafter is taken to be: good enough to be tried.
const firstGuess = 0.8

// reached learns that a guess of a block of some size was reached. What is known of later positions, and of
// the other sizes, fades.
func (a *acceptance) reached(size, at int, hit bool) {
	a.learnt()
	if at == 0 {
		a.drafts++
	}
	for _, os := range [][]odds{a.reach[:], a.bySize[size][:]} {
		os[at].learn(hit)
		if hit {
			continue
		}
		for i := range os[at+1:] {
			os[at+1+i].fade(0.9)
		}
	}
	for z := range a.bySize {
		if z != size {
			a.bySize[z][at].fade(0.99)
		}
	}
}

// forget lets what is known of a source that is not asked fade.
func (a *acceptance) forget() {
	a.learnt()
	for i := range a.reach {
		a.reach[i].fade(0.99)
		for z := range a.bySize {
			a.bySize[z][i].fade(0.99)
		}
	}
}

// expect notes a guess before its rate learns from it.
func (a *acceptance) expect(size, at int, hit bool) {
	p := a.bySize[size][at].rate(a.reach[at].rate(firstGuess, 2), 8)
	a.excess -= p
	if hit {
		a.excess++
	}
	a.spread += p * (1 - p)
}

// changed reports whether guesses have lately been so much better or worse than expected that it is no accident
// (TestCollapse).
func (a *acceptance) changed() bool {
	if a.excess*a.excess > 9*(a.spread+0.5) {
		a.excess, a.spread = 0, 0
		return true
	}
	a.excess *= 0.87
	a.spread *= 0.87 * 0.87
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

// judge learns from the tokens that came where a draft was made, and reports whether the source has become another.
func (a *acceptance) judge(d *made, tokens []int32) (changed bool) {
	if d.proposal.Len() == 0 && d.paid { // for nothing
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
