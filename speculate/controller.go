package speculate

import (
	"math"
	"slices"
	"time"
)

// The controller answers three questions each round: whether to ask the drafter, for how long a block,
// and how many of its guesses to verify. The answers follow from measured costs and calibrated
// probabilities: the choice is the one with the most expected tokens per second. Both may be wrong, so
// a ledger of what drafting really yielded bounds what they can cost.

// costs is what passes took on this machine, by rows. Streams share it.
//
// Times are counted in what a plain pass took at the time. What slows the machine down for a while slows all
// passes alike, so the tables, on which decisions rest, stay comparable although their entries were
// measured at different times.
type costs struct {
	chain, tree table   // target passes
	draft       table   // drafter passes, by guesses per stream times streams
	load        float64 // seconds of a plain pass, lately
	plains      window  // what it is the median of
	recent      window  // how much longer than expected passes took
	sinceOne    int     // passes since plain decoding was last measured
	largest     int     // rows of the largest pass so far that was not a prompt
}

// window is the last few samples. Their median is close even if some of them were disturbed.
type window []float64

func (w *window) add(x float64, most int) {
	if len(*w) == most {
		*w = append((*w)[:0], (*w)[1:]...)
	}
	*w = append(*w, x)
}

func (w window) sorted() []float64 {
	s := slices.Clone(w)
	slices.Sort(s)
	return s
}

