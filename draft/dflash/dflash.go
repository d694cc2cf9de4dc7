// Package dflash runs DFlash drafters: small transformers that fill a whole block of tokens in one
// pass, attending to keys and values made from the target's hidden states.
//
// Open reads a drafter and binds it to its target, whose embedding and output matrix it
// shares. Per sequence a drafter has a cache of its own (NewSeq). Extend projects the target's
// features of newly committed tokens into it, once; Draft guesses the tokens after the last one.
// A drafter belongs to the goroutine that drives the target's backend.
package dflash

import (
	"fmt"
	"strings"

	"strobe/backend"
	"strobe/cache"
	"strobe/draft"
	"strobe/gguf"
	"strobe/model"
	"strobe/nn"
	"strobe/quant"
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
	// KVF32 keeps keys and values in float32, for comparisons with references.
	KVF32 bool
}

var _ draft.Drafter = (*Drafter)(nil)

// Drafter is a loaded drafter.
type Drafter struct {
	params
	b       backend.Backend
	target  *model.Model
	mem     *cache.Memory
	fixed   bool // the causality rule is not up for trial
	fc      backend.Weight
	ctxNorm backend.Vector
	outNorm backend.Vector
	embed   backend.Weight
	head    backend.Weight
	d2t     []int32
	rope    *nn.Rope
	layers  []layer
	weights int

	rows       int
	features   backend.Tensor // gathered features of committed rows
	ctx        backend.Tensor
	x, h       backend.Tensor
	q, k, v, o backend.Tensor
	ffn        nn.FFNScratch
	final      backend.Tensor
	logits     backend.Tensor
	blockIDs   backend.Ints
	pos        backend.Ints
	pick       backend.Ints
	topIDs     backend.Ints
	topLogP    backend.Tensor
}

type layer struct {
	norm, ffnNorm     backend.Vector
	q, k, v, o        backend.Weight // v nil: values are the normalised raw keys
	qNorm, kNorm      backend.Vector
	postAttn, postFFN backend.Vector // optional norms of the outputs
	scale             float32
	sinks             backend.Vector
	ffn               nn.FFN
	cache             int
}

