package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Patterns of schemas are regular expressions of JavaScript. The standard library parses them after two changes: what
// it spells differently is respelled, and every look ahead, (?=...) or (?!...), is replaced by a character of a
// private area that stands for it. Look aheads are regular: what follows one is intersected with what it demands.

// look is a look ahead.
type look struct {
	re       *syntax.Regexp
	looks    []look // those inside
	negative bool
}

// lookBase is the first of the characters that stand for look aheads, which no sensible pattern contains.
const (
	lookBase = rune(0x100000)
	maxLooks = 32
)

// regex is a parsed pattern.
type regex struct {
	re    *syntax.Regexp
	looks []look
}

// parsePattern reads a pattern as JavaScript writes it.
func parsePattern(expr string) (*regex, error) {
	p := &patternParser{src: expr}
	re, err := p.regex(0)
	if err != nil {
		return nil, fmt.Errorf("regular expression is not supported: %w", err)
	}
	return re, nil
}

type patternParser struct {
	src string
	at  int
}

// regex reads up to the end of the pattern, or of the look ahead it is in.
func (p *patternParser) regex(depth int) (*regex, error) {
	if depth > 4 {
		return nil, errors.New("look aheads are nested too deep")
	}
	r := &regex{}
	var b strings.Builder
	groups := 0
	for p.at < len(p.src) {
		rest := p.src[p.at:]
		switch {
		case strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!"):
			p.at += 3
			inside, err := p.regex(depth + 1)
			if err != nil {
				return nil, err
			}
			if p.at >= len(p.src) {
				return nil, errors.New("a look ahead is not closed")
			}
			p.at++
			if len(r.looks) == maxLooks {
				return nil, errors.New("there are too many look aheads")
			}
			b.WriteRune(lookBase + rune(len(r.looks)))
			r.looks = append(r.looks, look{inside.re, inside.looks, rest[2] == '!'})
		case strings.HasPrefix(rest, "(?<=") || strings.HasPrefix(rest, "(?<!"):
			return nil, errors.New("it looks behind")
		case rest[0] == '(':
			groups++
			b.WriteByte('(')
			p.at++
		case rest[0] == ')' && groups == 0:
			if depth == 0 {
				return nil, errors.New("unexpected )")
			}
			return r, r.parse(b.String())
		case rest[0] == ')':
			groups--
			b.WriteByte(')')
			p.at++
		case rest[0] == '.':
			b.WriteString(`[^\n\r\x{2028}\x{2029}]`)
			p.at++
		case rest[0] == '[':
			class, err := p.class()
			if err != nil {
				return nil, err
			}
			b.WriteString(class)
		case rest[0] == '\\':
			s, err := p.escape(false)
			if err != nil {
				return nil, err
			}
			b.WriteString(s)
		default:
			b.WriteByte(rest[0])
			p.at++
		}
	}
	if depth > 0 {
		return r, nil // the caller sees that it is not closed
	}
	return r, r.parse(b.String())
}

func (r *regex) parse(expr string) error {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return err
	}
	r.re = re.Simplify()
	return nil
}

// class reads a class of characters.
func (p *patternParser) class() (string, error) {
	rest := p.src[p.at:]
	if strings.HasPrefix(rest, "[^]") {
		p.at += 3
		return `(?s:.)`, nil
	}
	if strings.HasPrefix(rest, "[]") {
		p.at += 2
		return `[^\x{0}-\x{10FFFF}]`, nil
	}
	var b strings.Builder
	b.WriteByte('[')
	p.at++
	for p.at < len(p.src) {
		switch c := p.src[p.at]; c {
		case ']':
			b.WriteByte(']')
			p.at++
			return b.String(), nil
		case '\\':
			s, err := p.escape(true)
			if err != nil {
				return "", err
			}
			b.WriteString(s)
		case '[': // a character like others, but to the library
			b.WriteString(`\[`)
			p.at++
		default:
			b.WriteByte(c)
			p.at++
		}
	}
	return "", errors.New("a class of characters is not closed")
}

// spaces are what JavaScript calls white space besides what the library does.
const spaces = `\x{0b}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`

