package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

func (r *run) eval(n node, sc *scope) any {
	r.spend(1)
	r.enter()
	v := r.expr(n, sc)
	r.depth--
	return v
}

func (r *run) expr(n node, sc *scope) any {
	switch n := n.(type) {
	case *constExpr:
		return n.v
	case *nameExpr:
		if v, ok := sc.get(n.name); ok {
			return v
		}
		return undefined{pyQuote(n.name) + " is undefined"}
	case *attrExpr:
		v := r.eval(n.e, sc)
		r.line = n.line
		return r.attr(v, n.name)
	case *itemExpr:
		v, key := r.eval(n.e, sc), r.eval(n.key, sc)
		r.line = n.line
		return r.item(v, key)
	case *sliceExpr:
		return r.slice(n, sc)
	case *callExpr:
		f, a := r.eval(n.f, sc), r.args(&n.args, sc)
		r.line = n.line
		return r.call(f, a)
	case *filterExpr:
		v, a := r.eval(n.e, sc), r.args(&n.args, sc)
		r.line = n.line
		if n.fn == nil {
			panic(errorf("%s", unknownFilter(n.name)))
		}
		return r.filter(n.fn, v, a)
	case *testExpr:
		v, a := r.eval(n.e, sc), r.args(&n.args, sc)
		r.line = n.line
		if n.fn == nil {
			panic(errorf("%s", unknownTest(n.name)))
		}
		return r.test(n.fn, v, a) != n.neg
	case *binExpr:
		a, b := r.eval(n.a, sc), r.eval(n.b, sc)
		r.line = n.line
		r.touch(a, b)
		return r.binary(n.op, a, b)
	case *logicExpr:
		if a := r.eval(n.a, sc); truth(a) != n.and {
			return a
		}
		return r.eval(n.b, sc)
	case *notExpr:
		return !truth(r.eval(n.e, sc))
	case *signExpr:
		v := r.eval(n.e, sc)
		r.line = n.line
		return unary(n.neg, v)
	case *compareExpr:
		return r.compareChain(n, sc)
	case *condExpr:
		if truth(r.eval(n.cond, sc)) {
			return r.eval(n.then, sc)
		}
		if n.els == nil {
			return undefined{"an if-expression without else was false"}
		}
		return r.eval(n.els, sc)
	case holeExpr:
		for sc.hole == nil {
			sc = sc.parent
		}
		return sc.hole
	}
	return r.display(n, sc)
}

// display evaluates what builds a new value of parts: "a ~ b", [a, b] and {a: b}.
func (r *run) display(n node, sc *scope) any {
	switch n := n.(type) {
	case *concatExpr:
		var b strings.Builder
		for _, e := range n.items {
			r.write(&b, r.str(r.eval(e, sc)))
		}
		return b.String()
	case *listExpr:
		r.charge(16 * len(n.items))
		l := &List{Items: make([]any, len(n.items))}
		if n.tuple {
			l.kind = isTuple
		}
		for i, e := range n.items {
			l.Items[i] = r.eval(e, sc)
		}
		return l
	}
	e := n.(*dictExpr)
	r.charge(64 * len(e.keys))
	d := NewDict()
	for i := range e.keys {
		k, v := r.eval(e.keys[i], sc), r.eval(e.values[i], sc)
		r.touch(k)
		d.set(hashKey(k), k, v)
	}
	return d
}

// attr is obj.name: attributes and methods first, then keys.
func (r *run) attr(o any, name string) any {
	mustDefined(o)
	if v, ok := r.attribute(o, name); ok {
		return v
	}
	if d, ok := o.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v
		}
	}
	return undefinedItem(o, name)
}

// attribute looks up a Python attribute of a value, not its keys.
func (r *run) attribute(o any, name string) (any, bool) {
	switch o := o.(type) {
	case *namespace:
		if v, ok := o.d.Get(name); ok {
			return v, true
		}
	case *loopVar:
		return o.attr(name), true
	case *macro:
		if name == "name" {
			return o.m.name, true
		}
	}
	return method(o, name)
}

