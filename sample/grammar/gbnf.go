package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// GBNFError is a grammar that cannot be used.
type GBNFError struct {
	Line int // of the text, from 1; 0 when the whole is meant
	Msg  string
}

func (e *GBNFError) Error() string {
	if e.Line == 0 {
		return e.Msg
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Msg)
}

const (
	maxGBNF      = 1 << 20 // bytes of a grammar
	maxGBNFDepth = 128     // brackets inside brackets
	maxGBNFCount = 10_000  // of a repetition
)

// CompileGBNF turns a grammar in llama.cpp's notation into one for sampling: rules of literals, classes of characters,
// groups, alternatives and repetitions, of which the text as a whole must match root. Tokens by name or number are not
// supported. Errors are of type *GBNFError.
func CompileGBNF(text string) (*Grammar, error) {
	if len(text) > maxGBNF {
		return nil, &GBNFError{Msg: fmt.Sprintf("the grammar is longer than %d bytes", maxGBNF)}
	}
	if !utf8.ValidString(text) {
		return nil, &GBNFError{Msg: "the grammar is not valid UTF-8"}
	}
	p := &gbnfParser{text: text, line: 1, rules: map[string]*gbnfRule{}}
	if err := p.grammar(); err != nil {
		return nil, err
	}
	c := &gbnfCompiler{b: withBuiltins(), p: p, work: maxStates}
	c.b.what = "grammar"
	c.findNullable()
	for _, name := range p.order {
		p.rules[name].id = c.b.newRule()
	}
	for _, name := range p.order {
		c.todo = append(c.todo, p.rules[name])
	}
	for len(c.todo) > 0 {
		r := c.todo[0]
		c.todo = c.todo[1:]
		start := c.build(&r.body, endState)
		c.b.rules[r.id].start = start
	}
	if c.work < 0 {
		return nil, &GBNFError{Msg: "the grammar is too complex: too much in it may be empty"}
	}
	prog, err := c.b.finish(p.rules["root"].id)
	if err != nil {
		return nil, &GBNFError{Msg: err.Error()}
	}
	return &Grammar{p: prog, bases: map[baseKey]*base{}}, nil
}

// gbnfRule is a rule; it is made when it is first mentioned.
type gbnfRule struct {
	body     gbnfNode
	defined  bool
	nullable bool
	line     int // of the first mention
	id       int32
}

// gbnfNode is a part of a rule.
type gbnfNode struct {
	kind     gbnfKind
	text     string     // of a literal, or the name of a rule
	class    []rune     // ranges
	parts    []gbnfNode // of a sequence, of alternatives, or the one that is repeated
	min, max int        // max < 0: no bound
}

type gbnfKind uint8

const (
	gbnfLiteral gbnfKind = iota
	gbnfClass
	gbnfRef
	gbnfSequence
	gbnfChoice
	gbnfRepeat
)

type gbnfParser struct {
	text  string
	at    int
	line  int
	rules map[string]*gbnfRule
	order []string // of the definitions
}

func (p *gbnfParser) fail(format string, args ...any) error {
	return &GBNFError{p.line, fmt.Sprintf(format, args...)}
}

func (p *gbnfParser) rest() string { return p.text[p.at:] }

// space skips blanks and comments, and line breaks where they may stand.
func (p *gbnfParser) space(lines bool) {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == ' ' || c == '\t':
		case c == '#':
			if n := strings.IndexAny(p.rest(), "\r\n"); n >= 0 {
				p.at += n
			} else {
				p.at = len(p.text)
			}
			continue
		case lines && (c == '\n' || c == '\r'):
			if c == '\n' {
				p.line++
			}
		default:
			return
		}
		p.at++
	}
}

// take consumes a text if it comes next.
func (p *gbnfParser) take(s string) bool {
	if strings.HasPrefix(p.rest(), s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *gbnfParser) name() string {
	n := 0
	for s := p.rest(); n < len(s); n++ {
		c := s[n]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			break
		}
	}
	s := p.rest()[:n]
	p.at += n
	return s
}

