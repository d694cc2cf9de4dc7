package mtp

import (
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
)

// The architectures of Gemma's assistants, and of those that were converted before the format was settled.
const (
	assistant    = "gemma4-assistant"
	oldAssistant = "gemma4_assistant"
)

// InModel reports whether the file of a model has a block that drafts for it.
func InModel(f *gguf.File) bool { return block(f) != "" && f.Tensor("blk.0.attn_norm.weight") != nil }

// Supported reports whether a file is a drafter of this kind on its own: a block without a model, or an assistant.
func Supported(f *gguf.File) bool {
	switch f.Arch() {
	case assistant, oldAssistant:
		return true
	}
	return block(f) != "" && f.Tensor("blk.0.attn_norm.weight") == nil
}

// block is the beginning of the names of a file's block, "" if there is none.
func block(f *gguf.File) string {
	all, _, _ := f.Uint(f.Arch() + ".block_count")
	n, _, _ := f.Uint(f.Arch() + ".nextn_predict_layers")
	if n == 0 || n >= all || all > 1<<16 {
		return ""
	}
	// Of several blocks the first is the one that looks one token ahead.
	p := fmt.Sprintf("blk.%d.", all-n)
	if f.Tensor(p+"nextn.eh_proj.weight") == nil {
		return ""
	}
	return p
}

// Open loads a drafter for target: the block in the target's own file, a block in a file of its own, or an assistant.
func Open(f *gguf.File, target *model.Model, opt Options) (*Drafter, error) {
	b := opt.Device
	if b == nil {
		b = target.Backend()
	}
	d := &Drafter{b: b, arena: nn.NewArena(b), target: target, embScale: target.EmbScale}
	l := &nn.Loader{File: f, Devices: []backend.Backend{b}, Arch: f.Arch(), KV: opt.KV, Weights: &d.weights}
	var err error
	if d.final, d.eps, err = target.FinalNorm(b); err != nil {
		return nil, err
	}
	if d.embed, d.head, err = target.Vocabulary(b); err != nil {
		return nil, err
	}
	switch p := block(f); {
	case f.Arch() == oldAssistant:
		err = fmt.Errorf("%s: architecture %q is a form of assistants that is no longer made; convert it again",
			f.Path(), oldAssistant)
	case f.Arch() == assistant:
		err = d.readAssistant(l)
	case p != "":
		err = d.readNextN(l, p)
	default:
		err = fmt.Errorf("%s: no block for multi-token prediction: the model has none, or was converted without",
			f.Path())
	}
	if err != nil {
		return nil, err
	}
	spec := l.Spec()
	spec.Carry = target.Hidden
	if d.mem, err = cache.New(l.Devices, spec); err == nil {
		err = b.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	d.bytes = l.Bytes
	return d, nil
}

// readNextN binds the block whose names begin with p. Its embedding, head and last norm may be its own; a file with
// nothing but the block brings copies of the model's.
func (d *Drafter) readNextN(l *nn.Loader, p string) (err error) {
	if l.Arch != d.target.Arch {
		return fmt.Errorf("%s: a block of architecture %q cannot draft for %q", l.File.Path(), l.Arch, d.target.Arch)
	}
	if d.layers, err = model.NextN(l); err != nil {
		return err
	}
	width, vocab := d.layers.Hidden, d.target.Vocab
	if width != d.target.Hidden {
		l.Fail("the block has width %d, the target %d: it was trained for another target", width, d.target.Hidden)
	}
	d.in = l.Matrix(p+"nextn.eh_proj.weight", 2*width, width)
	d.enorm, d.hnorm = l.Vector(p+"nextn.enorm.weight", width), l.Vector(p+"nextn.hnorm.weight", width)
	if d.norm = l.Optional(p+"nextn.shared_head_norm.weight", width); d.norm == nil {
		d.norm = l.Vector("output_norm.weight", width)
	}
	alone := l.File != d.target.File()
	if alone && l.Has("token_embd.weight") {
		d.embed = l.Matrix("token_embd.weight", width, vocab)
		d.head = d.embed
	}
	if alone && l.Has("output.weight") {
		d.head = l.Matrix("output.weight", width, vocab)
	}
	if name := p + "nextn.embed_tokens.weight"; l.Has(name) {
		d.embed = l.Matrix(name, width, vocab)
	}
	if name := p + "nextn.shared_head_head.weight"; l.Has(name) {
		d.head = l.Matrix(name, width, vocab)
	}
	return l.Err
}

// readAssistant binds an assistant. It embeds tokens as the target does; its own embeddings are its output matrix.
func (d *Drafter) readAssistant(l *nn.Loader) (err error) {
	width, vocab := d.target.Hidden, d.target.Vocab
	if n := l.Need("embedding_length_out"); l.Err == nil && n != width {
		l.Fail("the assistant was made for a target of width %d, this one has %d", n, width)
	}
	if l.Err != nil {
		return l.Err
	}
	if d.layers, err = model.Assistant(l, d.target, d.b); err != nil {
		return err
	}
	d.looks = true
	d.in = l.Matrix("nextn.pre_projection.weight", 2*width, d.layers.Hidden)
	d.out = l.Matrix("nextn.post_projection.weight", d.layers.Hidden, width)
	d.norm = l.Vector("output_norm.weight", d.layers.Hidden)
	if !l.Has("token_embd.weight") && (l.Has("masked_embd_centroids.weight") || l.Has("masked_embd_centroids")) {
		l.Fail("its output matrix exists as centroids alone (tensor \"masked_embd_centroids\"), which is not supported")
	}
	d.head = l.Matrix("token_embd.weight", d.layers.Hidden, vocab)
	return l.Err
}
