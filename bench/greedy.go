package bench

import (
	"math"

	"strobe/sample"
)

// newGreedy returns a sampler that takes the most likely token, never one of the suppressed ones.
func newGreedy(vocab int, suppress []int32) *sample.Sampler {
	p := sample.Params{}
	if len(suppress) > 0 {
		p.LogitBias = make(map[int32]float32)
		for _, id := range suppress {
			p.LogitBias[id] = float32(math.Inf(-1))
		}
	}
	return sample.New(p, vocab)
}
