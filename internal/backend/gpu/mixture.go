package gpu

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

// after is the place behind a product's outputs.
func (l *lowering) after(i int) int { return i + 1 + int(l.ops[i].outputs) }

// match finds a mixture that begins at the product i.
func (l *lowering) match(i int) (m mixture, ok bool) {
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
	if g.kind != opGated || d.kind != opMatMul && d.kind != opExpertMatMul || d.outputs != 1 || d.a != g.dst {
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
func (l *lowering) mixture(i int) int {
	m, ok := l.match(i)
	if !ok {
		return 0
	}
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
	if m.sharedNorm >= 0 && l.lateNorm(m.sharedNorm) == 0 {
		l.single(m.sharedNorm)
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
		l.plain(o.a)
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
	m, ok := l.match(mul)
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

// routerNorm: r = norm(x); perhaps r *= f; and a router multiplies r. However many rows there are it is computed as
// where the product of x with other weights has a norm: from sums of squares of 256 columns. So the router can make it
// itself, if these sums are there.
func (l *lowering) routerNorm(i int) int {
	o, n, f := l.ops[i], 1, float32(1)
	if o.v == 0 || o.a.overlaps(o.dst) || !l.b.products.Bulk {
		return 0
	}
	if s := l.at(i + 1); s.kind == opScale && s.a == o.dst && s.dst == o.dst {
		n, f = 2, s.f
	}
	at := i + n // the router
	for ; at < len(l.ops); at++ {
		if l.at(at).kind == opMatMul && l.ops[at].a == o.dst {
			break
		}
		for v := range l.ops[at].writes {
			if v.overlaps(o.dst) {
				return 0
			}
		}
	}
	if m, ok := l.match(at); !ok || m.router != at {
		return 0
	}
	x := l.plain(o.a)
	for _, p := range l.packed {
		if p.src != x || p.x.Sums == 0 || p.x.Eps != o.f || l.makesRows(i, at) == nil ||
			l.wanted(i+n-1, o.dst, at) || l.touched(i, at, p.v) {
			continue
		}
		l.overwrite(o.dst)
		l.routed = routerRows{o.dst, x, RowNorm{o.v, p.x.Sums, o.f, f}}
		return n
	}
	l.overwrite(o.dst)
	none := Packed{ActLayout: ActLayout{Rows: int(x.rows), Cols: int(x.cols)}}
	sums := l.take(none.SumsBytes())
	l.out = l.b.products.AddNorm(l.out, none, Sum{X: x.in(), W: o.v, Sums: sums}, o.dst.addr, int(o.dst.stride), o.f)
	l.later = append(l.later, sums)
	return 1
}

// touched reports whether one of the operations from i to j, without j, writes anything of v.
func (l *lowering) touched(i, j int, v view) bool {
	for ; i < j; i++ {
		for w := range l.ops[i].writes {
			if w.overlaps(v) {
				return true
			}
		}
	}
	return false
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
			l.out = l.b.small.Gated(l.out, g.dst.out(), last.Gated[k].Gate, last.Gated[k].Up, last.GELU, int(g.dst.rows),
				int(g.dst.cols))
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

// expertSum: s = weighted sum of experts; s += gated shared expert; x += s; h = norm(x), where h is multiplied.
// Without tensor cores there is no kernel for it.
func (l *lowering) expertSum(i int) int {
	sum, j := l.ops[i], i+1
	gated := *l.at(j)
	if gated.kind == opAddGated && gated.dst == sum.dst && !gated.a.overlaps(sum.dst) {
		j++
	} else {
		gated = op{}
	}
	add, at := *l.at(j), j
	if l.b.products.NoTensorCores || add.kind != opAdd || add.dst != add.a || add.b != sum.dst || l.read(j, sum.dst) {
		return 0
	}
	j, norm, mul := l.normOf(at)
	if mul < 0 {
		return 0
	}
	m := Mixed{X: l.plain(add.a).in(), Y: l.in(sum.a), Used: int(sum.used), Weights: l.plain(sum.b).out(), Scale: sum.v,
		IDs: sum.ids,
		Dst: add.dst.out(), W: norm.v, Eps: norm.f}
	if gated.dst.addr != 0 {
		m.Shared, m.Gate = l.in(gated.a), l.plain(gated.b).out()
	}
	l.overwrite(sum.dst)
	l.overwrite(add.dst)
	l.overwrite(norm.dst)
	x := l.act(mul)
	x.Sums, x.Eps = l.take(x.SumsBytes()), norm.f
	m.Sums = x.Sums
	if l.wanted(j, norm.dst, l.makesRows(j, mul)...) {
		m.Out = norm.dst.out()
	}
	l.out = l.b.products.Mix(l.out, Packed{ActLayout: x.ActLayout, P: x.P}, m)
	l.normed(norm, x)
	for k := at + 1; k < j; k++ {
		l.single(k)
	}
	return j + 1 - i
}

// read reports whether v is read after operation i, before anything of it is overwritten. What is there at the end of
// the step may be read by the host.
func (l *lowering) read(i int, v view) bool {
	for j := i + 1; j < len(l.ops); j++ {
		for r := range l.ops[j].reads {
			if r.overlaps(v) {
				return true
			}
		}
		for w := range l.ops[j].writes {
			if w.overlaps(v) {
				return false
			}
		}
	}
	return true
}
