package convert

import (
	"context"
	"fmt"
	"math"
	"slices"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// A Difference is how far a tensor of a GGUF file is from the one of the checkpoint it should have been made from.
type Difference struct {
	Name   string
	Type   quant.Type
	Error  float64 // root mean square of the differences, relative to that of the checkpoint's values
	Worst  float64 // largest difference
	Reason string  // why there is nothing to compare; "" where there is
}

// Compare compares a GGUF file with the checkpoint in dir, tensor by tensor in the order of the file, and reports each.
// Tensors that only one of them has are reported, too. Of opt it uses what is said about targets.
func Compare(ctx context.Context, f *gguf.File, dir string, opt Options, report func(Difference)) error {
	if f.Arch() == clip.name {
		_, w, b, err := openTower(dir)
		if err != nil {
			return err
		}
		defer w.Close()
		return compareAll(ctx, f, b.out, report)
	}
	m, w, list, err := openCheckpoint(dir, opt)
	if err != nil {
		return err
	}
	defer w.Close()
	if m.name != f.Arch() {
		return fmt.Errorf("%s: the checkpoint is %s, the file %s", dir, m.name, f.Arch())
	}
	rows := 0
	if e := f.Tensor("token_embd.weight"); e != nil && m.gemma() {
		rows = e.Rows()
	}
	b, err := m.buildTensors(list, rows)
	if err != nil {
		return err
	}
	return compareAll(ctx, f, b.out, report)
}

// compareAll compares the tensors of a file with those that it should have.
func compareAll(ctx context.Context, f *gguf.File, want []*outTensor, report func(Difference)) error {
	from := map[string]*outTensor{}
	for _, t := range want {
		from[t.name] = t
	}
	for _, t := range f.Tensors() {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := compare(t, from[t.Name])
		if err != nil {
			return err
		}
		report(d)
		delete(from, t.Name)
	}
	for _, t := range want {
		if from[t.name] != nil {
			report(Difference{Name: t.name, Reason: "is missing from the file"})
		}
	}
	return nil
}

// compare compares a tensor with what it should be.
func compare(t *gguf.Tensor, want *outTensor) (Difference, error) {
	d := Difference{Name: t.Name, Type: t.Type}
	switch {
	case want == nil:
		d.Reason = "is not in the checkpoint"
	case !slices.Equal(trimShape(want.shape()), trimShape(t.Shape)):
		d.Reason = fmt.Sprintf("has shape %v, in the checkpoint %v", t.Shape, want.shape())
	case want.ids != nil || !t.Type.Dequantizable():
		d.Reason = "holds no values to compare"
	}
	if d.Reason != "" {
		return d, nil
	}
	got, row := make([]float32, t.Shape[0]), make([]float32, t.Shape[0])
	size := t.Type.RowBytes(t.Shape[0])
	var diff, norm float64
	for r := range t.Rows() {
		if err := quant.Dequantize(t.Type, got, t.Data[r*size:][:size]); err != nil {
			return d, fmt.Errorf("%s: %w", t.Name, err)
		}
		if err := want.src.row(row, r); err != nil {
			return d, err
		}
		for i, v := range row {
			x := math.Abs(float64(got[i]) - float64(v))
			diff += x * x
			norm += float64(v) * float64(v)
			if !(x <= d.Worst) { // NaN, too
				d.Worst = x
			}
		}
	}
	if diff != 0 {
		d.Error = math.Sqrt(diff / norm)
	}
	return d, nil
}
