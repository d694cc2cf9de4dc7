package quant

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

// weights are n normal values and their BF16 bytes.
func weights(n int) (x []float32, raw []byte) {
	r := rand.New(rand.NewPCG(8, 8))
	x, raw = make([]float32, n), make([]byte, 2*n)
	for i := range x {
		x[i] = BF16ToF32(F32ToBF16(float32(r.NormFloat64())))
	}
	quantBF16(raw, x)
	return x, raw
}

func TestConvertMatchesQuantize(t *testing.T) {
	const n = 3*chunkLen + 512
	x, raw := weights(n)
	for _, typ := range []Type{F32, F16, BF16, Q8_0, Q4_K} {
		want := make([]byte, typ.RowBytes(n))
		if err := Quantize(typ, want, x); err != nil {
			t.Fatal(err)
		}
		for _, workers := range []int{0, 1, 3, 100} {
			progress := 0
			opt := Options{Workers: workers, Progress: func(n int) { progress += n }}
			got := make([]byte, len(want))
			if err := Convert(t.Context(), typ, got, BF16, raw, opt); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) || progress != n {
				t.Errorf("%v with %d workers: bytes equal %v, progress %d of %d", typ, workers, bytes.Equal(got, want), progress, n)
			}
			clear(got)
			if err := QuantizeAll(t.Context(), typ, got, x, Options{Workers: workers}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("QuantizeAll to %v with %d workers differs", typ, workers)
			}
		}
	}
}

func TestConvertErrors(t *testing.T) {
	const n, at = 3 * chunkLen, 2*chunkLen + 77
	x, raw := weights(n)
	x[at] = float32(math.NaN())
	quantBF16(raw[2*at:], x[at:at+1])
	dst := make([]byte, Q4_0.RowBytes(n))
	var v *ValueError
	if err := Convert(t.Context(), Q4_0, dst, BF16, raw, Options{}); !errors.As(err, &v) || v.Index != at {
		t.Errorf("NaN: error %v, want position %d", err, at)
	}
	if err := QuantizeAll(t.Context(), Q4_0, dst, x, Options{}); !errors.As(err, &v) || v.Index != at {
		t.Errorf("NaN: error %v, want position %d", err, at)
	}
	for _, c := range []struct {
		to, from   Type
		dst, src   int
		wantPrefix string
	}{
		{Q4_0, IQ2_S, 18, 82, "convert IQ2_S to Q4_0: not supported"},
		{Q2_K, F32, 84, 1024, "convert F32 to Q2_K: not supported"},
		{Type(4), Type(4), 0, 0, "convert type(4) to type(4): not supported"},
		{Q4_0, BF16, 18, 63, "convert BF16 to Q4_0: 63 bytes are not whole blocks of 2"},
		{Q4_K, BF16, 144, 64, "convert BF16 to Q4_K: 32 values are not a multiple of the block length 256"},
		{Q4_0, BF16, 17, 64, "convert BF16 to Q4_0: 32 values need 18 bytes, have 17"},
	} {
		err := Convert(t.Context(), c.to, make([]byte, c.dst), c.from, make([]byte, c.src), Options{})
		if err == nil || err.Error() != c.wantPrefix {
			t.Errorf("got %v, want %s", err, c.wantPrefix)
		}
	}
	if err := QuantizeAll(t.Context(), Q4_0, nil, x, Options{}); err == nil {
		t.Error("QuantizeAll accepted a destination of the wrong size")
	}
}

func TestConvertCopies(t *testing.T) {
	src := bytes.Repeat([]byte{1, 2, 3}, 82) // no dequantiser needed for a copy
	dst := make([]byte, len(src))
	if err := Convert(t.Context(), IQ2_S, dst, IQ2_S, src, Options{}); err != nil || !bytes.Equal(dst, src) {
		t.Errorf("copy: %v", err)
	}
}

func TestConvertCancel(t *testing.T) {
	const n = 64 * chunkLen
	_, raw := weights(n)
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	err := Convert(ctx, F16, make([]byte, 2*n), BF16, raw, Options{Workers: 2, Progress: func(n int) { done += n; cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if done == 0 || done > n/2 {
		t.Errorf("%d of %d values were converted after cancelling at the first chunk", done, n)
	}
}

func TestReader(t *testing.T) {
	const n = 2*256*chunkLen + 4*chunkLen + 256 // three windows
	if testing.Short() {
		t.Skip("converts 8 M values")
	}
	x, raw := weights(chunkLen)
	raw = bytes.Repeat(raw, n/chunkLen+1)[:2*n]
	want := make([]byte, n/32*34)
	if err := Convert(t.Context(), Q8_0, want, BF16, raw, Options{}); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(t.Context(), Q8_0, BF16, raw, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("reading all: error %v, equal %v", err, bytes.Equal(got, want))
	}

	r, err = NewReader(t.Context(), Q8_0, BF16, raw[:2*chunkLen], Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(r, want[:chunkLen/32*34]); err != nil {
		t.Error(err)
	}

	const at = 256*chunkLen + 5 // in the second window
	x[0] = float32(math.Inf(1))
	quantBF16(raw[2*at:], x[:1])
	r, err = NewReader(t.Context(), Q8_0, BF16, raw, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var v *ValueError
	if _, err := io.Copy(io.Discard, r); !errors.As(err, &v) || v.Index != at {
		t.Errorf("infinity: error %v, want position %d", err, at)
	}
	if _, err := NewReader(t.Context(), Q4_K, BF16, raw[:2], Options{}); err == nil {
		t.Error("NewReader accepted half a block")
	}
}
