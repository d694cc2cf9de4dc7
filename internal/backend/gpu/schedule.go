package gpu

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
)

// single launches the operation at i by itself and returns how many entries of the list it took.
func (l *lowering) single(i int) int {
	o := l.ops[i]
	b, sm, rows, cols := l.b, l.b.small, int(o.dst.rows), int(o.dst.cols)
	switch o.kind {
	case opMatMul:
		l.matMul(i)
		return 1 + int(o.outputs)
	case opExpertMatMul:
		l.expertMatMul(i)
		return 1 + int(o.outputs)
	case opSetInts:
		n := 1
		for l.at(i+n).kind == opSetInts {
			n++
		}
		l.out = sm.Scatter(l.out, l.lay.base+Addr(setBytes*int(o.set)), n)
		return n
	case opEmbed:
		l.overwrite(o.dst)
		l.out = b.products.Embed(l.out, o.dst.addr, int(o.dst.stride), o.w.WeightLayout, o.w.addr, o.ids, rows, o.f*o.w.scale)
	case opRMSNorm:
		x := HeadsIn{In: l.in(o.a)}
		l.overwrite(o.dst)
		l.out = sm.RMSNorm(l.out, HeadsOut{P: o.dst.addr, Stride: int(o.dst.stride)}, x, o.v, o.f, rows, 1, cols)
	case opLayerNorm:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.LayerNorm(l.out, o.dst.out(), x, o.v, o.v2, o.f, rows, cols)
	case opAdd:
		x, y := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.Add(l.out, o.dst.out(), x, y, rows, cols)
	case opAddBias:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.AddBias(l.out, o.dst.out(), x, o.v, rows, cols)
	case opScale:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Scale(l.out, o.dst.out(), x, o.f, rows, cols)
	case opCopy:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Copy(l.out, o.dst.out(), x, rows, cols)
	case opGather:
		x := l.summed(o.a)
		l.overwrite(o.dst)
		l.out = sm.Gather(l.out, o.dst.out(), x.in(), o.ids, rows, cols)
	case opActivate:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Activate(l.out, o.dst.out(), x, backend.Activation(o.act), rows, cols)
	case opGated:
		g, u := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.Gated(l.out, o.dst.out(), g, u, backend.Activation(o.act), rows, cols)
	case opSigmoidGate:
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.SigmoidGate(l.out, o.dst.out(), x, g, rows, cols)
	case opAddGated:
		l.summed(o.dst)
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.AddGated(l.out, o.dst.out(), x, g, rows, cols)
	case opSoftcap:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Softcap(l.out, o.dst.out(), x, o.f, rows, cols)
	case opClamp:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Clamp(l.out, o.dst.out(), x, o.f, o.f2, rows, cols)
	case opAngles:
		l.overwrite(o.dst)
		l.overwrite(o.b)
		l.out = sm.Angles(l.out, o.dst.out(), o.b.out(), o.ids, o.v, o.f, rows, cols)
	case opRoPE:
		l.summed(o.a)
		l.overwrite(o.dst)
		l.out = sm.RoPE(l.out, o.dst.out(), o.b.out(), o.c.out(), rows, int(o.heads), int(o.b.cols))
	case opBlockConv:
		x, dyn := l.summed(o.a), l.summed(o.b)
		l.overwrite(o.dst)
		l.out = sm.BlockConv(l.out, o.dst.out(), x.out(), dyn.out(), o.v, o.ids, rows, cols, int(o.count),
			int(dyn.cols/o.count))
	case opRoute:
		if l.groups.ids == o.ids { // the choice before is gone
			l.b.spare.give(l.groups.tables)
			l.groups = expertGroups{}
		}
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Route(l.out, o.ids, o.dst.out(), x, rows, int(o.a.cols), int(o.used), o.f)
	case opExpertBias:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.ExpertBias(l.out, o.dst.out(), x, o.ids, o.v, rows, cols)
	case opExpertSum:
		y, w := l.in(o.a), l.summed(o.b)
		l.overwrite(o.dst)
		l.out = sm.ExpertSum(l.out, o.dst.out(), y, w.out(), o.ids, o.v, rows, cols, int(o.used))
	case opArgMax:
		x := l.in(o.a)
		spare := l.take(SelectScratch(int(o.a.rows), int(o.a.cols), 1))
		var to Out
		at := slices.IndexFunc(l.pieces, func(p piecewise) bool { return p.v == o.a })
		if at >= 0 && !b.products.NoTensorCores && o.a.out().aligned() { // they are wanted at the end of the step
			to = o.a.out()
			l.dropPieces(at)
		}
		l.out = sm.ArgMax(l.out, o.ids, x, to, int(o.a.rows), int(o.a.cols), spare)
		b.spare.give(spare)
	case opTopK:
		x := l.in(o.a)
		spare := l.take(SelectScratch(rows, int(o.a.cols), int(o.count)))
		l.overwrite(o.dst)
		l.keep(sm.TopK(l.out, o.ids, o.dst.out(), x, rows, int(o.a.cols), int(o.count), spare))
		b.spare.give(spare)
	case opCandidates:
		x := l.in(o.a)
		at := slices.IndexFunc(l.pieces, func(p piecewise) bool { return p.v == o.a })
		if at >= 0 && !b.products.NoTensorCores && o.a.out().aligned() { // they become plain rows on the way
			l.dropPieces(at)
		} else {
			x = l.summed(o.a).in()
		}
		spare := l.take(CandidateScratch(int(o.a.rows), int(o.a.cols)))
		l.out = sm.Candidates(l.out, o.ids, x, o.a.out(), int(o.a.rows), int(o.a.cols), o.v, spare)
		b.spare.give(spare)
	case opKVWrite:
		k, v := l.in(o.a), l.in(o.b)
		l.kvWrite(o, k, v)
	case opAttention:
		q := l.summed(o.a)
		l.overwrite(o.dst)
		l.attention(o, q)
	case opShortConv:
		return l.shortConv(i)
	case opGatedDelta:
		l.gatedDelta(o)
	default:
		panic(fmt.Sprintf("gpu: schedule.go has no launch for operation %d", o.kind)) // a new one; see CONTRIBUTING
	}
	return 1
}

