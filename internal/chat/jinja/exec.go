package jinja

import (
	"slices"
	"strings"
)

// flow says how a statement ended.
type flow uint8

const (
	goOn flow = iota
	breakLoop
	continueLoop
)

func (r *run) exec(body []node, sc *scope, b *strings.Builder) flow {
	r.enter()
	defer func() { r.depth-- }()
	for _, n := range body {
		r.spend(1)
		if f := r.stmt(n, sc, b); f != goOn {
			return f
		}
	}
	return goOn
}

func (r *run) stmt(n node, sc *scope, b *strings.Builder) flow {
	switch n := n.(type) {
	case *dataStmt:
		r.write(b, n.s)
	case *outStmt:
		r.line = n.line
		r.write(b, r.str(r.eval(n.e, sc)))
	case *ifStmt:
		for i, c := range n.conds {
			r.line = n.lines[i]
			if truth(r.eval(c, sc)) {
				return r.exec(n.bodies[i], sc, b)
			}
		}
		return r.exec(n.els, sc, b)
	case *forStmt:
		r.line = n.line
		return r.loop(n, r.eval(n.iter, sc), sc, b)
	case *setStmt:
		r.line = n.line
		r.assign(n.target, r.eval(n.e, sc), sc)
	case *setBlockStmt:
		r.assign(n.target, r.capture(n.body, n.filters, sc, n.line), sc)
	case *filterStmt:
		r.write(b, r.str(r.capture(n.body, n.e, sc, n.line)))
	case *macroStmt:
		sc.set(n.name, &macro{n, sc})
	case *callStmt:
		r.line = n.line
		f := r.eval(n.call.f, sc)
		a := r.args(&n.call.args, sc)
		a.kw = append(a.kw, kwValue{"caller", &macro{n.body, sc}})
		r.write(b, r.str(r.call(f, a)))
	case *withStmt:
		r.line = n.line
		c := sc.child()
		for i, t := range n.targets {
			r.assign(t, r.eval(n.values[i], sc), c)
		}
		return r.exec(n.body, c, b)
	case *scopeStmt:
		return r.exec(n.body, sc.child(), b)
	case *breakStmt:
		return breakLoop
	case *continueStmt:
		return continueLoop
	}
	return goOn
}

// capture renders body and passes the text through filters, if any.
func (r *run) capture(body []node, filters node, sc *scope, line int) any {
	var s strings.Builder
	r.exec(body, sc.child(), &s)
	r.line = line
	if filters == nil {
		return s.String()
	}
	return r.eval(filters, &scope{parent: sc, hole: s.String()})
}

func (r *run) assign(target node, v any, sc *scope) {
	switch t := target.(type) {
	case *nameExpr:
		sc.set(t.name, v)
	case *nsTarget:
		o, _ := sc.get(t.name)
		ns, ok := o.(*namespace)
		if !ok {
			panic(errorf("cannot assign attribute on non-namespace object"))
		}
		ns.d.Set(t.attr, v)
	case *tupleTarget:
		if !iterable(v) {
			panic(errorf("cannot unpack non-iterable %s object", typeName(v)))
		}
		values := r.iterate(v)
		if len(values) != len(t.items) {
			panic(errorf("cannot unpack %d values into %d names", len(values), len(t.items)))
		}
		for i, item := range t.items {
			r.assign(item, values[i], sc)
		}
	}
}

// loopVar is the "loop" of a for statement.
type loopVar struct {
	items []any
	i     int
}

func (r *run) loop(n *forStmt, v any, sc *scope, b *strings.Builder) flow {
	items := r.iterate(v)
	if n.cond != nil {
		all := items
		items = nil
		for _, item := range all {
			r.spend(1)
			c := sc.child()
			r.assign(n.target, item, c)
			if truth(r.eval(n.cond, c)) {
				items = append(items, item)
			}
		}
	}
	if len(items) == 0 {
		return r.exec(n.els, sc.child(), b)
	}
	lv := &loopVar{items: items}
	for i, item := range items {
		r.spend(1)
		lv.i = i
		c := sc.child()
		c.set("loop", lv)
		r.line = n.line
		r.assign(n.target, item, c)
		if r.exec(n.body, c, b) == breakLoop {
			break
		}
	}
	return goOn
}

func (lv *loopVar) attr(name string) any {
	n := len(lv.items)
	switch name {
	case "index":
		return int64(lv.i + 1)
	case "index0":
		return int64(lv.i)
	case "first":
		return lv.i == 0
	case "last":
		return lv.i == n-1
	case "length":
		return int64(n)
	case "revindex":
		return int64(n - lv.i)
	case "revindex0":
		return int64(n - lv.i - 1)
	case "previtem":
		if lv.i > 0 {
			return lv.items[lv.i-1]
		}
		return undefined{"there is no previous item"}
	case "nextitem":
		if lv.i+1 < n {
			return lv.items[lv.i+1]
		}
		return undefined{"there is no next item"}
	case "cycle":
		return &function{name: "cycle", call: func(r *run, a *args) any {
			if len(a.pos) == 0 {
				panic(errorf("no items for cycling given"))
			}
			return a.pos[lv.i%len(a.pos)]
		}}
	case "changed", "depth", "depth0":
		panic(errorf("'loop.%s' is not supported", name))
	}
	return undefinedItem(lv, name)
}

