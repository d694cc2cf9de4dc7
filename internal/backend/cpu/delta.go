package cpu

import (
	"math"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
)

// deltaScratch holds what GatedDelta computes before the recurrence. Queries, keys and updates are
// arranged by head: rows of the batch lie a power of two apart, so that the tokens of one head would
// compete for the same few lines of the cache.
type deltaScratch struct {
	beta, decay []float32 // [n, VHeads]
	q, k        []float32 // [KHeads, n, KDim], normalised
	update      []float32 // [VHeads, n, VDim]
}

// statePool keeps every slot in memory of its own.
type statePool struct {
	b      *Backend
	d      backend.DeltaDims
	layers int
	slots  []*slot // nil where free
	free   []int32
	spare  []float32 // values of the slot freed last: clearing them takes an eighth of the time new memory does
}

// slot is the recurrent memory of a sequence, layer by layer.
type slot struct {
	values []float32 // per layer: state, then the inputs of the convolution, oldest first
	tape   []tape    // per layer
	rows   int       // of the tapes
}

// tape is what a commit needs of each row of a pass over one layer.
type tape struct {
	u []float32 // convolution inputs [rows, ConvDim]
	k []float32 // normalised keys [rows, KHeads*KDim]
	d []float32 // updates [rows, VHeads*VDim]
	g []float32 // decay factors [rows, VHeads]
}

// NewStatePool returns an empty pool.
func (b *Backend) NewStatePool(d backend.DeltaDims, layers int) (backend.StatePool, error) {
	return &statePool{b: b, d: d, layers: layers}, nil
}

func (p *statePool) Alloc() (int32, error) {
	s := &slot{values: p.spare, tape: make([]tape, p.layers)}
	p.spare = nil
	if clear(s.values); s.values == nil {
		s.values = make([]float32, p.layers*p.d.StateValues())
	}
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		p.slots[id] = s
		return id, nil
	}
	p.slots = append(p.slots, s)
	return int32(len(p.slots) - 1), nil
}

func (p *statePool) Free(id int32) {
	p.spare = p.slots[id].values
	p.slots[id] = nil
	p.free = append(p.free, id)
}

func (p *statePool) Clear(id int32)      { clear(p.slots[id].values) }
func (p *statePool) Copy(dst, src int32) { copy(p.slots[dst].values, p.slots[src].values) }
func (p *statePool) Release(id int32)    { p.slots[id].tape, p.slots[id].rows = make([]tape, p.layers), 0 }

func (p *statePool) Reserve(id int32, rows int) error {
	s := p.slots[id]
	if rows <= s.rows {
		return nil
	}
	s.rows = max(rows, 2*s.rows, 4)
	for i := range s.tape {
		t := &s.tape[i]
		for _, x := range []struct {
			v    *[]float32
			cols int
		}{{&t.u, p.d.ConvDim()}, {&t.k, p.d.KHeads * p.d.KDim}, {&t.d, p.d.VHeads * p.d.VDim}, {&t.g, p.d.VHeads}} {
			bigger := make([]float32, s.rows*x.cols)
			copy(bigger, *x.v)
			*x.v = bigger
		}
	}
	return nil
}

func (p *statePool) Keep(id int32, path []int32) {
	s := p.slots[id]
	for _, t := range s.tape {
		for _, v := range [][]float32{t.u, t.k, t.d, t.g} {
			cols := len(v) / s.rows
			for to, from := range path {
				if int(from) != to {
					copy(v[to*cols:][:cols], v[int(from)*cols:])
				}
			}
		}
	}
}

func (p *statePool) Read(id int32, layer int) []float32 { return p.layer(id, layer) }

func (p *statePool) Write(id int32, layer int, v []float32) { copy(p.layer(id, layer), v) }

// layer returns the values of one layer: its state, then the inputs of its convolution.
func (p *statePool) layer(id int32, layer int) []float32 {
	n := p.d.StateValues()
	return p.slots[id].values[layer*n:][:n]
}

// deltaSeg is a segment of the step with the memory of one layer.
type deltaSeg struct {
	backend.DeltaSeg
	state, conv []float32
	tape        *tape
}

