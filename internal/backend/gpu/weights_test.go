package gpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"strobe/internal/quant"
)

// gridTypes have no tiles of their own; blockTypes are the other quantised types.
var gridTypes, blockTypes = func() (grids, others []quant.Type) {
	for _, t := range quant.BlockTypes() {
		if t.GridPoints() != nil {
			grids = append(grids, t)
		} else {
			others = append(others, t)
		}
	}
	return grids, others
}()

// TestPackGrids: values of the types with grids are as precise as a half, those in tiles of Q6_K exact, also where a
// scale of the file is below the smallest normal half.
func TestPackGrids(t *testing.T) {
	const rows, cols = 40, 768
	for _, typ := range gridTypes {
		r := rand.New(rand.NewPCG(uint64(typ), 1))
		src := randomBlocks(r, typ, rows*cols)
		for b := src; len(b) > 0 && typ != quant.IQ1_M; b = b[min(len(b), 2*typ.BlockBytes()):] { // its scale is in parts
			binary.LittleEndian.PutUint16(b, 0x0155)
		}
		l, err := LayoutOf(typ, rows, cols, 1, len(src))
		if err != nil {
			t.Fatal(err)
		}
		precision := 0x1p-11
		if l.Format == TileQ6K {
			precision = 0
		}
		want := make([]float32, rows*cols)
		if err := quant.Dequantize(typ, want, src); err != nil {
			t.Fatal(err)
		}
		got := unpack(l, l.Pack(src))
		for i := range want {
			if g := got[i] * l.one(); math.Abs(float64(g-want[i])) > precision*math.Abs(float64(want[i])) {
				t.Fatalf("%v: value %d is %v, want %v", typ, i, g, want[i])
			}
		}
	}
}

