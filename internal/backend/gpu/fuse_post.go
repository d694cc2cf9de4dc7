package gpu

// ending is the end of a part of a layer as models write it: perhaps y = sum of experts; y = norm(y); perhaps z += y,
// z = norm(z), and z for y from then on; x += y; perhaps x *= factor.
type ending struct {
	experts bool
	y, z, x view
	wy, wv  Addr
	eps     float32
	factor  float32
	after   int // the place behind all of it
}

// matchPost finds the end of a part of a layer that begins at i. Nothing else reads what lies between.
func (l *lowering) matchPost(i int) (e ending, ok bool) {
	first, j := l.at(i), i
	if e.experts = first.kind == opExpertSum; e.experts {
		j++
	}
	norm := l.at(j)
	own := func(o *op, v view) bool {
		return o.kind == opRMSNorm && o.a == v && o.dst == v && o.v != 0 && o.v%16 == 0 && o.f == norm.f
	}
	e.y, e.wy, e.eps, e.factor = norm.dst, norm.v, norm.f, 1
	if l.b.products.NoTensorCores || !own(norm, e.y) || first.dst != e.y || e.y.cols <= shortRow ||
		e.y.cols > postColumns || e.y.cols%8 != 0 || !e.y.out().aligned() || e.experts && !first.a.out().aligned() {
		return e, false
	}
	added := func(j int, y view) bool { // x += y, and nothing reads y afterwards
		o := l.at(j)
		return o.kind == opAdd && o.dst == o.a && o.b == y && !o.dst.overlaps(y) && o.dst.out().aligned() && !l.read(j, y)
	}
	last := e.y
	if j++; added(j, last) && own(l.at(j+1), l.ops[j].dst) {
		e.z, e.wv = l.ops[j].dst, l.ops[j+1].v
		last = e.z
		j += 2
	}
	if !added(j, last) {
		return e, false
	}
	e.x, e.after = l.ops[j].dst, j+1
	if s := l.at(j + 1); s.kind == opScale && s.a == e.x && s.dst == e.x {
		e.factor = s.f
		e.after++
	}
	return e, true
}

// matchLateNorm: z = norm(z), which the end of a part of the layer does that adds something to z: only that reads it.
func (l *lowering) matchLateNorm(i int) (lateNorm, bool) {
	o := l.ops[i]
	z := l.value(i, o.dst)
	if o.a != o.dst || o.v == 0 || o.v%16 != 0 || len(z.uses) == 0 {
		return lateNorm{}, false
	}
	first := z.uses[0] - 2 // the end adds to z behind the sum of experts and its norm
	if first <= i || l.ops[first].kind != opExpertSum {
		return lateNorm{}, false
	}
	e, ok := l.matchPost(first)
	return lateNorm{o.dst, o.v}, ok && e.z == o.dst && e.eps == o.f
}

// putOff leaves the norm to that end.
func (l *lowering) putOff(_ int, n lateNorm) int {
	l.late = n
	return 1
}

// lateNorm is a norm with weights w that is put off.
type lateNorm struct {
	v view
	w Addr
}

// post launches the end of a part of a layer with the packing for the products of its sum that follow.
func (l *lowering) post(i int, e ending) int {
	first := l.ops[i]
	t := Post{X: l.summed(e.x).in(), Dst: e.x.out(), WY: e.wy, WV: e.wv, Eps: e.eps, Factor: e.factor}
	if e.experts {
		t.Used, t.Weights, t.Scale, t.IDs = int(first.used), l.summed(first.b).out(), first.v, first.ids
		t.Y = l.in(first.a)
	} else {
		t.Y = l.in(e.y)
	}
	if e.z.addr != 0 {
		t.Z = l.in(e.z)
		if l.late.v == e.z {
			t.WZ = l.late.w
			l.late = lateNorm{}
		}
		l.overwrite(e.z)
	}
	l.overwrite(e.y)
	l.overwrite(e.x)
	none := ActLayout{Rows: int(e.x.rows), Cols: int(e.x.cols)}
	to := [2]Packed{{ActLayout: none}, {ActLayout: none}}
	m := l.normOf(e.after - 1)
	at, norm, mul := m.at, *l.at(m.at), m.mul
	if mul < 0 || l.wanted(at, norm.dst, l.makesRows(at, mul)...) {
		l.out = l.b.products.Post(l.out, to, t)
		return e.after - i
	}
	l.overwrite(norm.dst)
	pack := func(k, mul int, norm op) MatMulInput {
		x := l.act(mul)
		x.Sums, x.Eps = l.take(x.SumsBytes()), norm.f
		to[k] = Packed{ActLayout: x.ActLayout, P: x.P}
		t.W[k], t.Sums[k] = norm.v, x.Sums
		return x
	}
	x := pack(0, mul, norm)
	var early *packedRows
	if k, mul := l.otherNorm(at, e.x); k >= 0 {
		early = &packedRows{x: pack(1, mul, l.ops[k]), src: e.x, w: l.ops[k].v}
	}
	l.out = l.b.products.Post(l.out, to, t)
	l.normed(norm, x)
	if early != nil {
		l.packed = append(l.packed, *early)
	}
	for k := e.after; k < at; k++ {
		l.single(k)
	}
	return at + 1 - i
}

// otherNorm finds another norm of x after the one at i, and the product that multiplies it alone; -1 for none.
func (l *lowering) otherNorm(i int, x view) (at, mul int) {
	for _, j := range l.value(i, x).uses {
		if o := &l.ops[j]; j > i && o.kind == opRMSNorm && o.a == x && !o.dst.overlaps(x) {
			if mul := l.feeds(j, o.dst); mul >= 0 && !l.wanted(j, o.dst) {
				return j, mul
			}
		}
	}
	return -1, -1
}
