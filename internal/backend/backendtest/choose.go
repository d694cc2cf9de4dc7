package backendtest

import (
	"fmt"
	"math"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/weight"
)

func choiceCases() []testCase {
	return []testCase{{"ArgMax", argMax}, {"TopK", topK}, {"Candidates", candidates}}
}

// logits are rows of every kind that a choice may meet.
func logits(row, n int) []float32 {
	v := values("logits", row, n)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	fill := func(x float32) {
		for i := range v {
			v[i] = x
		}
	}
	switch row % 11 {
	case 1: // many equal values
		for i := range v {
			v[i] = float32(math.Round(float64(v[i])))
		}
	case 2:
		fill(nan)
	case 3:
		fill(-inf)
	case 4: // all the same
		fill(3)
	case 5: // one number among NaN
		fill(nan)
		v[n*2/3] = -5
	case 6: // forbidden tokens, as a grammar makes them
		fill(-inf)
		v[n/2], v[n-1] = 1, 2
	case 7:
		v[0], v[n/2] = nan, nan
	case 8:
		v[n-1], v[n/3] = inf, inf
	case 9: // the best twice, far apart
		v[n-1], v[n/4] = 50, 50
	case 10: // both zeros are equal
		for i := range v {
			v[i] = float32(math.Copysign(0, float64(i%2)-0.5))
		}
	}
	return v
}

const logitKinds = 11

func argMax(s *suite) {
	k := s.device()
	for _, cols := range []int{1, 7, 64, 257, 5000, s.BigRow} {
		rows := s.most()
		if cols > 1000 {
			rows = logitKinds
		}
		batches := append([][]int{upTo(rows)}, s.batches(rows)...)
		if cols > 1000 {
			batches = batches[:min(4, len(batches))]
		}
		for v, batch := range batches {
			k.layout = layouts[v%len(layouts)]
			k.argMax(batch, cols)
		}
	}
}

func (k *kit) argMax(rows []int, cols int) {
	k.Helper()
	var x [][]float32
	for _, r := range rows {
		x = append(x, logits(r, cols))
	}
	in := k.input(x)
	ids := k.ints(slices.Repeat([]int32{-7}, len(rows)+2)...)
	k.ArgMax(ids, in.Tensor)
	k.finish()
	got := k.Ints(ids)
	for i, r := range rows {
		want := int32(-1)
		for c, v := range x[i] {
			if v == v && (want < 0 || v > x[i][want]) {
				want = int32(c)
			}
		}
		if got[i] != want {
			k.Errorf("row %d of kind %d, %d columns: id %d, want %d", r, r%logitKinds, cols, got[i], want)
		}
	}
	if got[len(rows)] != -7 || got[len(rows)+1] != -7 {
		k.Error("an id too many was written")
	}
}

func topK(s *suite) {
	k := s.device()
	few, many := logitKinds, s.most()
	for _, c := range []struct{ cols, k, rows int }{
		{64, 1, many}, {64, 8, many}, {9, 9, many}, {3000, 40, few}, {s.BigRow, 8, few},
	} {
		rows := upTo(c.rows)
		whole := k.topK(rows, c.cols, c.k)
		for i, r := range rows {
			k.bestOf(r, logits(r, c.cols), whole[i])
		}
		for v, batch := range s.batches(c.rows) {
			if c.cols > 1000 && v > 2 {
				break
			}
			k.layout = layouts[(v+1)%len(layouts)]
			for i, got := range k.topK(batch, c.cols, c.k) {
				if w := whole[batch[i]]; !slices.Equal(got.ids, w.ids) || !sameResult(got.logp, w.logp) {
					s.Errorf("row %d in the batch %v has other values than in the whole one", batch[i], batch)
				}
			}
		}
		k.layout = layouts[0]
	}
}

// best is what TopK says of a row.
type best struct {
	ids  []int32
	logp []float32
}

func (k *kit) topK(rows []int, cols, n int) []best {
	k.Helper()
	var x [][]float32
	for _, r := range rows {
		x = append(x, logits(r, cols))
	}
	in, logp := k.input(x), k.place(len(rows), n)
	in.output = true // TopK may overwrite it
	ids := k.ints(slices.Repeat([]int32{-7}, len(rows)*n+2)...)
	k.TopK(ids, logp.Tensor, in.Tensor, n)
	p := k.finish(logp)[0]
	got := k.Ints(ids)
	if got[len(rows)*n] != -7 || got[len(rows)*n+1] != -7 {
		k.Error("an id too many was written")
	}
	out := make([]best, len(rows))
	for i := range rows {
		out[i] = best{slices.Clone(got[i*n:][:n]), p[i]}
	}
	return out
}