func (p *gbnfParser) rule(name string) *gbnfRule {
	r := p.rules[name]
	if r == nil {
		r = &gbnfRule{line: p.line}
		p.rules[name] = r
	}
	return r
}

func (p *gbnfParser) grammar() error {
	for p.space(true); p.at < len(p.text); p.space(true) {
		name := p.name()
		if name == "" {
			return p.fail("expected the name of a rule at %s", p.here())
		}
		p.space(false)
		if !p.take("::=") {
			return p.fail("expected ::= after the name of the rule %q", name)
		}
		r := p.rule(name)
		if r.defined {
			return p.fail("the rule %q is defined twice", name)
		}
		r.defined = true
		p.order = append(p.order, name)
		p.space(true)
		var err error
		if r.body, err = p.choice(0); err != nil {
			return err
		}
		if p.at < len(p.text) && p.text[p.at] != '\n' && p.text[p.at] != '\r' {
			return p.fail("unexpected %s", p.here())
		}
	}
	if r := p.rules["root"]; r == nil || !r.defined {
		return &GBNFError{Msg: `there is no rule named "root"`}
	}
	for name, r := range p.rules {
		if !r.defined {
			return &GBNFError{r.line, fmt.Sprintf("the rule %q is not defined", name)}
		}
	}
	return nil
}

// here is what stands at the current place, for errors.
func (p *gbnfParser) here() string {
	if p.at >= len(p.text) {
		return "the end"
	}
	r, _ := utf8.DecodeRuneInString(p.rest())
	return strconv.QuoteRune(r)
}

// choice reads alternatives up to the end of the line, or of the brackets when there are any.
func (p *gbnfParser) choice(depth int) (gbnfNode, error) {
	out := gbnfNode{kind: gbnfChoice}
	for {
		s, err := p.sequence(depth)
		if err != nil {
			return s, err
		}
		out.parts = append(out.parts, s)
		// A line that begins with | goes on with the rule before it.
		at, line := p.at, p.line
		if p.space(true); !p.take("|") {
			if depth == 0 {
				p.at, p.line = at, line
			}
			return out, nil
		}
		p.space(true)
	}
}

func (p *gbnfParser) sequence(depth int) (gbnfNode, error) {
	out := gbnfNode{kind: gbnfSequence}
	for {
		p.space(depth > 0)
		if p.at == len(p.text) || strings.IndexByte("|)\r\n", p.text[p.at]) >= 0 {
			return out, nil
		}
		n, err := p.element(depth)
		if err != nil {
			return out, err
		}
		if n, err = p.repetition(n); err != nil {
			return out, err
		}
		out.parts = append(out.parts, n)
	}
}

func (p *gbnfParser) element(depth int) (gbnfNode, error) {
	switch c := p.text[p.at]; c {
	case '"':
		p.at++
		return p.literal()
	case '[':
		p.at++
		return p.class()
	case '.':
		p.at++
		return gbnfNode{kind: gbnfClass, class: fullClass}, nil
	case '(':
		if depth >= maxGBNFDepth {
			return gbnfNode{}, p.fail("more than %d brackets inside each other", maxGBNFDepth)
		}
		p.at++
		n, err := p.choice(depth + 1)
		if err != nil {
			return n, err
		}
		if !p.take(")") {
			return n, p.fail("expected ) but found %s", p.here())
		}
		return n, nil
	case '<', '!':
		return gbnfNode{}, p.fail("tokens (<...>) are not supported")
	}
	name := p.name()
	if name == "" {
		return gbnfNode{}, p.fail("unexpected %s", p.here())
	}
	p.rule(name)
	return gbnfNode{kind: gbnfRef, text: name}, nil
}

