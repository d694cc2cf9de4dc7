package gpu

type halfArgs struct {
	y, z, h, w, x, bias                Addr
	n, rows, cols, ys, zs, gelu, pairs int32
	all                                float32
}

type halfRowsArgs struct {
	h, x                   Addr
	n, cols, stride, quads int32
}

// HalfCall is a product of halves by tensor cores: W x for N rows of x, then Bias, then GELU.
type HalfCall struct {
	W    FloatMatrix // of halves, in rows of whole eights
	X    Addr        // halves [N][columns]
	N    int
	Bias Addr // [rows]; 0 for none
	GELU bool
	Y    Out  // the results; P is 0 for none
	Z    Out  // rows that they are added to; P is 0 for none
	H    Addr // the results as halves [N][rows]; 0 for none
}

// Halves computes such a product.
func (f *Floats) Halves(ls []Call, c HalfCall) []Call {
	pairs := c.W.Rows%2 == 0 && (c.Y.P|c.Z.P|c.Bias)%8 == 0 && (c.Y.Stride|c.Z.Stride)%2 == 0
	a := &halfArgs{c.Y.P, c.Z.P, c.H, c.W.W, c.X, c.Bias, int32(c.N), int32(c.W.Rows), int32(c.W.Cols),
		int32(c.Y.Stride), int32(c.Z.Stride), asInt(c.GELU), asInt(pairs), c.W.Scale}
	if f.wide {
		// A block has 192 rows and 128 tokens, and five stages of 64 columns of both; see kernel/wide.cu.
		return append(ls, Call{kernelHalfWide, a, Config{Grid: [3]int{(c.W.Rows + 191) / 192, (c.N + 127) / 128, 1},
			Threads: 384, Shared: 1024 + 5*(128+192)*128 + 2*5*8, Early: true}})
	}
	// A block has 128 rows and 128 tokens, and three stages of 32 columns of both; see kernel/halves.cu.
	return append(ls, Call{kernelHalves, a, Config{Grid: [3]int{(c.W.Rows + 127) / 128, (c.N + 127) / 128, 1},
		Threads: 256, Shared: 3 * 2 * 128 * 64, Early: true}})
}

// HalfRows rounds n rows of x to halves.
func (f *Floats) HalfRows(ls []Call, to Addr, x Out, n, cols int) []Call {
	a := &halfRowsArgs{to, x.P, int32(n), int32(cols), int32(x.Stride), asInt(x.aligned() && cols%4 == 0)}
	per := cols
	if a.quads != 0 {
		per = cols / 4
	}
	blocks := min((n*per+255)/256, 8*f.units)
	return append(ls, Call{kernelHalfRows, a, Config{Grid: [3]int{blocks, 1, 1}, Threads: 256, Early: true}})
}
