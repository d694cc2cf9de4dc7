package gpu

import (
	"strobe/backend"
)

// lowering turns a list of operations into launches. Two things are put off until somebody needs them: the results of products stay in
// pieces, which most readers add up themselves, and what feeds a product is packed by the kernel that computes it where there is one for
// that. Nothing depends on an operation being recognised: whatever is not is done step by step.
type lowering struct {
	b      *Backend
	ops    []op
	plan   *backend.Plan
	lay    layout
	out    []Launch
	pieces []piecewise
	packed []packedRows
	err    error
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
	act Packed
}

// lower returns the launches of a list.
func (b *Backend) lower(ops []op, plan *backend.Plan, lay layout) ([]Launch, error) {
	l := &lowering{b: b, ops: ops, plan: plan, lay: lay}
	b.spare.reset()
	l.scatter()
	for i := 0; i < len(ops) && l.err == nil; {
		n := l.fused(i)
		if n == 0 {
			n = l.single(i)
		}
		i += n
	}
	for len(l.pieces) > 0 && l.err == nil { // whoever comes after the step sees plain rows
		l.plain(l.pieces[0].v)
	}
	return l.out, l.err
}

func (l *lowering) emit(ls ...Launch) { l.out = append(l.out, ls...) }

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
			if v.addr >= p.v.addr && int(p.v.rows) == tokens && p.v.stride == p.v.cols && int(p.v.cols) == n*h.step && at+h.dim <= h.step {
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
			l.emit(l.b.reduce(p.v, p.in))
			l.dropPieces(i)
			i--
		}
	}
	return v
}

func (l *lowering) dropPieces(i int) {
	p := l.pieces[i]
	if *p.users--; *p.users == 0 {
		l.b.spare.give(p.owner)
	}
	l.pieces = append(l.pieces[:i], l.pieces[i+1:]...)
}

// overwrite says that v gets new values. Pieces of what it covers are no longer needed; of a tensor that is written in part the rest is.
func (l *lowering) overwrite(v view) {
	for i := 0; i < len(l.pieces); i++ {
		p := l.pieces[i]
		if !p.v.overlaps(v) {
			continue
		}
		if sameTensor(p.v, v) && !covers(v, p.v) {
			l.emit(l.b.reduce(p.v, p.in))
		}
		l.dropPieces(i)
		i--
	}
	for i := 0; i < len(l.packed); i++ {
		if l.packed[i].v.overlaps(v) {
			l.b.spare.give(l.packed[i].act.Addr)
			l.packed = append(l.packed[:i], l.packed[i+1:]...)
			i--
		}
	}
}

// covers reports whether every value of o is one of v.
func covers(v, o view) bool {
	a0, a1 := v.bytes()
	b0, b1 := o.bytes()
	return a0 <= b0 && b1 <= a1 && (v.stride == v.cols || v.stride == o.stride && v.cols >= o.cols && (o.addr-v.addr)/4%Addr(v.stride)+Addr(o.cols) <= Addr(v.cols))
}

// sameTensor reports whether v can be a part of the tensor p, by its geometry. Memory that was given back and taken anew for something else
// usually looks different; if it does not, some work is done in vain.
func sameTensor(p, v view) bool {
	return v.stride == p.stride || p.stride%max(1, v.stride) == 0 && v.addr >= p.addr
}

