package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/convert"
	"strobe/internal/quant"
)

func newConvertCmd() *cobra.Command {
	var opt convert.Options
	var out, split string
	cmd := &cobra.Command{
		Use:   "convert DIR -o FILE",
		Short: "Make a GGUF file from a Hugging Face checkpoint",
		Long: `Make a GGUF file from a Hugging Face checkpoint.

DIR is a folder with config.json, tokenizer files and *.safetensors, as
downloaded from the Hugging Face hub. Supported are Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3 and
Qwen3.5/3.6 (dense and mixture of experts), Qwen3-Next and Coder-Next, Gemma 4, its
assistants, and DFlash, DSpark and EAGLE-3 drafters. Of multimodal checkpoints the text part
is converted; --mmproj writes the vision tower instead, as the mmproj file that goes
beside the model (Qwen3.5/3.6, Qwen3-VL and Gemma 4; f32, f16, bf16 or q8_0).

The result is the file llama.cpp's converter would write and runs there, too;
of drafters two keys are mended that let drafts go wrong.
With a --type smaller than 16 bits it is quantised on the way.

Layers for multi-token prediction, which draft for their own model, are part of the
file if the checkpoint has them; --no-mtp leaves them out, and --mtp-only writes
nothing else. A checkpoint of such layers alone borrows embedding, head and, with
--target, the tokenizer from its model.

A drafter has no tokenizer of its own: name the folder of the model it
drafts for with --target.

Types: ` + typeHelp("auto"),
		Example: `  strobe convert Qwen3.5-4B/ -o qwen35-4b.gguf
  strobe convert Qwen3.5-4B/ -o qwen35-4b-q4.gguf --type q4_k_m
  strobe convert Qwen3.5-4B/ -o mtp-qwen35-4b.gguf --mtp-only --type q8_0
  strobe convert Qwen3.5-4B/ -o mmproj-qwen35-4b-f16.gguf --mmproj --type f16
  strobe convert Qwen3.5-27B-DFlash/ -o drafter.gguf --target Qwen3.5-27B/`,
		Args: positional("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return usagef("convert: name the file to write with -o FILE")
			}
			if opt.NoMTP && opt.MTPOnly {
				return usagef("convert: --no-mtp and --mtp-only leave nothing to write")
			}
			if opt.MMProj && (opt.MTPOnly || opt.Target != "" || opt.NoVocab) {
				return usagef("convert: --mmproj writes a vision tower, which has neither layers of a drafter nor a tokenizer")
			}
			if err := checkMix(opt.Type, "auto"); err != nil {
				return err
			}
			var err error
			if opt.SplitBytes, err = parseSize(split); err != nil {
				return usagef("--split: %v", err)
			}
			return writeModel(cmd, out, func(plan func(convert.Plan), progress func(int64)) error {
				opt.Plan, opt.Progress = plan, progress
				opt.Warn = func(msg string) { infof(cmd, "note: %s", msg) }
				return convert.HF(cmd.Context(), args[0], out, opt)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&out, "output", "o", "", "file to write")
	f.StringVarP(&opt.Type, "type", "t", "auto", "type of the weights")
	f.StringVar(&opt.Target, "target", "", "folder of the target model, for drafters")
	f.BoolVar(&opt.NoMTP, "no-mtp", false, "leave out multi-token-prediction layers")
	f.BoolVar(&opt.MTPOnly, "mtp-only", false, "write the multi-token-prediction layers alone, as a drafter for -d")
	f.BoolVar(&opt.MMProj, "mmproj", false, "write the vision tower alone, as the mmproj file of the model")
	f.BoolVar(&opt.NoVocab, "no-vocab", false,
		"leave the tokenizer out of a drafter; Strobe needs only the target's, llama.cpp needs both")
	f.StringVar(&opt.Pre, "pre", "",
		"how the tokenizer splits text, if it is not recognised ("+strings.Join(convert.PreTokenizers(), ", ")+")")
	f.StringVar(&opt.Name, "name", "", "name of the model to write into the file")
	f.StringVar(&split, "split", "", "write several files of at most this size, e.g. 40G")
	return cmd
}

// writeModel runs a job that writes a model file, with progress and a closing
// line.
func writeModel(cmd *cobra.Command, out string, job func(plan func(convert.Plan), progress func(int64)) error) error {
	var bar *progress
	err := job(func(p convert.Plan) {
		infof(cmd, "%s: %s, %d tensors, %s, %s", out, p.Arch, p.Tensors, p.Type, formatBytes(p.Bytes))
		bar = newProgress(cmd, "writing", p.Bytes)
	}, func(n int64) { bar.Add(n) })
	if err != nil {
		bar.Stop()
		return err
	}
	bar.Finish()
	return nil
}

// typeHelp lists the names of the weight types with a word on each.
func typeHelp(extra string) string {
	var b strings.Builder
	if extra != "" {
		fmt.Fprintf(&b, "\n  %-7s bf16 or f16, as the checkpoint is stored", extra)
	}
	for _, name := range quant.Mixes() {
		m, err := quant.ParseMix(name)
		if err == nil {
			fmt.Fprintf(&b, "\n  %-7s %s", strings.ToLower(name), m.Note())
		}
	}
	return b.String()
}

// checkMix reports an unknown weight type as a usage error.
func checkMix(name string, also ...string) error {
	for _, a := range also {
		if strings.EqualFold(name, a) {
			return nil
		}
	}
	if _, err := quant.ParseMix(name); err != nil {
		return usageError{err}
	}
	return nil
}

// parseSize reads "4000000", "500M" or "40G" (powers of 1000). Empty is 0.
func parseSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	unit := int64(1)
	digits := strings.TrimSuffix(strings.ToUpper(s), "B")
	for suffix, u := range map[string]int64{"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} {
		if d, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = d, u
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n <= 0 || n*float64(unit) > 1e15 {
		return 0, fmt.Errorf("%q is not a size such as 40G", s)
	}
	return int64(n * float64(unit)), nil
}

// fileSize is the size of a file on disk, 0 when it cannot be told.
func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}