// item is obj[key]: elements and keys first, then attributes.
func (r *run) item(o, key any) any {
	mustDefined(o)
	if _, isList := o.(*List); !isList { // an element of a list is found at once
		r.touch(o, key)
	}
	i, isInt := toInt(key)
	switch o := o.(type) {
	case *Dict:
		if hashable(key) {
			if v, ok := o.lookup(key); ok {
				return v
			}
		}
	case *List:
		n := int64(len(o.Items))
		if i < 0 {
			i += n
		}
		if isInt && o.indexed() && i >= 0 && i < n {
			return o.Items[i]
		}
	case string, Markup:
		s, _ := text(o)
		if c, ok := charAt(s, i); isInt && ok {
			return like(o, c)
		}
	}
	if name, ok := text(key); ok {
		if v, ok := r.attribute(o, name); ok {
			return v
		}
	}
	return undefinedItem(o, key)
}

// hashable reports whether a value can be a key; a tuple counts without its items.
func hashable(v any) bool {
	_, isDict := v.(*Dict)
	l, ok := v.(*List)
	return !isDict && (!ok || l.kind == isTuple)
}

// charAt returns the i-th character of s, from the end when i is negative.
func charAt(s string, i int64) (string, bool) {
	if i < 0 {
		for ; len(s) > 0; i++ {
			_, n := utf8.DecodeLastRuneInString(s)
			if i == -1 {
				return s[len(s)-n:], true
			}
			s = s[:len(s)-n]
		}
		return "", false
	}
	for ; len(s) > 0; i-- {
		_, n := utf8.DecodeRuneInString(s)
		if i == 0 {
			return s[:n], true
		}
		s = s[n:]
	}
	return "", false
}

func (r *run) slice(n *sliceExpr, sc *scope) any {
	o := r.eval(n.e, sc)
	var bounds [3]any
	for i, e := range []node{n.start, n.stop, n.step} {
		if e != nil {
			bounds[i] = r.eval(e, sc)
		}
	}
	r.line = n.line
	mustDefined(o)
	r.touch(o)
	if s, ok := text(o); ok {
		length := utf8.RuneCountInString(s)
		r.charge(len(s) / 16)
		start, stop, step := sliceBounds(bounds, int64(length))
		if step == 1 {
			return like(o, substring(s, length, start, stop))
		}
		var b strings.Builder
		for _, c := range r.pick(r.chars(s), start, stop, step) {
			b.WriteString(c.(string))
		}
		return like(o, b.String())
	}
	l, ok := o.(*List)
	if !ok || !l.indexed() {
		panic(errorf("'%s' object is not subscriptable with a slice", typeName(o)))
	}
	start, stop, step := sliceBounds(bounds, int64(len(l.Items)))
	return &List{Items: r.pick(l.Items, start, stop, step), kind: l.kind}
}

// pick returns items[start:stop:step] for bounds within the items.
func (r *run) pick(items []any, start, stop, step int64) []any {
	r.charge(16 * len(items))
	var out []any
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, items[i])
	}
	return out
}

// substring cuts characters start..stop out of s, which has n of them.
func substring(s string, n int, start, stop int64) string {
	if start >= stop {
		return ""
	}
	if len(s) == n {
		return s[start:stop]
	}
	from, to, c := len(s), len(s), int64(0)
	for i := range s {
		if c == start {
			from = i
		}
		if c == stop {
			to = i
			break
		}
		c++
	}
	return s[from:to]
}

// sliceBounds applies Python's defaults and clamping to start, stop and step.
func sliceBounds(bounds [3]any, n int64) (start, stop, step int64) {
	step = 1
	if bounds[2] != nil {
		step = needInt("slice step", bounds[2])
	}
	if step == 0 {
		panic(errorf("slice step cannot be zero"))
	}
	lo, hi := int64(0), n
	start, stop = 0, n
	if step < 0 {
		lo, hi = -1, n-1
		start, stop = n-1, -1
	}
	for i, bound := range []*int64{&start, &stop} {
		if bounds[i] == nil {
			continue
		}
		at := needInt("slice index", bounds[i])
		if at < 0 {
			at = max(at, -n-1) + n
		}
		*bound = min(max(at, lo), hi)
	}
	// Steps longer than the sequence reach one element; keep i+step from overflowing.
	return start, stop, min(max(step, -n-1), n+1)
}

func unary(neg bool, v any) any {
	mustDefined(v)
	factor := int64(1)
	if neg {
		factor = -1
	}
	if !isNumber(v) {
		panic(errorf("bad operand type for unary sign: '%s'", typeName(v)))
	}
	return arithmetic("*", factor, v)
}

