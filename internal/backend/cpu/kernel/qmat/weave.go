package qmat

import (
	"encoding/binary"

	"strobe/internal/quant"
)

// Kernels multiply 16 rows at a time, one lane per row, so that rows stored one after the other have to be transposed
// first: for few columns that is most of the work. Woven weights are transposed already: of every panel of 16 rows
// and every block, dword 0 of all rows, then dword 1, and so on; two bytes that are left over come last. A panel keeps
// its place and size.

// Weavable reports whether there are kernels for woven weights of this type.
func Weavable(t quant.Type) bool { return weavable(t) }

// WovenBytes is the size of a woven matrix: whole panels.
func (m *Matrix) WovenBytes() int { return m.panels() * Panel * m.Type.RowBytes(m.K) }

func (m *Matrix) panels() int { return (m.Rows + Panel - 1) / Panel }

// Weave writes panels [p0, p1) of m to their places in dst, which has WovenBytes. Missing rows become zeros.
func (m *Matrix) Weave(dst []byte, p0, p1 int) {
	block := m.Type.BlockBytes()
	row := m.Type.RowBytes(m.K)
	pieces := block / 16 * 16 // that the kernel takes, if there is one
	for p := p0; p < p1; p++ {
		out := dst[p*Panel*row:][:Panel*row]
		rows := min(Panel, m.Rows-p*Panel)
		if rows < Panel {
			clear(out)
		}
		in := m.Data[p*Panel*row:][:rows*row]
		for b := 0; b < row; b += block {
			to := out[b*Panel:][:block*Panel]
			first := 0
			if rows == Panel && weavePieces(to, in[b:], row, pieces/16) {
				first = pieces
			}
			for r := range rows {
				from := in[r*row+b:][:block]
				d := first
				for ; d+4 <= block; d += 4 {
					binary.LittleEndian.PutUint32(to[d*Panel+4*r:], binary.LittleEndian.Uint32(from[d:]))
				}
				if d < block {
					copy(to[d*Panel+2*r:], from[d:])
				}
			}
		}
	}
}

// WovenRow writes row r of woven weights to dst, in the order of the file.
func (m *Matrix) WovenRow(dst []byte, r int) {
	block, row := m.Type.BlockBytes(), m.Type.RowBytes(m.K)
	panel, lane := m.Woven[r/Panel*Panel*row:][:Panel*row], r%Panel
	for b := 0; b < row; b += block {
		to, from := dst[b:][:block], panel[b*Panel:][:block*Panel]
		d := 0
		for ; d+4 <= block; d += 4 {
			binary.LittleEndian.PutUint32(to[d:], binary.LittleEndian.Uint32(from[d*Panel+4*lane:]))
		}
		if d < block {
			copy(to[d:], from[d*Panel+2*lane:])
		}
	}
}
