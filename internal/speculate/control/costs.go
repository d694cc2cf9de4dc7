package control

import (
	"slices"
	"time"
)

// costs is what target passes and drafts take on this machine. Streams share it.
//
// The unit of time is a plain pass as it was measured lately. What slows the machine down for a while slows all passes
// alike, so table entries stay comparable although they were measured at different times.
type costs struct {
	chain, tree table   // target passes by rows
	draft       []table // drafts, per source, by tokens asked for

	unitRows  int     // rows of a plain pass: the fewest streams so far
	unit      float64 // seconds of a plain pass
	plains    window  // recent plain passes, in seconds; unit is their undisturbed median
	plainSeen time.Time

	fewer     window // plain passes of fewer streams, in seconds, until they agree and become the unit
	fewerRows int    // rows of them
	drift     window // recent passes: measured time relative to the expected one

	count   int // passes so far
	largest int // rows of the largest pass so far without rows of prompts

	// Results of verify, by rows, and of safe since the last pass. Each is used hundreds of times a round.
	verified []float64
	safest   int
}

// learn adds what the target pass and the drafts of a round took.
func (c *costs) learn(r *Round, took time.Duration) {
	c.count++
	c.verified, c.safest = c.verified[:0], 0
	passes := &c.chain
	if r.tree {
		passes = &c.tree
	}
	seconds, plain := took.Seconds(), r.prompt == 0 && r.rows == r.base
	if r.prompt == 0 {
		c.watchDrift(passes, r.rows, seconds)
	}
	if plain && !c.learnPlain(r.rows, seconds) {
		return
	}
	if !c.plains.agree() {
		return // there is no unit yet
	}
	if r.rows == c.unitRows {
		c.chain.learn(r.rows, 1)
	} else {
		passes.learn(r.rows, seconds/c.unit)
	}
	if plain {
		passes.sizes[r.rows].plain = c.count
	}
	for _, a := range r.asks {
		c.draft[a.Source].learn(a.tokens(), a.took.Seconds()/c.unit)
	}
	if r.prompt == 0 && passes.sure(r.rows) {
		c.largest = max(c.largest, r.rows)
	}
	c.charge(r, passes, seconds)
}

// watchDrift forgets plain passes when all passes take longer than expected, or less long: the machine has changed
// (TestSlowerMachine).
func (c *costs) watchDrift(passes *table, rows int, seconds float64) {
	if !passes.sure(rows) {
		return
	}
	c.drift.add(seconds/c.unit/passes.sizes[rows].typical, tune.driftWindow)
	if c.drift.len() == tune.driftWindow && !same(c.drift.median(), 1) {
		c.plains, c.drift = window{}, window{}
	}
}

// learnPlain updates the unit with a pass without guesses and prompts. It reports false if the pass only prepared a
// change of the unit.
func (c *costs) learnPlain(rows int, seconds float64) bool {
	if c.unitRows == 0 {
		c.unitRows = rows
	}
	if rows < c.unitRows && !c.rebase(rows, seconds) {
		return false
	}
	relative := 1.0 // to a pass of unitRows
	if rows != c.unitRows {
		relative = c.chain.at(rows)
	}
	// A pass of another size says nothing of the unit before the cost of that size is known, nor when it has changed
	// (TestColdPasses). It is used all the same while there is no unit.
	if rows == c.unitRows || c.chain.sure(rows) && same(seconds/relative/c.unit, 1) || !c.plains.agree() {
		c.plains.add(seconds/relative, tune.plainWindow)
		c.plainSeen = time.Now()
		c.unit = c.plains.undisturbed()
	}
	return true
}

// rebase makes the plain pass of fewer streams the unit as soon as enough of them agree. It reports whether it is
// (TestStreamsLeave).
func (c *costs) rebase(rows int, seconds float64) bool {
	if rows != c.fewerRows {
		c.fewer, c.fewerRows = window{}, rows
	}
	if c.fewer.add(seconds, tune.plainWindow); !c.fewer.agree() {
		return false
	}
	if c.unit > 0 {
		f := c.unit / c.fewer.undisturbed()
		c.chain.scale(f)
		c.tree.scale(f)
		for i := range c.draft {
			c.draft[i].scale(f)
		}
	}
	c.unitRows, c.plains, c.unit = rows, c.fewer, c.fewer.undisturbed()
	c.fewer, c.drift = window{}, window{}
	return true
}

