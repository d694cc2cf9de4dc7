package cpu

import (
	"math"

	"strobe/backend"
	"strobe/backend/cpu/kernel/vec"
)

// deltaScratch holds what GatedDelta computes before the recurrence. Queries, keys and updates are
// arranged by head: rows of the batch lie a power of two apart, so that the tokens of one head would
// compete for the same few lines of the cache.
type deltaScratch struct {
	beta, decay []float32 // [n, VHeads]
	q, k        []float32 // [KHeads, n, KDim], normalised
	update      []float32 // [VHeads, n, VDim]
}

// ShortConv computes silu of the causal depthwise convolution along each row's ancestors.
func (b *Backend) ShortConv(dst, u backend.Tensor, w backend.Vector, d backend.DeltaDims, segs []backend.DeltaSeg) {
	wv := values(w)
	b.rowsOf(len(segs), (d.Kernel-1)*d.ConvDim(), func(i int) { convCommit(d, &segs[i]) })
	const part = 1024
	parts := (d.ConvDim() + part - 1) / part
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
				taps[j] = row(s.Conv, d.Kernel-1+at)
				at--
			}
		}
		end := min(c+part, d.ConvDim())
		vec.ConvSilu(row(dst, r), wv, taps[:d.Kernel], c, end)
		if !s.Prompt {
			copy(row(s.TapeU, r-s.Row)[c:end], row(u, r)[c:end])
		}
	})
	for i := range segs {
		if s := &segs[i]; s.Prompt {
			convShift(d, s, func(i int) []float32 { return row(u, s.Row+i) }, s.N)
		}
	}
}

// segmentOf finds the segment of a row of the batch.
func segmentOf(segs []backend.DeltaSeg, r int) *backend.DeltaSeg {
	i := 0
	for r >= segs[i].Row+segs[i].N {
		i++
	}
	return &segs[i]
}

func parent(s *backend.DeltaSeg, r int) int {
	if s.Parents == nil {
		return r - 1
	}
	return int(s.Parents[r])
}

// convCommit moves the pending inputs of the tape into the convolution state.
func convCommit(d backend.DeltaDims, s *backend.DeltaSeg) {
	convShift(d, s, func(i int) []float32 { return row(s.TapeU, i) }, s.Pending)
}

// convShift appends n inputs to the convolution state, which keeps the newest.
func convShift(d backend.DeltaDims, s *backend.DeltaSeg, in func(i int) []float32, n int) {
	keep := d.Kernel - 1
	for j := range keep {
		if from := j + n - keep; from >= 0 {
			copy(row(s.Conv, j), in(from))
		} else {
			copy(row(s.Conv, j), row(s.Conv, j+n))
		}
	}
}

// GatedDelta runs the gated delta rule over every segment, head by head.
func (b *Backend) GatedDelta(dst, qkv, alpha, beta backend.Tensor, a, dt backend.Vector, d backend.DeltaDims, segs []backend.DeltaSeg) {
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
		kh := h % d.KHeads
		if d.Grouped {
			kh = h / (d.VHeads / d.KHeads)
		}
		x := f32(qkv)[sg.Row*qkv.Stride:]
		at, kat := sg.Row*d.VHeads, (kh*n+sg.Row)*d.KDim
		v := vec.Delta{
			DK: d.KDim, DV: d.VDim, Scale: float32(1 / math.Sqrt(float64(d.KDim))),
			State: f32(sg.State)[h*d.VDim*d.KDim:][:d.VDim*d.KDim],
			NPend: sg.Pending,
			N:     sg.N, Q: s.q[kat:], K: s.k[kat:], QKStride: d.KDim,
			V: x[2*kw+h*d.VDim:], VStride: qkv.Stride,
			Beta: s.beta[at+h:], G: s.decay[at+h:], BGStride: d.VHeads,
			DOut: s.update[(h*n+sg.Row)*d.VDim:], DStride: d.VDim,
			O: f32(dst)[sg.Row*dst.Stride+h*d.VDim:], OStride: dst.Stride,
			Store: sg.Pending,
		}
		if sg.Pending > 0 {
			v.PK, v.PKStride = f32(sg.TapeK)[kh*d.KDim:], sg.TapeK.Stride
			v.PD, v.PDStride = f32(sg.TapeD)[h*d.VDim:], sg.TapeD.Stride
			v.PG, v.PGStride = f32(sg.TapeG)[h:], sg.TapeG.Stride
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
				copy(row(sg.TapeD, r)[h*d.VDim:][:d.VDim], s.update[(h*n+sg.Row+r)*d.VDim:])
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
				copy(row(sg.TapeK, r)[h*d.KDim:][:d.KDim], s.k[(h*n+sg.Row+r)*d.KDim:])
			}
			copy(row(sg.TapeG, r), s.decay[(sg.Row+r)*d.VHeads:][:d.VHeads])
		}
	}
}

// DeltaCommit applies the pending tape rows to the convolution and recurrent state.
func (b *Backend) DeltaCommit(d backend.DeltaDims, s backend.DeltaSeg) {
	if s.Pending == 0 {
		return
	}
	convCommit(d, &s)
	b.rowsOf(d.VHeads, s.Pending*d.VDim*d.KDim, func(h int) {
		kh := h % d.KHeads
		if d.Grouped {
			kh = h / (d.VHeads / d.KHeads)
		}
		vec.DeltaRule(&vec.Delta{
			DK: d.KDim, DV: d.VDim, State: f32(s.State)[h*d.VDim*d.KDim:][:d.VDim*d.KDim],
			NPend: s.Pending, Store: s.Pending,
			PK: f32(s.TapeK)[kh*d.KDim:], PKStride: s.TapeK.Stride,
			PD: f32(s.TapeD)[h*d.VDim:], PDStride: s.TapeD.Stride,
			PG: f32(s.TapeG)[h:], PGStride: s.TapeG.Stride,
		})
	})
}
