package cache

import (
	"slices"

	"strobe/internal/backend"
)

// Segment is the part of a batch that belongs to one sequence.
type Segment struct {
	Seq     *Seq
	Rows    int
	Parents []int32 // tree: parent row or -1 for the last committed token; nil for a chain
	Prompt  bool    // known to be accepted whole
	Block   []bool  // per group: rows see each other in both directions, as a drafter's block does; nil for none
	// Images are runs of rows, from and to, that see each other in both directions in layers with a window.
	Images [][2]int
}

// Batch is what the layers of one forward pass need to know of the caches.
type Batch struct {
	Plans []backend.Plan // per device
	Pos   []int32        // per row: its position
	More  [][]int32      // the second and third positions, of rows that have three; nil if all are equal
	Steps []int          // rows of each step, of a pass over steps
	segs  []Segment
}

// Begin prepares a forward pass: it makes room for every segment and plans what each row
// writes and sees. Until Done the sequences are unusable, so that a pass which ends half-way, for whatever
// reason, leaves none that goes on with layers that disagree.
func (m *Memory) Begin(segs []Segment) (*Batch, error) {
	b := &Batch{segs: segs, Plans: make([]backend.Plan, len(m.devices))}
	if err := begin(segs); err != nil {
		return nil, err
	}
	plans := make([]backend.KVPlan, len(m.groups))
	for si := range segs {
		s := &segs[si]
		depth := depths(s)
		for r := range s.Rows {
			b.Pos = append(b.Pos, int32(s.Seq.n)+depth[r])
		}
		for gi, g := range m.groups {
			p, hidden := &plans[gi], -1
			for r := range s.Rows {
				pos := s.Seq.n + int(depth[r])
				lo, hi := 0, pos+1
				if h := s.hidden(g, pos); h != hidden { // rows with another table are a segment of their own
					hidden = h
					p.Tables = append(p.Tables, s.table(gi, h))
				}
				if g.window > 0 {
					lo = max(0, pos+1-g.window)
				}
				if s.Block != nil && s.Block[gi] {
					hi = s.Seq.n + s.Rows
				}
				if g.window > 0 {
					hi = max(hi, s.Seq.n+s.imageEnd(r))
				}
				if s.Parents != nil {
					hi = max(lo, s.Seq.n)
					p.Extra = extend(p.Extra, len(p.Slot))
					p.Extra = append(p.Extra, ancestors(s, r, lo, depth))
					for i := range p.Extra[len(p.Extra)-1] {
						p.Extra[len(p.Extra)-1][i] -= int32(hidden)
					}
				}
				p.Seg = append(p.Seg, int32(len(p.Tables)-1))
				p.Slot = append(p.Slot, int32(s.Seq.n+r-hidden))
				p.Lo = append(p.Lo, int32(lo))
				p.Hi = append(p.Hi, int32(hi-hidden))
			}
		}
	}
	for gi, g := range m.groups {
		p := &plans[gi]
		if p.Pool = g.pool; p.Extra != nil {
			p.Extra = extend(p.Extra, len(p.Slot))
		}
		b.Plans[g.device].KV = append(b.Plans[g.device].KV, *p)
	}
	for i, y := range m.states {
		p := &b.Plans[y.device]
		p.State = y.pool
		row := 0
		for _, s := range segs {
			p.Delta = append(p.Delta, backend.DeltaSeg{Row: row, N: s.Rows, Parents: s.Parents, Prompt: s.Prompt,
				Slot: s.Seq.slots[i], Pending: s.Seq.pending})
			row += s.Rows
		}
	}
	m.check(b, true)
	return b, nil
}

// imageEnd is the end of the image that row r belongs to, 0 for none.
func (s *Segment) imageEnd(r int) int {
	for _, image := range s.Images {
		if r >= image[0] && r < image[1] {
			return image[1]
		}
	}
	return 0
}

// begin makes room for every segment, or for none.
func begin(segs []Segment) error {
	for i := range segs {
		s := &segs[i]
		if err := s.Seq.begin(s.Rows, s.Parents, s.Prompt); err != nil {
			for _, begun := range segs[:i] {
				begun.Seq.broken, begun.Seq.open = false, 0 // nothing was computed
			}
			return err
		}
	}
	return nil
}

// Spread gives every row three positions, equal ones so far.
func (b *Batch) Spread() {
	for len(b.More) < 2 {
		b.More = append(b.More, slices.Clone(b.Pos))
	}
}

// extend pads a list of extra slots to n rows: rows of chains have none.
func extend(x [][]int32, n int) [][]int32 {
	for len(x) < n {
		x = append(x, nil)
	}
	return x
}

func depths(s *Segment) []int32 {
	d := make([]int32, s.Rows)
	for r := range d {
		if s.Parents == nil {
			d[r] = int32(r)
		} else if p := s.Parents[r]; p >= 0 {
			d[r] = d[p] + 1
		}
	}
	return d
}

// ancestors lists the slots of row r and its ancestors that lie in the window, in order of depth.
func ancestors(s *Segment, r, lo int, depth []int32) []int32 {
	var up []int32
	for a := int32(r); a >= 0; a = s.Parents[a] {
		if s.Seq.n+int(depth[a]) >= lo {
			up = append(up, int32(s.Seq.n)+a)
		}
	}
	slices.Reverse(up)
	return up
}

// Done tells the sequences that the pass is complete; their rows now wait for Commit.
func (b *Batch) Done() {
	for _, s := range b.segs {
		s.Seq.forwarded()
	}
}