// reads lists the tensors an operation reads, and writes those it writes.
func (o *op) reads(yield func(view) bool) {
	switch o.kind {
	case opProduct, opEmbed, opAngles:
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

// wanted reports whether anything but a product of packed rows reads v, which operation i has just made, before it is overwritten. What is
// there at the end of the step may be read by the host.
func (l *lowering) wanted(i int, v view) bool {
	for j := i + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		if o.kind == opMatMul || o.kind == opExpertMatMul {
			if o.a.overlaps(v) && (!sameRows(o.a, v) || l.mixed(j)) {
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

// feeds reports whether v, made by operation i, is the packed input of a product before it is overwritten.
func (l *lowering) feeds(i int, v view) bool {
	for j := i + 1; j < len(l.ops); j++ {
		o := &l.ops[j]
		if o.kind == opMatMul || o.kind == opExpertMatMul {
			if sameRows(o.a, v) && l.tiled(j) {
				return true
			}
			continue
		}
		for w := range o.writes {
			if w.overlaps(v) {
				return false
			}
		}
	}
	return false
}

// products are the outputs of the MatMul at i.
func (l *lowering) products(i int) []op { return l.ops[i+1:][:l.ops[i].n] }

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

// fused launches several operations as one kernel, if they are of a kind for which there is one. It returns how many it did.
func (l *lowering) fused(i int) int {
	switch l.ops[i].kind {
	case opAdd:
		return l.addNorm(i)
	case opRMSNorm:
		if n := l.queries(i); n > 0 {
			return n
		}
		if n := l.headGate(i); n > 0 {
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

// addNorm: x += y; h = norm(x), where h is multiplied.
func (l *lowering) addNorm(i int) int {
	add := l.ops[i]
	if add.dst != add.a {
		return 0
	}
	j := i + 1
	for l.at(j).kind == opCopy && l.ops[j].a == add.dst && !l.ops[j].dst.overlaps(add.dst) {
		j++ // captured features: they are copied afterwards
	}
	norm := *l.at(j)
	if norm.kind != opRMSNorm || norm.a != add.dst || norm.dst == add.dst || !l.feeds(j, norm.dst) {
		return 0
	}
	y := l.in(add.b)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	l.packNorm(add.dst, y, norm, l.wanted(j, norm.dst))
	for k := i + 1; k < j; k++ {
		l.single(k)
	}
	return j + 1 - i
}

// norm: h = norm(x), where h is multiplied.
func (l *lowering) norm(i int) int {
	o := l.ops[i]
	if !l.feeds(i, o.dst) {
		return 0
	}
	x := l.plain(o.a)
	if o.dst != o.a {
		l.overwrite(o.dst)
	}
	l.packNorm(x, In{}, o, l.wanted(i, o.dst))
	return 1
}

// packNorm packs the normalised rows of x, after y was added to them, and makes plain ones too if they are wanted.
func (l *lowering) packNorm(x view, y In, norm op, plain bool) {
	act := l.act(norm.dst, true)
	l.emit(l.b.packNorm(act, x, y, norm.v, norm.f)...)
	if plain {
		l.emit(l.b.rmsNorm(norm.dst, heads{in: Rows(x.addr, int(x.stride)), n: 1, dim: int(x.cols)}, norm.v, norm.f))
	}
	l.packed = append(l.packed, packedRows{norm.dst, act})
}

// act takes room for a tensor in packed form.
func (l *lowering) act(v view, norm bool) Packed {
	p := l.b.packedFor(int(v.rows), int(v.cols), norm)
	p.Addr = l.take(p.Bytes())
	return p
}

// gated: g = act(gate)*up, where g is multiplied.
func (l *lowering) gated(i int) int {
	o := l.ops[i]
	if !l.feeds(i, o.dst) {
		return 0
	}
	gate, up := l.in(o.a), l.in(o.b)
	act := l.act(o.dst, false)
	l.emit(l.b.packGated(act, gate, up, o.n)...)
	if l.wanted(i, o.dst) {
		l.emit(l.b.gated(o.dst, gate, up, o.n))
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{o.dst, act})
	return 1
}

// sigmoidGate: o *= sigmoid(gate), head by head, where o is multiplied.
func (l *lowering) sigmoidGate(i int) int {
	o := l.ops[i]
	mul := l.at(i + 1)
	if mul.kind != opMatMul || !sameRows(mul.a, o.dst) || o.dst != o.a || !l.tiled(i+1) {
		return 0
	}
	tokens := int(mul.a.rows)
	x, gate := l.split(o.a, tokens), l.split(o.b, tokens)
	act := l.act(mul.a, false)
	l.emit(l.b.packSigmoid(act, x, gate)...)
	if l.wanted(i, o.dst) {
		l.emit(l.b.sigmoidGate(o.dst, x, gate))
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{mul.a, act})
	return 1
}

// headGate: o = norm of heads(o); o = silu(z)*o, where o is multiplied.
func (l *lowering) headGate(i int) int {
	norm, gate, mul := l.ops[i], *l.at(i + 1), *l.at(i + 2)
	if gate.kind != opGated || gate.n != int32(backend.SiLU) || mul.kind != opMatMul || norm.dst != norm.a || norm.v == 0 ||
		gate.b != gate.dst || !sameRows(gate.dst, norm.dst) || !sameRows(mul.a, gate.dst) || !l.tiled(i+2) || l.wanted(i+1, gate.dst) {
		return 0
	}
	tokens := int(gate.dst.rows)
	o, z := l.split(norm.a, tokens), l.in(gate.a)
	if !l.b.packHeadFits(o) {
		return 0
	}
	act := l.act(mul.a, false)
	l.emit(l.b.packHead(act, o, z, norm.v, norm.f)...)
	l.overwrite(gate.dst)
	l.packed = append(l.packed, packedRows{mul.a, act})
	return 2
}

// matMul multiplies packed rows with tiles, and plain ones with matrices of floats.
func (l *lowering) matMul(i int) {
	o := l.ops[i]
	var floats, tiles []op
	for _, p := range l.products(i) {
		if p.w.Format.Tiled() {
			tiles = append(tiles, p)
		} else {
			floats = append(floats, p)
		}
	}
	if len(floats) > 0 {
		x := l.plain(o.a)
		for _, p := range floats {
			l.overwrite(p.dst)
			l.emit(l.b.floatProduct(p.dst, x, p.w)...)
		}
	}
	if len(tiles) == 0 {
		return
	}
	act := l.pack(o.a)
	for len(tiles) > 0 {
		n := min(len(tiles), maxJobs)
		l.tileProducts(act, tiles[:n])
		tiles = tiles[n:]
	}
}

// pack returns the packed form of x.
func (l *lowering) pack(x view) Packed {
	for _, p := range l.packed {
		if sameRows(p.v, x) {
			return p.act
		}
	}
	act := l.act(x, false)
	l.emit(l.b.packRows(act, l.in(x))...)
	l.packed = append(l.packed, packedRows{x, act})
	return act
}

// tileProducts leaves the products of packed rows in pieces.
func (l *lowering) tileProducts(act Packed, ps []op) {
	ws := make([]*weight, len(ps))
	for i, p := range ps {
		ws[i] = p.w
	}
	l.b.cut(ws)
	ins := make([]In, len(ps))
	total := 0
	for i, w := range ws {
		ins[i] = w.pieces(act.Tokens)
		ins[i].P = Addr(total)
		total += 4 * ins[i].Pieces() * act.Tokens * w.Groups() * stageRows
	}
	owner, users := l.take(total), len(ps)
	for i := range ins {
		ins[i].P += owner
	}
	l.emit(l.b.product(act, ws, ins)...)
	// Plain rows that another output overlaps would be wrong; outputs are distinct.
	for i, p := range ps {
		l.overwrite(p.dst)
		l.pieces = append(l.pieces, piecewise{p.dst, ins[i], owner, &users})
	}
	for _, p := range ps {
		if p.dst.stride != p.dst.cols {
			l.plain(p.dst)
		}
	}
}

// expertMatMul multiplies rows with the experts chosen for them.
func (l *lowering) expertMatMul(i int) {
	o := l.ops[i]
	ps := l.products(i)
	for _, p := range ps {
		l.overwrite(p.dst)
	}
	if l.mixed(i) {
		x := l.plain(o.a)
		for _, p := range ps {
			l.emit(l.b.floatExperts(p.dst, x, o.ids, int(o.m), p.w)...)
		}
		return
	}
	act := l.pack(o.a)
	owner := l.take(l.b.expertScratch(int(ps[0].dst.rows), ps))
	l.emit(l.b.expertProduct(act, o.ids, int(o.m), ps, owner)...)
	l.b.spare.give(owner)
}

// single launches the operation at i by itself and returns how many entries of the list it took.
func (l *lowering) single(i int) int {
	o := l.ops[i]
	b := l.b
	switch o.kind {
	case opMatMul:
		l.matMul(i)
		return 1 + int(o.n)
	case opExpertMatMul:
		l.expertMatMul(i)
		return 1 + int(o.n)
	case opEmbed:
		l.overwrite(o.dst)
		l.emit(b.embed(o.dst, o.w, o.ids, o.f))
	case opRMSNorm:
		x := heads{in: l.in(o.a), n: 1, dim: int(o.a.cols)}
		l.overwrite(o.dst)
		l.emit(b.rmsNorm(o.dst, x, o.v, o.f))
	case opAdd:
		x, y := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.emit(b.add(o.dst, x, y))
	case opAddBias:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.emit(b.addBias(o.dst, x, o.v))
	case opScale:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.emit(b.scale(o.dst, x, o.f))
	case opCopy:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.emit(b.copyRows(o.dst, x))
	case opGather:
		x := l.plain(o.a)
		l.overwrite(o.dst)
		l.emit(b.gather(o.dst, x, o.ids))
	case opGated:
		g, u := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.emit(b.gated(o.dst, g, u, o.n))
	case opSigmoidGate:
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.emit(b.sigmoidRows(o.dst, x, g))
	case opAddGated:
		l.plain(o.dst)
		x, g := l.in(o.a), l.in(o.b)
		l.overwrite(o.dst)
		l.emit(b.addGated(o.dst, x, g))
	case opSoftcap:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.emit(b.softcap(o.dst, x, o.f))
	case opAngles:
		l.overwrite(o.dst)
		l.overwrite(o.b)
		l.emit(b.angles(o.dst, o.b, o.ids, o.v, o.f))
	case opRoPE:
		l.plain(o.a)
		l.overwrite(o.dst)
		l.emit(b.rope(o.dst, o.b, o.c, int(o.n)))
	case opBlockConv:
		x, dyn := l.plain(o.a), l.plain(o.b)
		l.overwrite(o.dst)
		l.emit(b.blockConv(o.dst, x, dyn, o.v, int(o.n), o.ids))
	case opRoute:
		x := l.in(o.a)
		l.overwrite(o.dst)
		l.emit(b.route(o.ids, o.dst, x, int(o.a.cols), int(o.n), o.f))
	case opExpertSum:
		y, w := l.plain(o.a), l.plain(o.b)
		l.overwrite(o.dst)
		l.emit(b.expertSum(o.dst, y, w, o.ids, int(o.n), o.v))
	case opArgMax:
		l.emit(l.argMax(o)...)
	case opTopK:
		l.emit(l.topK(o)...)
	case opKVWrite:
		k, v := l.in(o.a), l.in(o.b)
		l.emit(l.kvWrite(o, k, v))
	case opAttention:
		q := l.plain(o.a)
		l.overwrite(o.dst)
		l.attention(o, q)
	case opShortConv:
		u := l.in(o.a)
		l.overwrite(o.dst)
		l.shortConv(o, u)
	case opGatedDelta:
		x, alpha, beta := l.plain(o.a), l.in(o.b), l.in(o.c)
		l.overwrite(o.dst)
		l.gatedDelta(o, x, alpha, beta)
	}
	return 1
}