// charge sets what a round has cost: spent without the disturbances of this round alone (TestHardCases, shared), and
// actual with them, up to a limit.
func (c *costs) charge(r *Round, passes *table, seconds float64) {
	expected := passes.at(r.rows)
	r.spent, r.actual = min(seconds/c.unit, tune.sameFactor*expected), seconds/c.unit
	for _, a := range r.asks {
		usual, took := c.draft[a.Source].at(a.tokens()), a.took.Seconds()/c.unit
		r.spent += min(took, tune.sameFactor*usual)
		r.actual += took
		expected += usual
	}
	r.actual = min(r.actual, tune.maxOverrun*expected) * c.unit / c.plains.mean()
}

// plain is the time of one token without drafting, 0 if it is unknown or was measured too long ago.
func (c *costs) plain() time.Duration {
	if !c.plains.agree() || time.Since(c.plainSeen) > tune.plainAge {
		return 0
	}
	return time.Duration(c.chain.at(1) * c.unit * float64(time.Second))
}

// verify is the expected time of a target pass. More rows never cost less, whatever a disturbed measurement says
// (TestUselessEverySeed, shared).
func (c *costs) verify(rows int, tree bool) float64 {
	passes := &c.chain
	if tree && c.tree.any() {
		passes = &c.tree
	}
	if passes == &c.chain && rows < len(c.verified) && c.verified[rows] > 0 {
		return c.verified[rows]
	}
	t := passes.at(rows)
	if rows >= c.unitRows {
		t = max(t, 1)
	}
	if passes == &c.chain {
		for len(c.verified) <= rows {
			c.verified = append(c.verified, 0)
		}
		c.verified[rows] = t
	}
	return t
}

// stale reports whether plain decoding of so many streams is to be measured again. The smaller the gain of drafting,
// the more exactly plain decoding must be known, and the less a measurement costs.
func (c *costs) stale(gain float64, streams int) bool {
	if !c.plains.agree() || !c.chain.known(streams) {
		return true
	}
	samples, last := c.chain.sizes[streams].seen, c.chain.sizes[streams].plain
	if streams == c.unitRows {
		samples = c.plains.len()
	}
	squared := (gain - 1) * (gain - 1)
	interval := tune.minRefresh
	if float64(samples)*squared > tune.refreshAfter {
		interval = min(max(tune.refreshPerGain*squared, tune.minRefresh), tune.maxRefresh)
	}
	return float64(c.count-last) >= interval
}

// safe is the largest pass worth trying. The cost of a much larger pass than any so far is a guess, and a bad one for
// a mixture of experts.
func (c *costs) safe() int {
	if c.safest > 0 {
		return c.safest
	}
	c.safest = tune.growth*max(c.largest, 1) + 1
	for n := 2; n < c.safest; n++ {
		if c.chain.known(n) && !c.chain.sure(n) {
			c.safest = n
		}
	}
	return c.safest
}

// same reports whether two times differ by no more than noise.
func same(a, b float64) bool { return a < tune.sameFactor*b && a > b/tune.sameFactor }

// table is time by size, learnt from noisy samples.
type table struct {
	sizes    []cost
	measured []int // sizes with samples, ascending; prompts leave wide gaps
}

// cost is what is known of one size.
type cost struct {
	typical float64               // median time
	seen    int                   // samples
	first   [firstSamples]float64 // the first samples
	sure    bool                  // typical is no accident
	away    int                   // latest samples in a row that were far above typical; below if negative
	plain   int                   // costs.count when it was last measured without guesses
}

// learn adds a sample. Disturbed passes are mostly slower, so a size that seems expensive compared with others is not
// sure before several samples agree. After the first samples the median is followed by small steps.
func (t *table) learn(n int, x float64) {
	x = max(x, 1e-6) // a coarse clock may have measured 0
	for len(t.sizes) <= n {
		t.sizes = append(t.sizes, cost{})
	}
	c := &t.sizes[n]
	if at, ok := slices.BinarySearch(t.measured, n); !ok {
		t.measured = slices.Insert(t.measured, at, n)
	}
	c.restart(x)
	c.seen++
	if c.seen > firstSamples {
		most := tune.medianReach * tune.medianStep
		c.typical *= min(max(1+(x/c.typical-1)*tune.medianStep, 1-most), 1+most)
		return
	}
	c.first[c.seen-1] = x
	s := c.first
	slices.Sort(s[:c.seen])
	c.typical = s[(c.seen-1)/2]
	c.sure = false // so that guess does not use it
	limit := tune.doubtFactor * t.guess(n)
	c.sure = x == 1 || c.typical <= limit || c.seen >= tune.enough && s[0] > limit || c.seen == firstSamples
}

