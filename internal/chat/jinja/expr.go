package jinja

import "slices"

// tuple parses expressions separated by commas; one without a comma is itself.
func (p *parser) tuple(item func() node) node {
	if p.isOp(")") {
		p.fail("expected an expression, got ')'")
	}
	e := item()
	if !p.isOp(",") {
		return e
	}
	l := &listExpr{items: []node{e}, tuple: true}
	for p.op(",") {
		if k := p.cur().kind; k == tVarEnd || k == tBlockEnd || p.isOp(")") {
			break
		}
		l.items = append(l.items, item())
	}
	return l
}

// expr parses a full expression, conditional included.
func (p *parser) expr() node {
	p.enter()
	defer p.leave()
	missing := len(p.missing)
	e := p.or()
	for p.isName("if") {
		line := p.next().line
		p.missing = p.missing[:missing]
		p.soft++
		c := &condExpr{then: e, cond: p.or(), line: line}
		if p.word("else") {
			c.els = p.expr()
		}
		p.soft--
		e = c
	}
	return e
}

func (p *parser) or() node {
	e := p.and()
	for p.word("or") {
		e = &logicExpr{false, e, p.and()}
	}
	return e
}

func (p *parser) and() node {
	e := p.not()
	for p.word("and") {
		e = &logicExpr{true, e, p.not()}
	}
	return e
}

func (p *parser) not() node {
	if p.word("not") {
		p.enter()
		defer p.leave()
		return &notExpr{p.not()}
	}
	return p.compare()
}

var compareOps = []string{"==", "!=", "<", ">", "<=", ">="}

func (p *parser) compare() node {
	line := p.cur().line
	e := p.sum()
	var c *compareExpr
	add := func(op string) {
		if c == nil {
			c = &compareExpr{e: e, line: line}
		}
		c.ops = append(c.ops, op)
		c.rhs = append(c.rhs, p.sum())
	}
	for {
		switch t := p.cur(); {
		case t.kind == tOp && slices.Contains(compareOps, t.s):
			p.p++
			add(t.s)
		case p.word("in"):
			add("in")
		case p.isName("not") && p.look().kind == tName && p.look().s == "in":
			p.p += 2
			add("not in")
		default:
			if c == nil {
				return e
			}
			return c
		}
	}
}

// binary parses a left-associative level. Each link deepens the tree that
// rendering walks, so the chain counts as nesting there, not here.
func (p *parser) binary(next func() node, ops ...string) node {
	e := next()
	for {
		t := p.cur()
		if t.kind != tOp || !slices.Contains(ops, t.s) {
			return e
		}
		p.p++
		e = &binExpr{t.s, e, next(), t.line}
	}
}

