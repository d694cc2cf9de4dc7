package grammar

import (
	"context"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"strobe/internal/sample"
)

// Grammar is a compiled schema. It may be shared by goroutines.
type Grammar struct {
	p  *program
	id uint64 // of its bases; 0 is for those of the built-in rules
}

var grammars atomic.Uint64

func newGrammar(p *program) *Grammar { return &Grammar{p: p, id: grammars.Add(1)} }

// base finds what a state allows by itself, computing it on first use. States
// of the built-in rules have the same numbers in every grammar, so their
// results are shared. No caller waits for another one that computes: the same work done twice does less harm
// than an engine that waits. It returns nil when the limits of w are reached.
func (g *Grammar) base(v *Vocab, state int32, w *meter) *base {
	key := baseKey{g.id, state}
	if state < builtinStates {
		key.grammar = 0
	}
	b := v.base(key)
	if b == nil {
		if b = computeBase(g.p, v, state, w); b == nil {
			return nil
		}
		v.learn(key, b)
	}
	if !w.cached(b.work) {
		return nil
	}
	return b
}

// Size is about how many bytes a grammar takes.
func (g *Grammar) Size() int {
	n := len(g.p.rules) * 4
	for i := range g.p.states {
		s := &g.p.states[i]
		n += 96 + 8*len(s.edges) + 4*len(s.next)
		if s.set != nil {
			n += 8 * len(s.set.first)
		}
	}
	return n
}

// Matcher follows one output through a grammar. It is a sample.Constraint
// that the sampler can clone.
type Matcher struct {
	g       *Grammar
	v       *Vocab
	m       *machine
	config  int32
	text    []byte // accepted, not yet followed: finding out where it leads may be much work
	pending bitset // the mask that Prepare found
	ended   bool   // an end-of-generation token was accepted
	keep    []float32
}

// NewMatcher starts at the beginning of the output.
func (g *Grammar) NewMatcher(v *Vocab) *Matcher {
	return &Matcher{g: g, v: v, m: newMachine(g.p), config: unknown}
}

var _ sample.Constraint = (*Matcher)(nil)

// Prepare does the work of the next Mask, and that of the tokens accepted before it. With quick it gives up after a few
// milliseconds and reports false; it is then to be called without, which may take longer and ends with the context. A
// matcher may be prepared on another goroutine as long as nothing else is done with it.
func (m *Matcher) Prepare(ctx context.Context, quick bool) bool {
	if quick {
		return m.prepare(ctx, quickWork)
	}
	return m.prepare(ctx, 0)
}

func (m *Matcher) prepare(ctx context.Context, limit int) bool {
	m.m.work.begin(ctx, limit)
	m.follow()
	if m.pending == nil && m.config >= 0 && len(m.text) == 0 && !m.ended {
		m.pending = m.m.mask(m.v, m.config, func(s int32) *base { return m.g.base(m.v, s, &m.m.work) })
	}
	return m.m.work.stopped != errLater
}

// Err is ErrWork when the grammar needs more work than one token may cost, or the error of the context that ended
// Prepare. Only the end of the output is allowed then.
func (m *Matcher) Err() error {
	if err := m.m.work.stopped; err != errLater {
		return err
	}
	return nil
}

// follow finds where the accepted text leads. What is left of it when the limits of the work are reached stays.
func (m *Matcher) follow() {
	if m.config == unknown {
		if c := m.m.start(m.g.p.root, noStack); m.m.work.stopped == nil {
			m.config = c
			m.m.work.remember(0)
		}
	}
	for m.config >= 0 && len(m.text) > 0 {
		before := m.m.work.attempt
		c := m.m.step(m.config, m.text[0])
		if m.m.work.stopped != nil {
			return
		}
		m.config, m.text = c, m.text[1:]
		m.m.work.remember(before)
	}
	if m.config == dead {
		m.text = nil
	}
	if len(m.text) == 0 {
		m.m, m.config = m.m.renew(m.config)
	}
}

// settled follows the accepted text to its end.
func (m *Matcher) settled() {
	if len(m.text) > 0 || m.config == unknown {
		m.m.work.begin(context.Background(), 0)
		m.follow()
	}
}

