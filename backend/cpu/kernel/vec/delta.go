package vec

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
//	d = Beta[t]*(V[t][v] - G[t]*(s.K[t])); s = s*G[t]; s = s + d*K[t]; O[t][v] = Scale*(s.Q[t])
//
// d goes to DOut, the tape of these tokens. A later call with that tape as
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

// DeltaRule runs the recurrence for all values of one head.
func DeltaRule(a *Delta) {
	a.check()
	b := getScratch(deltaLanes * (a.DK + 1))
	defer scratch.Put(b)
	for v := 0; v < a.DV; v += deltaLanes {
		deltaTile(a, v, *b)
	}
}

// deltaTile runs the recurrence for the tile that starts at value v. tmp has room for a tile
// and one row.
func deltaTile(a *Delta, v int, tmp []float32) {
	w := min(deltaLanes, a.DV-v)
	tile := a.State[v*a.DK:][:w*a.DK]
	for t := range a.NPend {
		deltaReplay(tile, w, a.PK[t*a.PKStride:][:a.DK], a.PD[t*a.PDStride+v:][:w], a.PG[t*a.PGStride])
	}
	src := tile
	for t := range a.N {
		dst, d := tile, tmp[w*a.DK:][:w]
		switch {
		case a.Store > a.NPend:
		case t == a.N-1:
			dst = nil // nobody needs the state after the last uncommitted token
		default:
			dst = tmp[:w*a.DK]
		}
		if a.DOut != nil {
			d = a.DOut[t*a.DStride+v:][:w]
		}
		deltaStep(src, dst, w, a.K[t*a.QKStride:][:a.DK], a.Q[t*a.QKStride:][:a.DK], a.V[t*a.VStride+v:][:w], d, a.O[t*a.OStride+v:][:w],
			[3]float32{a.G[t*a.BGStride], a.Beta[t*a.BGStride], a.Scale})
		src = dst
	}
}

func deltaReplayGeneric(s []float32, w int, k, d []float32, g float32) {
	for i, k := range k {
		row := s[i*w:][:len(d)]
		for j, d := range d {
			row[j] = float32(row[j]*g) + float32(d*k)
		}
	}
}

func deltaStepGeneric(src, dst []float32, w int, k, q, v, d, o []float32, gbs [3]float32) {
	var pred, out [deltaLanes]float32
	for i, k := range k {
		for j, s := range src[i*w:][:w] {
			pred[j] += float32(k * s)
		}
	}
	for j := range d {
		d[j] = gbs[1] * (v[j] - float32(gbs[0]*pred[j]))
	}
	for i, k := range k {
		for j, s := range src[i*w:][:w] {
			s = float32(s*gbs[0]) + float32(d[j]*k)
			if dst != nil {
				dst[i*w+j] = s
			}
			out[j] += float32(q[i] * s)
		}
	}
	for j := range o {
		o[j] = gbs[2] * out[j]
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
	n := a.N
	// keep[t] is where the state after token t is kept: 0 for tokens without children.
	var buf [64]int32
	keep := buf[:min(n, len(buf))]
	if n > len(buf) {
		keep = make([]int32, n)
	}
	kept := int32(0)
	for t, p := range parent[:n] {
		if int(p) >= t {
			panic("vec: a tree lists parents before children")
		}
		if p >= 0 && keep[p] == 0 {
			kept++
			keep[p] = kept
		}
	}
	size := deltaLanes * a.DK
	b := getScratch(int(kept)*size + deltaLanes)
	defer scratch.Put(b)
	for v := 0; v < a.DV; v += deltaLanes {
		w := min(deltaLanes, a.DV-v)
		tile := a.State[v*a.DK:][:w*a.DK]
		state := func(t int32) []float32 { return (*b)[int(keep[t]-1)*size:][:w*a.DK] }
		for t := range a.NPend {
			deltaReplay(tile, w, a.PK[t*a.PKStride:][:a.DK], a.PD[t*a.PDStride+v:][:w], a.PG[t*a.PGStride])
		}
		for t := range n {
			src, d := tile, (*b)[int(kept)*size:][:w]
			if p := parent[t]; p >= 0 {
				src = state(p)
			}
			var dst []float32
			if keep[t] > 0 {
				dst = state(int32(t))
			}
			if a.DOut != nil {
				d = a.DOut[t*a.DStride+v:][:w]
			}
			deltaStep(src, dst, w, a.K[t*a.QKStride:][:a.DK], a.Q[t*a.QKStride:][:a.DK], a.V[t*a.VStride+v:][:w], d, a.O[t*a.OStride+v:][:w],
				[3]float32{a.G[t*a.BGStride], a.Beta[t*a.BGStride], a.Scale})
		}
	}
}
