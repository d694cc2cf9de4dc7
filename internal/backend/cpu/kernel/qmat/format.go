package qmat

import (
	"encoding/binary"
	"math"
	"unsafe"

	"strobe/internal/quant"
)

// kind says how the sub-blocks of a format enter the sum; there is one set of micro
// kernels per kind.
type kind int

const (
	off32 kind = iota // sub-blocks of 32, signed codes
	min32             // sub-blocks of 32, unsigned codes and a minimum
	off16             // sub-blocks of 16, signed codes
	min16             // sub-blocks of 16, unsigned codes and a minimum
)

// order16 is the order in which the sub-blocks of 16 of one half block (128 values) are
// added: the order in which the two nibbles of Q6_K's bytes come up.
var order16 = [8]int{0, 4, 1, 5, 2, 6, 3, 7}

// unpacked is up to 256 values of one row: value i is scale[i/sub]*q[i] + min[i/sub].
type unpacked struct {
	q     [256]int8
	scale [16]float32
	min   [16]float32
	units [16]byte // scales as types with a grid have them
}

// format describes one weight type.
type format struct {
	kind  kind
	len   int // values per block of the file
	bytes int // bytes per block of the file
	// unpack decodes one block of the file whose values start at u.q[at]; at is a
	// multiple of 32.
	unpack func(u *unpacked, at int, b []byte)
}

// block decodes block b (256 values, or what is left of k) of a row and returns the number
// of values.
func (f *format) block(u *unpacked, row []byte, b, k int) int {
	n := min(blockLen, k-b*blockLen)
	src := row[b*blockLen/f.len*f.bytes:]
	for at := 0; at < n; at += f.len {
		f.unpack(u, at, src[:f.bytes])
		src = src[f.bytes:]
	}
	return n
}

func formatOf(t quant.Type) *format {
	if int(t) >= len(formats) || formats[t].unpack == nil {
		return nil
	}
	return &formats[t]
}

var formats = [...]format{
	quant.Q4_0:    {off32, 32, 18, unpackQ40},
	quant.Q4_1:    {min32, 32, 20, unpackQ41},
	quant.Q5_0:    {off32, 32, 22, unpackQ50},
	quant.Q5_1:    {min32, 32, 24, unpackQ51},
	quant.Q8_0:    {off32, 32, 34, unpackQ80},
	quant.Q2_K:    {min16, 256, 84, unpackQ2K},
	quant.Q3_K:    {off16, 256, 110, unpackQ3K},
	quant.Q4_K:    {min32, 256, 144, unpackQ4K},
	quant.Q5_K:    {min32, 256, 176, unpackQ5K},
	quant.Q6_K:    {off16, 256, 210, unpackQ6K},
	quant.IQ1_S:   {off32, 256, 50, grid32(quant.IQ1_S)},
	quant.IQ1_M:   {off16, 256, 56, grid16(quant.IQ1_M)},
	quant.IQ2_XXS: {off32, 256, 66, grid32(quant.IQ2_XXS)},
	quant.IQ2_XS:  {min16, 256, 74, gridMin(quant.IQ2_XS)},
	quant.IQ2_S:   {min16, 256, 82, gridMin(quant.IQ2_S)},
	quant.IQ3_XXS: {off32, 256, 98, grid32(quant.IQ3_XXS)},
	quant.IQ3_S:   {off32, 256, 110, grid32(quant.IQ3_S)},
	quant.IQ4_NL:  {off32, 32, 18, unpackIQ4NL},
	quant.IQ4_XS:  {off32, 256, 136, unpackIQ4XS},
	quant.TQ1_0:   {off32, 256, 54, unpackTQ10},
	quant.TQ2_0:   {off32, 256, 66, unpackTQ20},
	quant.MXFP4:   {off32, 32, 17, unpackMXFP4},
	quant.NVFP4:   {off16, 64, 36, unpackNVFP4},
	quant.Q1_0:    {off32, 128, 18, unpackQ10},
	quant.Q2_0:    {off32, 64, 18, unpackQ20},
}

func half(b []byte) float32 { return quant.F16ToF32(binary.LittleEndian.Uint16(b)) }

func unpackQ40(u *unpacked, at int, b []byte) {
	u.scale[at/32] = half(b)
	for i, v := range b[2:18] {
		u.q[at+i], u.q[at+i+16] = int8(v&15)-8, int8(v>>4)-8
	}
}

func unpackQ41(u *unpacked, at int, b []byte) {
	u.scale[at/32], u.min[at/32] = half(b), half(b[2:])
	for i, v := range b[4:20] {
		u.q[at+i], u.q[at+i+16] = int8(v&15), int8(v>>4)
	}
}

