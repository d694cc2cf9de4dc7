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

// Codes are taken apart and put together eight at a time, a byte each in a word: this is most of what loading costs. These
// words have the same bits in every byte.
const (
	bytes01 = 0x0101010101010101
	bytes03 = 3 * bytes01
	bytes0f = 15 * bytes01
	bytes80 = 128 * bytes01
)

func get64(b []byte) uint64    { return binary.LittleEndian.Uint64(b) }
func set64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

// tiles turns strip number s of the stored rows of a group, 16 of them, into tiles. All bytes of the strip are written:
// missing rows and columns are zero.
func (l WeightLayout) tiles(dst, src []byte, s int) {
	size, stages, stage := l.Type.RowBytes(l.Cols), l.Stages(), l.Format.stageBytes()
	h0, h1 := tileHalves[l.Format][0], tileHalves[l.Format][1]
	tile := func(kb int) [2][]byte {
		b := dst[kb*stage:][:stage]
		return [2][]byte{b[s*h0:][:h0], b[strips*h0+s*h1:][:h1]}
	}
	rows := min(tileRows, len(src)/size-s*tileRows)
	if rows < tileRows {
		for kb := range stages {
			clear(tile(kb)[0])
			clear(tile(kb)[1])
		}
	}
	take, per := l.taker()
	blocks := stageCols / l.Type.BlockLen() // stored ones of 256 columns
	v := new(row256) // for all of them: one for each would be more garbage than there are weights
	for r := range rows {
		row := src[(s*tileRows+r)*size:][:size]
		for kb := range stages {
			if (kb+1)*stageCols > l.Cols {
				*v = row256{}
			}
			for i := range blocks {
				at := (kb*blocks + i) * per
				if at >= size {
					break
				}
				take(v, row[at:][:per], i)
			}
			l.put(tile(kb), r, v)
		}
	}
}

// put writes a row of a tile. Rows come in order.
func (l WeightLayout) put(tile [2][]byte, r int, v *row256) {
	le := binary.LittleEndian
	switch l.Format {
	case TileQ4K:
		nibbles(tile, r, v)
		scalesOf32(tile, r, v, 1024)
	case TileQ5K:
		nibbles(tile, r, v)
		fifthBits(tile, r, v)
		scalesOf32(tile, r, v, 1280)
	case TileQ6K:
		nibbles(tile, r, v)
		highPairs(tile, r, v)
		scalesOf16(tile, r, &v.sc, 1536)
		le.PutUint16(tile[1][1664+r*2:], v.d)
	case TileQ2K:
		nibbles(tile, r, v)
		scalesOf16(tile, r, &v.sc, 1024)
		scalesOf16(tile, r, &v.mn, 1152)
		for h := range 2 {
			le.PutUint16(tile[h][1280+r*4:], v.d)
			le.PutUint16(tile[h][1282+r*4:], v.dm)
		}
	case TileQ3K:
		nibbles(tile, r, v)
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
		indices(tile, r, v)
		for sb := range 8 {
			le.PutUint32(tile[sb/4][1024+r*16+sb%4*4:], math.Float32bits(v.scale[sb]))
		}
	case TileNV4:
		indices(tile, r, v)
		for j := range 16 { // sub-block j/2, its columns 0-15 or 16-31
			le.PutUint16(tile[j/8][1024+r*16+j%2*8+j/2%4*2:], v.half[j])
		}
	}
}

// lane is where eight columns of a row go in a half of a tile whose words are so many bytes apart: lane t of the four of
// row r.
func lane(r, t, bytes int) int { return (r%8*4 + t) * bytes }

// pair writes the two words of eight columns: those of columns 0-3 and of 4-7, each beside that of the row eight further.
func pair(b []byte, r int, w uint64) {
	b = b[r/8*4:][:12]
	binary.LittleEndian.PutUint32(b, uint32(w))
	binary.LittleEndian.PutUint32(b[8:], uint32(w>>32))
}

// nibbles puts the low four bits of the codes: a byte has a column of two sub-blocks, and the middle bytes of a word change
// places, so that its nibbles are pairs of halves when masked.
func nibbles(tile [2][]byte, r int, v *row256) {
	const outer, second = 0xff0000ffff0000ff, 0x0000ff000000ff00
	for p := range 4 {
		half, q := tile[p/2][p%2*512:][:512], v.q[64*p:][:64]
		for t := range 4 {
			w := get64(q[8*t:])&bytes0f | get64(q[32+8*t:])&bytes0f<<4
			pair(half[lane(r, t, 16):], r, w&outer|w&second<<8|w>>8&second)
		}
	}
}

