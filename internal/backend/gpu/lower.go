package gpu

import (
	"slices"

	"strobe/internal/backend"
)

// lowering turns a list of operations into launches. Two things are put off until somebody needs them: the results of
// products stay in pieces, which most readers add up themselves, and what feeds a product is packed by the kernel that
// computes it where there is one for that. Nothing depends on an operation being recognised: whatever is not is done
// step by step.
type lowering struct {
	b       *Backend
	ops     []op
	plan    *backend.Plan
	lay     layout
	out     []Call
	pieces  []piecewise
	packed  []packedRows
	groups  expertGroups
	routed  routerRows
	late    lateNorm
	splits  splitRows
	now     int        // the operation in progress
	unmoved *DeltaCall // the recurrent layer whose newest inputs must still move up; nil: none
	later   []Addr     // scratch to give back after it: its kernels may still read what it overwrites
	held    []Addr     // scratch that the last launch uses, which the next operation may become a part of
	heldAt  int        // launches when it was given back
	err     error
}

// piecewise is a tensor whose values lie in pieces.
type piecewise struct {
	v     view
	in    In
	owner Addr // scratch that holds the pieces
	users *int // tensors that lie in it
}

// packedRows is a tensor that also lies in the form products read.
type packedRows struct {
	v   view
	x   MatMulInput
	src view // if it is a norm and this is still there: what was normalised,
	w   Addr // with which weights
}

// lower returns the launches of a list.
func (b *Backend) lower(ops []op, plan *backend.Plan, lay layout) ([]Call, error) {
	l := &lowering{b: b, ops: ops, plan: plan, lay: lay}
	b.spare.reset()
	for i := 0; i < len(ops) && l.err == nil; {
		l.now = i
		l.giveBack()
		if s := l.splits; s.splits != nil && s.launches < len(l.out) {
			b.spare.give(s.scratch)
			l.splits = splitRows{}
		}
		n := l.fused(i)
		if n == 0 {
			n = l.single(i)
		}
		i += n
	}
	if l.unmoved != nil {
		l.out = plan.State.(*States).Delta.Shift(l.out, *l.unmoved)
	}
	for len(l.pieces) > 0 && l.err == nil { // whoever comes after the step sees plain rows
		l.plain(l.pieces[0].v)
	}
	b.products.LookAhead(l.out)
	return l.out, l.err
}

// giveBack gives scratch back that no launch needs to which anything may be added.
func (l *lowering) giveBack() {
	if len(l.out) > l.heldAt {
		for _, a := range l.held {
			l.b.spare.give(a)
		}
		l.held = l.held[:0]
	}
	l.held, l.later, l.heldAt = append(l.held, l.later...), l.later[:0], len(l.out)
}

// keep takes the list of launches that an emitter returned, or its error.
func (l *lowering) keep(ls []Call, err error) {
	l.out = ls
	if l.err == nil {
		l.err = err
	}
}

func (l *lowering) take(bytes int) Addr {
	a, err := l.b.spare.take(bytes)
	if err != nil && l.err == nil {
		l.err = err
	}
	return a
}

// in returns how to read the rows of v. They may lie in pieces if v is a tensor that a product made, or columns of one.
func (l *lowering) in(v view) In {
	for _, p := range l.pieces {
		if p.v.overlaps(v) {
			at := int(v.addr-p.v.addr) / 4
			if v.addr >= p.v.addr && v.stride == p.v.stride && v.rows == p.v.rows && at+int(v.cols) <= int(p.v.cols) {
				return p.in.Columns(at)
			}
			l.plain(v)
			break
		}
	}
	return Rows(v.addr, int(v.stride))
}

// heads is a view that has parts of every token's row as rows.
type heads struct {
	in   In  // of the tokens
	n    int // heads of a token
	dim  int // columns of a head
	step int // from one head to the next
}

