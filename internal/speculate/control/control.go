// Package control decides how to speculate. It knows costs and probabilities, but no models, devices or caches: what it
// decides, others do, and what came of it they report.
//
// Each round it answers three questions: which source to ask for a draft, for how long a one, and how many of the
// guesses to verify. The answers follow from measured costs (costs.go) and calibrated probabilities (acceptance.go):
// the choice is the one with the most expected tokens per second (round.go, offer.go). Both may be wrong, so a ledger
// (ledger.go) of what drafting really yielded bounds what they can cost.
//
//	r := c.Begin(streams, prompt)      // what the pass holds anyway
//	for a := r.Next(); a != nil; a = r.Next() {
//		r.Drafted(a, proposals, took)  // each draft it asks for
//	}
//	r.Choose(most)                     // then the streams say what to verify
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
)

// Controller is what the streams of a runner share: what passes and drafts cost, and what earlier streams learnt.
type Controller struct {
	costs   costs
	longest []int        // per source: guesses of a whole block
	prior   []acceptance // per source, of earlier streams: where new ones start
	ledger  ledger
	came    [12]promises // by the number of streams, to within a factor of two
	most    int          // streams of a round so far, to within a factor of two

	hopeless int // streams for which no source promised anything lately; 0 for none
}

// New returns a controller for sources of which each guesses up to so many tokens at once.
func New(longest ...int) *Controller {
	n := len(longest)
	return &Controller{longest: longest, prior: make([]acceptance, n), costs: costs{draft: make([]table, n)}}
}

// promises is what is known of those made to so many streams.
func (c *Controller) promises(streams int) *promises {
	return &c.came[min(bits.Len(uint(streams)), len(c.came)-1)]
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
	Limit  int    // most guesses that can be used
	Usable []bool // per source: it may be asked
	Late   []bool // per source: but not yet, it has only begun to follow the stream

	c      *Controller
	accept []acceptance // per source
	pace   pace

	promise float64 // how many times as fast as plain decoding drafting should be

	turn
}

// turn is a stream's part of the current round.
type turn struct {
	on      bool // it may draft
	drafts  []made
	best    int // the draft whose guesses are verified, -1 for none
	chain   offer
	tree    offer
	take    *offer  // of the two
	count   int     // guesses of it
	paid    bool    // for a draft
	explore bool    // verify as much as possible, to see what that costs
	emitted int     // tokens
	risk    float64 // plain tokens that the round should lose, when it is a trial
}

// NewStream returns a stream that starts with what earlier ones learnt.
func (c *Controller) NewStream(o Options) *Stream {
	n := len(c.longest)
	s := &Stream{Options: o, Usable: make([]bool, n), Late: make([]bool, n), c: c, turn: turn{best: -1}}
	s.accept = append(s.accept, c.prior...)
	return s
}

// End keeps what a stream learnt for later ones.
func (c *Controller) End(s *Stream) { copy(c.prior, s.accept) }

// Guesses is what to verify after the last token: tokens and, for a tree, the parent of each, -1 for the last token.
func (s *Stream) Guesses() (tokens, parents []int32) {
	if s.take == nil {
		return nil, nil
	}
	return s.take.first(s.count)
}

// Source is the source of the guesses to verify, -1 for none.
func (s *Stream) Source() int {
	if s.best < 0 {
		return -1
	}
	return s.drafts[s.best].source
}

// pace is how fast a stream has been lately: tokens and time, in plain passes, of a round.
type pace struct{ tokens, time float64 }

func (p *pace) learn(tokens, time float64) {
	if time > 0 {
		p.tokens += 0.05 * (tokens - p.tokens)
		p.time += 0.05 * (time - p.time)
	}
}

// rate is tokens per plain pass, 0 if unknown.
func (p *pace) rate() float64 {
	if p.time == 0 {
		return 0
	}
	return p.tokens / p.time
}

// Paused reports whether no source that costs something will be asked on behalf of so many streams for a while, so that
// there is no need for one to follow them: it was worked out for as many or fewer that nothing pays, and there is
// nothing left for trials.
func (c *Controller) Paused(streams int) bool {
	return c.hopeless > 1 && streams >= c.hopeless && c.ledger.trials <= 0
}

// Plain is the time of one token without drafting, 0 if it was not measured lately.
func (c *Controller) Plain() time.Duration { return c.costs.plain() }

// Settled reports whether plain decoding has been measured: until then nothing else means anything.
func (c *Controller) Settled() bool { return c.costs.plains.agree() }

// MeasuredPass and MeasuredDraft learn from passes outside of rounds.
func (c *Controller) MeasuredPass(rows int, took time.Duration) {
	c.costs.learn(&Round{c: c, rows: rows, base: 1}, took)
}

// MeasuredDraft learns what a draft of n tokens took.
func (c *Controller) MeasuredDraft(source, n int, took time.Duration) {
	c.costs.draft[source].learn(n, took.Seconds()/c.costs.load)
}

// BlockLen is the number of guesses in a block of the given size.
func (c *Controller) BlockLen(source, size int) int { return max(1, (c.longest[source]+1)/(size+1)-1) }

// Describe states what was measured: the cost of passes by rows and of drafts by tokens.
func (c *Controller) Describe(sources []string) string {
	var b strings.Builder
	row := func(name string, t *table) {
		fmt.Fprintf(&b, "%s ms:", name)
		for n, x := range t.sizes {
			if x.seen > 0 {
				fmt.Fprintf(&b, " %d:%.2f", n, 1e3*x.typical*c.costs.load)
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
