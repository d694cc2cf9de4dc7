package gpu

import "strobe/internal/backend"

// mixture is a layer of experts as models write it: optionally an expert that all rows share (gate and up, activation,
// down, and the gate of its output or, where it has another input than the experts, its norm), the router's product and
// choice, the experts' gate and up, activation and down. The fields are places in the list of operations; those of what
// is not there are -1.
type mixture struct {
	shared, sharedAct, sharedDown, sharedGate int
	sharedNorm                                int
	router, route                             int
	experts, act, down                        int
	end                                       int
}

// mixtureRows is the number of rows up to which experts are few enough to choose in one block, and their products read
// so much more than they compute that making activations twice costs nothing.
const mixtureRows = 64

// matchMixture finds a mixture that begins at the product i.
func (l *lowering) matchMixture(i int) (m mixture, ok bool) {
	if !l.b.products.Bulk || l.at(i).kind != opMatMul {
		return m, false
	}
	m = mixture{shared: -1, sharedAct: -1, sharedDown: -1, sharedGate: -1, sharedNorm: -1, router: i}
	if l.ops[i].outputs == 2 {
		m.shared, m.sharedAct = i, l.after(i)
		m.sharedDown = m.sharedAct + 1
		if !l.gatedFFN(m.shared, m.sharedAct, m.sharedDown) || l.at(m.sharedDown).kind != opMatMul {
			return m, false
		}
		m.router = l.after(m.sharedDown)
		y := l.ops[m.sharedDown+1].dst
		if o := l.at(m.router); o.kind == opMatMul && o.outputs == 1 && o.a == l.ops[i].a {
			m.sharedGate = m.router
			m.router = l.after(m.router)
		} else if o.kind == opRMSNorm && o.a == y && o.dst == y {
			m.sharedNorm = m.router
			m.router++
		}
	}
	router := l.at(m.router)
	if router.kind != opMatMul || router.outputs != 1 {
		return m, false
	}
	m.route = l.after(m.router)
	route := l.at(m.route)
	if route.kind != opRoute || route.a != l.ops[m.router+1].dst {
		return m, false
	}
	m.experts = m.route + 1
	x := l.at(m.experts)
	if x.kind != opExpertMatMul || x.ids != route.ids {
		return m, false
	}
	m.act = l.after(m.experts)
	m.down = m.act + 1
	if d := l.at(m.down); d.kind != opExpertMatMul || d.ids != route.ids || x.used != route.used || d.used != route.used ||
		!l.gatedFFN(m.experts, m.act, m.down) {
		return m, false
	}
	m.end = l.after(m.down)
	if m.shared < 0 {
		return m, true
	}
	for _, i := range []int{m.shared, m.sharedDown} {
		for _, p := range l.products(i) {
			if p.w.blocks%p.w.Groups() != 0 { // another product cut it before
				return m, false
			}
		}
	}
	// The router and the experts run before or beside the shared expert.
	return m, l.ops[m.sharedAct].act == l.ops[m.act].act && !l.touched(m.shared, m.router, router.a) &&
		!l.touched(m.shared, m.router, x.a) &&
		l.b.products.canGate(l.products(m.down)[0].w.WeightLayout, l.products(m.sharedDown)[0].w.WeightLayout)
}

// gatedFFN reports whether the products at i, the activation and the product at down are a feed-forward layer in tiles,
// whose activation the kernel of the last can make.
func (l *lowering) gatedFFN(i, act, down int) bool {
	g, d := l.at(act), l.at(down)
	product := d.kind == opMatMul || d.kind == opExpertMatMul
	if g.kind != opGated || !g.packs() || !product || d.outputs != 1 || d.a != g.dst {
		return false
	}
	ps := l.products(i)
	switch first := ps[0].dst; len(ps) {
	case 1: // one matrix has both
		half := first
		half.cols /= 2
		up := half
		up.addr += Addr(4 * half.cols)
		if g.a != half || g.b != up {
			return false
		}
	case 2:
		if g.a != first || g.b != ps[1].dst || !alike(ps[0].w.WeightLayout, ps[1].w.WeightLayout) {
			return false
		}
	default:
		return false
	}
	return l.tiled(i) && !l.mixed(i) && l.tiled(down) && l.b.products.canGate(l.products(down)[0].w.WeightLayout)
}

