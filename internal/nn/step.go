package nn

import (
	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/invariants"
)

// Step is a pass in progress on one device: its operations, the rows it runs and the memory they need on the way.
type Step struct {
	backend.Backend
	N      int // rows, with padding
	Eps    float32
	arena  *Arena
	batch  *cache.Batch
	mem    *cache.Memory
	device int
	group  int            // number of the first plan
	pos    backend.Ints   // [tokens]
	more   []backend.Ints // [tokens] twice: the other positions of rows that have three; nil for none
	angles []angles       // of the rotary embeddings in use
	split  bool           // the pass has steps on other devices, too
	open   bool           // the step has begun and not ended; for invariants

	Kept   *Kept           // if set, gets the queries and keys
	Sparse *backend.Sparse // if set, prompts attend to some blocks only, where the device can
}

// Kept is the queries and keys of a layer, after their norms.
type Kept struct {
	Rotated                bool           // after the rotary embedding as well
	Q                      backend.Tensor // [tokens, heads*keyDim]
	K                      backend.Tensor // [tokens, kvHeads*keyDim]
	Heads, KVHeads, KeyDim int
}

type angles struct {
	rope     *Rope
	cos, sin backend.Tensor // [tokens, dims/2]
}

// NewStep prepares a pass over the rows of batch on a device. The arena must have begun; the device accepts operations
// after Begin.
func NewStep(a *Arena, batch *cache.Batch, mem *cache.Memory, device int, eps float32) *Step {
	return &Step{Backend: a.b, N: a.Pad(len(batch.Pos)), Eps: eps, arena: a, batch: batch, mem: mem, device: device}
}

// BeginStep begins a step on the device.
func (s *Step) BeginStep(p *backend.Plan) {
	invariants.Check(!s.open, "a step begins inside a step")
	s.open = true
	s.Backend.BeginStep(p)
}

// Begin begins the step on the device. From now on the host may write integers only.
func (s *Step) Begin() {
	s.BeginStep(&s.batch.Plans[s.device])
	s.pos = s.Ints32(s.batch.Pos)
	s.more = nil
	for _, v := range s.batch.More {
		s.more = append(s.more, s.Ints32(v))
	}
}

// Take copies a tensor from another device before this step begins. No step may be in progress there.
func (s *Step) Take(from backend.Backend, x backend.Tensor) backend.Tensor {
	invariants.Check(!s.open, "the host writes a tensor inside a step")
	v := from.Read(x)
	y := s.New(x.Rows, x.Cols)
	s.Write(y, v)
	return y
}

// Ints32 hands integers to the device, with zeros for the rows of padding.
func (s *Step) Ints32(v []int32) backend.Ints {
	a := s.arena
	n := a.Pad(len(v))
	t := a.Ints(n)
	a.padded = append(a.padded[:0], v...)
	for range n - len(v) {
		a.padded = append(a.padded, 0)
	}
	s.SetInts(t, a.padded)
	return t
}

// Pad is the number of rows, with padding, for n tokens.
func (s *Step) Pad(n int) int { return s.arena.Pad(n) }

// End ends the step.
func (s *Step) End() { s.end() }

// end ends the step and returns the device's name for it, 0 if the device cannot run it again.
func (s *Step) end() int {
	invariants.Check(s.open, "a step ends that has not begun")
	s.open = false
	name, err := s.EndStep()
	if err != nil {
		panic(givenUp{err})
	}
	return name
}

// NewInts returns room for n integers.
func (s *Step) NewInts(n int) backend.Ints { return s.arena.Ints(n) }

// New returns a tensor of rows x cols whose contents are undefined.
func (s *Step) New(rows, cols int) backend.Tensor { return s.arena.New(rows, cols) }

// Rows returns a tensor with cols columns for every row of the pass; its contents are undefined.
func (s *Step) Rows(cols int) backend.Tensor { return s.arena.New(s.N, cols) }

// Mark remembers how much of the arena is taken.
func (s *Step) Mark() Mark { return s.arena.Mark() }

// Release gives back everything taken since the mark.
func (s *Step) Release(m Mark) { s.arena.Release(m) }

// Norm returns the normalised rows of x.
func (s *Step) Norm(x backend.Tensor, w backend.Vector) backend.Tensor {
	h := s.New(x.Rows, x.Cols)
	s.RMSNorm(h, x, w, s.Eps)
	return h
}

// Project multiplies x by each of the given matrices. The slice is reused by the next pass.
func (s *Step) Project(x backend.Tensor, ws ...backend.Weight) []backend.Tensor {
	a := s.arena
	from := len(a.views)
	a.products = a.products[:0]
	for _, w := range ws {
		y := s.New(x.Rows, w.Rows())
		a.views = append(a.views, y)
		a.products = append(a.products, backend.Product{W: w, Y: y})
	}
	s.MatMul(x, a.products...)
	return a.views[from:len(a.views):len(a.views)]
}

