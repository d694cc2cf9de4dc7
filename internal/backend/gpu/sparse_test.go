package gpu_test

import (
	"fmt"
	"math"
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
)

// judge computes in float64 which blocks of keys each head of the last rows of a sequence sees, by the rule of
// backend.Sparse, and how far the nearest weight is from the border.
func (w *world) judge(g rows, q [][]float32) (kept map[[2]int][]bool, margin float64) {
	s, kd, group, first := w.sparse, w.shape.KeyDim, w.heads/w.shape.Heads, len(g.s.k)-g.n
	kept, margin = map[[2]int][]bool{}, math.Inf(1)
	for from := 0; from < g.n; {
		m, to := (first+from)/s.Block, from
		for to < g.n && (first+to)/s.Block == m {
			to++
		}
		for h := range w.heads {
			weight, heavy := make([]float64, m+1), 0.0
			for n := range weight {
				mean := make([]float64, kd)
				end := min(len(g.s.k), (n+1)*s.Block)
				for j := n * s.Block; j < end; j++ {
					for d := range mean {
						mean[d] += float64(g.s.k[j][h/group*kd+d]) / float64(end-n*s.Block)
					}
				}
				for r := from; r < to; r++ {
					if first+r < (n+1)*s.Block-1 {
						continue
					}
					z := 0.0
					for d := range mean {
						z += float64(q[r][h*kd+d]) * mean[d]
					}
					weight[n] += math.Exp(z / math.Sqrt(float64(kd)))
				}
				heavy = max(heavy, weight[n])
			}
			keep := make([]bool, m+1)
			for n := range keep {
				always := n < s.Sink || m-n < s.Window || m >= (s.Tokens[0]+s.Block-1)/s.Block-s.Last
				if heavy > 0 && !always {
					margin = min(margin, math.Abs(weight[n]/heavy-float64(s.Alpha)))
				}
				keep[n] = always || weight[n] >= float64(s.Alpha)*heavy
			}
			for r := from; r < to; r++ {
				kept[[2]int{r, h}] = keep
			}
		}
		from = to
	}
	return kept, margin
}

// sparsely is attention in float64 over the slots that keep says.
func (w *world) sparsely(g rows, q [][]float32, keep func(r, h, slot int) bool) [][]float64 {
	kd, vd, group, first := w.shape.KeyDim, w.shape.ValueDim, w.heads/w.shape.Heads, len(g.s.k)-g.n
	out := make([][]float64, g.n)
	for r := range out {
		out[r] = make([]float64, w.heads*vd)
		for h := range w.heads {
			sum := 0.0
			for j := range first + r + 1 {
				if !keep(r, h, j) {
					continue
				}
				z := 0.0
				for d := range kd {
					z += float64(q[r][h*kd+d]) * float64(g.s.k[j][h/group*kd+d])
				}
				e := math.Exp(z / math.Sqrt(float64(kd)))
				sum += e
				for d := range vd {
					out[r][h*vd+d] += e * float64(g.s.v[j][h/group*vd+d])
				}
			}
			for d := range vd {
				out[r][h*vd+d] /= sum
			}
		}
	}
	return out
}