// fits reports whether a mixture has few enough rows.
func (l *lowering) fits(m mixture) bool {
	rows, pairs := int(l.ops[m.router].a.rows), int(l.ops[m.experts+1].dst.rows)
	return rows <= mixtureRows && expertTiles(pairs, l.ops[m.experts+1].w.Experts()) == 1
}

// mixture: three launches up to the experts' outputs, which stay in pieces. How matrices are cut is fixed even if there
// are too many rows: a row's bits must not depend on that.
func (l *lowering) mixture(i int, m mixture) int {
	var shared, sharedDown []op
	if m.shared >= 0 {
		shared, sharedDown = l.products(m.shared), l.products(m.sharedDown)
	}
	l.cutExperts(int(l.ops[m.route].used), l.products(m.experts), shared)
	l.cutExperts(int(l.ops[m.route].used), l.products(m.down), sharedDown)
	if !l.fits(m) {
		return 0
	}
	x := [2]MatMulInput{l.pack(m.experts)}
	if m.shared >= 0 {
		x[1] = l.pack(m.shared)
	}
	tables, choice := l.chooseExperts(m)
	l.feedForward(m, x, tables, choice)
	if m.sharedNorm >= 0 {
		if late, ok := l.matchLateNorm(m.sharedNorm); ok {
			l.late = late
		} else {
			l.single(m.sharedNorm)
		}
	}
	return m.end - i
}

// chooseExperts is the router's part: as one launch, if its weights are float32. It returns tables, or what those who
// multiply with the experts choose from.
func (l *lowering) chooseExperts(m mixture) (tables Addr, choice *Router) {
	o, route := l.ops[m.router], l.ops[m.route]
	router := l.ops[m.router+1]
	rows, experts, used := int(o.a.rows), router.w.Rows(), int(route.used)
	r, one := l.router(m)
	if !one {
		if m.sharedGate >= 0 {
			l.single(m.sharedGate)
		}
		l.single(m.router)
		l.single(m.route)
		return l.group(route.ids, rows*used, experts), nil
	}
	if n := l.normedRows(o.a); n.norm.Sums != 0 {
		r.X, r.Norm = n.src.out(), n.norm
	} else {
		l.summed(o.a)
	}
	if m.sharedGate >= 0 {
		l.overwrite(l.ops[m.sharedGate+1].dst)
	}
	l.overwrite(router.dst)
	l.overwrite(route.dst)
	if l.groups.tables != 0 {
		l.b.spare.give(l.groups.tables)
	}
	l.groups = expertGroups{}
	if r.Alone(rows) {
		l.out = l.b.products.Route(l.out, r, rows)
		return 0, &r
	}
	l.groups = expertGroups{route.ids, rows * used, experts, l.take(ExpertTableBytes(rows*used, experts))}
	r.Tables = l.groups.tables
	l.out = l.b.products.Route(l.out, r, rows)
	return r.Tables, nil
}

// router describes the router's launch, if it can be one.
func (l *lowering) router(m mixture) (r Router, one bool) {
	o, route, router := l.ops[m.router], l.ops[m.route], l.ops[m.router+1]
	r = Router{W: router.w.floats(), X: o.a.out(), Logits: router.dst.out(), IDs: route.ids, Weights: route.dst.out(),
		Used: int(route.used), Scale: route.f, Counter: l.b.counter}
	one = l.b.products.CanRoute(r.W, r.X)
	if m.sharedGate >= 0 {
		gate := l.ops[m.sharedGate+1]
		r.Gate, r.GateOut = gate.w.floats(), gate.dst.out()
		one = one && gate.w.Rows() == 1 && l.b.products.CanRoute(r.Gate, r.X)
	}
	return r, one
}

