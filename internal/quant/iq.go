package quant

import (
	_ "embed"
	"encoding/binary"
	"math/bits"
)

// The types IQ1, IQ2 and IQ3 store eight (IQ3: four) values at a time as the number of a point in a grid that was
// chosen upstream, with signs and scales apart. IQ4 has no grid; it is with the other tables of nibbles.

// gridBits holds the grids: a bit for each point of {0, 1, 2}^8, or {0, ..., 7}^4, the first coordinate being the least
// significant digit. Points are numbered in order.
//
//go:embed grids.bin
var gridBits []byte

// The grids, a byte for each value.
var grid2xxs, grid2xs, grid2s, grid1, grid3xxs, grid3s = func() (a, b, c, d, e, f []uint64) {
	rest := gridBits
	next := func(coords int, values ...byte) (points []uint64) {
		n := 1
		for range coords {
			n *= len(values)
		}
		for i := range n {
			if rest[i/8]>>(i%8)&1 == 0 {
				continue
			}
			var p uint64
			for c, v := 0, i; c < coords; c, v = c+1, v/len(values) {
				p |= uint64(values[v%len(values)]) << (8 * c)
			}
			points = append(points, p)
		}
		rest = rest[(n+7)/8:]
		return points
	}
	a, b, c = next(8, 8, 25, 43), next(8, 8, 25, 43), next(8, 8, 25, 43)
	d = next(8, 0, 1, 2)
	e, f = next(4, 4, 12, 20, 28, 36, 44, 52, 62), next(4, 1, 3, 5, 7, 9, 11, 13, 15)
	return a, b, c, d, e, f
}()

// low are the lowest bits of eight bytes.
const low = 0x0101010101010101

// masks turn bits into bytes of ones.
var masks = func() (m [256]uint64) {
	for i := range m {
		for b := range 8 {
			m[i] |= uint64(i>>b&1) * 0xff << (8 * b)
		}
	}
	return m
}()

// signed negates the bytes of p whose bits are set. None of them is zero, so nothing is carried over.
func signed(p uint64, signs byte) uint64 {
	m := masks[signs]
	return p ^ m + m&low
}

// even completes seven signs by one that makes the number of minuses even.
func even(s uint32) byte {
	b := byte(s & 127)
	return b | byte(bits.OnesCount8(b)&1)<<7
}

// GridDecoder takes a block of 256 values apart: value i is d times scale[i/16] times q[i], a signed byte. All three
// are small enough for float32 to hold the product exactly.
type GridDecoder func(q *[256]byte, scale *[16]byte, b []byte) (d float32)

var gridDecoders = map[Type]GridDecoder{
	IQ1_S: decodeIQ1S, IQ1_M: decodeIQ1M, IQ2_XXS: decodeIQ2XXS, IQ2_XS: decodeIQ2XS, IQ2_S: decodeIQ2S,
	IQ3_XXS: decodeIQ3XXS, IQ3_S: decodeIQ3S,
}

// Grid returns the decoder of a type that stores points of a grid, nil for other types.
func (t Type) Grid() GridDecoder { return gridDecoders[t] }

// GridPoints returns the points of such a type in the order of their numbers, a byte for each value: the magnitudes of
// IQ2 and IQ3, and 0, 1 and 2 for what IQ1 moves by an eighth. IQ3 has four values.
func (t Type) GridPoints() []uint64 {
	switch t {
	case IQ1_S, IQ1_M:
		return grid1
	case IQ2_XXS:
		return grid2xxs
	case IQ2_XS:
		return grid2xs
	case IQ2_S:
		return grid2s
	case IQ3_XXS:
		return grid3xxs
	case IQ3_S:
		return grid3s
	}
	return nil
}

// dequantGrid makes the row function of such a type.
func dequantGrid(t Type) func(dst []float32, src []byte) {
	decode, size := gridDecoders[t], types[t].blockBytes
	return func(dst []float32, src []byte) {
		var q [256]byte
		var scale [16]byte
		for ; len(dst) >= 256 && len(src) >= size; dst, src = dst[256:], src[size:] {
			d := decode(&q, &scale, src[:size])
			y := (*[256]float32)(dst)
			for i, v := range q {
				y[i] = d * float32(int32(int8(v))*int32(scale[i/16]))
			}
		}
	}
}