func (r *run) compareChain(n *compareExpr, sc *scope) any {
	a := r.eval(n.e, sc)
	for i, op := range n.ops {
		b := r.eval(n.rhs[i], sc)
		r.line = n.line
		if !r.compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\"", "&#34;", "'", "&#39;")

// escapeHTML is markupsafe's escape: Markup stays as it is.
func (r *run) escapeHTML(v any) Markup {
	if m, ok := v.(Markup); ok {
		return m
	}
	s := r.str(v)
	r.charge(len(s))
	s = htmlEscaper.Replace(s)
	r.charge(len(s))
	return Markup(s)
}

// binary is a binary operator other than a comparison.
func (r *run) binary(op string, a, b any) any {
	_, aText := text(a)
	_, bText := text(b)
	if aText && op == "%" {
		return r.percent(a, b)
	}
	mustDefined(a, b)
	switch {
	case op == "+" && aText && bText:
		return r.concat(a, b)
	case op == "+" && aText:
		panic(errorf("can only concatenate str (not \"%s\") to str", typeName(b)))
	case op == "*":
		if n, ok := toInt(b); ok && !isNumber(a) {
			return r.repeat(a, n)
		}
		if n, ok := toInt(a); ok && !isNumber(b) {
			return r.repeat(b, n)
		}
	case op == "+":
		x, _ := a.(*List)
		if y, _ := b.(*List); x != nil && y != nil && x.kind == y.kind && x.kind != isRange && x.indexed() {
			r.charge(16 * (len(x.Items) + len(y.Items)))
			return &List{Items: append(append([]any{}, x.Items...), y.Items...), kind: x.kind}
		}
	}
	return arithmetic(op, a, b)
}

// concat joins two strings; when one is Markup the other is escaped first.
func (r *run) concat(a, b any) any {
	x, isString := a.(string)
	y, both := b.(string)
	if isString && both {
		r.charge(len(x) + len(y))
		return x + y
	}
	m, n := r.escapeHTML(a), r.escapeHTML(b)
	r.charge(len(m) + len(n))
	return m + n
}

// repeat is a string or list times n.
func (r *run) repeat(v any, n int64) any {
	n = max(n, 0)
	if s, ok := text(v); ok {
		r.chargeTimes(len(s), n)
		return like(v, strings.Repeat(s, int(n)))
	}
	l, ok := v.(*List)
	if !ok || l.kind != isList && l.kind != isTuple {
		panic(errorf("unsupported operand type(s) for *: '%s' and 'int'", typeName(v)))
	}
	r.chargeTimes(16*len(l.Items), n)
	out := &List{kind: l.kind}
	for range n {
		out.Items = append(out.Items, l.Items...)
	}
	return out
}

func isNumber(v any) bool { _, ok := toFloat(v); return ok }

func arithmetic(op string, a, b any) any {
	i, aInt := toInt(a)
	j, bInt := toInt(b)
	if aInt && bInt && op != "/" {
		return intArithmetic(op, i, j)
	}
	_, aBig := a.(*big.Int)
	if _, bBig := b.(*big.Int); (aBig || bBig) && isNumber(a) && isNumber(b) {
		panic(errorf("calculating with integers of more than 64 bits is not supported"))
	}
	x, aFloat := toFloat(a)
	y, bFloat := toFloat(b)
	if !aFloat || !bFloat {
		panic(errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b)))
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		return math.Pow(x, y)
	}
	if y == 0 {
		panic(errorf("division by zero"))
	}
	switch op {
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	}
	m := math.Mod(x, y) // the sign is the divisor's, as in Python
	if m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return m
}

// intArithmetic calculates with integers; a result beyond 64 bits is an error.
func intArithmetic(op string, i, j int64) any {
	x, y, z := big.NewInt(i), big.NewInt(j), new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "**":
		switch {
		case j < 0 && i == 0:
			panic(errorf("0.0 cannot be raised to a negative power"))
		case j < 0:
			return math.Pow(float64(i), float64(j))
		case (i > 1 || i < -1) && j > 64:
			panic(limitError("integer is too large"))
		}
		z.Exp(x, y, nil)
	default:
		if j == 0 {
			panic(errorf("integer division or modulo by zero"))
		}
		m := new(big.Int)
		z.DivMod(x, y, m) // Euclidean: m >= 0, Python's has the sign of the divisor
		if m.Sign() != 0 && j < 0 {
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	}
	if !z.IsInt64() {
		panic(limitError("integer is too large"))
	}
	return z.Int64()
}