// matMul multiplies packed rows with tiles, and plain ones with matrices of floats.
func (l *lowering) matMul(i int) {
	o := l.ops[i]
	var tiles []op
	var x view
	for _, p := range l.products(i) {
		if p.w.Format.Tiled() {
			tiles = append(tiles, p)
			continue
		}
		if x.addr == 0 {
			x = l.summed(o.a)
		}
		l.overwrite(p.dst)
		if p.w.halves { // beside matrices of another kind
			l.out = l.b.floats.Halves(l.out, HalfCall{W: p.w.floats(), X: l.asHalves(o.a), N: int(x.rows), Y: p.dst.out()})
			continue
		}
		l.keep(l.b.floats.Product(l.out, p.w.floats(), p.dst.out(), x.out(), int(x.rows)))
	}
	if len(tiles) == 0 {
		return
	}
	in := l.pack(i)
	for len(tiles) > 0 {
		n := min(len(tiles), maxJobs)
		l.tileProducts(in, tiles[:n])
		tiles = tiles[n:]
	}
}

// act takes room for the input of the product at mul, in the form it reads.
func (l *lowering) act(mul int) MatMulInput {
	x := MatMulInput{ActLayout: l.actLayout(mul)}
	x.P = l.take(x.Bytes())
	return x
}

// actLayout is the form of activations that the product at mul reads.
func (l *lowering) actLayout(mul int) ActLayout {
	o := l.ops[mul]
	var ws []WeightLayout
	for _, p := range l.products(mul) {
		if p.w.Format.Tiled() {
			ws = append(ws, p.w.WeightLayout)
		}
	}
	if o.kind == opExpertMatMul {
		return l.b.products.ExpertActs(int(o.a.rows), ws...)
	}
	if m, ok := l.matchMixture(mul); ok && m.shared == mul && l.fits(m) {
		return l.b.products.ExpertActs(int(o.a.rows), ws...)
	}
	return l.b.products.Acts(int(o.a.rows), ws...)
}

