package backendtest

import (
	"fmt"
	"math"

	"strobe/internal/backend"
)

// prompts are parts of prompts: a beginning, one over a border of blocks, the end of a block, the rows behind a border,
// and a row alone.
var prompts = []view{{n: 0, rows: 3}, {n: 250, rows: 10}, {n: 185, rows: 7}, {n: 320, rows: 3}, {n: 390, rows: 1}}

const sparseBlock, promptLength = pageTokens, 1000

// sparseCases checks attention over chosen blocks of keys, on devices that have it.
func sparseCases(o Options) []testCase {
	var list []testCase
	for _, t := range o.KV {
		dim := max(64, t.BlockLen())
		a := attention{4, backend.KVDims{Heads: 2, KeyDim: dim, ValueDim: dim, Key: t, Value: t}, false}
		list = append(list, testCase{"SparseAttention " + a.String(), func(s *suite) { sparsely(s, a) }})
	}
	return list
}

// sparsely: an item is a sequence with all rows of its pass.
func sparsely(s *suite, a attention) {
	k := s.device()
	if !k.HasSparse(sparseBlock) {
		s.Fatalf("%s has no sparse attention over blocks of a page", k.Name())
	}
	q := k.sequences(a, prompts)
	// The rows of a pass look for nearly the same, so that they agree on what weighs much.
	query := func(k *kit, item, row int) []float32 {
		v := values(fmt.Sprint("query ", row), item, a.heads*a.dims.KeyDim)
		for i, x := range k.row("x", item, len(v)) {
			v[i] = x + v[i]/3
		}
		return v
	}
	run := func(sp *backend.Sparse) func(k *kit, items []int, _ int) [][]float32 {
		return func(k *kit, items []int, _ int) [][]float32 {
			var qs, keys, vals [][]float32
			for _, i := range items {
				for _, slot := range q.pass(i) {
					qs = append(qs, query(k, i, slot-prompts[i].n))
					keys, vals = append(keys, q.key(i, slot)), append(vals, q.value(i, slot))
				}
			}
			kt, vt, qt, dst := k.input(keys), k.input(vals), k.input(qs), k.place(len(qs), a.heads*a.dims.ValueDim)
			q.step(items, q.pass, func() {
				k.KVWrite(1, testLayer, kt.Tensor, vt.Tensor)
				if sp == nil {
					k.Attention(dst.Tensor, qt.Tensor, 1, testLayer, q.params())
					return
				}
				own := *sp
				for range items {
					own.Tokens = append(own.Tokens, promptLength)
				}
				if !k.SparseAttention(dst.Tensor, qt.Tensor, 1, testLayer, q.params(), &own) {
					s.Fatalf("%s has no sparse attention after all", k.Name())
				}
			})
			return grouped(k.finish(dst)[0], items, func(i int) int { return prompts[i].rows })
		}
	}
	all := upTo(len(prompts))
	full := run(nil)(k, all, 0)
	k.equal("all blocks", run(&backend.Sparse{Block: sparseBlock})(k, all, 0), full)
	last := &backend.Sparse{Block: sparseBlock, Sink: 1, Window: 1, Alpha: 2, Last: promptLength}
	k.equal("the last blocks", run(last)(k, all, 0), full)
	// A border with much room on both sides, so that rounding chooses the same, and many blocks below it.
	shares := q.shares(query)
	alpha, room := 0.0, 0.0
	for try := 0.1; try < 1; try += 0.002 {
		least, below := 1.0, 0
		for _, x := range shares {
			least = min(least, math.Abs(x-try))
			if x > 0 && x < try {
				below++
			}
		}
		if 3*below > len(shares) && least > room {
			alpha, room = try, least
		}
	}
	for _, sp := range []*backend.Sparse{
		{Block: sparseBlock, Sink: 1, Window: 1, Alpha: 2}, {Block: sparseBlock, Sink: 1, Window: 2, Alpha: float32(alpha)},
	} {
		hidden := 0
		k.obey(op{
			items: len(prompts), bound: s.Attention(a.dims.Key, a.dims.Value), run: run(sp),
			want: func(k *kit, i int) []float64 {
				var out []float64
				for r := range prompts[i].rows {
					own := (prompts[i].n + r) / sparseBlock
					out = append(out, q.attended(i, r, wide(query(k, i, r)), func(h, slot int) bool {
						n := slot / sparseBlock
						keep := n < sp.Sink || own-n < sp.Window || shares[share{i, h, own, n}] >= float64(sp.Alpha)
						if !keep {
							hidden++
						}
						return keep
					})...)
				}
				return out
			},
		})
		if hidden == 0 {
			s.Errorf("with %+v nothing is hidden", *sp)
		}
	}
}

// share names the weight of a block of keys for a head of a block of queries, relative to the heaviest.
type share struct{ item, head, queries, keys int }

// shares are all of them by definition.
func (q *sequences) shares(query func(k *kit, item, row int) []float32) map[share]float64 {
	d := q.a.dims
	out := map[share]float64{}
	for i, v := range q.views {
		for h := range q.a.heads {
			at := h / (q.a.heads / d.Heads) * d.KeyDim
			for m := v.n / sparseBlock; m*sparseBlock < v.n+v.rows; m++ {
				heavy := 0.0
				for n := 0; n <= m; n++ {
					end := min((n+1)*sparseBlock, v.n+v.rows)
					mean := make([]float64, d.KeyDim)
					for slot := n * sparseBlock; slot < end; slot++ {
						key, _ := q.at(i, slot)
						for c := range mean {
							mean[c] += key[at+c] / float64(end-n*sparseBlock)
						}
					}
					for r := range v.rows {
						if pos := v.n + r; pos/sparseBlock != m || pos < (n+1)*sparseBlock-1 {
							continue // not of the block, or it does not see all of the keys
						}
						z := 0.0
						for c, x := range query(q.k, i, r)[h*d.KeyDim:][:d.KeyDim] {
							z += float64(x) * mean[c]
						}
						out[share{i, h, m, n}] += math.Exp(z * float64(q.scale()))
					}
					heavy = max(heavy, out[share{i, h, m, n}])
				}
				for n := 0; n <= m && heavy > 0; n++ {
					out[share{i, h, m, n}] /= heavy
				}
			}
		}
	}
	return out
}
