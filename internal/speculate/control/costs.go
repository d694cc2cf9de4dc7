package control

import (
	"slices"
	"time"
)

// costs is what passes took on this machine, by rows. Streams share it.
//
// Times are counted in what a plain pass took at the time. What slows the machine down for a while slows all
// passes alike, so the tables, on which decisions rest, stay comparable although their entries were
// measured at different times.
type costs struct {
	chain, tree table   // target passes
	draft       []table // drafts by source and tokens asked for
	unit        int     // rows of a plain pass: the fewest streams so far
	load        float64 // seconds of it, lately
	plains      window  // what it is the median of
	plainSeen   time.Time
	fewer       window // seconds of plain passes of fewer streams, until they are enough
	fewerRows   int    // how many
	recent      window // how much longer than expected passes took
	count       int    // of passes so far
	largest     int    // rows of the largest pass so far that was not a prompt
	// What verify said of chains, by rows, and safe, since the last pass; they are asked hundreds of times a round.
	verified []float64
	safest   int
}

// window is the last few samples. Their median is close even if some of them were disturbed. They are looked at far
// more often than they come, for every stream of a round, so they are kept in order.
type window struct {
	samples []float64 // as they came
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

func (w *window) median() float64 {
	s := w.sorted
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

func (w *window) mean() float64 {
	sum := 0.0
	for _, x := range w.samples {
		sum += x
	}
	return sum / float64(len(w.samples))
}

// plainSamples is how many plain passes must agree before anything is compared with them.
const plainSamples = 3

// usual is the median of the samples that were not disturbed: less than twice the smallest. A plain pass that seems
// too long makes all others seem cheap, and a useless drafter free (TestUselessEverySeed, shared).
func (w *window) usual() float64 {
	s := w.sorted
	n := 1
	for n < len(s) && s[n] < 2*s[0] {
		n++
	}
	return (s[n/2] + s[(n-1)/2]) / 2
}

// agree reports whether there are enough samples that differ little.
func (w *window) agree() bool {
	return w.len() >= plainSamples && w.sorted[plainSamples-1] < 1.5*w.sorted[0]
}

// table is time by size, learnt from noisy samples.
type table struct {
	sizes    []cost
	measured []int // which of them are, ascending: prompts make them few among many
}

// cost is what is known of one size.
type cost struct {
	typical float64    // median time
	seen    int        // samples
	first   [5]float64 // of them
	sure    bool       // typical is no accident
	away    int        // samples in a row that were far from typical; below it if negative
	plain   int        // passes, of all sizes, until it was last measured without guesses
}

// learn adds a sample. What disturbs a pass mostly makes it slower, so a size that seems dear, compared with others,
// is not sure before three samples say so. After the first few, the median is followed by small steps.
func (t *table) learn(n int, x float64) {
	x = max(x, 1e-6) // a clock may have seen no time at all
	for len(t.sizes) <= n {
		t.sizes = append(t.sizes, cost{})
	}
	c := &t.sizes[n]
	if at, ok := slices.BinarySearch(t.measured, n); !ok {
		t.measured = slices.Insert(t.measured, at, n)
	}
	switch {
	case x > far*c.typical:
		c.away = max(c.away, 0) + 1
	case x < c.typical/far:
		c.away = min(c.away, 0) - 1
	default:
		c.away = 0
	}
	if c.seen >= 3 && (c.away == 3 || c.away == -3) { // begin anew (TestColdPasses)
		c.seen, c.away = 0, 0
	}
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
	c.sure = x == 1 || c.typical <= g || c.seen >= 3 && s[0] > g || c.seen == len(c.first)
}

const (
	// dear is how many times as long as expected a size has to take to be doubted at first: one disturbed pass would
	// close all larger sizes for good (TestOutlier).
	dear = 1.3
	// far is how many times as long as usual, or as short, three passes in a row have to take to say that a size is not
	// what it was: a device that records passes takes longer for the first ones of a size.
	far     = 1.5
	maxStep = 0.1 / 16 // a disturbed pass counts no more than one that took a tenth longer
)

// at estimates the time of size n: measured, between its measured neighbours, or beyond them by their
// slope.
func (t *table) at(n int) float64 {
	if t.sure(n) {
		return t.sizes[n].typical
	}
	return t.guess(n)
}

// guess estimates the time of size n from others.
func (t *table) guess(n int) float64 {
	near, above := t.around(n, t.sure)
	half, _ := t.around(near/2+1, t.sure)
	if near == 0 && above == 0 {
		near, above = t.around(n, t.known)
		half, _ = t.around(near/2+1, t.known)
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
	// Beyond, each row costs what it did lately, since half as many (TestSharedPasses, experts). Without a second
	// size, it is guessed to cost a seventh of the first.
	slope := t.sizes[near].typical / float64(near+6)
	if half > 0 {
		slope = max(0, t.sizes[near].typical-t.sizes[half].typical) / float64(near-half)
	}
	return t.sizes[near].typical + slope*float64(n-near)
}

// around returns the largest size under n and the smallest over n that are good, 0 where there is none.
func (t *table) around(n int, good func(int) bool) (near, above int) {
	at, known := slices.BinarySearch(t.measured, n)
	for _, i := range slices.Backward(t.measured[:at]) {
		if good(i) {
			near = i
			break
		}
	}
	if known {
		at++
	}
	for _, i := range t.measured[at:] {
		if good(i) {
			return near, i
		}
	}
	return near, 0
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

// plainAge is how old plain passes may be to be compared with: other programs come and go.
const plainAge = time.Minute

// plain is the time of one token without drafting, 0 if it is unknown or was another time's.
func (c *costs) plain() time.Duration {
	if !c.plains.agree() || time.Since(c.plainSeen) > plainAge {
		return 0
	}
	return time.Duration(c.chain.at(1) * c.load * float64(time.Second))
}

// passes is the table that a kind of pass is measured in.
func (c *costs) passes(tree bool) *table {
	if tree && c.tree.any() {
		return &c.tree
	}
	return &c.chain
}

// verify is the expected time of a pass. More rows never cost less, whatever a disturbed measurement says
// (TestUselessEverySeed, shared).
func (c *costs) verify(rows int, tree bool) float64 {
	p := c.passes(tree)
	if p == &c.chain && rows < len(c.verified) && c.verified[rows] > 0 {
		return c.verified[rows]
	}
	t := p.at(rows)
	if rows >= c.unit {
		t = max(t, 1)
	}
	if p == &c.chain {
		for len(c.verified) <= rows {
			c.verified = append(c.verified, 0)
		}
		c.verified[rows] = t
	}
	return t
}

// learn adds what the passes of a round took.
func (c *costs) learn(p *Round, took time.Duration) {
	t, d := &c.chain, took.Seconds()
	if p.tree {
		t = &c.tree
	}
	c.count++
	c.verified, c.safest = c.verified[:0], 0
	if p.prompt == 0 && t.sure(p.rows) {
		// When all passes take longer, or less long, the machine has changed (TestSlowerMachine).
		c.recent.add(d/c.load/t.sizes[p.rows].typical, 9)
		if m := c.recent.median(); c.recent.len() == 9 && (m > 1.5 || m < 1/1.5) {
			c.plains, c.recent = window{}, window{}
		}
	}
	if p.rows == p.base && p.prompt == 0 { // plain
		if c.unit == 0 {
			c.unit = p.rows
		}
		if p.rows < c.unit && !c.rebase(p.rows, d) {
			return
		}
		rows := 1.0
		if p.rows != c.unit {
			rows = c.chain.at(p.rows)
		}
		// What a pass of another size says of the unit is a guess before that size is known, and nothing when the size is not
		// what it was (TestColdPasses); better than nothing at all.
		x := d / rows / c.load
		if p.rows == c.unit || c.chain.sure(p.rows) && x < far && x > 1/far || !c.plains.agree() {
			c.plains.add(d/rows, 32)
			c.plainSeen = time.Now()
			c.load = c.plains.usual()
		}
	}
	if !c.plains.agree() {
		return
	}
	if p.rows == c.unit {
		c.chain.learn(c.unit, 1)
	} else {
		t.learn(p.rows, d/c.load)
	}
	if p.rows == p.base && p.prompt == 0 {
		t.sizes[p.rows].plain = c.count
	}
	for _, a := range p.asks {
		c.draft[a.Source].learn(a.tokens(), a.took.Seconds()/c.load)
	}
	if p.prompt == 0 && t.sure(p.rows) {
		c.largest = max(c.largest, p.rows)
	}
	// What was measured counts, but not what disturbed this round alone.
	usual := t.at(p.rows)
	p.spent, p.real = min(d/c.load, clip*usual), d/c.load
	for _, a := range p.asks {
		u, took := c.draft[a.Source].at(a.tokens()), a.took.Seconds()/c.load
		p.spent += min(took, clip*u)
		usual, p.real = usual+u, p.real+took
	}
	p.real = min(p.real, tail*usual) * c.load / c.plains.mean()
}

// rebase counts in the time of a plain pass of fewer streams as soon as that is known: what is compared with it has to
// rest on more than the first samples of a size (TestStreamsLeave).
func (c *costs) rebase(rows int, d float64) bool {
	if rows != c.fewerRows {
		c.fewer, c.fewerRows = window{}, rows
	}
	if c.fewer.add(d, 32); !c.fewer.agree() {
		return false
	}
	if c.load > 0 {
		f := c.load / c.fewer.usual()
		c.chain.scale(f)
		c.tree.scale(f)
		for i := range c.draft {
			c.draft[i].scale(f)
		}
	}
	c.unit, c.plains, c.load = rows, c.fewer, c.fewer.usual()
	c.fewer, c.recent = window{}, window{}
	return true
}

// clip is how many times as long as usual a pass may take and still be believed (TestHardCases, shared).
const clip = 1.5

// tail is how many times as long as usual a round may take and still be held against promises: some rounds do, now and
// then, but the first ones of a size do so only once (TestColdPasses).
const tail = 3

// Passes between measurements of plain decoding.
const firstRefresh, lastRefresh = 4, 512

// stale reports whether plain decoding of so many streams is to be measured again: the less drafting gains over it, the
// more exactly it must be known, and the less it costs.
func (c *costs) stale(gain float64, streams int) bool {
	if !c.plains.agree() || !c.chain.known(streams) {
		return true
	}
	samples, last := c.chain.sizes[streams].seen, c.chain.sizes[streams].plain
	if streams == c.unit {
		samples = c.plains.len()
	}
	more := (gain - 1) * (gain - 1)
	interval := float64(firstRefresh)
	if float64(samples)*more > 0.5 {
		interval = min(max(800*more, firstRefresh), lastRefresh)
	}
	return float64(c.count-last) >= interval
}

// safe is the largest pass worth trying: what a much larger pass than any so far would cost is a
// guess, and on a mixture of experts a bad one.
func (c *costs) safe() int {
	if c.safest > 0 {
		return c.safest
	}
	c.safest = 2*max(c.largest, 1) + 1
	for n := 2; n < c.safest; n++ {
		if c.chain.known(n) && !c.chain.sure(n) {
			c.safest = n
		}
	}
	return c.safest
}