// pack returns the input of the product at i in the form it reads, or as the product packs it itself. A norm's rows
// that are packed in another form are packed as they were: a row's bits must not depend on which form is made first.
func (l *lowering) pack(i int) MatMulInput {
	v, lay := l.ops[i].a, l.actLayout(i)
	var norm *packedRows
	for k, p := range l.packed {
		if sameRows(p.v, v) && p.x.ActLayout == lay {
			return p.x
		}
		if p.v == v && p.src.addr != 0 {
			norm = &l.packed[k]
		}
	}
	if norm == nil {
		if x, ok := l.packsItself(i, &SelfPacked{Kind: PackRows, X: l.in(v)}); ok {
			return x
		}
	}
	x := l.act(i)
	to := Packed{ActLayout: x.ActLayout, P: x.P}
	if norm == nil {
		l.out = l.b.products.Pack(l.out, to, l.in(v), 1)
		l.packed = append(l.packed, packedRows{v: v, x: x})
		return x
	}
	x.Sums, x.Eps = l.take(x.SumsBytes()), norm.x.Eps
	l.out = l.b.products.AddPack(l.out, to, Sum{X: norm.src.in(), W: norm.w, Sums: x.Sums})
	l.packed = append(l.packed, packedRows{v, x, norm.src, norm.w})
	return x
}

// tileProducts leaves the products of packed rows in pieces.
func (l *lowering) tileProducts(x MatMulInput, ps []op) {
	l.b.cut(ps)
	jobs := make([]MatMulJob, len(ps))
	total := 0
	for i, p := range ps {
		jobs[i] = MatMulJob{WeightLayout: p.w.WeightLayout, W: p.w.addr, Blocks: p.w.blocks, Scale: p.w.scale,
			Part: Addr(total)}
		total += PieceBytes(jobs[i].Result(x.Rows))
	}
	owner, users := l.take(total), len(ps)
	for i := range jobs {
		jobs[i].Part += owner
	}
	l.out = l.b.products.MatMul(l.out, x, jobs...)
	for i, p := range ps {
		l.leave(piecewise{p.dst, jobs[i].Result(x.Rows), owner, &users})
	}
}

// cut fixes how matrices are cut, at the first product that has them.
func (b *Backend) cut(ps []op) {
	var ws []WeightLayout
	for _, p := range ps {
		if p.w.blocks > 0 {
			ws = nil
			break
		}
		ws = append(ws, p.w.WeightLayout)
	}
	blocks := b.products.Cut(ws...)
	for i, p := range ps {
		if p.w.blocks == 0 && ws != nil {
			p.w.blocks = blocks[i]
		} else if p.w.blocks == 0 {
			p.w.blocks = b.products.Cut(p.w.WeightLayout)[0]
		}
	}
}

// expertMatMul multiplies rows with the experts chosen for them.
func (l *lowering) expertMatMul(i int) {
	o := l.ops[i]
	ps := l.products(i)
	if l.mixed(i) {
		x := l.summed(o.a)
		for _, p := range ps {
			l.overwrite(p.dst)
			l.keep(l.b.floats.Experts(l.out, p.w.floats(), p.dst.out(), x.out(), o.ids, int(p.dst.rows), int(p.dst.rows/x.rows)))
		}
		return
	}
	x := l.pack(i)
	pairs, experts := int(ps[0].dst.rows), ps[0].w.Experts()
	tables := l.group(o.ids, pairs, experts)
	l.cutExperts(int(o.used), ps, nil)
	jobs, owner := l.expertJobs(i, pairs)
	l.out = l.b.products.ExpertMatMul(l.out, x, tables, pairs, jobs...)
	l.leaveExperts(ps, jobs, owner, pairs)
}

// group returns the tables of pairs by expert for a choice of experts. They stay until experts are chosen anew.
func (l *lowering) group(ids Addr, pairs, experts int) Addr {
	if g := l.groups; g.tables == 0 || g.ids != ids || g.pairs != pairs || g.experts != experts {
		if g.tables != 0 {
			l.b.spare.give(g.tables)
		}
		l.groups = expertGroups{ids, pairs, experts, l.take(ExpertTableBytes(pairs, experts))}
		l.out = l.b.products.GroupExperts(l.out, l.groups.tables, ids, pairs, experts)
	}
	return l.groups.tables
}

