package grammar

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// machine runs a program. Stacks and configurations are interned, so that a
// configuration is a number and stepping from one to the next is a table
// lookup after the first time. It serves one matcher and its forks.
type machine struct {
	p *program

	frames   []frame
	frameIDs map[frame]int32

	configs   []config
	configIDs map[string]int32
	masks     map[int32]bitset
	maskOrder []int32 // oldest first

	work meter
	kept int // frames and configurations when the tables were last renewed

	// scratch of closure
	todo     []head // states to visit
	heads    []head
	seen     map[head]bool
	seenMost int
	complete bool
	pops     bool
	key      []byte

	path []int32 // scratch of walk: configurations by depth
}

// frame is a stack entry: where to go on after the current rule. For a
// repetition it counts what is still needed and allowed.
type frame struct {
	state      int32  // to go on at, or the kindRepeat state that counts
	parent     int32  // stack below; noStack at the bottom
	counts     bool   // a round of a repetition, not a call
	need, left int32  // of a repetition, this round included; left < 0: no bound
	used       uint64 // of a set: its members so far
	any        bool   // of a set: it has begun, if only with something extra
}

const (
	noStack   = int32(-1) // the root rule: its end completes the text
	anyStack  = int32(-2) // unknown surroundings: its end is recorded as a pop
	dead      = int32(-1)
	unknown   = int32(-2)
	maxMasks  = 48
	maxTables = 20_000 // new configurations and frames before the tables are renewed
)

// head is a state that reads a byte, with the stack under it.
type head struct {
	state, stack int32
}

type config struct {
	heads    []head
	complete bool // the text may end here
	pops     bool // with anyStack: the rule may end here
	clip     int32
	next     *[256]int32
}

func newMachine(p *program) *machine {
	return &machine{p: p, frameIDs: map[frame]int32{}, configIDs: map[string]int32{}, masks: map[int32]bitset{},
		seen: map[head]bool{}}
}

func (m *machine) push(f frame) int32 {
	if id, ok := m.frameIDs[f]; ok {
		return id
	}
	id := int32(len(m.frames))
	m.frames = append(m.frames, f)
	m.frameIDs[f] = id
	m.work.keep(costFrame)
	return id
}

// visit adds a state to those that closure looks at.
func (m *machine) visit(s, stack int32) { m.todo = append(m.todo, head{s, stack}) }

// closure adds to the heads what is reachable from the states to visit without reading. Programs have no left
// recursion, so this ends. It keeps a list because ends of rules may follow each other as deep as a text is nested,
// which is more than a stack of calls holds.
func (m *machine) closure() {
	for len(m.todo) > 0 {
		h := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if len(m.seen) > maxClosure {
			m.work.stopped = ErrWork
		}
		if !m.work.charge(1) {
			m.todo = m.todo[:0]
			return
		}
		if !m.seen[h] {
			m.seen[h] = true
			m.look(h)
		}
	}
}

// look finds what a state leads to without reading.
func (m *machine) look(h head) {
	s, stack := h.state, h.stack
	st := &m.p.states[s]
	switch st.kind {
	case kindBytes:
		if len(st.edges) > 0 {
			m.heads = append(m.heads, h)
		}
	case kindJump:
		for _, t := range st.next {
			m.visit(t, stack)
		}
	case kindCall:
		// A call in last place needs no way back, which keeps stacks short.
		if st.next[0] != endState {
			stack = m.push(frame{state: st.next[0], parent: stack})
		}
		m.visit(m.p.rules[st.rule].start, stack)
	case kindRepeat:
		m.repeat(s, st, stack, st.min, st.max)
	case kindSet:
		m.members(s, st, stack, 0, false)
	case kindEnd:
		m.pop(stack)
	}
}

