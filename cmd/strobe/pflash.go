package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"strobe/internal/device"
	"strobe/internal/pflash"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/tokenizer"
)

type pflashOptions struct {
	model, tokens, file, out, device string
	keep, alpha                      float64
	threads                          int
}

func newPflashCmd() *cobra.Command {
	var opt pflashOptions
	cmd := &cobra.Command{
		Use:   "pflash [-m SCORER] --tokens IDS | -f FILE [--keep R]",
		Short: "Show which parts of a prompt speculative prefill would keep",
		Long: `Pflash scores a text with a small model (qwen3 or qwen35) by what its end attends to, and shows
which parts --prefill-scorer would keep of it. On a terminal the others are grey; elsewhere a line stands in their
place. With --out the numbers go to a safetensors file, for comparison with others: "scores" and "pooled" for each
token, "chunks" for each chunk of 32 tokens, and the numbers of the chunks "kept" by the rule of the reference
implementation, which keeps the beginning in any case.`,
		Example: `  strobe pflash -m Qwen3-0.6B-BF16.gguf -f report.txt --keep 0.1
  strobe pflash --tokens 1,2,3,4,5,6,7,8,9,10 --out scores.safetensors`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runPflash(cmd, &opt) },
	}
	f := cmd.Flags()
	f.VarP(&once{to: &opt.model}, "model", "m", "the scorer, a name or a GGUF file (default: the built-in model)")
	f.StringVar(&opt.tokens, "tokens", "", "token ids, with commas or spaces between, or the name of a JSON file with an array of them")
	f.StringVarP(&opt.file, "file", "f", "", "file with the text; - is standard input")
	f.Float64Var(&opt.keep, "keep", 0, "share of the text to keep (default: by its length, as --prefill-keep)")
	f.Float64Var(&opt.alpha, "alpha", 0, "block-sparse attention, as --prefill-alpha; 0 is full attention")
	f.StringVarP(&opt.out, "output", "o", "", "safetensors file for the numbers")
	f.StringVar(&opt.device, "device", "cpu", "what runs the scorer: cpu, cuda, cuda:N, vulkan")
	f.IntVar(&opt.threads, "threads", 0,
		"CPU threads, at most as many as there are cores (default: all, or all performance cores)")
	return cmd
}

func runPflash(cmd *cobra.Command, opt *pflashOptions) error {
	switch {
	case (opt.tokens == "") == (opt.file == ""):
		return usagef("pflash needs --tokens IDS or -f FILE")
	case !(opt.keep >= 0 && opt.keep <= 1):
		return usagef("--keep %v: want 0 to 1", opt.keep)
	case !(opt.alpha >= 0 && opt.alpha <= 1):
		return usagef("--alpha %v: want 0 to 1", opt.alpha)
	}
	f, err := openGGUF(cmd, opt.model)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := device.Open(opt.device, device.Options{Threads: opt.threads})
	if err != nil {
		return err
	}
	defer b.Close()
	s, err := pflash.NewScorer(f, b, quant.F32)
	if err != nil {
		return err
	}
	s.Sparse.Alpha = float32(opt.alpha)
	ids, err := opt.ids(cmd, s.Tokenizer)
	if err != nil {
		return err
	}
	x, err := s.Score(cmd.Context(), ids)
	if err != nil {
		return err
	}
	keep := opt.keep
	if keep == 0 {
		keep = pflash.KeepRatio(len(ids))
	}
	sel := pflash.SelectText(ids, x.Chunks, keep, s.Rule)
	if opt.out != "" {
		sel = pflash.Select(ids, x.Chunks, keep, s.Rule)
		if err := writeScores(opt.out, x, sel); err != nil {
			return err
		}
	} else if err := showKept(cmd, s.Tokenizer, ids, sel); err != nil {
		return err
	}
	infof(cmd, "kept %d of %d tokens (%d of %d chunks)", sel.Tokens(), len(ids), len(sel.Chunks), len(x.Chunks))
	return nil
}

// ids reads the tokens to score.
func (o *pflashOptions) ids(cmd *cobra.Command, tok *tokenizer.Tokenizer) (ids []int32, err error) {
	switch {
	case o.tokens == "":
		var text string
		if text, err = (&runOptions{file: o.file}).promptText(cmd); err == nil {
			ids = tok.Encode(text, tokenizer.EncodeOptions{})
		}
	case isFile(o.tokens):
		ids, err = readIDs(o.tokens)
	default:
		if ids, err = parseIDs(o.tokens, tok.Size()); err != nil {
			err = usagef("--tokens: %w, and there is no such file", err)
		}
	}
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("there are no tokens to score")
	}
	return ids, err
}

// showKept prints the text, with what would be dropped in grey or as a count.
func showKept(cmd *cobra.Command, tok *tokenizer.Tokenizer, ids []int32, sel pflash.Selection) error {
	p := newPaint(canDraw(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "")
	out := bufio.NewWriter(cmd.OutOrStdout())
	text := func(from, to int) string {
		return string(tok.Decode(ids[from:to], tokenizer.DecodeOptions{Special: true, Opens: tok.Opens(ids[:from])}))
	}
	at := 0
	drop := func(to int) {
		if to > at && p.on {
			out.WriteString(p.dim(text(at, to)))
		} else if to > at {
			fmt.Fprintf(out, "\n[... %s left out ...]\n", count(to-at, "token"))
		}
	}
	for _, s := range sel.Spans {
		drop(s[0])
		out.WriteString(text(s[0], s[1]))
		at = s[1]
	}
	drop(len(ids))
	out.WriteByte('\n')
	return out.Flush()
}

// writeScores writes the numbers for comparison with a reference.
func writeScores(path string, x pflash.Scores, sel pflash.Selection) error {
	floats := func(name string, v []float64) safetensors.Tensor {
		t := safetensors.Tensor{Name: name, DType: "F32", Shape: []int{len(v)}}
		for _, f := range v {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(float32(f)))
		}
		return t
	}
	kept := safetensors.Tensor{Name: "kept", DType: "I32", Shape: []int{len(sel.Chunks)}}
	for _, b := range sel.Chunks {
		kept.Data = binary.LittleEndian.AppendUint32(kept.Data, uint32(b))
	}
	return safetensors.Write(path, []safetensors.Tensor{floats("scores", x.Tokens), floats("pooled", x.Pooled),
		floats("chunks", x.Chunks), kept}, nil)
}