// expertGroups is a choice of experts whose pairs were grouped.
type expertGroups struct {
	ids            Addr
	pairs, experts int
	tables         Addr
}

// cutExperts fixes how stacks are cut, and the matrices of the shared expert, at the first product that has them; so
// many experts are multiplied at once.
func (l *lowering) cutExperts(experts int, stacks, shared []op) {
	layouts := func(ps []op) (ws []WeightLayout) {
		for _, p := range ps {
			ws = append(ws, p.w.WeightLayout)
		}
		return ws
	}
	cuts, sharedCuts := l.b.products.ExpertCut(experts, layouts(stacks), layouts(shared))
	for _, p := range stacks {
		if p.w.blocks == 0 {
			p.w.blocks = cuts
		}
	}
	for _, p := range shared {
		if p.w.blocks == 0 {
			p.w.blocks = sharedCuts * p.w.Groups()
		}
	}
}

// expertJobs takes room for the pieces of products with rows. The blocks of a matrix that is no stack of experts are
// those of all groups.
func (l *lowering) expertJobs(mul, rows int) (jobs []ExpertJob, owner Addr) {
	total := 0
	for _, p := range l.products(mul) {
		cuts := p.w.blocks
		if l.ops[mul].kind == opMatMul {
			cuts /= p.w.Groups()
		}
		j := ExpertJob{WeightLayout: p.w.WeightLayout, W: p.w.addr, Cuts: cuts, Scale: p.w.scale, Scales: p.w.scales,
			Part: Addr(total)}
		total += PieceBytes(j.Result(rows))
		jobs = append(jobs, j)
	}
	owner = l.take(total)
	for i := range jobs {
		jobs[i].Part += owner
	}
	return jobs, owner
}

// leaveExperts leaves the products in pieces.
func (l *lowering) leaveExperts(ps []op, jobs []ExpertJob, owner Addr, rows int) {
	users := len(ps)
	for i, p := range ps {
		l.leave(piecewise{p.dst, jobs[i].Result(rows), owner, &users})
	}
}

// tables returns where the tables of an operation lie.
func (l *lowering) tables(o op) (KVAddrs, *kvUse) {
	u := &l.lay.uses[max(0, l.lay.use(o.attn, l.pool(o).Layout.Shapes[o.attn.layer]))]
	t := u.room.At(l.lay.base + Addr(u.at))
	t.Pages = l.pool(o).table
	return t, u
}

func (l *lowering) pool(o op) *Pages { return l.plan.KV[o.attn.group].Pool.(*Pages) }

// kvWrite stores keys and values at their slots.
func (l *lowering) kvWrite(o op, k, v In) {
	t, _ := l.tables(o)
	p := l.pool(o)
	l.out = KVWrite(l.out, k, v, int(o.a.rows), p.Layout.Shapes[o.attn.layer].Heads, t,
		p.Layout.Places[o.attn.layer])
}