func (p *statePool) seg(s backend.DeltaSeg, layer int) deltaSeg {
	v := p.layer(s.Slot, layer)
	n := p.d.VHeads * p.d.VDim * p.d.KDim
	return deltaSeg{s, v[:n], v[n:], &p.slots[s.Slot].tape[layer]}
}

// deltaSegs returns the segments of the step for a layer.
func (b *Backend) deltaSegs(layer int) (backend.DeltaDims, []deltaSeg) {
	p := b.plan.State.(*statePool)
	b.segs = b.segs[:0]
	for _, s := range b.plan.Delta {
		b.segs = append(b.segs, p.seg(s, layer))
	}
	return p.d, b.segs
}

// ShortConv computes silu of the causal depthwise convolution along each row's ancestors.
func (b *Backend) ShortConv(dst, u backend.Tensor, w backend.Vector, layer int) {
	wv := values(w)
	d, segs := b.deltaSegs(layer)
	width := d.ConvDim()
	b.rowsOf(len(segs), (d.Kernel-1)*width, func(i int) { convCommit(d, &segs[i]) })
	const part = 1024
	parts := (width + part - 1) / part
	b.rowsOf(u.Rows*parts, 8*part, func(t int) {
		r, c := t/parts, t%parts*part
		s := segmentOf(segs, r)
		var taps [8][]float32
		at := r - s.Row
		for j := d.Kernel - 1; j >= 0; j-- {
			if at >= 0 {
				taps[j] = row(u, s.Row+at)
				at = parent(s, at)
			} else { // -1 is the newest committed input, -2 the one before it
				taps[j] = s.conv[(d.Kernel-1+at)*width:][:width]
				at--
			}
		}
		end := min(c+part, width)
		vec.ConvSilu(row(dst, r), wv, taps[:d.Kernel], c, end)
		if !s.Prompt {
			copy(s.tape.u[(r-s.Row)*width:][c:end], row(u, r)[c:end])
		}
	})
	for i := range segs {
		if s := &segs[i]; s.Prompt {
			convShift(d, s.conv, func(i int) []float32 { return row(u, s.Row+i) }, s.N)
		}
	}
}

// segmentOf finds the segment of a row of the batch.
func segmentOf(segs []deltaSeg, r int) *deltaSeg {
	i := 0
	for r >= segs[i].Row+segs[i].N {
		i++
	}
	return &segs[i]
}

func parent(s *deltaSeg, r int) int {
	if s.Parents == nil {
		return r - 1
	}
	return int(s.Parents[r])
}

// convCommit moves the pending inputs of the tape into the convolution state.
func convCommit(d backend.DeltaDims, s *deltaSeg) {
	n := d.ConvDim()
	convShift(d, s.conv, func(i int) []float32 { return s.tape.u[i*n:] }, s.Pending)
}

// convShift appends n inputs to the convolution state, which keeps the newest.
func convShift(d backend.DeltaDims, conv []float32, in func(i int) []float32, n int) {
	keep, width := d.Kernel-1, d.ConvDim()
	for j := range keep {
		to := conv[j*width:][:width]
		if from := j + n - keep; from >= 0 {
			copy(to, in(from))
		} else {
			copy(to, conv[(j+n)*width:])
		}
	}
}