func unpackQ50(u *unpacked, at int, b []byte) {
	u.scale[at/32] = half(b)
	fifth(u, at, b[2:22], 16)
}

func unpackQ51(u *unpacked, at int, b []byte) {
	u.scale[at/32], u.min[at/32] = half(b), half(b[2:])
	fifth(u, at, b[4:24], 0)
}

// fifth decodes 32 bits of high halves followed by 16 bytes of nibbles.
func fifth(u *unpacked, at int, b []byte, off int8) {
	h := binary.LittleEndian.Uint32(b)
	for i, v := range b[4:20] {
		u.q[at+i] = int8(v&15|byte(h>>i&1)<<4) - off
		u.q[at+i+16] = int8(v>>4|byte(h>>(i+16)&1)<<4) - off
	}
}

func unpackQ80(u *unpacked, at int, b []byte) {
	u.scale[at/32] = half(b)
	for i, v := range b[2:34] {
		u.q[at+i] = int8(v)
	}
}

func unpackQ2K(u *unpacked, at int, b []byte) {
	d, dm := half(b[80:]), half(b[82:])
	for i := range 16 {
		u.scale[i] = d * float32(b[i]&15)
		u.min[i] = -dm * float32(b[i]>>4)
		src := b[16+32*(i/8)+16*(i%2):][:16]
		for l, v := range src {
			u.q[16*i+l] = int8(v >> (2 * (i / 2 % 4)) & 3)
		}
	}
}

func unpackQ3K(u *unpacked, at int, b []byte) {
	d, s := half(b[108:]), b[96:108]
	for i := range 16 {
		sc := s[i%8]>>(4*(i/8))&15 | s[8+i%4]>>(2*(i/4))&3<<4
		u.scale[i] = d * float32(int8(sc)-32)
		l0 := 16 * (i % 2)
		for l := range 16 {
			q := b[32+32*(i/8)+l0+l] >> (2 * (i / 2 % 4)) & 3
			bit := b[l0+l] >> (4*(i/8) + i/2%4) & 1
			u.q[16*i+l] = int8(q|bit<<2) - 4
		}
	}
}

// scales4K decodes the header that Q4_K and Q5_K share.
func scales4K(u *unpacked, b []byte) {
	d, dm, s := half(b), half(b[2:]), b[4:16]
	for j := range 8 {
		var sc, mn byte
		if j < 4 {
			sc, mn = s[j]&63, s[j+4]&63
		} else {
			sc = s[j+4]&15 | s[j-4]>>6<<4
			mn = s[j+4]>>4 | s[j]>>6<<4
		}
		u.scale[j] = d * float32(sc)
		u.min[j] = -dm * float32(mn)
	}
}

func unpackQ4K(u *unpacked, at int, b []byte) {
	scales4K(u, b)
	for c := range 4 {
		for l, v := range b[16+32*c:][:32] {
			u.q[64*c+l], u.q[64*c+32+l] = int8(v&15), int8(v>>4)
		}
	}
}

func unpackQ5K(u *unpacked, at int, b []byte) {
	scales4K(u, b)
	for c := range 4 {
		for l, v := range b[48+32*c:][:32] {
			h := b[16+l] >> (2 * c)
			u.q[64*c+l], u.q[64*c+32+l] = int8(v&15|h&1<<4), int8(v>>4|h>>1&1<<4)
		}
	}
}

func unpackQ6K(u *unpacked, at int, b []byte) {
	d := half(b[208:])
	for i := range 16 {
		u.scale[i] = d * float32(int8(b[192+i]))
	}
	for h := range 2 {
		ql, qh, q := b[64*h:], b[128+32*h:], u.q[128*h:]
		for l := range 32 {
			q[l] = int8(ql[l]&15|qh[l]&3<<4) - 32
			q[l+32] = int8(ql[l+32]&15|qh[l]>>2&3<<4) - 32
			q[l+64] = int8(ql[l]>>4|qh[l]>>4&3<<4) - 32
			q[l+96] = int8(ql[l+32]>>4|qh[l]>>6&3<<4) - 32
		}
	}
}

// iq4 is the code book of IQ4_NL and IQ4_XS.
var iq4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// fp4 holds the E2M1 numbers times two; scales below are halved in turn.
var fp4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func table16(q []int8, b []byte, t *[16]int8) {
	for i, v := range b {
		q[i], q[i+len(b)] = t[v&15], t[v>>4]
	}
}

