package cache

import (
	"fmt"

	"strobe/internal/backend"
)

// A network that is fed what it has just guessed runs the rows of a sequence one after the other. A pass over steps
// does so for several sequences without a word of the host in between: step i runs the rows of depth i of every
// sequence, one in a chain and several in a tree. Each step has plans of its own, all known beforehand.

// BeginSteps prepares such a pass. Segments are chains and trees, the deepest first. A row of a tree has at least the
// depth of the rows before it.
func (m *Memory) BeginSteps(segs []Segment) (*Batch, error) {
	if err := begin(segs); err != nil {
		return nil, err
	}
	b := m.steps(segs, false)
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
	b := m.steps(segs, true)
	m.check(b, false)
	b.Plans = b.Plans[device : device+1]
	return b, nil
}

// steps plans the rows of every step.
func (m *Memory) steps(segs []Segment, looks bool) *Batch {
	b := &Batch{segs: segs, Plans: make([]backend.Plan, len(m.devices))}
	all, next := make([][]int32, len(segs)), make([]int, len(segs)) // depths of the rows, and the first row of this step
	for si := range segs {
		all[si] = depths(&segs[si])
	}
	for step := int32(0); ; step++ {
		plans := make([]backend.KVPlan, len(m.groups))
		n := 0
		for si := range segs {
			s, depth := &segs[si], all[si]
			from := next[si]
			for next[si] < s.Rows && depth[next[si]] == step {
				next[si]++
			}
			n += next[si] - from
			for gi := range plans {
				if next[si] > from {
					plans[gi].Tables = append(plans[gi].Tables, s.Seq.tables[gi])
				}
			}
			for r := from; r < next[si]; r++ {
				pos := s.Seq.n
				if !looks {
					pos += int(step)
				}
				b.Pos = append(b.Pos, int32(pos))
				for gi, g := range m.groups {
					stepRow(&plans[gi], s, r, pos, g.window, depth, looks)
				}
			}
		}
		if n == 0 {
			return b
		}
		b.Steps = append(b.Steps, n)
		for gi, g := range m.groups {
			plans[gi].Pool = g.pool
			b.Plans[g.device].KV = append(b.Plans[g.device].KV, plans[gi])
		}
	}
}

// stepRow adds row r of the newest segment, at pos, to the plan of its step.
func stepRow(p *backend.KVPlan, s *Segment, r, pos, window int, depth []int32, looks bool) {
	lo, hi, slot := 0, pos+1, s.Seq.n+r
	if window > 0 {
		lo = max(0, pos+1-window)
	}
	switch {
	case looks: // nothing is written
		hi, slot = pos, pos-1
	case s.Parents != nil:
		hi = max(lo, s.Seq.n)
		p.Extra = append(extend(p.Extra, len(p.Slot)), ancestors(s, r, lo, depth))
	case p.Extra != nil:
		p.Extra = append(p.Extra, nil)
	}
	p.Seg = append(p.Seg, int32(len(p.Tables)-1))
	p.Slot = append(p.Slot, int32(slot))
	p.Lo, p.Hi = append(p.Lo, int32(lo)), append(p.Hi, int32(hi))
}
