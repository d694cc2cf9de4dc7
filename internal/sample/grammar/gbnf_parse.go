package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gbnfParser reads the text of a grammar.
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
		if n, err = p.repetition(n, depth > 0); err != nil {
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

// repetition reads *, +, ? or {m,n} after an element, or several of them, and the space around them.
func (p *gbnfParser) repetition(n gbnfNode, lines bool) (gbnfNode, error) {
	for depth := 0; ; depth++ {
		p.space(lines)
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
