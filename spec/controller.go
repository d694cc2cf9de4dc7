package spec

import (
	"math"
	"time"
)

// The controller answers two questions each round: whether to ask the drafter at all, and how many
// of the guesses to verify. Both follow from measured costs and calibrated probabilities:
// the choice is the one with the most expected tokens per second. A ledger of time lost against
// plain decoding bounds what a bad drafter can cost.

// costs is what passes took on this machine, by rows. Streams share it.
type costs struct {
	chain, tree table // target passes
	draft       table // drafter passes, by guesses per stream times streams
	sinceOne    int   // passes since plain decoding was last measured
	refresh     int   // how many of them may go by
	largest     int   // rows of the largest pass so far that was not a prompt
	// load is how much slower passes are now than the tables say. What slows the machine down for a
	// while slows all sizes alike, so samples are divided by it: the tables, on which decisions
	// rest, stay comparable although their entries were measured at different times.
	load float64
}

// normal divides a sample by the current load, which it updates. The load forgets: a change that lasts
// belongs into the tables, and without that the two could drift apart together.
func (c *costs) normal(t *table, n int, d time.Duration) time.Duration {
	if c.load == 0 {
		c.load = 1
	}
	if t.known(n) && t.seen[n] > 2 {
		ratio := min(max(d.Seconds()/t.mean[n], 0.25), 4)
		c.load += 0.15*(ratio-c.load) + 0.03*(1-c.load)
	}
	return time.Duration(float64(d) / c.load)
}

// table is time by size, learnt from noisy samples.
type table struct {
	mean []float64 // seconds; 0 where nothing was measured
	seen []int
}

// learn adds a sample. What disturbs one (a busy machine, memory touched for the first time) mostly adds
// time, so of the first few the fastest counts; later ones are averaged, within bounds.
func (t *table) learn(n int, d time.Duration) {
	for len(t.mean) <= n {
		t.mean, t.seen = append(t.mean, 0), append(t.seen, 0)
	}
	x, m := d.Seconds(), t.mean[n]
	t.seen[n]++
	switch {
	case m == 0:
		m = x
	case t.seen[n] <= 3:
		m = min(m, x)
	default:
		m += 0.15 * (min(max(x, m/2), 2*m) - m)
	}
	t.mean[n] = m
}

// at estimates the time of size n: measured, between its measured neighbours, or beyond them by their
// slope. A single sample may be an accident, so it only counts when it is no dearer than
// smaller sizes, measured more often, suggest.
func (t *table) at(n int) float64 {
	if t.known(n) {
		m := t.mean[n]
		if t.seen[n] == 1 {
			if near, less := t.below(n, 2); less > 0 {
				m = min(m, t.beyond(less, near, n))
			}
		}
		// More rows never take less time.
		for i := n + 1; i < len(t.mean); i++ {
			if t.seen[i] > 1 {
				m = min(m, t.mean[i])
			}
		}
		return m
	}
	near, less := t.below(n, 1)
	above := n + 1
	for above < len(t.mean) && t.mean[above] == 0 {
		above++
	}
	switch {
	case near == 0 && above >= len(t.mean):
		return 0
	case near == 0:
		return t.mean[above] * float64(n+6) / float64(above+6)
	case above < len(t.mean):
		f := float64(n-near) / float64(above-near)
		return t.at(near) + f*max(0, t.at(above)-t.at(near))
	}
	return t.beyond(less, near, n)
}

// below returns the two largest sizes under n that were measured so often, 0 where there is none.
func (t *table) below(n, often int) (near, less int) {
	for i := min(n, len(t.mean)) - 1; i > 0; i-- {
		switch {
		case t.seen[i] < often:
		case near == 0:
			near = i
		default:
			return near, i
		}
	}
	return near, 0
}

// beyond extrapolates from two sizes to a larger one. Without the smaller of them (0), each further row is
// guessed to cost a seventh of the first.
func (t *table) beyond(less, near, n int) float64 {
	slope := t.mean[near] / float64(near+6)
	if less > 0 {
		slope = max(0, t.mean[near]-t.mean[less]) / float64(near-less)
	}
	return t.mean[near] + slope*float64(n-near)
}

// doubtful reports that a size was measured just once.
func (t *table) doubtful(n int) bool { return n < len(t.seen) && t.seen[n] == 1 }

func (t *table) known(n int) bool { return n < len(t.mean) && t.mean[n] > 0 }

// plain is the time of one token without drafting, 0 if unknown.
func (c *costs) plain() time.Duration {
	return time.Duration(c.chain.at(1) * max(c.load, 1e-9) * float64(time.Second))
}