// members goes on with a set of which some members were used.
func (m *machine) members(s int32, st *state, stack int32, used uint64, begun bool) {
	n := int32(bits.OnesCount64(used))
	if used&st.set.required == st.set.required && n >= st.min {
		m.visit(st.next[0], stack)
	}
	if st.max >= 0 && n >= st.max {
		return
	}
	rules, extra := st.set.first, st.set.extra
	if begun {
		rules, extra = st.set.later, st.set.extraLater
	}
	for i, r := range rules {
		if bit := uint64(1) << i; used&bit == 0 {
			m.visit(m.p.rules[r].start, m.push(frame{state: s, parent: stack, used: used | bit, any: true}))
		}
	}
	if extra >= 0 {
		m.visit(m.p.rules[extra].start, m.push(frame{state: s, parent: stack, used: used, any: true}))
	}
}

// repeat goes on with a repetition of which need to left more rounds are due.
func (m *machine) repeat(s int32, st *state, stack, need, left int32) {
	if need <= 0 {
		m.visit(st.next[0], stack)
	}
	if left != 0 {
		f := m.push(frame{state: s, parent: stack, counts: true, need: max(need, 0), left: left})
		m.visit(m.p.rules[st.rule].start, f)
	}
}

// pop returns from a rule.
func (m *machine) pop(stack int32) {
	switch stack {
	case noStack:
		m.complete = true
		return
	case anyStack:
		m.pops = true
		return
	}
	f := m.frames[stack]
	if f.any {
		m.members(f.state, &m.p.states[f.state], f.parent, f.used, true)
		return
	}
	if !f.counts {
		m.visit(f.state, f.parent)
		return
	}
	left := f.left
	if left > 0 {
		left--
	}
	m.repeat(f.state, &m.p.states[f.state], f.parent, f.need-1, left)
}

// begin prepares the scratch for a new closure.
func (m *machine) begin() {
	m.heads = m.heads[:0]
	if clear(m.seen); m.seenMost > 1<<10 { // clearing takes as long as the largest closure did
		m.seen, m.seenMost = map[head]bool{}, 0
	}
	m.complete, m.pops = false, false
}

// intern makes a configuration of what is to be visited. It is dead when the work limit was reached.
func (m *machine) intern() int32 {
	m.closure()
	m.seenMost = max(m.seenMost, len(m.seen))
	if !m.work.charge(len(m.heads)) || len(m.heads) == 0 && !m.complete && !m.pops {
		return dead
	}
	slices.SortFunc(m.heads, func(a, b head) int {
		if a.state != b.state {
			return int(a.state) - int(b.state)
		}
		return int(a.stack) - int(b.stack)
	})
	k := m.key[:0]
	flags := byte(0)
	if m.complete {
		flags |= 1
	}
	if m.pops {
		flags |= 2
	}
	k = append(k, flags)
	for _, h := range m.heads {
		k = binary.LittleEndian.AppendUint32(k, uint32(h.state))
		k = binary.LittleEndian.AppendUint32(k, uint32(h.stack))
	}
	m.key = k
	if id, ok := m.configIDs[string(k)]; ok {
		return id
	}
	id := int32(len(m.configs))
	m.configs = append(m.configs, config{heads: slices.Clone(m.heads), complete: m.complete, pops: m.pops, clip: unknown})
	m.configIDs[string(k)] = id
	m.work.keep(costConfig + costHead*len(m.heads))
	return id
}

// start is the configuration before the first byte of a rule.
func (m *machine) start(rule, stack int32) int32 {
	m.begin()
	m.visit(m.p.rules[rule].start, stack)
	return m.intern()
}

// from is the configuration with one head.
func (m *machine) from(h head) int32 {
	m.begin()
	m.heads = append(m.heads, h)
	return m.intern()
}

// after is the configuration when the rule on top of the stack ends.
func (m *machine) after(stack int32) int32 {
	m.begin()
	m.pop(stack)
	return m.intern()
}

// step reads a byte. Only walks fill the tables: they come back to the same
// configurations, the output itself mostly does not.
func (m *machine) step(c int32, b byte) int32 {
	if c < 0 {
		return dead
	}
	if t := m.configs[c].next; t != nil && t[b] != unknown {
		return t[b]
	}
	m.begin()
	if !m.work.charge(len(m.configs[c].heads)) {
		return dead
	}
	for _, h := range m.configs[c].heads {
		for _, e := range m.p.states[h.state].edges {
			if b >= e.lo && b <= e.hi {
				m.visit(e.to, h.stack)
			}
		}
	}
	return m.intern()
}

