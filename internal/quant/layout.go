package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Layout says what a block of a quantised type consists of: codes, and scales that several codes share. This is the one
// place that knows; [Dequantize], the products of the CPU and the tiles of the GPU all start from it.
//
//	value = scale of the sub-block * value of the code + minimum of the sub-block
type Layout struct {
	Sub    int       // values of a sub-block, which share a scale: 16 or 32
	Min    bool      // sub-blocks have a minimum
	Offset byte      // the value of a code is the code minus this,
	Table  *[16]int8 // unless codes are indices of a table
	Scale  ScaleKind
	Shift  int // the half D is divided by 2^Shift

	typ    Type
	values [256]float32 // of all codes
}

// ScaleKind says how a block stores the scales of its sub-blocks.
type ScaleKind int

const (
	ScaleHalf ScaleKind = iota // D, for the whole block; the minimum is M
	ScaleInt                   // D times a signed byte; the minimum is -M times a byte
	ScaleE8M0                  // a power of two, halved because Table is doubled
	ScaleE4M3                  // a float of eight bits, halved because Table is doubled
)

// Block is what a block has beside its codes, as stored: nothing is multiplied or rounded.
type Block struct {
	D, M         uint16   // halves
	Scales, Mins [16]byte // of the sub-blocks; not for ScaleHalf
}

// Layout returns the layout of a quantised type, nil for plain numbers and types that cannot be read.
func (t Type) Layout() *Layout {
	if t > maxType {
		return nil
	}
	return types[t].layout
}

// BlockTypes lists the types that have a layout. Whatever reads weights must support all of them.
func BlockTypes() (ts []Type) {
	for t := range types {
		if types[t].layout != nil {
			ts = append(ts, Type(t))
		}
	}
	return ts
}

func init() {
	for _, t := range BlockTypes() {
		l := types[t].layout
		l.typ = t
		for code := range l.values {
			l.values[code] = float32(code - int(l.Offset))
			if l.Table != nil {
				l.values[code] = float32(l.Table[code%16])
			}
		}
	}
}

// Unpack takes one block apart. codes has the block length, src the block's bytes. It is a switch, not a table of
// functions, so that what callers pass stays on their stacks.
func (l *Layout) Unpack(b *Block, codes, src []byte) {
	switch l.typ {
	case Q4_0, IQ4_NL:
		unpackQ40(b, codes, src)
	case Q4_1:
		unpackQ41(b, codes, src)
	case Q5_0:
		unpackQ50(b, codes, src)
	case Q5_1:
		unpackQ51(b, codes, src)
	case Q8_0:
		unpackQ80(b, codes, src)
	case Q2_K:
		unpackQ2K(b, codes, src)
	case Q3_K:
		unpackQ3K(b, codes, src)
	case Q4_K:
		unpackQ4K(b, codes, src)
	case Q5_K:
		unpackQ5K(b, codes, src)
	case Q6_K:
		unpackQ6K(b, codes, src)
	case IQ2_XXS:
		unpackIQ2XXS(b, codes, src)
	case IQ2_XS:
		unpackIQ2XS(b, codes, src)
	case IQ3_XXS:
		unpackIQ3XXS(b, codes, src)
	case IQ1_S:
		unpackIQ1S(b, codes, src)
	case IQ3_S:
		unpackIQ3S(b, codes, src)
	case IQ2_S:
		unpackIQ2S(b, codes, src)
	case IQ4_XS:
		unpackIQ4XS(b, codes, src)
	case IQ1_M:
		unpackIQ1M(b, codes, src)
	case TQ1_0:
		unpackTQ10(b, codes, src)
	case TQ2_0:
		unpackTQ20(b, codes, src)
	case MXFP4:
		unpackMXFP4(b, codes, src)
	case NVFP4:
		unpackNVFP4(b, codes, src)
	case Q1_0:
		unpackQ10(b, codes, src)
	case Q2_0:
		unpackQ20(b, codes, src)
	default:
		panic(fmt.Sprintf("quant: no way to unpack %v", l.typ))
	}
}

