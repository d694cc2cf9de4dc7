package cpu

import (
	"runtime"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/backend/cpu/kernel/vec"
)

// panel is the number of rows the kernels compute together, and tile what they like best: work is
// shared in multiples of it.
const (
	panel   = qmat.Panel
	rowTile = 2 * panel
)

// inlineMACs is the work below which a product runs on the calling worker alone.
const inlineMACs = 1 << 15

// MatMul computes every product of the same input. The input is rounded to int8 once when
// any weight is quantised, and all outputs are shared among the workers together.
func (b *Backend) MatMul(x backend.Tensor, ps ...backend.Product) {
	b.quantizeFor(x, ps)
	b.pack(&b.acts, x, nil)
	macs, tiles := 0, 0
	for _, p := range ps {
		macs += p.W.Rows() * p.W.Cols() * x.Rows
		tiles += (p.W.Rows() + rowTile - 1) / rowTile
	}
	do := func(w, from, to, ahead int) {
		for _, p := range ps {
			m := p.W.(*weight)
			n := (m.rows + rowTile - 1) / rowTile
			if from < n && to > 0 {
				b.product(p.Y, m, 0, x, &b.acts, max(from, 0)*rowTile, min(to*rowTile, m.rows), ahead*rowTile, w)
			}
			from, to, ahead = from-n, to-n, ahead-n
		}
	}
	if macs < inlineMACs {
		do(0, 0, tiles, tiles)
		return
	}
	b.pool.split(tiles, do)
}

// quantizeFor rounds x to int8 if a product needs it.
func (b *Backend) quantizeFor(x backend.Tensor, ps []backend.Product) {
	b.rounded = false
	for _, p := range ps {
		b.rounded = b.rounded || !isFloat(p.W.Type())
	}
	if !b.rounded {
		return
	}
	b.rows.Reset(x.Rows, x.Cols)
	v := f32(x)
	b.share(x.Rows, x.Cols, func(r0, r1 int) { b.rows.Quantize(v, x.Stride, r0, r1) })
}

// pack arranges rounded rows (all of them when cols is nil) for the kernels.
func (b *Backend) pack(a *qmat.Acts, x backend.Tensor, cols []int32) {
	if !b.rounded {
		return
	}
	n := x.Rows
	if cols != nil {
		n = len(cols)
	}
	a.Reset(n, x.Cols)
	b.share(a.Blocks(), 256*n, func(b0, b1 int) { a.Pack(&b.rows, cols, b0, b1) })
}

// share splits [0, n) into ranges when n items of the given size are worth sharing.
func (b *Backend) share(n, size int, fn func(from, to int)) {
	if b.pool.n == 1 || n == 1 || n*size < 4*smallWork {
		fn(0, n)
		return
	}
	parts := min(n, 4*b.pool.n)
	b.pool.each(parts, func(_, t int) { fn(t*n/parts, (t+1)*n/parts) })
}

// product computes rows [r0, r1) of y = W[e] x. a holds x rounded, for quantised weights. The worker will
// probably go on with the rows up to ahead.
func (b *Backend) product(y backend.Tensor, m *weight, e int, x backend.Tensor, a *qmat.Acts, r0, r1, ahead,
	worker int) {
	out := f32(y)
	n := x.Rows
	if isFloat(m.typ) {
		vec.MatMul(out, y.Stride, m.typ, m.expert(e), m.cols, f32(x), x.Stride, n, r0, r1)
	} else {
		q := m.matrix(e)
		n = a.N()
		q.Mul(out, y.Stride, a, r0, r1, ahead, b.workers[worker].mul)
		runtime.KeepAlive(m) // with it goes the memory of its copy
	}
	if s := m.scaleOf(e); s != 1 {
		for c := range n {
			v := out[c*y.Stride+r0 : c*y.Stride+r1]
			vec.Scale(v, v, s)
		}
	}
}