// tableStep is step with a table to remember it.
func (m *machine) tableStep(c int32, b byte) int32 {
	t := m.configs[c].next
	if t == nil {
		t = new([256]int32)
		for i := range t {
			t[i] = unknown
		}
		m.configs[c].next = t
		m.work.keep(costTable)
	}
	n := t[b]
	if n == unknown {
		before := m.work.attempt
		n = m.step(c, b)
		if m.work.stopped != nil {
			return dead
		}
		t[b] = n
		m.work.remember(before)
	}
	return n
}

// clipped is a configuration with the same future for the next n bytes in
// which no counter is larger than n. Far from their bounds, counted strings
// and lists thus share one mask.
func (m *machine) clipped(c int32, n int32) int32 {
	if !m.p.counted || c < 0 {
		return c
	}
	if id := m.configs[c].clip; id != unknown {
		return id
	}
	heads := slices.Clone(m.configs[c].heads)
	for i := range heads {
		if heads[i].stack = m.clipStack(heads[i].stack, n); m.work.stopped != nil {
			return dead
		}
	}
	m.begin()
	m.heads = append(m.heads, heads...)
	m.complete, m.pops = m.configs[c].complete, m.configs[c].pops
	slices.SortFunc(m.heads, func(a, b head) int {
		if a.state != b.state {
			return int(a.state) - int(b.state)
		}
		return int(a.stack) - int(b.stack)
	})
	m.heads = slices.Compact(m.heads)
	id := m.intern()
	if m.work.stopped != nil {
		return dead
	}
	m.configs[c].clip = id
	m.configs[id].clip = id
	return id
}

func (m *machine) clipStack(stack, n int32) int32 {
	if stack < 0 {
		return stack
	}
	// Recursion would be as deep as the text is nested; collect the frames first.
	var path []int32
	for s := stack; s >= 0; s = m.frames[s].parent {
		path = append(path, s)
	}
	m.work.charge(len(path))
	out := m.frames[path[len(path)-1]].parent
	for i := len(path) - 1; i >= 0; i-- {
		f := m.frames[path[i]]
		f.parent = out
		f.need, f.left = min(f.need, n), min(f.left, n)
		out = m.push(f)
	}
	return out
}

// renew returns a machine with fresh tables when these have grown large, and
// the configuration in it.
func (m *machine) renew(c int32) (*machine, int32) {
	if len(m.configs)+len(m.frames) < m.kept+maxTables && m.work.grown < maxGrown || c < 0 {
		return m, c
	}
	fresh := newMachine(m.p)
	fresh.work.free = true // copying is no work of the token that happened to come then
	old := m.configs[c]
	copied := map[int32]int32{noStack: noStack, anyStack: anyStack}
	var copyStack func(s int32) int32
	copyStack = func(s int32) int32 {
		var path []int32
		for {
			if _, ok := copied[s]; ok {
				break
			}
			path = append(path, s)
			s = m.frames[s].parent
		}
		out := copied[s]
		for i := len(path) - 1; i >= 0; i-- {
			f := m.frames[path[i]]
			f.parent = out
			out = fresh.push(f)
			copied[path[i]] = out
		}
		return out
	}
	fresh.begin()
	for _, h := range old.heads {
		fresh.heads = append(fresh.heads, head{h.state, copyStack(h.stack)})
	}
	fresh.complete, fresh.pops = old.complete, old.pops
	c = fresh.intern()
	fresh.kept, fresh.work = len(fresh.configs)+len(fresh.frames), m.work
	fresh.work.grown = 0
	return fresh, c
}

// base is what a state allows whatever stack is under it.
type base struct {
	allowed bitset
	exits   []int32 // trie nodes where the state's rule may end
	work    int     // that finding this took
}

