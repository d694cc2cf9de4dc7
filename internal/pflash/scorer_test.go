package pflash

import (
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/model"
)

// TestRowsOfAPass: a text gets the same scores whatever the number of tokens that a pass takes, with full and with
// block-sparse attention.
func TestRowsOfAPass(t *testing.T) {
	for _, arch := range []string{"qwen3", "qwen35"} {
		s := scorerOf(t, arch)
		rng := rand.New(rand.NewPCG(1, 2))
		ids := make([]int32, 700)
		for i := range ids {
			ids[i] = int32(rng.IntN(s.Tokenizer.Size()))
		}
		for _, alpha := range []float32{0, 0.7} {
			s.Sparse = backend.Sparse{Block: 128, Sink: 1, Window: 1, Last: 1, Alpha: alpha}
			var want []float64
			for _, rows := range []int{0, len(ids), 128, 256, len(ids) - 1} {
				s.Rows = rows
				got, err := s.Tokens(t.Context(), ids)
				if err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, alpha %g: other scores with %d tokens in a pass", arch, alpha, rows)
				}
			}
		}
	}
}

// roomy is a device with memory of its own.
type roomy struct {
	backend.Backend
	free int
}

func (d *roomy) Memory() (free, total int) { return d.free, 1 << 40 }

// TestRowsByDevice: a GPU with room takes large passes, others do not.
func TestRowsByDevice(t *testing.T) {
	s := scorerOf(t, "qwen3")
	host := s.model.Backend()
	for _, c := range []struct {
		b    backend.Backend
		want int
	}{
		{host, model.MaxRows}, {&roomy{host, gpuRoom}, model.MaxRows}, {&roomy{host, gpuRoom + 1}, gpuRows},
	} {
		if got := rowsOn(c.b); got != c.want {
			t.Errorf("%T: %d tokens in a pass, want %d", c.b, got, c.want)
		}
	}
}
