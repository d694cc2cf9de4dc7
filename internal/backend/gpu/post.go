package gpu

// Post is the end of a part of a layer whose output is normalised before it is added to the residual stream: dst = (x +
// norm(y)) * factor, where y may be the sum of experts, or (x + norm(z + norm(y))) * factor, where z may be normalised,
// too. The result is packed for the next products as in AddPack, if that is wanted.
type Post struct {
	X, Y, Z    In
	Used       int // experts of a row; 0: Y is the output itself
	Weights    Out // of the experts
	Scale      Addr
	IDs        Addr
	WY, WZ, WV Addr // of the norms of Y, of Z (0 for none) and of their sum
	Eps        float32
	Factor     float32
	Dst        Out
	W          [2]Addr // of the norms before the products
	Sums       [2]Addr
}

// postArgs mirrors PostArgs of post.cu.
type postArgs struct {
	act                             [2]actArgs
	x, y, z                         In
	weights, scale, ids             Addr
	wy, wz, wv, dst                 Addr
	w, sums                         [2]Addr
	rows, cols, used, ws, dstStride int32
	factor, eps                     float32
	_                               int32
}

// Post's kernel: threads of a block, at most, the columns for which they have registers, and its shared memory in front
// of two rows.
const (
	postThreads = 768
	postColumns = 8 * postThreads
	postFront   = 96
)

// Post appends the end of a part of a layer. The second packing is for another product of the same sum; without an
// address it is left out, without one of the first both are.
func (p *Products) Post(ls []Call, to [2]Packed, t Post) []Call {
	rows, cols := to[0].Rows, to[0].Cols
	a := &postArgs{act: [2]actArgs{to[0].args(), to[1].args()}, x: t.X, y: t.Y, z: t.Z, weights: t.Weights.P,
		scale: t.Scale, ids: t.IDs, wy: t.WY, wz: t.WZ, wv: t.WV, dst: t.Dst.P, w: t.W, sums: t.Sums, rows: int32(rows),
		cols: int32(cols), used: int32(t.Used), ws: int32(t.Weights.Stride), dstStride: int32(t.Dst.Stride),
		factor: t.Factor, eps: t.Eps}
	threads := (cols/4 + 31) &^ 31 // one for each quad, or for two; 256 add squares
	if threads > postThreads {
		threads = (cols/8 + 31) &^ 31
	}
	return append(ls, Call{kernelPost, a, Config{Grid: [3]int{1, rows, 1}, Threads: max(256, threads),
		Shared: postFront + 8*cols, Early: p.Bulk}})
}