// routerRows is a router's input that its launch makes itself: norm of the rows src.
type routerRows struct {
	v, src view
	norm   RowNorm
}

// normedRows is how the router's launch makes its input v, if it can.
func (l *lowering) normedRows(v view) routerRows {
	if l.routed.v == v {
		return l.routed
	}
	for _, p := range l.packed {
		if p.v == v && p.src.addr != 0 && p.src.out().aligned() && p.w != 0 && p.x.Sums != 0 {
			return routerRows{v, p.src, RowNorm{p.w, p.x.Sums, p.x.Eps, 1}}
		}
	}
	return routerRows{}
}

// makesRows reports whether the product mul begins a mixture with a router that makes its input, the norm at i, itself,
// and returns the products that then do not read it from memory.
func (l *lowering) makesRows(i, mul int) []int {
	m, ok := l.matchMixture(mul)
	norm := l.ops[i]
	if !ok || !l.fits(m) || norm.v == 0 || norm.v%16 != 0 || !norm.a.out().aligned() || l.ops[m.router].a != norm.dst ||
		norm.a.overlaps(norm.dst) || l.touched(i, m.router, norm.a) {
		return nil
	}
	if _, one := l.router(m); !one {
		return nil
	}
	if m.sharedGate >= 0 {
		return []int{m.router, m.sharedGate}
	}
	return []int{m.router}
}

// routerNormMatch is r = norm(x); perhaps r *= factor; and a router multiplies r.
type routerNormMatch struct {
	n, router int // operations, and the place of the router's product
	factor    float32
}

func (l *lowering) matchRouterNorm(i int) (m routerNormMatch, ok bool) {
	o := l.ops[i]
	if o.v == 0 || o.a.overlaps(o.dst) || !l.b.products.Bulk {
		return m, false
	}
	m = routerNormMatch{n: 1, factor: 1}
	if s := l.at(i + 1); s.kind == opScale && s.a == o.dst && s.dst == o.dst {
		m.n, m.factor = 2, s.f
	}
	for _, j := range l.value(i+m.n-1, o.dst).uses {
		if l.ops[j].kind == opMatMul && l.ops[j].a == o.dst {
			m.router = j
			mix, ok := l.matchMixture(j)
			return m, ok && mix.router == j
		}
	}
	return m, false
}

// routerNorm: however many rows there are the norm is computed as where the product of x with other weights has one:
// from sums of squares of 256 columns. So the router can compute it itself, if these sums are there.
func (l *lowering) routerNorm(i int, m routerNormMatch) int {
	o := l.ops[i]
	x := l.summed(o.a)
	for _, p := range l.packed {
		if p.src != x || p.x.Sums == 0 || p.x.Eps != o.f || l.makesRows(i, m.router) == nil ||
			l.wanted(i+m.n-1, o.dst, m.router) || l.touched(i, m.router, p.v) {
			continue
		}
		l.overwrite(o.dst)
		l.routed = routerRows{o.dst, x, RowNorm{o.v, p.x.Sums, o.f, m.factor}}
		return m.n
	}
	l.overwrite(o.dst)
	none := Packed{ActLayout: ActLayout{Rows: int(x.rows), Cols: int(x.cols)}}
	sums := l.take(none.SumsBytes())
	l.out = l.b.products.AddNorm(l.out, none, Sum{X: x.in(), W: o.v, Sums: sums}, o.dst.addr, int(o.dst.stride), o.f)
	l.later = append(l.later, sums)
	return 1
}

