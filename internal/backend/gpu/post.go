package gpu

// Post is the end of a part of a layer whose output is normalised before it is added to the residual stream: dst = (x +
// norm(y)) * factor, where y may be the sum of experts, or (x + norm(z + norm(y))) * factor. The result is packed for the
// next product as in AddPack, if that is wanted.
type Post struct {
	X, Y, Z In
	Used    int // experts of a row; 0: Y is the output itself
	Weights Out // of the experts
	Scale   Addr
	IDs     Addr
	WY, WZ  Addr // of the norms
	Eps     float32
	Factor  float32
	Dst     Out
	W       Addr // of the norm before the product
	Sums    Addr
}

// postArgs mirrors PostArgs of post.cu.
type postArgs struct {
	act                             actArgs
	x, y, z                         In
	weights, scale, ids             Addr
	wy, wz, dst, w, sumsq           Addr
	rows, cols, used, ws, dstStride int32
	factor, eps                     float32
	_                               int32
}

// postWarps and postColumns are the warps of a block, and the longest row they have registers for.
const (
	postWarps   = 16
	postColumns = 2 * postWarps * stageCols
)

// Post appends the end of a part of a layer.
func (p *Products) Post(ls []Launch, to Packed, t Post) []Launch {
	a := Args(postArgs{act: to.args(), x: t.X, y: t.Y, z: t.Z, weights: t.Weights.P, scale: t.Scale, ids: t.IDs, wy: t.WY, wz: t.WZ,
		dst: t.Dst.P, w: t.W, sumsq: t.Sums, rows: int32(to.Rows), cols: int32(to.Cols), used: int32(t.Used),
		ws: int32(t.Weights.Stride), dstStride: int32(t.Dst.Stride), factor: t.Factor, eps: t.Eps})
	return append(ls, Launch{Name: "post_pack", Grid: [3]int{min(to.Rows, 4*p.Units), 1, 1}, Threads: 32 * postWarps,
		Shared: 4 * ((to.Cols + stageCols - 1) / stageCols), Early: p.Bulk, Args: a})
}

// post: y = norm(y), where y may be a sum of experts; perhaps z += y, z = norm(z), and z for y from then on; x += y;
// perhaps x *= f; perhaps h = norm(x), where h is multiplied. Nothing else may read what lies between.
func (l *lowering) post(i int) int {
	first, t, j := l.ops[i], Post{Factor: 1}, i
	if first.kind == opExpertSum {
		j++
	}
	norm := *l.at(j)
	y, z := norm.dst, view{}
	own := func(o *op, v view) bool {
		return o.kind == opRMSNorm && o.a == v && o.dst == v && o.v != 0 && o.f == norm.f
	}
	if !own(&norm, y) || first.dst != y || y.cols <= shortRow || y.cols > postColumns || l.b.products.Plain {
		return 0
	}
	added := func(j int, y view) bool { // x += y, after which nobody reads y
		o := l.at(j)
		return o.kind == opAdd && o.dst == o.a && o.b == y && !o.dst.overlaps(y) && !l.read(j, y)
	}
	last := y
	if j++; added(j, y) && own(l.at(j+1), l.ops[j].dst) {
		z, last, t.WZ = l.ops[j].dst, l.ops[j].dst, l.ops[j+1].v
		j += 2
	}
	if !added(j, last) {
		return 0
	}
	x := l.ops[j].dst
	if s := l.at(j + 1); s.kind == opScale && s.a == x && s.dst == x {
		t.Factor = s.f
		j++
	}
	t.X, t.Dst, t.WY, t.Eps = l.plain(x).in(), x.out(), norm.v, norm.f
	t.Y = l.in(first.a)
	if first.kind == opExpertSum {
		t.Used, t.Weights, t.Scale, t.IDs = int(first.n), l.plain(first.b).out(), first.v, first.ids
	}
	if z.addr != 0 {
		t.Z = l.in(z)
		l.overwrite(z)
	}
	l.overwrite(y)
	l.overwrite(x)
	at, h, mul := l.normOf(j)
	if mul < 0 || l.wanted(at, h.dst) {
		l.out = l.b.products.Post(l.out, Packed{ActLayout: ActLayout{Rows: int(x.rows), Cols: int(x.cols)}}, t)
		return j + 1 - i
	}
	l.overwrite(h.dst)
	to := l.act(mul)
	to.Sums, to.Eps = l.take(to.SumsBytes()), h.f
	t.W, t.Sums = h.v, to.Sums
	l.out = l.b.products.Post(l.out, Packed{ActLayout: to.ActLayout, P: to.P}, t)
	l.normed(h, to)
	for k := j + 1; k < at; k++ {
		l.single(k)
	}
	return at + 1 - i
}