func (w window) median() float64 {
	s := w.sorted()
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// plainSamples is how many plain passes must agree before anything is compared with them.
const plainSamples = 3

// agree reports whether there are enough samples that differ little.
func (w window) agree() bool {
	if len(w) < plainSamples {
		return false
	}
	s := w.sorted()
	return s[plainSamples-1] < 1.5*s[0]
}

// table is time by size, learnt from noisy samples.
type table struct {
	sizes    []cost
	measured []int // which of them are, ascending: prompts make them few among many
	now      int   // samples so far
}

// cost is what is known of one size.
type cost struct {
	typical float64    // median time
	seen    int        // samples
	first   [5]float64 // of them
	sure    bool       // typical is no accident
	last    int        // when it was measured
}

// learn adds a sample. What disturbs a pass mostly makes it slower, so a size that seems dear, compared with others,
// is not sure before three samples say so. After the first few, the median is followed by small steps.
func (t *table) learn(n int, x float64) {
	for len(t.sizes) <= n {
		t.sizes = append(t.sizes, cost{})
	}
	c := &t.sizes[n]
	if at, ok := slices.BinarySearch(t.measured, n); !ok {
		t.measured = slices.Insert(t.measured, at, n)
	}
	if t.doubted(n) && x < c.typical/dear {
		*c = cost{}
	}
	t.now++
	c.last = t.now
	c.seen++
	if c.seen > len(c.first) {
		c.typical *= min(max(1+(x/c.typical-1)/16, 1-maxStep), 1+maxStep)
		return
	}
	c.first[c.seen-1] = x
	s := c.first
	slices.Sort(s[:c.seen])
	c.typical = s[(c.seen-1)/2]
	c.sure = false
	g := dear * t.guess(n)
	c.sure = n == 1 && x == 1 || c.typical <= g || c.seen >= 3 && s[0] > g || c.seen == len(c.first)
}

const (
	dear    = 1.3
	maxStep = 0.1 / 16
)

// at estimates the time of size n: measured, between its measured neighbours, or beyond them by their
// slope.
func (t *table) at(n int) float64 {
	if !t.sure(n) {
		return t.guess(n)
	}
	c := &t.sizes[n]
	switch {
	case t.doubted(n):
		return min(c.typical, t.guess(n))
	case c.seen >= 8 || n == 1:
		return c.typical
	}
	return (c.typical*float64(c.seen) + 2*t.guess(n)) / float64(c.seen+2)
}

// paid is what a pass of size n that was made has cost, with less hope.
func (t *table) paid(n int) float64 {
	if !t.known(n) || t.sure(n) {
		return t.at(n)
	}
	return min(t.sizes[n].typical, 2*t.guess(n))
}

// guess estimates the time of size n from others.
func (t *table) guess(n int) float64 {
	first, near, above := t.around(n, t.sure)
	if near == 0 && above == 0 {
		first, near, above = t.around(n, t.known)
	}
	switch {
	case near == 0 && above == 0:
		return 1
	case near == 0:
		return t.sizes[above].typical * float64(n+6) / float64(above+6)
	case above > 0:
		f := float64(n-near) / float64(above-near)
		return t.sizes[near].typical + f*max(0, t.sizes[above].typical-t.sizes[near].typical)
	}
	// Without a second size, each further row is guessed to cost a seventh of the first.
	slope := t.sizes[near].typical / float64(near+6)
	if first < near {
		slope = max(0, t.sizes[near].typical-t.sizes[first].typical) / float64(near-first)
	}
	return t.sizes[near].typical + slope*float64(n-near)
}

// around returns the smallest size, the largest under n and the smallest over n that are good, 0 where there
// is none.
func (t *table) around(n int, good func(int) bool) (first, near, above int) {
	for _, i := range t.measured {
		switch {
		case i == n || !good(i):
		case i > n:
			return first, near, i
		case first == 0:
			first, near = i, i
		default:
			near = i
		}
	}
	return first, near, 0
}

func (t *table) any() bool        { return len(t.sizes) > 0 }
func (t *table) known(n int) bool { return n < len(t.sizes) && t.sizes[n].seen > 0 }
func (t *table) sure(n int) bool  { return t.known(n) && t.sizes[n].sure }

// doubted reports that a size was measured a few times long ago.
func (t *table) doubted(n int) bool {
	return t.known(n) && t.now-t.sizes[n].last > 32*t.sizes[n].seen*t.sizes[n].seen
}

// plain is the time of one token without drafting, 0 if unknown.
func (c *costs) plain() time.Duration {
	return time.Duration(c.chain.at(1) * c.load * float64(time.Second))
}

// passes is the table that a kind of pass is measured in.
func (c *costs) passes(tree bool) *table {
	if tree && c.tree.any() {
		return &c.tree
	}
	return &c.chain
}

// verify is the expected time of a pass.
func (c *costs) verify(rows int, tree bool) float64 { return c.passes(tree).at(rows) }

// learn adds what the passes of a step took.
func (c *costs) learn(p *plan, took time.Duration) {
	t, d := &c.chain, took.Seconds()
	if p.tree {
		t = &c.tree
	}
	c.sinceOne++
	if p.prompt == 0 && t.sure(p.rows) {
		// When all passes take longer, or less long, the machine has changed.
		c.recent.add(d/c.load/t.sizes[p.rows].typical, 9)
		if m := c.recent.median(); len(c.recent) == 9 && (m > 1.5 || m < 1/1.5) {
			c.plains, c.recent = nil, nil
		}
	}
	if p.rows == p.base && p.prompt == 0 { // plain
		rows := 1.0
		if p.rows > 1 && c.chain.at(p.rows) > 0 {
			rows = c.chain.at(p.rows)
		}
		c.plains.add(d/rows, 32)
		c.load = c.plains.median()
		if p.rows == 1 {
			c.sinceOne = 0
		}
	}
	if !c.plains.agree() {
		return
	}
	if p.rows == 1 {
		c.chain.learn(1, 1)
	} else {
		t.learn(p.rows, d/c.load)
	}
	if p.drafts > 0 {
		c.draft.learn(p.drafts, p.draft.Seconds()/c.load)
	}
	if p.prompt == 0 && t.sure(p.rows) {
		c.largest = max(c.largest, p.rows)
	}
	// What was measured counts, but not what disturbed this round alone, and as much as it disturbs plain passes, too.
	p.spent = min(d/c.load, clip*t.paid(p.rows))
	if p.drafts > 0 {
		p.spent += min(p.draft.Seconds()/c.load, clip*c.draft.paid(p.drafts))
	}
	p.spent /= c.drag()
}

// clip is how many times as long as usual a pass may take and still be believed.
const clip = 1.5

// drag is how much longer than usual plain passes take on average: the usual time is a median, what is spent is a sum.
func (c *costs) drag() float64 {
	const prior = 4
	sum := float64(prior)
	for _, x := range c.plains {
		sum += min(x/c.load, clip)
	}
	return sum / float64(len(c.plains)+prior)
}

// Passes between measurements of plain decoding.
const firstRefresh, lastRefresh = 4, 512

// stale reports whether plain decoding is to be measured again: the less drafting gains over it, the more
// exactly it must be known, and the less it costs.
func (c *costs) stale(gain float64) bool {
	more := (gain - 1) * (gain - 1)
	interval := float64(firstRefresh)
	if float64(len(c.plains))*more > 0.5 {
		interval = min(max(800*more, firstRefresh), lastRefresh)
	}
	return !c.plains.agree() || float64(c.sinceOne) >= interval
}

// safe is the largest pass worth trying: what a much larger pass than any so far would cost is a
// guess, and on a mixture of experts a bad one.
func (c *costs) safe() int {
	most := 2*max(c.largest, 1) + 1
	for n := 2; n < most; n++ {
		if c.chain.known(n) && !c.chain.sure(n) {
			return n
		}
	}
	return most
}

// acceptance is how often guesses were right, by what the drafter thought of them.
type acceptance struct {
	dflash [3][16]odds // by depth (first, next three, later) and claimed probability
	other  [16]odds    // candidates after the best one
	ngram  [33]odds    // by length of the match
	// reach is how often the drafter's best guess was right by position, given that the earlier ones were:
	// in all blocks, and in those of each size.
	reach  [64]odds
	bySize [blockSizes][64]odds
	drafts int
	// How many more guesses than expected were right over the last few drafts, and the variance of that.
	excess, spread float64
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

// age leaves as much weight to what was seen as so many samples have: it is old, or no longer true. What
// it says is kept until new samples say otherwise.
func (a *acceptance) age(samples float64) {
	for i := range a.dflash {
		fade(a.dflash[i][:], samples)
	}
	fade(a.other[:], samples)
	fade(a.reach[:], samples)
	for i := range a.bySize {
		fade(a.bySize[i][:], samples)
	}
}

// claim sorts a probability into 16 classes, finer near 0 and 1.
func claim(p float64) int {
	p = min(max(p, 1e-4), 1-1e-4)
	return int(min(15, max(0, 8+math.Log(p/(1-p))*1.2)))
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
	return a.ngram[m].rate(min(0.9, 0.3+0.06*float64(m)), 3)
}

// survival is the expected number of accepted guesses among the first n of a block of the given size. Until
// seen otherwise, a guess is as good as the one before it, and those of a shorter block as good as
// those of the whole one, which is what the drafter was trained for.
func (a *acceptance) survival(size, n int) []float64 {
	out := make([]float64, n)
	sum, p, prior := 0.0, 1.0, firstGuess
	for i := range out {
		prior = a.reach[i].rate(prior, 2)
		p *= a.bySize[size][i].rate(prior, 8)
		sum += p
		out[i] = sum
	}
	return out
}

// firstGuess is how good an unknown drafter is taken to be: good enough to be tried.
const firstGuess = 0.8

// reached learns that a guess of a block of some size was reached. What is known of later positions, and of
// the other sizes, fades.
func (a *acceptance) reached(size, at int, hit bool) {
	if at == 0 {
		a.drafts++
	}
	for _, os := range [][]odds{a.reach[:], a.bySize[size][:]} {
		os[at].learn(hit)
		if hit {
			continue
		}
		for i := range os[at+1:] {
			os[at+1+i].hit *= 0.9
			os[at+1+i].seen *= 0.9
		}
	}
	for z := range a.bySize {
		if o := &a.bySize[z][at]; z != size {
			o.hit, o.seen = 0.99*o.hit, 0.99*o.seen
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

// changed reports whether guesses have lately been so much better or worse than expected that it is no accident.
func (a *acceptance) changed() bool {
	if a.excess*a.excess > 9*(a.spread+0.5) {
		a.excess, a.spread = 0, 0
		return true
	}
	a.excess *= 0.87
	a.spread *= 0.87 * 0.87
	return false
}

// fade limits the weight of what was seen.
func fade(os []odds, most float64) {
	for i := range os {
		if o := &os[i]; o.seen > most {
			o.hit, o.seen = o.hit*most/o.seen, most
		}
	}
}

// blockSizes is the number of block sizes a stream tries: whole, half, a third, a quarter. A shorter block is
// cheaper to draft; whether its guesses are worse depends on how the drafter was trained.
const blockSizes = 4

// ledger bounds what drafting can cost a stream. It counts in plain tokens what rounds with guesses yielded
// beyond their cost, and stops them when too much is lost, whatever their promise. Rounds that
// promise nothing have an account of their own, for trials.
type ledger struct {
	credit float64 // what may be lost
	start  float64 // what it was at first
	won    float64 // what rounds with guesses have gained
	trials float64 // what trials may be expected to lose
	since  int     // rounds since the last draft
}

const (
	startCredit = 6.0
	maxBank     = 24.0 // what streams leave to later ones, of which a quarter may be lost
	maxTrials   = 1.0
	lossShare   = 0.01 // of all tokens, that may be lost forever
)

// reset opens the ledger of a stream after others have gained bank tokens. A stream's luck says little, and text on which
// drafting pays begins with a few bad rounds, too; what was gained before allows to wait for longer.
func (l *ledger) reset(bank float64) {
	start := startCredit + bank/4
	*l = ledger{credit: start, start: start, trials: maxTrials}
}

// earn counts a round's tokens, of which a share may be lost later: more if drafting should gain much.
func (l *ledger) earn(tokens, gain float64) {
	l.credit = max(l.credit, min(l.credit+max(lossShare, 0.1*(gain-1))*tokens, l.start))
	l.trials = max(l.trials, min(l.trials+lossShare*tokens, maxTrials))
	l.since++
}

// settle books a round with guesses that yielded tokens and took as long as cost plain tokens. A trial is
// charged what it should lose, not what it did: its luck says little.
func (l *ledger) settle(tokens, cost, risk float64) {
	l.credit = min(l.credit+tokens-cost, 2*l.start) // however much was gained
	l.won += tokens - cost
	l.trials -= risk
	l.since = 0
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
