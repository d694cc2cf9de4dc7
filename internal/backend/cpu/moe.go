package cpu

import (
	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/backend/cpu/kernel/vec"
)

// Route turns router logits into the chosen experts of every row and their weights:
// softmax over all experts, the best ones, renormalised.
func (b *Backend) Route(ids backend.Ints, weights, logits backend.Tensor, used int, scale float32) {
	id := ids.(ints)
	b.rowsOf(logits.Rows, 16*logits.Cols, func(r int) {
		p := row(logits, r)
		vec.Softmax(p)
		best, w := id[r*used:][:used], row(weights, r)[:used]
		topK(best, w, p)
		sum := float32(0)
		for i := range w {
			if best[i] < 0 { // only with NaN logits; any expert will do, the result is NaN anyway
				best[i] = 0
			}
			sum += w[i]
		}
		vec.Scale(w, w, scale/max(sum, 6.103515625e-5))
	})
}

// expertScratch groups the rows of a batch by expert.
type expertScratch struct {
	start []int32 // per expert: first entry in order; one more at the end
	order []int32 // entries t*used+j, by expert
	cols  []int32 // the row of x of each entry in order
	live  []int32 // experts that have entries
	acts  []qmat.Acts
	in    []float32 // gathered rows of x, for float weights
	out   []float32 // results in the order of order
}

func (s *expertScratch) group(ids []int32, experts, used int, perToken bool) {
	s.start = grow(s.start, experts+1)
	clear(s.start)
	for _, e := range ids {
		s.start[e+1]++
	}
	s.live = s.live[:0]
	for e := range experts {
		if s.start[e+1] > 0 {
			s.live = append(s.live, int32(e))
		}
		s.start[e+1] += s.start[e]
	}
	s.order, s.cols = grow(s.order, len(ids)), grow(s.cols, len(ids))
	at := append([]int32(nil), s.start[:experts]...)
	for i, e := range ids {
		s.order[at[e]] = int32(i)
		s.cols[at[e]] = int32(i)
		if perToken {
			s.cols[at[e]] = int32(i / used)
		}
		at[e]++
	}
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// ExpertMatMul multiplies every row by the matrices of its experts. Rows are grouped so
// that each expert's weights are read once, and experts that no token chose are not read.
func (b *Backend) ExpertMatMul(x backend.Tensor, ids backend.Ints, used int, ps ...backend.Product) {
	s := &b.experts
	n := ps[0].Y.Rows
	s.group(ids.(ints)[:n], ps[0].W.Experts(), used, x.Rows != n)
	b.quantizeFor(x, ps)
	if len(s.acts) < len(s.live) {
		s.acts = append(s.acts, make([]qmat.Acts, len(s.live)-len(s.acts))...)
	}
	if b.rounded {
		b.pool.each(len(s.live), func(_, i int) {
			cols := s.cols[s.start[s.live[i]]:s.start[s.live[i]+1]]
			s.acts[i].Reset(len(cols), x.Cols)
			s.acts[i].Pack(&b.rows, cols, 0, s.acts[i].Blocks())
		})
	}
	for _, p := range ps {
		m := p.W.(*weight)
		if isFloat(m.typ) {
			s.in = grow(s.in, n*x.Cols)
			for i, c := range s.cols {
				copy(s.in[i*x.Cols:][:x.Cols], row(x, int(c)))
			}
		}
		s.out = grow(s.out, n*m.rows)
		parts := max(1, min((m.rows+63)/64, 4*b.pool.n/max(1, len(s.live))))
		chunk := ((m.rows+parts-1)/parts + rowTile - 1) / rowTile * rowTile
		parts = (m.rows + chunk - 1) / chunk
		b.pool.each(len(s.live)*parts, func(w, t int) {
			i := t / parts
			e := int(s.live[i])
			from, to := int(s.start[e]), int(s.start[e+1])
			in := backend.Tensor{Buf: buffer(s.in), Off: from * x.Cols, Rows: to - from, Cols: x.Cols, Stride: x.Cols}
			out := backend.Tensor{Buf: buffer(s.out), Off: from * m.rows, Rows: to - from, Cols: m.rows, Stride: m.rows}
			r0 := t % parts * chunk
			b.product(out, m, e, in, &s.acts[i], r0, min(r0+chunk, m.rows), 0, w)
		})
		b.rowsOf(n, m.rows, func(i int) {
			copy(row(p.Y, int(s.order[i])), s.out[i*m.rows:][:m.rows])
		})
	}
}

// ExpertSum adds the outputs of each row's experts with their weights, best expert first.
func (b *Backend) ExpertSum(dst, y, weights backend.Tensor, ids backend.Ints, used int, scale backend.Vector) {
	id, sc := ids.(ints), values(scale)
	b.rowsOf(dst.Rows, used*dst.Cols, func(r int) {
		out, w := row(dst, r), row(weights, r)
		clear(out)
		for j := range used {
			f := w[j]
			if sc != nil {
				f *= sc[id[r*used+j]]
			}
			vec.Axpy(out, f, row(y, r*used+j))
		}
	})
}