// restart forgets a size when several samples in a row are far from typical, on the same side: a device that records
// passes takes longer for the first ones of a size (TestColdPasses).
func (c *cost) restart(x float64) {
	switch {
	case x > tune.sameFactor*c.typical:
		c.away = max(c.away, 0) + 1
	case x < c.typical/tune.sameFactor:
		c.away = min(c.away, 0) - 1
	default:
		c.away = 0
	}
	if c.seen >= tune.enough && (c.away == tune.enough || c.away == -tune.enough) {
		c.seen, c.away = 0, 0
	}
}

// at estimates the time of size n: measured if that is sure, else guessed.
func (t *table) at(n int) float64 {
	if t.sure(n) {
		return t.sizes[n].typical
	}
	return t.guess(n)
}

// guess estimates the time of size n from other sizes: between its neighbours, or beyond the largest by its slope.
func (t *table) guess(n int) float64 {
	below, above := t.around(n, t.sure)
	half, _ := t.around(below/2+1, t.sure)
	if below == 0 && above == 0 {
		below, above = t.around(n, t.known)
		half, _ = t.around(below/2+1, t.known)
	}
	switch {
	case below == 0 && above == 0:
		return 1
	case below == 0:
		return t.sizes[above].typical * float64(n+tune.rowsOfPlain) / float64(above+tune.rowsOfPlain)
	case above > 0:
		f := float64(n-below) / float64(above-below)
		return t.sizes[below].typical + f*max(0, t.sizes[above].typical-t.sizes[below].typical)
	}
	// Beyond the largest, a row costs what it did on average since half that size (TestSharedPasses, experts).
	slope := t.sizes[below].typical / float64(below+tune.rowsOfPlain)
	if half > 0 {
		slope = max(0, t.sizes[below].typical-t.sizes[half].typical) / float64(below-half)
	}
	return t.sizes[below].typical + slope*float64(n-below)
}

// around returns the nearest good sizes below and above n, 0 where there is none.
func (t *table) around(n int, good func(int) bool) (below, above int) {
	at, known := slices.BinarySearch(t.measured, n)
	for _, i := range slices.Backward(t.measured[:at]) {
		if good(i) {
			below = i
			break
		}
	}
	if known {
		at++
	}
	for _, i := range t.measured[at:] {
		if good(i) {
			return below, i
		}
	}
	return below, 0
}

// scale changes the unit of all times.
func (t *table) scale(f float64) {
	for i := range t.sizes {
		c := &t.sizes[i]
		c.typical *= f
		for k := range c.first {
			c.first[k] *= f
		}
	}
}

func (t *table) any() bool        { return len(t.sizes) > 0 }
func (t *table) known(n int) bool { return n < len(t.sizes) && t.sizes[n].seen > 0 }
func (t *table) sure(n int) bool  { return t.known(n) && t.sizes[n].sure }

// window is the last few samples. It is read far more often than added to, so a sorted copy is kept.
type window struct {
	samples []float64 // oldest first
	sorted  []float64
}

func (w *window) add(x float64, most int) {
	if len(w.samples) == most {
		at, _ := slices.BinarySearch(w.sorted, w.samples[0])
		w.sorted = slices.Delete(w.sorted, at, at+1)
		w.samples = slices.Delete(w.samples, 0, 1)
	}
	w.samples = append(w.samples, x)
	at, _ := slices.BinarySearch(w.sorted, x)
	w.sorted = slices.Insert(w.sorted, at, x)
}

func (w *window) len() int { return len(w.samples) }

func (w *window) median() float64 { return median(w.sorted) }

// undisturbed is the median of the samples that are not much longer than the shortest.
func (w *window) undisturbed() float64 {
	n := 1
	for n < len(w.sorted) && w.sorted[n] < tune.plainFactor*w.sorted[0] {
		n++
	}
	return median(w.sorted[:n])
}

func median(sorted []float64) float64 {
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

func (w *window) mean() float64 {
	sum := 0.0
	for _, x := range w.samples {
		sum += x
	}
	return sum / float64(len(w.samples))
}

// agree reports whether there are enough samples that differ little.
func (w *window) agree() bool {
	return w.len() >= tune.enough && w.sorted[tune.enough-1] < tune.sameFactor*w.sorted[0]
}
