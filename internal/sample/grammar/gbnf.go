package grammar

import (
	"fmt"
	"slices"
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
	return newGrammar(prog), nil
}

// gbnfRule is a rule; it is created when it is first mentioned.
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