// indices puts nibbles in the order of their columns: four of a sub-block, then four of the next.
func indices(tile [2][]byte, r int, v *row256) {
	four := func(w uint64) uint64 { // of each half of w
		w &= bytes0f
		w = (w | w>>4) & 0x00ff00ff00ff00ff
		return (w | w>>8) & 0x0000ffff0000ffff
	}
	for p := range 4 {
		half, q := tile[p/2][p%2*512:][:512], v.q[64*p:][:64]
		for t := range 4 {
			pair(half[lane(r, t, 16):], r, four(get64(q[8*t:]))|four(get64(q[32+8*t:]))<<16)
		}
	}
}

// octets puts whole codes.
func octets(tile [2][]byte, r int, v *row256) {
	for sb := range 8 {
		half, q := tile[sb/4][sb%4*512:][:512], v.q[32*sb:][:32]
		for t := range 4 {
			pair(half[lane(r, t, 16):], r, get64(q[8*t:]))
		}
	}
}

// fifthBits puts bit 4 of the codes: a word for two rows and two sub-blocks of a lane. The first of the rows begins it.
func fifthBits(tile [2][]byte, r int, v *row256) {
	every := func(w uint64) uint64 { // bits of bytes 0, 2, 4, 6: in bits 0, 2, 4, 6; of the others: 16 higher
		w = w >> 4 & bytes01
		even, odd := w&0x0001000100010001, w>>8&0x0001000100010001
		even |= even>>14 | even>>28 | even>>42
		odd |= odd>>14 | odd>>28 | odd>>42
		return even&0x55 | odd&0x55<<16
	}
	for p := range 4 {
		q := v.q[64*p:][:64]
		for t := range 4 {
			b := tile[p/2][1024+lane(r, t, 8)+p%2*4:]
			w := uint32(every(get64(q[8*t:]))|every(get64(q[32+8*t:]))<<8) << (r / 8)
			if r >= 8 {
				w |= binary.LittleEndian.Uint32(b)
			}
			binary.LittleEndian.PutUint32(b, w)
		}
	}
}

// highPairs puts bits 4 and 5 of the codes.
func highPairs(tile [2][]byte, r int, v *row256) {
	every := func(w uint64) uint64 { // those of bytes 0, 2, 4, 6: from bits 0, 2, 8, 10 on; of the others: 16 higher
		w = w >> 4 & bytes03
		even, odd := w&0x0003000300030003, w>>8&0x0003000300030003
		even |= even>>14 | even>>24 | even>>38
		odd |= odd>>14 | odd>>24 | odd>>38
		return even&0xf0f | odd&0xf0f<<16
	}
	for p := range 4 {
		q := v.q[64*p:][:64]
		for t := range 4 {
			w := uint32(every(get64(q[8*t:])) | every(get64(q[32+8*t:]))<<4)
			binary.LittleEndian.PutUint32(tile[p/2][1024+lane(r, t, 16)+(2*(p%2)+r/8)*4:], w)
		}
	}
}

// scalesOf32 puts scales, mins and their two halves, behind so many bytes of values.
func scalesOf32(tile [2][]byte, r int, v *row256, at int) {
	copy(tile[0][at+r*4:][:4], v.sc[:4])
	copy(tile[1][at+r*4:][:4], v.sc[4:8])
	copy(tile[1][at+64+r*8:][:8], v.mn[:8])
	binary.LittleEndian.PutUint16(tile[1][at+192+r*4:], v.d)
	binary.LittleEndian.PutUint16(tile[1][at+194+r*4:], v.dm)
}

// scalesOf16 puts bytes that belong to 16 columns each: those of columns 0-15 of four sub-blocks, then of 16-31.
func scalesOf16(tile [2][]byte, r int, b *[16]byte, at int) {
	even := func(w uint64) uint64 { // bytes 0, 2, 4, 6
		w &= 0x00ff00ff00ff00ff
		w = (w | w>>8) & 0x0000ffff0000ffff
		return (w | w>>16) & 0xffffffff
	}
	for h := range 2 {
		w := get64(b[8*h:])
		set64(tile[h][at+r*8:], even(w)|even(w>>8)<<32)
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

// scalesAndMins reads the eight 6-bit pairs in the 12 bytes of Q4_K and Q5_K.
func (v *row256) scalesAndMins(b []byte) {
	le := binary.LittleEndian
	x, y, z := le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])
	le.PutUint32(v.sc[:], x&0x3f3f3f3f)
	le.PutUint32(v.mn[:], y&0x3f3f3f3f)
	le.PutUint32(v.sc[4:], z&0x0f0f0f0f|x>>6&0x03030303<<4)
	le.PutUint32(v.mn[4:], z>>4&0x0f0f0f0f|y>>6&0x03030303<<4)
}

func takeQ4K(v *row256, b []byte, _ int) {
	b = b[:144]
	v.d, v.dm = half(b), half(b[2:])
	v.scalesAndMins(b[4:])
	for p := range 4 {
		from, to := b[16+32*p:][:32], v.q[64*p:][:64]
		for l := 0; l < 32; l += 8 {
			x := get64(from[l:])
			set64(to[l:], x&bytes0f)
			set64(to[32+l:], x>>4&bytes0f)
		}
	}
}

