package gpu

// scratch is memory for what passes between the kernels of a step: pieces of products, packed activations, partial
// results. Every list of launches uses all of it anew, in the same order, so equal lists get equal addresses; the queue
// runs one list after the other.
type scratch struct {
	b      *Backend
	chunks []chunk
}

type chunk struct {
	addr  Addr
	size  int
	parts []part // in order, without gaps
}

type part struct {
	at, size int
	used     bool
}

// scratchChunk is the least that is asked of the device at a time.
const scratchChunk = 64 << 20

// scratchAlign suits every kind of copy.
const scratchAlign = 256

// reset makes everything free.
func (s *scratch) reset() {
	for i := range s.chunks {
		c := &s.chunks[i]
		c.parts = append(c.parts[:0], part{0, c.size, false})
	}
}

// take returns the first free room of so many bytes.
func (s *scratch) take(bytes int) (Addr, error) {
	n := (max(bytes, 1) + scratchAlign - 1) / scratchAlign * scratchAlign
	for i := range s.chunks {
		if a, ok := s.chunks[i].take(n); ok {
			return a, nil
		}
	}
	size := max(n, scratchChunk)
	a, err := s.b.d.Alloc(size)
	if err != nil {
		return 0, err
	}
	s.chunks = append(s.chunks, chunk{a, size, []part{{0, size, false}}})
	a, _ = s.chunks[len(s.chunks)-1].take(n)
	return a, nil
}

func (c *chunk) take(n int) (Addr, bool) {
	for i, p := range c.parts {
		if p.used || p.size < n {
			continue
		}
		c.parts[i] = part{p.at, n, true}
		if rest := p.size - n; rest > 0 {
			c.parts = append(c.parts, part{})
			copy(c.parts[i+2:], c.parts[i+1:])
			c.parts[i+1] = part{p.at + n, rest, false}
		}
		return c.addr + Addr(p.at), true
	}
	return 0, false
}

// give makes what take returned free again.
func (s *scratch) give(a Addr) {
	for i := range s.chunks {
		c := &s.chunks[i]
		if a < c.addr || a >= c.addr+Addr(c.size) {
			continue
		}
		for j := range c.parts {
			if c.addr+Addr(c.parts[j].at) == a {
				c.parts[j].used = false
				c.merge()
				return
			}
		}
	}
}

// merge joins neighbouring free parts.
func (c *chunk) merge() {
	out := c.parts[:1]
	for _, p := range c.parts[1:] {
		if last := &out[len(out)-1]; !last.used && !p.used {
			last.size += p.size
		} else {
			out = append(out, p)
		}
	}
	c.parts = out
}