// Open loads a drafter for target.
func Open(f *gguf.File, target *model.Model, opt Options) (*Drafter, error) {
	dia, err := dialectOf(f)
	if err != nil {
		return nil, err
	}
	kv := quant.F16
	if opt.KVF32 {
		kv = quant.F32
	}
	b := target.Backend()
	l := &nn.Loader{File: f, Backend: b, Arch: f.Arch(), KV: kv}
	d := &Drafter{b: b, target: target}
	if d.params, err = readParams(l, dia, target); err != nil {
		return nil, err
	}
	switch opt.Causal {
	case CausalOn:
		d.rule, d.fixed = causality{true, true}, true
	case CausalOff:
		d.rule, d.fixed = causality{false, false}, true
	default:
		d.fixed = d.stated || !d.slides()
	}
	d.fc = l.Matrix(dia.fc, len(d.ids)*d.hidden, d.hidden)
	d.ctxNorm = l.Vector(dia.norm, d.hidden)
	d.outNorm = l.Vector("output_norm.weight", d.hidden)
	d.bindVocabulary(l)
	d.rope = l.Rope(l.Int("rope.dimension_count", d.headDim), d.theta, optionalFloats(l, "rope_freqs.weight", d.headDim/2))
	for i := range d.params.layers {
		d.layers = append(d.layers, d.readLayer(l, fmt.Sprintf("blk.%d.", i), d.window[i]))
		if l.Err != nil {
			return nil, l.Err
		}
	}
	rejectUnknown(l, dia)
	if l.Err != nil {
		return nil, l.Err
	}
	if d.mem, err = cache.New(b, l.Spec()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	d.weights = l.Bytes
	return d, nil
}

func (d *Drafter) slides() bool {
	for _, w := range d.window {
		if w > 0 {
			return true
		}
	}
	return false
}

// bindVocabulary finds the embedding and output matrices: the file's own, else the target's.
func (d *Drafter) bindVocabulary(l *nn.Loader) {
	d.embed, d.head = d.target.Embedding(), d.target.Head()
	if l.Has("token_embd.weight") {
		d.embed = l.Matrix("token_embd.weight", d.hidden, d.target.Vocab)
		d.head = d.embed
	}
	drafts := d.target.Vocab
	if t := l.File.Tensor("d2t"); t != nil {
		if t.Type != quant.I64 || len(t.Shape) == 0 {
			l.Fail("tensor \"d2t\" has type %s; want I64", t.Type)
			return
		}
		drafts = t.Shape[0]
		for i := range drafts {
			id := int64(le64(t.Data[8*i:]))
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

func le64(b []byte) uint64 {
	v := uint64(0)
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func optionalFloats(l *nn.Loader, name string, n int) []float32 {
	if !l.Has(name) {
		return nil
	}
	return l.Floats(name, n)
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
	if l.Has(p + "layer_output_scale.weight") {
		y.scale = l.Scalar(p + "layer_output_scale.weight")
	}
	return y
}

// Target returns the model the drafter drafts for.
func (d *Drafter) Target() *model.Model { return d.target }

// Capture lists the target layers whose outputs Extend needs, side by side.
func (d *Drafter) Capture() []int { return d.ids }

// Max is the largest number of tokens one block can guess.
func (d *Drafter) Max() int { return d.block - 1 }

// Block is the trained block length.
func (d *Drafter) Block() int { return d.block }

// WeightBytes is the size of the drafter's own weights.
func (d *Drafter) WeightBytes() int { return d.weights }

// Memory returns the drafter's cache.
func (d *Drafter) Memory() *cache.Memory { return d.mem }

// TryCausal reports whether it is open, by the file, whether sliding layers are causal inside the
// block, so that trying both and keeping the better one is worth while.
func (d *Drafter) TryCausal() bool { return !d.fixed }

// NewSeq returns an empty context.
func (d *Drafter) NewSeq() *cache.Seq { return d.mem.NewSeq() }

// Extend adds the features of committed tokens to the contexts of their sequences.
func (d *Drafter) Extend(features backend.Tensor, items []draft.Rows) error {
	var pick []int32
	var segs []cache.Segment
	for _, it := range items {
		if len(it.Rows) > 0 {
			pick = append(pick, it.Rows...)
			segs = append(segs, cache.Segment{Seq: it.Seq, Rows: len(it.Rows), Prompt: true})
		}
	}
	n := len(pick)
	if n == 0 {
		return nil
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return err
	}
	d.reserve(n, 0)
	b := d.b
	b.BeginStep(fmt.Sprintf("extend/%d", n))
	b.SetInts(d.pick, pick)
	b.SetInts(d.pos, batch.Pos)
	f, c, k, v := d.features.First(n), d.ctx.First(n), d.k.First(n), d.v.First(n)
	b.Gather(f, features, d.pick)
	b.MatMul(f, backend.Product{W: d.fc, Y: c})
	b.RMSNorm(c, c, d.ctxNorm, d.eps)
	d.rope.Angles(b, n, d.pos)
	for i := range d.layers {
		y := &d.layers[i]
		if y.v != nil {
			b.MatMul(c, backend.Product{W: y.k, Y: k}, backend.Product{W: y.v, Y: v})
		} else {
			b.MatMul(c, backend.Product{W: y.k, Y: k})
		}
		d.finishKV(y, k, v)
		at := d.mem.Place(y.cache)
		b.KVWrite(d.mem.Pool(at.Group), at.Index, k, v, &batch.Plans[at.Group])
	}
	batch.Done()
	for _, s := range segs {
		if err := s.Seq.CommitAll(); err != nil {
			return err
		}
	}
	return nil
}

// finishKV normalises and rotates keys; without a projection of their own, values are the raw keys
// normalised without weights.
func (d *Drafter) finishKV(y *layer, k, v backend.Tensor) {
	b := d.b
	kh := k.Split(d.kvHeads)
	if y.v == nil {
		b.RMSNorm(v.Split(d.kvHeads), kh, nil, d.eps)
	}
	b.RMSNorm(kh, kh, y.kNorm, d.eps)
	d.rope.Rotate(b, kh, d.kvHeads)
}

// Draft guesses for several sequences in one pass, with up to top candidates per position.
func (d *Drafter) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	logits, first, err := d.forward(reqs, 1)
	if err != nil {
		return nil, err
	}
	n := logits.Rows
	if d.topLogP.Cols != top || d.topLogP.Rows < n {
		d.topLogP, d.topIDs = d.b.Alloc(max(n, d.block), top), d.b.AllocInts(max(n, d.block)*top)
	}
	d.b.TopK(d.topIDs, d.topLogP.First(n), logits, top)
	ids, logp := d.b.Ints(d.topIDs), d.b.Read(d.topLogP.First(n))
	out := make([]draft.Proposal, len(reqs))
	for r := range reqs {
		p := draft.Proposal{Source: "dflash", At: make([][]draft.Candidate, reqs[r].N)}
		for i := range p.At {
			row := (first[r] + i) * top
			for j := range top {
				id := ids[row+j]
				if id >= 0 && d.d2t != nil {
					id = d.d2t[id]
				}
				p.At[i] = append(p.At[i], draft.Candidate{ID: id, LogP: logp[row+j]})
			}
		}
		out[r] = p
	}
	return out, nil
}

// BlockLogits runs a whole block and returns the logits of every slot, the first token's included,
// for comparison with references.
func (d *Drafter) BlockLogits(seq *cache.Seq, last int32) ([]float32, error) {
	logits, _, err := d.forward([]draft.Request{{Seq: seq, Last: last, N: d.Max()}}, 0)
	if err != nil {
		return nil, err
	}
	return d.b.Read(logits), nil
}

// forward runs the blocks of all requests and returns the logits of slots from skip on; first
// is each request's first row in them. Nothing is kept in the caches.
func (d *Drafter) forward(reqs []draft.Request, skip int) (logits backend.Tensor, first []int, err error) {
	var ids, pick []int32
	segs := make([]cache.Segment, len(reqs))
	for i, r := range reqs {
		if r.N < 1 || r.N > d.Max() {
			return logits, nil, fmt.Errorf("draft of %d tokens; this drafter guesses 1 to %d", r.N, d.Max())
		}
		if r.Last < 0 || int(r.Last) >= d.target.Vocab {
			return logits, nil, fmt.Errorf("token id %d is outside the vocabulary of %d", r.Last, d.target.Vocab)
		}
		first = append(first, len(pick))
		for s := range r.N + 1 {
			if s >= skip {
				pick = append(pick, int32(len(ids)))
			}
			if s == 0 {
				ids = append(ids, r.Last)
			} else {
				ids = append(ids, d.mask)
			}
		}
		segs[i] = cache.Segment{Seq: r.Seq, Rows: r.N + 1, Block: d.bothWays(r.Other)}
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return logits, nil, err
	}
	n := len(ids)
	d.reserve(n, len(pick))
	b := d.b
	b.BeginStep(fmt.Sprintf("draft/%d/%d", n, len(pick)))
	b.SetInts(d.blockIDs, ids)
	b.SetInts(d.pos, batch.Pos)
	b.SetInts(d.pick, pick)
	x, h := d.x.First(n), d.h.First(n)
	q, k, v, o := d.q.First(n), d.k.First(n), d.v.First(n), d.o.First(n)
	b.Embed(x, d.embed, d.blockIDs, d.embScale)
	d.rope.Angles(b, n, d.pos)
	for i := range d.layers {
		y := &d.layers[i]
		b.RMSNorm(h, x, y.norm, d.eps)
		if y.v != nil {
			b.MatMul(h, backend.Product{W: y.q, Y: q}, backend.Product{W: y.k, Y: k}, backend.Product{W: y.v, Y: v})
		} else {
			b.MatMul(h, backend.Product{W: y.q, Y: q}, backend.Product{W: y.k, Y: k})
		}
		qh := q.Split(d.heads)
		b.RMSNorm(qh, qh, y.qNorm, d.eps)
		d.rope.Rotate(b, qh, d.heads)
		d.finishKV(y, k, v)
		at := d.mem.Place(y.cache)
		pool, plan := d.mem.Pool(at.Group), &batch.Plans[at.Group]
		b.KVWrite(pool, at.Index, k, v, plan)
		b.Attention(o, q, pool, at.Index, plan, backend.AttnParams{Heads: d.heads, KVHeads: d.kvHeads, Scale: d.scale, Sinks: y.sinks})
		b.MatMul(o, backend.Product{W: y.o, Y: h})
		if y.postAttn != nil {
			b.RMSNorm(h, h, y.postAttn, d.eps)
		}
		b.Add(x, x, h)

		b.RMSNorm(h, x, y.ffnNorm, d.eps)
		y.ffn.Forward(b, h, h, &d.ffn)
		if y.postFFN != nil {
			b.RMSNorm(h, h, y.postFFN, d.eps)
		}
		b.Add(x, x, h)
		if y.scale != 1 {
			b.Scale(x, x, y.scale)
		}
	}
	final := d.final.First(len(pick))
	logits = d.logits.First(len(pick))
	b.Gather(final, x, d.pick)
	b.RMSNorm(final, final, d.outNorm, d.eps)
	b.MatMul(final, backend.Product{W: d.head, Y: logits})
	batch.Done()
	return logits, first, nil
}

// bothWays says per cache group whether block rows see later rows.
func (d *Drafter) bothWays(other bool) []bool {
	v := make([]bool, d.mem.Groups())
	for g := range v {
		if d.mem.Window(g) == 0 {
			v[g] = !d.rule.full
		} else {
			v[g] = d.rule.sliding == other
		}
	}
	return v
}

// reserve makes the buffers large enough.
func (d *Drafter) reserve(n, picks int) {
	b := d.b
	if n > d.rows {
		r := d.block
		for r < n {
			r *= 2
		}
		d.rows = r
		d.features = b.Alloc(r, len(d.ids)*d.hidden)
		d.ctx, d.x, d.h = b.Alloc(r, d.hidden), b.Alloc(r, d.hidden), b.Alloc(r, d.hidden)
		d.q, d.o = b.Alloc(r, d.heads*d.headDim), b.Alloc(r, d.heads*d.headDim)
		d.k, d.v = b.Alloc(r, d.kvHeads*d.headDim), b.Alloc(r, d.kvHeads*d.headDim)
		d.ffn = nn.NewFFNScratch(b, r, d.width)
		d.rope.Reserve(b, r)
		d.blockIDs, d.pos, d.pick = b.AllocInts(r), b.AllocInts(r), b.AllocInts(r)
	}
	if picks > d.final.Rows {
		r := d.block
		for r < picks {
			r *= 2
		}
		d.final, d.logits = b.Alloc(r, d.hidden), b.Alloc(r, d.head.Rows())
	}
}

// rejectUnknown fails on tensors that would change what the drafter computes.
func rejectUnknown(l *nn.Loader, dia dialect) {
	known := map[string]bool{dia.fc: true, dia.norm: true, "output_norm.weight": true, "token_embd.weight": true,
		"output.weight": true, "d2t": true, "rope_freqs.weight": true}
	for _, n := range []string{"attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm",
		"ffn_gate", "ffn_up", "ffn_down", "post_attention_norm", "post_ffw_norm", "layer_output_scale", "attn_sinks"} {
		known[n] = true
	}
	for _, t := range l.File.Tensors() {
		name := t.Name
		if rest, ok := strings.CutPrefix(name, "blk."); ok {
			_, name, _ = strings.Cut(rest, ".")
			name = strings.TrimSuffix(name, ".weight")
		}
		if !known[name] {
			l.Fail("tensor %q: this drafter has a part that is not supported", t.Name)
			return
		}
	}
}