// attention runs the attention of a layer.
func (l *lowering) attention(o op, q view) {
	t, u := l.tables(o)
	a, err := l.b.attentionOf(int(o.attn.heads), u.shape, int(o.attn.used))
	if err != nil {
		l.err = err
		return
	}
	from, to := q.out(), o.dst.out()
	if !from.aligned() { // rare: the kernels read and write four values at a time
		from = Out{l.take(4 * int(q.rows) * int(q.cols)), int(q.cols)}
		l.out = l.b.small.Copy(l.out, from, q.in(), int(q.rows), int(q.cols))
		defer l.b.spare.give(from.P)
	}
	if !to.aligned() {
		to = Out{l.take(4 * int(o.dst.rows) * int(o.dst.cols)), int(o.dst.cols)}
		defer func() {
			l.out = l.b.small.Copy(l.out, o.dst.out(), Rows(to.P, to.Stride), int(o.dst.rows), int(o.dst.cols))
			l.b.spare.give(to.P)
		}()
	}
	c := AttnCall{Q: from.P, Out: to.P, QStride: from.Stride, OStride: to.Stride, Rows: int(q.rows), Longest: u.longest,
		Tables: t, Merge: u.partials > 0, Partials: u.partials, Place: l.pool(o).Layout.Places[o.attn.layer],
		Sinks: o.attn.sinks, Scale: o.attn.scale, Shares: u.shares}
	if c.Merge {
		c.Scratch = l.take(a.ScratchBytes(u.partials))
	}
	if u.unpack > 0 || u.block > 0 {
		c.Rotated = l.take(4 * int(q.rows) * int(q.cols))
		defer l.b.spare.give(c.Rotated)
	}
	if u.unpack > 0 {
		c.Unpack, c.Entries = l.b.unpacked, l.pool(o).entries
	}
	if s := o.attn.sparse; u.block > 0 {
		c.Sparse = &SparseCall{Block: int(s.block), Sink: int(s.sink), Window: int(s.window), Last: int(s.last),
			Alpha: s.alpha, Keys: u.keys, Words: u.words, Queries: u.room.Queries}
		c.Sparse.Scratch = l.take(a.SparseBytes(c.Sparse))
		defer l.b.spare.give(c.Sparse.Scratch)
	}
	l.out = a.Launches(l.out, c)
	if c.Merge {
		l.splits = splitRows{o.dst, a.Splits(c), len(l.out), c.Scratch}
	}
}

// splitRows is a tensor whose rows the last of so many launches adds from attention's splits, and their scratch, which
// is kept until that launch is not the last one any more: the product after it may read them instead.
type splitRows struct {
	v        view
	splits   *Splits
	launches int
	scratch  Addr
}

// deltaCall is the part of a recurrent layer's launches that both of its operations share.
func (l *lowering) deltaCall(layer int32, rows int) (*Delta, DeltaCall) {
	u := l.lay.delta
	return l.plan.State.(*States).Delta, DeltaCall{Table: l.lay.base + Addr(u.at), Segs: u.room.Segs, Rows: rows,
		Layer: int(layer), Chains: u.room.Chains}
}

// shortConv runs the convolution. If the delta rule comes next and nothing else reads its input, one call does both.
func (l *lowering) shortConv(i int) int {
	o, g := l.ops[i], *l.at(i + 1)
	delta, c := l.deltaCall(o.layer, int(o.a.rows))
	c.U, c.W, c.QKV = l.in(o.a), o.v, o.dst.out()
	l.overwrite(o.dst)
	if g.kind != opGatedDelta || g.a != o.dst || g.layer != o.layer || l.wanted(i+1, o.dst) {
		l.out = delta.ShortConv(l.out, c)
		return 1
	}
	c.Alpha, c.Beta, c.A, c.DT = l.in(g.b), l.in(g.c), g.v, g.v2
	l.overwrite(g.dst)
	if _, gated := l.matchHeadGate(i + 2); gated && delta.CanWhole(&c) && sameRows(l.ops[i+2].a, g.dst) {
		norm, gate, x := l.ops[i+2], l.ops[i+3], l.act(i+4)
		l.out = delta.Whole(l.out, c, HeadGate{Packed{x.ActLayout, x.P}, l.in(gate.a), norm.v, norm.f}, l.unmoved)
		l.unmoved = &c
		l.overwrite(gate.dst)
		l.packed = append(l.packed, packedRows{v: l.ops[i+4].a, x: x})
		return 4
	}
	c.Out, c.Scratch = g.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.Both(l.out, c)
	l.later = append(l.later, c.Scratch)
	return 2
}

// gatedDelta runs the delta rule by itself.
func (l *lowering) gatedDelta(o op) {
	delta, c := l.deltaCall(o.layer, int(o.a.rows))
	x := l.summed(o.a)
	c.QKV, c.Alpha, c.Beta, c.A, c.DT = x.out(), l.in(o.b), l.in(o.c), o.v, o.v2
	l.overwrite(o.dst)
	c.Out, c.Scratch = o.dst.out(), l.take(delta.ScratchBytes(c.Rows))
	l.out = delta.GatedDelta(l.out, c)
	l.later = append(l.later, c.Scratch)
}