// TestSparse: with all blocks kept sparse attention has the bits of full attention; with some, it is what float64 makes
// of the same blocks. Every family of kernels, and pages as they are or unpacked once.
func TestSparse(t *testing.T) {
	for _, c := range []struct {
		kind, block int
		hopper      bool
	}{{8, 48, false}, {1, 64, false}, {1, 128, true}, {16, 64, true}, {13, 64, false}, {0, 64, true}, {15, 64, false}} {
		k := kind[c.kind]
		t.Run(fmt.Sprintf("%s, blocks of %d, %v", name(k.heads, k.s), c.block, c.hopper), func(t *testing.T) {
			var d gpu.Driver
			switch {
			case os.Getenv("STROBE_CUDA") == "cuda" || os.Getenv("STROBE_GPU") == "vulkan" || !c.hopper:
				d = openDevice(t)
			default:
				d = emulate.Emulated(t, emulate.Options{Hopper: true})
			}
			w := newWorldOn(t, d, k.heads, k.s)
			g := rows{s: w.sequence(330, 0), n: 75}
			q := w.queries([]rows{g})
			for r := range q { // queries like the keys of some block, so that weights differ
				for i := range q[r] {
					h := i / k.s.KeyDim / (k.heads / k.s.Heads)
					for j := range c.block {
						q[r][i] += 6 / float32(c.block) * g.s.k[(r/20+h)%(255/c.block)*c.block+j][h*k.s.KeyDim+i%k.s.KeyDim]
					}
				}
			}
			full := w.attend([]rows{g}, q)
			ways := []bool{false}
			if w.at.Halves() != nil {
				ways = append(ways, true)
			}
			for _, w.unpack = range ways {
				w.sparse = &backend.Sparse{Block: c.block, Tokens: []int{2000}}
				same(t, "all blocks", w.attend([]rows{g}, q), full)
				w.sparse.Sink, w.sparse.Window, w.sparse.Alpha = 1, 1, 2
				w.sparse.Tokens[0], w.sparse.Last = 330, 20
				same(t, "the last blocks", w.attend([]rows{g}, q), full)
				w.sparse.Tokens[0], w.sparse.Last = 2000, 0
				w.compare("first and last", g, q, full, func(r, h, slot int) bool {
					return slot < c.block || slot/c.block == (255+r)/c.block
				})
				for alpha := float32(0.7); ; alpha += 0.005 {
					w.sparse.Alpha = alpha
					kept, margin := w.judge(g, q)
					if margin < 0.002 {
						continue // halves might choose otherwise
					}
					w.compare(fmt.Sprintf("alpha %.3f", alpha), g, q, full, func(r, h, slot int) bool {
						return kept[[2]int{r, h}][slot/c.block]
					})
					break
				}
				w.sparse = nil
			}
		})
	}
}

// TestShares: the work of attention may be shared by launches on plain devices, whatever their number.
func TestShares(t *testing.T) {
	d := openPlain(t)
	k := kind[1]
	w := newWorldOn(t, d, k.heads, k.s)
	w.tile = func(t *gpu.Tiling) { t.Splits, t.Blocks = 4, 64 } // some rows in parts, which are then merged
	segs := []rows{{s: w.sequence(400, 0), n: 13}, {s: w.sequence(90, 0), n: 3}}
	q := w.queries(segs)
	want := w.attend(segs, q)
	for _, w.shares = range []int{2, 16} {
		same(t, fmt.Sprintf("%d launches", w.shares), w.attend(segs, q), want)
	}
}

// TestLongWork: a prompt's attention is shared by more launches the more its rows see, as many as there are rounds of
// blocks at most; what is short has one.
func TestLongWork(t *testing.T) {
	for _, c := range []struct{ slots, rows, work, want int }{
		{131072, 512, 1 << 15, 16}, {131072, 512, 0, 1}, {16384, 512, 1 << 15, 8}, {131072, 1, 1 << 15, 1},
		{512, 512, 1 << 15, 1},
	} {
		p := &backend.KVPlan{Tables: [][]int32{make([]int32, (c.slots+63)/64)}}
		for r := range c.rows {
			slot := int32(c.slots - c.rows + r)
			p.Seg, p.Slot = append(p.Seg, 0), append(p.Slot, slot)
			p.Lo, p.Hi = append(p.Lo, 0), append(p.Hi, slot+1)
		}
		// Four KV heads of six query heads each, on 48 units.
		tiling := gpu.Tiling{Rows: 2, Splits: 12, Blocks: 96, Heads: 4, Work: c.work}
		k, err := gpu.NewKVTables(p, tiling, func(int32) gpu.Addr { return 0 }, []int32{0}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := tiling.Shares(k); got != c.want {
			t.Errorf("%d rows of %d slots, %d pages at a time: %d launches, want %d", c.rows, c.slots, c.work, got, c.want)
		}
	}
}

// compare compares sparse attention with what float64 makes of the same slots, and with full attention, from which it
// must differ.
func (w *world) compare(what string, g rows, q, full [][]float32, keep func(r, h, slot int) bool) {
	w.t.Helper()
	got, want := w.attend([]rows{g}, q), w.sparsely(g, q, keep)
	far := 0.0
	for r := range got {
		var e, n, f float64
		for i, x := range got[r] {
			e += (float64(x) - want[r][i]) * (float64(x) - want[r][i])
			f += (float64(full[r][i]) - want[r][i]) * (float64(full[r][i]) - want[r][i])
			n += want[r][i] * want[r][i]
		}
		if e = math.Sqrt(e / n); !(e < w.tolerance()) {
			w.t.Fatalf("%s: row %d is off by %.2e", what, r, e)
		}
		far = max(far, math.Sqrt(f/n))
	}
	if far < 0.05 {
		w.t.Fatalf("%s: nothing is sparse", what)
	}
}
