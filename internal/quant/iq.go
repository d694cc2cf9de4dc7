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

// masks turn bits into bytes of ones.
var masks = func() (m [256]uint64) {
	for i := range m {
		for b := range 8 {
			m[i] |= uint64(i>>b&1) * 0xff << (8 * b)
		}
	}
	return m
}()

// signed negates the bytes of p whose bits are set and adds 128, which makes them codes. None of them is zero, so
// nothing is carried over.
func signed(p uint64, signs byte) uint64 {
	m := masks[signs]
	return (p ^ m + m&bytes01) ^ bytes80
}

// even completes seven signs by one that makes the number of minuses even.
func even(s uint32) byte {
	b := byte(s & 127)
	return b | byte(bits.OnesCount8(b)&1)<<7
}

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

// odd is the number that the three or four bits of a scale stand for.
func odd(bits byte) byte { return 2*bits + 1 }

func unpackIQ2XXS(b *Block, codes, src []byte) {
	b.D = get16(src)
	for s := range 8 {
		p := src[2+8*s:][:8]
		w := binary.LittleEndian.Uint32(p[4:])
		b.Scales[s] = odd(byte(w >> 28))
		for l := range 4 {
			put64(codes[32*s+8*l:], signed(grid2xxs[p[l]], even(w>>(7*l))))
		}
	}
}

func unpackIQ2XS(b *Block, codes, src []byte) {
	b.D = get16(src)
	for i := range 16 {
		b.Scales[i] = odd(src[66+i/2] >> (i % 2 * 4) & 15)
	}
	for i := range 32 {
		w := uint32(get16(src[2+2*i:]))
		put64(codes[8*i:], signed(grid2xs[w&511], even(w>>9)))
	}
}

func unpackIQ2S(b *Block, codes, src []byte) {
	b.D = get16(src)
	for i := range 16 {
		b.Scales[i] = odd(src[74+i/2] >> (i % 2 * 4) & 15)
	}
	for i := range 32 {
		at := int(src[2+i]) | int(src[66+i/4]>>(i%4*2)&3)<<8
		put64(codes[8*i:], signed(grid2s[at], src[34+i]))
	}
}

func unpackIQ3XXS(b *Block, codes, src []byte) {
	b.D = get16(src)
	for s := range 8 {
		p, w := src[2+8*s:][:8], binary.LittleEndian.Uint32(src[66+4*s:])
		b.Scales[s] = odd(byte(w >> 28))
		for l := range 4 {
			put64(codes[32*s+8*l:], signed(grid3xxs[p[2*l]]|grid3xxs[p[2*l+1]]<<32, even(w>>(7*l))))
		}
	}
}

func unpackIQ3S(b *Block, codes, src []byte) {
	b.D = get16(src)
	for s := range 8 {
		b.Scales[s] = odd(src[106+s/2] >> (s % 2 * 4) & 15)
	}
	for i := range 32 {
		p, high := src[2+2*i:][:2], int(src[66+i/4]>>(i%4*2))
		put64(codes[8*i:], signed(grid3s[int(p[0])|high&1<<8]|grid3s[int(p[1])|high>>1&1<<8]<<32, src[74+i]))
	}
}

// shifted1 are the points of the grid of IQ1, coordinates -1, 0 and 1 times eight, plus one and minus one: the values
// of a group are moved by an eighth in one direction. They are codes, 128 more.
var shifted1 = func() (s [2][]uint64) {
	for i, by := range []byte{1, 0xff} {
		for _, p := range grid1 {
			var v uint64
			for c := range 8 {
				v |= uint64(8*(byte(p>>(8*c))-1)+by+128) << (8 * c)
			}
			s[i] = append(s[i], v)
		}
	}
	return s
}()

func unpackIQ1S(b *Block, codes, src []byte) {
	b.D = get16(src)
	for s := range 8 {
		h := get16(src[34+2*s:])
		b.Scales[s] = odd(byte(h >> 12 & 7))
		for l := range 4 {
			put64(codes[32*s+8*l:], shifted1[h>>15][int(src[2+4*s+l])|int(h>>(3*l)&7)<<8])
		}
	}
}

func unpackIQ1M(b *Block, codes, src []byte) {
	// Four words of four 3-bit scales each; the bits that are left are those of the half.
	b.D = 0
	for i := range 4 {
		w := get16(src[48+2*i:])
		b.D |= w >> 12 << (4 * i)
		for j := range 4 {
			b.Scales[4*i+j] = odd(byte(w >> (3 * j) & 7))
		}
	}
	for i := range 32 {
		n := src[32+i/2] >> (i % 2 * 4)
		put64(codes[8*i:], shifted1[n>>3&1][int(src[i])|int(n&7)<<8])
	}
}
