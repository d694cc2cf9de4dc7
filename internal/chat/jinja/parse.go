package jinja

import (
	"fmt"
	"slices"
	"strings"
)

const (
	maxSource     = 4 << 20 // bytes of a template's source
	maxParseDepth = 200     // nesting of blocks and expressions
)

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	name    string
	body    []node
	strings map[string]bool
	names   map[string]bool
}

// Parse reads a template. name stands in front of error messages. Tags,
// filters, tests and syntax that are not supported are reported here, with
// their line.
func Parse(name, source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, &Error{Template: name, Msg: fmt.Sprintf("template of %d bytes is over the limit of %d", len(source),
			maxSource)}
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Error: // raised by parser.fail only
			t, err = nil, r
		default:
			panic(r)
		}
		if e, ok := err.(*Error); ok {
			e.Template = name
		}
	}()
	toks, err := lex(source)
	if err != nil {
		return nil, err
	}
	t = &Template{name: name, strings: map[string]bool{}, names: map[string]bool{}}
	for _, k := range toks {
		switch k.kind {
		case tString:
			t.strings[k.s] = true
		case tName:
			t.names[k.s] = true
		}
	}
	p := &parser{toks: toks}
	t.body, _ = p.block()
	if len(p.missing) > 0 {
		return nil, p.missing[0]
	}
	return t, nil
}

// HasString reports whether s is a string literal of the template; it tells
// which roles and fields a template knows about.
func (t *Template) HasString(s string) bool { return t.strings[s] }

// HasName reports whether a variable, attribute or filter of that name occurs.
func (t *Template) HasName(s string) bool { return t.names[s] }

type parser struct {
	toks  []token
	p     int
	depth int
	soft  int // inside a conditional: what is not supported fails when reached, not when parsed
	// missing is what is not supported outside conditionals so far. An
	// "x|f if c" shows its condition late, so they wait for the end.
	missing []*Error
	loops   int // enclosing for bodies within the current macro
	macro   *macroStmt
}

// fail aborts parsing; Parse turns it into its error.
func (p *parser) fail(format string, args ...any) {
	p.failAt(p.cur().line, format, args...)
}

func (p *parser) failAt(line int, format string, args ...any) {
	panic(&Error{Line: line, Msg: fmt.Sprintf(format, args...)})
}

// lacks notes a filter, test or method that does not exist here.
func (p *parser) lacks(line int, msg string) {
	if p.soft == 0 {
		p.missing = append(p.missing, &Error{Line: line, Msg: msg})
	}
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxParseDepth {
		p.fail("nested more than %d levels deep", maxParseDepth)
	}
}
func (p *parser) leave() { p.depth-- }

func (p *parser) cur() token { return p.toks[p.p] }

// look returns the token after the current one.
func (p *parser) look() token { return p.toks[min(p.p+1, len(p.toks)-1)] }

func (p *parser) next() token {
	t := p.toks[p.p]
	if t.kind != tEOF {
		p.p++
	}
	return t
}

func (p *parser) isOp(s string) bool   { t := p.cur(); return t.kind == tOp && t.s == s }
func (p *parser) isName(s string) bool { t := p.cur(); return t.kind == tName && t.s == s }

func (p *parser) op(s string) bool {
	if p.isOp(s) {
		p.p++
		return true
	}
	return false
}

func (p *parser) word(s string) bool {
	if p.isName(s) {
		p.p++
		return true
	}
	return false
}

func (p *parser) need(op string) {
	if !p.op(op) {
		p.fail("expected '%s', got %s", op, p.cur().describe())
	}
}

func (p *parser) name() string {
	if p.cur().kind != tName {
		p.fail("expected a name, got %s", p.cur().describe())
	}
	return p.next().s
}

func (p *parser) blockEnd() {
	if p.cur().kind != tBlockEnd {
		p.fail("expected '%%}', got %s", p.cur().describe())
	}
	p.p++
}

