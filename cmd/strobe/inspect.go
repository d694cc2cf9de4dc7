package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/gguf"
	"strobe/internal/termtext"
)

func newInspectCmd() *cobra.Command {
	var target, against string
	var asJSON, tensors, keys bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what is in a GGUF file and check it",
		Long: `Show what is in a GGUF file and check it: architecture, sizes, the types of the
weights, tokenizer and chat template, and whether the file is complete and
consistent. Of an mmproj file: the image encoder, the models it goes with, and how
many tokens images of some sizes become.

With --target FILE also whether a drafter or an mmproj file fits that model. With --against DIR
how far every tensor is from the checkpoint (config.json and safetensors) that
the file should have been made from, and whether its type explains that. The exit
code is 1 when a check fails.`,
		Example: `  strobe inspect model.gguf
  strobe inspect model.gguf --tensors
  strobe inspect drafter.gguf --target model.gguf
  strobe inspect mmproj-F16.gguf
  strobe inspect model.gguf --against Qwen3.5-4B/
  strobe inspect model.gguf --json | jq .model`,
		Args: positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openGGUF(cmd, args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			r, err := inspectFile(f)
			if err != nil {
				return err
			}
			var t *gguf.File
			if target != "" {
				if t, err = openGGUF(cmd, target); err != nil {
					return err
				}
				defer t.Close()
				r.Target = target
				if r.Vision != nil {
					r.checkVisionTarget(t)
				} else {
					r.checkTarget(f, t)
				}
			}
			if against != "" {
				if t == nil && dflash.Supported(f) {
					return usagef("%s: is a DFlash drafter; give the GGUF file of its model with --target, it has the tokenizer", args[0])
				}
				if err := r.checkAgainst(cmd.Context(), f, against, t); err != nil {
					return err
				}
			}
			if tensors || asJSON {
				r.listTensors(f)
			}
			if keys || asJSON {
				if err := r.listKeys(f); err != nil {
					return err
				}
			}
			w := bufio.NewWriter(cmd.OutOrStdout())
			if asJSON {
				enc := json.NewEncoder(w)
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(r)
			} else {
				err = r.print(w)
			}
			if err := errors.Join(err, w.Flush()); err != nil {
				return err
			}
			if n := r.failed(); n > 0 {
				return fmt.Errorf("%s: %d of %d checks failed", args[0], n, len(r.Checks))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&target, "target", "", "GGUF file of the model that a drafter or an mmproj file should go with")
	f.StringVar(&against, "against", "", "folder of the checkpoint to compare every tensor with")
	f.BoolVar(&tensors, "tensors", false, "list every tensor")
	f.BoolVar(&keys, "keys", false, "list every metadata key")
	f.BoolVar(&asJSON, "json", false, "print everything as JSON")
	return cmd
}

// print writes the report for people.
func (r *report) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, termtext.Printable(fmt.Sprintf(format, args...)))
	}
	row("file", "%s, %s, GGUF version %d%s", r.File, formatBytes(r.Bytes), r.Version, partsNote(r.Parts))
	m := r.Model
	name := m.Name
	if name == "" {
		name = "(no name)"
	}
	row("model", "%s, architecture %s, %s parameters", name, m.Arch, formatCount(m.Parameters))
	if r.Vision != nil {
		r.Vision.print(row)
	}
	if m.Layers > 0 {
		row("shape", "%d layers%s, width %d, context %d", m.Layers, m.layerNote(), m.Width, m.Context)
	}
	if m.Heads > 0 {
		row("attention", "%d heads, %s key/value heads of %d", m.Heads, m.KVHeads, m.HeadDim)
	}
	if m.Experts > 0 {
		row("experts", "%d, of which %d are used", m.Experts, m.ExpertsUsed)
	}
	switch d := r.Drafter; {
	case d == nil:
	case d.Kind == eagle3.Arch:
		row("drafter", "EAGLE-3, reads the output of target layers %s", joinInts(d.Layers))
	default:
		head := ""
		if d.Head != "" {
			head = " and " + d.Head
		}
		row("drafter", "block of %d tokens%s, reads the output of target layers %s, mask token %s", d.Block, head,
			joinInts(d.Layers), orNone(d.Mask))
	}
	row("weights", "%s, %.2f bits per weight", orText(r.FileType, "unknown mix"), r.BitsPerWeight)
	for _, t := range r.Types {
		row("", "%-6s %4d tensors %9s %5.1f %%", t.Type, t.Tensors, formatBytes(t.Bytes),
			100*float64(t.Bytes)/float64(max(1, r.TensorBytes)))
	}
	if t := r.Tokenizer; t != nil {
		row("tokenizer", "%s, %d tokens%s", orText(strings.Trim(t.Model+" "+t.Pre, " "), "none"), t.Size, t.endNote())
	} else if r.Vision == nil {
		row("tokenizer", "none in this file")
	}
	if r.Vision == nil {
		row("template", "%s", orText(r.Template, "none"))
	}
	for i, c := range r.Checks {
		name := ""
		if i == 0 {
			name = "checks"
		}
		row(name, "%-4s %s", c.Result, c.What)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(r.Keys) > 0 {
		fmt.Fprintln(w)
		for _, k := range r.Keys {
			fmt.Fprintf(tw, "%s\t%s\t%v\n", termtext.Printable(k.Key), k.Kind, shortValue(k.Value))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	if len(r.Against) > 0 {
		fmt.Fprintln(w)
		fmt.Fprintf(tw, "tensor\ttype\terror\tlargest\n")
		for _, x := range r.Against {
			if x.Error == nil {
				fmt.Fprintf(tw, "%s\t%s\t-\t-\t%s\n", termtext.Printable(x.Name), x.Type, termtext.Printable(x.Note))
				continue
			}
			mark := ""
			if x.Note != "" {
				mark = "too far"
			}
			fmt.Fprintf(tw, "%s\t%s\t%.3f %%\t%.3g\t%s\n", termtext.Printable(x.Name), x.Type, 100**x.Error, x.Worst, mark)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	if len(r.Tensors) > 0 {
		fmt.Fprintln(w)
		fmt.Fprintf(tw, "tensor\ttype\tshape\tsize\n")
		for _, t := range r.Tensors {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", termtext.Printable(t.Name), t.Type,
				strings.Trim(fmt.Sprint(t.Shape), "[]"), formatBytes(t.Bytes))
		}
		return tw.Flush()
	}
	return nil
}

func partsNote(n int) string {
	if n > 1 {
		return fmt.Sprintf(", %d parts", n)
	}
	return ""
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func orNone(id *int64) string {
	if id == nil {
		return "none"
	}
	return fmt.Sprint(*id)
}

func joinInts[T int | int64](ids []T) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(ids), "[]"), " ", ", ")
}

// formatCount prints a number of parameters: 27.4 B, 596 M.
func formatCount(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f billion", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f million", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}

// shortValue keeps a value on one line of a list.
func shortValue(v any) string {
	s := termtext.Printable(fmt.Sprint(v)) // elements of lists, too
	if t, ok := v.(string); ok {
		s = fmt.Sprintf("%q", t)
	}
	if len(s) > 100 {
		cut := 97
		for cut > 0 && s[cut]&0xc0 == 0x80 {
			cut--
		}
		s = s[:cut] + "..."
	}
	return s
}
