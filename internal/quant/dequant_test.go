package quant

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// slowValue is element i of one block, written from the layout tables in the
// order they are documented: one element at a time, no shared sub-expressions.
// It is the oracle for the row functions.
func slowValue(t Type, b []byte, i int) float32 {
	h := func(at int) float32 { return float32(slowHalf(uint16(b[at]) | uint16(b[at+1])<<8)) }
	bit := func(at, n int) int { return int(b[at+n/8]) >> (n % 8) & 1 }
	// nibble reads element i of 32 from 16 bytes: low nibbles first, then high.
	nibble := func(at, i int) int {
		if i < 16 {
			return int(b[at+i]) % 16
		}
		return int(b[at+i-16]) / 16
	}
	switch t {
	case F32:
		return math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
	case F16:
		return h(0)
	case BF16:
		return math.Float32frombits(uint32(b[0])<<16 | uint32(b[1])<<24)
	case Q4_0:
		return float32(nibble(2, i)-8) * h(0)
	case Q4_1:
		p := float32(nibble(4, i)) * h(0)
		return p + h(2)
	case Q5_0:
		return float32(nibble(6, i)+16*bit(2, i)-16) * h(0)
	case Q5_1:
		p := float32(nibble(8, i)+16*bit(4, i)) * h(0)
		return p + h(2)
	case Q8_0:
		return float32(int8(b[2+i])) * h(0)
	case Q2_K:
		half, in := i/128, i%128
		shift := in / 32 * 2
		sc := b[i/16]
		q := int(b[16+32*half+in%32]) >> shift & 3
		d, m := h(80)*float32(sc%16), h(82)*float32(sc/16)
		p := d * float32(q)
		return p - m
	case Q3_K:
		half, in := i/128, i%128
		shift := in / 32 * 2
		g := i / 16
		low := int(b[96+g%8]) & 15
		if g >= 8 {
			low = int(b[96+g-8]) >> 4
		}
		high := int(b[96+8+g%4]) >> (2 * (g / 4)) & 3
		scale := low + 16*high - 32
		q := int(b[32+32*half+in%32]) >> shift & 3
		if int(b[in%32])>>(4*half+shift/2)&1 == 0 {
			q -= 4
		}
		d := h(108) * float32(scale)
		return d * float32(q)
	case Q4_K, Q5_K:
		s := b[4:16]
		j := i / 32
		var sc, mn int
		if j < 4 {
			sc, mn = int(s[j]&63), int(s[j+4]&63)
		} else {
			sc = int(s[j+4]&15) + int(s[j-4]>>6)*16
			mn = int(s[j+4]>>4) + int(s[j]>>6)*16
		}
		at := 16
		if t == Q5_K {
			at = 48
		}
		q := int(b[at+32*(i/64)+i%32])
		if i%64 < 32 {
			q %= 16
		} else {
			q /= 16
		}
		if t == Q5_K {
			q += 16 * (int(b[16+i%32]) >> j & 1)
		}
		d, m := h(0)*float32(sc), h(2)*float32(mn)
		p := d * float32(q)
		return p - m
	case Q6_K:
		half, quarter, l := i/128, i%128/32, i%32
		ql := int(b[64*half+32*(quarter%2)+l])
		if quarter < 2 {
			ql %= 16
		} else {
			ql /= 16
		}
		q := ql + int(b[128+32*half+l])>>(2*quarter)&3*16 - 32
		d := h(208) * float32(int8(b[192+8*half+2*quarter+l/16]))
		return d * float32(q)
	case IQ4_NL:
		return float32(refCodes[nibble(2, i)]) * h(0)
	case IQ4_XS:
		s := i / 32
		ls := int(b[4+s/2]) >> (4 * (s % 2)) & 15
		ls += (int(b[2]) + 256*int(b[3])) >> (2 * s) & 3 * 16
		d := h(0) * float32(ls-32)
		return float32(refCodes[nibble(8+16*s, i%32)]) * d
	case MXFP4:
		return float32(e2m1(nibble(1, i)) * math.Ldexp(1, int(b[0])-127))
	case NVFP4:
		s, l := i/16, i%16
		q := int(b[4+8*s+l%8])
		if l < 8 {
			q %= 16
		} else {
			q /= 16
		}
		scale := 0.0
		if e, m := int(b[s])>>3&15, float64(b[s]&7); b[s] == 0x7f {
			scale = 0
		} else if e == 0 {
			scale = m * math.Ldexp(1, -9)
		} else {
			scale = (1 + m/8) * math.Ldexp(1, e-7)
		}
		return float32(e2m1(q) * scale)
	case TQ1_0:
		at, digit := 0, 0
		switch {
		case i < 160:
			at, digit = i%32, i/32
		case i < 240:
			at, digit = 32+(i-160)%16, (i-160)/16
		default:
			at, digit = 48+(i-240)%4, (i-240)/4
		}
		v := int(b[at])
		for range digit {
			v = v * 3 % 256
		}
		return float32(v*3/256-1) * h(52)
	case TQ2_0:
		return float32(int(b[i/128*32+i%32])>>(2*(i%128/32))&3-1) * h(64)
	case Q1_0:
		return float32(2*bit(2, i)-1) * h(0)
	case Q2_0:
		return float32(bit(2, 2*i)+2*bit(2, 2*i+1)-1) * h(0)
	}
	panic("no slow formulation of " + t.String())
}

