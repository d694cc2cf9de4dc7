package engine

import (
	"fmt"

	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/speculate"
)

// set names some of a runner's sources, by their places.
type set uint64

func (s set) has(i int) bool  { return s>>i&1 == 1 }
func (s set) all(of set) bool { return s&of == of }

// blind is how many tokens of a prompt take about as long to read as is lost where a drafter begins after them: it
// yields fewer tokens for the next hundred or so, some 40 passes (see speculate's runUp).
const blind = 1024

// worth is how many tokens a prefix of n with the contexts of some sources saves a request that wants those of others.
func (s set) worth(n int, want set) int {
	if s.all(want) {
		return n
	}
	return n - blind
}

// contexts is what the sources that capture know of a sequence, by their places; nil for a source that does not
// follow. They are kept, copied and stored with the target's memory of the same tokens.
type contexts []*cache.Seq

// wanted is the sources that may have to follow a request: those that capture and may draft for it.
func wanted(r *speculate.Runner, o speculate.Options) (s set) {
	for i, src := range r.Sources {
		if len(src.Capture()) > 0 && (o.Draft == speculate.Auto || o.Draft == src.Name()) {
			s |= 1 << i
		}
	}
	return s
}

// memories is where the sources keep what they know, nil for those that do not capture.
func memories(r *speculate.Runner) []*cache.Memory {
	m := make([]*cache.Memory, len(r.Sources))
	for i, src := range r.Sources {
		if len(src.Capture()) > 0 {
			s := src.NewContext().(*cache.Seq)
			m[i] = s.Memory()
			s.Close()
		}
	}
	return m
}

// newContexts returns empty ones.
func newContexts(m []*cache.Memory, want set) contexts {
	cs := make(contexts, len(m))
	cs.complete(m, want)
	return cs
}

// complete adds empty ones for those wanted that are missing.
func (cs contexts) complete(m []*cache.Memory, want set) {
	for i := range cs {
		if want.has(i) && cs[i] == nil {
			cs[i] = m[i].NewSeq()
		}
	}
}

// sources is those that have a context.
func (cs contexts) sources() (s set) {
	for i, c := range cs {
		if c != nil {
			s |= 1 << i
		}
	}
	return s
}

// forRunner is the contexts as a stream takes them.
func (cs contexts) forRunner() []draft.Context {
	out := make([]draft.Context, len(cs))
	for i, c := range cs {
		if c != nil {
			out[i] = c
		}
	}
	return out
}

// each calls fn for every context there is.
func (cs contexts) each(fn func(*cache.Seq)) {
	for _, c := range cs {
		if c != nil {
			fn(c)
		}
	}
}

func (cs contexts) close() { cs.each((*cache.Seq).Close) }

func (cs contexts) canCut(n int) bool {
	ok := true
	cs.each(func(c *cache.Seq) { ok = ok && c.CanCut(n) })
	return ok
}

func (cs contexts) savedBytes() (n int64) {
	cs.each(func(c *cache.Seq) { n += c.SavedBytes() })
	return n
}

// cut copies the first n tokens of the wanted ones.
func (cs contexts) cut(n int, want set) (contexts, error) {
	out := make(contexts, len(cs))
	for i, c := range cs {
		if c == nil || !want.has(i) {
			continue
		}
		var err error
		if out[i], err = cut(c, n); err != nil {
			out.close()
			return nil, err
		}
	}
	return out, nil
}

// take removes and returns those that know n tokens. Others lag behind; they stay.
func (cs contexts) take(n int) contexts {
	out := make(contexts, len(cs))
	for i, c := range cs {
		if c != nil && c.Len() == n {
			out[i], cs[i] = c, nil
		}
	}
	return out
}

// at is the set of those that know n tokens.
func (cs contexts) at(n int) (s set) {
	for i, c := range cs {
		if c != nil && c.Len() == n {
			s |= 1 << i
		}
	}
	return s
}

// describe is what decides whether stored contexts mean the same to another process.
func describe(r *speculate.Runner) string {
	s := ""
	for i, m := range memories(r) {
		if m != nil {
			s += fmt.Sprintf("%d %s %x\n", i, r.Sources[i].Name(), m.Fingerprint())
		}
	}
	return s
}