// split returns how to read v, whose rows are heads of tokens.
func (l *lowering) split(v view, tokens int) heads {
	n := int(v.rows) / tokens
	h := heads{n: n, dim: int(v.cols), step: int(v.stride)}
	for _, p := range l.pieces {
		if p.v.overlaps(v) {
			at := int(v.addr-p.v.addr) / 4
			if v.addr >= p.v.addr && int(p.v.rows) == tokens && p.v.stride == p.v.cols && int(p.v.cols) == n*h.step &&
				at+h.dim <= h.step {
				h.in = p.in.Columns(at)
				return h
			}
			l.plain(v)
			break
		}
	}
	h.in = Rows(v.addr, n*h.step)
	return h
}

// plain makes sure that the memory of v holds its values.
func (l *lowering) plain(v view) view {
	for i := 0; i < len(l.pieces); i++ {
		if p := l.pieces[i]; p.v.overlaps(v) {
			l.reduce(p)
			l.dropPieces(i)
			i--
		}
	}
	return v
}

func (l *lowering) reduce(p piecewise) {
	l.out = l.b.products.Reduce(l.out, p.v.addr, int(p.v.stride), p.in, int(p.v.rows), int(p.v.cols))
}

func (l *lowering) dropPieces(i int) {
	p := l.pieces[i]
	if *p.users--; *p.users == 0 {
		l.later = append(l.later, p.owner)
	}
	l.pieces = append(l.pieces[:i], l.pieces[i+1:]...)
}

// overwrite says that v gets new values. Pieces of what it covers are no longer needed; of a tensor that is written in
// part the rest is.
func (l *lowering) overwrite(v view) {
	for i := 0; i < len(l.pieces); i++ {
		p := l.pieces[i]
		if !p.v.overlaps(v) {
			continue
		}
		if !covers(v, p.v) && l.outlives(p.v, v) {
			l.reduce(p)
		}
		l.dropPieces(i)
		i--
	}
	for i := 0; i < len(l.packed); i++ {
		if l.packed[i].v.overlaps(v) || l.packed[i].v.addr == 0 && l.packed[i].src.overlaps(v) {
			l.later = append(l.later, l.packed[i].x.P)
			if l.packed[i].x.Sums != 0 {
				l.later = append(l.later, l.packed[i].x.Sums)
			}
			l.packed = append(l.packed[:i], l.packed[i+1:]...)
			i--
		} else if l.packed[i].src.overlaps(v) {
			l.packed[i].src = view{}
		}
	}
	if l.routed.v.overlaps(v) {
		l.routed = routerRows{}
	}
}

// covers reports whether every value of o is one of v.
func covers(v, o view) bool {
	a0, a1 := v.bytes()
	b0, b1 := o.bytes()
	return a0 <= b0 && b1 <= a1 && (v.stride == v.cols || v.stride == o.stride && v.cols >= o.cols &&
		(o.addr-v.addr)/4%Addr(v.stride)+Addr(o.cols) <= Addr(v.cols))
}

// outlives reports whether anything of the tensor old is read after the current operation has written v over a part of
// it. Memory that was given back is taken anew for something else: then what is read there has been written as a whole
// before.
func (l *lowering) outlives(old, v view) bool {
	fresh := []view{v}
	for j := l.now + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		for r := range o.reads {
			if r.overlaps(old) && !slices.ContainsFunc(fresh, func(w view) bool { return covers(w, r) }) {
				return true
			}
		}
		for w := range o.writes {
			if covers(w, old) {
				return false
			}
			if w.overlaps(old) {
				fresh = append(fresh, w)
			}
		}
	}
	return false
}

// reads lists the tensors an operation reads, and writes those it writes.
func (o *op) reads(yield func(view) bool) {
	switch o.kind {
	case opProduct, opEmbed, opAngles, opSetInts:
	case opAddGated:
		_ = yield(o.dst) && yield(o.a) && yield(o.b)
	default:
		_ = yield(o.a) && (o.b.addr == 0 || yield(o.b)) && (o.c.addr == 0 || yield(o.c))
	}
}

func (o *op) writes(yield func(view) bool) {
	if o.kind == opAngles {
		_ = yield(o.dst) && yield(o.b)
	} else if o.dst.addr != 0 {
		yield(o.dst)
	}
}