// verify is the expected time of a pass.
func (c *costs) verify(rows int, tree bool) float64 {
	if tree && c.tree.any() {
		return c.tree.at(rows)
	}
	return c.chain.at(rows)
}

func (t *table) any() bool { return len(t.mean) > 0 }

func (c *costs) learn(p *plan, d time.Duration) {
	t := &c.chain
	if p.tree {
		t = &c.tree
	}
	t.learn(p.rows, c.normal(t, p.rows, d))
	if p.drafts > 0 {
		c.draft.learn(p.drafts, time.Duration(float64(p.draft)/c.load))
	}
	c.sinceOne++
	if p.rows == 1 {
		c.sinceOne, c.refresh = 0, min(max(2*c.refresh, firstRefresh), lastRefresh)
	}
	if p.prompt == 0 {
		c.largest = max(c.largest, p.rows)
	}
}

const firstRefresh, lastRefresh = 8, 512

// stale reports whether plain decoding is to be measured again: soon while one sample is all there is,
// later rarely, and more rarely when drafting is better beyond doubt.
func (c *costs) stale(beyondDoubt bool) bool {
	switch {
	case !c.chain.known(1), c.sinceOne > lastRefresh:
		return true
	case c.chain.seen[1] < 3:
		return c.sinceOne > firstRefresh
	}
	return c.sinceOne > c.refresh && !beyondDoubt
}

// safe is the largest pass worth trying: what a much larger pass than any so far would cost is a
// guess, and on a mixture of experts a bad one.
func (c *costs) safe() int { return 2*c.largest + 1 }

// acceptance is how often guesses were right, by what the drafter thought of them.
type acceptance struct {
	dflash [3][16]odds // by depth (first, next three, later) and claimed probability
	other  [16]odds    // candidates after the best one
	ngram  [33]odds    // by length of the match
	// reach is how often the drafter's best guess was right by position, given that the earlier ones were,
	// for each size of block.
	reach [blockSizes][64]odds
}

// odds is a success rate that forgets.
type odds struct{ hit, seen float64 }

func (o *odds) learn(hit bool) {
	if o.seen > 60 {
		o.hit *= 0.97
		o.seen *= 0.97
	}
	o.seen++
	if hit {
		o.hit++
	}
}

// rate mixes what was seen with a prior of the given weight.
func (o *odds) rate(prior, weight float64) float64 {
	weight /= 1 + o.seen/20
	return (o.hit + prior*weight) / (o.seen + weight)
}

// age makes what was seen easier to change, without changing it: drafting pauses, and when it is tried
// again the text may have become another.
func (a *acceptance) age() {
	fade := func(os []odds) {
		for i := range os {
			if o := &os[i]; o.seen > fadedOdds {
				o.hit, o.seen = o.hit*fadedOdds/o.seen, fadedOdds
			}
		}
	}
	for i := range a.dflash {
		fade(a.dflash[i][:])
	}
	fade(a.other[:])
	for i := range a.reach {
		fade(a.reach[i][:])
	}
}

const fadedOdds = 8

// claim sorts a probability into 16 classes, finer near 0 and 1.
func claim(p float64) int {
	p = math.Min(math.Max(p, 1e-4), 1-1e-4)
	return int(math.Min(15, math.Max(0, 8+math.Log(p/(1-p))*1.2)))
}

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
	return &a.dflash[depthClass(depth)][claim(p)]
}

// guess is the calibrated probability of a drafter's candidate.
func (a *acceptance) guess(depth, rank int, logp float32) float64 {
	p := math.Exp(float64(logp))
	if p != p {
		return 0
	}
	return a.model(depth, rank, p).rate(p, 3)
}

// repeat is the probability that a token after a repetition of the given length repeats too.
func (a *acceptance) repeat(match int) float64 {
	m := min(match, len(a.ngram)-1)
	return a.ngram[m].rate(math.Min(0.9, 0.3+0.06*float64(m)), 3)
}

// survival is the expected number of accepted guesses among the first n of a block of the given size.
func (a *acceptance) survival(size, n int) float64 {
	sum, p := 0.0, 1.0
	for i := range n {
		p *= a.reach[size][min(i, len(a.reach[size])-1)].rate(0.7, 2)
		sum += p
	}
	return sum
}

// blockSizes is the number of block sizes a stream tries: whole, half and quarter. A shorter block is
// cheaper to draft; whether its guesses are worse depends on how the drafter was trained.
const blockSizes = 3

