package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// deltaCase holds the inputs of one head for a number of tokens.
type deltaCase struct {
	dk, dv, n int
	qk, v, o  int // strides
	q, k, val []float32
	beta, g   []float32
	state     []float32
}

func newDeltaCase(r *rand.Rand, dk, dv, n int) *deltaCase {
	c := &deltaCase{dk: dk, dv: dv, n: n, qk: dk + 3, v: dv + 5, o: dv + 2}
	c.q, c.k, c.val = normal(r, n*c.qk), normal(r, n*c.qk), normal(r, n*c.v)
	c.state = normal(r, dk*dv)
	for t := range n {
		for _, x := range [][]float32{c.q, c.k} {
			L2Norm(x[t*c.qk:][:dk], x[t*c.qk:][:dk], 1e-6)
		}
		l := float32(-2 * r.Float64() * r.Float64())
		c.g = append(c.g, float32(math.Exp(float64(l))), 0)
		c.beta = append(c.beta, float32(r.Float64()), 0)
	}
	return c
}

// run processes tokens [from,to) on state, after replaying [p0,p1) from tape,
// and returns the outputs; the tape of the new tokens goes to tape.
func (c *deltaCase) run(state, tape []float32, p0, p1, from, to int, all bool) []float32 {
	o := make([]float32, (to-from)*c.o)
	a := Delta{
		DK: c.dk, DV: c.dv, Scale: 0.25, State: state,
		NPend: p1 - p0, PK: c.k[p0*c.qk:], PKStride: c.qk, PD: tape[p0*c.dv:], PDStride: c.dv, PG: c.g[2*p0:], PGStride: 2,
		N: to - from, Q: c.q[from*c.qk:], K: c.k[from*c.qk:], QKStride: c.qk, V: c.val[from*c.v:], VStride: c.v,
		Beta: c.beta[2*from:], G: c.g[2*from:], BGStride: 2,
		DOut: tape[from*c.dv:], DStride: c.dv, O: o, OStride: c.o, Store: p1 - p0,
	}
	if all {
		a.Store += a.N
	}
	DeltaRule(&a)
	return o
}

func (c *deltaCase) tape() []float32 { return make([]float32, c.n*c.dv) }

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

var deltaShapes = [][2]int{{128, 128}, {64, 64}, {256, 40}, {128, 5}, {64, 32}, {32, 16}, {100, 35}, {16, 1}, {7, 33}}

func TestDeltaRule(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(40)
		for _, sh := range deltaShapes {
			c := newDeltaCase(r, sh[0], sh[1], 9)
			s := f64s(c.state)
			state, tape := clone(c.state), c.tape()
			got := c.run(state, tape, 0, 0, 0, c.n, true)
			for tok := range c.n {
				for v := range c.dv {
					// Value v is a column of its tile.
					first := v / deltaLanes * deltaLanes
					w := min(deltaLanes, c.dv-first)
					at := func(i int) *float64 { return &s[first*c.dk+i*w+v-first] }
					k, q := c.k[tok*c.qk:], c.q[tok*c.qk:]
					var pred, o float64
					for i := range c.dk {
						*at(i) *= float64(c.g[2*tok])
						pred += *at(i) * float64(k[i])
					}
					d := float64(c.beta[2*tok]) * (float64(c.val[tok*c.v+v]) - pred)
					for i := range c.dk {
						*at(i) += d * float64(k[i])
						o += *at(i) * float64(q[i])
					}
					near(t, caseName("output ", sh, " token ", tok), got[tok*c.o+v:][:1], []float64{o * 0.25}, 0, 3e-6)
					near(t, caseName("tape ", sh, " token ", tok), tape[tok*c.dv+v:][:1], []float64{d}, 0, 6e-6)
				}
			}
			near(t, caseName("state ", sh), state, s, 0, 6e-6)
		}
	})
}

