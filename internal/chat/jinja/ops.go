package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

func (r *run) eval(n node, sc *scope) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	if err := r.enter(); err != nil {
		return nil, err
	}
	v, err := r.expr(n, sc)
	r.depth--
	return v, err
}

func (r *run) expr(n node, sc *scope) (any, error) {
	switch n := n.(type) {
	case *constExpr:
		return n.v, nil
	case *nameExpr:
		if v, ok := sc.get(n.name); ok {
			return v, nil
		}
		return undefinedName(n.name), nil
	case *attrExpr:
		v, err := r.eval(n.e, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		return r.attr(v, n.name)
	case *itemExpr:
		v, k, err := r.eval2(n.e, n.key, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		return r.item(v, k)
	case *sliceExpr:
		return r.slice(n, sc)
	case *callExpr:
		f, err := r.eval(n.f, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(&n.args, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		return r.call(f, a)
	case *filterExpr:
		v, err := r.eval(n.e, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(&n.args, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		if n.fn == nil {
			return nil, errors.New(unknownFilter(n.name))
		}
		return r.filter(n.fn, v, a)
	case *testExpr:
		v, err := r.eval(n.e, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(&n.args, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		if n.fn == nil {
			return nil, fmt.Errorf("no test named '%s'", n.name)
		}
		ok, err := r.test(n.fn, v, a)
		return ok != n.neg, err
	case *binExpr:
		a, b, err := r.eval2(n.a, n.b, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		if err := r.touch(a, b); err != nil {
			return nil, err
		}
		return r.binary(n.op, a, b)
	case *logicExpr:
		a, err := r.eval(n.a, sc)
		if err != nil || truth(a) != n.and {
			return a, err
		}
		return r.eval(n.b, sc)
	case *notExpr:
		v, err := r.eval(n.e, sc)
		return !truth(v), err
	case *signExpr:
		v, err := r.eval(n.e, sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		return unary(n.neg, v)
	case *compareExpr:
		return r.compareChain(n, sc)
	case *concatExpr:
		var b strings.Builder
		for _, e := range n.items {
			v, err := r.eval(e, sc)
			if err != nil {
				return nil, err
			}
			s, err := r.str(v)
			if err != nil {
				return nil, err
			}
			if err := r.write(&b, s); err != nil {
				return nil, err
			}
		}
		return b.String(), nil
	case *condExpr:
		c, err := r.eval(n.cond, sc)
		if err != nil {
			return nil, err
		}
		if truth(c) {
			return r.eval(n.then, sc)
		}
		if n.els == nil {
			return undefined{fmt.Sprintf("the inline if-expression on line %d evaluated to false and no else section "+
				"was defined.", n.line)}, nil
		}
		return r.eval(n.els, sc)
	case *listExpr:
		if err := r.charge(16 * len(n.items)); err != nil {
			return nil, err
		}
		l := &List{Items: make([]any, len(n.items)), tuple: n.tuple}
		for i, e := range n.items {
			v, err := r.eval(e, sc)
			if err != nil {
				return nil, err
			}
			l.Items[i] = v
		}
		return l, nil
	case *dictExpr:
		if err := r.charge(64 * len(n.keys)); err != nil {
			return nil, err
		}
		d := NewDict()
		for i := range n.keys {
			k, v, err := r.eval2(n.keys[i], n.values[i], sc)
			if err != nil {
				return nil, err
			}
			if err := r.touch(k); err != nil {
				return nil, err
			}
			h, err := hashKey(k)
			if err != nil {
				return nil, err
			}
			d.set(h, k, v)
		}
		return d, nil
	case holeExpr:
		for s := sc; s != nil; s = s.parent {
			if s.hole != nil {
				return s.hole, nil
			}
		}
	}
	return nil, fmt.Errorf("internal: cannot evaluate %T", n)
}

func (r *run) eval2(a, b node, sc *scope) (x, y any, err error) {
	if x, err = r.eval(a, sc); err != nil {
		return nil, nil, err
	}
	y, err = r.eval(b, sc)
	return x, y, err
}

// attr is obj.name: attributes and methods first, then keys.
func (r *run) attr(o any, name string) (any, error) {
	if u, ok := o.(undefined); ok {
		return nil, u.err()
	}
	if v, ok, err := r.attribute(o, name); ok || err != nil {
		return v, err
	}
	if d, ok := o.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return undefinedItem(o, name), nil
}

// attribute looks up a Python attribute of a value, not its keys.
func (r *run) attribute(o any, name string) (any, bool, error) {
	switch o := o.(type) {
	case *namespace:
		if v, ok := o.d.Get(name); ok {
			return v, true, nil
		}
	case *loopVar:
		return o.attr(name), true, nil
	case *macro:
		switch name {
		case "name":
			return o.m.name, true, nil
		case "arguments":
			l := &List{tuple: true}
			for _, a := range o.m.args {
				l.Items = append(l.Items, a)
			}
			return l, true, nil
		case "caller":
			return o.m.caller, true, nil
		}
	case *function:
		if f, ok := o.attrs[name]; ok {
			if name == "current" { // a property, not a method
				v, err := f.call(r, &args{})
				return v, true, err
			}
			return f, true, nil
		}
	case *List:
		if o.group {
			switch name {
			case "grouper":
				return o.Items[0], true, nil
			case "list":
				return o.Items[1], true, nil
			}
		}
	}
	v, err := method(o, name)
	return v, v != nil, err
}

// item is obj[key]: elements and keys first, then attributes.
func (r *run) item(o, key any) (any, error) {
	if _, isList := o.(*List); !isList { // an element of a list is found at once
		if err := r.touch(o, key); err != nil {
			return nil, err
		}
	}
	switch o := o.(type) {
	case undefined:
		return nil, o.err()
	case *Dict:
		v, ok, err := o.lookup(key)
		if err == nil && ok {
			return v, nil
		}
	case *List:
		if i, ok := toInt(key); ok {
			if i, ok := index(i, int64(len(o.Items))); ok {
				return o.Items[i], nil
			}
		}
	case rangeValue:
		if i, ok := toInt(key); ok {
			if i, ok := index(i, o.n); ok {
				return o.at(i), nil
			}
		}
	case string, Markup:
		if i, ok := toInt(key); ok {
			s, _ := text(o)
			if c, ok := charAt(s, i); ok {
				return like(o, c), nil
			}
		}
	}
	if name, ok := text(key); ok {
		if v, ok, err := r.attribute(o, name); ok || err != nil {
			return v, err
		}
	}
	return undefinedItem(o, key), nil
}

func index(i, n int64) (int64, bool) {
	if i < 0 {
		i += n
	}
	return i, i >= 0 && i < n
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

func (r *run) slice(n *sliceExpr, sc *scope) (any, error) {
	o, err := r.eval(n.e, sc)
	if err != nil {
		return nil, err
	}
	var b [3]any
	for i, e := range []node{n.start, n.stop, n.step} {
		if e == nil {
			continue
		}
		if b[i], err = r.eval(e, sc); err != nil {
			return nil, err
		}
	}
	r.line = n.line
	if err := r.touch(o); err != nil {
		return nil, err
	}
	var items []any
	var str string
	isStr := false
	ln := 0
	switch o := o.(type) {
	case undefined:
		return nil, o.err()
	case string, Markup:
		isStr = true
		str, _ = text(o)
		ln = utf8.RuneCountInString(str)
		if err := r.charge(len(str) / 16); err != nil {
			return nil, err
		}
	case *List:
		items = o.Items
		ln = len(items)
	case rangeValue:
		start, stop, step, err := sliceBounds(b, o.n)
		if err != nil {
			return nil, err
		}
		n := int64(0)
		for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
			n++
		}
		return rangeValue{o.at(start), n, o.step * step}, nil
	default:
		return nil, fmt.Errorf("'%s' object is not subscriptable with a slice", typeName(o))
	}
	start, stop, step, err := sliceBounds(b, int64(ln))
	if err != nil {
		return nil, err
	}
	if isStr && step == 1 {
		return like(o, substring(str, ln, start, stop)), nil
	}
	if isStr {
		if items, err = r.chars(str); err != nil {
			return nil, err
		}
	}
	if err := r.charge(16 * ln); err != nil {
		return nil, err
	}
	var out []any
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, items[i])
	}
	if isStr {
		var sb strings.Builder
		for _, c := range out {
			sb.WriteString(c.(string))
		}
		return like(o, sb.String()), nil
	}
	l, _ := o.(*List)
	return &List{Items: out, tuple: l != nil && l.tuple}, nil
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

// sliceBounds applies Python's defaults and clamping.
func sliceBounds(b [3]any, n int64) (start, stop, step int64, err error) {
	get := func(v any, def int64) (int64, error) {
		if v == nil {
			return def, nil
		}
		if u, ok := v.(undefined); ok {
			return 0, u.err()
		}
		i, ok := toInt(v)
		if !ok {
			return 0, errors.New("slice indices must be integers or None")
		}
		return i, nil
	}
	if step, err = get(b[2], 1); err != nil {
		return
	}
	if step == 0 {
		return 0, 0, 0, errors.New("slice step cannot be zero")
	}
	lo, hi := int64(0), n
	defStart, defStop := int64(0), n
	if step < 0 {
		lo, hi = -1, n-1
		defStart, defStop = n-1, -1
	}
	clamp := func(v any, def int64) (int64, error) {
		if v == nil {
			return def, nil
		}
		i, err := get(v, 0)
		if err != nil {
			return 0, err
		}
		if i < 0 {
			i = max(i, -n-1) + n
		}
		return min(max(i, lo), hi), nil
	}
	if start, err = clamp(b[0], defStart); err != nil {
		return
	}
	if stop, err = clamp(b[1], defStop); err != nil {
		return
	}
	// Steps longer than the sequence reach one element; keep i+step from overflowing.
	step = min(max(step, -n-1), n+1)
	return
}

func unary(neg bool, v any) (any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case float64:
		if neg {
			return -v, nil
		}
		return v, nil
	case *big.Int:
		if neg {
			return normalize(new(big.Int).Neg(v)), nil
		}
		return v, nil
	}
	if i, ok := toInt(v); ok {
		if neg {
			return normalize(new(big.Int).Neg(big.NewInt(i))), nil
		}
		return i, nil
	}
	return nil, fmt.Errorf("bad operand type for unary sign: '%s'", typeName(v))
}

// normalize returns an int64 when the number fits.
func normalize(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

func (r *run) compareChain(n *compareExpr, sc *scope) (any, error) {
	a, err := r.eval(n.e, sc)
	if err != nil {
		return nil, err
	}
	for i, op := range n.ops {
		b, err := r.eval(n.rhs[i], sc)
		if err != nil {
			return nil, err
		}
		r.line = n.line
		ok, err := r.compare(op, a, b)
		if !ok || err != nil {
			return false, err
		}
		a = b
	}
	return true, nil
}

func (r *run) compare(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		ok, err := r.equal(a, b, 0)
		return !ok, err
	case "in":
		return r.contains(b, a)
	case "not in":
		ok, err := r.contains(b, a)
		return !ok, err
	}
	for _, v := range []any{a, b} { // NaN is neither less nor more
		if f, ok := v.(float64); ok && math.IsNaN(f) {
			return false, nil
		}
	}
	c, err := r.order(op, a, b, 0)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case ">":
		return c > 0, nil
	case "<=":
		return c <= 0, nil
	}
	return c >= 0, nil
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\"", "&#34;", "'", "&#39;")

// escapeHTML is markupsafe's escape: Markup stays as it is.
func (r *run) escapeHTML(v any) (Markup, error) {
	if m, ok := v.(Markup); ok {
		return m, nil
	}
	s, err := r.str(v)
	if err != nil {
		return "", err
	}
	if err := r.charge(len(s)); err != nil {
		return "", err
	}
	s = htmlEscaper.Replace(s)
	return Markup(s), r.charge(len(s))
}

func (r *run) binary(op string, a, b any) (any, error) {
	if _, ok := text(a); ok && op == "%" {
		return r.percent(a, b)
	}
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	sa, aText := text(a)
	sb, bText := text(b)
	switch {
	case op == "+" && aText && bText:
		return r.concat(a, b)
	case op == "*" && aText:
		if n, ok := toInt(b); ok {
			return r.repeat(a, sa, n)
		}
	case op == "*" && bText:
		if n, ok := toInt(a); ok {
			return r.repeat(b, sb, n)
		}
	case op == "+" && aText:
		return nil, fmt.Errorf("can only concatenate str (not \"%s\") to str", typeName(b))
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && op == "+" && x.tuple == y.tuple {
			if err := r.charge(16 * (len(x.Items) + len(y.Items))); err != nil {
				return nil, err
			}
			return &List{Items: append(append([]any{}, x.Items...), y.Items...), tuple: x.tuple}, nil
		}
		if n, ok := toInt(b); ok && op == "*" {
			return r.repeatList(x, n)
		}
	}
	if y, ok := b.(*List); ok && op == "*" {
		if n, ok := toInt(a); ok {
			return r.repeatList(y, n)
		}
	}
	v, err := arithmetic(op, a, b)
	if err == errOperands {
		err = fmt.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	}
	return v, err
}

// concat joins two strings; when one is Markup the other is escaped first.
func (r *run) concat(a, b any) (any, error) {
	_, am := a.(Markup)
	_, bm := b.(Markup)
	if am || bm {
		x, err := r.escapeHTML(a)
		if err != nil {
			return nil, err
		}
		y, err := r.escapeHTML(b)
		if err != nil {
			return nil, err
		}
		return x + y, r.charge(len(x) + len(y))
	}
	x, y := a.(string), b.(string)
	if err := r.charge(len(x) + len(y)); err != nil {
		return nil, err
	}
	return x + y, nil
}

func (r *run) repeat(v any, s string, n int64) (any, error) {
	if n <= 0 || s == "" {
		return like(v, ""), nil
	}
	if n > math.MaxInt32 {
		return nil, limitError("the template uses more memory than allowed")
	}
	if err := r.charge(len(s) * int(n)); err != nil {
		return nil, err
	}
	return like(v, strings.Repeat(s, int(n))), nil
}

func (r *run) repeatList(l *List, n int64) (any, error) {
	out := &List{tuple: l.tuple}
	if n <= 0 || len(l.Items) == 0 {
		return out, nil
	}
	if n > math.MaxInt32 {
		return nil, limitError("the template uses more memory than allowed")
	}
	if err := r.charge(16 * len(l.Items) * int(n)); err != nil {
		return nil, err
	}
	for range n {
		out.Items = append(out.Items, l.Items...)
	}
	return out, nil
}

var errOperands = errors.New("operands")

func toBig(v any) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	i, ok := toInt(v)
	return big.NewInt(i), ok
}

func arithmetic(op string, a, b any) (any, error) {
	x, ok1 := toBig(a)
	y, ok2 := toBig(b)
	if ok1 && ok2 && op != "/" {
		return intArithmetic(op, x, y)
	}
	f, ok1 := toFloat(a)
	g, ok2 := toFloat(b)
	if !ok1 || !ok2 {
		return nil, errOperands
	}
	switch op {
	case "+":
		return f + g, nil
	case "-":
		return f - g, nil
	case "*":
		return f * g, nil
	case "**":
		return math.Pow(f, g), nil
	}
	if g == 0 {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "/":
		return f / g, nil
	case "//":
		return math.Floor(f / g), nil
	case "%":
		m := math.Mod(f, g)
		if m != 0 && (m < 0) != (g < 0) {
			m += g
		}
		return m, nil
	}
	return nil, errOperands
}

// maxBits bounds integers: templates count messages, they do not do number theory.
const maxBits = 4096

func intArithmetic(op string, x, y *big.Int) (any, error) {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		z.Mul(x, y)
	case "//", "%":
		if y.Sign() == 0 {
			return nil, errors.New("integer division or modulo by zero")
		}
		m := new(big.Int)
		z.DivMod(x, y, m) // Euclidean: m >= 0
		if m.Sign() != 0 && y.Sign() < 0 {
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
	case "**":
		if y.Sign() < 0 {
			f, _ := toFloat(x)
			g, _ := toFloat(y)
			if f == 0 {
				return nil, errors.New("0.0 cannot be raised to a negative power")
			}
			return math.Pow(f, g), nil
		}
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > maxBits || int64(x.BitLen())*y.Int64() > maxBits) {
			return nil, limitError("integer is too large")
		}
		z.Exp(x, y, nil)
	default:
		return nil, errOperands
	}
	if z.BitLen() > maxBits {
		return nil, limitError("integer is too large")
	}
	return normalize(z), nil
}
