package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"strobe/internal/gguf"
	"strobe/internal/platform"
	"strobe/internal/sample"
)

// modelSampling is how a model's makers want it to be sampled: the keys general.sampling.* of its file, and
// generation_config.json where one lies beside it, which somebody put there on purpose. What makes no sense is an error
// that names its place.
func modelSampling(f *gguf.File, path string) (d sample.Defaults, err error) {
	for key, dst := range map[string]**float32{
		"temp": &d.Temp, "top_p": &d.TopP, "min_p": &d.MinP, "penalty_repeat": &d.RepeatPenalty,
	} {
		if v, ok, err := f.Float("general.sampling." + key); err != nil {
			return d, err
		} else if ok {
			x := float32(v)
			*dst = &x
		}
	}
	for key, dst := range map[string]**int{"top_k": &d.TopK, "penalty_last_n": &d.RepeatLastN} {
		if v, ok, err := f.Int("general.sampling." + key); err != nil {
			return d, err
		} else if ok {
			x := int(min(max(v, -1), math.MaxInt32))
			*dst = &x
		}
	}
	if err := valid(d); err != nil {
		return d, fmt.Errorf("%s: general.sampling: %w", path, err)
	}
	if _, err := os.Stat(path); err != nil { // a model that is part of the program
		return d, nil
	}
	name := filepath.Join(filepath.Dir(path), "generation_config.json")
	b, err := platform.ReadFile(name, platform.MaxText)
	if err != nil {
		return d, nil
	}
	var c struct {
		Sample            *bool    `json:"do_sample"`
		Temperature       *float32 `json:"temperature"`
		TopP              *float32 `json:"top_p"`
		MinP              *float32 `json:"min_p"`
		TypicalP          *float32 `json:"typical_p"`
		RepetitionPenalty *float32 `json:"repetition_penalty"`
		TopK              *int     `json:"top_k"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return d, fmt.Errorf("%s: %w", name, err)
	}
	if c.Sample != nil && !*c.Sample {
		c.Temperature = new(float32)
	}
	d.Add(
		sample.Defaults{
			Temp:          c.Temperature,
			TopP:          c.TopP,
			MinP:          c.MinP,
			TypicalP:      c.TypicalP,
			RepeatPenalty: c.RepetitionPenalty,
			TopK:          c.TopK,
		},
	)
	if err := valid(d); err != nil {
		return d, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

func valid(d sample.Defaults) error {
	var p sample.Params
	d.Apply(&p)
	return p.Validate()
}
