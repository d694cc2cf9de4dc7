package gpu

import "unsafe"

// bytesOf views values as the bytes the device sees.
func bytesOf[T any](v []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(t)))
}

// In mirrors the structure In of kernel/common.h: rows of activations that a kernel reads, plain ones or the pieces a
// product left.
type In struct {
	P      Addr
	Stride int32 // plain rows: values from one to the next
	Groups int32 // pieces, if positive: groups of 256 rows of the matrix,
	KB     int32 // stages in each,
	Grid   int32 // blocks that the stages are dealt to,
	N      int32 // and tokens of the product
	First  int32 // pieces: the matrix's row that is column 0
}

// Rows is an In of plain rows.
func Rows(p Addr, stride int) In { return In{P: p, Stride: int32(stride)} }

// Columns returns the columns from c on.
func (in In) Columns(c int) In {
	if in.Groups > 0 {
		in.First += int32(c)
	} else {
		in.P += Addr(4 * c)
	}
	return in
}

// PieceCount returns the number of pieces of the rows in group g.
func (in In) PieceCount(g int) int {
	total, first := int(in.Groups*in.KB), g*int(in.KB)
	of := func(stage int) int { return ((stage+1)*int(in.Grid) - 1) / total }
	return of(first+int(in.KB)-1) - of(first) + 1
}

// Pieces returns the largest number of pieces that any row has: memory for a product's results is this times N times
// 256*Groups values.
func (in In) Pieces() int {
	n := 1
	for g := range int(in.Groups) {
		n = max(n, in.PieceCount(g))
	}
	return n
}