// bestOf compares the best values of a row with the definition.
func (k *kit) bestOf(row int, v []float32, got best) {
	k.Helper()
	what := fmt.Sprintf("row %d of kind %d, %d of %d", row, row%logitKinds, len(got.ids), len(v))
	o := order(v)
	numbers := len(o)
	for len(o) < len(got.ids) {
		o = append(o, -1)
	}
	if o = o[:len(got.ids)]; !slices.Equal(got.ids, o) {
		k.Errorf("%s: ids %v, want %v", what, got.ids, o)
		return
	}
	if numbers < len(v) || math.IsInf(float64(v[o[0]]), 0) {
		return // NaN or an infinite best value: probabilities mean nothing
	}
	m, sum := float64(v[o[0]]), 0.0
	for _, x := range v {
		sum += math.Exp(float64(x) - m)
	}
	for i, id := range o {
		want := float64(v[id]) - m - math.Log(sum)
		if g := float64(got.logp[i]); !(math.Abs(g-want) <= 2e-6*max(1, math.Abs(want), math.Abs(m))) && !(g == want) {
			k.Errorf("%s: log-probability %d is %v, want %v", what, i, g, want)
			return
		}
	}
}

// candidates: a row's candidates are its largest values, in order, at least MinCandidates of them where values differ;
// nothing else reaches the bound; the weight is that of the processor, bit for bit.
func candidates(s *suite) {
	k := s.device()
	for _, cols := range []int{1, 7, 64, 257, 511, 512, 513, 1021, 5000, 8192, s.BigRow} {
		rows := upTo(logitKinds)
		batches := [][]int{rows, {0}, {9, 0, 1}}
		for v, batch := range batches {
			k.layout = layouts[v%len(layouts)]
			k.candidates(batch, cols, v%2 == 0)
		}
	}
	k.layout = layouts[0]
}

func (k *kit) candidates(rows []int, cols int, total bool) {
	k.Helper()
	var x [][]float32
	for _, r := range rows {
		x = append(x, logits(r, cols))
	}
	in := k.input(x)
	const each = backend.CandidateInts
	ids := k.ints(slices.Repeat([]int32{-7}, len(rows)*each+2)...)
	k.Candidates(ids, in.Tensor, total)
	k.finish()
	got := k.Ints(ids)
	if got[len(rows)*each] != -7 || got[len(rows)*each+1] != -7 {
		k.Error("an integer too many was written")
	}
	for i, r := range rows {
		k.candidatesOf(fmt.Sprintf("row %d of kind %d, %d columns", r, r%logitKinds, cols), x[i], got[i*each:][:each], total)
	}
}

func (k *kit) candidatesOf(what string, v []float32, c backend.Candidates, total bool) {
	k.Helper()
	finite := !slices.ContainsFunc(v, func(x float32) bool { return x-x != 0 })
	if !finite {
		if c.Len() != 0 {
			k.Errorf("%s: %d candidates of values that are not finite", what, c.Len())
		}
		return
	}
	o := order(v)
	reach := 0 // values that reach the bound
	for _, x := range v {
		if x >= c.Bound() {
			reach++
		}
	}
	switch {
	case reach > backend.MaxCandidates:
		if c.Len() != 0 {
			k.Errorf("%s: %d candidates where %d values reach the bound", what, c.Len(), reach)
		}
	case c.Len() != reach:
		k.Errorf("%s: %d candidates where %d values reach the bound %g", what, c.Len(), reach, c.Bound())
	case reach < min(len(v), backend.MinCandidates):
		k.Errorf("%s: only %d candidates", what, reach)
	case len(v) <= backend.MaxCandidates && !math.IsInf(float64(c.Bound()), -1):
		k.Errorf("%s: the bound is %g where there is room for all", what, c.Bound())
	case !slices.Equal(c.IDs(), o[:reach]):
		k.Errorf("%s: ids %v, want %v", what, c.IDs(), o[:reach])
	default:
		for j, id := range c.IDs() {
			if g := math.Float32frombits(uint32(c.Logits()[j])); g != v[id] {
				k.Errorf("%s: value %d is %g, want %g", what, j, g, v[id])
				break
			}
		}
	}
	want := uint64(0)
	if total {
		want = weight.Sum(v, v[o[0]])
	}
	if c.Total() != want {
		k.Errorf("%s: weight %d, want %d", what, c.Total(), want)
	}
}
