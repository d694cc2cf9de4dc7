package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/convert"
	"strobe/internal/synth"
)

func newSynthCmd() *cobra.Command {
	var shape, mix, out string
	var seed uint64
	cmd := &cobra.Command{
		Use:   "synth --shape NAME -o FILE",
		Short: "Write a model of random weights with the shape of a real one",
		Long: `Write a GGUF file of random weights with the exact shape of a real model.

The file loads and runs like the real one, here and in llama.cpp, needs as much
memory and time, and says nothing sensible: for measuring speed and memory
without a download. The tokenizer is made up, of the right size, with the real
special tokens. Names that end in -mmproj are vision towers, which go beside a
model and are f16 (the default), f32, bf16 or q8_0.

Shapes: ` + wrapList(synth.Shapes(), 76),
		Example: `  strobe synth --shape qwen3.5-4b --quant q4_k_m -o big.gguf
  strobe synth --shape qwen3.5-4b-dflash --quant q8_0 -o drafter.gguf
  strobe synth --shape tiny-qwen35 -o tiny.gguf
  strobe synth --shape tiny-qwen35-mmproj -o mmproj-tiny.gguf`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case shape == "":
				return usagef("synth: name the shape with --shape NAME; known are %s", strings.Join(synth.Shapes(), ", "))
			case !slices.Contains(synth.Shapes(), shape):
				return usagef("unknown shape %q; known are %s", shape, strings.Join(synth.Shapes(), ", "))
			case out == "":
				return usagef("synth: name the file to write with -o FILE")
			}
			if strings.HasSuffix(shape, "-mmproj") && !cmd.Flags().Changed("type") {
				mix = "f16"
			}
			if err := checkMix(mix); err != nil {
				return err
			}
			return writeModel(cmd, out, func(plan func(convert.Plan), progress func(int64)) error {
				return synth.Write(cmd.Context(), out, shape, mix, seed, synth.Options{Plan: plan, Progress: progress})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&shape, "shape", "", "model whose shape to copy")
	f.StringVar(&mix, "type", "q4_k_m", "type of the weights, as in 'strobe quantize'")
	f.StringVarP(&out, "output", "o", "", "file to write")
	f.Uint64Var(&seed, "seed", 0, "number that decides the weights; the same gives the same file")
	return cmd
}

// wrapList joins words with commas in lines of at most width characters.
func wrapList(words []string, width int) string {
	var b strings.Builder
	line := 0
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		if i == 0 || line+len(w)+1 > width {
			b.WriteString("\n  ")
			line = 2
		} else {
			b.WriteString(" ")
			line++
		}
		b.WriteString(w)
		line += len(w)
	}
	return b.String()
}