var testTables = [5][16]float32{
	tableIQ4: {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
	tableFP4: {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
}

func init() {
	for i := range 16 {
		testTables[tableLinear8][i] = float32(i - 8)
		testTables[tableLinear1][i] = float32(i - 1)
		testTables[tableSign][i] = float32(2*i - 1)
	}
}

// tileValue reads one value from a tile, by the description in formats.h.
func tileValue(l WeightLayout, tile [2][]byte, r, c int) float32 {
	u16 := func(h, at int) float32 { return quant.F16ToF32(binary.LittleEndian.Uint16(tile[h][at:])) }
	h, sb, t, j, i := c/128, c/32%4, c%32/8, c%8/4, c%4
	lane, hi := 4*(r%8)+t, r/8
	word := func(places [2][4]int) int {
		w := binary.LittleEndian.Uint32(tile[h][sb/2*512+lane*16+(2*j+hi)*4:])
		return int(w >> (4 * places[sb%2][i]) & 15)
	}
	halves := [2][4]int{{0, 4, 2, 6}, {1, 5, 3, 7}}
	plain := [2][4]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	of16 := func(at int) int { return int(tile[h][at+r*8+c%32/16*4+sb]) }
	switch l.Format {
	case TileQ4K, TileQ5K:
		at, q := 1024, word(halves)
		if l.Format == TileQ5K {
			at = 1280
			w := binary.LittleEndian.Uint32(tile[h][1024+lane*8+sb/2*4:])
			q |= int(w>>(4*j+i/2*2+hi+8*(sb%2)+16*(i%2))&1) << 4
		}
		sc, mn := tile[h][at+r*4+sb], tile[1][at+64+r*8+4*h+sb]
		d, dm := u16(1, at+192+r*4)*float32(sc), u16(1, at+194+r*4)*float32(mn)
		return float32(d*float32(q)) - dm
	case TileQ6K:
		w := binary.LittleEndian.Uint32(tile[h][1024+lane*16+(2*(sb/2)+hi)*4:])
		field := [2][4]int{{0, 1, 4, 5}, {2, 3, 6, 7}}[sb%2][2*j+i/2]
		q := word(halves) | int(w>>(2*field+16*(i%2))&3)<<4
		return u16(1, 1664+r*2) * float32(of16(1536)-128) * float32(q-32)
	case TileQ2K:
		d, m := u16(h, 1280+r*4)*float32(of16(1024)), u16(h, 1282+r*4)*float32(of16(1152))
		return float32(d*float32(word(halves))) - m
	case TileQ3K:
		return u16(1, 1152+r*2) * float32(of16(1024)-128) * float32(word(halves)-4)
	case TileQ8, TileQ8M:
		v := float32(int(tile[h][sb*512+lane*16+(2*j+hi)*4+i])-128) * u16(h, 2048+r*8+sb*2)
		if l.Format == TileQ8M {
			v += u16(1, 2176+r*16+(4*h+sb)*2)
		}
		return v
	case TileN4:
		var v [1]float32
		_ = quant.Dequantize(quant.F32, v[:], tile[h][1024+r*16+sb*4:][:4])
		return testTables[l.Table][word(plain)] * v[0]
	case TileNV4:
		return testTables[tableFP4][word(plain)] * u16(h, 1024+r*16+c%32/16*8+sb*2)
	}
	panic("no such format")
}

// unpack is the inverse of Pack.
func unpack(l WeightLayout, data []byte) []float32 {
	if l.Format == KeepF16 {
		v := make([]float32, len(data)/2)
		_ = quant.Dequantize(quant.F16, v, data)
		return v
	}
	out := make([]float32, 0, l.Experts*l.Rows*l.Cols)
	h0, h1 := tileHalves[l.Format][0], tileHalves[l.Format][1]
	for e := range l.Experts {
		m := data[e*l.MatrixBytes():][:l.MatrixBytes()]
		for r := range l.Rows {
			for c := range l.Cols {
				s := m[(r/256*l.Stages()+c/256)*l.Format.stageBytes():]
				strip := r % 256 / 16
				tile := [2][]byte{s[strip*h0:][:h0], s[16*h0+strip*h1:][:h1]}
				out = append(out, tileValue(l, tile, r%16, c%256))
			}
		}
	}
	return out
}

// randomBlocks are bytes of a stored matrix with scales of a sane size.
func randomBlocks(r *rand.Rand, t quant.Type, values int) []byte {
	b := make([]byte, t.RowBytes(values))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	n := t.BlockBytes()
	switch t {
	case quant.F32, quant.F16, quant.BF16:
		for i := 0; i < len(b); i += n {
			f := float32(r.NormFloat64())
			switch t {
			case quant.F32:
				binary.LittleEndian.PutUint32(b[i:], math.Float32bits(f))
			case quant.F16:
				binary.LittleEndian.PutUint16(b[i:], quant.F32ToF16(f))
			default:
				binary.LittleEndian.PutUint16(b[i:], quant.F32ToBF16(f))
			}
		}
		return b
	}
	halves := map[quant.Type][]int{quant.Q4_K: {0, 2}, quant.Q5_K: {0, 2}, quant.Q6_K: {208}, quant.Q2_K: {80, 82},
		quant.Q3_K: {108},
		quant.Q4_1: {0, 2}, quant.Q5_1: {0, 2}, quant.TQ1_0: {52}, quant.TQ2_0: {64}}
	for i := 0; i < len(b); i += n {
		switch t {
		case quant.MXFP4:
			b[i] = byte(110 + r.IntN(12))
			continue
		case quant.IQ1_M: // the half is spread over the upper bits of four words
			for j, digit := range []byte{0, 0, byte(r.IntN(16)), 2} {
				b[i+49+2*j] = b[i+49+2*j]&15 | digit<<4
			}
			continue
		case quant.NVFP4:
			for j := range 4 {
				b[i+j] = byte(r.IntN(0x7f))
			}
			continue
		}
		at := halves[t]
		if at == nil {
			at = []int{0}
		}
		for _, o := range at {
			// from 2^-10 on, of either sign
			binary.LittleEndian.PutUint16(b[i+o:], uint16(0x1400+r.IntN(0xc00)|r.IntN(2)<<15))
		}
	}
	return b
}

func TestPackIsExact(t *testing.T) {
	for _, typ := range blockTypes {
		for _, shape := range [][3]int{{1, 512, 1}, {40, 768, 2}, {300, 1280, 1}, {17, 640, 3}} {
			rows, cols, experts := shape[0], shape[1], shape[2]
			if cols%typ.BlockLen() != 0 {
				continue
			}
			t.Run(fmt.Sprint(typ, shape), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(typ), uint64(rows)))
				src := make([]byte, typ.RowBytes(rows*cols*experts))
				for i := range src { // any bytes: infinite scales, too
					src[i] = byte(r.Uint32())
				}
				if rows > 100 {
					src = randomBlocks(r, typ, rows*cols*experts)
				}
				l, err := LayoutOf(typ, rows, cols, experts, len(src))
				if err != nil {
					t.Fatal(err)
				}
				want := make([]float32, rows*cols*experts)
				if err := quant.Dequantize(typ, want, src); err != nil {
					t.Fatal(err)
				}
				got := unpack(l, l.Pack(src))
				for i := range want {
					if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
						t.Fatalf("value %d is %v, want %v", i, got[i], want[i])
					}
				}
			})
		}
	}
}

