package grammar

import (
	"fmt"
	"math"
	"slices"
)

// The automaton. A state either reads a byte, moves on without reading, calls
// a rule, repeats a rule a counted number of times, runs members of a set in
// any order, or ends its rule.
type stateKind uint8

const (
	kindEnd    stateKind = iota // the rule is complete: return to the caller
	kindBytes                   // read a byte along one of edges
	kindJump                    // go on at any of next
	kindCall                    // run rule, then go on at next[0]
	kindRepeat                  // run rule between min and max times, then go on at next[0]
	kindSet                     // run members of set, each once at most, then go on at next[0]
)

type edge struct {
	lo, hi byte
	to     int32
}

type state struct {
	kind     stateKind
	heavy    bool // reads so many bytes that walking the vocabulary from here is costly
	rule     int32
	min, max int32 // max < 0: no bound
	edges    []edge
	next     []int32
	set      *set
}

// set is members in any order, min to max of them.
type set struct {
	first, later []int32 // rules of the members: how each reads as the first one, and after others
	required     uint64  // a bit for each member
	// extra are rules of what may come any number of times, in either place; < 0 for nothing.
	extra, extraLater int32
}

// maxMembers is how many members a set may have: one bit each.
const maxMembers = 64

// rule is a part of the grammar that can be called from several places.
type rule struct {
	start int32
}

// program is a finished automaton.
type program struct {
	states  []state
	rules   []rule
	root    int32 // rule
	counted bool  // has kindRepeat states
}

const (
	endState   = int32(0)
	maxStates  = 300_000
	heavyBytes = 64
)

// builder makes states from back to front: every method takes the state to go
// on with and returns the state to start from.
type builder struct {
	states []state
	rules  []rule
	what   string // is built, for errors: a schema or a grammar
	quote  string // stands around strings
	plain  bool   // strings are written as they are, without escapes, and no white space stands between tokens
	err    error  // the state limit was hit; checked by the compiler now and then
}

func newBuilder() *builder {
	return &builder{states: []state{{kind: kindEnd}}, what: "schema", quote: `"`}
}

func (b *builder) add(s state) int32 {
	if len(b.states) >= maxStates {
		if b.err == nil {
			b.err = fmt.Errorf("the %s is too complex: its automaton has more than %d states", b.what, maxStates)
		}
		return endState
	}
	b.states = append(b.states, s)
	return int32(len(b.states) - 1)
}

// hole is a state to be filled in later, for loops.
func (b *builder) hole() int32 { return b.add(state{kind: kindJump}) }

func (b *builder) fill(hole int32, next ...int32) {
	if hole != endState { // the limit was hit
		b.states[hole].next = next
	}
}

func (b *builder) alt(starts ...int32) int32 {
	if len(starts) == 1 {
		return starts[0]
	}
	return b.add(state{kind: kindJump, next: starts})
}

func (b *builder) bytes(next int32, ranges ...byte) int32 {
	var e []edge
	for i := 0; i < len(ranges); i += 2 {
		e = append(e, edge{ranges[i], ranges[i+1], next})
	}
	return b.add(state{kind: kindBytes, edges: e})
}

func (b *builder) lit(s string, next int32) int32 {
	for i := len(s) - 1; i >= 0; i-- {
		next = b.bytes(next, s[i], s[i])
	}
	return next
}

// words accepts one of the strings; common beginnings share states.
func (b *builder) words(list []string, next int32) int32 {
	var e []edge
	var ends bool
	groups := map[byte][]string{}
	var order []byte
	for _, s := range list {
		if s == "" {
			ends = true
			continue
		}
		if groups[s[0]] == nil {
			order = append(order, s[0])
		}
		groups[s[0]] = append(groups[s[0]], s[1:])
	}
	for _, c := range order {
		e = append(e, edge{c, c, b.words(groups[c], next)})
	}
	s := b.add(state{kind: kindBytes, edges: e})
	if ends {
		return b.alt(s, next)
	}
	return s
}

func (b *builder) call(rule, next int32) int32 {
	return b.add(state{kind: kindCall, rule: rule, next: []int32{next}})
}

// repeat runs a rule, which must read at least one byte, min to max times.
func (b *builder) repeat(rule int32, min, max int, next int32) int32 {
	if max == 0 {
		return next
	}
	return b.add(state{kind: kindRepeat, rule: rule, min: int32(min), max: int32(max), next: []int32{next}})
}

// newRule reserves a rule, so that it can be called before it is built.
func (b *builder) newRule() int32 {
	b.rules = append(b.rules, rule{})
	return int32(len(b.rules) - 1)
}

// finish checks the automaton and drops what cannot lead to an end.
func (b *builder) finish(root int32) (*program, error) {
	if b.err != nil {
		return nil, b.err
	}
	p := &program{states: b.states, rules: b.rules, root: root}
	good := p.productive()
	if !good[p.rules[root].start] {
		return nil, fmt.Errorf("the %s allows nothing", b.what)
	}
	for i := range p.states {
		s := &p.states[i]
		if s.kind == kindRepeat {
			p.counted = true
		}
		if s.kind == kindBytes {
			bad := func(e edge) bool { return !good[e.to] }
			if slices.ContainsFunc(s.edges, bad) { // the edges of built-in rules are shared, and all good
				s.edges = slices.DeleteFunc(s.edges, bad)
			}
			n := 0
			for _, e := range s.edges {
				n += int(e.hi) - int(e.lo) + 1
			}
			s.heavy = n >= heavyBytes
		}
		bad := func(t int32) bool { return !good[t] }
		if s.kind == kindJump && slices.ContainsFunc(s.next, bad) {
			s.next = slices.DeleteFunc(slices.Clone(s.next), bad)
		}
	}
	if p.leftRecursive(good) {
		return nil, fmt.Errorf("the %s refers to itself without anything in between", b.what)
	}
	return p, nil
}

