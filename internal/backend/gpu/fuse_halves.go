package gpu

import (
	"slices"

	"strobe/internal/backend"
)

// halfProducts are the products of one input with matrices of halves, and what is done to each of them next.
type halfProducts struct {
	outs  []halfOut
	after int // the place behind all of it
}

// halfOut is y = W x; perhaps y += bias; with a single product perhaps y = gelu(y) and z += y.
type halfOut struct {
	w      *weight
	y, z   view
	bias   Addr
	gelu   bool
	writer int // the last operation that writes y
}

// halfRows are rows v as halves.
type halfRows struct {
	v view
	p Addr
}

// matchHalves finds products that all have matrices of halves.
func (l *lowering) matchHalves(i int) (m halfProducts, ok bool) {
	if !l.onlyHalves(i) {
		return m, false
	}
	for k, p := range l.products(i) {
		m.outs = append(m.outs, halfOut{w: p.w, y: p.dst, writer: i + 1 + k})
	}
	m.after = l.after(i)
	for ; l.at(m.after).kind == opAddBias; m.after++ {
		o := l.ops[m.after]
		k := slices.IndexFunc(m.outs, func(out halfOut) bool { return out.y == o.dst && out.bias == 0 })
		if k < 0 || o.a != o.dst {
			break
		}
		m.outs[k].bias, m.outs[k].writer = o.v, m.after
	}
	if len(m.outs) > 1 {
		return m, true
	}
	out := &m.outs[0]
	if o := l.at(m.after); o.kind == opActivate && o.a == out.y && o.dst == out.y &&
		backend.Activation(o.act) == backend.GELU {
		out.gelu, out.writer = true, m.after
		m.after++
	}
	if o := l.at(m.after); o.kind == opAdd && o.dst == o.a && o.b == out.y && !o.dst.overlaps(out.y) {
		out.z = o.dst
		m.after++
	}
	return m, true
}

// halfProducts launches them, a kernel for each.
func (l *lowering) halfProducts(i int, m halfProducts) int {
	o := l.ops[i]
	x := l.asHalves(o.a)
	for _, out := range m.outs {
		c := HalfCall{W: out.w.floats(), X: x, N: int(o.a.rows), Bias: out.bias, GELU: out.gelu}
		if out.z.addr != 0 {
			c.Z = l.summed(out.z).out()
			l.overwrite(out.z)
		}
		l.overwrite(out.y)
		rows, halves := l.readers(out, m.after)
		if rows {
			c.Y = out.y.out()
		}
		if halves {
			c.H = l.take(2 * int(out.y.rows) * int(out.y.cols))
			l.halved = append(l.halved, halfRows{out.y, c.H})
		}
		l.out = l.b.floats.Halves(l.out, c)
	}
	return m.after - i
}

// readers reports whether anything reads the rows of a product from operation `after` on, and whether another product
// reads them as halves.
func (l *lowering) readers(out halfOut, after int) (rows, halves bool) {
	y := l.value(out.writer, out.y)
	rows = y.end == len(l.ops) // the host may
	for _, j := range y.uses {
		if j < after {
			continue
		}
		if l.ops[j].kind == opMatMul && l.ops[j].a == out.y && l.onlyHalves(j) {
			halves = true
		} else {
			rows = true
		}
	}
	return rows, halves
}

// onlyHalves reports whether all matrices of the product at i are halves.
func (l *lowering) onlyHalves(i int) bool {
	return !slices.ContainsFunc(l.products(i), func(p op) bool { return !p.w.halves })
}

// asHalves returns rows as halves.
func (l *lowering) asHalves(v view) Addr {
	for _, h := range l.halved {
		if h.v == v {
			return h.p
		}
	}
	h := halfRows{v, l.take(2 * int(v.rows) * int(v.cols))}
	l.out = l.b.floats.HalfRows(l.out, h.p, l.summed(v).out(), int(v.rows), int(v.cols))
	l.halved = append(l.halved, h)
	return h.p
}

// dropHalves forgets halves of what is written over.
func (l *lowering) dropHalves(v view) {
	l.halved = slices.DeleteFunc(l.halved, func(h halfRows) bool {
		over := h.v.overlaps(v)
		if over {
			l.later = append(l.later, h.p)
		}
		return over
	})
}
