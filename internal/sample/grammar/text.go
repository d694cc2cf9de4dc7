package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"

	"strobe/internal/jsontext"
)

// The built-in rules, in front of every program with the same numbers.
const (
	ruleSpace      int32 = iota // white space between tokens, or nothing
	ruleString                  // any string
	ruleChar                    // one character of a string
	ruleKey                     // any object key with its quotes
	ruleInteger                 // any integer
	ruleNumber                  // any number
	ruleValue                   // any JSON value
	ruleObject                  // any object
	ruleArray                   // any list
	ruleMember                  // a member of any object
	ruleItemNext                // ", value"
	ruleMemberNext              // ", member"
	ruleChars                   // any characters of a string, without its quotes
	builtinRules
)

// maxIndent is the longest run of blanks after a line break, maxDigits the
// most digits before or after the point: a model must not get lost in either.
const (
	maxIndent = 64
	maxDigits = 16
)

// builtins holds the built-in rules, which take builtinStates states.
var (
	builtins      = buildBuiltins()
	builtinStates = int32(len(builtins.states))
)

// withBuiltins returns a builder that begins with the built-in rules.
func withBuiltins() *builder {
	b := *builtins
	b.states, b.rules = slices.Clone(b.states), slices.Clone(b.rules)
	return &b
}

func buildBuiltins() *builder {
	b := newBuilder()
	for range builtinRules {
		b.newRule()
	}
	// One blank, or a line break with indentation.
	blanks := endState
	for range maxIndent {
		blanks = b.alt(endState, b.bytes(blanks, ' ', ' ', '\t', '\t'))
	}
	b.rules[ruleSpace].start = b.alt(endState, b.lit(" ", endState), b.lit("\n", blanks))

	quote := b.lit(`"`, endState)
	body := b.hole()
	b.fill(body, b.anyChar(body), quote)
	b.rules[ruleString].start = b.lit(`"`, body)
	b.rules[ruleChar].start = b.anyChar(endState)
	chars := b.hole()
	b.fill(chars, b.anyChar(chars), endState)
	b.rules[ruleChars].start = chars

	key := b.hole()
	b.fill(key, b.class(fullClass, key), quote)
	b.rules[ruleKey].start = b.lit(`"`, key)

	b.rules[ruleInteger].start = b.expression(integerExpr, endState)
	b.rules[ruleNumber].start = b.expression(numberExpr, endState)

	b.rules[ruleValue].start = b.alt(
		b.call(ruleString, endState), b.call(ruleNumber, endState), b.call(ruleObject, endState), b.call(ruleArray, endState),
		b.words([]string{"true", "false", "null"}, endState))
	b.rules[ruleMember].start = b.call(ruleKey, b.colon(b.call(ruleValue, endState)))
	b.rules[ruleMemberNext].start = b.comma(b.call(ruleMember, endState))
	b.rules[ruleItemNext].start = b.comma(b.call(ruleValue, endState))
	b.rules[ruleObject].start = b.object(b.optional(b.call(ruleMember, b.star(ruleMemberNext, b.closing('}')))))
	b.rules[ruleArray].start = b.array(b.optional2(b.call(ruleValue, b.star(ruleItemNext, b.closing(']'))), ']'))
	return b
}

func (b *builder) space(next int32) int32 {
	if b.plain {
		return next
	}
	return b.call(ruleSpace, next)
}

func (b *builder) colon(next int32) int32 { return b.lit(":", b.space(next)) }
func (b *builder) comma(next int32) int32 { return b.lit(",", b.space(next)) }

// closing is the end of an object or list: optional space, then the bracket.
func (b *builder) closing(c byte) int32 { return b.space(b.bytes(endState, c, c)) }

func (b *builder) object(members int32) int32 { return b.lit("{", members) }
func (b *builder) array(items int32) int32    { return b.lit("[", items) }

// optional is the inside of an object that may be empty; optional2 takes the bracket.
func (b *builder) optional(members int32) int32 { return b.optional2(members, '}') }
func (b *builder) optional2(inside int32, c byte) int32 {
	return b.alt(b.space(inside), b.closing(c))
}

// star runs a rule any number of times.
func (b *builder) star(rule, next int32) int32 {
	h := b.hole()
	b.fill(h, b.call(rule, h), next)
	return h
}

