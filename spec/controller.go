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
	// load is how much slower passes are now than the tables say. What slows the machine down for a
	// while slows all sizes alike, so samples are divided by it: the tables, on which decisions
	// rest, stay comparable although their entries were measured at different times.
	load float64
}

// normal divides a sample by the current load, which it updates.
func (c *costs) normal(t *table, n int, d time.Duration) time.Duration {
	if c.load == 0 {
		c.load = 1
	}
	if want := t.at(n); want > 0 && t.known(n) {
		ratio := min(max(d.Seconds()/want, 0.25), 4)
		c.load += 0.15 * (ratio - c.load)
	}
	return time.Duration(float64(d) / c.load)
}

// table is time by size, learnt from noisy samples.
type table struct {
	mean []float64 // seconds; 0 where nothing was measured
}

// learn adds a sample. What disturbs a measurement (a busy machine, memory touched for the first
// time) only ever adds time, so the estimate follows fast samples quickly and slow ones slowly.
func (t *table) learn(n int, d time.Duration) {
	for len(t.mean) <= n {
		t.mean = append(t.mean, 0)
	}
	x, m := d.Seconds(), t.mean[n]
	switch {
	case m == 0:
		m = x
	case x < m:
		m += 0.4 * (x - m)
	default:
		m += 0.1 * (min(x, 2*m) - m)
	}
	t.mean[n] = m
}

// at estimates the time of size n: measured, between its measured neighbours, or, beyond them,
// a guess that each further row costs a seventh of the first. A larger size that was measured
// faster bounds the estimate: more rows never take less time.
func (t *table) at(n int) float64 {
	lo, hi := 0, 0
	for i := min(n, len(t.mean)-1); i > 0 && lo == 0; i-- {
		if t.mean[i] > 0 {
			lo = i
		}
	}
	for i := n + 1; i < len(t.mean); i++ {
		if m := t.mean[i]; m > 0 && (hi == 0 || m < t.mean[hi]) {
			hi = i
		}
	}
	switch {
	case lo > 0 && hi > 0:
		if t.mean[hi] <= t.mean[lo] {
			return t.mean[hi]
		}
		f := float64(n-lo) / float64(hi-lo)
		return t.mean[lo] + f*(t.mean[hi]-t.mean[lo])
	case lo > 0:
		return t.mean[lo] * (1 + float64(n-lo)/float64(lo+6))
	case hi > 0:
		return t.mean[hi] * float64(n+6) / float64(hi+6)
	}
	return 0
}

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
		c.sinceOne = 0
	}
}

// acceptance is how often guesses were right, by what the drafter thought of them.
type acceptance struct {
	dflash [3][16]odds // by depth (first, next three, later) and claimed probability
	other  [16]odds    // candidates after the best one
	ngram  [33]odds    // by length of the match
	reach  [64]odds    // drafter's best guess by position, given that the earlier ones were right
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
	return (o.hit + prior*weight) / (o.seen + weight)
}

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

// survival is the expected number of accepted guesses of a draft of n, from earlier drafts.
func (a *acceptance) survival(n int) float64 {
	sum, p := 0.0, 1.0
	for i := range n {
		p *= a.reach[min(i, len(a.reach)-1)].rate(0.7, 2)
		sum += p
	}
	return sum
}

// ledger keeps a stream from losing time to a drafter. debt counts, in plain tokens, what drafted
// rounds cost beyond what their tokens would have cost plainly.
type ledger struct {
	debt    float64
	pause   int // plain tokens until the next trial
	backoff int
}

const (
	maxDebt    = 4.0
	maxCredit  = -6.0
	firstPause = 24
	longPause  = 768
)

func (l *ledger) reset() { *l = ledger{backoff: firstPause} }

// settle books a drafted round.
func (l *ledger) settle(loss float64) {
	l.debt = math.Max(maxCredit, l.debt+math.Min(loss, 3))
	if l.debt < -1 {
		l.backoff = firstPause
	}
	if l.debt > maxDebt {
		l.pause = l.backoff
		l.backoff = min(2*l.backoff, longPause)
		// The trial after the pause has one round to prove itself.
		l.debt = maxDebt - 0.25
	}
}

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