// TestPackPads checks that rows and columns the matrix lacks are zero bytes of values, scales and mins.
func TestPackPads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	src := randomBlocks(r, quant.Q8_0, 20*544)
	l, err := LayoutOf(quant.Q8_0, 20, 544, 1, len(src))
	if err != nil {
		t.Fatal(err)
	}
	l.Rows, l.Cols = 256, 768
	packed := make([]byte, l.Bytes())
	short := l
	short.Rows, short.Cols = 20, 544
	copy(packed, short.Pack(src))
	for i, v := range unpack(l, packed) {
		if v != 0 && (i/768 >= 20 || i%768 >= 544) {
			t.Fatalf("row %d column %d is %v", i/768, i%768, v)
		}
	}
}

func TestLayoutOf(t *testing.T) {
	for _, c := range []struct {
		typ                 quant.Type
		rows, cols, experts int
		bytes               int
		format              Format
		want                int
		err                 string
	}{
		{quant.Q4_K, 256, 512, 1, 2 * 256 * 144, TileQ4K, 2 * 256 * 148, ""},
		{quant.Q6_K, 257, 512, 2, 2 * 2 * 257 * 210, TileQ6K, 2 * 2 * 512 * 210, ""},
		{quant.Q8_0, 10, 480, 1, 10 * 15 * 34, KeepF32, 10 * 480 * 4, ""},
		{quant.Q8_0, 10, 544, 1, 10 * 17 * 34, TileQ8, 256 * 3 * 272, ""},
		{quant.F16, 10, 480, 3, 10 * 480 * 6, KeepF16, 10 * 480 * 6, ""},
		{quant.BF16, 10, 7, 1, 10 * 14, KeepBF16, 10 * 14, ""},
		{quant.F32, 1, 1, 1, 4, KeepF32, 4, ""},
		{quant.I32, 1, 512, 1, 2048, 0, 0, "weights of type I32 are not supported"},
		{quant.Q4_K, 1, 500, 1, 288, 0, 0, "rows are not whole blocks of 256 values"},
		{quant.Q4_K, 2, 512, 1, 288, 0, 0, "288 bytes, want 2 rows of 288"},
		{quant.Q4_K, 1 << 40, 512, 1 << 40, 288, 0, 0, "288 bytes, want"},
		{quant.Q4_K, 0, 512, 1, 0, 0, 0, "0 x 512"},
	} {
		l, err := LayoutOf(c.typ, c.rows, c.cols, c.experts, c.bytes)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v %dx%d: error %v, want %q", c.typ, c.rows, c.cols, err, c.err)
			}
			continue
		}
		if err != nil || l.Format != c.format || l.Bytes() != c.want {
			t.Errorf("%v %dx%d: format %d, %d bytes, %v; want %d, %d", c.typ, c.rows, c.cols, l.Format, l.Bytes(), err, c.format, c.want)
		}
	}
}

// TestEveryTypeHasAFormat: a type that was forgotten here is an error when a model is loaded, not another type.
func TestEveryTypeHasAFormat(t *testing.T) {
	layoutOf := func(typ quant.Type) error {
		_, err := LayoutOf(typ, 1, 512, 1, typ.RowBytes(512))
		return err
	}
	for _, typ := range quant.BlockTypes() {
		if err := layoutOf(typ); err != nil {
			t.Errorf("%v: %v; deviceFormats in weights.go lacks it", typ, err)
		}
	}
	f := deviceFormats[quant.Q4_0]
	delete(deviceFormats, quant.Q4_0)
	defer func() { deviceFormats[quant.Q4_0] = f }()
	if err := layoutOf(quant.Q4_0); err == nil || !strings.Contains(err.Error(), "type Q4_0 have no format on a GPU") {
		t.Errorf("a type without a format: %v", err)
	}
}

// uploads is a driver that only takes uploads.
type uploads struct {
	Driver
	mem []byte
}

func (u *uploads) Upload(dst Addr, src []byte) { copy(u.mem[dst:], src) }

// TestUpload checks that a matrix brought over in parts is the whole.
func TestUpload(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, c := range []struct {
		typ                 quant.Type
		rows, cols, experts int
	}{{quant.Q4_K, 700, 512, 3}, {quant.Q5_0, 600, 96, 2}, {quant.F32, 300, 40, 1}} {
		src := make([]byte, c.typ.RowBytes(c.rows*c.cols*c.experts))
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		l, err := LayoutOf(c.typ, c.rows, c.cols, c.experts, len(src))
		if err != nil {
			t.Fatal(err)
		}
		u := &uploads{mem: make([]byte, l.Bytes()+100)}
		l.uploadIn(u, 100, src, 300<<10)
		if string(u.mem[100:]) != string(l.Pack(src)) {
			t.Errorf("%v: the parts are not the whole", c.typ)
		}
	}
}