// anyChar is one character inside a JSON string, in any of its spellings.
// Surrogate escapes come in pairs only, so that the text is valid Unicode.
func (b *builder) anyChar(next int32) int32 {
	hex := []byte{'0', '9', 'a', 'f', 'A', 'F'}
	h1 := b.bytes(next, hex...)
	h2 := b.bytes(h1, hex...)
	h3 := b.bytes(h2, hex...)
	low := b.lit(`\u`, b.bytes(b.bytes(h2, 'c', 'f', 'C', 'F'), 'd', 'd', 'D', 'D'))
	low2 := b.bytes(low, hex...)
	low1 := b.bytes(low2, hex...)
	u := b.add(state{kind: kindBytes, edges: []edge{
		{'0', '9', h3}, {'a', 'c', h3}, {'A', 'C', h3}, {'e', 'f', h3}, {'E', 'F', h3},
	}})
	surrogate := b.add(state{kind: kindBytes, edges: []edge{
		{'0', '7', h2}, {'8', '9', low1}, {'a', 'b', low1}, {'A', 'B', low1},
	}})
	if u != endState {
		b.states[u].edges = append(b.states[u].edges, edge{'d', 'd', surrogate}, edge{'D', 'D', surrogate})
	}
	esc := b.add(state{kind: kindBytes, edges: []edge{
		{'"', '"', next}, {'\\', '\\', next}, {'/', '/', next}, {'b', 'b', next}, {'f', 'f', next},
		{'n', 'n', next}, {'r', 'r', next}, {'t', 't', next}, {'u', 'u', u},
	}})
	plain := b.utf8Edges(subtract(fullClass, []rune{0, 0x1f, '"', '"', '\\', '\\'}), next)
	return b.add(state{kind: kindBytes, edges: append(plain, edge{'\\', '\\', esc})})
}

// A class is a sorted list of rune ranges: lo, hi, lo, hi, ...
var fullClass = []rune{0, 0xd7ff, 0xe000, unicode.MaxRune}

// subtract removes the ranges of b from a.
func subtract(a, b []rune) []rune {
	var out []rune
	for i := 0; i < len(a); i += 2 {
		lo, hi := a[i], a[i+1]
		for j := 0; j < len(b) && lo <= hi; j += 2 {
			if b[j+1] < lo || b[j] > hi {
				continue
			}
			if b[j] > lo {
				out = append(out, lo, b[j]-1)
			}
			lo = b[j+1] + 1
		}
		if lo <= hi {
			out = append(out, lo, hi)
		}
	}
	return out
}

func inClass(c []rune, r rune) bool {
	for i := 0; i < len(c); i += 2 {
		if r >= c[i] && r <= c[i+1] {
			return true
		}
	}
	return false
}