// feedForward launches gate and up of all experts, then activation and down.
func (l *lowering) feedForward(m mixture, x [2]MatMulInput, tables Addr, choice *Router) {
	rows, pairs := x[0].Rows, int(l.ops[m.experts+1].dst.rows)
	made := func(down int) MatMulInput {
		return MatMulInput{ActLayout: ActLayout{Rows: rows, Cols: l.products(down)[0].w.Cols(), NT: rowsLayout}}
	}
	up := ExpertProduct{X: x[0], Shared: x[1], Tables: tables, Choice: choice, Pairs: pairs}
	last := ExpertProduct{X: made(m.down), Tables: tables, Choice: choice, Pairs: pairs, Early: true,
		GELU: l.ops[m.act].gelu()}
	type part struct {
		mul, act, down, rows int
	}
	parts := []part{{m.experts, m.act, m.down, pairs}}
	if m.shared >= 0 {
		last.Shared = made(m.sharedDown)
		parts = append(parts, part{m.shared, m.sharedAct, m.sharedDown, rows})
	}
	var owners [2]Addr
	for k, p := range parts {
		up.Jobs[k], owners[k] = l.expertJobs(p.mul, p.rows)
	}
	l.out = l.b.products.Experts(l.out, up)
	for k, p := range parts {
		l.leaveExperts(l.products(p.mul), up.Jobs[k], owners[k], p.rows)
		g := l.ops[p.act]
		last.Gated[k] = GatedRows{l.in(g.a), l.in(g.b)}
		if l.wanted(p.act, g.dst) {
			l.out = l.b.small.Gated(l.out, g.dst.out(), last.Gated[k].Gate, last.Gated[k].Up, backend.Activation(g.act),
				int(g.dst.rows), int(g.dst.cols))
			last.Early = false
		}
		last.Jobs[k], owners[k] = l.expertJobs(p.down, p.rows)
	}
	l.out = l.b.products.Experts(l.out, last)
	for k, p := range parts {
		l.overwrite(l.ops[p.act].dst)
		l.leaveExperts(l.products(p.down), last.Jobs[k], owners[k], p.rows)
	}
}

// mixtureEnd is the end of a mixture: s = weighted sum of experts; perhaps s += gated shared expert; x += s;
// h = norm(x), where h is multiplied.
type mixtureEnd struct {
	shared bool
	add    int
	norm   normMatch
}

func (l *lowering) matchExpertSum(i int) (e mixtureEnd, ok bool) {
	sum, j := l.ops[i], i+1
	if o := l.at(j); o.kind == opAddGated && o.dst == sum.dst && !o.a.overlaps(sum.dst) {
		e.shared = true
		j++
	}
	add := l.at(j)
	if l.b.products.NoTensorCores || add.kind != opAdd || add.dst != add.a || add.b != sum.dst || l.read(j, sum.dst) {
		return e, false
	}
	e.add, e.norm = j, l.normOf(j)
	return e, e.norm.mul >= 0
}

// expertSum launches the sums, the norm and its packing as one kernel.
func (l *lowering) expertSum(i int, e mixtureEnd) int {
	sum, add, norm := l.ops[i], l.ops[e.add], l.ops[e.norm.at]
	m := Mixed{X: l.summed(add.a).in(), Y: l.in(sum.a), Used: int(sum.used), Weights: l.summed(sum.b).out(),
		Scale: sum.v, IDs: sum.ids, Dst: add.dst.out(), W: norm.v, Eps: norm.f}
	if e.shared {
		gated := l.ops[i+1]
		m.Shared, m.Gate = l.in(gated.a), l.summed(gated.b).out()
	}
	l.overwrite(sum.dst)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	x := l.act(e.norm.mul)
	x.Sums, x.Eps = l.take(x.SumsBytes()), norm.f
	m.Sums = x.Sums
	if l.wanted(e.norm.at, norm.dst, l.makesRows(e.norm.at, e.norm.mul)...) {
		m.Out = norm.dst.out()
	}
	l.out = l.b.products.Mix(l.out, Packed{ActLayout: x.ActLayout, P: x.P}, m)
	l.normed(norm, x)
	for k := e.add + 1; k < e.norm.copies; k++ {
		l.single(k)
	}
	return e.norm.at + 1 - i
}
