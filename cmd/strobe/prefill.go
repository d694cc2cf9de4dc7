package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/device"
	"strobe/internal/engine"
	"strobe/internal/pflash"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/tokenizer"
)

// prefillFlags say how long prompts are shortened.
type prefillFlags struct {
	scorer, mode, device, park string
	from, window               int
	keep, alpha, sparse        float64
	log                        func(line string) // what takes time; nil tells people
}

func (p *prefillFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.scorer, "prefill-scorer", "",
		"a small qwen3 or qwen35 model that chooses the parts of long prompts that are read, or self; the rest is lost")
	f.StringVar(&p.mode, "prefill", "",
		"which prompts it shortens: off, auto (from --prefill-from tokens, or what exceeds the context) or always "+
			"(default: auto with a scorer, else off)")
	f.StringVar(&p.device, "prefill-device", "", "what runs it (default: as the model)")
	f.IntVar(&p.from, "prefill-from", pflash.DefaultParams().Trigger, "tokens from which on auto shortens prompts")
	f.Float64Var(&p.keep, "prefill-keep", 0, "share of a prompt to keep (default: 0.3, 0.1 from 32K tokens, 0.05 from 64K)")
	f.Float64Var(&p.alpha, "prefill-alpha", float64(pflash.DefaultSparse().Alpha),
		"block-sparse attention of the scorer: blocks with less than this share of the best one's weight are passed over; 0 is full")
	f.Float64Var(&p.sparse, "sparse-prefill", 0,
		"block-sparse attention of the model itself over prompts, as --prefill-alpha, where the device has it; changes answers; 0 is off")
	f.IntVar(&p.window, "decode-window", 0,
		"tokens back that generated tokens look, besides the first message; changes answers; 0 is no limit")
	f.StringVar(&p.park, "park", "auto",
		"the scorer gives its device memory back after use: auto (when less than a tenth is free) or off")
}

// apply adds what the flags say to options.
func (p *prefillFlags) apply(opt *engine.Options) error {
	x := pflash.Options{From: p.from, Keep: p.keep, Alpha: float32(p.alpha), Device: p.device,
		NoPark: p.park == "off", Log: p.log}
	mode := p.mode
	if mode == "" {
		if mode = "off"; p.scorer != "" {
			mode = "auto"
		}
	}
	var err error
	if x.Mode, err = pflash.ParseMode(mode); err != nil {
		return usagef("--prefill %q: want off, auto or always", p.mode)
	}
	switch {
	case x.Mode != pflash.Off && p.scorer == "":
		return usagef("--prefill %s needs a scorer: give one with --prefill-scorer FILE, or self", p.mode)
	case p.from < 1:
		return usagef("--prefill-from %d: want 1 or more", p.from)
	case !(p.keep >= 0 && p.keep <= 1):
		return usagef("--prefill-keep %v: want 0 to 1", p.keep)
	case !(p.alpha >= 0 && p.alpha <= 1):
		return usagef("--prefill-alpha %v: want 0 to 1", p.alpha)
	case !(p.sparse >= 0 && p.sparse <= 1):
		return usagef("--sparse-prefill %v: want 0 to 1", p.sparse)
	case p.window != 0 && p.window < 64:
		return usagef("--decode-window %d: want 64 tokens or more, or 0 for no limit", p.window)
	case p.park != "auto" && p.park != "off":
		return usagef("--park %q: want auto or off", p.park)
	case strings.Contains(p.device, ","):
		return usagef("--prefill-device %q: a scorer has one device", p.device)
	}
	if err := device.Check(p.device); err != nil {
		return usagef("--prefill-device: %w", err)
	}
	if p.device == "auto" {
		x.Device = ""
	}
	if p.alpha == 0 {
		x.Alpha = -1
	}
	opt.Scorer, opt.Prefill, opt.SparsePrefill, opt.DecodeWindow = p.scorer, x, float32(p.sparse), p.window
	return nil
}

// shortened says how much of a prompt was read; "" for all of it.
func shortened(r *engine.Result) string {
	if r.Seen == 0 {
		return ""
	}
	return fmt.Sprintf("read %d of %d prompt tokens; ", r.Prompt, r.Seen)
}

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
place. With --out the numbers go to a safetensors file: "scores" and "pooled" for each token, "chunks" for each
chunk of 32 tokens, and the numbers of the chunks "kept".`,
		Example: `  strobe pflash -m Qwen3-0.6B-BF16.gguf -f report.txt --keep 0.1
  strobe pflash --tokens 1,2,3,4,5,6,7,8,9,10 --out scores.safetensors`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPflash(cmd, &opt) },
	}
	f := cmd.Flags()
	f.StringVarP(&opt.model, "model", "m", "", "the scorer, a name or a GGUF file (default: the built-in model)")
	f.StringVar(&opt.tokens, "tokens", "", "token ids, with commas or spaces between, or the name of a JSON file with an array of them")
	f.StringVarP(&opt.file, "file", "f", "", "file with the text; - is standard input")
	f.Float64Var(&opt.keep, "keep", 0, "share of the text to keep (default: by its length, as --prefill-keep)")
	f.Float64Var(&opt.alpha, "alpha", 0, "block-sparse attention, as --prefill-alpha; 0 is full attention")
	f.StringVar(&opt.out, "out", "", "safetensors file for the numbers")
	f.StringVar(&opt.device, "device", "cpu", "what runs the scorer: cpu, cuda, cuda:N, vulkan")
	f.IntVar(&opt.threads, "threads", 0, "CPU threads (default: all cores)")
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
	defer s.Close()
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
	sel := pflash.Select(ids, x.Chunks, keep, s.Rule)
	if opt.out != "" {
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
	if o.tokens == "" {
		b, err := (&runOptions{file: o.file}).promptText(cmd)
		if err != nil {
			return nil, err
		}
		ids = tok.Encode(b, tokenizer.EncodeOptions{})
	} else if isFile(o.tokens) {
		b, err := os.ReadFile(o.tokens)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(b, &ids); err != nil {
			return nil, fmt.Errorf("%s: want a JSON array of token ids: %w", o.tokens, err)
		}
	} else {
		for _, s := range strings.FieldsFunc(o.tokens, func(r rune) bool { return r == ',' || r == ' ' }) {
			var id int32
			if _, err := fmt.Sscanf(s, "%d", &id); err != nil {
				return nil, usagef("--tokens: %q is no token id and no file", s)
			}
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("there are no tokens to score")
	}
	return ids, nil
}

// showKept prints the text, with what would be dropped in grey or as a count.
func showKept(cmd *cobra.Command, tok *tokenizer.Tokenizer, ids []int32, sel pflash.Selection) error {
	p := newPaint(isTerminal(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "")
	out := bufio.NewWriter(cmd.OutOrStdout())
	text := func(from, to int) string {
		return string(tok.Decode(ids[from:to], tokenizer.DecodeOptions{Special: true, Opens: tok.Opens(ids[:from])}))
	}
	at := 0
	drop := func(to int) {
		if to > at && p.on {
			out.WriteString(p.dim(text(at, to)))
		} else if to > at {
			fmt.Fprintf(out, "\n[... %d tokens left out ...]\n", to-at)
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