// TestDeltaReplay is the property rollback rests on: a chain run ahead without
// committing, of which some tokens are then replayed from the tape, leaves the
// bits that running just those tokens one at a time leaves.
func TestDeltaReplay(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(41)
		for _, sh := range deltaShapes {
			const n = 11
			c := newDeltaCase(r, sh[0], sh[1], n)
			// One token at a time, committed at once.
			wantTape := c.tape()
			var wantO []float32
			states := [][]float32{clone(c.state)}
			for i := range n {
				s := clone(states[i])
				wantO = append(wantO, c.run(s, wantTape, 0, 0, i, i+1, true)...)
				states = append(states, s)
			}
			// Whole chain committed at once.
			s, tape := clone(c.state), c.tape()
			sameBits(t, caseName("outputs of a batch ", sh), c.run(s, tape, 0, 0, 0, n, true), wantO)
			sameBits(t, "tape of a batch", tape, wantTape)
			sameBits(t, "state of a batch", s, states[n])

			for m := 0; m <= n; m++ {
				// Run all, commit m with the next call, which runs the rest again.
				s, tape := clone(c.state), c.tape()
				c.run(s, tape, 0, 0, 0, n, false)
				sameBits(t, "uncommitted state", s, c.state)
				o := c.run(s, tape, 0, m, m, n, false)
				sameBits(t, caseName("state after replay of ", m), s, states[m])
				sameBits(t, caseName("outputs after replay of ", m), o, wantO[m*c.o:])
				// Replay and commit everything in one go.
				s = clone(c.state)
				c.run(s, tape, 0, m, m, n, true)
				sameBits(t, caseName("state after replay of ", m, " and the rest"), s, states[n])
				// Replay in two calls.
				s = clone(c.state)
				c.run(s, tape, 0, m/2, m, m, false)
				c.run(s, tape, m/2, m, m, m, false)
				sameBits(t, caseName("state after replay of ", m, " in two calls"), s, states[m])
			}
			// Without a tape.
			s = clone(c.state)
			o := make([]float32, n*c.o)
			DeltaRule(&Delta{DK: c.dk, DV: c.dv, Scale: 0.25, State: s, N: n, Q: c.q, K: c.k, QKStride: c.qk, V: c.val,
				VStride: c.v, Beta: c.beta, G: c.g, BGStride: 2, O: o, OStride: c.o, Store: n})
			sameBits(t, "outputs without a tape", o, wantO)
			sameBits(t, "state without a tape", s, states[n])
		}
	})
}

// TestDeltaTiles checks that a tile of the state does not depend on the others, so that a head may
// be split between threads.
func TestDeltaTiles(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(42)
		for _, sh := range [][2]int{{128, 128}, {64, 70}, {16, 33}} {
			c := newDeltaCase(r, sh[0], sh[1], 6)
			s, tape := clone(c.state), c.tape()
			want := c.run(s, tape, 0, 0, 0, c.n, true)
			for v := 0; v < c.dv; v += deltaLanes {
				w := min(deltaLanes, c.dv-v)
				one := clone(c.state[v*c.dk : (v+w)*c.dk])
				o := make([]float32, c.n*w)
				DeltaRule(&Delta{DK: c.dk, DV: w, Scale: 0.25, State: one, N: c.n, Q: c.q, K: c.k, QKStride: c.qk, V: c.val[v:],
					VStride: c.v, Beta: c.beta, G: c.g, BGStride: 2, O: o, OStride: w, Store: c.n})
				sameBits(t, caseName("tile at ", v, " alone ", sh), one, s[v*c.dk:(v+w)*c.dk])
				for i := range c.n {
					sameBits(t, caseName("output of the tile at ", v, " alone ", sh), o[i*w:][:w], want[i*c.o+v:][:w])
				}
			}
		}
	})
}

