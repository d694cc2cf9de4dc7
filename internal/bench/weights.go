package bench

import (
	"math"
	"strconv"
	"strings"

	"strobe/internal/gguf"
	"strobe/internal/model"
)

// weights is how much of a model's file a pass needs, for the floors.
type weights struct {
	dense, denseMACs     float64 // needed by every pass
	experts, expertsMACs float64 // all experts together
	used                 float64 // share of the experts that one token needs
}

// weightsOf adds up the tensors. Tables from which a token takes one row count as nothing.
func weightsOf(f *gguf.File, cfg *model.Config) weights {
	w := weights{}
	if cfg.Experts > 0 {
		w.used = float64(cfg.UsedExps) / float64(cfg.Experts)
	}
	tied := f.Tensor("output.weight") == nil
	for _, t := range f.Tensors() {
		if layer, ok := layerOf(t.Name); ok && layer >= cfg.Layers {
			continue // multi-token prediction layers
		}
		if t.Name == "token_embd.weight" && !tied || strings.HasPrefix(t.Name, "per_layer_token_embd.") {
			continue
		}
		size, macs := float64(len(t.Data)), 0.0
		if len(t.Shape) > 1 {
			macs = float64(t.Elems())
		}
		if cfg.Experts > 0 && len(t.Shape) == 3 && t.Shape[2] == cfg.Experts {
			w.experts += size
			w.expertsMACs += macs
		} else {
			w.dense += size
			w.denseMACs += macs
		}
	}
	return w
}

// layerOf returns the number in "blk.N.".
func layerOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	return n, err == nil
}

// bytes is what a pass of n tokens has to read. Which experts n tokens need together
// depends on the text; this assumes that each token chooses at random.
func (w *weights) bytes(n int) float64 {
	return w.dense + w.experts*(1-math.Pow(1-w.used, float64(n)))
}

// macs is the number of products per token.
func (w *weights) macs() float64 { return w.denseMACs + w.used*w.expertsMACs }
