package vec

import (
	"math"

	"strobe/quant"
)

// Delta describes one V head of a gated delta rule over a few tokens. All
// strides are in elements and lead from one token to the next; the slices start
// at the head's values of the first token.
//
// Each row v of the state is independent. First the pending tokens, accepted
// earlier and read from the tape, are applied:
//
//	s = s*PG[t]; s = s + PD[t][v]*PK[t]
//
// then the new ones:
//
//	s = s*G[t]; d = Beta[t]*(V[t][v] - s.K[t]); s = s + d*K[t]; O[t][v] = Scale*(s.Q[t])
//
// d goes to DOut, the tape of these tokens. A later call with that tape as
// pending tokens moves the state by exactly the bits this call did.
type Delta struct {
	DK, DV int
	Scale  float32
	State  []float32 // [DV][DK]

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

// DeltaRule runs the recurrence for all rows of one head.
func DeltaRule(a *Delta) {
	a.check()
	deltaRule(a)
}

func deltaRuleGeneric(a *Delta) {
	b := getScratch(a.DK)
	defer scratch.Put(b)
	for v := range a.DV {
		s := a.State[v*a.DK : (v+1)*a.DK]
		for t := range a.NPend {
			g, d := a.PG[t*a.PGStride], a.PD[t*a.PDStride+v]
			for i, k := range a.PK[t*a.PKStride:][:len(s)] {
				s[i] = float32(s[i]*g) + float32(d*k)
			}
		}
		if a.Store == a.NPend && a.N > 0 {
			copy(*b, s)
			s = *b
		}
		for t := range a.N {
			k := a.K[t*a.QKStride:][:len(s)]
			g := a.G[t*a.BGStride]
			for i := range s {
				s[i] *= g
			}
			d := a.Beta[t*a.BGStride] * (a.V[t*a.VStride+v] - dotGeneric(s, k))
			for i, k := range k {
				s[i] += float32(d * k)
			}
			if a.DOut != nil {
				a.DOut[t*a.DStride+v] = d
			}
			a.O[t*a.OStride+v] = a.Scale * dotGeneric(s, a.Q[t*a.QKStride:])
		}
	}
}

// DeltaTree is [DeltaRule] for new tokens that form a tree: the parent of token
// t is token parent[t] < t, or the last pending token when parent[t] is -1. It
// needs the logarithms of the decays, logG[t*BGStride], instead of G, and
// evaluates the triangular form of the recurrence, so that the state is read
// once for all branches. The state is stored after the pending tokens (Store
// must be NPend); DOut must be given and is the tape: replaying the tokens of
// one root-to-node path commits that path. The bits of a token depend on its
// ancestors only.
func DeltaTree(a *Delta, parent []int32, logG []float32) {
	if a.Store != a.NPend {
		panic("vec: delta rule on a tree stores after the pending tokens")
	}
	n := a.N
	replay := *a
	replay.N = 0
	DeltaRule(&replay)
	if n == 0 {
		return
	}
	a.check()
	parent, _ = parent[:n], logG[(n-1)*a.BGStride]

	// O and DOut first hold S0 q and S0 k of every token.
	state := f32Bytes(a.State[:a.DV*a.DK])
	stride := 4 * a.DK
	matRows(a.DOut, a.DStride, quant.F32, state, stride, a.DK, a.K, a.QKStride, n, a.DV, 1)
	matRows(a.O, a.OStride, quant.F32, state, stride, a.DK, a.Q, a.QKStride, n, a.DV, 1)

	// Differences of L go through float64 so that long paths lose nothing.
	var lbuf [64]float64
	var pbuf [64]int32
	l, path := lbuf[:0], pbuf[:0]
	for i := range n {
		li := float64(logG[i*a.BGStride])
		if p := parent[i]; p >= 0 {
			if int(p) >= i {
				panic("vec: a tree lists parents before children")
			}
			li += l[p]
		}
		l = append(l, li)
		path = path[:0]
		for j := parent[i]; j >= 0; j = parent[j] {
			path = append(path, j)
		}

		k, q := a.K[i*a.QKStride:][:a.DK], a.Q[i*a.QKStride:][:a.DK]
		u, o := a.DOut[i*a.DStride:][:a.DV], a.O[i*a.OStride:][:a.DV]
		decay := float32(math.Exp(li))
		// u = beta * (v - decay*S0k - sum D kk u_j), o = decay*S0q + sum D kq u_j
		scale(u, u, -decay)
		scale(o, o, decay)
		for x := len(path) - 1; x >= 0; x-- { // root first
			j := int(path[x])
			kj, uj := a.K[j*a.QKStride:][:a.DK], a.DOut[j*a.DStride:][:a.DV]
			d := float32(math.Exp(li - l[j]))
			axpy(u, -d*dot(kj, k), uj)
			axpy(o, d*dot(kj, q), uj)
		}
		add(u, u, a.V[i*a.VStride:][:a.DV])
		scale(u, u, a.Beta[i*a.BGStride])
		axpy(o, dot(k, q), u)
		scale(o, o, a.Scale)
	}
}