// macro is a macro bound to the scope it was defined in.
type macro struct {
	m  *macroStmt
	sc *scope
}

func (r *run) callMacro(m *macro, a *args) any {
	sc := m.sc.child()
	d := m.m
	required := len(d.args) - len(d.defaults)
	explicitCaller := false
	for i, name := range d.args {
		explicitCaller = explicitCaller || name == "caller"
		if i < len(a.pos) {
			sc.set(name, a.pos[i])
		} else if v, ok := a.take(name); ok {
			sc.set(name, v)
		} else if i < required {
			sc.set(name, undefined{"parameter " + pyQuote(name) + " was not provided"})
		} else {
			sc.set(name, r.eval(d.defaults[i-required], sc))
		}
	}
	if d.caller && !explicitCaller {
		v, ok := a.take("caller")
		if !ok {
			v = undefined{"No caller defined"}
		}
		sc.set("caller", v)
	}
	if d.kwargs {
		kw := NewDict()
		for _, k := range a.kw {
			kw.Set(k.name, k.v)
		}
		sc.set("kwargs", kw)
	} else if len(a.kw) > 0 {
		panic(errorf("macro %s takes no keyword argument %s", pyQuote(d.name), pyQuote(a.kw[0].name)))
	}
	extra := a.pos[min(len(a.pos), len(d.args)):]
	if d.varargs {
		sc.set("varargs", &List{Items: extra, kind: isTuple})
	} else if len(extra) > 0 {
		panic(errorf("macro %s takes not more than %d argument(s)", pyQuote(d.name), len(d.args)))
	}
	var b strings.Builder
	r.exec(d.body, sc, &b)
	return b.String()
}

// args are evaluated call arguments.
type args struct {
	pos []any
	kw  []kwValue
}

type kwValue struct {
	name string
	v    any
}

// take removes a keyword argument.
func (a *args) take(name string) (any, bool) {
	for i, k := range a.kw {
		if k.name == name {
			a.kw = append(a.kw[:i:i], a.kw[i+1:]...)
			return k.v, true
		}
	}
	return nil, false
}

// absent marks an optional argument that was not given.
type absent struct{}

func given(v any) bool { _, no := v.(absent); return !no }

// flag is an optional argument that counts as false when it was not given.
func flag(v any) bool { return given(v) && truth(v) }

// either is an optional argument or its default.
func either(v, def any) any {
	if given(v) {
		return v
	}
	return def
}

// bind maps the arguments to parameter names as a Python call would. The
// first required ones must be given; others come back as absent{}.
func (a *args) bind(fn string, required int, names ...string) []any {
	if len(a.pos) > len(names) {
		panic(errorf("%s takes at most %d argument(s), got %d", fn, len(names), len(a.pos)))
	}
	out := make([]any, len(names))
	for i := range names {
		out[i] = absent{}
	}
	copy(out, a.pos)
	for _, k := range a.kw {
		i := slices.Index(names, k.name)
		if i < 0 {
			panic(errorf("%s got an unexpected keyword argument '%s'", fn, k.name))
		}
		if given(out[i]) {
			panic(errorf("%s got multiple values for argument '%s'", fn, k.name))
		}
		out[i] = k.v
	}
	for i := range required {
		if !given(out[i]) {
			panic(errorf("%s is missing its argument '%s'", fn, names[i]))
		}
	}
	return out
}

func (r *run) args(n *callArgs, sc *scope) *args {
	a := &args{}
	for _, e := range n.pos {
		a.pos = append(a.pos, r.eval(e, sc))
	}
	if n.star != nil {
		items := r.iterate(r.eval(n.star, sc))
		r.charge(16 * len(items))
		a.pos = append(a.pos, items...)
	}
	for _, e := range n.kw {
		a.kw = append(a.kw, kwValue{e.name, r.eval(e.e, sc)})
	}
	if n.dict != nil {
		v := r.eval(n.dict, sc)
		d, ok := v.(*Dict)
		if !ok {
			panic(errorf("argument after ** must be a mapping, not %s", typeName(v)))
		}
		r.charge(32 * d.Len())
		for i, k := range d.keys {
			a.kw = append(a.kw, kwValue{needText("keyword", k), d.values[i]})
		}
	}
	return a
}

func (r *run) call(f any, a *args) any {
	mustDefined(f)
	switch f := f.(type) {
	case *function:
		r.touchArgs(a)
		return f.call(r, a)
	case *macro:
		return r.callMacro(f, a)
	}
	panic(errorf("'%s' object is not callable", typeName(f)))
}
