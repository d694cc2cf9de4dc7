package gpu

// Post is the end of a part of a layer whose output is normalised before it is added to the residual stream: dst = (x +
// norm(y)) * factor, where y may be the sum of experts, or (x + norm(z + norm(y))) * factor, where z may be normalised,
// too. The result is packed for the next products as in AddPack, if that is wanted.
type Post struct {
	X, Y, Z    In
	Used       int // experts of a row; 0: Y is the output itself
	Weights    Out // of the experts
	Scale      Addr
	IDs        Addr
	WY, WZ, WV Addr // of the norms of Y, of Z (0 for none) and of their sum
	Eps        float32
	Factor     float32
	Dst        Out
	W          [2]Addr // of the norms before the products
	Sums       [2]Addr
}

// postArgs mirrors PostArgs of post.cu.
type postArgs struct {
	act                             [2]actArgs
	x, y, z                         In
	weights, scale, ids             Addr
	wy, wz, wv, dst                 Addr
	w, sums                         [2]Addr
	rows, cols, used, ws, dstStride int32
	factor, eps                     float32
	_                               int32
}

// Post's kernel: threads of a block, at most, the columns for which they have registers, and its shared memory in front
// of two rows.
const (
	postThreads = 768
	postColumns = 8 * postThreads
	postFront   = 96
)

// Post appends the end of a part of a layer. The second packing is for another product of the same sum; without an
// address it is left out, without one of the first both are.
func (p *Products) Post(ls []Call, to [2]Packed, t Post) []Call {
	rows, cols := to[0].Rows, to[0].Cols
	a := &postArgs{act: [2]actArgs{to[0].args(), to[1].args()}, x: t.X, y: t.Y, z: t.Z, weights: t.Weights.P,
		scale: t.Scale, ids: t.IDs, wy: t.WY, wz: t.WZ, wv: t.WV, dst: t.Dst.P, w: t.W, sums: t.Sums, rows: int32(rows),
		cols: int32(cols), used: int32(t.Used), ws: int32(t.Weights.Stride), dstStride: int32(t.Dst.Stride),
		factor: t.Factor, eps: t.Eps}
	threads := (cols/4 + 31) &^ 31 // one for each quad, or for two; 256 add squares
	if threads > postThreads {
		threads = (cols/8 + 31) &^ 31
	}
	return append(ls, Call{kernelPost, a, Config{Grid: [3]int{1, rows, 1}, Threads: max(256, threads),
		Shared: postFront + 8*cols, Early: p.Bulk}})
}

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

// ends finds the end of a part of a layer that begins at i. Nothing else reads what lies between.
func (l *lowering) ends(i int) (e ending, ok bool) {
	first, j := l.at(i), i
	if e.experts = first.kind == opExpertSum; e.experts {
		j++
	}
	norm := l.at(j)
	own := func(o *op, v view) bool {
		return o.kind == opRMSNorm && o.a == v && o.dst == v && o.v != 0 && o.v%16 == 0 && o.f == norm.f
	}
	e.y, e.wy, e.eps, e.factor = norm.dst, norm.v, norm.f, 1
	if l.b.products.NoTensorCores || !own(norm, e.y) || first.dst != e.y || e.y.cols <= shortRow || e.y.cols > postColumns ||
		e.y.cols%8 != 0 || !e.y.out().aligned() || e.experts && !first.a.out().aligned() {
		return e, false
	}
	added := func(j int, y view) bool { // x += y, after which nobody reads y
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

// lateNorm: z = norm(z), which the end of a part of the layer does that adds something to z: only that reads it.
func (l *lowering) lateNorm(i int) int {
	o := l.ops[i]
	if o.a != o.dst || o.v == 0 || o.v%16 != 0 {
		return 0
	}
	for j := i + 1; j < len(l.ops); j++ {
		if l.ops[j].kind == opExpertSum {
			if e, ok := l.ends(j); ok && e.z == o.dst && e.eps == o.f {
				l.late = lateNorm{o.dst, o.v}
				return 1
			}
		}
		for v := range l.ops[j].reads {
			if v.overlaps(o.dst) {
				return 0
			}
		}
		for v := range l.ops[j].writes {
			if v.overlaps(o.dst) {
				return 0
			}
		}
	}
	return 0
}

// lateNorm is a norm with weights w that is put off.
type lateNorm struct {
	v view
	w Addr
}

// post launches the end of a part of a layer with the packing for the products of its sum that follow.
func (l *lowering) post(i int) int {
	e, ok := l.ends(i)
	if !ok {
		return 0
	}
	first := l.ops[i]
	t := Post{X: l.plain(e.x).in(), Dst: e.x.out(), WY: e.wy, WV: e.wv, Eps: e.eps, Factor: e.factor}
	if e.experts {
		t.Used, t.Weights, t.Scale, t.IDs = int(first.used), l.plain(first.b).out(), first.v, first.ids
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
	at, norm, mul := l.normOf(e.after - 1)
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
	for j := i + 1; j < len(l.ops); j++ {
		if o := &l.ops[j]; o.kind == opRMSNorm && o.a == x && !o.dst.overlaps(x) {
			if mul := l.feeds(j, o.dst); mul >= 0 && !l.wanted(j, o.dst) {
				return j, mul
			}
		}
		for v := range l.ops[j].writes {
			if v.overlaps(x) {
				return -1, -1
			}
		}
	}
	return -1, -1
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