// walk marks the tokens below node that a configuration reached there allows.
func (m *machine) walk(v *Vocab, node, c int32, out bitset, exit func(node int32)) {
	if len(m.path) <= v.maxLen {
		m.path = make([]int32, v.maxLen+1)
	}
	confs := m.path
	confs[v.depth[node]] = c
	for i, end := node+1, v.end[node]; i < end; {
		d := v.depth[i]
		if !m.work.charge(1) {
			return
		}
		n := m.tableStep(confs[d-1], v.char[i])
		if n < 0 {
			i = v.end[i]
			continue
		}
		conf := &m.configs[n]
		if conf.pops && exit != nil {
			exit(i)
			if len(conf.heads) == 0 {
				i = v.end[i]
				continue
			}
		}
		v.allow(out, i)
		if len(conf.heads) == 0 {
			i = v.end[i]
			continue
		}
		confs[d] = n
		i++
	}
}

// mask returns the tokens a configuration allows, or nil when the work limit was reached. bases finds or computes the
// base of a costly state.
func (m *machine) mask(v *Vocab, c int32, bases func(state int32) *base) bitset {
	if c = m.clipped(c, int32(v.maxLen)+1); c < 0 {
		return nil
	}
	if b, ok := m.masks[c]; ok {
		return b
	}
	out := v.newBitset()
	var light []head
	for _, h := range slices.Clone(m.configs[c].heads) {
		if !m.p.states[h.state].heavy {
			light = append(light, h)
			continue
		}
		if m.countedChar(h) {
			m.maskChars(v, h, out)
			continue
		}
		b := bases(h.state)
		if b == nil || !m.work.charge(len(out)) {
			return nil
		}
		for i, w := range b.allowed {
			out[i] |= w
		}
		next := m.after(h.stack)
		for _, n := range b.exits {
			if next == dead || !m.work.charge(1) {
				break
			}
			v.allow(out, n)
			if v.end[n] > n+1 && len(m.configs[next].heads) > 0 {
				m.walk(v, n, next, out, nil)
			}
		}
	}
	if len(light) > 0 {
		m.begin()
		m.heads = append(m.heads, light...)
		if c := m.intern(); c >= 0 {
			m.walk(v, 0, c, out, nil)
		}
	}
	if m.work.stopped != nil {
		return nil
	}
	if len(m.maskOrder) >= maxMasks {
		delete(m.masks, m.maskOrder[0])
		m.maskOrder = m.maskOrder[1:]
	}
	m.masks[c] = out
	m.maskOrder = append(m.maskOrder, c)
	return out
}

// countedChar reports whether a head is at the next character of a string
// with a length.
func (m *machine) countedChar(h head) bool {
	return h.stack >= 0 && m.frames[h.stack].counts && h.state == m.p.rules[ruleChar].start &&
		m.p.states[m.frames[h.stack].state].rule == ruleChar
}

// maskChars is mask for such a head: the tokens with as many characters as
// are left, and those that end the string after as many as are needed.
func (m *machine) maskChars(v *Vocab, h head, out bitset) {
	f := m.frames[h.stack]
	left := f.left
	if left < 0 {
		left = int32(v.maxLen)
	}
	c := v.charBase(m.p)
	if !m.work.charge(len(c.byNeed)/4 + len(c.exits)) {
		return
	}
	c.upToChars(left, out)
	m.begin()
	m.visit(m.p.states[f.state].next[0], f.parent)
	ended := m.step(m.intern(), '"')
	if ended < 0 {
		return
	}
	for _, e := range c.exits {
		if e.chars < f.need || e.chars > left || e.chars == 0 {
			continue // without a character, the closing quote is a head of its own
		}
		v.allow(out, e.node)
		if v.end[e.node] > e.node+1 && len(m.configs[ended].heads) > 0 {
			m.walk(v, e.node, ended, out, nil)
		}
	}
}

// computeBase walks the vocabulary from a state with an unknown stack. It returns nil when the limits of w are reached.
func computeBase(p *program, v *Vocab, state int32, w *meter) *base {
	m := newMachine(p)
	m.work = *w
	b := &base{allowed: v.newBitset()}
	if c := m.from(head{state, anyStack}); c >= 0 {
		m.walk(v, 0, c, b.allowed, func(n int32) { b.exits = append(b.exits, n) })
	}
	b.work = m.work.total() - w.total()
	if w.now, w.looked, w.stopped = m.work.now, m.work.looked, m.work.stopped; w.stopped != nil {
		return nil
	}
	return b
}
