package gpu

import (
	"fmt"

	"strobe/internal/quant"
)

// Floats chooses the kernels of float.cu: products with float weights. Its methods append calls to a list.
type Floats struct {
	units int
	wide  bool // has warpgroup products
}

// NewFloats returns the choices for a device.
func NewFloats(p Props) *Floats { return &Floats{p.Units, p.Major == 9 && p.Minor == 0} }

// FloatMatrix is a float matrix on the device, or a stack of them, as it was stored.
type FloatMatrix struct {
	Type       quant.Type // F32, F16 or BF16
	W          Addr
	Rows, Cols int
	Scale      float32 // of the product
	Scales     Addr    // of every expert, times Scale; 0 for none
}

type floatArgs struct {
	y, w, x, ids, scale   Addr
	n, rows, cols, xs, ys int32
	used                  int32
	all                   float32
}

// narrowRows is the number of rows per multiprocessor below which blocks share the columns of few rows instead of
// having many rows each: the device would not be full. It decides how a row is summed, so it knows nothing of the
// batch.
const narrowRows = 16

// Product computes y = W x for n rows of x.
func (f *Floats) Product(ls []Call, m FloatMatrix, y, x Out, n int) ([]Call, error) {
	return f.launch(ls, m, y, x, floatArgs{n: int32(n)})
}

// Experts computes row i of y with expert ids[i], from row i/used of x. used is 1 if x has a row for each.
func (f *Floats) Experts(ls []Call, m FloatMatrix, y, x Out, ids Addr, n, used int) ([]Call, error) {
	return f.launch(ls, m, y, x, floatArgs{n: int32(n), ids: ids, used: int32(used)})
}

func (f *Floats) launch(ls []Call, m FloatMatrix, y, x Out, a floatArgs) ([]Call, error) {
	a.y, a.w, a.x, a.scale, a.all = y.P, m.W, x.P, m.Scales, m.Scale
	a.rows, a.cols, a.xs, a.ys = int32(m.Rows), int32(m.Cols), int32(x.Stride), int32(y.Stride)
	size := 2
	switch m.Type {
	case quant.F32:
		size = 4
	case quant.F16, quant.BF16:
	default:
		return ls, fmt.Errorf("a float product with weights of type %s", m.Type)
	}
	k := floatProduct{typ: m.Type, narrow: m.Rows < narrowRows*f.units}
	perBlock, tokens := 32, 1
	if k.narrow {
		perBlock = 4
	}
	if a.ids == 0 {
		for _, n := range floatRows(k.narrow) {
			if int(a.n) > tokens {
				tokens = n
			}
		}
	}
	if k.rows = tokens; m.Cols%4 != 0 || !x.aligned() || m.W%Addr(4*size) != 0 {
		k.rows, tokens = 0, 1
	}
	shared := 2 * tokens * 256 * 4 // two chunks of the tokens
	if k.narrow {
		shared = 8 * 4 * tokens * 4 // the sums of eight warps
	}
	return append(ls, Call{k, &a, Config{Grid: [3]int{(m.Rows + perBlock - 1) / perBlock,
		(int(a.n) + tokens - 1) / tokens, 1}, Threads: 256, Shared: shared, Early: true}}), nil
}