// calls are the rules a state may run.
func (s *state) calls() []int32 {
	switch s.kind {
	case kindCall, kindRepeat:
		return []int32{s.rule}
	case kindSet:
		out := slices.Concat(s.set.first, s.set.later)
		if s.set.extra >= 0 {
			out = append(out, s.set.extra, s.set.extraLater)
		}
		return out
	}
	return nil
}

// skips reports whether a state that runs rules may go on without reading anything. Members of sets never are empty.
func (s *state) skips(nullable []bool) bool {
	switch s.kind {
	case kindCall:
		return nullable[s.rule]
	case kindRepeat:
		return s.min == 0 || nullable[s.rule]
	}
	return s.min == 0 && s.set.required == 0
}

// productive finds the states from which some finite text reaches the end of
// their rule.
func (p *program) productive() []bool {
	good := make([]bool, len(p.states))
	users := make([][]int32, len(p.states)) // states to look at again when one turns good
	ruleUsers := make([][]int32, len(p.rules))
	for i, s := range p.states {
		for _, e := range s.edges {
			users[e.to] = append(users[e.to], int32(i))
		}
		for _, t := range s.next {
			users[t] = append(users[t], int32(i))
		}
		for _, r := range s.calls() {
			ruleUsers[r] = append(ruleUsers[r], int32(i))
		}
	}
	for r, ru := range p.rules {
		users[ru.start] = append(users[ru.start], ruleUsers[r]...)
	}
	check := func(i int32) bool {
		s := &p.states[i]
		switch s.kind {
		case kindEnd:
			return true
		case kindBytes:
			for _, e := range s.edges {
				if good[e.to] {
					return true
				}
			}
			return false
		case kindJump:
			for _, t := range s.next {
				if good[t] {
					return true
				}
			}
			return false
		case kindRepeat:
			if s.min == 0 {
				return good[s.next[0]]
			}
		case kindSet:
			able, needed := 0, 0
			for i := range s.set.first {
				if good[p.rules[s.set.first[i]].start] {
					able++
				} else if s.set.required>>i&1 != 0 {
					needed++
				}
			}
			if e := s.set.extra; e >= 0 && good[p.rules[e].start] {
				able = math.MaxInt32
			}
			return good[s.next[0]] && needed == 0 && able >= int(s.min)
		}
		return good[s.next[0]] && good[p.rules[s.rule].start]
	}
	good[endState] = true
	work := []int32{endState}
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		for _, u := range users[i] {
			if !good[u] && check(u) {
				good[u] = true
				work = append(work, u)
			}
		}
	}
	return good
}

// leftRecursive reports whether a rule can call itself before reading a byte,
// which would never end.
func (p *program) leftRecursive(good []bool) bool {
	nullable := p.nullable()
	// first lists the rules a rule may call before it reads anything.
	first := make([][]int32, len(p.rules))
	for r := range p.rules {
		seen := map[int32]bool{}
		stack := []int32{p.rules[r].start}
		for len(stack) > 0 {
			i := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if seen[i] || !good[i] {
				continue
			}
			seen[i] = true
			s := &p.states[i]
			switch s.kind {
			case kindJump:
				stack = append(stack, s.next...)
			case kindCall, kindRepeat, kindSet:
				first[r] = append(first[r], s.calls()...)
				if s.skips(nullable) {
					stack = append(stack, s.next...)
				}
			}
		}
	}
	const (
		white = iota
		grey
		black
	)
	color := make([]uint8, len(p.rules))
	type frame struct{ rule, i int32 }
	for r := range p.rules {
		if color[r] != white {
			continue
		}
		color[r] = grey
		stack := []frame{{int32(r), 0}}
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if int(f.i) == len(first[f.rule]) {
				color[f.rule] = black
				stack = stack[:len(stack)-1]
				continue
			}
			next := first[f.rule][f.i]
			f.i++
			switch color[next] {
			case grey:
				return true
			case white:
				color[next] = grey
				stack = append(stack, frame{next, 0})
			}
		}
	}
	return false
}

// nullable finds the rules that match the empty text.
func (p *program) nullable() []bool {
	null := make([]bool, len(p.rules))
	for changed := true; changed; {
		changed = false
		for r := range p.rules {
			if null[r] {
				continue
			}
			seen := map[int32]bool{}
			stack := []int32{p.rules[r].start}
			for len(stack) > 0 && !null[r] {
				i := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				if seen[i] {
					continue
				}
				seen[i] = true
				s := &p.states[i]
				switch s.kind {
				case kindEnd:
					null[r], changed = true, true
				case kindJump:
					stack = append(stack, s.next...)
				case kindCall, kindRepeat, kindSet:
					if s.skips(null) {
						stack = append(stack, s.next...)
					}
				}
			}
		}
	}
	return null
}
