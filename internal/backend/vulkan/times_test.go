//go:build !nogpu

package vulkan_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// BenchmarkProducts prints how long products of a large matrix take by their rows, and what share of the bandwidth
// that is.
func BenchmarkProducts(b *testing.B) {
	if software() {
		b.Skip("needs a GPU with a Vulkan driver: times in software say nothing")
	}
	d := openDriver(b)
	defer d.Close()
	must := func(a gpu.Addr, err error) gpu.Addr {
		if err != nil {
			b.Fatal(err)
		}
		return a
	}
	b.Logf("%+v", d.Props())
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0} {
		const rows, cols = 17408, 5120
		l, err := gpu.LayoutOf(typ, rows, cols, 1, rows*typ.RowBytes(cols))
		if err != nil {
			b.Fatal(err)
		}
		// Several copies, so that caches do not hold them.
		const copies = 8
		w := must(d.Alloc(copies * l.Bytes()))
		x := must(d.Alloc(4 * 512 * cols))
		for _, n := range []int{1, 2, 3, 4, 6, 8, -8, -16, -32, -64, -512} {
			p := gpu.NewProducts(d.Props())
			if p.Matrices = n < 0; p.Matrices && (!d.Props().Matrices || typ == quant.Q8_0) {
				continue
			}
			n = max(n, -n)
			a := p.Acts(n, l)
			in := gpu.MatMulInput{ActLayout: a, P: must(d.Alloc(a.Bytes()))}
			pack := p.Pack(nil, gpu.Packed{ActLayout: a, P: in.P}, gpu.Rows(x, cols), 1)
			var calls []gpu.Call
			for i := range copies {
				j := gpu.MatMulJob{WeightLayout: l, W: w + gpu.Addr(i*l.Bytes()), Blocks: p.Cut(l)[0], Scale: 1}
				j.Part = must(d.Alloc(gpu.PieceBytes(j.Result(n))))
				calls = p.MatMul(calls, in, j)
			}
			for range 2 {
				calls = append(calls, calls...)
			}
			first, err1 := gpu.Emit(d, pack)
			ls, err2 := gpu.Emit(d, calls)
			if err := errors.Join(err1, err2); err != nil {
				b.Fatal(err)
			}
			d.Launch(&first[0])
			// A recording of a quarter is subtracted: what remains is launches alone, in a row as in a pass.
			var recs [2]gpu.Recording
			for i, list := range [][]gpu.Launch{ls[:copies], ls} {
				if recs[i], err = d.Record(list); err != nil {
					b.Fatal(err)
				}
			}
			var all []time.Duration
			for range 10 {
				var took [2]time.Duration
				for i, r := range recs {
					start := time.Now()
					d.Replay(r)
					if err := d.Wait(); err != nil {
						b.Fatal(err)
					}
					took[i] = time.Since(start)
				}
				all = append(all, (took[1]-took[0])/time.Duration(len(ls)-copies))
			}
			slices.Sort(all)
			m := all[len(all)/2]
			b.Logf("%s, %d rows: %v (%v to %v), %.0f GB/s of weights", ls[0].Name, n, m, all[0], all[len(all)-1],
				float64(l.Bytes())/m.Seconds()/1e9)
			for _, r := range recs {
				r.Close()
			}
		}
	}
}
