package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/device"
	"strobe/internal/engine"
	"strobe/internal/pflash"
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
	defer group(f, trialFlags)()
	f.StringVar(&p.scorer, "prefill-scorer", "",
		"a small qwen3 or qwen35 model that chooses the parts of long prompts that are read, or self; the rest is lost")
	f.StringVar(&p.mode, "prefill", "",
		"which prompts it shortens: off, auto (from --prefill-from tokens, or what exceeds the context) or always "+
			"(default: auto with a scorer, else off)")
	f.StringVar(&p.device, "prefill-device", "", "what runs it (default: as the model)")
	f.IntVar(&p.from, "prefill-from", pflash.DefaultParams().Trigger, "tokens from which on auto shortens prompts")
	f.Float64Var(&p.keep, "prefill-keep", 0, "share of a prompt to keep (default: 0.3, 0.1 from 32K tokens, 0.05 from 64K)")
	f.Float64Var(&p.alpha, "prefill-alpha", asWritten(pflash.DefaultSparse().Alpha),
		"block-sparse attention of the scorer: blocks with less than this share of the best one's weight are passed over; 0 is full")
	f.Float64Var(&p.sparse, "sparse-prefill", 0,
		"block-sparse attention of the model itself over prompts, as --prefill-alpha, where the device has it; changes answers; 0 is off")
	f.IntVar(&p.window, "decode-window", 0,
		"tokens back that generated tokens look, besides the first message; changes answers; 0 is no limit")
	f.StringVar(&p.park, "park", "auto",
		"scorer and drafter give their device memory back while they are not needed: auto (when less than a tenth is free) or off")
}

// asWritten is the number that a float32 was written as: 0.7, not 0.699999988.
func asWritten(x float32) float64 {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64) // it is a number
	return v
}

// apply adds what the flags say to options.
func (p *prefillFlags) apply(opt *engine.Options) error {
	x := pflash.Options{From: p.from, Keep: p.keep, Alpha: float32(p.alpha), Device: p.device, Log: p.log}
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
	opt.NoPark = p.park == "off"
	return nil
}

// shortened says how much of a prompt was read; "" for all of it.
func shortened(r *engine.Result) string {
	if r.Seen == 0 {
		return ""
	}
	return fmt.Sprintf("read %d of %d prompt tokens; ", r.Prompt, r.Seen)
}
