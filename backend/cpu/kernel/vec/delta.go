package vec

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

// treeRows is how many rows of the state DeltaTree takes through the whole tree at a time: few
// enough that the states of its branching nodes stay in the cache.
const treeRows = 16

// DeltaTree is [DeltaRule] for new tokens that form a tree: the parent of token
// t is token parent[t] < t, or the last pending token when parent[t] is -1. The
// state is stored after the pending tokens (Store must be NPend). Every token has
// the bits that the chain of its ancestors gives it, since it is computed by the
// same operations: a run of tokens without branches is a call of the rule, and
// runs start from the state their parent left behind.
func DeltaTree(a *Delta, parent []int32) {
	if a.Store != a.NPend {
		panic("vec: delta rule on a tree stores after the pending tokens")
	}
	a.check()
	replay := *a
	replay.N = 0
	deltaRule(&replay)
	n := a.N
	if n == 0 {
		return
	}
	// at[t] is the place of the state after token t among the kept ones: 0 for tokens
	// that nobody starts a run from, 1 for the first kept state.
	var buf [64]int32
	at := buf[:min(n, len(buf))]
	if n > len(buf) {
		at = make([]int32, n)
	}
	kept := int32(0)
	for t, p := range parent[:n] {
		if int(p) >= t {
			panic("vec: a tree lists parents before children")
		}
		if p >= 0 && int(p) != t-1 && at[p] == 0 {
			kept++
			at[p] = kept
		}
	}
	size := min(treeRows, a.DV) * a.DK
	b := getScratch(int(kept+1) * size)
	defer scratch.Put(b)
	for v := 0; v < a.DV; v += treeRows {
		rows := min(treeRows, a.DV-v)
		s := (*b)[:rows*a.DK]
		run := *a
		run.DV, run.NPend, run.State = rows, 0, s
		for t := 0; t < n; t += run.N {
			switch p := parent[t]; {
			case p < 0:
				copy(s, a.State[v*a.DK:])
			case at[p] > 0:
				copy(s, (*b)[int(at[p])*size:])
			} // otherwise the run before this one ended at p and left its state in s
			run.N = 1
			for e := t; e+1 < n && int(parent[e+1]) == e && at[e] == 0; e++ {
				run.N++
			}
			run.Q, run.K, run.V = a.Q[t*a.QKStride:], a.K[t*a.QKStride:], a.V[t*a.VStride+v:]
			run.Beta, run.G = a.Beta[t*a.BGStride:], a.G[t*a.BGStride:]
			run.O = a.O[t*a.OStride+v:]
			if a.DOut != nil {
				run.DOut = a.DOut[t*a.DStride+v:]
			}
			run.Store = run.N
			deltaRule(&run)
			if k := at[t+run.N-1]; k > 0 {
				copy((*b)[int(k)*size:][:size], s)
			}
		}
	}
}
