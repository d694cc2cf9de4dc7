package main

import (
	"slices"
	"strings"

	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/engine"
	"strobe/internal/gguf"
)

// drafterInfo is what a drafter file says about the target it needs.
type drafterInfo struct {
	Kind     string `json:"kind"`
	Dialect  string `json:"dialect"`
	Block    int    `json:"block,omitempty"`
	Layers   []int  `json:"target_layers,omitempty"` // whose output it reads
	Mask     *int64 `json:"mask_token,omitempty"`
	Head     string `json:"head,omitempty"`     // that makes a guess depend on the one before
	Features int    `json:"features,omitempty"` // inputs of its feature projection

	of *dflash.Description
}

// readDrafter says what kind of drafter a file is, if it is one.
func (r *report) readDrafter(f *gguf.File) {
	if mtp.Supported(f) {
		if strings.HasSuffix(f.Arch(), "assistant") {
			r.note("a Gemma 4 assistant: drafts for the Gemma 4 model it was trained with")
		} else {
			r.note("a layer for multi-token prediction without its model: give it with -d beside the model")
		}
		if err := draft.CheckWeights(f); err != nil {
			r.fail("the drafter cannot guess: %v", err)
		}
		return
	}
	if eagle3.Supported(f) {
		r.readEagle3(f)
	}
	if !dflash.Supported(f) {
		return
	}
	of, err := dflash.Describe(f)
	if err != nil {
		r.fail("%v", err)
		return
	}
	r.Drafter = &drafterInfo{
		Kind: "dflash", Dialect: of.Dialect, Block: of.Block, Layers: of.Layers, Head: of.Head, Features: of.Features, of: of,
	}
	if of.Mask >= 0 {
		r.Drafter.Mask = &of.Mask
	}
	if err := dflash.Check(f, of); err != nil {
		r.fail("the drafter does not load: %v", err)
	}
	n, width := len(of.Layers), r.Model.Width
	switch {
	case of.Features == 0:
		r.fail("a drafter without %s", of.Projection)
	case n == 0:
		r.note("the file does not say which target layers it reads")
	case width > 0 && of.Features != n*width:
		r.fail("%s takes %d features, but %d layers of width %d give %d", of.Projection, of.Features, n, width, n*width)
	default:
		r.ok("%s takes the features of %d target layers of width %d", of.Projection, n, width)
	}
}

// readEagle3 says what an EAGLE-3 drafter needs.
func (r *report) readEagle3(f *gguf.File) {
	of, err := eagle3.Describe(f)
	if err != nil {
		r.fail("%v", err)
		return
	}
	r.Drafter = &drafterInfo{Kind: eagle3.Arch, Dialect: eagle3.Arch, Features: of.Features}
	for _, id := range of.Layers { // by input
		r.Drafter.Layers = append(r.Drafter.Layers, id-1)
	}
	switch n := len(of.Layers); {
	case of.Features == 0:
		r.fail("a drafter without fc.weight")
	case of.Width > 0 && of.Features != n*of.Width:
		r.fail("fc.weight takes %d features, but %d layers of width %d give %d", of.Features, n, of.Width, n*of.Width)
	default:
		r.ok("fc.weight takes the features of %d target layers", n)
	}
	if of.Outputs > 0 {
		r.note("it guesses %d of its target's tokens", of.Outputs)
	}
}

// checkTarget checks whether the drafter f fits the model t.
func (r *report) checkTarget(f, t *gguf.File) {
	tk := archKeys{t, t.Arch()}
	layers, _ := tk.int("block_count")
	if n, ok := tk.int("nextn_predict_layers"); ok {
		layers -= n
	}
	width, _ := tk.int("embedding_length")
	if why := engine.MadeForAnother(f, t); why != "" {
		r.note("%s", why)
	}
	if strings.HasSuffix(f.Arch(), "-assistant") {
		r.checkAssistant(f, t, width)
	}
	if mtp.Supported(f) || eagle3.Supported(f) {
		if err := engine.CheckDrafter(f, t); err != nil {
			r.fail("the drafter does not load beside the target: %v", err)
		} else {
			r.ok("the drafter loads beside the target")
		}
		return
	}
	d := r.Drafter
	if d == nil {
		r.fail("%s is no drafter, so --target makes no sense", f.Path())
		return
	}
	if r.Model.Width != width {
		r.fail("the drafter's width is %d, the target's %d", r.Model.Width, width)
	} else {
		r.ok("drafter and target have width %d", width)
	}
	ids, err := d.of.TargetLayers(layers)
	if d.Layers = ids; err != nil {
		r.fail("%v", err)
	} else {
		r.ok("the target has all %d layers the drafter reads", len(ids))
	}
	if n := len(ids); d.Features != n*width {
		r.fail("the drafter takes %d features, %d target layers of width %d give %d", d.Features, n, width, n*width)
	}
	r.checkVocab(f, t, d)
	if r.failed() == 0 { // else it does not, for a reason above
		if err := engine.CheckDrafter(f, t); err != nil {
			r.fail("the drafter does not load beside the target: %v", err)
		} else {
			r.ok("the drafter loads beside the target")
		}
	}
}

func (r *report) checkVocab(f, t *gguf.File, d *drafterInfo) {
	want, ok, err := t.Strings("tokenizer.ggml.tokens")
	if err != nil || !ok {
		r.fail("the target has no tokenizer")
		return
	}
	if d.Mask != nil {
		if *d.Mask < 0 || *d.Mask >= int64(len(want)) {
			r.fail("mask token %d is outside the target's vocabulary of %d", *d.Mask, len(want))
		} else {
			r.ok("mask token %d is %s in the target", *d.Mask, want[*d.Mask])
		}
	}
	got, ok, err := f.Strings("tokenizer.ggml.tokens")
	switch {
	case err != nil:
		r.fail("%v", err)
	case !ok:
		r.note("the drafter has no tokenizer of its own to compare")
	case len(got) != len(want):
		r.fail("the drafter has %d tokens, the target %d", len(got), len(want))
	case !slices.Equal(got, want):
		r.fail("drafter and target have different vocabularies")
	default:
		r.ok("drafter and target have the same vocabulary")
	}
}

// checkAssistant compares a Gemma 4 assistant with its target, whose caches and
// hidden states it reads.
func (r *report) checkAssistant(f, t *gguf.File, width int) {
	if t.Arch() != "gemma4" {
		r.fail("the target is %s, an assistant needs gemma4", t.Arch())
		return
	}
	fk, tk := archKeys{f, f.Arch()}, archKeys{t, t.Arch()}
	if n, _ := fk.int("embedding_length_out"); n != width {
		r.fail("the assistant works with states of width %d, the target's have %d", n, width)
	} else {
		r.ok("the assistant works with the target's width %d", width)
	}
	for _, key := range []string{"attention.key_length", "attention.key_length_swa"} {
		a, _ := fk.int(key)
		b, _ := tk.int(key)
		if a != b {
			r.fail("%s is %d, the target's is %d", key, a, b)
		} else {
			r.ok("%s is %d in both", key, a)
		}
	}
	want, _, _ := t.Strings("tokenizer.ggml.tokens")
	got, _, _ := f.Strings("tokenizer.ggml.tokens")
	if !slices.Equal(got, want) {
		r.fail("assistant and target have different vocabularies")
	} else {
		r.ok("assistant and target have the same vocabulary")
	}
}
