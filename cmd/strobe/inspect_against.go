package main

import (
	"context"
	"fmt"
	"math"

	"strobe/internal/convert"
	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// againstInfo is how far a tensor is from the checkpoint it should have been made from.
type againstInfo struct {
	Name  string   `json:"name"`
	Type  string   `json:"type,omitempty"`
	Error *float64 `json:"error,omitempty"` // relative; absent where nothing could be compared
	Worst float64  `json:"worst,omitempty"` // largest difference
	Note  string   `json:"note,omitempty"`
}

// allowed is the largest relative error that storing weights in a type explains: twice what it makes of normally
// distributed ones, which is about 8 % at 4.5 bits and half as much with every bit more. Floats err far less.
func allowed(t quant.Type) float64 {
	if !t.Quantized() {
		return 0.005
	}
	return min(0.9, 2*0.08*math.Exp2(4.5-t.BitsPerWeight()))
}

// checkAgainst compares a file with the checkpoint in dir. target is the model's file if f is a drafter.
func (r *report) checkAgainst(ctx context.Context, f *gguf.File, dir string, target *gguf.File) error {
	compared, wrong := 0, 0
	worst, name := 0.0, ""
	err := convert.Compare(ctx, f, dir, convert.Options{TargetFile: target}, func(d convert.Difference) {
		x := againstInfo{Name: d.Name, Note: d.Reason}
		if d.Reason == "" {
			compared++
			x.Type, x.Worst = d.Type.String(), d.Worst
			if math.IsNaN(d.Error) || math.IsInf(d.Error, 0) || math.IsNaN(d.Worst) {
				x.Note, x.Worst = "has values that are no numbers", 0
			} else {
				x.Error = &d.Error
				if limit := allowed(d.Type); d.Error > limit {
					x.Note = fmt.Sprintf("is off by %.3g %%, where %s explains %.3g %%", 100*d.Error, d.Type, 100*limit)
				} else if part := d.Error / limit; part >= worst {
					worst, name = part, fmt.Sprintf("%s, %s, %.3g %%", d.Name, d.Type, 100*d.Error)
				}
			}
		}
		r.Against = append(r.Against, x)
		if x.Note == "" {
			return
		}
		const most = 10 // that are named among the checks
		if wrong++; wrong <= most {
			r.fail("%s %s", x.Name, x.Note)
		}
	})
	switch {
	case err != nil:
		return err
	case wrong == 0:
		r.ok("all %d tensors are the checkpoint's, as near as their types allow (farthest: %s)", compared, name)
	default:
		r.fail("%d of %d tensors differ from the checkpoint's", wrong, len(r.Against))
	}
	return nil
}
