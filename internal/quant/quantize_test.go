package quant

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func quantizable() (ts []Type) {
	for t := range maxType + 1 {
		if t.Quantizable() {
			ts = append(ts, t)
		}
	}
	return ts
}

func TestQuantizableTypes(t *testing.T) {
	want := []Type{F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16,
		MXFP4}
	if got := quantizable(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("quantizable types are %v, want %v", got, want)
	}
}

// roundTrip quantises and dequantises.
func roundTrip(t testing.TB, typ Type, x []float32) []float32 {
	t.Helper()
	b := make([]byte, typ.RowBytes(len(x)))
	if err := Quantize(typ, b, x); err != nil {
		t.Fatal(err)
	}
	y := make([]float32, len(x))
	if err := Dequantize(typ, y, b); err != nil {
		t.Fatal(err)
	}
	return y
}

// step is a bound on the error of one value relative to the largest magnitude
// of its block. Half a code step, and for the searched types some more: they
// trade the error of one value for that of the others.
var step = map[Type]float64{
	F32: 0, F16: 0x1p-11, BF16: 0x1p-8, Q8_0: 0.5/127 + 1e-3,
	Q4_0: 0.2, IQ4_NL: 0.2, IQ4_XS: 0.25, Q4_1: 0.15, Q4_K: 0.25,
	Q5_0: 0.1, Q5_1: 0.08, Q5_K: 0.12, Q6_K: 0.06, Q3_K: 0.35, Q2_K: 0.6, MXFP4: 0.25,
}

// check compares a round trip with its bound.
func check(t testing.TB, typ Type, x []float32) {
	t.Helper()
	y := roundTrip(t, typ, x)
	for at := 0; at < len(x); at += typ.BlockLen() {
		var top float64
		for _, v := range x[at : at+typ.BlockLen()] {
			top = max(top, math.Abs(float64(v)))
		}
		// Scales are halves: below their range blocks fade to zero.
		bound := step[typ]*top + min(3*top, 1e-4)
		if typ == F32 || typ == BF16 {
			bound = step[typ]*top + 1e-40
		}
		for i := at; i < at+typ.BlockLen(); i++ {
			if e := math.Abs(float64(x[i]) - float64(y[i])); !(e <= bound) {
				t.Fatalf("%v: value %d is %v and comes back as %v; block maximum %v", typ, i, x[i], y[i], top)
			}
		}
	}
}

// shapes are blocks of 256 values that have tripped quantisers before: no
// variance, one sign, one spike, sub-blocks of very different size.
func shapes() map[string][]float32 {
	r := rand.New(rand.NewPCG(3, 4))
	make256 := func(f func(i int) float64) []float32 {
		x := make([]float32, 512)
		for i := range x {
			x[i] = float32(f(i))
		}
		return x
	}
	return map[string][]float32{
		"zero":             make256(func(int) float64 { return 0 }),
		"negative zero":    make256(func(int) float64 { return math.Copysign(0, -1) }),
		"constant":         make256(func(int) float64 { return 0.37 }),
		"negative":         make256(func(int) float64 { return -0.37 }),
		"gauss":            make256(func(int) float64 { return r.NormFloat64() }),
		"large":            make256(func(int) float64 { return 20000 * (r.Float64() - 0.5) }),
		"small":            make256(func(int) float64 { return 1e-3 * r.NormFloat64() }),
		"tiny":             make256(func(int) float64 { return 1e-7 * r.NormFloat64() }),
		"subnormal":        make256(func(int) float64 { return 1e-41 * r.NormFloat64() }),
		"positive":         make256(func(int) float64 { return 5 + r.Float64() }),
		"all below zero":   make256(func(int) float64 { return -5 - r.Float64() }),
		"ramp":             make256(func(i int) float64 { return float64(i) - 100 }),
		"spike":            make256(func(i int) float64 { return map[bool]float64{true: 100, false: 0.01}[i == 77] }),
		"lone value":       make256(func(i int) float64 { return map[bool]float64{true: -3, false: 0}[i == 300] }),
		"two values":       make256(func(i int) float64 { return float64(i%2)*2 - 1 }),
		"uneven subblocks": make256(func(i int) float64 { return r.NormFloat64() * math.Pow(10, float64(i/32%8-4)) }),
		"heavy tail":       make256(func(int) float64 { return r.NormFloat64() / (0.05 + r.Float64()) }),
	}
}

func TestQuantizeShapes(t *testing.T) {
	for _, typ := range quantizable() {
		for name, x := range shapes() {
			t.Run(fmt.Sprint(typ, "/", name), func(t *testing.T) { check(t, typ, x) })
		}
	}
}

func TestQuantizeExactBlocks(t *testing.T) {
	zero := make([]float32, 256)
	for _, typ := range quantizable() {
		for i, v := range roundTrip(t, typ, zero) {
			if v != 0 {
				t.Errorf("%v: zero %d came back as %v", typ, i, v)
			}
		}
	}
	// Values on the grid of a type survive unchanged.
	grid := func(n, lo, hi int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(lo+i%(hi-lo+1)) / 8
		}
		return x
	}
	for _, c := range []struct {
		typ Type
		x   []float32
	}{
		{Q4_0, grid(32, -8, 7)}, {Q5_0, grid(32, -16, 15)}, {Q4_1, grid(32, 3, 18)}, {Q5_1, grid(32, -4, 27)},
		{Q4_K, grid(256, -3, 12)}, {Q5_K, grid(256, -31, 0)},
	} {
		for i, v := range roundTrip(t, c.typ, c.x) {
			if math.Abs(float64(v-c.x[i])) > 2e-3 {
				t.Errorf("%v: %v came back as %v", c.typ, c.x[i], v)
			}
		}
	}
}

