package quant

import (
	"hash/fnv"
	"math"
	"testing"
)

// TestGridTypes decodes pseudo-random blocks of the types with grids and compares a checksum of all values, and the
// first of them in the open, with what ggml's functions of the same names give for the same bytes.
func TestGridTypes(t *testing.T) {
	for _, c := range []struct {
		typ   Type
		sum   uint64
		first [4]float32
	}{
		{IQ2_XXS, 0x64777ef32b7d223b, [4]float32{-1.26865, -6.81897, 1.26865, 1.26865}},
		{IQ2_XS, 0xc198b8ffa134c8b4, [4]float32{-6.81897, 1.26865, 1.26865, -6.81897}},
		{IQ2_S, 0xfc9b947039431f3d, [4]float32{0.895214, -0.895214, 0.895214, -0.286469}},
		{IQ3_XXS, 0x886843e05c921b87, [4]float32{1.10495, 3.31485, 5.52475, 7.73465}},
		{IQ3_S, 0x5cfff2b6b75e11e6, [4]float32{2.82376, 0.941254, -2.82376, -10.3538}},
		{IQ1_S, 0x53bf188c8a2508c6, [4]float32{-0.0153465, -0.0153465, 0.107426, -0.0153465}},
		{IQ1_M, 0x4f0094a96ac2e301, [4]float32{-0.326088, 0.253624, 0.253624, -0.326088}},
	} {
		state := uint32(7)
		sum := fnv.New64a()
		b := make([]byte, c.typ.BlockBytes())
		y := make([]float32, 256)
		for n := range 400 {
			for i := range b {
				state = state*1664525 + 1013904223
				b[i] = byte(state >> 24)
			}
			if c.typ == IQ1_M { // a finite scale
				b[55] = b[55]&15 | 0x20
			} else {
				b[1] &= 0xbf
			}
			if err := Dequantize(c.typ, y, b); err != nil {
				t.Fatal(err)
			}
			for i, v := range y {
				if n == 0 && i < 4 && math.Abs(float64(v-c.first[i])) > 1e-5*math.Abs(float64(v)) {
					t.Errorf("%s: value %d is %g, want %g", c.typ, i, v, c.first[i])
				}
				u := math.Float32bits(v)
				sum.Write([]byte{byte(u), byte(u >> 8), byte(u >> 16), byte(u >> 24)})
			}
		}
		if got := sum.Sum64(); got != c.sum {
			t.Errorf("%s: checksum %#016x, want %#016x", c.typ, got, c.sum)
		}
	}
	// IQ2_XXS, IQ2_XS, IQ2_S, IQ1, IQ3_XXS and IQ3_S number their points with 8 to 11 bits.
	for i, g := range [][]uint64{grid2xxs, grid2xs, grid2s, grid1, grid3xxs, grid3s} {
		if want := []int{256, 512, 1024, 2048, 256, 512}[i]; len(g) != want {
			t.Errorf("grid %d has %d points, want %d", i, len(g), want)
		}
	}
}