// Floats computes the scales of the sub-blocks and, of types that have them, the minima, in float32 and with one
// rounding each. Both slices have one number for each sub-block.
func (l *Layout) Floats(b *Block, scales, mins []float32) {
	switch l.Scale {
	case ScaleHalf:
		d := F16ToF32(b.D)
		for j := range scales {
			scales[j] = d
		}
		if l.Min {
			m := F16ToF32(b.M)
			for j := range mins {
				mins[j] = m
			}
		}
	case ScaleInt:
		d := F16ToF32(b.D) / float32(int(1)<<l.Shift)
		for j := range scales {
			scales[j] = d * float32(int8(b.Scales[j]))
		}
		if l.Min {
			m := -F16ToF32(b.M)
			for j := range mins {
				mins[j] = m * float32(b.Mins[j])
			}
		}
	case ScaleE8M0:
		for j := range scales {
			scales[j] = e8m0Half(b.Scales[j])
		}
	case ScaleE4M3:
		for j := range scales {
			scales[j] = e4m3Half(b.Scales[j])
		}
	}
}

// e8m0Half is half of the E8M0 scale 2^(e-127); for e below 2 the half is a float32 subnormal.
func e8m0Half(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// e4m3Half is half of an unsigned E4M3 scale. The sign bit has no meaning and the NaN code counts as zero, as upstream
// reads them.
func e4m3Half(b byte) float32 {
	if b == 0 || b == 0x7f {
		return 0
	}
	exp, man := int32(b>>3&15), int32(b&7)
	if exp == 0 {
		return float32(man) * 0x1p-10
	}
	return math.Float32frombits(uint32(exp-8+127)<<23 | uint32(man)<<20)
}

// The unpackers below take codes apart eight at a time, a byte each in a word. These words have the same bits in every
// byte.
const (
	bytes01 = 0x0101010101010101
	bytes03 = 3 * bytes01
	bytes0f = 15 * bytes01
	bytes80 = 128 * bytes01
)

func get64(b []byte) uint64    { return binary.LittleEndian.Uint64(b) }
func put64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
func get16(b []byte) uint16    { return binary.LittleEndian.Uint16(b) }

// spreadBits makes a byte, 0 or 1, of every bit.
func spreadBits(b byte) uint64 {
	w := uint64(b) * bytes01 & 0x8040201008040201 // a bit of its own in every byte
	return (w + 0x7f*bytes01) >> 7 & bytes01
}

// spreadPairs makes a byte of every two bits.
func spreadPairs(v uint16) uint64 {
	w := uint64(v)
	w = (w | w<<24) & 0x000000ff000000ff
	w = (w | w<<12) & 0x000f000f000f000f
	return (w | w<<6) & bytes03
}

// nibbles16, nibbles32 and nibbles64 take two codes from every byte: the low nibbles first, then the high ones. Arrays
// of a fixed size spare range checks.
func nibbles16(to *[16]byte, from *[8]byte) {
	x := get64(from[:])
	put64(to[:], x&bytes0f)
	put64(to[8:], x>>4&bytes0f)
}

func nibbles32(to *[32]byte, from *[16]byte) {
	x, y := get64(from[:]), get64(from[8:])
	put64(to[:], x&bytes0f)
	put64(to[8:], y&bytes0f)
	put64(to[16:], x>>4&bytes0f)
	put64(to[24:], y>>4&bytes0f)
}

func nibbles64(to *[64]byte, from *[32]byte) {
	w, x, y, z := get64(from[:]), get64(from[8:]), get64(from[16:]), get64(from[24:])
	put64(to[:], w&bytes0f)
	put64(to[8:], x&bytes0f)
	put64(to[16:], y&bytes0f)
	put64(to[24:], z&bytes0f)
	put64(to[32:], w>>4&bytes0f)
	put64(to[40:], x>>4&bytes0f)
	put64(to[48:], y>>4&bytes0f)
	put64(to[56:], z>>4&bytes0f)
}

// The types with 32 values in a block.

func unpackQ40(b *Block, codes, src []byte) {
	b.D = get16(src)
	nibbles32((*[32]byte)(codes), (*[16]byte)(src[2:]))
}

func unpackQ41(b *Block, codes, src []byte) {
	b.D, b.M = get16(src), get16(src[2:])
	nibbles32((*[32]byte)(codes), (*[16]byte)(src[4:]))
}

func unpackQ50(b *Block, codes, src []byte) {
	b.D = get16(src)
	fiveBits(codes, src[2:])
}

func unpackQ51(b *Block, codes, src []byte) {
	b.D, b.M = get16(src), get16(src[2:])
	fiveBits(codes, src[4:])
}

// fiveBits are 32 codes: a bit 4 of each, then nibbles.
func fiveBits(codes, src []byte) {
	to, high := (*[32]byte)(codes), (*[4]byte)(src)
	nibbles32(to, (*[16]byte)(src[4:]))
	for j := range 4 {
		put64(to[8*j:], get64(to[8*j:])|spreadBits(high[j])<<4)
	}
}

func unpackQ80(b *Block, codes, src []byte) {
	b.D = get16(src)
	to, from := (*[32]byte)(codes), (*[32]byte)(src[2:])
	for j := range 4 {
		put64(to[8*j:], get64(from[8*j:])^bytes80) // plus 128
	}
}

// The K types: 256 values whose sub-blocks have small integer scales under one or two halves.

func unpackQ2K(b *Block, codes, src []byte) {
	b.D, b.M = get16(src[80:]), get16(src[82:])
	for j := 0; j < 16; j += 8 {
		x := get64(src[j:])
		put64(b.Scales[j:], x&bytes0f)
		put64(b.Mins[j:], x>>4&bytes0f)
	}
	pairs256(codes, src[16:])
}

// pairs256 are 256 codes of two bits: 128 in 32 bytes, then the others. Those of a byte lie 32 values apart.
func pairs256(codes, src []byte) {
	for i := range 8 { // 32 values each
		from, to, shift := (*[32]byte)(src[i/4*32:]), (*[32]byte)(codes[32*i:]), uint(i%4*2)
		for l := range 4 {
			put64(to[8*l:], get64(from[8*l:])>>shift&bytes03)
		}
	}
}

func unpackQ3K(b *Block, codes, src []byte) {
	b.D = get16(src[108:])
	for j := range b.Scales {
		b.Scales[j] = (src[96+j%8]>>(j/8*4)&15 | src[104+j%4]>>(j/4*2)&3<<4) - 32
	}
	pairs256(codes, src[32:])
	high := (*[32]byte)(src)
	for i := range uint(8) {
		q := (*[32]byte)(codes[32*i:])
		for l := range 4 {
			put64(q[8*l:], get64(q[8*l:])|get64(high[8*l:])>>i&bytes01<<2)
		}
	}
}

// scales6 reads the header of Q4_K and Q5_K: two halves and, in 12 bytes, eight pairs of a scale and a minimum of six
// bits. The first four pairs are the low bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 and
// their two upper bits above the first four.
func (b *Block) scales6(src []byte) {
	b.D, b.M = get16(src), get16(src[2:])
	le := binary.LittleEndian
	x, y, z := le.Uint32(src[4:]), le.Uint32(src[8:]), le.Uint32(src[12:])
	le.PutUint32(b.Scales[:], x&0x3f3f3f3f)
	le.PutUint32(b.Mins[:], y&0x3f3f3f3f)
	le.PutUint32(b.Scales[4:], z&0x0f0f0f0f|x>>6&0x03030303<<4)
	le.PutUint32(b.Mins[4:], z>>4&0x0f0f0f0f|y>>6&0x03030303<<4)
}

func unpackQ4K(b *Block, codes, src []byte) {
	b.scales6(src)
	for p := range 4 {
		nibbles64((*[64]byte)(codes[64*p:]), (*[32]byte)(src[16+32*p:]))
	}
}

func unpackQ5K(b *Block, codes, src []byte) {
	b.scales6(src)
	high := (*[32]byte)(src[16:])
	for p := range 4 {
		from, to, shift := (*[32]byte)(src[48+32*p:]), (*[64]byte)(codes[64*p:]), uint(2*p)
		for l := range 4 {
			x, h := get64(from[8*l:]), get64(high[8*l:])>>shift
			put64(to[8*l:], x&bytes0f|h&bytes01<<4)
			put64(to[32+8*l:], x>>4&bytes0f|h>>1&bytes01<<4)
		}
	}
}

func unpackQ6K(b *Block, codes, src []byte) {
	b.D = get16(src[208:])
	copy(b.Scales[:], src[192:208])
	for h := range 2 {
		low, high, to := (*[64]byte)(src[64*h:]), (*[32]byte)(src[128+32*h:]), (*[128]byte)(codes[128*h:])
		for l := range 4 {
			x, y, u := get64(low[8*l:]), get64(low[32+8*l:]), get64(high[8*l:])
			put64(to[8*l:], x&bytes0f|u&bytes03<<4)
			put64(to[32+8*l:], y&bytes0f|u>>2&bytes03<<4)
			put64(to[64+8*l:], x>>4&bytes0f|u>>4&bytes03<<4)
			put64(to[96+8*l:], y>>4&bytes0f|u>>6&bytes03<<4)
		}
	}
}

// The types whose codes are indices of a table.

// iq4Values is the table of IQ4_NL and IQ4_XS.
var iq4Values = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// fp4Values are the E2M1 numbers times two, which makes them integers.
var fp4Values = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// signValues is the table of Q1_0.
var signValues = [16]int8{-1, 1}

func unpackIQ4XS(b *Block, codes, src []byte) {
	b.D = get16(src)
	high := get16(src[2:])
	for j := range 8 {
		b.Scales[j] = (src[4+j/2]>>(j%2*4)&15 | byte(high>>(2*j)&3<<4)) - 32
		nibbles32((*[32]byte)(codes[32*j:]), (*[16]byte)(src[8+16*j:]))
	}
}

func unpackMXFP4(b *Block, codes, src []byte) {
	b.Scales[0] = src[0]
	nibbles32((*[32]byte)(codes), (*[16]byte)(src[1:]))
}

func unpackNVFP4(b *Block, codes, src []byte) {
	copy(b.Scales[:4], src)
	for s := range 4 {
		nibbles16((*[16]byte)(codes[16*s:]), (*[8]byte)(src[4+8*s:]))
	}
}

// The types with one or two bits per value: ternary (TQ1_0 in base 3, TQ2_0), binary (Q1_0) and four levels (Q2_0).

var pow3 = [5]byte{1, 3, 9, 27, 81}

func unpackTQ10(b *Block, codes, src []byte) {
	b.D = get16(src[52:])
	// A byte is a fraction in base 3: five digits, the first being the highest. Digit n of all bytes of a run comes
	// before digit n+1 of the first.
	at := 0
	for _, run := range [3]struct{ from, to, digits int }{{0, 32, 5}, {32, 48, 5}, {48, 52, 4}} {
		for n := range run.digits {
			for _, q := range src[run.from:run.to] {
				codes[at] = byte(uint16(q*pow3[n]) * 3 >> 8)
				at++
			}
		}
	}
}

func unpackTQ20(b *Block, codes, src []byte) {
	b.D = get16(src[64:])
	pairs256(codes, src)
}

func unpackQ10(b *Block, codes, src []byte) {
	b.D = get16(src)
	for j, bits := range src[2:18] {
		put64(codes[8*j:], spreadBits(bits))
	}
}

func unpackQ20(b *Block, codes, src []byte) {
	b.D = get16(src)
	for j := range 8 {
		put64(codes[8*j:], spreadPairs(get16(src[2+2*j:])))
	}
}
