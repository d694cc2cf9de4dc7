package cache

import (
	"errors"
	"fmt"
	"slices"

	"strobe/internal/backend"
)

// Seq is one sequence's memory.
type Seq struct {
	m       *Memory
	n       int       // committed tokens
	tables  [][]int32 // per group: page of each 64 slots, -1 where dropped
	dropped []int     // per group: pages at the beginning that were dropped
	slots   []int32   // per device with recurrent layers
	carry   backend.Tensor
	taped   int // rows on the tape
	pending int // rows of them accepted but not yet applied to the state
	moves   []backend.RowMove

	// The rows of the last forward pass, until Commit.
	open    int
	parents []int32
	prompt  bool

	expected     int // tokens of the whole prompt
	kept, window int // what generated tokens see; see Limit

	closed bool
	cached bool // counts as one of the prefix cache
	broken bool // a pass is in progress or ended half-way: layers disagree about what they remember
}

// NewSeq returns an empty sequence. It takes no memory before its first pass.
func (m *Memory) NewSeq() *Seq {
	m.seqs++
	return &Seq{m: m, tables: make([][]int32, len(m.groups)), dropped: make([]int, len(m.groups))}
}

// take makes sure that the sequence has its recurrent memory and the row it carries.
func (s *Seq) take() error {
	if s.m.spec.Carry > 0 && s.carry.Buf == nil {
		t, err := s.m.devices[0].Alloc(1, s.m.spec.Carry)
		if err != nil {
			return err
		}
		s.carry = t
	}
	for i := len(s.slots); i < len(s.m.states); i++ {
		slot, err := s.m.states[i].pool.Alloc()
		if err != nil {
			return err
		}
		s.slots = append(s.slots, slot)
	}
	return nil
}

func (s *Seq) freeSlots() {
	for i, slot := range s.slots {
		s.m.states[i].pool.Free(slot)
	}
	s.slots = nil
	if s.carry.Buf != nil {
		s.m.devices[0].Free(s.carry)
		s.carry = backend.Tensor{}
	}
}

// Carry returns the row that the sequence carries, zeros before its first token. A sequence has it from its first
// pass on.
func (s *Seq) Carry() backend.Tensor { return s.carry }

// Len returns the number of committed tokens.
func (s *Seq) Len() int { return s.n }

// Memory returns the memory the sequence belongs to.
func (s *Seq) Memory() *Memory { return s.m }

// Open returns the number of rows of the last pass that wait for Commit.
func (s *Seq) Open() int { return s.open }

// begin makes room for rows past the committed end.
func (s *Seq) begin(rows int, parents []int32, prompt bool) error {
	if s.closed || s.broken {
		return fmt.Errorf("sequence is closed or broken by an earlier error")
	}
	if parents != nil && prompt {
		return fmt.Errorf("a prompt is a chain, not a tree")
	}
	for gi, g := range s.m.groups {
		for p := s.n / PageTokens; p <= (s.n+rows-1)/PageTokens; p++ {
			if err := s.own(gi, g, p); err != nil {
				return noMemory(err)
			}
		}
	}
	if err := s.take(); err != nil {
		return noMemory(err)
	}
	if !prompt {
		for i, slot := range s.slots {
			if err := s.m.states[i].pool.Reserve(slot, rows); err != nil {
				return noMemory(err)
			}
		}
	}
	s.broken = true
	s.open, s.prompt = rows, prompt
	s.parents = slices.Clone(parents)
	return nil
}

// noMemory marks the error of a device that refused memory, whatever it says.
func noMemory(err error) error {
	if errors.Is(err, backend.ErrNoMemory) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrNoMemory, err)
}

// own makes page p of a group present and unshared.
func (s *Seq) own(gi int, g *group, p int) error {
	t := s.tables[gi]
	if p < len(t) && t[p] >= 0 && g.refs[t[p]] == 1 {
		return nil
	}
	page, err := g.alloc()
	if err != nil {
		return err
	}
	if p < len(t) {
		if t[p] >= 0 {
			g.pool.Copy(page, t[p])
			g.release(t[p])
		}
		t[p] = page
		return nil
	}
	for len(t) < p {
		t = append(t, -1)
	}
	s.tables[gi] = append(t, page)
	return nil
}

// forwarded tells the sequence that a pass over its open rows is complete, so the pending
// tape rows have been applied.
func (s *Seq) forwarded() {
	if s.pending, s.taped, s.broken = 0, 0, false; !s.prompt {
		s.taped = s.open
	}
}

// Commit keeps the rows of path (row indices of the last pass, a root-to-node path) and drops
// the others. A nil path drops them all. Rows of a prompt can only be kept whole.
func (s *Seq) Commit(path []int32) error {
	if err := s.checkPath(path); err != nil {
		return err
	}
	if s.parents != nil {
		s.moveTogether(path)
	}
	if len(s.m.states) > 0 && !s.prompt {
		s.pending = len(path)
	}
	s.n += len(path)
	s.open, s.parents = 0, nil
	s.trim()
	s.check()
	return nil
}

// moveTogether moves the rows of a tree's path behind the committed ones.
func (s *Seq) moveTogether(path []int32) {
	for gi, g := range s.m.groups {
		t, moves := s.tables[gi], s.moves[:0]
		for j, r := range path {
			if int(r) != j {
				from, to := s.n+int(r), s.n+j
				moves = append(moves, backend.RowMove{
					To: t[to/PageTokens], Dst: to % PageTokens, From: t[from/PageTokens], Src: from % PageTokens,
				})
			}
		}
		if s.moves = moves; len(moves) > 0 {
			g.pool.Move(moves)
		}
	}
	for i, slot := range s.slots {
		s.m.states[i].pool.Keep(slot, path)
	}
}

