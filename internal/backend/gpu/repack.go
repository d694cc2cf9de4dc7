package gpu

import (
	"encoding/binary"
	"math"

	"strobe/internal/quant"
)

// row256 is 256 columns of a row, taken apart. Which scales count depends on the format.
type row256 struct {
	q      [256]byte  // codes; TileQ8: value + 128
	sc, mn [16]byte   // of 16 or 32 columns, as the format says
	d, dm  uint16     // halves, of all columns
	half   [16]uint16 // scales of 16 or 32 columns as halves
	mins   [8]uint16  // of 32 columns, as halves
	scale  [8]float32 // of 32 columns
}

// tiles turns the stored rows of a group into tiles. dst is zero: that is what missing rows and columns are.
func (l WeightLayout) tiles(dst, src []byte) {
	size, stages, stage := l.Type.RowBytes(l.Cols), l.Stages(), l.Format.stageBytes()
	h0, h1 := tileHalves[l.Format][0], tileHalves[l.Format][1]
	take, per := l.taker()
	blocks := stageCols / l.Type.BlockLen() // stored ones of 256 columns
	for r := range len(src) / size {
		row := src[r*size:][:size]
		for kb := range stages {
			var v row256
			for i := range blocks {
				at := (kb*blocks + i) * per
				if at >= size {
					break
				}
				take(&v, row[at:][:per], i)
			}
			s, strip := dst[kb*stage:][:stage], r/tileRows
			tile := [2][]byte{s[strip*h0:][:h0], s[strips*h0+strip*h1:][:h1]}
			l.put(tile, r%tileRows, &v)
		}
	}
}

// The places of the four columns of a step in a word: nibbles that are halves when masked, for the sub-blocks of a
// pair.
var (
	evenNibble = [4]int{0, 4, 2, 6}
	oddNibble  = [4]int{1, 5, 3, 7}
	evenField  = [4]int{0, 1, 4, 5} // 2-bit fields of a pair of columns
	oddField   = [4]int{2, 3, 6, 7}
)

// put writes a row of a tile.
func (l WeightLayout) put(tile [2][]byte, r int, v *row256) {
	le := binary.LittleEndian
	switch l.Format {
	case TileQ4K:
		nibbles(tile, r, v, evenNibble, oddNibble)
		scalesOf32(tile, r, v, 1024)
	case TileQ5K:
		nibbles(tile, r, v, evenNibble, oddNibble)
		fifthBits(tile, r, v)
		scalesOf32(tile, r, v, 1280)
	case TileQ6K:
		nibbles(tile, r, v, evenNibble, oddNibble)
		highPairs(tile, r, v)
		scalesOf16(tile, r, &v.sc, 1536)
		le.PutUint16(tile[1][1664+r*2:], v.d)
	case TileQ2K:
		nibbles(tile, r, v, evenNibble, oddNibble)
		scalesOf16(tile, r, &v.sc, 1024)
		scalesOf16(tile, r, &v.mn, 1152)
		for h := range 2 {
			le.PutUint16(tile[h][1280+r*4:], v.d)
			le.PutUint16(tile[h][1282+r*4:], v.dm)
		}
	case TileQ3K:
		nibbles(tile, r, v, evenNibble, oddNibble)
		scalesOf16(tile, r, &v.sc, 1024)
		le.PutUint16(tile[1][1152+r*2:], v.d)
	case TileQ8, TileQ8M:
		octets(tile, r, v)
		for sb := range 8 {
			le.PutUint16(tile[sb/4][2048+r*8+sb%4*2:], v.half[sb])
			if l.Format == TileQ8M {
				le.PutUint16(tile[1][2176+r*16+sb*2:], v.mins[sb])
			}
		}
	case TileN4:
		nibbles(tile, r, v, [4]int{0, 1, 2, 3}, [4]int{4, 5, 6, 7})
		for sb := range 8 {
			le.PutUint32(tile[sb/4][1024+r*16+sb%4*4:], math.Float32bits(v.scale[sb]))
		}
	case TileNV4:
		nibbles(tile, r, v, [4]int{0, 1, 2, 3}, [4]int{4, 5, 6, 7})
		for j := range 16 { // sub-block j/2, its columns 0-15 or 16-31
			le.PutUint16(tile[j/8][1024+r*16+j%2*8+j/2%4*2:], v.half[j])
		}
	}
}

