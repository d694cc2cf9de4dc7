package vec

import "sync"

// Delta describes one V head of a gated delta rule over a few tokens. All
// strides are in elements and lead from one token to the next; the slices start
// at the head's values of the first token.
//
// Each value v has a state s of DK numbers, and the values are independent. First the
// pending tokens, accepted earlier and read from the tape, are applied:
//
//	s = s*PG[t]; s = s + PD[t][v]*PK[t]
//
// then the new ones:
//
//	d = Beta[t]*(V[t][v] - G[t]*(s.K[t]))
//	O[t][v] = Scale*(G[t]*(s.Q[t]) + d*(Q[t].K[t]))
//	s = s*G[t]; s = s + d*K[t]
//
// O is the new state read with Q, computed from the old one, so that the state of the last token need
// not be made. d goes to DOut, the tape of these tokens. A later call with that tape as
// pending tokens moves the state by exactly the bits this call did.
type Delta struct {
	DK, DV int
	Scale  float32
	// State is in tiles of 32 values (the last one may be narrower), each [DK][values].
	State []float32

	NPend    int
	PK       []float32 // [NPend][DK]
	PKStride int
	PD       []float32 // [NPend][DV]
	PDStride int
	PG       []float32 // [NPend], decay factors (not their logarithms)
	PGStride int

	N        int
	Q, K     []float32 // [N][DK]
	QKStride int
	V        []float32 // [N][DV]
	VStride  int
	Beta, G  []float32 // [N], G are decay factors
	BGStride int
	DOut     []float32 // [N][DV], may be nil when no tape is wanted
	DStride  int
	O        []float32 // [N][DV]
	OStride  int

	// Store is the number of tokens, pending and new together, whose effect is
	// written back to State: NPend (the new tokens stay uncommitted) or NPend+N.
	Store int
}

// check panics when a slice is too short, so that the assembly may trust it.
func (a *Delta) check() {
	if a.DK <= 0 || a.DV <= 0 || a.NPend < 0 || a.N < 0 {
		panic("vec: delta rule with a negative size")
	}
	if a.Store != a.NPend && a.Store != a.NPend+a.N {
		panic("vec: delta rule must store after the pending or after all tokens")
	}
	_ = a.State[:a.DV*a.DK]
	if t := a.NPend - 1; t >= 0 {
		_, _, _ = a.PK[t*a.PKStride:][:a.DK], a.PD[t*a.PDStride:][:a.DV], a.PG[t*a.PGStride]
	}
	if t := a.N - 1; t >= 0 {
		_, _ = a.Q[t*a.QKStride:][:a.DK], a.K[t*a.QKStride:][:a.DK]
		_, _ = a.V[t*a.VStride:][:a.DV], a.O[t*a.OStride:][:a.DV]
		_, _ = a.Beta[t*a.BGStride], a.G[t*a.BGStride]
		if a.DOut != nil {
			_ = a.DOut[t*a.DStride:][:a.DV]
		}
	}
}

// deltaLanes is the number of values in a tile of the state.
const deltaLanes = 32

// deltaToken is a token of one head as the kernels see it, which know the offsets. A pending token has
// no q.
type deltaToken struct {
	k, q, v, d, o      []float32
	g, beta, scale, qk float32
}

// deltaHead is working memory for one head.
type deltaHead struct {
	toks []deltaToken
	mem  []float32

	// A tree as chains: how many children a token has, which chain it is in, the chains, and the tokens chain by chain.
	kids, chain []int32
	chains      []deltaPath
	order       []int32
}

// deltaPath is a chain of tokens inside a tree: all but the last have one child. States are numbered: 0 is the
// one before the tree, 1 is of no further use, the others are kept for the children of one token.
type deltaPath struct {
	n        int32
	from, to int32 // states
}

var deltaHeads = sync.Pool{New: func() any { return new(deltaHead) }}

// prepare lists the tokens of a, pending ones first, then the others in the given order (nil: as they come), and
// makes room for a number of tiles.
func (h *deltaHead) prepare(a *Delta, order []int32, tiles int) {
	if n := a.DV + tiles*deltaLanes*a.DK; cap(h.mem) < n {
		h.mem = make([]float32, n)
	}
	h.mem = h.mem[:cap(h.mem)]
	h.toks = h.toks[:0]
	for t := range a.NPend {
		h.toks = append(h.toks, deltaToken{k: a.PK[t*a.PKStride:][:a.DK], d: a.PD[t*a.PDStride:][:a.DV],
			g: a.PG[t*a.PGStride]})
	}
	for i := range a.N {
		t := i
		if order != nil {
			t = int(order[i])
		}
		x := deltaToken{
			k: a.K[t*a.QKStride:][:a.DK], q: a.Q[t*a.QKStride:][:a.DK], v: a.V[t*a.VStride:][:a.DV], d: h.mem[:a.DV],
			o: a.O[t*a.OStride:][:a.DV],
			g: a.G[t*a.BGStride], beta: a.Beta[t*a.BGStride], scale: a.Scale,
		}
		if a.DOut != nil {
			x.d = a.DOut[t*a.DStride:][:a.DV]
		}
		x.qk = Dot(x.q, x.k)
		h.toks = append(h.toks, x)
	}
}

