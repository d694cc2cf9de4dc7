package cache

import (
	"fmt"

	"strobe/internal/backend"
)

// A network that is fed what it has just guessed runs the rows of a sequence one after the other. A pass over steps
// does so for several sequences without a word of the host in between: step i runs the i-th row of every sequence
// that has one, and each step has plans of its own, all known beforehand.

// BeginSteps prepares such a pass. Segments are chains, the longest first.
func (m *Memory) BeginSteps(segs []Segment) (*Batch, error) {
	if err := begin(segs); err != nil {
		return nil, err
	}
	b := m.steps(segs, func(s *Segment, i int) (pos, end int) { return s.Seq.n + i, s.Seq.n + i + 1 })
	m.check(b, true)
	return b, nil
}

// Look prepares a pass over steps of a network that only looks at what sequences remember: every row stands at the
// position after the last token, sees the committed ones and writes nothing. The network runs on one of the devices
// and gets that one's plans alone.
func (m *Memory) Look(segs []Segment, device int) (*Batch, error) {
	for i := range segs {
		if s := segs[i].Seq; s.closed || s.broken {
			return nil, fmt.Errorf("sequence is closed or broken by an earlier error")
		}
	}
	b := m.steps(segs, func(s *Segment, i int) (pos, end int) { return s.Seq.n, s.Seq.n })
	m.check(b, false)
	b.Plans = b.Plans[device : device+1]
	return b, nil
}

// steps plans the rows of every step; row says where the i-th of a segment is and how far it sees.
func (m *Memory) steps(segs []Segment, row func(s *Segment, i int) (pos, end int)) *Batch {
	b := &Batch{segs: segs, Plans: make([]backend.Plan, len(m.devices))}
	for i := 0; i < segs[0].Rows; i++ {
		n := 0
		for n < len(segs) && segs[n].Rows > i {
			pos, _ := row(&segs[n], i)
			b.Pos = append(b.Pos, int32(pos))
			n++
		}
		b.Steps = append(b.Steps, n)
		for gi, g := range m.groups {
			p := backend.KVPlan{Pool: g.pool}
			for si := range segs[:n] {
				pos, end := row(&segs[si], i)
				lo := 0
				if g.window > 0 {
					lo = max(0, pos+1-g.window)
				}
				p.Tables = append(p.Tables, segs[si].Seq.tables[gi])
				p.Seg = append(p.Seg, int32(si))
				p.Slot = append(p.Slot, int32(end-1)) // of a row that looks nothing is written
				p.Lo, p.Hi = append(p.Lo, int32(lo)), append(p.Hi, int32(end))
			}
			b.Plans[g.device].KV = append(b.Plans[g.device].KV, p)
		}
	}
	return b
}
