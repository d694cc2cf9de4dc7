package quant

import (
	"math"
	"testing"
)

// slowHalf is the textbook reading of an IEEE half.
func slowHalf(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	exp, man := int(h>>10&31), float64(h&1023)
	switch exp {
	case 0:
		return sign * math.Ldexp(man, -24)
	case 31:
		if man != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(1+man/1024, exp-15)
}

func TestHalfExhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want, got := slowHalf(h), F16ToF32(h)
		if math.IsNaN(want) {
			if got == got {
				t.Fatalf("F16ToF32(%#04x) = %v, want NaN", h, got)
			}
			if back := F32ToF16(got); back != h|0x200 {
				t.Fatalf("NaN %#04x came back as %#04x", h, back)
			}
			continue
		}
		if float64(got) != want || math.Signbit(want) != math.Signbit(float64(got)) {
			t.Fatalf("F16ToF32(%#04x) = %v, want %v", h, got, want)
		}
		if back := F32ToF16(got); back != h {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
	}
}

// TestHalfRounding checks every boundary between neighbouring halves: just
// below, exactly on (ties to even) and just above.
func TestHalfRounding(t *testing.T) {
	for i := range 0x7c00 {
		lo, hi := uint16(i), uint16(i+1)
		upper := 65536.0 // what follows 65504 if the format went on
		if hi < 0x7c00 {
			upper = slowHalf(hi)
		}
		mid := float32((slowHalf(lo) + upper) / 2) // exact: 12 bits of mantissa
		even := lo
		if lo&1 == 1 {
			even = hi
		}
		for _, c := range []struct {
			x    float32
			want uint16
		}{
			{math.Nextafter32(mid, 0), lo},
			{mid, even},
			{math.Nextafter32(mid, 1e9), hi},
		} {
			if got := F32ToF16(c.x); got != c.want {
				t.Fatalf("F32ToF16(%v) = %#04x, want %#04x", c.x, got, c.want)
			}
			if got := F32ToF16(-c.x); got != c.want|0x8000 {
				t.Fatalf("F32ToF16(%v) = %#04x, want %#04x", -c.x, got, c.want|0x8000)
			}
		}
	}
	for _, x := range []float32{65520, 1e6, math.MaxFloat32, float32(math.Inf(1))} {
		if got := F32ToF16(x); got != 0x7c00 {
			t.Errorf("F32ToF16(%v) = %#04x, want infinity", x, got)
		}
	}
	if got := F32ToF16(math.SmallestNonzeroFloat32); got != 0 {
		t.Errorf("smallest float32 became %#04x", got)
	}
}

func TestBF16Exhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := BF16ToF32(h)
		if math.Float32bits(f) != uint32(h)<<16 {
			t.Fatalf("BF16ToF32(%#04x) has bits %#08x", h, math.Float32bits(f))
		}
		nan := h&0x7f80 == 0x7f80 && h&0x7f != 0
		want := h
		if nan {
			want |= 0x40
		}
		if got := F32ToBF16(f); got != want {
			t.Fatalf("%#04x came back as %#04x", h, got)
		}
		if nan || h&0x7f80 == 0x7f80 {
			continue
		}
		// The float32 halfway to the next bfloat16 goes to the even one.
		next := h + 1
		even := h
		if h&1 == 1 {
			even = next
		}
		base := uint32(h) << 16
		for _, c := range []struct {
			bits uint32
			want uint16
		}{{base | 0x7fff, h}, {base | 0x8000, even}, {base | 0x8001, next}} {
			if got := F32ToBF16(math.Float32frombits(c.bits)); got != c.want {
				t.Fatalf("F32ToBF16(bits %#08x) = %#04x, want %#04x", c.bits, got, c.want)
			}
		}
	}
}