// Fork returns a matcher in the same place that advances on its own. It
// shares tables with the original, so both stay with one goroutine. It is
// cheap: drafts that may be rejected are followed on a fork.
func (m *Matcher) Fork() *Matcher {
	m.settled()
	c := *m
	c.keep, c.text = nil, slices.Clone(m.text)
	return &c
}

// Clone is Fork in the form the sampler asks for.
func (m *Matcher) Clone() sample.Constraint { return m.Fork() }

// Complete reports whether the output may end here.
func (m *Matcher) Complete() bool {
	m.settled()
	return m.config >= 0 && m.m.configs[m.config].complete
}

// Allows reports whether a token may come next.
func (m *Matcher) Allows(id int32) bool {
	if id < 0 || int(id) >= m.v.size {
		return false
	}
	m.settled()
	if m.v.isEOG[id] {
		return m.ended || m.Complete() || m.config < 0
	}
	if m.pending != nil && m.Err() == nil && !m.ended {
		return int(id/64) < len(m.pending) && m.pending[id/64]>>(id%64)&1 != 0
	}
	return m.next(id) >= 0
}

// next is the configuration after a token, or dead.
func (m *Matcher) next(id int32) int32 {
	p := m.v.pieces[id]
	if m.ended || len(p) == 0 || len(p) > maxPiece {
		return dead
	}
	m.m.work.begin(context.Background(), 0)
	c := m.config
	for _, b := range p {
		if c = m.m.step(c, b); c < 0 {
			return dead
		}
	}
	return c
}

// Accept advances by a token of the output. After one that was not allowed,
// only the end is.
func (m *Matcher) Accept(id int32) {
	if id < 0 || int(id) >= m.v.size {
		m.fail()
		return
	}
	if m.v.isEOG[id] {
		m.ended = true
		return
	}
	p := m.v.pieces[id]
	if m.ended || len(p) == 0 || len(p) > maxPiece {
		m.fail()
		return
	}
	m.AcceptText(p)
}

// AcceptText advances by text that is no token of its own.
func (m *Matcher) AcceptText(text []byte) {
	m.settled()
	m.m.work.saved = 0 // a new token, a new measure
	m.text, m.pending = slices.Clone(text), nil
}

// fail leaves only the end.
func (m *Matcher) fail() { m.config, m.text, m.pending = dead, nil, nil }

// Dead reports that the text does not fit the grammar.
func (m *Matcher) Dead() bool {
	m.settled()
	return m.config == dead
}

// Prefix returns how many of the tokens, in order, are allowed: where a draft
// has to be cut. An end-of-generation token is the last one counted.
func (m *Matcher) Prefix(ids []int32) int {
	c := m.Fork()
	for i, id := range ids {
		if c.ended || !c.Allows(id) {
			return i
		}
		c.Accept(id)
	}
	return len(ids)
}

// Mask sets the logits of all tokens that may not come next to -Inf. When the
// output is complete and nothing else may follow, or went wrong, the
// end-of-generation tokens remain.
func (m *Matcher) Mask(logits []float32) {
	inf := float32(math.Inf(-1))
	m.keep = m.keep[:0]
	for _, id := range m.v.eog {
		l := inf
		if int(id) < len(logits) && id >= 0 {
			l = logits[id]
		}
		m.keep = append(m.keep, l)
	}
	var allowed bitset
	some := false
	if m.pending == nil {
		m.Prepare(context.Background(), false)
	}
	if m.Err() == nil && !m.ended {
		allowed = m.pending
	}
	for i := 0; i < len(logits); i += 64 {
		w := uint64(0)
		if i/64 < len(allowed) {
			w = allowed[i/64]
		}
		if w == ^uint64(0) {
			some = true
			continue
		}
		row := logits[i:min(i+64, len(logits))]
		if w == 0 {
			for j := range row {
				row[j] = inf
			}
			continue
		}
		some = true
		for z := ^w; z != 0; z &= z - 1 {
			if j := bits.TrailingZeros64(z); j < len(row) {
				row[j] = inf
			}
		}
	}
	if m.Complete() || !some {
		for i, id := range m.v.eog {
			if int(id) < len(logits) && id >= 0 {
				logits[id] = m.keep[i]
			}
		}
	}
}
