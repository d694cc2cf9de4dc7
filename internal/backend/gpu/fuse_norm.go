package gpu

import "slices"

// normMatch is a norm whose rows are multiplied: places in the list.
type normMatch struct {
	copies int // of the sum before it, captured features, end here; they are made afterwards
	at     int // the norm
	mul    int // the product; -1 for none
	picked bool
}

// normOf finds the norm of the sum at i that a product multiplies.
func (l *lowering) normOf(i int) (m normMatch) {
	sum := l.ops[i].dst
	m = normMatch{copies: l.afterCopies(i), mul: -1}
	m.at = m.copies
	if norm := l.at(m.at); norm.kind == opRMSNorm && norm.a == sum && norm.dst != sum {
		m.mul = l.feeds(m.at, norm.dst)
	}
	return m
}

// afterCopies is the place behind the copies of what operation i writes.
func (l *lowering) afterCopies(i int) int {
	sum, j := l.ops[i].dst, i+1
	for l.at(j).kind == opCopy && l.ops[j].a == sum && !l.ops[j].dst.overlaps(sum) {
		j++
	}
	return j
}

// matchAddNorm: x += y; h = norm(x), where h is multiplied.
func (l *lowering) matchAddNorm(i int) (m normMatch, ok bool) {
	if l.ops[i].dst != l.ops[i].a {
		return m, false
	}
	m = l.normOf(i)
	return m, m.mul >= 0
}

// matchAddPicked: x += y; h = the only row of x; h = norm(h), where h is multiplied: how a pass of one token ends.
func (l *lowering) matchAddPicked(i int) (m normMatch, ok bool) {
	add, j := l.ops[i], l.afterCopies(i)
	pick, norm := l.at(j), l.at(j+1)
	if add.dst != add.a || pick.kind != opGather || pick.a != add.dst || pick.a.rows != 1 || pick.dst.rows != 1 ||
		norm.kind != opRMSNorm || norm.a != pick.dst || norm.dst != pick.dst {
		return m, false
	}
	m = normMatch{copies: j, at: j + 1, mul: l.feeds(j+1, norm.dst), picked: true}
	return m, m.mul >= 0
}

// addNorm launches the sum, the norm and its packing.
func (l *lowering) addNorm(i int, m normMatch) int {
	add, norm := l.ops[i], l.ops[m.at]
	x, y := l.summed(add.a), l.in(add.b)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	sum := Sum{X: x.in(), Y: y, Dst: x.addr, DstStride: int(x.stride), W: norm.v}
	var makes []int
	if !m.picked {
		sum.Last, makes = !l.read(i, add.b), l.makesRows(m.at, m.mul)
	}
	l.packNorm(m.mul, sum, norm, l.wanted(m.at, norm.dst, makes...))
	for k := i + 1; k < m.copies; k++ {
		l.single(k)
	}
	return m.at + 1 - i
}

// matchNorm: h = norm(x), where h is multiplied.
func (l *lowering) matchNorm(i int) (mul int, ok bool) {
	mul = l.feeds(i, l.ops[i].dst)
	return mul, mul >= 0
}

// norm launches a norm with its packing, unless its rows were packed before.
func (l *lowering) norm(i, mul int) int {
	o := l.ops[i]
	if l.packedEarly(i, mul) {
		return 1
	}
	x := l.in(o.a)
	var makes []int
	if x.Groups == 0 {
		makes = l.makesRows(i, mul)
	}
	l.overwrite(o.dst)
	l.packNorm(mul, Sum{X: x, W: o.v}, o, l.wanted(i, o.dst, makes...))
	return 1
}

// packNorm packs a normalised sum for the product at mul, and writes the rows too if they are wanted.
func (l *lowering) packNorm(mul int, sum Sum, norm op, rows bool) {
	x := l.act(mul)
	x.Sums, x.Eps = l.take(x.SumsBytes()), norm.f
	sum.Sums = x.Sums
	to := Packed{ActLayout: x.ActLayout, P: x.P}
	if rows {
		l.out = l.b.products.AddNorm(l.out, to, sum, norm.dst.addr, int(norm.dst.stride), norm.f)
	} else {
		l.out = l.b.products.AddPack(l.out, to, sum)
	}
	l.normed(norm, x)
}

// normed keeps that a norm's rows are packed.
func (l *lowering) normed(norm op, x MatMulInput) {
	p := packedRows{v: norm.dst, x: x, w: norm.v}
	if !norm.a.overlaps(norm.dst) &&
		!slices.ContainsFunc(l.pieces, func(p piecewise) bool { return p.v.overlaps(norm.a) }) {
		p.src = norm.a
	}
	l.packed = append(l.packed, p)
}

// packedEarly takes rows that were packed together with others of the same sum: the norm at i, which mul multiplies.
func (l *lowering) packedEarly(i, mul int) bool {
	o := l.ops[i]
	for k, p := range l.packed {
		if p.v.addr == 0 && p.src == o.a && p.w == o.v && p.x.Eps == o.f && p.x.ActLayout == l.actLayout(mul) &&
			!l.wanted(i, o.dst) {
			p.v = o.dst
			l.packed = append(l.packed[:k], l.packed[k+1:]...)
			l.overwrite(o.dst)
			l.packed = append(l.packed, p)
			return true
		}
	}
	return false
}
