package cuda

import (
	"fmt"
	"os"

	"strobe/internal/backend/gpu"
)

// asVariable makes GPUs behave as cards of another compute capability, for tests and measurements: STROBE_CUDA_AS=8.6.
const asVariable = "STROBE_CUDA_AS"

// cards are the compute capabilities that a GPU can be made to look like, and how much shared memory a block has there.
var cards = map[string]struct{ major, minor, shared int }{
	"8.0":  {8, 0, 163 << 10}, // A100
	"8.6":  {8, 6, 99 << 10},  // RTX 30
	"8.9":  {8, 9, 99 << 10},  // RTX 40
	"10.0": {10, 0, 227 << 10},
	"12.0": {12, 0, 99 << 10}, // RTX 50
}

// Pretend makes properties those of the card that the environment names, if it names one. Kernels of Hopper alone are
// not used then; what the card has beyond the device's own capability cannot be.
func Pretend(p *gpu.Props) error { return pretend(p, os.Getenv(asVariable)) }

func pretend(p *gpu.Props, name string) error {
	if name == "" {
		return nil
	}
	card, ok := cards[name]
	if !ok {
		return fmt.Errorf("%s=%s: want 8.0, 8.6, 8.9, 10.0 or 12.0", asVariable, name)
	}
	if card.shared > p.SharedBlock || card.major > 8 && p.Major < 9 {
		return fmt.Errorf("%s=%s: %s has compute capability %d.%d, which has less", asVariable, name, p.Name, p.Major,
			p.Minor)
	}
	p.Major, p.Minor, p.SharedBlock = card.major, card.minor, card.shared
	return nil
}
