//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64) || darwin)

package vulkan

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// TestThen: a product that goes on with its results leaves the bits that a launch after it leaves.
func TestThen(t *testing.T) {
	d := openFirst(t, Options{Loops: os.Getenv("STROBE_VULKAN_MATRICES") == ""})
	defer d.Close()
	const cols, inner = 700, 1024 // of the residual, and of what is multiplied
	for _, n := range []int{3, 9} {
		test := func(b *bench, in, w gpu.Addr, l gpu.WeightLayout, _, _ []float32) error {
			plain := gpu.NewProducts(d.props)
			going := gpu.NewProducts(d.props)
			going.Counters = b.put(make([]byte, 4*64))
			norm := b.put(bytesOf(b.normal(cols)))
			residual := b.normal(n * cols)
			for _, kind := range []string{"add", "gelu"} {
				var want []byte
				for _, p := range []*gpu.Products{plain, going, going} { // once more: the counters are zero again
					a := p.Acts(n, l)
					x := gpu.MatMulInput{ActLayout: a, P: b.room(a.Bytes())}
					ls := p.Pack(nil, gpu.Packed{ActLayout: a, P: x.P}, gpu.Rows(in, inner), 1)
					jobs := []gpu.MatMulJob{{WeightLayout: l, W: w, Blocks: p.Cut(l)[0], Scale: 1}}
					if kind != "add" {
						jobs = append(jobs, jobs[0])
						jobs[1].Scale = 0.5
					}
					for i := range jobs {
						jobs[i].Part = b.room(gpu.PieceBytes(jobs[i].Result(n)))
					}
					ls = p.MatMul(ls, x, jobs...)
					made := len(ls)
					to := gpu.Packed{ActLayout: gpu.ActLayout{Rows: n, Cols: cols, NT: a.NT}}
					sum := b.put(bytesOf(residual))
					sums := b.put(make([]byte, to.SumsBytes()))
					to.P = b.put(make([]byte, to.Bytes()))
					if y := jobs[0].Result(n); kind == "add" {
						ls = p.AddPack(ls, to, gpu.Sum{X: gpu.Rows(sum, cols), Y: y, Dst: sum, DstStride: cols, W: norm, Sums: sums})
					} else {
						ls = p.GatedPack(ls, to, y, jobs[1].Result(n), kind == "gelu")
					}
					if fused := len(ls) == made; fused != (p == going) || fused != strings.HasSuffix(ls[made-1].Name, "_then") {
						t.Fatalf("%d rows, %s: %d launches, the last %s", n, kind, len(ls), ls[len(ls)-1].Name)
					}
					if _, err := b.run(ls, sums, 1); err != nil {
						return err
					}
					got := make([]byte, to.Bytes()+to.SumsBytes()+4*n*cols)
					for at, a := range map[int]gpu.Addr{0: to.P, to.Bytes(): sums, to.Bytes() + to.SumsBytes(): sum} {
						end := map[int]int{0: to.Bytes(), to.Bytes(): to.Bytes() + to.SumsBytes()}[at]
						if end == 0 {
							end = len(got)
						}
						if err := d.Download(got[at:end], a); err != nil {
							return err
						}
					}
					if want == nil {
						want = got
					} else if !bytes.Equal(got, want) {
						t.Errorf("%d rows, %s: other bits than in launches of their own", n, kind)
					}
				}
			}
			return b.err
		}
		if err := d.withMatrix(quant.Q4_K, cols, inner, n, test); err != nil {
			t.Fatal(err)
		}
	}
}