func (p *parser) sum() node { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() node {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	c := &concatExpr{items: []node{e}}
	for p.op("~") {
		c.items = append(c.items, p.product())
	}
	return c
}

func (p *parser) product() node { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() node   { return p.binary(func() node { return p.unary(true) }, "**") }

func (p *parser) unary(filters bool) node {
	p.enter()
	defer p.leave()
	var e node
	switch t := p.cur(); {
	case p.op("-"):
		e = &signExpr{true, p.unary(false), t.line}
	case p.op("+"):
		e = &signExpr{false, p.unary(false), t.line}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	for filters {
		switch t := p.cur(); {
		case p.op("|"):
			e = p.filter(e)
		case p.isName("is"):
			p.p++
			e = p.test(e, t.line)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
	return e
}

func (p *parser) primary() node {
	t := p.next()
	switch t.kind {
	case tName:
		switch t.s {
		case "true", "True":
			return &constExpr{true}
		case "false", "False":
			return &constExpr{false}
		case "none", "None":
			return &constExpr{nil}
		case "varargs":
			if p.macro != nil {
				p.macro.varargs = true
			}
		case "kwargs":
			if p.macro != nil {
				p.macro.kwargs = true
			}
		case "caller":
			if p.macro != nil {
				p.macro.caller = true
			}
		}
		return &nameExpr{t.s, t.line}
	case tString:
		s := t.s
		for p.cur().kind == tString {
			s += p.next().s
		}
		return &constExpr{s}
	case tNumber:
		return &constExpr{t.v}
	case tOp:
		switch t.s {
		case "(":
			if p.op(")") {
				return &listExpr{tuple: true}
			}
			e := p.tuple(p.expr)
			p.need(")")
			return e
		case "[":
			l := &listExpr{}
			for !p.isOp("]") {
				if len(l.items) > 0 {
					p.need(",")
					if p.isOp("]") {
						break
					}
				}
				l.items = append(l.items, p.expr())
			}
			p.need("]")
			return l
		case "{":
			d := &dictExpr{line: t.line}
			for !p.isOp("}") {
				if len(d.keys) > 0 {
					p.need(",")
					if p.isOp("}") {
						break
					}
				}
				d.keys = append(d.keys, p.expr())
				p.need(":")
				d.values = append(d.values, p.expr())
			}
			p.need("}")
			return d
		}
	}
	p.failAt(t.line, "unexpected %s", t.describe())
	return nil
}

func (p *parser) postfix(e node) node {
	for {
		switch t := p.cur(); {
		case p.op("."):
			k := p.next()
			switch {
			case k.kind == tName:
				e = &attrExpr{e, k.s, t.line}
			case k.kind == tNumber:
				e = &itemExpr{e, &constExpr{k.v}, t.line}
			default:
				p.failAt(k.line, "expected a name or number after '.', got %s", k.describe())
			}
		case p.op("["):
			e = p.subscript(e, t.line)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(e node, line int) node {
	s := &sliceExpr{e: e, line: line}
	part := func() node {
		if p.isOp(":") || p.isOp("]") {
			return nil
		}
		return p.expr()
	}
	if p.isOp("]") {
		p.fail("expected an expression, got ']'")
	}
	s.start = part()
	if !p.op(":") {
		if p.isOp(",") {
			l := &listExpr{items: []node{s.start}, tuple: true}
			for p.op(",") && !p.isOp("]") {
				l.items = append(l.items, p.expr())
			}
			p.need("]")
			return &itemExpr{e, l, line}
		}
		p.need("]")
		return &itemExpr{e, s.start, line}
	}
	s.stop = part()
	if p.op(":") {
		s.step = part()
	}
	p.need("]")
	return s
}

func (p *parser) call(f node) node {
	line := p.cur().line
	if a, ok := f.(*attrExpr); ok && slices.Contains(unsupportedMethods, a.name) {
		p.lacks(a.line, "method '"+a.name+"' is not supported")
	}
	return &callExpr{f, p.args(), line}
}

func (p *parser) args() callArgs {
	p.need("(")
	var a callArgs
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.need(",")
			if p.isOp(")") {
				break
			}
		}
		switch t := p.cur(); {
		case p.op("*"):
			if a.star != nil || a.dict != nil {
				p.fail("invalid argument list")
			}
			a.star = p.expr()
		case p.op("**"):
			if a.dict != nil {
				p.fail("invalid argument list")
			}
			a.dict = p.expr()
		case t.kind == tName && p.look().kind == tOp && p.look().s == "=":
			if a.dict != nil {
				p.fail("invalid argument list")
			}
			p.p += 2
			a.kw = append(a.kw, kwArg{t.s, p.expr()})
		default:
			if a.star != nil || a.dict != nil || len(a.kw) > 0 {
				p.fail("positional argument follows keyword argument")
			}
			a.pos = append(a.pos, p.expr())
		}
	}
	p.need(")")
	return a
}

// dotted parses a filter or test name.
func (p *parser) dotted() string {
	n := p.name()
	for p.op(".") {
		n += "." + p.name()
	}
	return n
}

func (p *parser) filter(e node) node {
	line := p.cur().line
	f := &filterExpr{e: e, name: p.dotted(), line: line}
	f.fn = filters[f.name]
	if f.fn == nil {
		p.lacks(line, unknownFilter(f.name))
	}
	if p.isOp("(") {
		f.args = p.args()
	}
	return f
}

func (p *parser) test(e node, line int) node {
	n := &testExpr{e: e, line: line}
	n.neg = p.word("not")
	n.name = p.dotted()
	n.fn = tests[n.name]
	if n.fn == nil {
		p.lacks(line, unknownTest(n.name))
	}
	switch t := p.cur(); {
	case p.isOp("("):
		n.args = p.args()
	case t.kind == tName && (t.s == "else" || t.s == "or" || t.s == "and"):
	case t.kind == tName && t.s == "is":
		p.fail("tests cannot be chained with 'is'")
	case t.kind == tName || t.kind == tString || t.kind == tNumber || p.isOp("[") || p.isOp("{"):
		n.args.pos = []node{p.postfix(p.primary())}
	}
	return n
}