func put(q *[256]byte, i int, v uint64) { binary.LittleEndian.PutUint64(q[8*i:], v) }

// odd is the number that the three or four bits of a scale stand for.
func odd(bits byte) byte { return 2*bits + 1 }

func decodeIQ2XXS(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b) / 8
	for s := range 8 {
		p := b[2+8*s:][:8]
		w := binary.LittleEndian.Uint32(p[4:])
		scale[2*s] = odd(byte(w >> 28))
		scale[2*s+1] = scale[2*s]
		for l := range 4 {
			put(q, 4*s+l, signed(grid2xxs[p[l]], even(w>>(7*l))))
		}
	}
	return d
}

func decodeIQ2XS(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b) / 8
	for i := range 16 {
		scale[i] = odd(b[66+i/2] >> (i % 2 * 4) & 15)
	}
	for i := range 32 {
		w := uint32(binary.LittleEndian.Uint16(b[2+2*i:]))
		put(q, i, signed(grid2xs[w&511], even(w>>9)))
	}
	return d
}

func decodeIQ2S(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b) / 8
	for i := range 16 {
		scale[i] = odd(b[74+i/2] >> (i % 2 * 4) & 15)
	}
	for i := range 32 {
		at := int(b[2+i]) | int(b[66+i/4]>>(i%4*2)&3)<<8
		put(q, i, signed(grid2s[at], b[34+i]))
	}
	return d
}

func decodeIQ3XXS(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b) / 4
	for s := range 8 {
		p, w := b[2+8*s:][:8], binary.LittleEndian.Uint32(b[66+4*s:])
		scale[2*s] = odd(byte(w >> 28))
		scale[2*s+1] = scale[2*s]
		for l := range 4 {
			put(q, 4*s+l, signed(grid3xxs[p[2*l]]|grid3xxs[p[2*l+1]]<<32, even(w>>(7*l))))
		}
	}
	return d
}

func decodeIQ3S(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b)
	for s := range 8 {
		scale[2*s] = odd(b[106+s/2] >> (s % 2 * 4) & 15)
		scale[2*s+1] = scale[2*s]
	}
	for i := range 32 {
		p, high := b[2+2*i:][:2], int(b[66+i/4]>>(i%4*2))
		put(q, i, signed(grid3s[int(p[0])|high&1<<8]|grid3s[int(p[1])|high>>1&1<<8]<<32, b[74+i]))
	}
	return d
}

// shifted1 are the points of the grid of IQ1, coordinates -1, 0 and 1 times eight, plus one and minus one: the values
// of a group are moved by an eighth in one direction.
var shifted1 = func() (s [2][]uint64) {
	for i, by := range []byte{1, 0xff} {
		for _, p := range grid1 {
			var v uint64
			for c := range 8 {
				v |= uint64(8*(byte(p>>(8*c))-1)+by) << (8 * c)
			}
			s[i] = append(s[i], v)
		}
	}
	return s
}()

func decodeIQ1S(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	d = half(b) / 8
	for s := range 8 {
		h := binary.LittleEndian.Uint16(b[34+2*s:])
		scale[2*s] = odd(byte(h >> 12 & 7))
		scale[2*s+1] = scale[2*s]
		for l := range 4 {
			put(q, 4*s+l, shifted1[h>>15][int(b[2+4*s+l])|int(h>>(3*l)&7)<<8])
		}
	}
	return d
}

func decodeIQ1M(q *[256]byte, scale *[16]byte, b []byte) (d float32) {
	// Four words of four 3-bit scales each; the bits that are left are those of the half.
	var w [4]uint16
	var h uint16
	for i := range w {
		w[i] = binary.LittleEndian.Uint16(b[48+2*i:])
		h |= w[i] >> 12 << (4 * i)
	}
	d = F16ToF32(h) / 8
	for i := range 16 {
		scale[i] = odd(byte(w[i/4] >> (i % 4 * 3) & 7))
	}
	for i := range 32 {
		n := b[32+i/2] >> (i % 2 * 4)
		put(q, i, shifted1[n>>3&1][int(b[i])|int(n&7)<<8])
	}
	return d
}
