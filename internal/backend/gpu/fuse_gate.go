package gpu

import "strobe/internal/backend"

// matchGated: g = act(gate)*up, where g is multiplied.
func (l *lowering) matchGated(i int) (mul int, ok bool) {
	mul = l.feeds(i, l.ops[i].dst)
	return mul, mul >= 0 && l.ops[i].packs()
}

// gated launches them as one kernel, or with the product.
func (l *lowering) gated(i, mul int) int {
	o := l.ops[i]
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
		l.out = l.b.small.Gated(l.out, o.dst.out(), gate, up, backend.Activation(o.act), int(o.dst.rows),
			int(o.dst.cols))
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{v: o.dst, x: x})
	return 1
}

// matchSigmoidGate: o *= sigmoid(gate), head by head, where o is multiplied.
func (l *lowering) matchSigmoidGate(i int) (mul int, ok bool) {
	o, next := l.ops[i], l.at(i+1)
	return i + 1, next.kind == opMatMul && sameRows(next.a, o.dst) && o.dst == o.a && o.dst.stride == o.dst.cols &&
		l.tiled(i+1) && o.dst.cols%8 == 0 && !l.wanted(i, o.dst)
}

// sigmoidGate launches them as one kernel, which may add attention's splits, or with the product.
func (l *lowering) sigmoidGate(i, at int) int {
	o, mul := l.ops[i], l.ops[at]
	tokens := int(mul.a.rows)
	v, gate := l.in(mul.a), l.split(o.b, tokens)
	if n := l.selfPacked(at, mul.a, SelfPacked{Kind: PackSigmoid, X: v, Gate: gate.in, Dim: gate.dim,
		Step: gate.step}); n > 0 {
		return 1 + n
	}
	x := l.act(at)
	to := Packed{ActLayout: x.ActLayout, P: x.P}
	if s := l.unmerged(at); s != nil && l.b.products.NoTensorCores && int(s.dim) == gate.dim {
		l.unmerge()
		l.out = l.b.products.MergePack(l.out, to, s, v, gate.in, gate.step)
	} else {
		l.out = l.b.products.SigmoidPack(l.out, to, v, gate.in, gate.dim, gate.step)
	}
	l.overwrite(o.dst)
	l.packed = append(l.packed, packedRows{v: mul.a, x: x})
	return 1
}

// matchHeadGate: o = norm of heads(o); o = silu(z)*o, where o is multiplied.
func (l *lowering) matchHeadGate(i int) (mul int, ok bool) {
	norm, gate, next := l.at(i), l.at(i+1), l.at(i+2)
	return i + 2, norm.kind == opRMSNorm && gate.kind == opGated && gate.act == int32(backend.SiLU) &&
		next.kind == opMatMul && norm.dst == norm.a && norm.v != 0 && norm.dst.stride == norm.dst.cols &&
		gate.b == gate.dst && sameRows(gate.dst, norm.dst) && sameRows(next.a, gate.dst) && l.tiled(i+2) &&
		CanHeadPack(int(norm.a.cols)) && !l.wanted(i+1, gate.dst)
}

// headGate launches them as one kernel, or with the product.
func (l *lowering) headGate(i, at int) int {
	norm, gate, mul := l.ops[i], l.ops[i+1], l.ops[at]
	o, z := l.in(gate.dst), l.in(gate.a)
	if n := l.selfPacked(at, mul.a, SelfPacked{Kind: PackHeads, X: o, Gate: z, W: norm.v, Dim: int(norm.a.cols),
		Eps: norm.f}); n > 0 {
		return 2 + n
	}
	x := l.act(at)
	l.out = l.b.products.HeadPack(l.out, Packed{ActLayout: x.ActLayout, P: x.P}, o, z, norm.v, int(norm.a.cols), norm.f)
	l.overwrite(gate.dst)
	l.packed = append(l.packed, packedRows{v: mul.a, x: x})
	return 2
}

// selfPacked has the product at mul pack its input v itself, if it is the only one to read it and has few rows, and
// returns how many operations that were.
func (l *lowering) selfPacked(mul int, v view, m SelfPacked) int {
	if l.at(mul).kind != opMatMul || !sameRows(l.ops[mul].a, v) || l.mixed(mul) || l.read(mul, l.ops[mul].a) {
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
		!sameRows(s.v, l.ops[mul].a) || l.read(mul, l.ops[mul].a) {
		return nil
	}
	return s.splits
}

// unmerge takes that launch back: the next kernel adds the splits.
func (l *lowering) unmerge() {
	l.later = append(l.later, l.splits.scratch)
	l.out, l.splits = l.out[:len(l.out)-1], splitRows{}
}
