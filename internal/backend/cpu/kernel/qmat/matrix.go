package qmat

import (
	"fmt"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// Panel is the number of rows that kernels compute together. Ranges given to
// [Matrix.Mul] start at multiples of it; multiples of twice as many are faster.
const Panel = 16

// Matrix is Rows x K weights, row after row in the block format of Type. Data may be
// read-only and at any address.
type Matrix struct {
	Type    quant.Type
	Rows, K int
	Data    []byte
	// Woven is a copy of Data in another order (see Weave), or nil. With it products of few columns are faster.
	Woven []byte
}

// Supported reports whether matrices of type t can be multiplied.
func Supported(t quant.Type) bool { return formatOf(t) != nil }

// Validate checks that the fields agree with each other. Mul relies on it.
func (m *Matrix) Validate() error {
	if !Supported(m.Type) {
		return fmt.Errorf("no product for weights of type %s", m.Type)
	}
	bl := m.Type.BlockLen()
	if m.Rows < 0 || m.K < 0 || m.K%bl != 0 {
		return fmt.Errorf("%s matrix of %d x %d: rows are not whole blocks of %d values", m.Type, m.Rows, m.K, bl)
	}
	row := m.Type.RowBytes(m.K)
	if row > 0 && m.Rows > len(m.Data)/row || m.Rows*row != len(m.Data) {
		return fmt.Errorf("%s matrix of %d x %d: %d bytes, want %d", m.Type, m.Rows, m.K, len(m.Data), m.Rows*row)
	}
	return nil
}

// Mul computes y[c*ys+r] = W[r,:] . x[c] for rows [r0, r1) and every column c of x. r0 is
// a multiple of [Panel], r1 too or m.Rows. x has m.K values per column. s belongs to the
// calling worker, which will probably go on with the rows from r1 to ahead: their first weights are
// prefetched, nothing beyond. Ranges of the same product may run at the same time.
func (m *Matrix) Mul(y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) {
	if r0 >= r1 || x.n == 0 {
		return
	}
	if x.k != m.K || r0 < 0 || r0%Panel != 0 || r1 > m.Rows || r1%Panel != 0 && r1 != m.Rows {
		panic(fmt.Sprintf("qmat: rows [%d, %d) of %d x %d times columns of %d", r0, r1, m.Rows, m.K, x.k))
	}
	_ = y[(x.n-1)*ys+r1-1]
	if m.K == 0 {
		for c := range x.n {
			clear(y[c*ys+r0 : c*ys+r1])
		}
		return
	}
	f := formatOf(m.Type)
	if kernel.Current() != kernel.Generic && m.mulAsm(f, y, ys, x, r0, r1, min(max(r1, ahead), m.Rows), s) {
		return
	}
	m.mulGeneric(f, y, ys, x, r0, r1)
}
