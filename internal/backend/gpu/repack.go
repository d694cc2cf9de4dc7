package gpu

import (
	"encoding/binary"
	"math"

	"strobe/internal/quant"
)

// row256 is 256 columns of a row, taken apart.
type row256 struct {
	codes  [256]byte
	blocks [8]quant.Block // of the file, as many as 256 columns have
}

// Codes are put together eight at a time, a byte each in a word: this is most of what loading costs. These words have
// the same bits in every byte.
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
	layout := l.Type.Layout()
	length, per := l.Type.BlockLen(), l.Type.BlockBytes()
	blocks := stageCols / length // stored ones of 256 columns
	v := new(row256)             // for all of them: one for each would be more garbage than there are weights
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
				layout.Unpack(&v.blocks[i], v.codes[i*length:][:length], row[at:][:per])
			}
			l.put(tile(kb), r, v, layout, length, min(stageCols, l.Cols-kb*stageCols))
		}
	}
}

// put writes a row of a tile, of which the matrix has so many columns, in blocks of length. Rows come in order.
func (l *WeightLayout) put(tile [2][]byte, r int, v *row256, layout *quant.Layout, length, cols int) {
	le := binary.LittleEndian
	b := &v.blocks[0]
	switch l.Format {
	case TileQ4K:
		nibbles(tile, r, v)
		scalesOf32(tile, r, b, 1024)
	case TileQ5K:
		nibbles(tile, r, v)
		fifthBits(tile, r, v)
		scalesOf32(tile, r, b, 1280)
	case TileQ6K:
		if layout.Offset != 32 {
			v.sixBits(layout, deviceFormats[l.Type].div)
		}
		nibbles(tile, r, v)
		highPairs(tile, r, v)
		scalesOf16(tile, r, &b.Scales, bytes80, 1536)
		le.PutUint16(tile[1][1664+r*2:], b.D)
	case TileQ2K:
		nibbles(tile, r, v)
		scalesOf16(tile, r, &b.Scales, 0, 1024)
		scalesOf16(tile, r, &b.Mins, 0, 1152)
		for h := range 2 {
			le.PutUint16(tile[h][1280+r*4:], b.D)
			le.PutUint16(tile[h][1282+r*4:], b.M)
		}
	case TileQ3K:
		nibbles(tile, r, v)
		scalesOf16(tile, r, &b.Scales, bytes80, 1024)
		le.PutUint16(tile[1][1152+r*2:], b.D)
	case TileQ8, TileQ8M:
		octets(tile, r, v, bytes01*uint64(128-layout.Offset), cols)
		for sb := range 8 {
			scale := v.blocks[sb].D
			if layout.Scale == quant.ScaleInt { // one block
				scale = quant.F32ToF16(quant.F16ToF32(b.D) * float32(int8(b.Scales[sb])))
			}
			le.PutUint16(tile[sb/4][2048+r*8+sb%4*2:], scale)
			if l.Format == TileQ8M {
				le.PutUint16(tile[1][2176+r*16+sb*2:], v.blocks[sb].M)
			}
		}
	case TileN4:
		indices(tile, r, v)
		var scales [8]float32
		for i := range cols / length {
			if length == 32 && layout.Scale == quant.ScaleHalf { // spares a call for every 32 columns
				scales[i] = quant.F16ToF32(v.blocks[i].D)
				continue
			}
			layout.Floats(&v.blocks[i], scales[i*length/32:][:length/32], nil)
		}
		for h := range 2 {
			at := tile[h][1024+r*16:][:16]
			for j := range 4 {
				le.PutUint32(at[4*j:], math.Float32bits(scales[4*h+j]))
			}
		}
	case TileNV4:
		indices(tile, r, v)
		for j := range 16 { // sub-block j/2, its columns 0-15 or 16-31
			scale := halvesE4M3[v.blocks[j/4].Scales[j%4]]
			le.PutUint16(tile[j/8][1024+r*16+j%2*8+j/2%4*2:], scale)
		}
	}
}

// halvesE4M3 are the scales of NVFP4 as halves, which hold them exactly.
var halvesE4M3 = func() (h [256]uint16) {
	for i := range h {
		var scale [1]float32
		quant.NVFP4.Layout().Floats(&quant.Block{Scales: [16]byte{byte(i)}}, scale[:], nil)
		h[i] = quant.F32ToF16(scale[0])
	}
	return h
}()