// wanted reports whether anything but a product of packed rows, and but the products except, reads v, which operation i
// has just made, before it is overwritten. What is there at the end of the step may be read by the host.
func (l *lowering) wanted(i int, v view, except ...int) bool {
	for j := i + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		if o.kind == opMatMul || o.kind == opExpertMatMul {
			if o.a.overlaps(v) && (!sameRows(o.a, v) || l.mixed(j)) && !slices.Contains(except, j) {
				return true
			}
			continue
		}
		for r := range o.reads {
			if r.overlaps(v) {
				return true
			}
		}
		for w := range o.writes {
			if w.overlaps(v) {
				return false
			}
		}
	}
	return true
}

// sameRows reports whether two views name the same values as rows of tokens.
func sameRows(a, b view) bool {
	return a.addr == b.addr && a.rows*a.cols == b.rows*b.cols && (a == b || a.stride == a.cols && b.stride == b.cols)
}

// feeds finds the product of which v, made by operation i, is the packed input, before it is overwritten; -1 for none.
func (l *lowering) feeds(i int, v view) int {
	for j := i + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		if o.kind == opMatMul || o.kind == opExpertMatMul {
			if sameRows(o.a, v) && l.tiled(j) {
				return j
			}
			continue
		}
		for w := range o.writes {
			if w.overlaps(v) {
				return -1
			}
		}
	}
	return -1
}

// products are the outputs of the MatMul at i.
func (l *lowering) products(i int) []op { return l.ops[i+1:][:l.ops[i].outputs] }

// tiled reports whether a MatMul has a matrix in tiles, mixed whether it has one that is not.
func (l *lowering) tiled(i int) bool {
	for _, p := range l.products(i) {
		if p.w.Format.Tiled() {
			return true
		}
	}
	return false
}

func (l *lowering) mixed(i int) bool {
	for _, p := range l.products(i) {
		if !p.w.Format.Tiled() {
			return true
		}
	}
	return false
}

// at returns the operation at i, or one that matches nothing.
func (l *lowering) at(i int) *op {
	if i < len(l.ops) {
		return &l.ops[i]
	}
	return &op{kind: opProduct}
}

// fused launches several operations as one kernel, if they are of a kind for which there is one. It returns how many it
// did.
func (l *lowering) fused(i int) int {
	switch l.ops[i].kind {
	case opMatMul:
		return l.mixture(i)
	case opExpertSum:
		if n := l.post(i); n > 0 {
			return n
		}
		return l.expertSum(i)
	case opAdd:
		if n := l.addNorm(i); n > 0 {
			return n
		}
		return l.addPicked(i)
	case opRMSNorm:
		if n := l.queries(i); n > 0 {
			return n
		}
		if n := l.headGate(i); n > 0 {
			return n
		}
		if n := l.post(i); n > 0 {
			return n
		}
		if n := l.lateNorm(i); n > 0 {
			return n
		}
		if n := l.routerNorm(i); n > 0 {
			return n
		}
		return l.norm(i)
	case opGated:
		return l.gated(i)
	case opSigmoidGate:
		return l.sigmoidGate(i)
	}
	return 0
}

// normOf finds the norm of the sum at i that a product multiplies: its place, the norm, and the product, -1 if there is
// none. Between may be copies of the sum, captured features, which are made afterwards.
func (l *lowering) normOf(i int) (j int, norm op, mul int) {
	sum := l.ops[i].dst
	j = i + 1
	for l.at(j).kind == opCopy && l.ops[j].a == sum && !l.ops[j].dst.overlaps(sum) {
		j++
	}
	norm = *l.at(j)
	if norm.kind != opRMSNorm || norm.a != sum || norm.dst == sum {
		return j, norm, -1
	}
	return j, norm, l.feeds(j, norm.dst)
}

