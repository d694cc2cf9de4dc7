package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// experts multiplies pairs with their experts: x has a row for each token or for each pair.
func (r *productRig) experts(x []float32, ids []int32, ms []*productMatrix, scales []float32) [][]float32 {
	r.t.Helper()
	pairs, cols := len(ids), ms[0].Cols
	var ws []gpu.WeightLayout
	for _, m := range ms {
		ws = append(ws, m.WeightLayout)
	}
	lay := r.p.ExpertActs(len(x)/cols, ws...)
	dx, act, dids := upload(r, x), r.room(lay.Bytes()), upload(r, ids)
	tables := r.room(gpu.ExpertTableBytes(pairs, ms[0].Experts))
	defer r.release(dx, act, dids, tables)
	ls := r.p.Pack(nil, gpu.Packed{ActLayout: lay, P: act}, gpu.Rows(dx, cols), 1)
	ls = r.p.GroupExperts(ls, tables, dids, pairs, ms[0].Experts)
	cuts, _ := r.p.ExpertCut(len(ids)*cols/len(x)+1, ws, nil)
	var jobs []gpu.ExpertJob
	for _, m := range ms {
		j := gpu.ExpertJob{WeightLayout: m.WeightLayout, W: m.w, Cuts: cuts, Scale: 0.5}
		if scales != nil {
			j.Scales = upload(r, scales)
		}
		j.Part = r.room(gpu.PieceBytes(j.Result(pairs)))
		defer r.release(j.Part)
		jobs = append(jobs, j)
	}
	ls = r.p.ExpertMatMul(ls, gpu.MatMulInput{ActLayout: lay, P: act}, tables, pairs, jobs...)
	var ys []gpu.Addr
	for i, m := range ms {
		y := r.room(pairs * m.Rows * 4)
		defer r.release(y)
		ys = append(ys, y)
		ls = r.p.Reduce(ls, y, m.Rows, jobs[i].Result(pairs), pairs, m.Rows)
	}
	r.run(ls)
	var out [][]float32
	for i, m := range ms {
		out = append(out, r.floats(ys[i], pairs*m.Rows))
	}
	return out
}

// choose picks different experts for every token.
func choose(rnd *rand.Rand, tokens, used, experts int) []int32 {
	var ids []int32
	for range tokens {
		for _, e := range rnd.Perm(experts)[:used] {
			ids = append(ids, int32(e))
		}
	}
	return ids
}

// wantExperts is the definition, in float64.
func wantExperts(m *productMatrix, x []float32, ids []int32, scales []float32) []float64 {
	div := len(ids) * m.Cols / len(x)
	var want []float64
	for p, e := range ids {
		w := m.values[int(e)*m.Rows*m.Cols:][:m.Rows*m.Cols]
		for _, v := range plain(w, m.Rows, m.Cols, x[p/div*m.Cols:][:m.Cols]) {
			s := 0.5
			if scales != nil {
				s *= float64(scales[e])
			}
			want = append(want, v*s)
		}
	}
	return want
}

func TestExperts(t *testing.T) {
	r := newProductRig(t)
	for i, c := range []struct {
		types          []quant.Type
		rows, cols     int
		experts, used  int
		tokens         []int
		perPair, scale bool
	}{
		{[]quant.Type{quant.Q4_K, quant.Q4_K}, 300, 768, 6, 2, []int{1, 3, 20}, false, true},
		{[]quant.Type{quant.Q6_K}, 40, 512, 40, 3, []int{1, 7}, true, false},
		{[]quant.Type{quant.Q4_K, quant.Q6_K, quant.Q6_K}, 20, 512, 3, 3, []int{2, 9}, false, false},
		{[]quant.Type{quant.MXFP4, quant.MXFP4}, 257, 512 + 96, 5, 1, []int{1, 50}, false, true},
		{[]quant.Type{quant.Q5_K}, 10, 512, 1500, 4, []int{3}, false, false},
		{[]quant.Type{quant.Q8_0}, 30, 768, 2, 1, []int{80}, true, true},
	} {
		t.Run(fmt.Sprint(c.types, c.tokens), func(t *testing.T) {
			r.t = t
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			var ms []*productMatrix
			for _, typ := range c.types {
				ms = append(ms, r.productMatrix(rnd, typ, c.rows, c.cols, c.experts))
			}
			var scales []float32
			if c.scale {
				scales = randomRows(rnd, c.experts)
			}
			for _, n := range c.tokens {
				ids := choose(rnd, n, c.used, c.experts)
				per := 1 // pairs that share a row of x
				if !c.perPair {
					per = c.used
				}
				x := randomRows(rnd, len(ids)/per*c.cols)
				got := r.experts(x, ids, ms, scales)
				for k, m := range ms {
					if e := apart(got[k], wantExperts(m, x, ids, scales)); !(e < half) {
						t.Errorf("%d tokens, %v: relative error %.2e", n, m.Type, e)
					}
				}
				for _, tok := range []int{0, n - 1, n / 2} { // alone
					p := tok * c.used
					alone := r.experts(x[p/per*c.cols:][:c.used/per*c.cols], ids[p:][:c.used], ms, scales)
					for k, m := range ms {
						if !sameBits(alone[k], got[k][p*m.Rows:][:c.used*m.Rows]) {
							t.Errorf("token %d of %d, %v: not the same alone", tok, n, m.Type)
						}
					}
				}
			}
		})
	}
}

// TestExpertsWrongIds: numbers that name no expert do no harm to others.
func TestExpertsWrongIds(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(1, 3))
	m := r.productMatrix(rnd, quant.Q4_K, 20, 512, 4)
	x := randomRows(rnd, 3*512)
	good := r.experts(x, []int32{2, 1, 3}, []*productMatrix{m}, nil)[0]
	bad := r.experts(x, []int32{2, -1, 3}, []*productMatrix{m}, nil)[0]
	if !sameBits(good[:20], bad[:20]) || !sameBits(good[40:], bad[40:]) {
		t.Error("a wrong number spoils other rows")
	}
}