// e2m1 is the value of a four-bit float: sign, two exponent bits, one mantissa
// bit.
func e2m1(code int) float64 {
	v := float64(code&1) / 2
	if e := code >> 1 & 3; e > 0 {
		v = (1 + v) * math.Ldexp(1, e-1)
	}
	if code&8 != 0 {
		v = -v
	}
	return v
}

func dequantizable() (ts []Type) {
	for t := range maxType + 1 {
		if t.Dequantizable() {
			ts = append(ts, t)
		}
	}
	return ts
}

func TestDequantizableTypes(t *testing.T) {
	want := []Type{F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS,
		IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, Q2_0}
	if got := dequantizable(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("dequantizable types are %v, want %v", got, want)
	}
}

// same treats all NaNs as equal and tells zeros apart only by value: the sign of
// a zero product is of no interest.
func same(a, b float32) bool { return a == b || a != a && b != b }

func TestDequantizeAgainstLayout(t *testing.T) {
	for _, typ := range dequantizable() {
		if typ.GridPoints() != nil {
			continue // TestGridTypes
		}
		t.Run(typ.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(typ)))
			n, size := typ.BlockLen(), typ.BlockBytes()
			const blocks = 200
			src := make([]byte, blocks*size)
			for i := range src {
				src[i] = byte(r.Uint32())
			}
			// Whole blocks of extreme bytes: every code and scale at its ends.
			for k, v := range []byte{0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0} {
				for i := range size {
					src[k*size+i] = v
				}
			}
			dst := make([]float32, blocks*n)
			if err := Dequantize(typ, dst, src); err != nil {
				t.Fatal(err)
			}
			for i, got := range dst {
				b := src[i/n*size:][:size]
				if want := slowValue(typ, b, i%n); !same(got, want) {
					t.Fatalf("block % x\nvalue %d is %v, want %v", b, i%n, got, want)
				}
			}
		})
	}
}

// TestDequantizeEveryScale covers what random bytes reach rarely: all scale
// bytes of the types with byte-sized float scales.
func TestDequantizeEveryScale(t *testing.T) {
	for _, typ := range []Type{MXFP4, NVFP4} {
		for s := range 256 {
			b := make([]byte, typ.BlockBytes())
			for i := range b {
				b[i] = byte(0x10*(i%16) + (i+5)%16)
			}
			b[0] = byte(s)
			if typ == NVFP4 {
				copy(b, []byte{byte(s), byte(s), byte(s), byte(s)})
			}
			dst := make([]float32, typ.BlockLen())
			if err := Dequantize(typ, dst, b); err != nil {
				t.Fatal(err)
			}
			for i, got := range dst {
				if want := slowValue(typ, b, i); !same(got, want) {
					t.Fatalf("%v scale %#02x: value %d is %v, want %v", typ, s, i, got, want)
				}
			}
		}
	}
}