// TestQ80Bytes compares with the rule of the official converter, evaluated in
// float32 step by step.
func TestQ80Bytes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for trial := range 2000 {
		x := make([]float32, 32)
		var top float32
		for i := range x {
			x[i] = BF16ToF32(F32ToBF16(float32(r.NormFloat64()))) // as checkpoints have them: many ties
			top = max(top, float32(math.Abs(float64(x[i]))))
		}
		d := top / 127
		inv := 1 / d
		want := make([]byte, 34)
		binary.LittleEndian.PutUint16(want, F32ToF16(d))
		for i, v := range x {
			p := float64(float32(v * inv))
			want[2+i] = byte(int8(math.Copysign(math.Floor(math.Abs(p)+0.5), p)))
		}
		got := make([]byte, 34)
		if err := Quantize(Q8_0, got, x); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("block %d: got % x\nwant % x", trial, got, want)
		}
	}
}

func TestQuantizeErrors(t *testing.T) {
	for _, typ := range quantizable() {
		if typ == F32 {
			continue
		}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32} {
			for _, at := range []int{0, 31, 100, 511} {
				x := make([]float32, 512)
				x[at] = bad
				err := Quantize(typ, make([]byte, typ.RowBytes(len(x))), x)
				var v *ValueError
				if !errors.As(err, &v) {
					t.Fatalf("%v with %v at %d: error %v", typ, bad, at, err)
				}
				if v.Index != at || v.Type != typ || !same(v.Value, bad) {
					t.Errorf("%v with %v at %d: error %+v", typ, bad, at, v)
				}
			}
		}
	}
	for _, c := range []struct {
		x    float32
		want string
	}{
		{float32(math.NaN()), "quantize Q4_K: value 3 is NaN"},
		{float32(math.Inf(-1)), "quantize Q4_K: value 3 is -Inf"},
		{1e30, "quantize Q4_K: value 3 is 1e+30, too large for the type"},
	} {
		x := make([]float32, 256)
		x[3] = c.x
		if err := Quantize(Q4_K, make([]byte, 144), x); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	for _, c := range []struct {
		typ           Type
		values, bytes int
		want          string
	}{
		{Q8_K, 256, 84, "quantize: type Q8_K is not supported"},
		{Type(77), 0, 0, "quantize: type type(77) is not supported"},
		{Q4_K, 128, 72, "quantize Q4_K: 128 values are not a multiple of the block length 256"},
		{Q4_0, 64, 35, "quantize Q4_0: 64 values need 36 bytes, have 35"},
	} {
		err := Quantize(c.typ, make([]byte, c.bytes), make([]float32, c.values))
		if err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	inf := []float32{float32(math.Inf(1)), float32(math.NaN())}
	if y := roundTrip(t, F32, inf); !same(y[0], inf[0]) || !same(y[1], inf[1]) {
		t.Errorf("F32 changed %v to %v", inf, y)
	}
}

// TestQuantizeLimits puts values right below each type's limit: the scales must
// not overflow to infinity.
func TestQuantizeLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, typ := range quantizable() {
		limit := quantizers[typ].limit
		for range 50 {
			x := make([]float32, 256)
			for i := range x {
				x[i] = limit * float32(2*r.Float64()-1)
			}
			x[r.IntN(256)], x[r.IntN(256)] = limit, -limit
			for i, v := range roundTrip(t, typ, x) {
				if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					t.Fatalf("%v: value %v came back as %v", typ, x[i], v)
				}
			}
		}
	}
}

// TestQuantizeNearlyConstant has values that differ by a few units of their last
// places: fits to them are mostly rounding, and none may lose the values.
func TestQuantizeNearlyConstant(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x := make([]float32, 256)
	for range 300 {
		base := float32(r.NormFloat64())
		for i := range x {
			x[i] = base
			if r.IntN(8) == 0 {
				x[i] = math.Float32frombits(math.Float32bits(base) ^ 1<<r.IntN(8))
			}
		}
		for _, typ := range quantizable() {
			check(t, typ, x)
		}
	}
}

// FuzzQuantize takes any bytes as numbers: an error or a result within bounds,
// never a panic, and the same bytes whether converted at once or by block.
func FuzzQuantize(f *testing.F) {
	for _, x := range shapes() {
		b := make([]byte, 4*256)
		quantF32(b, x[:256])
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		x := make([]float32, (len(raw)/4+255)/256*256)
		for i := range len(raw) / 4 {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		for _, typ := range quantizable() {
			whole := make([]byte, typ.RowBytes(len(x)))
			if err := Quantize(typ, whole, x); err != nil {
				var v *ValueError
				if !errors.As(err, &v) {
					t.Fatal(err)
				}
				continue
			}
			n, size := typ.BlockLen(), typ.BlockBytes()
			for i := range len(x) / n {
				part := make([]byte, size)
				if err := Quantize(typ, part, x[i*n:i*n+n]); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(part, whole[i*size:i*size+size]) {
					t.Fatalf("%v: block %d alone gives % x, in a row % x", typ, i, part, whole[i*size:i*size+size])
				}
			}
			if typ != F32 { // which keeps NaN
				check(t, typ, x)
			}
		}
	})
}

func BenchmarkQuantize(b *testing.B) {
	const n = 8192
	r := rand.New(rand.NewPCG(1, 1))
	src := make([]float32, n)
	for i := range src {
		src[i] = float32(0.02 * r.NormFloat64())
	}
	for _, typ := range quantizable() {
		b.Run(typ.String(), func(b *testing.B) {
			dst := make([]byte, typ.RowBytes(n))
			b.SetBytes(4 * n) // bytes of float32 read
			for b.Loop() {
				if err := Quantize(typ, dst, src); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}