// GatedDelta runs the gated delta rule over every segment, head by head.
func (b *Backend) GatedDelta(dst, qkv, alpha, beta backend.Tensor, a, dt backend.Vector, layer int) {
	d, segs := b.deltaSegs(layer)
	n := qkv.Rows
	s := &b.delta
	s.beta, s.decay = grow(s.beta, n*d.VHeads), grow(s.decay, n*d.VHeads)
	s.q, s.k = grow(s.q, n*d.KHeads*d.KDim), grow(s.k, n*d.KHeads*d.KDim)
	s.update = grow(s.update, n*d.VHeads*d.VDim)
	av, dv := values(a), values(dt)
	kw := d.KHeads * d.KDim
	b.rowsOf(n, 2*kw+64*d.VHeads, func(r int) {
		x := row(qkv, r)
		for h := range d.KHeads {
			at := (h*n + r) * d.KDim
			vec.L2Norm(s.q[at:][:d.KDim], x[h*d.KDim:][:d.KDim], d.Eps)
			vec.L2Norm(s.k[at:][:d.KDim], x[kw+h*d.KDim:][:d.KDim], d.Eps)
		}
		al, at := row(alpha, r), r*d.VHeads
		vec.Sigmoid(s.beta[at:][:d.VHeads], row(beta, r))
		for h := range d.VHeads {
			g := av[h] * vec.Softplus(al[h]+dv[h])
			s.decay[at+h] = float32(math.Exp(float64(g)))
		}
	})
	// Heads of all sequences are shared out together: a step of many streams is many small tasks.
	do := func(t int) {
		sg, h := &segs[t/d.VHeads], t%d.VHeads
		kh := keyHead(d, h)
		x := f32(qkv)[sg.Row*qkv.Stride:]
		at, kat := sg.Row*d.VHeads, (kh*n+sg.Row)*d.KDim
		v := vec.Delta{
			DK: d.KDim, DV: d.VDim, Scale: float32(1 / math.Sqrt(float64(d.KDim))),
			State: sg.state[h*d.VDim*d.KDim:][:d.VDim*d.KDim],
			NPend: sg.Pending,
			N:     sg.N, Q: s.q[kat:], K: s.k[kat:], QKStride: d.KDim,
			V: x[2*kw+h*d.VDim:], VStride: qkv.Stride,
			Beta: s.beta[at+h:], G: s.decay[at+h:], BGStride: d.VHeads,
			DOut: s.update[(h*n+sg.Row)*d.VDim:], DStride: d.VDim,
			O: f32(dst)[sg.Row*dst.Stride+h*d.VDim:], OStride: dst.Stride,
			Store: sg.Pending,
		}
		if sg.Pending > 0 {
			sg.tape.pending(&v, d, h, kh)
		}
		if sg.Prompt {
			v.Store += sg.N
		}
		if sg.Parents != nil {
			vec.DeltaTree(&v, sg.Parents)
		} else {
			vec.DeltaRule(&v)
		}
		if !sg.Prompt { // for a later commit; the rest of the tape is still read by other heads
			for r := range sg.N {
				copy(sg.tape.d[(r*d.VHeads+h)*d.VDim:][:d.VDim], s.update[(h*n+sg.Row+r)*d.VDim:])
			}
		}
	}
	tasks := len(segs) * d.VHeads
	if b.pool.n == 1 || tasks*d.VDim*d.KDim < 1<<13 {
		for t := range tasks {
			do(t)
		}
	} else {
		b.pool.each(tasks, func(_, t int) { do(t) })
	}
	for i := range segs {
		sg := &segs[i]
		if sg.Prompt {
			continue
		}
		for r := range sg.N {
			for h := range d.KHeads {
				copy(sg.tape.k[(r*d.KHeads+h)*d.KDim:][:d.KDim], s.k[(h*n+sg.Row+r)*d.KDim:])
			}
			copy(sg.tape.g[r*d.VHeads:], s.decay[(sg.Row+r)*d.VHeads:][:d.VHeads])
		}
	}
}

// keyHead is the key head that a value head uses.
func keyHead(d backend.DeltaDims, h int) int {
	if d.Grouped {
		return h / (d.VHeads / d.KHeads)
	}
	return h % d.KHeads
}

// pending names the rows of the tape of one head.
func (t *tape) pending(v *vec.Delta, d backend.DeltaDims, h, kh int) {
	v.PK, v.PKStride = t.k[kh*d.KDim:], d.KHeads*d.KDim
	v.PD, v.PDStride = t.d[h*d.VDim:], d.VHeads*d.VDim
	v.PG, v.PGStride = t.g[h:], d.VHeads
}

// Settle applies the pending tape rows to the convolution and recurrent state.
func (p *statePool) Settle(id int32, pending int) {
	d := p.d
	p.b.rowsOf(p.layers*d.VHeads, pending*d.VDim*d.KDim, func(i int) {
		layer, h := i/d.VHeads, i%d.VHeads
		s := p.seg(backend.DeltaSeg{Slot: id, Pending: pending}, layer)
		if h == 0 {
			convCommit(d, &s)
		}
		v := vec.Delta{
			DK: d.KDim, DV: d.VDim, State: s.state[h*d.VDim*d.KDim:][:d.VDim*d.KDim],
			NPend: pending, Store: pending,
		}
		s.tape.pending(&v, d, h, keyHead(d, h))
		vec.DeltaRule(&v)
	})
}
