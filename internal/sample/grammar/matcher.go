package grammar

import (
	"math"
	"math/bits"
	"sync"

	"strobe/internal/sample"
)

// Grammar is a compiled schema. It may be shared by goroutines.
type Grammar struct {
	p *program

	mu    sync.Mutex
	bases map[baseKey]*base
}

type baseKey struct {
	v     *Vocab
	state int32
}

// base finds what a state allows by itself, computing it on first use. States
// of the built-in rules have the same numbers in every grammar, so their
// results stay with the vocabulary.
func (g *Grammar) base(v *Vocab, state int32) *base {
	mu, get, put := &g.mu, func() *base { return g.bases[baseKey{v, state}] },
		func(b *base) { g.bases[baseKey{v, state}] = b }
	if state < builtinStates {
		mu, get, put = &v.mu, func() *base { return v.bases[state] }, func(b *base) { v.bases[state] = b }
	}
	mu.Lock()
	defer mu.Unlock()
	b := get()
	if b == nil {
		b = computeBase(g.p, v, state)
		put(b)
	}
	return b
}

// Matcher follows one output through a grammar. It is a sample.Constraint
// that the sampler can clone.
type Matcher struct {
	g      *Grammar
	v      *Vocab
	m      *machine
	config int32
	ended  bool // an end-of-generation token was accepted
	keep   []float32
}

// NewMatcher starts at the beginning of the output.
func (g *Grammar) NewMatcher(v *Vocab) *Matcher {
	m := newMachine(g.p)
	return &Matcher{g: g, v: v, m: m, config: m.start(g.p.root, noStack)}
}

var _ sample.Constraint = (*Matcher)(nil)

// Fork returns a matcher in the same place that advances on its own. It
// shares tables with the original, so both stay with one goroutine. It is
// cheap: drafts that may be rejected are followed on a fork.
func (m *Matcher) Fork() *Matcher {
	c := *m
	c.keep = nil
	return &c
}

// Clone is Fork in the form the sampler asks for.
func (m *Matcher) Clone() sample.Constraint { return m.Fork() }

// Complete reports whether the output may end here.
func (m *Matcher) Complete() bool {
	return m.config >= 0 && m.m.configs[m.config].complete
}

// Allows reports whether a token may come next.
func (m *Matcher) Allows(id int32) bool {
	if id < 0 || int(id) >= m.v.size {
		return false
	}
	if m.v.isEOG[id] {
		return m.ended || m.Complete() || m.config < 0
	}
	return m.next(id) >= 0
}

// next is the configuration after a token, or dead.
func (m *Matcher) next(id int32) int32 {
	p := m.v.pieces[id]
	if m.ended || len(p) == 0 || len(p) > maxPiece {
		return dead
	}
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
		m.config = dead
		return
	}
	if m.v.isEOG[id] {
		m.ended = true
		return
	}
	m.config = m.next(id)
	m.m, m.config = m.m.renew(m.config)
}

// AcceptText advances by text that is no token of its own. It reports whether it was allowed.
func (m *Matcher) AcceptText(text []byte) bool {
	for _, b := range text {
		m.config = m.m.step(m.config, b)
	}
	m.m, m.config = m.m.renew(m.config)
	return m.config >= 0
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
	if m.config >= 0 && !m.ended {
		allowed = m.m.mask(m.v, m.config, func(s int32) *base { return m.g.base(m.v, s) })
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