// Multiply multiplies x by one matrix.
func (s *Step) Multiply(x backend.Tensor, w backend.Weight) backend.Tensor {
	y := s.New(x.Rows, w.Rows())
	s.arena.products = append(s.arena.products[:0], backend.Product{W: w, Y: y})
	s.MatMul(x, s.arena.products...)
	return y
}

// NormHeads normalises the heads of x in place.
func (s *Step) NormHeads(x backend.Tensor, heads int, w backend.Vector) {
	h := x.Split(heads)
	s.RMSNorm(h, h, w, s.Eps)
}

// Rotate turns the heads of x by their rows' positions. The angles are computed once for all layers, at the first use.
func (s *Step) Rotate(x backend.Tensor, heads int, r *Rope) {
	a := s.anglesOf(r)
	s.RoPE(x.Split(heads), heads, a.cos, a.sin)
}

// Angles computes the angles of a rotary embedding, before the first layer: they stay for the whole pass.
func (s *Step) Angles(ropes ...*Rope) {
	for _, r := range ropes {
		a := angles{r, s.Rows(r.dims / 2), s.Rows(r.dims / 2)}
		if s.more == nil || r.axes == nil {
			s.Backend.Angles(a.cos, a.sin, s.pos, r.inv[s.device], r.mscale)
		} else {
			s.axes(a)
		}
		s.angles = append(s.angles, a)
	}
}

// axes computes the angles of rows with three positions. Each pair is turned by one of them: the cosines and sines of
// the others are 0 and change no bit of the sum, so a row with three equal positions gets the angles of any other text.
func (s *Step) axes(a angles) {
	mark := s.Mark()
	cos, sin := s.Rows(a.cos.Cols), s.Rows(a.cos.Cols)
	for i, axis := range a.rope.axes[s.device] {
		c, n, pos := cos, sin, s.pos
		if i == 0 {
			c, n = a.cos, a.sin
		} else {
			pos = s.more[i-1]
		}
		s.Backend.Angles(c, n, pos, axis.inv, a.rope.mscale)
		s.AddBias(c, axis.less)
		if i > 0 {
			s.Add(a.cos, a.cos, c)
			s.Add(a.sin, a.sin, n)
		}
	}
	s.Release(mark)
}

// At returns step i of a pass that has several: its rows, their angles and what they see.
func (s *Step) At(i int) *Step {
	from, steps := 0, s.batch.Steps
	for _, n := range steps[:i] {
		from += n
	}
	at := *s
	at.N, at.angles = steps[i], nil
	at.group = i * len(s.batch.Plans[s.device].KV) / len(steps)
	for _, a := range s.angles {
		at.angles = append(at.angles, angles{a.rope, a.cos.Slice(from, at.N), a.sin.Slice(from, at.N)})
	}
	return &at
}

func (s *Step) anglesOf(r *Rope) angles {
	for _, a := range s.angles {
		if a.rope == r {
			return a
		}
	}
	panic("nn: Rotate without Angles")
}

// KeepQueries copies the queries of a layer, which are not rotated yet, to Kept. They last until the next pass begins.
func (s *Step) KeepQueries(q backend.Tensor, heads int, r *Rope) {
	if s.Kept != nil {
		s.Kept.Q, s.Kept.Heads, s.Kept.KeyDim = s.keep(q, heads, r), heads, q.Cols/heads
	}
}

// KeepKeys copies the keys of a layer in the same way.
func (s *Step) KeepKeys(k backend.Tensor, heads int, r *Rope) {
	if s.Kept != nil {
		s.Kept.K, s.Kept.KVHeads = s.keep(k, heads, r), heads
	}
}

func (s *Step) keep(x backend.Tensor, heads int, r *Rope) backend.Tensor {
	y := s.New(x.Rows, x.Cols)
	s.Copy(y, x)
	if s.Kept.Rotated {
		s.Rotate(y, heads, r)
	}
	return y
}

// Remember writes the keys and values of the rows [tokens, kvHeads*dim] to a layer of the cache.
func (s *Step) Remember(layer int, k, v backend.Tensor) {
	at := s.mem.Place(layer)
	s.KVWrite(s.group+at.Group, at.Index, k, v)
}

// Attend returns the attention of q [tokens, heads*keyDim] over a layer of the cache: [tokens, heads*valueDim].
func (s *Step) Attend(layer int, q backend.Tensor, p backend.AttnParams) backend.Tensor {
	at := s.mem.Place(layer)
	o := s.Rows(p.Heads * s.mem.Dims(layer).ValueDim)
	if s.Sparse == nil || !s.SparseAttention(o, q, s.group+at.Group, at.Index, p, s.Sparse) {
		s.Attention(o, q, s.group+at.Group, at.Index, p)
	}
	return o
}