// class is one character out of a class, in the one spelling JSON printers
// give it: escaped only where it must be. That makes spellings unique, so
// different texts have different bytes.
func (b *builder) class(c []rune, next int32) int32 {
	c = subtract(c, []rune{0xd800, 0xdfff})
	if b.plain { // without what could begin the mark that ends a string
		return b.add(state{kind: kindBytes, edges: b.utf8Edges(subtract(c, []rune{'<', '<'}), next)})
	}
	edges := b.utf8Edges(subtract(c, []rune{0, 0x1f, '"', '"', '\\', '\\'}), next)
	var esc []string
	for r := rune(0); r < 0x20; r++ {
		if inClass(c, r) {
			esc = append(esc, jsontext.Escape(r)[1:])
		}
	}
	for _, r := range `"\` {
		if inClass(c, r) {
			esc = append(esc, string(r))
		}
	}
	if len(esc) > 0 {
		edges = append(edges, edge{'\\', '\\', b.words(esc, next)})
	}
	return b.add(state{kind: kindBytes, edges: edges})
}

// encode is the JSON string of s in the spelling of class.
func encode(s string) string {
	out := []byte{'"'}
	for _, r := range s {
		out = append(out, jsontext.Escape(r)...)
	}
	return string(append(out, '"'))
}

// utf8Edges are edges that read the characters of a class in UTF-8.
func (b *builder) utf8Edges(c []rune, next int32) []edge {
	var edges []edge
	// tails[n] reads any n continuation bytes; ranges that need less than all
	// of them get states of their own.
	tails := []int32{next, -1, -1, -1}
	tail := func(n int) int32 {
		for i := 1; i <= n; i++ {
			if tails[i] < 0 {
				tails[i] = b.bytes(tails[i-1], 0x80, 0xbf)
			}
		}
		return tails[n]
	}
	var seq func(lo, hi []byte) int32
	seq = func(lo, hi []byte) int32 {
		if len(lo) == 0 {
			return next
		}
		full := true
		for i := range lo {
			full = full && lo[i] == 0x80 && hi[i] == 0xbf
		}
		if full {
			return tail(len(lo))
		}
		return b.add(state{kind: kindBytes, edges: splitBytes(lo, hi, seq, tail)})
	}
	limits := []rune{0x7f, 0x7ff, 0xffff, unicode.MaxRune}
	for i := 0; i < len(c); i += 2 {
		lo, hi := c[i], c[i+1]
		for _, l := range limits {
			if lo > hi || lo > l {
				continue
			}
			end := min(hi, l)
			edges = append(edges, splitBytes(utf8.AppendRune(nil, lo), utf8.AppendRune(nil, end), seq, tail)...)
			lo = end + 1
		}
	}
	return edges
}

// splitBytes are the edges for all byte sequences between lo and hi, which
// have the same length.
func splitBytes(lo, hi []byte, seq func(lo, hi []byte) int32, tail func(n int) int32) []edge {
	n := len(lo) - 1
	if lo[0] == hi[0] {
		return []edge{{lo[0], hi[0], seq(lo[1:], hi[1:])}}
	}
	least, most := slices.Repeat([]byte{0x80}, n), slices.Repeat([]byte{0xbf}, n)
	first, last := lo[0], hi[0]
	var out []edge
	if !slices.Equal(lo[1:], least) {
		out = append(out, edge{first, first, seq(lo[1:], most)})
		first++
	}
	cut := !slices.Equal(hi[1:], most)
	if cut {
		last--
	}
	if first <= last {
		out = append(out, edge{first, last, tail(n)})
	}
	if cut {
		out = append(out, edge{hi[0], hi[0], seq(least, hi[1:])})
	}
	return out
}

// otherKey is an object key that is none of the names.
func (b *builder) otherKey(names []string, next int32) int32 {
	free := b.hole()
	b.fill(free, b.class(b.keyClass(), free), b.lit(b.keyQuote(), next))
	if b.plain { // keys are not empty
		names = append(slices.Clone(names), "")
	}
	return b.lit(b.keyQuote(), b.otherThan(names, free, next))
}

// nameClass is what names of parameters consist of.
var nameClass = []rune{'-', '.', '0', '9', 'A', 'Z', '_', '_', 'a', 'z'}

// keyClass is what keys consist of, keyQuote what stands around them.
func (b *builder) keyClass() []rune {
	if b.plain {
		return nameClass
	}
	return fullClass
}

func (b *builder) keyQuote() string {
	if b.plain {
		return ""
	}
	return `"`
}

// key is the text of a key.
func (b *builder) key(name string) string {
	if b.plain {
		return name
	}
	return encode(name)
}

// otherThan is the rest of a key: no name's rest, then the closing quote.
func (b *builder) otherThan(names []string, free, next int32) int32 {
	groups := map[rune][]string{}
	var firsts []rune
	starts := []int32{}
	taken := false
	for _, n := range names {
		if n == "" {
			taken = true
			continue
		}
		r, size := utf8.DecodeRuneInString(n)
		if groups[r] == nil {
			firsts = append(firsts, r)
		}
		groups[r] = append(groups[r], n[size:])
	}
	if !taken {
		starts = append(starts, b.lit(b.keyQuote(), next))
	}
	slices.Sort(firsts)
	var named []rune
	for _, r := range firsts {
		named = append(named, r, r)
		starts = append(starts, b.class([]rune{r, r}, b.otherThan(groups[r], free, next)))
	}
	starts = append(starts, b.class(subtract(b.keyClass(), named), free))
	return b.alt(starts...)
}

// pattern is a string, with its quotes, that matches a regular expression
// somewhere, as JSON Schema has it, and has between min and max characters
// (max < 0: any number).
func (b *builder) pattern(expr string, min, max int, next int32) (int32, error) {
	re, err := parsePattern(expr)
	if err != nil {
		return 0, err
	}
	n, start, err := re.automaton()
	if err != nil {
		return 0, err
	}
	return b.lit(b.quote, b.counted(n, start, min, max, b.lit(b.quote, next))), nil
}

// charNFA is an automaton over characters.
type charNFA struct {
	states []charState
	end    int
	looks  []look
	open   int  // repetitions being built
	toEnd  bool // of a look ahead: it must reach the end of the text
}

type charState struct {
	class []rune // with to: read a character
	to    int
	jumps []int // without class: go on at any of these
}

const maxPattern = 4_000

func (n *charNFA) add(s charState) int {
	n.states = append(n.states, s)
	return len(n.states) - 1
}

