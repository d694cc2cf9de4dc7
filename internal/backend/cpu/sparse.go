package cpu

import (
	"math"
	"unsafe"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel/vec"
	"strobe/internal/quant"
)

// HasSparse is true: blocks may have any size.
func (b *Backend) HasSparse(int) bool { return true }

// SparseAttention is Attention over chosen blocks of keys. With all of them chosen it has the bits of Attention.
func (b *Backend) SparseAttention(dst, q backend.Tensor, group, layer int, ap backend.AttnParams,
	s *backend.Sparse) bool {
	plan := &b.plan.KV[group]
	for r := range plan.Slot {
		if plan.Lo[r] > 0 {
			return false
		}
	}
	p := plan.Pool.(*kvPool)
	d := p.layout.Layers[layer]
	means := map[int32][]float32{}
	b.tiles = b.tiles[:0]
	for r := 0; r < len(plan.Slot); {
		seg, m := plan.Seg[r], int(plan.Slot[r])/s.Block
		sparse := s.Tokens[seg] > 0
		end := r + 1
		for end < len(plan.Slot) && plan.Seg[end] == seg && (!sparse && end-r < tileRows ||
			sparse && int(plan.Slot[end])/s.Block == m) {
			end++
		}
		if sparse && means[seg] == nil {
			last := r
			for last+1 < len(plan.Seg) && plan.Seg[last+1] == seg {
				last++
			}
			means[seg] = b.keyMeans(plan, p, layer, seg, int(plan.Slot[last])+1, s.Block)
		}
		for h := range ap.Heads {
			t := tile{rows: [2]int{r, end}, head: h, block: s.Block}
			if sparse {
				t.keep = make([]bool, m+1)
			}
			b.tiles = append(b.tiles, t)
		}
		r = end
	}
	shared := ap.Heads / ap.KVHeads
	b.pool.each(len(b.tiles), func(w, t int) {
		a := b.tiles[t]
		a.pool, a.layer, a.heads, a.kvHead = p, layer, 1, a.head/shared
		rows := a.rows
		if a.keep != nil {
			seg := plan.Seg[rows[0]]
			keys := means[seg]
			n := len(keys) / ap.KVHeads
			m := len(a.keep)
			z := make([]float32, (rows[1]-rows[0])*m)
			for r := rows[0]; r < rows[1]; r++ {
				query := append([]float32(nil), row(q, r)[a.head*d.KeyDim:][:d.KeyDim]...)
				if d.Key.RotatesKeys() {
					quant.Rotate(query)
				}
				vec.ScoresN(z[(r-rows[0])*m:], m, query, d.KeyDim, 1, d.KeyDim, quant.F32, bytesOf(keys[a.kvHead*n:][:n]),
					4*d.KeyDim, m, ap.Scale)
			}
			keepBlocks(a.keep, blockWeights(z, m, int(plan.Slot[rows[0]]), s.Block), s, s.Tokens[seg])
		}
		for r := rows[0]; r < rows[1]; r += tileRows {
			a.rows = [2]int{r, min(r+tileRows, rows[1])}
			b.workers[w].attend(dst, q, &a, plan, ap)
		}
	})
	return true
}

// keyMeans returns the mean key of each block of a sequence's first n tokens, for each head [heads][blocks][dim], as
// the cache has them: rotated where their type wants it.
func (b *Backend) keyMeans(plan *backend.KVPlan, p *kvPool, layer int, seg int32, n, block int) []float32 {
	y, d := p.layers[layer], p.layout.Layers[layer]
	blocks := (n + block - 1) / block
	out := make([]float32, d.Heads*blocks*d.KeyDim)
	b.rowsOf(d.Heads*blocks, block*d.KeyDim, func(i int) {
		h, from := i/blocks, i%blocks*block
		sum, key := out[i*d.KeyDim:][:d.KeyDim], make([]float32, d.KeyDim)
		to := min(n, from+block)
		for s := from; s < to; s++ {
			page := p.page(plan.Tables[seg][s/p.layout.Page])
			vec.Load(d.Key, key, page[y.kOff+h*y.kHead+s%p.layout.Page*y.kRow:][:y.kRow])
			vec.Add(sum, sum, key)
		}
		vec.Scale(sum, sum, 1/float32(to-from))
	})
	return out
}

// blockWeights returns the share of attention that a block of queries gives to each of m blocks of keys, of which the
// last is its own, judged by the products z [rows][m] of queries with mean keys. Rows stand for positions from first
// on; a row counts for the blocks that it sees all of.
func blockWeights(z []float32, m, first, block int) []float64 {
	w, top := make([]float64, m), make([]float64, m)
	most := math.Inf(-1)
	for n := range m {
		top[n] = math.Inf(-1)
		from := max(0, (n+1)*block-1-first) // the first row that sees the block
		for r := from; r < len(z)/m; r++ {
			top[n] = max(top[n], float64(z[r*m+n]))
		}
		for r := from; r < len(z)/m; r++ {
			w[n] += math.Exp(float64(z[r*m+n]) - top[n])
		}
		most = max(most, top[n])
	}
	sum := 0.0
	for n := range w {
		if w[n] > 0 {
			w[n] *= math.Exp(top[n] - most)
			sum += w[n]
		}
	}
	for n := range w {
		if sum > 0 {
			w[n] /= sum
		}
	}
	return w
}

// keepBlocks marks the blocks that the last of the blocks of keep attends to, in a prompt of so many tokens.
func keepBlocks(keep []bool, w []float64, s *backend.Sparse, tokens int) {
	m, all := len(keep)-1, (tokens+s.Block-1)/s.Block
	top := 0.0
	for _, x := range w {
		top = max(top, x)
	}
	for n := range keep {
		keep[n] = n < s.Sink || m-n < s.Window || m >= all-s.Last || w[n] >= float64(s.Alpha)*top
	}
}

// Weigh raises dst to the weights that the last tokens of k give to all.
func (b *Backend) Weigh(dst, q, k backend.Tensor, ap backend.AttnParams) {
	dim, shared := q.Cols/ap.Heads, ap.Heads/ap.KVHeads
	n, buf := k.Rows, k.Buf.(buffer)
	weights := make([]float32, ap.Heads*q.Rows*n)
	b.pool.each(ap.Heads, func(_, h int) {
		own := weights[h*q.Rows*n:][:q.Rows*n]
		vec.ScoresN(own, n, q.Buf.(buffer)[q.Off+h*dim:], q.Stride, q.Rows, dim, quant.F32, bytesOf(buf[k.Off+h/shared*dim:]),
			4*k.Stride, n, ap.Scale)
		for r := range q.Rows {
			x := own[r*n:][:n-q.Rows+r+1]
			clear(own[r*n+len(x) : (r+1)*n])
			sum := vec.ExpSum(x, vec.Max(x))
			vec.Scale(x, x, float32(1/sum))
		}
	})
	b.rowsOf(q.Rows, ap.Heads*n, func(r int) {
		out := row(dst, r)
		for h := range ap.Heads {
			for j, x := range weights[(h*q.Rows+r)*n:][:n] {
				out[j] = max(out[j], x)
			}
		}
	})
}

func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