func TestDequantizeLengths(t *testing.T) {
	for _, c := range []struct {
		name   string
		typ    Type
		values int
		bytes  int
		want   string
	}{
		{"unsupported", Q8_K, 256, 74, "dequantize: type Q8_K is not supported"},
		{"unknown id", 99, 0, 0, "dequantize: type type(99) is not supported"},
		{"part of a block", Q4_0, 33, 36, "dequantize Q4_0: 33 values are not a multiple of the block length 32"},
		{"too few bytes", Q6_K, 512, 419, "dequantize Q6_K: 512 values need 420 bytes, have 419"},
		{"too many bytes", F16, 2, 5, "dequantize F16: 2 values need 4 bytes, have 5"},
	} {
		err := Dequantize(c.typ, make([]float32, c.values), make([]byte, c.bytes))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	for _, typ := range dequantizable() {
		if err := Dequantize(typ, nil, nil); err != nil {
			t.Errorf("empty %v: %v", typ, err)
		}
	}
}

// TestDequantizeAllocatesNothing: rows of the cache are read with it where there are no kernels.
func TestDequantizeAllocatesNothing(t *testing.T) {
	for _, typ := range dequantizable() {
		dst, src := make([]float32, 512), make([]byte, typ.RowBytes(512))
		if n := testing.AllocsPerRun(10, func() { _ = Dequantize(typ, dst, src) }); n > 0 {
			t.Errorf("%v: %v allocations", typ, n)
		}
	}
}

// FuzzDequantize feeds arbitrary bytes as every type: no panic, no write beyond
// the destination, and the layout's own reading agrees.
func FuzzDequantize(f *testing.F) {
	for _, typ := range dequantizable() {
		f.Add(uint32(typ), bytes.Repeat([]byte{0xa5, 0x3c}, typ.BlockBytes()))
	}
	f.Add(uint32(99), []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, id uint32, src []byte) {
		typ := Type(id)
		if !typ.Known() {
			if Dequantize(typ, make([]float32, 1), src) == nil {
				t.Fatalf("unknown type %d accepted", id)
			}
			return
		}
		n := len(src) / typ.BlockBytes() * typ.BlockLen()
		const guard = 12345
		buf := make([]float32, n+1)
		buf[n] = guard
		err := Dequantize(typ, buf[:n], src)
		if exact := len(src)%typ.BlockBytes() == 0; (err == nil) != (exact && typ.Dequantizable()) {
			t.Fatalf("%v from %d bytes: error %v", typ, len(src), err)
		}
		if buf[n] != guard {
			t.Fatalf("%v wrote beyond the destination", typ)
		}
		if err != nil || typ.GridPoints() != nil { // see TestGridTypes
			return
		}
		for i, got := range buf[:n] {
			b := src[i/typ.BlockLen()*typ.BlockBytes():]
			if want := slowValue(typ, b, i%typ.BlockLen()); !same(got, want) {
				t.Fatalf("%v value %d is %v, want %v", typ, i, got, want)
			}
		}
	})
}

func BenchmarkDequantize(b *testing.B) {
	const n = 4096
	for _, typ := range dequantizable() {
		b.Run(typ.String(), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			src := make([]byte, typ.RowBytes(n))
			for i := range src {
				src[i] = byte(r.Uint32())
			}
			if typ == F16 { // NaN and subnormals are not what files hold
				for i := range n {
					putHalf(src[2*i:], float32(r.NormFloat64()))
				}
			}
			dst := make([]float32, n)
			b.SetBytes(4 * n) // bytes of float32 written
			for b.Loop() {
				if err := Dequantize(typ, dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
