package main

import (
	"github.com/spf13/cobra"

	"strobe/internal/convert"
)

func newQuantizeCmd() *cobra.Command {
	var opt convert.QuantizeOptions
	var overrides []string
	var split string
	cmd := &cobra.Command{
		Use:   "quantize IN OUT TYPE",
		Short: "Write a GGUF file with smaller weights",
		Long: `Write a GGUF file with smaller weights.

IN is a GGUF file with 16 or 32-bit weights, OUT the file to write. Everything but
the weights is kept. Smaller types need less memory and run faster; below four
bits models become noticeably worse.

Types, most bits first:` + typeHelp("") + `

Single tensors can be given another type by a regular expression for their names;
the first that matches wins. 'strobe inspect IN --tensors' shows the names.`,
		Example: `  strobe quantize model-bf16.gguf model-q4.gguf q4_k_m
  strobe quantize model-bf16.gguf model.gguf q4_k_m --tensor-type 'attn_v=q8_0' --tensor-type '^output=q8_0'`,
		Args: positional("IN", "OUT", "TYPE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, out := args[0], args[1]
			opt.Type = args[2]
			if err := checkMix(opt.Type); err != nil {
				return err
			}
			for _, s := range overrides {
				o, err := convert.ParseTypeOverride(s)
				if err != nil {
					return usagef("--tensor-type %v", err)
				}
				opt.Overrides = append(opt.Overrides, o)
			}
			var err error
			if opt.SplitBytes, err = parseSize(split); err != nil {
				return usagef("--split: %v", err)
			}
			err = writeModel(cmd, out, func(plan func(convert.Plan), progress func(int64)) error {
				opt.Plan, opt.Progress = plan, progress
				return convert.Quantize(cmd.Context(), in, out, opt)
			})
			if a, b := fileSize(in), fileSize(out); err == nil && a > 0 && b > 0 {
				infof(cmd, "%s -> %s (%.0f %%)", formatBytes(a), formatBytes(b), 100*float64(b)/float64(a))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&overrides, "tensor-type", nil, "NAME_REGEX=TYPE: type for matching tensors; may be repeated")
	f.BoolVar(&opt.AllowRequantize, "allow-requantize", false, "also convert tensors that are quantised already")
	f.StringVar(&split, "split", "", "write several files of at most this size, e.g. 40G")
	return cmd
}
