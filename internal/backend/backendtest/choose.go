package backendtest

import (
	"fmt"
	"math"
	"slices"
)

func choiceCases() []testCase {
	return []testCase{{"ArgMax", argMax}, {"TopK", topK}}
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