func takeQ5K(v *row256, b []byte, _ int) {
	b = b[:176]
	v.d, v.dm = half(b), half(b[2:])
	v.scalesAndMins(b[4:])
	for p := range 4 {
		high, from, to := b[16:48], b[48+32*p:][:32], v.q[64*p:][:64]
		for l := 0; l < 32; l += 8 {
			x, h := get64(from[l:]), get64(high[l:])>>(2*p)
			set64(to[l:], x&bytes0f|h&bytes01<<4)
			set64(to[32+l:], x>>4&bytes0f|h>>1&bytes01<<4)
		}
	}
}

func takeQ6K(v *row256, b []byte, _ int) {
	b = b[:210]
	v.d = half(b[208:])
	for j := 0; j < 16; j += 8 {
		set64(v.sc[j:], get64(b[192+j:])^bytes80) // plus 128
	}
	for h := range 2 {
		to := v.q[128*h:][:128]
		for l := 0; l < 32; l += 8 {
			a, c, u := get64(b[64*h+l:]), get64(b[64*h+32+l:]), get64(b[128+32*h+l:])
			set64(to[l:], a&bytes0f|u&bytes03<<4)
			set64(to[32+l:], c&bytes0f|u>>2&bytes03<<4)
			set64(to[64+l:], a>>4&bytes0f|u>>4&bytes03<<4)
			set64(to[96+l:], c>>4&bytes0f|u>>6&bytes03<<4)
		}
	}
}

// pairs takes codes of two bits: 128 columns from 32 bytes, twice.
func (v *row256) pairs(b []byte) {
	for i := range 8 { // 32 columns each
		from, to := b[i/4*32:][:32], v.q[32*i:][:32]
		for l := 0; l < 32; l += 8 {
			set64(to[l:], get64(from[l:])>>(i%4*2)&bytes03)
		}
	}
}

func takeQ2K(v *row256, b []byte, _ int) {
	v.d, v.dm = half(b[80:]), half(b[82:])
	v.pairs(b[16:])
	for j := 0; j < 16; j += 8 {
		x := get64(b[j:])
		set64(v.sc[j:], x&bytes0f)
		set64(v.mn[j:], x>>4&bytes0f)
	}
}

func takeQ3K(v *row256, b []byte, _ int) {
	v.d = half(b[108:])
	v.pairs(b[32:])
	for i := range 8 {
		for l := 0; l < 32; l += 8 {
			q := v.q[32*i+l:]
			set64(q, get64(q)|get64(b[l:])>>i&bytes01<<2)
		}
	}
	for j := range 16 {
		v.sc[j] = b[96+j%8]>>(j/8*4)&15 | b[104+j%4]>>(j/4*2)&3<<4
		v.sc[j] += 128 - 32
	}
}

func takeQ80(v *row256, b []byte, i int) {
	v.half[i] = half(b)
	for j := 0; j < 32; j += 8 {
		set64(v.q[32*i+j:], get64(b[2+j:])^bytes80) // plus 128
	}
}

// nibblesOf32 takes the codes of the 32-wide types: low nibbles first, then high ones.
func (v *row256) nibblesOf32(b []byte, i int) {
	to := v.q[32*i:][:32]
	for j := 0; j < 16; j += 8 {
		x := get64(b[j:])
		set64(to[j:], x&bytes0f)
		set64(to[16+j:], x>>4&bytes0f)
	}
}

func takeQ40(v *row256, b []byte, i int) {
	v.scale[i] = quant.F16ToF32(half(b))
	v.nibblesOf32(b[2:], i)
}

func takeQ41(v *row256, b []byte, i int) {
	v.half[i], v.mins[i] = half(b), half(b[2:])
	v.nibblesOf32(b[4:], i)
	for j := 0; j < 32; j += 8 {
		q := v.q[32*i+j:]
		set64(q, get64(q)|bytes80)
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

// highOf32 adds the fifth bits and what makes a code of TileQ8. No byte of a sum is above 255.
func (v *row256) highOf32(b []byte, i int, plus byte) {
	for j := range 4 {
		q := v.q[32*i+8*j:]
		set64(q, get64(q)+spread(b[j])<<4+bytes01*uint64(plus))
	}
}

// spread makes a byte, 0 or 1, of every bit.
func spread(b byte) uint64 {
	w := uint64(b) * bytes01 & 0x8040201008040201 // a bit of its own in every byte
	return (w + 0x7f*bytes01) >> 7 & bytes01
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
		to, x := v.q[64*i+16*s:], get64(b[4+8*s:])
		set64(to, x&bytes0f)
		set64(to[8:], x>>4&bytes0f)
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
	v.pairs(b)
}

func takeQ10(v *row256, b []byte, i int) {
	v.oneScale(half(b), 4*i, 4)
	for j := range 16 {
		set64(v.q[128*i+8*j:], spread(b[2+j]))
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
