package gpu

// scratch is memory for what passes between the kernels of a step: pieces of products, packed activations, partial
// results. Every list of launches uses all of it anew, in the same order, so equal lists get equal addresses; the queue
// runs one list after the other.
//
// It is one piece of memory, as large as the largest list needs. A list that needs more is lowered to the end to find
// out how much; then the memory is replaced by a larger piece, and the list is lowered again.
type scratch struct {
	b     *Backend
	at    Addr
	size  int
	need  int    // of the list in progress
	parts []part // in order, without gaps, up to need
}

type part struct {
	at, size int
	used     bool
}

// scratchGrain is what the size is a multiple of: lists that need about the same share one size.
const scratchGrain = 16 << 20

// scratchAlign suits every kind of copy.
const scratchAlign = 256

// reset makes everything free.
func (s *scratch) reset() { s.need, s.parts = 0, s.parts[:0] }

// take returns the smallest free room of so many bytes. If that is not memory, enough will say so.
func (s *scratch) take(bytes int) Addr {
	n := (max(bytes, 1) + scratchAlign - 1) / scratchAlign * scratchAlign
	best := -1
	for i, p := range s.parts {
		if !p.used && p.size >= n && (best < 0 || p.size < s.parts[best].size) {
			best = i
		}
	}
	if i := best; i >= 0 {
		p := s.parts[i]
		s.parts[i] = part{p.at, n, true}
		if rest := p.size - n; rest > 0 {
			s.parts = append(s.parts, part{})
			copy(s.parts[i+2:], s.parts[i+1:])
			s.parts[i+1] = part{p.at + n, rest, false}
		}
		return s.at + Addr(p.at)
	}
	at := s.need
	if k := len(s.parts) - 1; k >= 0 && !s.parts[k].used { // the free end grows
		at = s.parts[k].at
		s.parts = s.parts[:k]
	}
	s.parts = append(s.parts, part{at, n, true})
	s.need = at + n
	return s.at + Addr(at)
}

// give makes what take returned free again.
func (s *scratch) give(a Addr) {
	for i := range s.parts {
		if s.at+Addr(s.parts[i].at) == a {
			s.parts[i].used = false
			s.merge()
			return
		}
	}
}

// merge joins neighbouring free parts.
func (s *scratch) merge() {
	out := s.parts[:1]
	for _, p := range s.parts[1:] {
		if last := &out[len(out)-1]; !last.used && !p.used {
			last.size += p.size
		} else {
			out = append(out, p)
		}
	}
	s.parts = out
}

// enough reports whether there is memory for all that was taken since reset. If not, it makes room, and what was taken
// must be taken again. Recordings that use the old memory are forgotten.
func (s *scratch) enough() (bool, error) {
	if s.need <= s.size {
		return true, nil
	}
	old := s.size
	size := (s.need + scratchGrain - 1) / scratchGrain * scratchGrain
	if old > 0 {
		s.b.forget(span{s.at, old})
		s.b.d.Release(s.at)
	}
	var err error
	if s.at, err = s.b.d.Alloc(size); err == nil {
		s.size = size
		return false, nil
	}
	// Lists that ran before can still do so.
	s.size = 0
	if old > 0 {
		if at, again := s.b.d.Alloc(old); again == nil {
			s.at, s.size = at, old
		}
	}
	return false, err
}