// block parses statements until a tag named in ends, whose word is consumed,
// or until the end of the template when ends is empty.
func (p *parser) block(ends ...string) ([]node, string) {
	p.enter()
	defer p.leave()
	var out []node
	for {
		t := p.next()
		switch t.kind {
		case tEOF:
			if len(ends) > 0 {
				p.failAt(t.line, "unexpected end of template, expected '%s'", ends[len(ends)-1])
			}
			return out, ""
		case tData:
			out = append(out, &dataStmt{t.s})
		case tVarBegin:
			e := p.tuple(p.expr)
			if p.cur().kind != tVarEnd {
				p.fail("expected '}}', got %s", p.cur().describe())
			}
			p.p++
			out = append(out, &outStmt{e, t.line})
		case tBlockBegin:
			if p.cur().kind != tName {
				p.fail("expected a tag name, got %s", p.cur().describe())
			}
			w := p.next().s
			if slices.Contains(ends, w) {
				return out, w
			}
			out = append(out, p.stmt(w, t.line))
		default:
			p.failAt(t.line, "unexpected %s", t.describe())
		}
	}
}

// body parses "[:] %} ... {% end" of a statement.
func (p *parser) body(ends ...string) ([]node, string) {
	p.op(":")
	p.blockEnd()
	return p.block(ends...)
}

// Tags of Jinja that make no sense in a chat template or would need files.
var unsupportedTags = []string{"include", "import", "from", "extends", "block", "autoescape", "do", "debug", "trans",
	"pluralize"}

func (p *parser) stmt(tag string, line int) node {
	switch tag {
	case "if":
		return p.ifStmt()
	case "for":
		return p.forStmt(line)
	case "set":
		return p.setStmt(line)
	case "macro":
		m := &macroStmt{name: p.name(), line: line}
		p.macroBody(m, "endmacro")
		if p.cur().kind == tName { // {% endmacro name %}
			p.p++
		}
		p.blockEnd()
		return m
	case "call":
		m := &macroStmt{name: "caller", line: line}
		if p.isOp("(") {
			p.params(m)
		}
		c, ok := p.expr().(*callExpr)
		if !ok {
			p.failAt(line, "call block needs a call")
		}
		p.macroRest(m, "endcall")
		p.blockEnd()
		return &callStmt{c, m, line}
	case "filter":
		e := p.filter(holeExpr{})
		for p.op("|") {
			e = p.filter(e)
		}
		b, _ := p.body("endfilter")
		p.blockEnd()
		return &filterStmt{e, b, line}
	case "with":
		return p.withStmt(line)
	case "generation":
		b, _ := p.body("endgeneration")
		p.blockEnd()
		return &scopeStmt{b}
	case "break", "continue":
		if p.loops == 0 {
			p.failAt(line, "'%s' outside a loop", tag)
		}
		p.blockEnd()
		if tag == "break" {
			return &breakStmt{}
		}
		return &continueStmt{}
	}
	if slices.Contains(unsupportedTags, tag) {
		p.failAt(line, "tag '%s' is not supported", tag)
	}
	if strings.HasPrefix(tag, "end") || tag == "else" || tag == "elif" {
		p.failAt(line, "unexpected '%s'", tag)
	}
	p.failAt(line, "unknown tag '%s'", tag)
	return nil
}

func (p *parser) ifStmt() node {
	n := &ifStmt{}
	p.soft++
	defer func() { p.soft-- }()
	for {
		n.lines = append(n.lines, p.cur().line)
		n.conds = append(n.conds, p.tuple(p.or))
		b, w := p.body("elif", "else", "endif")
		n.bodies = append(n.bodies, b)
		switch w {
		case "elif":
			continue
		case "else":
			n.els, _ = p.body("endif")
		}
		p.blockEnd()
		return n
	}
}