// tree runs DeltaTree after replaying [0,pend) from tape. The nodes are tokens
// first.. of the case; their tape goes to d.
func (c *deltaCase) tree(state, tape []float32, pend, first int, parent []int32, d []float32) []float32 {
	n := len(parent)
	o := make([]float32, n*c.o)
	DeltaTree(&Delta{
		DK: c.dk, DV: c.dv, Scale: 0.25, State: state,
		NPend: pend, PK: c.k, PKStride: c.qk, PD: tape, PDStride: c.dv, PG: c.g, PGStride: 2,
		N: n, Q: c.q[first*c.qk:], K: c.k[first*c.qk:], QKStride: c.qk, V: c.val[first*c.v:], VStride: c.v,
		Beta: c.beta[2*first:], G: c.g[2*first:], BGStride: 2,
		DOut: d, DStride: c.dv, O: o, OStride: c.o, Store: pend,
	}, parent)
	return o
}

func TestDeltaTreeChain(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(43)
		for _, sh := range deltaShapes {
			for _, pend := range []int{0, 3} {
				const n = 20
				c := newDeltaCase(r, sh[0], sh[1], n)
				start, tape := clone(c.state), c.tape()
				c.run(start, tape, 0, 0, 0, pend, true)
				committed := clone(start)
				wantTape := clone(tape)
				want := c.run(start, wantTape, 0, 0, pend, n, true)

				parent := make([]int32, n-pend)
				for i := range parent {
					parent[i] = int32(i - 1)
				}
				s, d := clone(c.state), make([]float32, (n-pend)*c.dv)
				got := c.tree(s, tape, pend, pend, parent, d)
				sameBits(t, "committed state", s, committed)
				sameBits(t, caseName("outputs of a chain as a tree ", sh), got, want)
				sameBits(t, caseName("tape of a chain as a tree ", sh), d, wantTape[pend*c.dv:])
				// Committing the path by replay reaches the chain's state.
				all := c.tape()
				copy(all[pend*c.dv:], d)
				c.run(s, all, pend, n, n, n, false)
				sameBits(t, caseName("replayed state ", sh), s, start)
			}
		}
	})
}

// TestDeltaTreeBranches compares every node of random trees with the chain of
// its ancestors, and with itself in a smaller tree bit by bit.
func TestDeltaTreeBranches(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(44)
		for _, sh := range [][2]int{{128, 128}, {16, 5}, {12, 37}} {
			const n = 70 // more than the stack buffer of DeltaTree holds
			c := newDeltaCase(r, sh[0], sh[1], n)
			parent := make([]int32, n)
			for i := range parent {
				parent[i] = int32(r.IntN(i+1)) - 1
				if i > 3 && r.IntN(2) == 0 {
					parent[i] = int32(i - 1)
				}
			}
			d := make([]float32, n*c.dv)
			s := clone(c.state)
			got := c.tree(s, nil, 0, 0, parent, d)
			sameBits(t, "state", s, c.state)
			half := c.tree(s, nil, 0, 0, parent[:n/2], make([]float32, n*c.dv))
			for i := range n / 2 {
				sameBits(t, "outputs of a smaller tree", half[i*c.o:][:c.dv], got[i*c.o:][:c.dv])
			}
			for i := range n {
				var path []int
				for j := int32(i); j >= 0; j = parent[j] {
					path = append([]int{int(j)}, path...)
				}
				chain := clone(c.state)
				var o []float32
				tape := c.tape()
				for _, j := range path {
					o = c.run(chain, tape, 0, 0, j, j+1, true)
				}
				sameBits(t, caseName("node ", i, " against its chain ", sh), got[i*c.o:][:c.dv], o[:c.dv])
			}
		}
	})
}

func TestDeltaOdd(t *testing.T) {
	levels(t, func(t *testing.T) {
		c := newDeltaCase(newRand(45), 128, 4, 3)
		copy(c.k, odd)
		copy(c.val, odd)
		copy(c.state, odd)
		c.run(clone(c.state), c.tape(), 0, 1, 1, 3, true) // must not crash
		defer func() {
			if recover() == nil {
				t.Error("a store count between pending and all was accepted")
			}
		}()
		DeltaRule(&Delta{DK: 1, DV: 1, State: []float32{0}, NPend: 2, Store: 1})
	})
}
