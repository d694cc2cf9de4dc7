package cache

// What keeping sequences for later needs to know of them.

// rewinds reports whether there is nothing that is only known at the end of a sequence: no recurrent state, no row that
// it carries.
func (m *Memory) rewinds() bool { return len(m.spec.Recurrent) == 0 && m.spec.Carry == 0 }

// Cuttable reports whether a sequence of n tokens can be cut anywhere: there is no recurrent state,
// and no window that has left keys behind by then.
func (m *Memory) Cuttable(n int) bool {
	for _, g := range m.groups {
		if g.window > 0 && n > g.window {
			return false
		}
	}
	return m.rewinds()
}

// CanCut reports whether Truncate(n) would succeed.
func (s *Seq) CanCut(n int) bool {
	switch {
	case s.broken || s.closed || n < 0 || n > s.n:
		return false
	case n == 0 || n == s.n:
		return true
	case !s.m.rewinds():
		return false
	}
	for gi, g := range s.m.groups {
		if s.tables[gi][g.firstPage(n)] < 0 {
			return false
		}
	}
	return true
}

// Pack prepares a sequence for keeping: it applies the pending rows of the tape and gives the
// tape up, and with it the pages past the end.
func (s *Seq) Pack() {
	s.Settle()
	for i, slot := range s.slots {
		s.m.states[i].pool.Release(slot)
	}
	s.open, s.parents = 0, nil
	for gi, g := range s.m.groups {
		t := s.tables[gi]
		for p := s.pages(); p < len(t); p++ {
			s.drop(g, t, p)
		}
		s.tables[gi] = t[:min(s.pages(), len(t))]
	}
}

// BytesOf is what a packed sequence of n tokens holds: pages, state and the row it carries.
func (m *Memory) BytesOf(n int) int {
	bytes := m.stateBytes()
	for _, g := range m.groups {
		bytes += ((n+PageTokens-1)/PageTokens - g.firstPage(n)) * g.pool.PageBytes()
	}
	return bytes
}

// Cache counts the sequence as one of the prefix cache, until it is closed. It must be packed and is not extended any
// more.
func (s *Seq) Cache() {
	if s.cached || s.closed {
		return
	}
	s.cached = true
	s.m.cached += s.m.stateBytes()
	for gi, g := range s.m.groups {
		for _, p := range s.tables[gi] {
			if p < 0 {
				continue
			}
			if g.cached[p]++; g.cached[p] == 1 {
				s.m.cached += g.pool.PageBytes()
			}
		}
	}
}

// CachedBytes is the memory of the sequences of the prefix cache; pages they share count once.
func (m *Memory) CachedBytes() int { return m.cached }

// Held counts the memory that sequences hold together, page by page; pages they share count once. It is for checks:
// CachedBytes says the same of the prefix cache at once.
func (m *Memory) Held(seqs []*Seq) int {
	n := 0
	for _, s := range seqs {
		if !s.closed {
			n += m.stateBytes()
		}
	}
	for gi, g := range m.groups {
		seen := make([]bool, len(g.refs))
		for _, s := range seqs {
			if s.closed {
				continue
			}
			for _, p := range s.tables[gi] {
				if p >= 0 && !seen[p] {
					seen[p] = true
					n += g.pool.PageBytes()
				}
			}
		}
	}
	return n
}