// char reads a character of a literal or a class, in which the bracket or quote that ends it needs a backslash.
func (p *gbnfParser) char() (rune, error) {
	r, n := utf8.DecodeRuneInString(p.rest())
	if n == 0 || r == '\n' {
		return 0, p.fail("a literal or a class is not closed")
	}
	p.at += n
	if r != '\\' {
		return r, nil
	}
	if p.at == len(p.text) {
		return 0, p.fail("the grammar ends with a backslash")
	}
	c := p.text[p.at]
	p.at++
	digits := 0
	switch c {
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case '"', '[', ']', '\\', '-', '^', '/':
		return rune(c), nil
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		return 0, p.fail("unknown escape \\%c", c)
	}
	s := p.rest()
	v, err := strconv.ParseUint(s[:min(digits, len(s))], 16, 32)
	if err != nil || len(s) < digits {
		return 0, p.fail("\\%c wants %d hexadecimal digits", c, digits)
	}
	p.at += digits
	if !utf8.ValidRune(rune(v)) || v > unicode.MaxRune {
		return 0, p.fail("\\%c%s is not a character", c, s[:digits])
	}
	return rune(v), nil
}

func (p *gbnfParser) literal() (gbnfNode, error) {
	var b strings.Builder
	for !p.take(`"`) {
		r, err := p.char()
		if err != nil {
			return gbnfNode{}, err
		}
		b.WriteRune(r)
	}
	return gbnfNode{kind: gbnfLiteral, text: b.String()}, nil
}