// addNorm: x += y; h = norm(x), where h is multiplied.
func (l *lowering) addNorm(i int) int {
	add := l.ops[i]
	if add.dst != add.a {
		return 0
	}
	j, norm, mul := l.normOf(i)
	if mul < 0 {
		return 0
	}
	x, y := l.plain(add.a), l.in(add.b)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	l.packNorm(mul, Sum{X: x.in(), Y: y, Dst: x.addr, DstStride: int(x.stride), W: norm.v, Last: !l.read(i, add.b)}, norm,
		l.wanted(j, norm.dst, l.makesRows(j, mul)...))
	for k := i + 1; k < j; k++ {
		l.single(k)
	}
	return j + 1 - i
}

// addPicked: x += y; h = the only row of x; h = norm(h), where h is multiplied: how a pass of one token ends.
func (l *lowering) addPicked(i int) int {
	add, j := l.ops[i], i+1
	for l.at(j).kind == opCopy && l.ops[j].a == add.dst && !l.ops[j].dst.overlaps(add.dst) {
		j++
	}
	pick, norm := *l.at(j), *l.at(j + 1)
	if add.dst != add.a || pick.kind != opGather || pick.a != add.dst || pick.a.rows != 1 || pick.dst.rows != 1 ||
		norm.kind != opRMSNorm || norm.a != pick.dst || norm.dst != pick.dst {
		return 0
	}
	mul := l.feeds(j+1, norm.dst)
	if mul < 0 {
		return 0
	}
	x, y := l.plain(add.a), l.in(add.b)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	l.packNorm(mul, Sum{X: x.in(), Y: y, Dst: x.addr, DstStride: int(x.stride), W: norm.v}, norm, l.wanted(j+1, norm.dst))
	for k := i + 1; k < j; k++ {
		l.single(k)
	}
	return j + 2 - i
}