// escape reads what follows a backslash.
func (p *patternParser) escape(inClass bool) (string, error) {
	rest := p.src[p.at+1:]
	if rest == "" {
		return "", errors.New("it ends with a backslash")
	}
	take := func(n int, s string) (string, error) {
		p.at += 1 + n
		return s, nil
	}
	switch c := rest[0]; {
	case c == 'u' && strings.HasPrefix(rest, "u{"):
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return "", errors.New(`\u{ is not closed`)
		}
		return take(end+1, `\x`+rest[1:end+1])
	case c == 'u':
		if len(rest) < 5 {
			return "", errors.New(`\u is incomplete`)
		}
		n, err := strconv.ParseUint(rest[1:5], 16, 32)
		if err != nil {
			return "", errors.New(`\u is incomplete`)
		}
		if n >= 0xd800 && n <= 0xdfff {
			return "", errors.New("it has halves of surrogate pairs")
		}
		return take(5, fmt.Sprintf(`\x{%x}`, n))
	case c == 'c' && len(rest) > 1:
		return take(2, fmt.Sprintf(`\x{%x}`, rest[1]&0x1f))
	case c == 'k' || c >= '1' && c <= '9':
		return "", errors.New("it refers back to what a group matched, which is not regular")
	case c == 's' && inClass:
		return take(1, `\s`+spaces)
	case c == 's':
		return take(1, `[\s`+spaces+`]`)
	case c == 'S' && inClass:
		return "", errors.New(`\S inside a class`)
	case c == 'S':
		return take(1, `[^\s`+spaces+`]`)
	case c == 'b' && inClass:
		return take(1, `\x{8}`)
	case c == 'p' || c == 'P':
		end := strings.IndexByte(rest, '}')
		if end < 0 || rest[1] != '{' {
			return "", errors.New(`\p without a name`)
		}
		name := rest[2:end]
		if _, value, ok := strings.Cut(name, "="); ok { // Script=Greek, General_Category=Letter
			name = value
		}
		return take(end+1, `\`+string(c)+`{`+name+`}`)
	// JavaScript does not know these, or takes them for letters. Schemas that use them mean the beginning and the end, as
	// Python and others do.
	case c == 'A' && !inClass:
		return take(1, "^")
	case (c == 'Z' || c == 'z') && !inClass:
		return take(1, "$")
	case c == 'Q' || c == 'E' || c == 'C': // mean something to the library alone
		return "", fmt.Errorf(`invalid escape sequence: \%c`, c)
	}
	_, n := utf8.DecodeRuneInString(rest)
	return take(n, `\`+rest[:n])
}

// automaton builds the automaton of texts in which a pattern is found.
func (r *regex) automaton() (n *charNFA, start int, err error) {
	n = &charNFA{looks: r.looks}
	n.end = n.add(charState{})
	start, err = n.search(r.re, n.end)
	return n, start, err
}

// matches reports whether a pattern is found in a text.
func (r *regex) matches(text string) (bool, error) {
	n, start, err := r.automaton()
	if err != nil {
		return false, err
	}
	set := n.closure([]int{start})
	for _, c := range text {
		set = n.step(set, c)
	}
	return slices.Contains(set, n.end), nil
}

// closure is what can be reached from states without reading, sorted.
func (n *charNFA) closure(states []int) []int {
	seen := map[int]bool{}
	var out []int
	for work := slices.Clone(states); len(work) > 0; {
		s := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[s] {
			continue
		}
		seen[s] = true
		out = append(out, s)
		if n.states[s].class == nil {
			work = append(work, n.states[s].jumps...)
		}
	}
	slices.Sort(out)
	return out
}

// step reads a character.
func (n *charNFA) step(set []int, c rune) []int {
	var next []int
	for _, s := range set {
		if st := &n.states[s]; st.class != nil && inClass(st.class, c) {
			next = append(next, st.to)
		}
	}
	return n.closure(next)
}

// ahead is what goes on at next and meets a look ahead: next beside the set of states in which what it
// demands may be. A demand that is met needs no more attention; one that must not be met ends the text's chances.
func (n *charNFA) ahead(l look, next int) (int, error) {
	if n.open > 0 {
		return 0, errors.New("a look ahead inside a repetition is not supported")
	}
	demand := &charNFA{looks: l.looks}
	demand.end = demand.add(charState{})
	from, err := demand.prefix(l.re, demand.end)
	if err != nil {
		return 0, err
	}
	type place struct {
		state int
		set   string
	}
	made := map[place]int{}
	sets := map[string][]int{}
	var work []place
	get := func(state int, set []int) int {
		met := slices.Contains(set, demand.end)
		if !demand.toEnd && met && l.negative {
			return n.add(charState{}) // nothing
		}
		if !demand.toEnd && met {
			return state
		}
		key := fmt.Sprint(set)
		sets[key] = set
		p := place{state, key}
		if s, ok := made[p]; ok {
			return s
		}
		made[p] = n.add(charState{})
		work = append(work, p)
		return made[p]
	}
	first := get(next, demand.closure([]int{from}))
	for len(work) > 0 {
		if len(n.states) > maxPattern {
			return 0, errors.New("regular expression is too large")
		}
		p := work[len(work)-1]
		work = work[:len(work)-1]
		s, set, at := made[p], sets[p.set], n.states[p.state]
		var jumps []int
		switch {
		case p.state == n.end:
			if (demand.toEnd && slices.Contains(set, demand.end)) != l.negative {
				jumps = append(jumps, n.end)
			}
		case at.class != nil:
			for _, part := range demand.partition(at.class, set) {
				to := get(at.to, demand.step(set, part[0]))
				jumps = append(jumps, n.add(charState{class: part, to: to}))
			}
		default:
			for _, j := range at.jumps {
				jumps = append(jumps, get(j, set))
			}
		}
		n.states[s].jumps = jumps
	}
	return first, nil
}

// prefix builds what a text begins with, or is, when the expression ends with an anchor.
func (n *charNFA) prefix(re *syntax.Regexp, next int) (int, error) {
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	for len(parts) > 0 && parts[len(parts)-1].Op == syntax.OpEndText {
		n.toEnd, parts = true, parts[:len(parts)-1]
	}
	if !n.toEnd && len(n.looks) > 0 { // those inside may look further
		n.toEnd, next = true, n.loop(fullClass, next)
	}
	return n.sequence(parts, next)
}

func (n *charNFA) sequence(parts []*syntax.Regexp, next int) (int, error) {
	var err error
	for _, re := range slices.Backward(parts) {
		if next, err = n.build(re, next); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// partition cuts a class into pieces that the states of a set do not tell apart.
func (n *charNFA) partition(class []rune, set []int) [][]rune {
	parts := [][]rune{class}
	for _, s := range set {
		c := n.states[s].class
		if c == nil {
			continue
		}
		var finer [][]rune
		for _, p := range parts {
			out := subtract(p, c)
			in := subtract(p, out)
			for _, x := range [][]rune{in, out} {
				if len(x) > 0 {
					finer = append(finer, x)
				}
			}
		}
		parts = finer
	}
	return parts
}
