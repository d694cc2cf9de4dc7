package weight

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestExp(t *testing.T) {
	for x := float32(0); x > -87; x -= 0.00037 {
		if got, want := float64(Exp(x)), math.Exp(float64(x)); math.Abs(got-want) > 3e-7*want {
			t.Fatalf("Exp(%v) = %v, want %v", x, got, want)
		}
	}
	if Exp(0) != 1 || Exp(-88) != 0 || Exp(float32(math.Inf(-1))) != 0 || Exp(float32(math.NaN())) != 0 {
		t.Error("wrong at the ends")
	}
}

// TestSum: the sum is right, does not depend on the order, and cannot overflow.
func TestSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 1<<18)
	want := 0.0
	for i := range x {
		x[i] = 20 + float32(rng.NormFloat64()*8)
	}
	x[77] = 70
	for _, v := range x {
		want += math.Exp(float64(v) - 70)
	}
	sum := Sum(x, 70)
	if got := float64(sum) / (1 << UnitBits); math.Abs(got-want) > 4e-7*want {
		t.Errorf("sum %v, want %v", got, want)
	}
	rng.Shuffle(len(x), func(i, j int) { x[i], x[j] = x[j], x[i] })
	if again := Sum(x, 70); again != sum {
		t.Errorf("another order has the sum %d instead of %d", again, sum)
	}
	clear(x)
	if got := Sum(append(x, x...), 0); got != 1<<(19+UnitBits) {
		t.Errorf("2^19 weights of 1 have the sum %d units", got)
	}
}
