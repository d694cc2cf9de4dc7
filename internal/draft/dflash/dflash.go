// Package dflash runs DFlash drafters: small transformers that fill a whole block of tokens in one
// pass, attending to keys and values made from the target's hidden states.
//
// Open reads a drafter and binds it to its target, whose embedding and output matrix it
// shares. Per sequence a drafter has a cache of its own (NewSeq). Extend projects the target's
// features of newly committed tokens into it, once; Draft guesses the tokens after the last one.
// A drafter belongs to the goroutine that drives the target's backend.
//
// DSpark and DFlash2 drafters are the same network with more parts, recognised by their tensors: a
// Markov head with a confidence head (markov.go), convolutions along the block (conv.go) and a
// selector among candidates (selector.go).
package dflash

import (
	"encoding/binary"
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// Causal fixes whether rows of a block see later rows.
type Causal int

// The choices. CausalAuto obeys the file.
const (
	CausalAuto Causal = iota
	CausalOn
	CausalOff
)

// Options configures a drafter. The zero value obeys the file.
type Options struct {
	Causal Causal
	// PMin cuts a draft before the first guess that is less probable than this, by the confidence
	// head or the selector of drafters that have one. 0 never cuts.
	PMin float32
	KV   cache.Types
	// Window is how many tokens back the drafter looks at most: 0 decides by the file, the drafter's name or a trial,
	// WindowOff obeys the file alone.
	Window int
	// Device runs the drafter; nil means the one that has the target's output.
	Device backend.Backend
	// Beside, if set, runs all layers but the last ones; Layers is the number of these, at least one.
	Beside backend.Backend
	Layers int
}

var _ draft.Source = (*Drafter)(nil)

// Drafter is a loaded drafter.
type Drafter struct {
	params
	b       backend.Backend   // the device of the output
	devices []backend.Backend // b is the first
	place   []int             // device of each layer
	arenas  []*nn.Arena       // per device
	file    *gguf.File
	target  *model.Model
	mem     *cache.Memory
	trial   trial // of the causality rule, or of the window
	full    int   // window of layers that do not slide; 0 for everything
	seen    int   // window of drafts that the trial found; 0 for the whole cache
	pMin    float32
	fc      backend.Weight // [hidden, captured layers x hidden]
	ctxNorm backend.Vector // [hidden]
	outNorm backend.Vector // [hidden]
	embed   backend.Weight // [vocab, hidden]
	head    backend.Weight // [outputs, hidden]
	d2t     []int32        // [outputs] target id of each output; nil if they are the target's
	rope    *nn.Rope
	layers  []layer
	weights nn.Weights
	bytes   int // of the weights
	drafts  nn.Passes[draftKey, blockResults]
	extends nn.Passes[extendKey, struct{}]
	scanned bool  // the weights have been searched for values that are not numbers
	bad     error // what the search found

	// Optional parts.
	markov   *markov
	selector *selector
	// Convolutions: length, and dynamic taps per row for both sides; 0 for none.
	kernel, taps int
}

type layer struct {
	norm, ffnNorm     backend.Vector // [hidden]
	q                 backend.Weight // [heads*headDim, hidden]
	k                 backend.Weight // [kvHeads*headDim, hidden]
	v                 backend.Weight // [kvHeads*headDim, hidden]; nil: values are the normalised raw keys
	o                 backend.Weight // [hidden, heads*headDim]
	qNorm, kNorm      backend.Vector // [headDim]
	postAttn, postFFN backend.Vector // [hidden]; optional norms of the outputs
	scale             float32        // of the layer's output
	sinks             backend.Vector // [heads]; optional
	ffn               nn.FFN
	attnConv, ffnConv *conv // optional
	cache             int   // number of the layer in the cache
}

// Open loads a drafter for target.
func Open(f *gguf.File, target *model.Model, opt Options) (*Drafter, error) {
	dia, err := dialectOf(f)
	if err != nil {
		return nil, err
	}
	b := opt.Device
	if b == nil {
		b = target.Backend()
	}
	l := &nn.Loader{File: f, Devices: []backend.Backend{b}, Arch: f.Arch(), KV: opt.KV}
	if opt.Beside != nil {
		l.Devices = append(l.Devices, opt.Beside)
	}
	d := &Drafter{b: b, devices: l.Devices, file: f, target: target, pMin: opt.PMin}
	l.Weights = &d.weights
	for _, b := range d.devices {
		a := nn.NewArena(b)
		if len(d.devices) > 1 { // which may disagree on padding
			a.Exact()
		}
		d.arenas = append(d.arenas, a)
	}
	if d.params, err = readParams(l, dia, target); err != nil {
		return nil, err
	}
	d.limitWindows(f, opt.Window)
	d.place = make([]int, d.params.layers)
	for i := range len(d.place) - max(1, opt.Layers) {
		d.place[i] = len(d.devices) - 1
	}
	switch opt.Causal {
	case CausalOn:
		d.rule = causality{true, true}
	case CausalOff:
		d.rule = causality{false, false}
	default:
		if !d.stated && d.slides() {
			d.trial = trial{open: true}
		}
	}
	l.On(d.place[0], d.place[0])
	d.fc = l.Matrix(dia.fc, len(d.ids)*d.hidden, d.hidden)
	d.ctxNorm = l.Vector(dia.norm, d.hidden)
	l.On(0, 0)
	d.outNorm = l.Vector("output_norm.weight", d.hidden)
	d.bindVocabulary(l)
	d.rope = d.readRope(l)
	if err := d.readParts(l); err != nil {
		return nil, err
	}
	for i := range d.params.layers {
		l.On(d.place[i], d.place[i])
		l.Layer = i
		w := d.window[i]
		if w == 0 {
			w = d.full
		}
		d.layers = append(d.layers, d.readLayer(l, fmt.Sprintf("blk.%d.", i), w))
		if l.Err != nil {
			return nil, l.Err
		}
	}
	d.rejectUnknown(l, dia)
	if l.Err != nil {
		return nil, l.Err
	}
	if d.mem, err = cache.New(l.Devices, l.Spec()); err == nil {
		err = d.mem.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	d.bytes = l.Bytes
	return d, nil
}

// begin prepares the weights and the arenas for a pass over rows.
func (d *Drafter) begin(rows int) error {
	if err := d.weights.Return(); err != nil {
		return err
	}
	for _, a := range d.arenas {
		if err := a.Begin(rows, 0); err != nil {
			return err
		}
	}
	return nil
}

// next continues a pass over x on the device of the next layers.
func (d *Drafter) next(s *nn.Step, device int, x backend.Tensor) (*nn.Step, backend.Tensor) {
	s = s.Move(d.arenas[device], device, &x)
	s.Angles(d.rope)
	return s, x
}

func (d *Drafter) slides() bool { return slices.Max(d.window) > 0 }

// bindVocabulary finds the embedding and output matrices: the file's own, else the target's. The owner of a matrix also
// defines its scale: the target's embedding is scaled as in the target, and logits of the target's head are capped as
// the target's, unless the file says otherwise.
func (d *Drafter) bindVocabulary(l *nn.Loader) {
	var err error
	d.embed, d.head, err = d.target.Vocabulary(d.b)
	l.Keep(err)
	first := d.place[0]
	if first != 0 { // tokens are embedded where the first layer is
		d.embed, _, err = d.target.Vocabulary(d.devices[first])
		l.Keep(err)
	}
	scale, softcap := d.target.EmbScale, d.target.Softcap
	if l.Has("token_embd.weight") {
		d.embed = l.Matrix("token_embd.weight", d.hidden, d.target.Vocab)
		d.head = d.embed
		if first != 0 {
			l.On(first, first)
			d.embed = l.Matrix("token_embd.weight", d.hidden, d.target.Vocab)
			l.On(0, 0)
		}
		scale, softcap = 1, 0
	}
	if l.Has("output.weight") {
		softcap = 0
	}
	if d.embScale == 0 {
		d.embScale = scale
	}
	if d.softcap == 0 && !l.Has(selectorName) { // the selector is trained on what the file says
		d.softcap = softcap
	}
	drafts := d.target.Vocab
	if t := l.File.Tensor("d2t"); t != nil {
		if t.Type != quant.I64 || len(t.Shape) == 0 {
			l.Fail("tensor \"d2t\" has type %s; want I64", t.Type)
			return
		}
		drafts = t.Shape[0]
		for i := range drafts {
			id := int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
			if id < 0 || id >= int64(d.target.Vocab) {
				l.Fail("tensor \"d2t\": entry %d is %d, outside the vocabulary of %d", i, id, d.target.Vocab)
				return
			}
			d.d2t = append(d.d2t, int32(id))
		}
	}
	if l.Has("output.weight") {
		d.head = l.Matrix("output.weight", d.hidden, drafts)
	} else if d.d2t != nil {
		l.Fail("a reduced vocabulary (d2t) needs output.weight")
	}
}

// readRope reads the rotary embedding, whose frequencies the file may divide.
func (d *Drafter) readRope(l *nn.Loader) *nn.Rope {
	dims := l.Int("rope.dimension_count", d.headDim)
	if dims > d.headDim {
		l.Fail("key %s is %d; heads have %d dimensions", l.Key("rope.dimension_count"), dims, d.headDim)
		return nil
	}
	factors := l.RopeFactors(d.headDim)
	if l.Err != nil {
		return nil
	}
	return l.Rope(dims, d.theta, factors)
}

// readParts binds the optional parts: a Markov head or a selector, and convolutions.
func (d *Drafter) readParts(l *nn.Loader) error {
	if l.Has(markovName) && l.Has(selectorName) {
		l.Fail("tensors %q and %q: a drafter has a Markov head or a selector, not both", markovName, selectorName)
	}
	switch {
	case l.Err != nil:
	case l.Has(markovName):
		d.markov = d.readMarkov(l)
	case l.Has(selectorName):
		d.selector = d.readSelector(l)
	}
	d.readTaps(l)
	return l.Err
}

func (d *Drafter) readLayer(l *nn.Loader, p string, window int) layer {
	y := layer{
		norm: l.Vector(p+"attn_norm.weight", d.hidden), scale: 1,
		q:     l.Matrix(p+"attn_q.weight", d.hidden, d.heads*d.headDim),
		k:     l.Matrix(p+"attn_k.weight", d.hidden, d.kvHeads*d.headDim),
		o:     l.Matrix(p+"attn_output.weight", d.heads*d.headDim, d.hidden),
		qNorm: l.Vector(p+"attn_q_norm.weight", d.headDim), kNorm: l.Vector(p+"attn_k_norm.weight", d.headDim),
		ffn:     l.FFN(p, "", d.hidden, d.width, d.act),
		sinks:   l.Optional(p+"attn_sinks.weight", d.heads),
		postFFN: l.Optional(p+"post_ffw_norm.weight", d.hidden),
		cache:   l.Attention(d.kvHeads, d.headDim, window),
	}
	if name := p + "attn_sinks"; l.Has(name) { // some converters leave the suffix out
		y.sinks = l.Vector(name, d.heads)
	}
	if l.Has(p + "attn_v.weight") {
		y.v = l.Matrix(p+"attn_v.weight", d.hidden, d.kvHeads*d.headDim)
	}
	// post_attention_norm is the norm before the feed-forward layer when it stands alone, and
	// one on the attention output beside ffn_norm.
	if l.Has(p + "ffn_norm.weight") {
		y.ffnNorm = l.Vector(p+"ffn_norm.weight", d.hidden)
		y.postAttn = l.Optional(p+"post_attention_norm.weight", d.hidden)
	} else {
		y.ffnNorm = l.Vector(p+"post_attention_norm.weight", d.hidden)
	}
	if name := p + "layer_output_scale.weight"; l.Has(name) {
		y.scale = l.Scalar(name)
	}
	if d.taps > 0 {
		y.attnConv = d.readConv(l, p+"attn_conv_")
		y.ffnConv = d.readConv(l, p+"ffn_conv_")
	}
	return y
}

// Target returns the model the drafter drafts for.
func (d *Drafter) Target() *model.Model { return d.target }

// Capture lists the target layers whose outputs Extend needs, side by side.
func (d *Drafter) Capture() []int { return d.ids }

// Max is the largest number of tokens one block can guess.
func (d *Drafter) Max() int { return d.block - d.firstSlot() }

// firstSlot is the first slot of a block that predicts. Slot 0 holds the last token; it predicts
// the one after it only in drafters that sample from the anchor, otherwise masks predict
// themselves.
func (d *Drafter) firstSlot() int {
	if d.markov != nil && d.markov.anchor {
		return 0
	}
	return 1
}

// Block is the trained block length.
func (d *Drafter) Block() int { return d.block }

// WeightBytes is the size of the drafter's own weights.
func (d *Drafter) WeightBytes() int { return d.bytes }

// Weights are the drafter's own. Passes bring them back when they are parked.
func (d *Drafter) Weights() *nn.Weights { return &d.weights }

// Memory returns the drafter's cache.
func (d *Drafter) Memory() *cache.Memory { return d.mem }

// Name is what flags, requests and statistics call the source.
func (d *Drafter) Name() string { return "dflash" }

// Devices are all that run the drafter.
func (d *Drafter) Devices() []backend.Backend { return d.devices }

// NewSeq returns an empty context.
func (d *Drafter) NewSeq() *cache.Seq { return d.mem.NewSeq() }

// NewContext implements draft.Source.
func (d *Drafter) NewContext() draft.Context { return d.NewSeq() }

// Extend adds the features of committed tokens to the contexts of their sequences.
func (d *Drafter) Extend(features backend.Tensor, items []draft.Rows) (err error) {
	var pick []int32
	var segs []cache.Segment
	for _, it := range items {
		if len(it.Rows) > 0 {
			seq := it.Seq.(*cache.Seq)
			window := d.trial.from
			if other := d.trial.judge(seq, it.Tokens); other && window > 0 {
				d.seen = window
			} else if other {
				d.rule.sliding = !d.rule.sliding
			}
			pick = append(pick, it.Rows...)
			segs = append(segs, cache.Segment{Seq: seq, Rows: len(it.Rows), Prompt: true})
		}
	}
	n := len(pick)
	if n == 0 {
		return nil
	}
	if err := d.begin(n); err != nil {
		return err
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return err
	}
	defer nn.Catch(&err)
	s := nn.NewStep(d.arenas[d.place[0]], batch, d.mem, d.place[0], d.eps)
	features = s.TakeRows(d.target.Backend(), features, pick)
	d.extends.Run(s, extendKey{s.N, features}, func() (*nn.Step, struct{}) {
		return d.project(s, features, pick), struct{}{}
	}, pick)
	batch.Done()
	for _, g := range segs {
		if err := g.Seq.CommitAll(); err != nil {
			return err
		}
	}
	return nil
}

// project goes through the pass that turns rows of features into keys and values.
func (d *Drafter) project(s *nn.Step, features backend.Tensor, pick []int32) *nn.Step {
	s.Begin()
	s.Angles(d.rope)
	f := s.Rows(features.Cols)
	s.Gather(f, features, s.Ints32(pick))
	c := s.Multiply(f, d.fc) // [tokens, hidden]
	s.RMSNorm(c, c, d.ctxNorm, d.eps)
	at := s.Mark()
	for from, to := 0, 0; from < len(d.layers); from = to {
		if from > 0 && d.place[from] != d.place[from-1] {
			s, c = d.next(s, d.place[from], c)
			at = s.Mark()
		}
		var ws []backend.Weight
		// Starting a product takes time: for few rows one product for all layers of a device is faster.
		for to = from; to == from || s.N <= d.block && to < len(d.layers) && d.place[to] == d.place[from]; to++ {
			ws = append(ws, d.layers[to].projections()...)
		}
		p := s.Project(c, ws...)
		for i := from; i < to; i++ {
			used := len(d.layers[i].projections())
			d.remember(s, &d.layers[i], p[:used])
			p = p[used:]
		}
		s.Release(at)
	}
	return s
}

// projections make the keys and values of a layer.
func (y *layer) projections() []backend.Weight {
	if y.v == nil {
		return []backend.Weight{y.k}
	}
	return []backend.Weight{y.k, y.v}
}

// remember normalises and rotates keys and writes them to the cache with their values; without a projection of their
// own, values are the raw keys normalised without weights.
func (d *Drafter) remember(s *nn.Step, y *layer, kv []backend.Tensor) {
	k := kv[0]
	var v backend.Tensor
	if y.v != nil {
		v = kv[1]
	} else {
		v = s.New(k.Rows, k.Cols)
		s.RMSNorm(v.Split(d.kvHeads), k.Split(d.kvHeads), nil, d.eps)
	}
	s.NormHeads(k, d.kvHeads, y.kNorm)
	s.Rotate(k, d.kvHeads, d.rope)
	s.Remember(y.cache, k, v)
}