// norm: h = norm(x), where h is multiplied.
func (l *lowering) norm(i int) int {
	o := l.ops[i]
	mul := l.feeds(i, o.dst)
	if mul < 0 {
		return 0
	}
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

// packNorm packs a normalised sum for the product at mul, and makes plain rows too if they are wanted.
func (l *lowering) packNorm(mul int, sum Sum, norm op, plain bool) {
	x := l.act(mul)
	x.Sums, x.Eps = l.take(x.SumsBytes()), norm.f
	sum.Sums = x.Sums
	to := Packed{ActLayout: x.ActLayout, P: x.P}
	if plain {
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
	if m, ok := l.match(mul); ok && m.shared == mul && l.fits(m) {
		return l.b.products.ExpertActs(int(o.a.rows), ws...)
	}
	return l.b.products.Acts(int(o.a.rows), ws...)
}

// gated: g = act(gate)*up, where g is multiplied.
func (l *lowering) gated(i int) int {
	o := l.ops[i]
	mul := l.feeds(i, o.dst)
	if mul < 0 {
		return 0
	}
	gate, up := l.in(o.a), l.in(o.b)
	kind := PackSiLU
	if o.gelu() {
		kind = PackGELU
	}
	if n := l.selfPacked(i+1, o.dst, SelfPacked{Kind: kind, X: up, Gate: gate}); n > 0 {
		return 1 + n
	}
	x := l.act(mul)
	l.out = l.b.products.GatedPack(l.out, Packed{ActLayout: x.ActLayout, P: x.P}, gate, up, o.gelu())
	if l.wanted(i, o.dst) {
		l.out = l.b.small.Gated(l.out, o.dst.out(), gate, up, o.gelu(), int(o.dst.rows), int(o.dst.cols))
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{v: o.dst, x: x})
	return 1
}

// sigmoidGate: o *= sigmoid(gate), head by head, where o is multiplied.
func (l *lowering) sigmoidGate(i int) int {
	o := l.ops[i]
	mul := l.at(i + 1)
	if mul.kind != opMatMul || !sameRows(mul.a, o.dst) || o.dst != o.a || o.dst.stride != o.dst.cols || !l.tiled(i+1) ||
		o.dst.cols%8 != 0 ||
		l.wanted(i, o.dst) {
		return 0
	}
	tokens := int(mul.a.rows)
	v, gate := l.in(mul.a), l.split(o.b, tokens)
	if n := l.selfPacked(i+1, mul.a, SelfPacked{Kind: PackSigmoid, X: v, Gate: gate.in, Dim: gate.dim, Step: gate.step}); n > 0 {
		return 1 + n
	}
	x := l.act(i + 1)
	to := Packed{ActLayout: x.ActLayout, P: x.P}
	if s := l.unmerged(i + 1); s != nil && l.b.products.NoTensorCores && int(s.dim) == gate.dim {
		l.unmerge()
		l.out = l.b.products.MergePack(l.out, to, s, v, gate.in, gate.step)
	} else {
		l.out = l.b.products.SigmoidPack(l.out, to, v, gate.in, gate.dim, gate.step)
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{v: mul.a, x: x})
	return 1
}

// gatesHeads reports whether operations from i on are o = norm of heads(o); o = silu(z)*o, where o is multiplied.
func (l *lowering) gatesHeads(i int) bool {
	norm, gate, mul := *l.at(i), *l.at(i + 1), *l.at(i + 2)
	return norm.kind == opRMSNorm && gate.kind == opGated && gate.act == int32(backend.SiLU) && mul.kind == opMatMul &&
		norm.dst == norm.a && norm.v != 0 && norm.dst.stride == norm.dst.cols && gate.b == gate.dst &&
		sameRows(gate.dst, norm.dst) && sameRows(mul.a, gate.dst) && l.tiled(i+2) && CanHeadPack(int(norm.a.cols)) &&
		!l.wanted(i+1, gate.dst)
}

// headGate launches them as one kernel, or with the product.
func (l *lowering) headGate(i int) int {
	if !l.gatesHeads(i) {
		return 0
	}
	norm, gate, mul := l.ops[i], l.ops[i+1], l.ops[i+2]
	o, z := l.in(gate.dst), l.in(gate.a)
	if n := l.selfPacked(i+2, mul.a, SelfPacked{Kind: PackHeads, X: o, Gate: z, W: norm.v, Dim: int(norm.a.cols),
		Eps: norm.f}); n > 0 {
		return 2 + n
	}
	x := l.act(i + 2)
	l.out = l.b.products.HeadPack(l.out, Packed{ActLayout: x.ActLayout, P: x.P}, o, z, norm.v, int(norm.a.cols), norm.f)
	l.overwrite(gate.dst)
	l.packed = append(l.packed, packedRows{v: mul.a, x: x})
	return 2
}

// selfPacked has the product at mul pack its input v itself, if it is the only one to read it and has few rows, and
// returns how many operations that were.
func (l *lowering) selfPacked(mul int, v view, m SelfPacked) int {
	if l.at(mul).kind != opMatMul || !sameRows(l.ops[mul].a, v) || l.mixed(mul) || l.read(mul+1, v) {
		return 0
	}
	x, ok := l.packsItself(mul, &m)
	if !ok {
		return 0
	}
	l.overwrite(v)
	l.tileProducts(x, l.products(mul))
	return 2
}

// packsItself returns the input of the product at mul if it can pack it itself. How its matrix is cut is fixed then.
func (l *lowering) packsItself(mul int, m *SelfPacked) (x MatMulInput, ok bool) {
	if l.ops[mul].kind != opMatMul || l.ops[mul].outputs != 1 || l.b.products.NoTensorCores {
		return x, false
	}
	ps := l.products(mul)
	l.b.cut(ps)
	x = MatMulInput{ActLayout: l.actLayout(mul), SelfPacked: m}
	can := func() bool { return l.b.products.CanSelfPack(m, x.Rows, ps[0].w.WeightLayout, ps[0].w.blocks) }
	if s := l.unmerged(mul); s != nil {
		if m.Splits = s; can() {
			l.unmerge()
			return x, true
		}
		m.Splits = nil
	}
	return x, can()
}

// unmerged is the splits that the last launch adds for the product at mul alone; nil if it is no such launch.
func (l *lowering) unmerged(mul int) *Splits {
	s := l.splits
	if s.splits == nil || s.launches < len(l.out) || l.out[s.launches-1].Kernel != kernelMerge ||
		!sameRows(s.v, l.ops[mul].a) || l.read(mul+1, s.v) {
		return nil
	}
	return s.splits
}

// unmerge takes that launch back: whoever comes next adds the splits.
func (l *lowering) unmerge() {
	l.later = append(l.later, l.splits.scratch)
	l.out, l.splits = l.out[:len(l.out)-1], splitRows{}
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
			x = l.plain(o.a)
		}
		l.overwrite(p.dst)
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

// pack returns the input of the product at i in the form it reads, or as the product packs it itself. A norm's rows that are
// packed in another form are packed as they were: a row's bits must not depend on which form is made first.
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

// leave leaves a product in pieces. Rows with something else between them are written at once: views of such memory
// tell little about what they share.
func (l *lowering) leave(p piecewise) {
	l.overwrite(p.v)
	l.pieces = append(l.pieces, p)
	if p.v.stride != p.v.cols && p.v.rows > 1 {
		l.reduce(p)
		l.dropPieces(len(l.pieces) - 1)
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
		x := l.plain(o.a)
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
		x := l.plain(o.a)
		l.overwrite(o.dst)
		l.out = sm.Gather(l.out, o.dst.out(), x.in(), o.ids, rows, cols)
	case opGated:
		g, u := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.Gated(l.out, o.dst.out(), g, u, o.gelu(), rows, cols)
	case opSigmoidGate:
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.SigmoidGate(l.out, o.dst.out(), x, g, rows, cols)
	case opAddGated:
		l.plain(o.dst)
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.out = sm.AddGated(l.out, o.dst.out(), x, g, rows, cols)
	case opSoftcap:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Softcap(l.out, o.dst.out(), x, o.f, rows, cols)
	case opAngles:
		l.overwrite(o.dst)
		l.overwrite(o.b)
		l.out = sm.Angles(l.out, o.dst.out(), o.b.out(), o.ids, o.v, o.f, rows, cols)
	case opRoPE:
		l.plain(o.a)
		l.overwrite(o.dst)
		l.out = sm.RoPE(l.out, o.dst.out(), o.b.out(), o.c.out(), rows, int(o.heads), int(o.b.cols))
	case opBlockConv:
		x, dyn := l.plain(o.a), l.plain(o.b)
		l.overwrite(o.dst)
		l.out = sm.BlockConv(l.out, o.dst.out(), x.out(), dyn.out(), o.v, o.ids, rows, cols, int(o.taps),
			int(dyn.cols/o.taps))
	case opRoute:
		if l.groups.ids == o.ids { // the choice before is gone
			l.b.spare.give(l.groups.tables)
			l.groups = expertGroups{}
		}
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.out = sm.Route(l.out, o.ids, o.dst.out(), x, rows, int(o.a.cols), int(o.used), o.f)
	case opExpertSum:
		y, w := l.in(o.a), l.plain(o.b)
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
		spare := l.take(SelectScratch(rows, int(o.a.cols), int(o.best)))
		l.overwrite(o.dst)
		l.keep(sm.TopK(l.out, o.ids, o.dst.out(), x, rows, int(o.a.cols), int(o.best), spare))
		b.spare.give(spare)
	case opCandidates:
		x := l.in(o.a)
		at := slices.IndexFunc(l.pieces, func(p piecewise) bool { return p.v == o.a })
		if at >= 0 && !b.products.NoTensorCores && o.a.out().aligned() { // they become plain rows on the way
			l.dropPieces(at)
		} else {
			x = l.plain(o.a).in()
		}
		spare := l.take(CandidateScratch(int(o.a.rows), int(o.a.cols)))
		l.out = sm.Candidates(l.out, o.ids, x, o.a.out(), int(o.a.rows), int(o.a.cols), o.v, spare)
		b.spare.give(spare)
	case opKVWrite:
		k, v := l.in(o.a), l.in(o.b)
		l.kvWrite(o, k, v)
	case opAttention:
		q := l.plain(o.a)
		l.overwrite(o.dst)
		l.attention(o, q)
	case opShortConv:
		return l.shortConv(i)
	case opGatedDelta:
		l.gatedDelta(o)
	}
	return 1
}
