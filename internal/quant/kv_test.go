package quant_test

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// cached is a row as the cache gives it back, in the domain it came from.
func cached(t quant.Type, x []float32, rotated bool) []float32 {
	y, raw := slices.Clone(x), make([]byte, t.RowBytes(len(x)))
	if rotated {
		quant.Rotate(y)
	}
	quant.EncodeKV(t, raw, y)
	quant.DecodeKV(t, y, raw)
	if rotated {
		quant.Unrotate(y)
	}
	return y
}

// TestRotation: the rotation of ramps is the one that stored sequences were made with, it keeps products, and it has an
// inverse.
func TestRotation(t *testing.T) {
	for n, want := range map[int][4]float32{ // the first values and the last
		128: {-0.493041252, -0.874216001, -1.321682011, -0.191968443},
		32:  {-0.784446585, -0.828640759, -0.143631065, 0.452990282},
	} {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i) / float32(n)
		}
		y := slices.Clone(x)
		quant.Rotate(y)
		for i, v := range []float32{y[0], y[1], y[2], y[n-1]} {
			if math.Abs(float64(v-want[i])) > 1e-6 {
				t.Errorf("ramp of %d: value %d is %v, want %v", n, i, v, want[i])
			}
		}
		quant.Unrotate(y)
		if d := testkit.RelL2(y, x); d > 1e-6 {
			t.Errorf("ramp of %d differs by %g after rotating back", n, d)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 32, 64, 96, 128, 192, 256, 384, 512} {
		a, b := make([]float32, n), make([]float32, n)
		dot := func() (s float64) {
			for i := range a {
				s += float64(a[i]) * float64(b[i])
			}
			return s
		}
		for i := range a {
			a[i], b[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
		}
		want := dot()
		quant.Rotate(a)
		quant.Rotate(b)
		if got := dot(); math.Abs(got-want) > 1e-5*float64(n) {
			t.Errorf("%d values: product %g, %g after rotation", n, want, got)
		}
	}
}

// TestCacheError: on normal rows, and on rows with four large channels, the errors are those that the formats are known
// for. Much better is as wrong as much worse.
func TestCacheError(t *testing.T) {
	type row struct {
		t                quant.Type
		rotated          bool
		mse, dot, outlie float64 // relative squared error, error of products; relative squared error with outliers
	}
	for _, c := range []row{
		{quant.Turbo3, true, 0.033889, 0.016121, 0.030110},
		{quant.Turbo4, true, 0.009214, 0.008471, 0.008217},
		{quant.Q4_0, true, 0.007386, 0.007537, 0.004914},
		{quant.Q4_0, false, 0.007400, 0.007679, 0.026420},
		{quant.Q8_0, true, 2.8653e-5, 4.7334e-4, 1.8439e-5},
		{quant.Q8_0, false, 2.8644e-5, 4.7433e-4, 1.2843e-4},
	} {
		r := rand.New(rand.NewPCG(7, 8))
		x, q := make([]float32, 128), make([]float32, 128)
		measure := func(factor float32) (mse, dot, norm float64) {
			var e2, x2, d2, ratio float64
			const rows = 4096
			for range rows {
				for i := range x {
					x[i], q[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
				}
				for _, i := range []int{3, 40, 41, 99} {
					x[i] *= factor
				}
				y := cached(c.t, x, c.rotated)
				var e, n, qn, qe, yn float64
				for i := range x {
					d := float64(y[i]) - float64(x[i])
					e += d * d
					n += float64(x[i]) * float64(x[i])
					qn += float64(q[i]) * float64(q[i])
					qe += d * float64(q[i])
					yn += float64(y[i]) * float64(y[i])
				}
				e2, x2, d2, ratio = e2+e, x2+n, d2+qe*qe/(qn*n), ratio+math.Sqrt(yn/n)
			}
			return e2 / x2, math.Sqrt(d2 / rows), ratio / rows
		}
		near := func(what string, got, want, within float64) {
			if math.Abs(got-want) > within*want {
				t.Errorf("%v, rotated %v: %s %g, want %g", c.t, c.rotated, what, got, want)
			}
		}
		mse, dot, norm := measure(1)
		near("squared error", mse, c.mse, 0.02)
		near("error of products", dot, c.dot, 0.04)
		if c.t.RotatesValues() {
			near("length", norm, 1, 1e-4)
		}
		mse, _, _ = measure(15)
		near("squared error with outliers", mse, c.outlie, 0.04)
	}
}

// TestCacheOdd: rows that are no ordinary numbers do not crash, and zeros and huge numbers come back as such.
func TestCacheOdd(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, typ := range quant.CacheTypes {
		for _, v := range []float32{0, 1e-30, 1e15, nan, inf, -inf} {
			x := slices.Repeat([]float32{v}, 128)
			x[5] = -v
			y := cached(typ, x, typ.RotatesKeys())
			for i := range y {
				if v == 0 && y[i] != 0 {
					t.Errorf("%v: zeros came back as %v", typ, y[i])
					break
				}
				if v == 1e15 && typ != quant.F16 && (y[i] != y[i] || math.IsInf(float64(y[i]), 0)) {
					t.Errorf("%v: 1e15 came back as %v", typ, y[i])
					break
				}
			}
		}
		back, err := quant.ParseCacheType(strings.ToUpper(typ.String()))
		if err != nil || back != typ || !typ.Caches() {
			t.Errorf("%v: read as %v, %v", typ, back, err)
		}
	}
	if quant.Turbo3.Known() || quant.Q6_K.Caches() {
		t.Error("types of files and of caches are mixed up")
	}
	if _, err := quant.ParseCacheType("q6_k"); err == nil || !strings.Contains(err.Error(), "turbo3") {
		t.Errorf("q6_k: %v", err)
	}
}

// TestCacheGolden compares bytes and values with an independent implementation.
func TestCacheGolden(t *testing.T) {
	b, err := os.ReadFile(testkit.Shared(t, "golden/kvquant/vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors map[string]json.RawMessage
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(testkit.Shared(t, "golden/kvquant/vectors.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	floats := func(name string) []float32 {
		v, err := f.Tensor(name).Float32s()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	if len(vectors) != 32 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for name := range vectors {
		x := floats(name)
		quant.Rotate(x)
		if d := testkit.RelL2(x, floats(name+".rotated")); d > 1e-6 {
			t.Errorf("%s: rotation differs by %g", name, d)
		}
		for format, typ := range map[string]quant.Type{
			"turbo3": quant.Turbo3, "turbo4": quant.Turbo4, "q4_0_rot": quant.Q4_0, "q8_0_rot": quant.Q8_0,
		} {
			raw := make([]byte, typ.RowBytes(len(x)))
			quant.EncodeKV(typ, raw, x)
			if !bytes.Equal(raw, f.Tensor(name+"."+format+".bytes").Data) {
				t.Errorf("%s as %s: bytes differ", name, format)
			}
			got, want := make([]float32, len(x)), floats(name+"."+format+".values")
			quant.DecodeKV(typ, got, raw)
			for i, v := range got {
				if math.Abs(float64(v-want[i])) > 2e-7*math.Abs(float64(want[i])) {
					t.Errorf("%s as %s: value %d is %v, want %v", name, format, i, v, want[i])
					break
				}
			}
		}
	}
}