// CommitAll keeps every row of the last pass, which must have been a chain.
func (s *Seq) CommitAll() error { return s.CommitFirst(s.open) }

// CommitFirst keeps the first n rows of the last pass, which must have been a chain.
func (s *Seq) CommitFirst(n int) error {
	path := make([]int32, n)
	for i := range path {
		path[i] = int32(i)
	}
	return s.Commit(path)
}

func (s *Seq) checkPath(path []int32) error {
	if s.broken || s.closed {
		return fmt.Errorf("commit: sequence is closed or broken by an earlier error")
	}
	if s.prompt && len(path) != s.open && s.open > 0 {
		return fmt.Errorf("commit: %d of %d prompt rows; a prompt is committed whole", len(path), s.open)
	}
	at := int32(-1)
	for j, r := range path {
		if int(r) >= s.open || r < 0 {
			return fmt.Errorf("commit: row %d of a pass over %d rows", r, s.open)
		}
		up := int32(j - 1)
		if s.parents != nil {
			up = s.parents[r]
		} else if int(r) != j {
			return fmt.Errorf("commit: row %d at depth %d of a chain", r, j)
		}
		if up != at {
			return fmt.Errorf("commit: row %d does not follow row %d", r, at)
		}
		at = r
	}
	return nil
}

// trim drops pages that have left the window: no later token can see them.
func (s *Seq) trim() {
	for gi, g := range s.m.groups {
		for first := g.firstPage(s.n); s.dropped[gi] < first; s.dropped[gi]++ {
			s.drop(g, s.tables[gi], s.dropped[gi])
		}
	}
}

func (s *Seq) drop(g *group, t []int32, p int) {
	if t[p] >= 0 {
		if s.cached {
			if g.cached[t[p]]--; g.cached[t[p]] == 0 {
				s.m.cached -= g.pool.PageBytes()
			}
		}
		g.release(t[p])
		t[p] = -1
	}
}

// Settle applies the pending tape rows to the recurrent state.
func (s *Seq) Settle() {
	if s.pending == 0 {
		return
	}
	s.check()
	for i, slot := range s.slots {
		s.m.states[i].pool.Settle(slot, s.pending)
	}
	s.pending = 0
}

// Truncate cuts the sequence to n tokens. It fails with ErrRewind when the memory of that
// point is gone; the sequence is unchanged then.
func (s *Seq) Truncate(n int) error {
	if s.broken || s.closed {
		return fmt.Errorf("truncate: sequence is closed or broken by an earlier error")
	}
	if n < 0 || n > s.n {
		return fmt.Errorf("truncate to %d of %d tokens", n, s.n)
	}
	if n == s.n {
		s.open = 0
		return nil
	}
	if !s.CanCut(n) {
		return ErrRewind
	}
	for i, slot := range s.slots {
		s.m.states[i].pool.Clear(slot)
	}
	if s.carry.Buf != nil { // what is cut to some tokens carries none
		s.m.devices[0].Write(s.carry, make([]float32, s.carry.Cols))
	}
	for gi, g := range s.m.groups {
		t := s.tables[gi]
		keep := (n + PageTokens - 1) / PageTokens
		for p := keep; p < len(t); p++ {
			s.drop(g, t, p)
		}
		s.tables[gi] = t[:min(keep, len(t))]
		s.dropped[gi] = min(s.dropped[gi], keep)
	}
	s.n, s.open, s.pending = n, 0, 0
	s.check()
	return nil
}

// Fork returns a copy that continues on its own. Pages are shared until written.
func (s *Seq) Fork() (*Seq, error) {
	if s.broken || s.closed {
		return nil, fmt.Errorf("fork: sequence is closed or broken by an earlier error")
	}
	s.Settle()
	f := s.m.NewSeq()
	if len(s.slots) > 0 || s.carry.Buf != nil {
		if err := f.take(); err != nil {
			f.Close()
			return nil, err
		}
	}
	if s.carry.Buf != nil {
		s.m.devices[0].Copy(f.carry, s.carry)
	}
	f.n = s.n
	for gi, g := range s.m.groups {
		keep := min(len(s.tables[gi]), (s.n+PageTokens-1)/PageTokens)
		f.tables[gi] = append([]int32(nil), s.tables[gi][:keep]...)
		for _, p := range f.tables[gi] {
			if p >= 0 {
				g.refs[p]++
			}
		}
	}
	for i, slot := range s.slots {
		s.m.states[i].pool.Copy(f.slots[i], slot)
	}
	f.check()
	return f, nil
}

// Bytes is the memory the sequence holds: its pages (shared ones count in full) and state.
func (s *Seq) Bytes() int {
	n := s.m.stateBytes()
	for gi, g := range s.m.groups {
		for _, p := range s.tables[gi] {
			if p >= 0 {
				n += g.pool.PageBytes()
			}
		}
	}
	return n
}

// Closed reports whether Close was called.
func (s *Seq) Closed() bool { return s.closed }

// Close gives the pages and the recurrent state back. It may be called more than once.
func (s *Seq) Close() {
	if s.closed {
		return
	}
	s.closed = true
	for gi, g := range s.m.groups {
		for p := range s.tables[gi] {
			s.drop(g, s.tables[gi], p)
		}
		s.tables[gi] = nil
	}
	if s.cached {
		s.m.cached -= s.m.stateBytes()
	}
	s.freeSlots()
	s.m.seqs--
}
