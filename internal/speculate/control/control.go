// Package control decides how to speculate. It knows costs and probabilities, but no models, devices or caches: the
// runner carries out its decisions and reports the results.
//
// Each round it answers three questions: which source drafts, how long the draft is, and how many of its guesses are
// verified. The answers follow from measured costs (costs.go) and calibrated probabilities (acceptance.go): it chooses
// the most expected tokens per second (round.go, offer.go). Both may be wrong, so a ledger (ledger.go) of what drafting
// really yielded bounds what it can cost. All numbers are in tuning.go.
//
//	r := c.Begin(streams, prompt)
//	for a := r.Next(); a != nil; a = r.Next() {
//		r.Drafted(a, proposals, took)  // for each draft that it wants
//	}
//	r.Choose(maxRows)                  // now Stream.Guesses is what to verify
//	r.Passed(took)
//	s.Verified(tokens)                 // for each stream
//	r.Settle()
//
// A Controller and its streams belong to one goroutine.
package control

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"strobe/internal/draft"
)

// Controller is what the streams of a runner share: what passes and drafts cost, and what earlier streams learnt.
type Controller struct {
	costs      costs
	blockLen   []int                   // per source: guesses of a whole block
	prior      []acceptance            // per source: what earlier streams learnt, where new ones start
	tails      acceptance              // the same of continuations
	paid, free ledger                  // of rounds with drafts that cost something, and of rounds whose drafts were free
	deliveries [streamClasses]delivery // by the number of streams, to within a factor of two
	maxStreams int                     // most streams of a round so far, to within a factor of two

	unprofitable int // streams for which no source was expected to pay lately; 0 if one was
}

// New returns a controller for sources that guess up to blockLen tokens at once.
func New(blockLen ...int) *Controller {
	n := len(blockLen)
	return &Controller{blockLen: blockLen, prior: make([]acceptance, n), costs: costs{draft: make([]table, n)}}
}

// delivery is how drafts for so many streams kept their promises.
func (c *Controller) delivery(streams int) *delivery {
	return &c.deliveries[min(bits.Len(uint(streams)), streamClasses-1)]
}

// TreeAuto and TreeOff are special values of Options.Tree.
const (
	TreeAuto = 0
	TreeOff  = -1
)

// Options says what the controller may decide for a stream. The zero value lets it decide everything.
type Options struct {
	Tree  int  // nodes of a tree: TreeAuto, TreeOff, or a fixed number
	Fixed bool // every round drafts as much as possible
}

// Stream is one generation as the controller sees it.
type Stream struct {
	Options
	// The caller sets these before each round.
	Limit   int    // most guesses that can be used
	Usable  []bool // per source: it may draft
	Warming []bool // per source: it may draft soon, but has not seen enough of the text yet
	// Continue, if set, guesses what follows each beginning of a chain of guesses (draft.Continuer); Tail is the source
	// that does it.
	Continue func(guesses []int32) []draft.Proposal
	Tail     int

	c      *Controller
	accept []acceptance // per source
	tails  acceptance   // of continuations of other sources' guesses, which say more or less than drafts of their own
	pace   pace

	promise float64 // expected speed with drafts, relative to plain decoding

	turn
}

// turn is a stream's part of the current round.
type turn struct {
	drafting bool // it may draft
	drafts   []streamDraft
	best     int // the draft whose guesses are verified, -1 for none
	chain    offer
	tree     offer
	tail     tail    // the best continuation of the chain by another source, whether it is verified or not
	chosen   *offer  // the chain or the tree
	count    int     // guesses of it to verify
	paid     bool    // a draft for it cost something
	explore  bool    // verify as many guesses as possible, to measure a larger pass
	emitted  int     // tokens that the round yielded
	risk     float64 // plain tokens that a trial is expected to lose
}

// NewStream returns a stream that starts with what earlier ones learnt.
func (c *Controller) NewStream(o Options) *Stream {
	n := len(c.blockLen)
	s := &Stream{Options: o, Usable: make([]bool, n), Warming: make([]bool, n), c: c, turn: turn{best: -1}}
	s.accept, s.tails = append(s.accept, c.prior...), c.tails
	return s
}

// End hands what a stream learnt to later ones.
func (c *Controller) End(s *Stream) {
	copy(c.prior, s.accept)
	c.tails = s.tails
}

// Guesses is what to verify after the last token: tokens and, for a tree, the parent of each, -1 for the last token.
func (s *Stream) Guesses() (tokens, parents []int32) {
	if s.chosen == nil {
		return nil, nil
	}
	return s.chosen.first(s.count)
}

// TailFrom is the first of the guesses to verify that is of the source Tail and not of Source; 0 if there is none.
func (s *Stream) TailFrom() int {
	if s.chosen == nil || s.chosen.tail >= s.count {
		return 0
	}
	return s.chosen.tail
}

// Source is the source of the guesses to verify, -1 for none.
func (s *Stream) Source() int {
	if s.best < 0 {
		return -1
	}
	return s.drafts[s.best].source
}

// pace is the recent speed of a stream: tokens of a round, and its time in plain passes.
type pace struct{ tokens, time float64 }

func (p *pace) learn(tokens, time float64) {
	if time > 0 {
		p.tokens += tune.paceStep * (tokens - p.tokens)
		p.time += tune.paceStep * (time - p.time)
	}
}

// rate is tokens per plain pass, 0 if unknown.
func (p *pace) rate() float64 {
	if p.time == 0 {
		return 0
	}
	return p.tokens / p.time
}

// Paused reports whether no source that costs something will draft for so many streams for a while, so that their
// features need not be captured: drafting did not pay for as many or fewer, and the account for trials is empty.
func (c *Controller) Paused(streams int) bool {
	return c.unprofitable > 1 && streams >= c.unprofitable && c.paid.trials <= 0
}

// Plain is the time of one token without drafting, 0 if it was not measured lately.
func (c *Controller) Plain() time.Duration { return c.costs.plain() }

// Settled reports whether plain decoding has been measured. Other measurements mean nothing before that.
func (c *Controller) Settled() bool { return c.costs.plains.agree() }

// MeasuredPass learns from a target pass outside of rounds.
func (c *Controller) MeasuredPass(rows int, took time.Duration) {
	c.costs.learn(&Round{c: c, rows: rows, base: 1}, took)
}

// MeasuredDraft learns from a draft of n tokens outside of rounds.
func (c *Controller) MeasuredDraft(source, n int, took time.Duration) {
	c.costs.draft[source].learn(n, took.Seconds()/c.costs.unit)
}

// BlockLen is the number of guesses in a block of the given size.
func (c *Controller) BlockLen(source, size int) int { return max(1, (c.blockLen[source]+1)/(size+1)-1) }

// Describe states what was measured: the cost of passes by rows and of drafts by tokens.
func (c *Controller) Describe(sources []string) string {
	var b strings.Builder
	row := func(name string, t *table) {
		fmt.Fprintf(&b, "%s ms:", name)
		for n, x := range t.sizes {
			if x.seen > 0 {
				fmt.Fprintf(&b, " %d:%.2f", n, 1e3*x.typical*c.costs.unit)
			}
		}
		b.WriteString("\n")
	}
	row("passes by rows,", &c.costs.chain)
	row("tree passes by rows,", &c.costs.tree)
	for i, name := range sources {
		row(name+" drafts by tokens,", &c.costs.draft[i])
	}
	return strings.TrimRight(b.String(), "\n")
}
