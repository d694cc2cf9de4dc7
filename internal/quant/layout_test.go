package quant

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestLayouts: every quantised type that files may have can be read, and its layout keeps what readers rely on.
func TestLayouts(t *testing.T) {
	unread := []Type{Q8_1, Q8_K} // of activations; no file has weights in them
	for typ := range maxType + 1 {
		l := typ.Layout()
		if want := typ.Quantized() && !slices.Contains(unread, typ); (l != nil) != want {
			t.Errorf("%v: has a layout: %v, want %v", typ, l != nil, want)
		}
		if l == nil {
			continue
		}
		n, size := typ.BlockLen(), typ.BlockBytes()
		if l.Sub != 16 && l.Sub != 32 || n%l.Sub != 0 || 256%n != 0 {
			t.Errorf("%v: sub-blocks of %d in blocks of %d", typ, l.Sub, n)
		}
		r := rand.New(rand.NewPCG(3, uint64(typ)))
		src := make([]byte, size)
		for k := range 600 {
			for i := range src {
				src[i] = byte(r.Uint32())
				if k < 256 {
					src[i] = byte(k)
				}
			}
			// Twice, over different leftovers: all codes and scales are written, and nothing else.
			var got [2][]float32
			for i, old := range []byte{0, 0xa5} {
				b := Block{D: uint16(old), M: uint16(old)}
				for j := range b.Scales {
					b.Scales[j], b.Mins[j] = old, old
				}
				codes := bytes.Repeat([]byte{old}, n+8)
				l.Unpack(&b, codes[:n:n], src)
				if !bytes.Equal(codes[n:], bytes.Repeat([]byte{old}, 8)) {
					t.Fatalf("%v: codes beyond the block", typ)
				}
				scales, mins := make([]float32, n/l.Sub), make([]float32, n/l.Sub)
				l.Floats(&b, scales, mins)
				for j, code := range codes[:n] {
					if x := int(code) - int(l.Offset); l.Table != nil && code > 15 || x < -128 || x > 127 {
						t.Fatalf("%v: code %d", typ, code)
					}
					v := l.values[code] * scales[j/l.Sub]
					if l.Min {
						v += mins[j/l.Sub]
					}
					got[i] = append(got[i], v)
				}
			}
			want := make([]float32, n)
			if err := Dequantize(typ, want, src); err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if !same(got[0][i], want[i]) || !same(got[1][i], want[i]) {
					t.Fatalf("%v: value %d is %v and %v, want %v", typ, i, got[0][i], got[1][i], want[i])
				}
			}
		}
	}
	for _, typ := range []Type{Turbo3, Turbo4, maxType + 1, math.MaxUint32} {
		if typ.Layout() != nil {
			t.Errorf("%v has a layout", typ)
		}
	}
}

// valueSums are sums over the bits of all values of constant and random blocks. They were written down when every type
// had a dequantiser of its own.
var valueSums = map[Type]string{
	F32:     "ef70b226a3171d3f",
	F16:     "105ca2bad2782773",
	Q4_0:    "0e07134bc76e068d",
	Q4_1:    "0b6e30fe6f8d81ca",
	Q5_0:    "aaf1a9554ef0b646",
	Q5_1:    "21d82f6ef3ddd7ed",
	Q8_0:    "9ac21048f2be834a",
	Q2_K:    "8e22c9dba1d93c0f",
	Q3_K:    "865345155ea6ea4e",
	Q4_K:    "d46ccecd2b0fbcd9",
	Q5_K:    "a4bc8042dcb755a2",
	Q6_K:    "7c120f86b58b73f2",
	IQ2_XXS: "864cb687862ade05",
	IQ2_XS:  "7d0c73fb0adc75c0",
	IQ3_XXS: "d71c779036ca3560",
	IQ1_S:   "ebea09d437888185",
	IQ4_NL:  "541506800956a0ed",
	IQ3_S:   "2b030e7605307643",
	IQ2_S:   "8be3fc9c245d1920",
	IQ4_XS:  "2a33318e57e606bb",
	IQ1_M:   "019db32a1ae3e127",
	BF16:    "e854ab6ca917cafe",
	TQ1_0:   "2b64c49ad4250502",
	TQ2_0:   "9f2ef3d6c99f26ef",
	MXFP4:   "a045dd9ab3237c51",
	NVFP4:   "64089fb310359f41",
	Q1_0:    "e961cdefb0b0bf2f",
	Q2_0:    "5c254f2f3b06d899",
}

// TestDequantizeBits: values keep their bits, but for those of NaN.
func TestDequantizeBits(t *testing.T) {
	for _, typ := range dequantizable() {
		const blocks = 3000
		r := rand.New(rand.NewPCG(11, uint64(typ)))
		size := typ.BlockBytes()
		src := make([]byte, blocks*size)
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		for i := range 256 * size {
			src[i] = byte(i / size)
		}
		dst := make([]float32, blocks*typ.BlockLen())
		if err := Dequantize(typ, dst, src); err != nil {
			t.Fatal(err)
		}
		bits := make([]byte, 0, 4*len(dst))
		for _, v := range dst {
			u := math.Float32bits(v)
			if v != v {
				u = 0x04030201
			}
			bits = binary.LittleEndian.AppendUint32(bits, u)
		}
		sum := sha256.Sum256(bits)
		if got := fmt.Sprintf("%x", sum[:8]); got != valueSums[typ] {
			t.Errorf("%v: %q,", typ, got)
		}
	}
}