// Drafts of a size before it is judged, and how often a size that is not the best is tried.
const (
	sizeSamples = 5
	sizeTrial   = 4  // every so many drafts until all sizes are known
	sizeRetrial = 96 // and later
)

// known reports whether enough drafts of a size were seen. The whole block is what the drafter was
// trained for, so it needs no proof.
func (a *acceptance) known(size int) bool { return size == 0 || a.reach[size][0].seen >= sizeSamples }

// trial returns a size to try in the n-th draft instead of the best one, or -1. promise is what a size
// would be worth at best, 0 if it cannot win; of the sizes not known yet the most promising comes first.
func (a *acceptance) trial(n int, promise func(size int) float64) int {
	unknown, most := -1, 0.0
	for size := range blockSizes {
		if p := promise(size); p > most && !a.known(size) {
			unknown, most = size, p
		}
	}
	if unknown >= 0 && n%sizeTrial == sizeTrial-1 {
		return unknown
	}
	if size := n / sizeRetrial % blockSizes; unknown < 0 && n%sizeRetrial == sizeRetrial-1 && promise(size) > 0 {
		return size
	}
	return -1
}

// ledger keeps a stream from losing time to a drafter. debt counts, in plain tokens, what drafted
// rounds cost beyond what their tokens would have cost plainly.
type ledger struct {
	debt    float64
	lately  float64 // tokens of a drafted round, averaged over a few
	usually float64 // the same over many
	trial   int     // rounds since the last pause
	pause   int     // plain tokens until the next trial
	backoff int
}

const (
	maxDebt    = 2.0 // that a drafter may run up when it does not look worth while
	maxCredit  = 6.0
	firstPause = 24
	longPause  = 768
	pauseRatio = 50 // plain tokens of a pause per token that the trial before it lost
	trialLen   = 8  // rounds in which a trial must begin to look worth while
)

// reset opens the ledger with some credit: one draft says little.
func (l *ledger) reset() { *l = ledger{debt: -maxDebt, backoff: firstPause} }

// settle books a round with guesses that yielded tokens and took as long as cost plain tokens, and reports
// whether speculation pauses now. drafted says that a drafter was asked, hopeful that such rounds
// should pay, by all that is known. Unless things have changed lately, a loss is bad luck then
// and may be larger, by a round or so.
func (l *ledger) settle(tokens, cost float64, drafted, hopeful bool) bool {
	if drafted {
		if l.usually == 0 {
			l.lately, l.usually = tokens, tokens
		}
		l.lately += 0.2 * (tokens - l.lately)
		l.usually += 0.03 * (tokens - l.usually)
		l.trial++
	}
	l.debt = math.Max(-maxCredit-cost, l.debt+cost-tokens)
	if l.debt < -1 {
		l.backoff = firstPause
	}
	if hopeful && (!drafted || l.lately > l.usually/2) {
		limit := 2*maxDebt + 2*cost
		if l.debt <= limit {
			return false
		}
		l.pause, l.debt = l.backoff, limit/2
	} else {
		l.debt = math.Max(l.debt, -maxDebt)
		if l.trial < trialLen && (l.debt <= maxDebt || tokens > 1) {
			return false
		}
		l.pause = max(l.backoff, int(pauseRatio*math.Min(cost-tokens, 20)))
		l.debt = maxDebt - 0.25 // the next trial has one round to prove itself
	}
	l.backoff = min(2*l.backoff, longPause)
	l.trial = 0
	return true
}

// rich reports that drafting gains so much that it need not be compared closely.
func (l *ledger) rich() bool { return l.debt <= -maxCredit }

// paused counts a plain token and reports whether drafting is off.
func (l *ledger) paused() bool {
	if l.pause == 0 {
		return false
	}
	l.pause--
	return true
}

// causalTrial compares the two rules of attention inside a block over the first drafts.
type causalTrial struct {
	rounds   [2]int
	accepted [2]int
}

const trialRounds = 8

// other reports which rule the next draft should use.
func (c *causalTrial) other() bool {
	if c.rounds[0] < trialRounds || c.rounds[1] < trialRounds {
		return c.rounds[1] < c.rounds[0]
	}
	return c.accepted[1]*c.rounds[0] > c.accepted[0]*c.rounds[1]
}

func (c *causalTrial) learn(other bool, accepted int) {
	i := 0
	if other {
		i = 1
	}
	if c.rounds[i] < trialRounds {
		c.rounds[i]++
		c.accepted[i] += accepted
	}
}
