package draft

import (
	"fmt"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// CheckWeights names the first value of a drafter's file that is not a finite number: it makes all guesses useless.
func CheckWeights(f *gguf.File) error {
	for _, t := range f.Tensors() {
		if !t.Type.Dequantizable() || len(t.Shape) == 0 {
			continue
		}
		row := make([]float32, t.Shape[0])
		size := t.Type.RowBytes(len(row))
		for r := range t.Rows() {
			if quant.Dequantize(t.Type, row, t.Data[r*size:][:size]) != nil {
				break
			}
			for i, v := range row {
				if v-v != 0 {
					return fmt.Errorf("%s: tensor %q: value %d of row %d is %v", f.Path(), t.Name, i, r, v)
				}
			}
		}
	}
	return nil
}
