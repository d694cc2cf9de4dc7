package main

import (
	"slices"
	"strings"

	"strobe/draft/mtp"
	"strobe/engine"
	"strobe/gguf"
)

// drafterInfo is what a drafter file says about the target it needs.
type drafterInfo struct {
	Kind     string  `json:"kind"` // "dflash" or "gemma4-assistant"
	Block    int     `json:"block,omitempty"`
	Layers   []int64 `json:"target_layers,omitempty"` // whose output it reads
	Mask     *int64  `json:"mask_token,omitempty"`
	Head     string  `json:"head,omitempty"`     // that makes a guess depend on the one before
	Features int     `json:"features,omitempty"` // inputs of its feature projection
}

// readDrafter recognises the drafter formats in use. They name the same things
// differently; layers are brought to one convention, the layer whose output is
// read.
func (r *report) readDrafter(f *gguf.File) {
	arch := f.Arch()
	if strings.HasPrefix(arch, "gemma4") && strings.HasSuffix(arch, "assistant") {
		r.Drafter = nil
		r.note("a Gemma 4 assistant: drafts for the Gemma 4 model it was trained with")
		return
	}
	if mtp.Supported(f) {
		r.note("a layer for multi-token prediction without its model: give it with -d beside the model")
		return
	}
	fc := ""
	switch {
	case arch == "dflash":
		fc = "fc.weight"
	case arch == "dflash-draft":
		fc = "dflash_fc.weight"
	case strings.HasSuffix(arch, "-dflash-draft"):
		fc = "dflash.fc.weight"
	default:
		return
	}
	d := &drafterInfo{Kind: "dflash", Block: 16}
	r.Drafter = d
	prefix := arch + ".dflash."
	if arch == "dflash" {
		prefix = "dflash."
	}
	if v, ok, err := f.Int(prefix + "block_size"); ok && err == nil {
		d.Block = int(v)
	}
	mask := prefix + "mask_token_id"
	if arch == "dflash" {
		mask = "tokenizer.ggml.mask_token_id"
	}
	if v, ok, err := f.Int(mask); ok && err == nil {
		d.Mask = &v
	}
	if arch == "dflash" {
		ids, _, _ := f.Ints("dflash.target_layers")
		for _, id := range ids {
			d.Layers = append(d.Layers, id-1)
		}
	} else {
		d.Layers, _, _ = f.Ints(prefix + "target_layer_ids")
	}
	switch {
	case f.Tensor("selector_hidden.weight") != nil:
		d.Head = "a selector"
	case f.Tensor("markov_w1.weight") != nil:
		d.Head = "a Markov head"
	}
	t := f.Tensor(fc)
	if t == nil {
		r.fail("a drafter without %s", fc)
		return
	}
	d.Features = t.Shape[0]
	if len(d.Layers) == 0 {
		r.note("the file does not say which target layers it reads")
	} else if r.Model.Width > 0 && d.Features != len(d.Layers)*r.Model.Width {
		r.fail("%s takes %d features, but %d layers of width %d give %d", fc, d.Features, len(d.Layers), r.Model.Width, len(d.Layers)*r.Model.Width)
	} else {
		r.ok("%s takes the features of %d target layers of width %d", fc, len(d.Layers), r.Model.Width)
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
	if strings.HasSuffix(f.Arch(), "-assistant") {
		r.checkAssistant(f, t, width)
	}
	if mtp.Supported(f) {
		if err := engine.CheckMTP(f, t); err != nil {
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
	if n := len(d.Layers); n > 0 {
		if d.Features != n*width {
			r.fail("the drafter takes %d features, %d target layers of width %d give %d", d.Features, n, width, n*width)
		}
		if last := slices.Max(d.Layers); last >= int64(layers) || slices.Min(d.Layers) < 0 {
			r.fail("the drafter reads target layer %d, the target has %d layers", last, layers)
		} else {
			r.ok("the target has all %d layers the drafter reads", n)
		}
	}
	r.checkVocab(f, t, d)
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