// sixBits makes codes of TileQ6K from those of a grid, whose values divided by div, 1 or 2, are between -32 and 31: 128
// more than a value becomes 32 more than the quotient. Scales become those of 16 columns.
func (v *row256) sixBits(layout *quant.Layout, div int) {
	shift, mask, less := div-1, 0xff/uint64(div)*bytes01, uint64(128/div-32)*bytes01
	for i := 0; i < len(v.codes); i += 8 {
		q := v.codes[i:][:8]
		set64(q, get64(q)>>shift&mask-less)
	}
	if b := &v.blocks[0]; layout.Sub == 32 {
		for j := 7; j >= 0; j-- {
			b.Scales[2*j], b.Scales[2*j+1] = b.Scales[j], b.Scales[j]
		}
	}
}

// lane is where eight columns of a row go in a half of a tile whose words are so many bytes apart: lane t of the four
// of row r.
func lane(r, t, bytes int) int { return (r%8*4 + t) * bytes }

// pair writes the two words of eight columns: those of columns 0-3 and of 4-7, each beside that of the row eight
// further.
func pair(b []byte, r int, w uint64) {
	b = b[r/8*4:][:12]
	binary.LittleEndian.PutUint32(b, uint32(w))
	binary.LittleEndian.PutUint32(b[8:], uint32(w>>32))
}

// nibbles puts the low four bits of the codes: a byte has a column of two sub-blocks, and the middle bytes of a word
// change places, so that its nibbles are pairs of halves when masked.
func nibbles(tile [2][]byte, r int, v *row256) {
	const outer, second = 0xff0000ffff0000ff, 0x0000ff000000ff00
	for p := range 4 {
		half, q := tile[p/2][p%2*512:][:512], v.codes[64*p:][:64]
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
		half, q := tile[p/2][p%2*512:][:512], v.codes[64*p:][:64]
		for t := range 4 {
			pair(half[lane(r, t, 16):], r, four(get64(q[8*t:]))|four(get64(q[32+8*t:]))<<16)
		}
	}
}

// octets puts whole codes, plus so much in every byte. Columns that a matrix lacks stay zero.
func octets(tile [2][]byte, r int, v *row256, plus uint64, cols int) {
	for sb := range 8 {
		if 32*sb >= cols {
			plus = 0
		}
		half, q := tile[sb/4][sb%4*512:][:512], v.codes[32*sb:][:32]
		for t := range 4 {
			pair(half[lane(r, t, 16):], r, get64(q[8*t:])+plus)
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
		q := v.codes[64*p:][:64]
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
		q := v.codes[64*p:][:64]
		for t := range 4 {
			w := uint32(every(get64(q[8*t:])) | every(get64(q[32+8*t:]))<<4)
			binary.LittleEndian.PutUint32(tile[p/2][1024+lane(r, t, 16)+(2*(p%2)+r/8)*4:], w)
		}
	}
}

// scalesOf32 puts scales, mins and their two halves, behind so many bytes of values.
func scalesOf32(tile [2][]byte, r int, b *quant.Block, at int) {
	copy(tile[0][at+r*4:][:4], b.Scales[:4])
	copy(tile[1][at+r*4:][:4], b.Scales[4:8])
	copy(tile[1][at+64+r*8:][:8], b.Mins[:8])
	binary.LittleEndian.PutUint16(tile[1][at+192+r*4:], b.D)
	binary.LittleEndian.PutUint16(tile[1][at+194+r*4:], b.M)
}

// scalesOf16 puts bytes that belong to 16 columns each: those of columns 0-15 of four sub-blocks, then of 16-31. Signed
// ones are flipped by 128.
func scalesOf16(tile [2][]byte, r int, b *[16]byte, flip uint64, at int) {
	even := func(w uint64) uint64 { // bytes 0, 2, 4, 6
		w &= 0x00ff00ff00ff00ff
		w = (w | w>>8) & 0x0000ffff0000ffff
		return (w | w>>16) & 0xffffffff
	}
	for h := range 2 {
		w := get64(b[8*h:]) ^ flip
		set64(tile[h][at+r*8:], even(w)|even(w>>8)<<32)
	}
}