func unpackIQ4NL(u *unpacked, at int, b []byte) {
	u.scale[at/32] = half(b)
	table16(u.q[at:], b[2:18], &iq4)
}

func unpackIQ4XS(u *unpacked, at int, b []byte) {
	d, h := half(b), binary.LittleEndian.Uint16(b[2:])
	for j := range 8 {
		ls := int32(b[4+j/2]>>(4*(j%2))&15) | int32(h>>(2*j)&3)<<4
		u.scale[j] = d * float32(ls-32)
		table16(u.q[32*j:], b[8+16*j:][:16], &iq4)
	}
}

func unpackMXFP4(u *unpacked, at int, b []byte) {
	u.scale[at/32] = e8m0Half(b[0])
	table16(u.q[at:], b[1:17], &fp4)
}

// e8m0Half returns 2^(e-128).
func e8m0Half(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func unpackNVFP4(u *unpacked, at int, b []byte) {
	for s := range 4 {
		u.scale[at/16+s] = e4m3Half(b[s])
		table16(u.q[at+16*s:], b[4+8*s:][:8], &fp4)
	}
}

// e4m3Half returns half of an unsigned E4M3 number; its NaN counts as zero.
func e4m3Half(b byte) float32 {
	exp, man := int(b>>3&15), float64(b&7)
	switch {
	case b == 0 || b == 0x7f:
		return 0
	case exp == 0:
		return float32(math.Ldexp(man, -10))
	}
	return float32(math.Ldexp(1+man/8, exp-8))
}

// one gives all eight sub-blocks of a 256-value block the same scale.
func one(u *unpacked, d float32) {
	for j := range 8 {
		u.scale[j] = d
	}
}

func unpackTQ10(u *unpacked, at int, b []byte) {
	one(u, half(b[52:]))
	// Digit n of a byte, base 3, most significant first, stored as a fixed-point fraction.
	digit := func(v byte, n int) int8 {
		for range n {
			v *= 3
		}
		return int8(uint16(v)*3>>8) - 1
	}
	q := u.q[:0]
	for n := range 5 {
		for _, v := range b[:32] {
			q = append(q, digit(v, n))
		}
	}
	for n := range 5 {
		for _, v := range b[32:48] {
			q = append(q, digit(v, n))
		}
	}
	for n := range 4 {
		for _, v := range b[48:52] {
			q = append(q, digit(v, n))
		}
	}
}

func unpackTQ20(u *unpacked, at int, b []byte) {
	one(u, half(b[64:]))
	for h := range 2 {
		for l := range 4 {
			for m, v := range b[32*h:][:32] {
				u.q[128*h+32*l+m] = int8(v>>(2*l)&3) - 1
			}
		}
	}
}

func unpackQ10(u *unpacked, at int, b []byte) {
	d := half(b)
	for j := range 4 {
		u.scale[at/32+j] = d
	}
	for i := range 128 {
		u.q[at+i] = int8(b[2+i/8]>>(i%8)&1)*2 - 1
	}
}

func unpackQ20(u *unpacked, at int, b []byte) {
	d := half(b)
	u.scale[at/32], u.scale[at/32+1] = d, d
	for i := range 64 {
		u.q[at+i] = int8(b[2+i/4]>>(2*(i%4))&3) - 1
	}
}

// grid32 decodes a type that stores points of a grid, with one scale for 32 values.
func grid32(t quant.Type) func(u *unpacked, at int, b []byte) {
	decode := t.Grid()
	return func(u *unpacked, at int, b []byte) {
		d := decode((*[256]byte)(unsafe.Pointer(&u.q)), &u.units, b)
		for j := range 8 {
			u.scale[j] = d * float32(u.units[2*j])
		}
	}
}

// grid16 is the same with a scale for 16 values.
func grid16(t quant.Type) func(u *unpacked, at int, b []byte) {
	decode := t.Grid()
	return func(u *unpacked, at int, b []byte) {
		d := decode((*[256]byte)(unsafe.Pointer(&u.q)), &u.units, b)
		for j, s := range u.units {
			u.scale[j] = d * float32(s)
		}
	}
}

// gridMin is grid16 for codes from -43 to 43, too large for the offset of 32 that kernels for signed codes in groups of
// 16 have: they count from the smallest.
func gridMin(t quant.Type) func(u *unpacked, at int, b []byte) {
	unpack := grid16(t)
	return func(u *unpacked, at int, b []byte) {
		unpack(u, at, b)
		for i := range u.q {
			u.q[i] += 43
		}
		for j, s := range u.scale {
			u.min[j] = -43 * s
		}
	}
}