func (p *parser) forStmt(line int) node {
	n := &forStmt{line: line, target: p.target(false)}
	if names := targetNames(n.target); slices.Contains(names, "loop") {
		p.failAt(line, "cannot assign to the special loop variable")
	}
	if !p.word("in") {
		p.fail("expected 'in', got %s", p.cur().describe())
	}
	n.iter = p.tuple(p.or)
	if p.word("if") {
		n.cond = p.expr()
	}
	if p.isName("recursive") {
		p.fail("a recursive loop is not supported")
	}
	var w string
	p.loops++
	n.body, w = p.body("else", "endfor")
	p.loops--
	if w == "else" {
		n.els, _ = p.body("endfor")
	}
	p.blockEnd()
	return n
}

func (p *parser) setStmt(line int) node {
	t := p.target(true)
	if p.loops > 0 && slices.Contains(targetNames(t), "loop") {
		p.failAt(line, "cannot assign to the special loop variable")
	}
	if p.op("=") {
		n := &setStmt{t, p.tuple(p.expr), line}
		p.blockEnd()
		return n
	}
	n := &setBlockStmt{target: t, line: line}
	for p.op("|") {
		if n.filters == nil {
			n.filters = holeExpr{}
		}
		n.filters = p.filter(n.filters)
	}
	n.body, _ = p.body("endset")
	p.blockEnd()
	return n
}

func (p *parser) withStmt(line int) node {
	n := &withStmt{line: line}
	for p.cur().kind != tBlockEnd && !p.isOp(":") {
		if len(n.targets) > 0 {
			p.need(",")
		}
		n.targets = append(n.targets, p.targetItem(false))
		p.need("=")
		n.values = append(n.values, p.expr())
	}
	n.body, _ = p.body("endwith")
	p.blockEnd()
	return n
}

// target parses what can stand left of '=' or 'in'. ns allows ns.attr.
func (p *parser) target(ns bool) node {
	first := p.targetItem(ns)
	if !p.isOp(",") {
		return first
	}
	t := &tupleTarget{items: []node{first}}
	for p.op(",") {
		if p.isOp("=") || p.isName("in") || p.isOp(")") || p.cur().kind == tBlockEnd {
			break
		}
		t.items = append(t.items, p.targetItem(ns))
	}
	return t
}

func (p *parser) targetItem(ns bool) node {
	p.enter()
	defer p.leave()
	if p.op("(") {
		t := p.target(ns)
		p.need(")")
		return t
	}
	line := p.cur().line
	n := p.name()
	switch n {
	case "true", "True", "false", "False", "none", "None":
		p.failAt(line, "cannot assign to '%s'", n)
	}
	if ns && p.op(".") {
		return &nsTarget{n, p.name()}
	}
	return &nameExpr{n, line}
}

func targetNames(t node) []string {
	switch t := t.(type) {
	case *nameExpr:
		return []string{t.name}
	case *tupleTarget:
		var out []string
		for _, i := range t.items {
			out = append(out, targetNames(i)...)
		}
		return out
	}
	return nil
}

// params parses a macro's argument list.
func (p *parser) params(m *macroStmt) {
	p.need("(")
	for !p.isOp(")") {
		if len(m.args) > 0 {
			p.need(",")
			if p.isOp(")") {
				break
			}
		}
		m.args = append(m.args, p.name())
		if p.op("=") {
			m.defaults = append(m.defaults, p.expr())
		} else if len(m.defaults) > 0 {
			p.fail("argument without default follows one with a default")
		}
	}
	p.need(")")
}

func (p *parser) macroBody(m *macroStmt, end string) {
	p.params(m)
	p.macroRest(m, end)
}

// macroRest parses a macro's body. It notes the implicit names the body uses
// and keeps break and continue from crossing the macro.
func (p *parser) macroRest(m *macroStmt, end string) {
	outer, loops := p.macro, p.loops
	p.macro, p.loops = m, 0
	m.body, _ = p.body(end)
	p.macro, p.loops = outer, loops
}