// nibbles puts the low four bits of the codes in their places: a word has four columns of two sub-blocks.
func nibbles(tile [2][]byte, r int, v *row256, even, odd [4]int) {
	g, hi := r%8, r/8
	for p := range 4 {
		for t := range 4 {
			for j := range 2 {
				var w uint32
				for i := range 4 {
					c := 64*p + 8*t + 4*j + i
					w |= uint32(v.q[c]&15)<<(4*even[i]) | uint32(v.q[c+32]&15)<<(4*odd[i])
				}
				binary.LittleEndian.PutUint32(tile[p/2][p%2*512+(4*g+t)*16+(2*j+hi)*4:], w)
			}
		}
	}
}

// octets puts whole codes.
func octets(tile [2][]byte, r int, v *row256) {
	g, hi := r%8, r/8
	for sb := range 8 {
		for t := range 4 {
			for j := range 2 {
				copy(tile[sb/4][sb%4*512+(4*g+t)*16+(2*j+hi)*4:][:4], v.q[32*sb+8*t+4*j:])
			}
		}
	}
}

// fifthBits puts bit 4 of the codes: a word for two rows and two sub-blocks of a lane.
func fifthBits(tile [2][]byte, r int, v *row256) {
	g, hi := r%8, r/8
	for p := range 4 {
		for t := range 4 {
			b := tile[p/2][1024+(4*g+t)*8+p%2*4:]
			w := binary.LittleEndian.Uint32(b)
			for c := range 8 { // step c/4, pair of columns c/2%2
				bit := c/4*4 + c/2%2*2 + hi + c%2*16
				at := 64*p + 8*t + c
				w |= uint32(v.q[at]>>4&1)<<bit | uint32(v.q[at+32]>>4&1)<<(bit+8)
			}
			binary.LittleEndian.PutUint32(b, w)
		}
	}
}

// highPairs puts bits 4 and 5 of the codes.
func highPairs(tile [2][]byte, r int, v *row256) {
	g, hi := r%8, r/8
	for p := range 4 {
		for t := range 4 {
			var w uint32
			for i := range 4 { // pairs of columns: step i/2, columns 2*(i%2) and the next
				c := 64*p + 8*t + 2*i
				for x := range 2 {
					w |= uint32(v.q[c+x]>>4&3)<<(2*evenField[i]+16*x) | uint32(v.q[c+32+x]>>4&3)<<(2*oddField[i]+16*x)
				}
			}
			binary.LittleEndian.PutUint32(tile[p/2][1024+(4*g+t)*16+(2*(p%2)+hi)*4:], w)
		}
	}
}

// scalesOf32 puts scales, mins and their two halves, behind so many bytes of values.
func scalesOf32(tile [2][]byte, r int, v *row256, at int) {
	for j := range 8 {
		tile[j/4][at+r*4+j%4] = v.sc[j]
		tile[1][at+64+r*8+j] = v.mn[j]
	}
	binary.LittleEndian.PutUint16(tile[1][at+192+r*4:], v.d)
	binary.LittleEndian.PutUint16(tile[1][at+194+r*4:], v.dm)
}

// scalesOf16 puts bytes that belong to 16 columns each: those of columns 0-15 of four sub-blocks, then of 16-31.
func scalesOf16(tile [2][]byte, r int, b *[16]byte, at int) {
	for j := range 16 {
		tile[j/8][at+r*8+j%2*4+j/2%4] = b[j]
	}
}

// taker returns what takes block i of 256 columns apart, and the size of a block.
func (l WeightLayout) taker() (take func(v *row256, b []byte, i int), size int) {
	return takers[l.Type], l.Type.BlockBytes()
}

var takers = map[quant.Type]func(v *row256, b []byte, i int){
	quant.Q4_K: takeQ4K, quant.Q5_K: takeQ5K, quant.Q6_K: takeQ6K, quant.Q2_K: takeQ2K, quant.Q3_K: takeQ3K,
	quant.Q8_0: takeQ80, quant.Q4_0: takeQ40, quant.Q4_1: takeQ41, quant.Q5_0: takeQ50, quant.Q5_1: takeQ51,
	quant.IQ4_NL: takeQ40, quant.IQ4_XS: takeIQ4XS, quant.MXFP4: takeMXFP4, quant.NVFP4: takeNVFP4,
	quant.IQ3_S: takeGrid(quant.IQ3_S, 1), quant.IQ3_XXS: takeGrid(quant.IQ3_XXS, 2),
	quant.IQ1_S: takeGrid(quant.IQ1_S, 1), quant.IQ1_M: takeGrid(quant.IQ1_M, 1), quant.IQ2_XXS: takeIQ2XXS,
	quant.TQ1_0: takeTQ10, quant.TQ2_0: takeTQ20, quant.Q1_0: takeQ10, quant.Q2_0: takeQ20,
}

