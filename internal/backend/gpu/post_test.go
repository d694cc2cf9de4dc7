package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestPost: norms of outputs, sums, scale and the next norm in one launch have the bits they have step by step, which
// is how they are done when somebody reads what lies between.
func TestPost(t *testing.T) {
	const n, hidden, vocab, used, eps = 3, 992, 40, 2, 1e-5
	for _, c := range []struct{ experts, both, scale, late, two bool }{
		{}, {scale: true, two: true}, {experts: true, scale: true}, {experts: true, both: true, scale: true},
		{experts: true, both: true, late: true, two: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			run := func(keep bool) (out []float32, fused int) {
				d := &spy{Driver: emulate.Open(t)}
				b, err := gpu.New(d)
				if err != nil {
					t.Fatal(err)
				}
				rnd := rand.New(rand.NewPCG(6, 2))
				tensor := func(rows, cols int) backend.Tensor {
					x, err := b.Alloc(rows, cols)
					if err != nil {
						t.Fatal(err)
					}
					b.Write(x, randomRows(rnd, rows*cols))
					return x
				}
				vector := func(n int) backend.Vector {
					v, err := b.Vector(randomRows(rnd, n))
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
				weight := func(rows, cols int) backend.Weight {
					w, err := b.Weight(backend.Matrix{Type: quant.Q8_0, Rows: rows, Cols: cols, Experts: 1,
						Data: gpu.RandomBlocks(rnd, quant.Q8_0, rows*cols)})
					if err != nil {
						t.Fatal(err)
					}
					return w
				}
				x, y, z, from := tensor(n, hidden), tensor(n, hidden), tensor(n, hidden), tensor(n, hidden)
				h, other, kept := tensor(n, hidden), tensor(n, hidden), tensor(n, hidden)
				in, pairs, weights := tensor(n, 256), tensor(n*used, hidden), tensor(n, used)
				last, last2 := tensor(n, vocab), tensor(n, vocab)
				w1, w2, w3, w4, each := vector(hidden), vector(hidden), vector(hidden), vector(hidden), vector(5)
				made, head := weight(hidden, 256), weight(vocab, hidden)
				ids, err := b.AllocInts(n * used)
				if err != nil {
					t.Fatal(err)
				}
				b.SetInts(ids, []int32{4, 0, 1, 2, 3, 1})
				b.BeginStep(nil)
				for range 2 { // what the first leaves is overwritten
					if c.late {
						b.MatMul(in, backend.Product{W: made, Y: z})
						b.RMSNorm(z, z, w4, eps)
					} else {
						b.Copy(z, from)
					}
					if c.experts {
						b.ExpertSum(y, pairs, weights, ids, used, each)
					} else {
						b.MatMul(in, backend.Product{W: made, Y: y})
					}
					b.RMSNorm(y, y, w1, eps)
					if c.both {
						b.Add(z, z, y)
						b.RMSNorm(z, z, w2, eps)
						b.Add(x, x, z)
					} else {
						b.Add(x, x, y)
					}
					if c.scale {
						b.Scale(x, x, 0.3)
					}
					b.RMSNorm(h, x, w3, eps)
					b.MatMul(h, backend.Product{W: head, Y: last})
					if c.two {
						b.RMSNorm(other, x, w4, eps)
						b.MatMul(other, backend.Product{W: head, Y: last2})
					}
					if keep {
						b.Copy(kept, y)
						b.Copy(kept, z)
					}
				}
				b.EndStep()
				if err := b.Sync(); err != nil {
					t.Fatal(err)
				}
				for _, name := range d.names {
					if name == "post_pack" {
						fused++
					}
				}
				return slices.Concat(b.Read(x), b.Read(last), b.Read(last2), b.Read(h)), fused
			}
			got, one := run(false)
			want, none := run(true)
			if one != 1 || none != 0 {
				t.Errorf("%d and %d launches for all of it, want 1 and 0", one, none)
			}
			if !sameBits(got, want) {
				t.Error("other bits than step by step")
			}
		})
	}
}