func (p *gbnfParser) class() (gbnfNode, error) {
	not := p.take("^")
	var pairs [][2]rune
	for !p.take("]") {
		lo, err := p.char()
		if err != nil {
			return gbnfNode{}, err
		}
		hi := lo
		if strings.HasPrefix(p.rest(), "-") && !strings.HasPrefix(p.rest(), "-]") {
			p.at++
			if hi, err = p.char(); err != nil {
				return gbnfNode{}, err
			}
		}
		if hi < lo {
			return gbnfNode{}, p.fail("the range %q-%q is empty", lo, hi)
		}
		pairs = append(pairs, [2]rune{lo, hi})
	}
	slices.SortFunc(pairs, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	var ranges []rune
	for _, r := range pairs {
		ranges = append(ranges, r[0], r[1])
	}
	class := subtract(fullClass, ranges)
	if !not { // what remains when all others are taken away, sorted and without overlaps
		class = subtract(fullClass, class)
	}
	return gbnfNode{kind: gbnfClass, class: class}, nil
}

// repetition reads *, +, ? or {m,n} after an element, or several of them.
func (p *gbnfParser) repetition(n gbnfNode) (gbnfNode, error) {
	for depth := 0; ; depth++ {
		least, most := 0, -1
		switch {
		case p.take("*"):
		case p.take("+"):
			least = 1
		case p.take("?"):
			most = 1
		case p.take("{"):
			var err error
			if least, most, err = p.counts(); err != nil {
				return n, err
			}
		default:
			return n, nil
		}
		if depth >= maxGBNFDepth {
			return n, p.fail("more than %d repetitions of each other", maxGBNFDepth)
		}
		n = gbnfNode{kind: gbnfRepeat, parts: []gbnfNode{n}, min: least, max: most}
		p.space(false)
	}
}

func (p *gbnfParser) counts() (least, most int, err error) {
	inside, _, ok := strings.Cut(p.rest(), "}")
	if !ok {
		return 0, 0, p.fail("expected } after {")
	}
	p.at += len(inside) + 1
	from, to, pair := strings.Cut(inside, ",")
	number := func(s string, empty int) int {
		s = strings.TrimSpace(s)
		n, perr := strconv.ParseUint(s, 10, 31)
		switch {
		case s == "" && pair:
			return empty
		case perr != nil:
			err = p.fail("{%.20s} is not a repetition; want {m}, {m,}, {m,n} or {,n}", inside)
		case n > maxGBNFCount:
			err = p.fail("{%s}: at most %d repetitions are supported", inside, maxGBNFCount)
		}
		return int(n)
	}
	least = number(from, 0)
	most = least
	if pair {
		most = number(to, -1)
	}
	if err == nil && most >= 0 && most < least {
		err = p.fail("{%s}: the end is before the beginning", inside)
	}
	return least, most, err
}

// gbnfCompiler builds the automaton of parsed rules.
type gbnfCompiler struct {
	b    *builder
	p    *gbnfParser
	todo []*gbnfRule // to be built: rules without the empty text
	work int         // left for making them
}

// findNullable finds the rules that match the empty text.
func (c *gbnfCompiler) findNullable() {
	for changed := true; changed; {
		changed = false
		for _, r := range c.p.rules {
			if !r.nullable && c.nullable(&r.body) {
				r.nullable, changed = true, true
			}
		}
	}
}

func (c *gbnfCompiler) nullable(n *gbnfNode) bool {
	empty := func(x gbnfNode) bool { return c.nullable(&x) }
	switch n.kind {
	case gbnfLiteral:
		return n.text == ""
	case gbnfRef:
		return c.p.rules[n.text].nullable
	case gbnfSequence:
		return !slices.ContainsFunc(n.parts, func(x gbnfNode) bool { return !c.nullable(&x) })
	case gbnfChoice:
		return slices.ContainsFunc(n.parts, empty)
	case gbnfRepeat:
		return n.min == 0 || c.nullable(&n.parts[0])
	}
	return false
}

// build returns the state that reads a node and goes on with next.
func (c *gbnfCompiler) build(n *gbnfNode, next int32) int32 {
	if c.b.err != nil || c.work < 0 {
		return endState // too large already
	}
	switch n.kind {
	case gbnfLiteral:
		return c.b.lit(n.text, next)
	case gbnfClass:
		return c.b.add(state{kind: kindBytes, edges: c.b.utf8Edges(n.class, next)})
	case gbnfRef:
		return c.b.call(c.p.rules[n.text].id, next)
	case gbnfSequence:
		for i := range slices.Backward(n.parts) {
			next = c.build(&n.parts[i], next)
		}
		return next
	case gbnfChoice:
		starts := make([]int32, len(n.parts))
		for i := range n.parts {
			starts[i] = c.build(&n.parts[i], next)
		}
		return c.b.alt(starts...)
	}
	return c.repeat(&n.parts[0], n.min, n.max, next)
}

// repeat builds a repetition. Counters are for what cannot be empty: rounds that read nothing would multiply.
func (c *gbnfCompiler) repeat(n *gbnfNode, least, most int, next int32) int32 {
	if least <= 1 && most < 0 {
		loop := c.b.hole()
		again := c.build(n, loop)
		c.b.fill(loop, again, next)
		if least == 0 {
			return loop
		}
		return again
	}
	if most == 1 && least == 0 {
		return c.b.alt(c.build(n, next), next)
	}
	if !c.nullable(n) {
		rule := c.b.newRule()
		start := c.build(n, endState)
		c.b.rules[rule].start = start
		return c.b.repeat(rule, least, most, next)
	}
	// Rounds that read nothing change nothing, but there would be many ways to have them.
	some := c.nonempty(n)
	if c.work < 0 {
		return endState
	}
	return c.repeat(&some, 0, most, next)
}

// nonempty is a node without the empty text.
func (c *gbnfCompiler) nonempty(n *gbnfNode) gbnfNode {
	if c.work--; c.work < 0 || !c.nullable(n) {
		return *n
	}
	out := gbnfNode{kind: gbnfChoice}
	switch n.kind {
	case gbnfRef:
		name := n.text + " " // no rule of the text is named like that
		if c.p.rules[name] == nil {
			r := &gbnfRule{id: c.b.newRule()}
			c.p.rules[name] = r
			r.body = c.nonempty(&c.p.rules[n.text].body)
			c.todo = append(c.todo, r)
		}
		return gbnfNode{kind: gbnfRef, text: name}
	case gbnfSequence: // all before the first part that is not empty are
		for i := range n.parts {
			rest := slices.Clone(n.parts[i:])
			rest[0] = c.nonempty(&rest[0])
			c.work -= len(rest)
			out.parts = append(out.parts, gbnfNode{kind: gbnfSequence, parts: rest})
		}
	case gbnfChoice:
		for i := range n.parts {
			out.parts = append(out.parts, c.nonempty(&n.parts[i]))
		}
	case gbnfRepeat:
		some := c.nonempty(&n.parts[0])
		return gbnfNode{kind: gbnfRepeat, parts: []gbnfNode{some}, min: 1, max: n.max}
	}
	return out // an empty literal is no alternative at all
}