func half(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }

// scaleMin reads pair j of the eight 6-bit pairs in the 12 bytes of Q4_K and Q5_K.
func scaleMin(s []byte, j int) (sc, mn byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

func takeQ4K(v *row256, b []byte, _ int) {
	v.d, v.dm = half(b), half(b[2:])
	for j := range 8 {
		v.sc[j], v.mn[j] = scaleMin(b[4:16], j)
	}
	for i := range 128 {
		c := i/32*64 + i%32
		v.q[c], v.q[c+32] = b[16+i]&15, b[16+i]>>4
	}
}

func takeQ5K(v *row256, b []byte, i int) {
	takeQ4K(v, b, i) // its codes are elsewhere
	for i := range 128 {
		c, high := i/32*64+i%32, b[16+i%32]>>(i/32*2)
		v.q[c], v.q[c+32] = b[48+i]&15|high&1<<4, b[48+i]>>4|high>>1&1<<4
	}
}

func takeQ6K(v *row256, b []byte, _ int) {
	v.d = half(b[208:])
	for j := range 16 {
		v.sc[j] = b[192+j] + 128
	}
	for h := range 2 {
		for l := range 32 {
			a, c, u := b[64*h+l], b[64*h+32+l], b[128+32*h+l]
			v.q[128*h+l] = a&15 | u&3<<4
			v.q[128*h+32+l] = c&15 | u>>2&3<<4
			v.q[128*h+64+l] = a>>4 | u>>4&3<<4
			v.q[128*h+96+l] = c>>4 | u>>6<<4
		}
	}
}

func takeQ2K(v *row256, b []byte, _ int) {
	v.d, v.dm = half(b[80:]), half(b[82:])
	for i := range 256 {
		v.q[i] = b[16+i/128*32+i%32] >> (i % 128 / 32 * 2) & 3
	}
	for j := range 16 {
		v.sc[j], v.mn[j] = b[j]&15, b[j]>>4
	}
}

func takeQ3K(v *row256, b []byte, _ int) {
	v.d = half(b[108:])
	for i := range 256 {
		v.q[i] = b[32+i/128*32+i%32]>>(i%128/32*2)&3 | b[i%32]>>(i/32)&1<<2
	}
	for j := range 16 {
		v.sc[j] = b[96+j%8]>>(j/8*4)&15 | b[104+j%4]>>(j/4*2)&3<<4
		v.sc[j] += 128 - 32
	}
}

func takeQ80(v *row256, b []byte, i int) {
	v.half[i] = half(b)
	for j := range 32 {
		v.q[32*i+j] = b[2+j] + 128
	}
}

// nibblesOf32 takes the codes of the 32-wide types: low nibbles first, then high ones.
func (v *row256) nibblesOf32(b []byte, i int) {
	for j := range 16 {
		v.q[32*i+j], v.q[32*i+16+j] = b[j]&15, b[j]>>4
	}
}

func takeQ40(v *row256, b []byte, i int) {
	v.scale[i] = quant.F16ToF32(half(b))
	v.nibblesOf32(b[2:], i)
}

func takeQ41(v *row256, b []byte, i int) {
	v.half[i], v.mins[i] = half(b), half(b[2:])
	v.nibblesOf32(b[4:], i)
	for j := range 32 {
		v.q[32*i+j] += 128
	}
}

func takeQ50(v *row256, b []byte, i int) {
	v.half[i] = half(b)
	v.nibblesOf32(b[6:], i)
	v.highOf32(b[2:], i, 128-16)
}

func takeQ51(v *row256, b []byte, i int) {
	v.half[i], v.mins[i] = half(b), half(b[2:])
	v.nibblesOf32(b[8:], i)
	v.highOf32(b[4:], i, 128)
}

// highOf32 adds the fifth bits and what makes a code of TileQ8.
func (v *row256) highOf32(b []byte, i int, plus byte) {
	for j := range 32 {
		v.q[32*i+j] += b[j/8]>>(j%8)&1<<4 + plus
	}
}

func takeIQ4XS(v *row256, b []byte, _ int) {
	d, high := quant.F16ToF32(half(b)), half(b[2:])
	for s := range 8 {
		ls := uint16(b[4+s/2]>>(s%2*4)&15) | high>>(2*s)&3<<4
		v.scale[s] = d * float32(int32(ls)-32)
		v.nibblesOf32(b[8+16*s:], s)
	}
}

// takeMXFP4 takes half the scale, since the table of FP4 holds doubled values.
func takeMXFP4(v *row256, b []byte, i int) {
	if e := b[0]; e < 2 {
		v.scale[i] = math.Float32frombits(0x00200000 << e)
	} else {
		v.scale[i] = math.Float32frombits(uint32(e-1) << 23)
	}
	v.nibblesOf32(b[1:], i)
}

func takeNVFP4(v *row256, b []byte, i int) {
	for s := range 4 {
		v.half[4*i+s] = nvScale(b[s])
		for j := range 8 {
			at, q := 64*i+16*s+j, b[4+8*s+j]
			v.q[at], v.q[at+8] = q&15, q>>4
		}
	}
}

// nvScale is half of an unsigned E4M3 scale, as a half, which holds it exactly.
func nvScale(b byte) uint16 {
	exp, man := uint16(b>>3&15), uint16(b&7)
	switch {
	case b == 0x7f:
		return 0
	case exp == 0:
		return quant.F32ToF16(float32(man) * 0x1p-10)
	}
	return (exp-8+15)<<10 | man<<7
}

// oneScale is the scale of all sub-blocks a block covers.
func (v *row256) oneScale(h uint16, from, n int) {
	for j := from; j < from+n; j++ {
		v.scale[j] = quant.F16ToF32(h)
	}
}

func takeTQ10(v *row256, b []byte, _ int) {
	v.oneScale(half(b[52:]), 0, 8)
	digit := func(q byte, n int) byte {
		for range n {
			q *= 3
		}
		return byte(uint16(q) * 3 >> 8)
	}
	for i := range 256 {
		switch {
		case i < 160:
			v.q[i] = digit(b[i%32], i/32)
		case i < 240:
			v.q[i] = digit(b[32+(i-160)%16], (i-160)/16)
		default:
			v.q[i] = digit(b[48+(i-240)%4], (i-240)/4)
		}
	}
}

func takeTQ20(v *row256, b []byte, _ int) {
	v.oneScale(half(b[64:]), 0, 8)
	for i := range 256 {
		v.q[i] = b[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3
	}
}

func takeQ10(v *row256, b []byte, i int) {
	v.oneScale(half(b), 4*i, 4)
	for j := range 128 {
		v.q[128*i+j] = b[2+j/8] >> (j % 8) & 1
	}
}

func takeQ20(v *row256, b []byte, i int) {
	v.oneScale(half(b), 2*i, 2)
	for j := range 64 {
		v.q[64*i+j] = b[2+j/4] >> (j % 4 * 2) & 3
	}
}

// takeGrid takes codes that, divided by div, are between -32 and 31, as TileQ6K has them.
func takeGrid(t quant.Type, div int8) func(v *row256, b []byte, _ int) {
	decode, scale := t.Grid(), float32(div)/tileOne(t)
	return func(v *row256, b []byte, _ int) {
		v.d = quant.F32ToF16(decode(&v.q, &v.sc, b) * scale)
		for i, q := range v.q {
			v.q[i] = byte(int8(q)/div + 32)
		}
		for j := range v.sc {
			v.sc[j] += 128
		}
	}
}

// takeIQ2XXS takes codes that fit bytes only, and one scale for 32 of them.
func takeIQ2XXS(v *row256, b []byte, _ int) {
	d := quant.IQ2_XXS.Grid()(&v.q, &v.sc, b) / tileOne(quant.IQ2_XXS)
	for j := range 8 {
		v.half[j] = quant.F32ToF16(d * float32(v.sc[2*j]))
	}
	for i := range v.q {
		v.q[i] += 128
	}
}
