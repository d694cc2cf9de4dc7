package cpu

import (
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
)

// candidatePart is how many columns a worker looks at in one go: they stay in its first-level cache.
const candidatePart = 1 << 13

// maxGroup is the most columns that share a maximum. Fewer cost more calls, more let more columns in that are not among
// the MinCandidates largest.
const maxGroup = 128

// Candidates finds the largest values of every row. The MinCandidates-th largest of the maxima of small groups of
// columns is a bound that at least as many columns reach, and hardly more; only groups that reach it are searched.
func (b *Backend) Candidates(dst backend.Ints, x backend.Tensor, total bool) {
	to := dst.(ints)
	size := max(1, min(maxGroup, x.Cols/(8*backend.MinCandidates)))
	groups := (x.Cols + size - 1) / size
	perPart := candidatePart / size // groups
	parts := (groups + perPart - 1) / perPart
	if need := x.Rows * (groups + parts); cap(b.chosen) < need {
		b.chosen = make([]float32, need)
	}
	maxima := b.chosen[:x.Rows*groups]
	tops := b.chosen[x.Rows*groups:][:x.Rows*parts] // of parts; NaN where a value is not finite
	part := func(i int) (v, most []float32) {
		r, first := i/parts, i%parts*perPart
		n := min(perPart, groups-first)
		return row(x, r)[first*size : min(x.Cols, (first+n)*size)], maxima[r*groups+first:][:n]
	}
	b.rowsOf(x.Rows*parts, candidatePart, func(i int) {
		v, most := part(i)
		for g := range most {
			most[g] = vec.Max(v[g*size : min(len(v), (g+1)*size)])
		}
		tops[i] = vec.Max(most)
		if sum := vec.SumSquares(v); math.IsNaN(sum) || math.IsInf(sum, 0) {
			tops[i] = float32(math.NaN())
		}
	})
	var sums []uint64
	if total {
		sums = make([]uint64, x.Rows*parts)
		b.rowsOf(x.Rows*parts, 8*candidatePart, func(i int) {
			v, _ := part(i)
			r := i / parts
			sums[i] = vec.WeightSum(v, slices.Max(tops[r*parts:][:parts]))
		})
	}
	b.rowsOf(x.Rows, candidatePart, func(r int) {
		c := backend.Candidates(to[r*backend.CandidateInts:][:backend.CandidateInts])
		all := uint64(0)
		if total {
			for _, s := range sums[r*parts:][:parts] {
				all += s
			}
		}
		if slices.ContainsFunc(tops[r*parts:][:parts], func(t float32) bool { return t != t }) {
			c.Set(-1, 0, 0)
			return
		}
		chooseCandidates(c, row(x, r), maxima[r*groups:][:groups], size, all)
	})
}

// chooseCandidates fills in the candidates of a row from the maxima of its groups.
func chooseCandidates(c backend.Candidates, v, maxima []float32, size int, total uint64) {
	bound := float32(math.Inf(-1))
	if len(v) > backend.MaxCandidates {
		bound = nthLargest(maxima, backend.MinCandidates)
	}
	var keys [backend.MaxCandidates]uint64
	n := 0
	for g, m := range maxima {
		if m < bound {
			continue
		}
		from := g * size
		for i, x := range v[from:min(len(v), from+size)] {
			if x >= bound {
				if n < len(keys) {
					keys[n] = candidateKey(x, from+i)
				}
				n++
			}
		}
	}
	if c.Set(n, bound, total); n > len(keys) {
		return
	}
	slices.Sort(keys[:n])
	for i, k := range keys[:n] {
		at := 4 + n - 1 - i
		c[at] = int32(^uint32(k))
		c[at+backend.MaxCandidates] = int32(math.Float32bits(v[^uint32(k)]))
	}
}

// candidateKey is larger for a larger value, then for a lower column.
func candidateKey(x float32, column int) uint64 {
	b := math.Float32bits(x + 0) // -0 becomes 0
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(^uint32(column))
}

// nthLargest is the n-th largest of v, by a heap of the n largest so far whose root is the least of them.
func nthLargest(v []float32, n int) float32 {
	heap := slices.Clone(v[:n])
	down := func(i int) {
		for {
			k := 2*i + 1
			if k >= n {
				return
			}
			if k+1 < n && heap[k+1] < heap[k] {
				k++
			}
			if heap[i] <= heap[k] {
				return
			}
			heap[i], heap[k] = heap[k], heap[i]
			i = k
		}
	}
	for i := n/2 - 1; i >= 0; i-- {
		down(i)
	}
	for _, x := range v[n:] {
		if x > heap[0] {
			heap[0] = x
			down(0)
		}
	}
	return heap[0]
}