// search builds an unanchored match: each alternative may start and end
// anywhere unless it has an anchor there.
func (n *charNFA) search(re *syntax.Regexp, next int) (int, error) {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op == syntax.OpAlternate {
		s := charState{}
		for _, sub := range re.Sub {
			t, err := n.search(sub, next)
			if err != nil {
				return 0, err
			}
			s.jumps = append(s.jumps, t)
		}
		return n.add(s), nil
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	from, to := false, false
	for len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		from, parts = true, parts[1:]
	}
	for len(parts) > 0 && parts[len(parts)-1].Op == syntax.OpEndText {
		to, parts = true, parts[:len(parts)-1]
	}
	if !to {
		next = n.loop(fullClass, next)
	}
	next, err := n.sequence(parts, next)
	if err == nil && !from {
		next = n.loop(fullClass, next)
	}
	return next, err
}

// loop reads any number of characters of a class.
func (n *charNFA) loop(class []rune, next int) int {
	h := n.add(charState{})
	n.states[h].jumps = []int{n.add(charState{class: class, to: h}), next}
	return h
}

func (n *charNFA) build(re *syntax.Regexp, next int) (int, error) {
	if len(n.states) > maxPattern {
		return 0, fmt.Errorf("regular expression is too large")
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return next, nil
	case syntax.OpNoMatch:
		return n.add(charState{}), nil
	case syntax.OpLiteral:
		for _, r := range slices.Backward(re.Rune) {
			if i := int(r - lookBase); i >= 0 && i < len(n.looks) {
				var err error
				if next, err = n.ahead(n.looks[i], next); err != nil {
					return 0, err
				}
				continue
			}
			class := []rune{r, r}
			if re.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					class = append(class, f, f)
				}
			}
			next = n.add(charState{class: class, to: next})
		}
		return next, nil
	case syntax.OpCharClass:
		if len(n.looks) > 0 && len(re.Rune) > 0 && re.Rune[0] >= lookBase {
			return 0, fmt.Errorf("alternatives that are look aheads are not supported")
		}
		if len(re.Rune) == 0 {
			return n.add(charState{}), nil
		}
		return n.add(charState{class: re.Rune, to: next}), nil
	case syntax.OpAnyChar:
		return n.add(charState{class: fullClass, to: next}), nil
	case syntax.OpAnyCharNotNL:
		return n.add(charState{class: subtract(fullClass, []rune{'\n', '\n'}), to: next}), nil
	case syntax.OpCapture:
		return n.build(re.Sub[0], next)
	case syntax.OpConcat:
		return n.sequence(re.Sub, next)
	case syntax.OpAlternate:
		s := charState{}
		for _, sub := range re.Sub {
			t, err := n.build(sub, next)
			if err != nil {
				return 0, err
			}
			s.jumps = append(s.jumps, t)
		}
		return n.add(s), nil
	case syntax.OpStar, syntax.OpPlus:
		h := n.add(charState{})
		n.open++
		t, err := n.build(re.Sub[0], h)
		n.open--
		if err != nil {
			return 0, err
		}
		n.states[h].jumps = []int{t, next}
		if re.Op == syntax.OpPlus {
			return t, nil
		}
		return h, nil
	case syntax.OpQuest:
		t, err := n.build(re.Sub[0], next)
		if err != nil {
			return 0, err
		}
		return n.add(charState{jumps: []int{t, next}}), nil
	}
	return 0, fmt.Errorf("%s inside a regular expression is not supported", re)
}

// counted turns a character automaton into bytes, keeping count where a length
// is asked for.
func (b *builder) counted(n *charNFA, start, min, max int, next int32) int32 {
	type place struct{ state, count int }
	made := map[place]int32{}
	var work []place
	get := func(state, count int) int32 {
		// Past the minimum without a maximum, the count no longer matters.
		if max < 0 && count > min {
			count = min
		}
		p := place{state, count}
		if s, ok := made[p]; ok {
			return s
		}
		s := b.hole()
		made[p] = s
		work = append(work, p)
		return s
	}
	first := get(start, 0)
	for len(work) > 0 && b.err == nil {
		p := work[len(work)-1]
		work = work[:len(work)-1]
		s := made[p]
		cs := &n.states[p.state]
		switch {
		case p.state == n.end:
			if p.count >= min {
				b.fill(s, next)
			}
		case cs.class != nil:
			if max < 0 || p.count < max {
				b.fill(s, b.class(cs.class, get(cs.to, p.count+1)))
			}
		default:
			var to []int32
			for _, j := range cs.jumps {
				to = append(to, get(j, p.count))
			}
			b.fill(s, to...)
		}
	}
	return first
}
