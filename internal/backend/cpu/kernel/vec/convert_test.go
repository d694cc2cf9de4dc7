package vec

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"strobe/internal/quant"
)

func TestLoadAllHalves(t *testing.T) {
	levels(t, func(t *testing.T) {
		src := make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
		}
		got, want := make([]float32, 1<<16), make([]float32, 1<<16)
		for i := range want {
			want[i] = quant.F16ToF32(uint16(i))
		}
		Load(quant.F16, got, src)
		sameBits(t, "f16", got, want)
		for i := range want {
			want[i] = quant.BF16ToF32(uint16(i))
		}
		Load(quant.BF16, got, src)
		sameBits(t, "bf16", got, want)
	})
}

// TestStoreF16 checks rounding against quant for values around every half.
func TestStoreF16(t *testing.T) {
	levels(t, func(t *testing.T) {
		var src []float32
		for i := range 1 << 16 {
			v := quant.F16ToF32(uint16(i))
			if v != v {
				continue
			}
			next := quant.F16ToF32(uint16(i + 1))
			mid := (v + next) / 2
			src = append(src, v, mid, math.Nextafter32(mid, v), math.Nextafter32(mid, next))
		}
		src = append(src, odd...)
		dst := make([]byte, 2*len(src))
		Store(quant.F16, dst, src)
		for i, v := range src {
			got, want := binary.LittleEndian.Uint16(dst[2*i:]), quant.F32ToF16(v)
			if got != want && !(v != v && got&0x7c00 == 0x7c00 && got&0x3ff != 0) {
				t.Fatalf("%v (%#x) became %#04x, want %#04x", v, math.Float32bits(v), got, want)
			}
		}
	})
}

func TestStoreLoadRows(t *testing.T) {
	levels(t, func(t *testing.T) {
		r := newRand(30)
		for _, typ := range cacheTypes {
			for _, n := range append(lengths(), 96, 1024) {
				if n%typ.BlockLen() != 0 {
					continue
				}
				src := normal(r, n)
				for i := range src {
					if r.IntN(5) == 0 { // exact halves of the Q8_0 grid
						src[i] = float32(r.IntN(255)-127) / 2
					}
					if n > 64 && i < 32 {
						src[i] *= 1e-38
					}
				}
				size := typ.RowBytes(n)
				dst := edgeBytes(size)
				Store(typ, dst, src)
				want := make([]byte, size)
				if typ == quant.BF16 {
					if err := quant.Quantize(typ, want, src); err != nil {
						t.Fatal(err)
					}
				} else {
					quant.EncodeKV(typ, want, src)
				}
				if !bytes.Equal(dst, want) {
					t.Fatalf("%v n=%d: stored bytes differ from package quant", typ, n)
				}
				f := newFenced(n%4, n)
				Load(typ, f.dst(), dst)
				f.check(t)
				deq := make([]float32, n)
				quant.DecodeKV(typ, deq, want)
				sameBits(t, caseName("load ", typ, " n=", n), f.dst(), deq)
				if !typ.Known() { // no weights
					continue
				}
				row := make([]float32, n)
				if err := DequantRow(row, typ, dst); err != nil {
					t.Fatal(err)
				}
				sameBits(t, caseName("row ", typ, " n=", n), row, deq)
			}
		}
	})
}

func TestDequantRowErrors(t *testing.T) {
	for _, typ := range []quant.Type{quant.F32, quant.BF16, quant.Q8_0, quant.Q4_K} {
		if err := DequantRow(make([]float32, 256), typ, make([]byte, 5)); err == nil {
			t.Errorf("%v: a short row gave no error", typ)
		}
	}
}