// tile returns the i-th tile of the working memory.
func (h *deltaHead) tile(a *Delta, i int) []float32 {
	size := deltaLanes * a.DK
	return h.mem[a.DV+i*size:][:size]
}

// done gives the memory back without keeping the caller's alive.
func (h *deltaHead) done() {
	clear(h.toks)
	deltaHeads.Put(h)
}

// DeltaRule runs the recurrence for all values of one head.
func DeltaRule(a *Delta) {
	a.check()
	if a.NPend+a.N == 0 {
		return
	}
	h := deltaHeads.Get().(*deltaHead)
	defer h.done()
	h.prepare(a, nil, 1)
	store := a.Store > a.NPend
	for v := 0; v < a.DV; v += deltaLanes {
		w := min(deltaLanes, a.DV-v)
		src := a.State[v*a.DK:][:w*a.DK]
		dst := src
		if !store {
			dst = h.tile(a, 0)[:w*a.DK]
		}
		deltaChain(h.toks, src, dst, v, w, store)
	}
}

// deltaChainGeneric runs tokens on a tile, the w values from v on. Pending ones change src in place, new ones
// write dst, which may be src; the last new one is applied only if last is set.
func deltaChainGeneric(toks []deltaToken, src, dst []float32, v, w int, last bool) {
	for i := range toks {
		t := &toks[i]
		d, to := t.d[v:][:w], src
		if t.q != nil {
			to = dst
			var sk, sq [deltaLanes]float32
			for i, k := range t.k {
				q := t.q[i]
				for j, s := range src[i*w:][:w] {
					sk[j] += float32(k * s)
					sq[j] += float32(q * s)
				}
			}
			for j := range d {
				d[j] = t.beta * (t.v[v+j] - float32(t.g*sk[j]))
				t.o[v+j] = t.scale * (float32(t.g*sq[j]) + float32(d[j]*t.qk))
			}
			if i == len(toks)-1 && !last {
				return
			}
		}
		for i, k := range t.k {
			from, row := src[i*w:][:w], to[i*w:][:w]
			for j, d := range d {
				row[j] = float32(from[j]*t.g) + float32(d*k)
			}
		}
		src = to
	}
}

// DeltaTree is [DeltaRule] for new tokens that form a tree: the parent of token
// t is token parent[t] < t, or the last pending token when parent[t] is -1. The
// state is stored after the pending tokens (Store must be NPend). Every token has
// the bits that the chain of its ancestors gives it, since it is computed by the
// same operations from the state its parent left behind.
func DeltaTree(a *Delta, parent []int32) {
	if a.Store != a.NPend {
		panic("vec: delta rule on a tree stores after the pending tokens")
	}
	a.check()
	if a.N == 0 {
		DeltaRule(a)
		return
	}
	h := deltaHeads.Get().(*deltaHead)
	defer h.done()
	kept := h.split(parent[:a.N])
	h.prepare(a, h.order, kept)
	for v := 0; v < a.DV; v += deltaLanes {
		w := min(deltaLanes, a.DV-v)
		state := func(i int32) []float32 {
			if i == 0 {
				return a.State[v*a.DK:][:w*a.DK]
			}
			return h.tile(a, int(i-1))[:w*a.DK]
		}
		first, end := 0, a.NPend // the first chain begins with the pending tokens
		for _, c := range h.chains {
			end += int(c.n)
			deltaChain(h.toks[first:end], state(c.from), state(c.to), v, w, c.to > 1)
			first = end
		}
	}
}

// split takes a tree apart into chains, each after the one it grows from, and returns the number of states they
// need beside the stored one.
func (h *deltaHead) split(parent []int32) (states int) {
	n := len(parent)
	if cap(h.kids) < n {
		h.kids, h.chain = make([]int32, n), make([]int32, n)
	}
	h.kids, h.chain, h.chains = h.kids[:n], h.chain[:n], h.chains[:0]
	clear(h.kids)
	for t, p := range parent {
		if int(p) >= t {
			panic("vec: a tree lists parents before children")
		}
		if p >= 0 {
			h.kids[p]++
		}
	}
	states = 1
	for t, p := range parent {
		if p >= 0 && h.kids[p] == 1 {
			h.chain[t] = h.chain[p]
		} else {
			from := int32(0)
			if p >= 0 {
				from = h.chains[h.chain[p]].to
			}
			h.chain[t] = int32(len(h.chains))
			h.chains = append(h.chains, deltaPath{from: from, to: 1})
		}
		c := &h.chains[h.chain[t]]
		c.n++
		if h.kids[t] > 1 {
			states++
			c.to = int32(states)
		}
	}
	h.order = h.order[:0]
	for i := range h.chains {
		for t, c := range h.chain {
			if int(c) == i {
				h.order = append(h.order, int32(t))
			}
		}
	}
	return states
}
