package eagle3

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// Arch is the architecture of drafters' files.
const Arch = "eagle3"

// Supported reports whether a file is an EAGLE-3 drafter.
func Supported(f *gguf.File) bool { return f.Arch() == Arch }

// Description is what a drafter's file says about itself.
type Description struct {
	Layers   []int // target layers whose inputs it reads, as the file counts; the number of layers is the final state
	Width    int   // of the target, 0 when the file does not say
	Features int   // inputs of the projection, 0 without it
	Outputs  int   // tokens it can guess; 0 for all of the target's
}

// Describe reads a drafter's file without its target. An error is about a value in the file, or says that it is no
// EAGLE-3 drafter.
func Describe(f *gguf.File) (*Description, error) {
	if !Supported(f) {
		return nil, fmt.Errorf("%s: architecture %q is not an EAGLE-3 drafter", f.Path(), f.Arch())
	}
	d := &Description{}
	ids, ok, err := f.Ints(layersKey)
	if err != nil {
		return nil, err
	}
	if !ok || len(ids) == 0 || len(ids) > maxLayers {
		return nil, fmt.Errorf("%s: key %s has %d target layers; want 1 to %d", f.Path(), layersKey, len(ids), maxLayers)
	}
	for _, id := range ids {
		d.Layers = append(d.Layers, int(min(max(id, math.MinInt32), math.MaxInt32)))
	}
	width, _, err := f.Uint(Arch + ".target_hidden_size")
	if err != nil {
		return nil, err
	}
	d.Width = int(min(width, 1<<40))
	if t := f.Tensor("fc.weight"); t != nil && len(t.Shape) > 0 {
		d.Features = t.Shape[0]
	}
	if t := f.Tensor("d2t"); t != nil && len(t.Shape) > 0 {
		d.Outputs = t.Shape[0]
	}
	return d, nil
}

// Published drafters read three layers; a projection of more than maxLayers is a mistake.
const (
	layersKey = Arch + ".target_layers"
	maxLayers = 16
)

// params is a drafter's hyper-parameters.
type params struct {
	hidden, heads, kvHeads, headDim int
	layers                          []int // target layers whose inputs are the features
	eps, scale                      float32
	normed                          bool // the residual stream begins with the normalised g
}

// Open loads a drafter for target.
func Open(f *gguf.File, target *model.Model, opt Options) (*Drafter, error) {
	desc, err := Describe(f)
	if err != nil {
		return nil, err
	}
	b := opt.Device
	if b == nil {
		b = target.Backend()
	}
	d := &Drafter{b: b, arena: nn.NewArena(b), target: target}
	l := &nn.Loader{File: f, Devices: []backend.Backend{b}, Arch: Arch, KV: opt.KV, Weights: &d.weights}
	if err := d.readParams(l, desc); err != nil {
		return nil, err
	}
	if d.final, d.finalEps, err = target.FinalNorm(b); err != nil {
		return nil, err
	}
	d.bindVocabulary(l)
	d.bindLayer(l, "blk.0.")
	d.rejectUnknown(l)
	if l.Err != nil {
		return nil, l.Err
	}
	spec := l.Spec()
	spec.Carry = d.hidden
	if d.mem, err = cache.New(l.Devices, spec); err == nil {
		err = b.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	d.bytes += l.Bytes
	return d, nil
}

// readParams reads the hyper-parameters and checks that the drafter fits the target.
func (d *Drafter) readParams(l *nn.Loader, desc *Description) error {
	t := d.target
	d.hidden, d.layers = l.Need("embedding_length"), desc.Layers
	d.heads, d.kvHeads, d.headDim = l.Heads(d.hidden)
	d.eps = l.Float("attention.layer_norm_rms_epsilon", 1e-6)
	if n := l.Int("block_count", 1); n != 1 {
		l.Fail("key %s is %d; EAGLE-3 drafters with one layer are supported", l.Key("block_count"), n)
	}
	if err := l.Check(nn.Range("embedding_length", d.hidden, 1, 1<<20)); err != nil {
		return err
	}
	if d.eps < 0 || d.eps >= 1 {
		l.Fail("key %s is %g", l.Key("attention.layer_norm_rms_epsilon"), d.eps)
	}
	d.scale = float32(1 / math.Sqrt(float64(d.headDim)))
	for _, id := range d.layers {
		if id < 0 || id > t.Layers {
			l.Fail("key %s: entry %d; the target has %d layers", layersKey, id, t.Layers)
		}
	}
	if desc.Width != 0 && desc.Width != t.Hidden {
		l.Fail("the drafter was trained for a target of width %d, this one has %d", desc.Width, t.Hidden)
	}
	if want := len(d.layers) * t.Hidden; desc.Features != 0 && desc.Features != want {
		l.Fail("tensor \"fc.weight\" takes %d features; %d layers of width %d give %d: it was trained for another target",
			desc.Features, len(d.layers), t.Hidden, want)
	}
	normed, _, err := l.File.Bool(l.Key("norm_before_residual"))
	l.Keep(err)
	d.normed = normed
	return l.Err
}

// bindVocabulary finds the embedding and output matrices: the file's own, else the target's.
func (d *Drafter) bindVocabulary(l *nn.Loader) {
	const embed, output = "token_embd.weight", "output.weight"
	vocab := d.target.Vocab
	embedding, head, err := d.target.Vocabulary(d.b)
	l.Keep(err)
	d.d2t = readMap(l, vocab)
	from := l // has the embeddings
	if l.Has(embed) {
		d.embed = l.Matrix(embed, d.hidden, 0)
		if l.Err == nil && d.embed.Rows() < vocab {
			l.Fail("tensor %q has %d rows; the target has %d tokens", embed, d.embed.Rows(), vocab)
		}
	} else {
		from = &nn.Loader{File: d.target.File(), Devices: l.Devices, Arch: d.target.Arch, Weights: l.Weights}
		if d.embed = embedding; d.hidden != d.target.Hidden {
			l.Fail("a drafter of width %d for a target of %d needs tensor %q", d.hidden, d.target.Hidden, embed)
		}
	}
	outputs := vocab
	if d.d2t != nil {
		outputs = len(d.d2t)
	}
	switch {
	case l.Has(output):
		d.head = l.Matrix(output, d.hidden, outputs)
	case d.d2t != nil:
		l.Fail("a reduced vocabulary (tensor \"d2t\") needs tensor %q", output)
	case d.hidden != d.target.Hidden:
		l.Fail("a drafter of width %d for a target of %d needs tensor %q", d.hidden, d.target.Hidden, output)
	default:
		d.head = head
	}
	if d.byOutput = d.embed; d.d2t != nil && l.Err == nil {
		// What the device chose is embedded without asking the host which token it is.
		t := from.Tensor(embed, d.hidden, 0)
		if from.Err == nil {
			d.byOutput = from.Bind(nn.PickRows(t, d.d2t))
		}
		if l.Keep(from.Err); from != l {
			d.bytes += from.Bytes
		}
	}
}

// readMap reads the target's id of each output of a reduced vocabulary, nil if there is none.
func readMap(l *nn.Loader, vocab int) []int32 {
	t := l.File.Tensor("d2t")
	if t == nil {
		return nil
	}
	if t.Type != quant.I64 || len(t.Shape) == 0 || t.Elems() != t.Shape[0] || t.Shape[0] == 0 {
		l.Fail("tensor \"d2t\" is %s of shape %v; want a list of I64", t.Type, t.Shape)
		return nil
	}
	ids := make([]int32, t.Shape[0])
	for i := range ids {
		id := int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
		if id < 0 || id >= int64(vocab) {
			l.Fail("tensor \"d2t\": entry %d is %d, outside the vocabulary of %d", i, id, vocab)
			return nil
		}
		ids[i] = int32(id)
	}
	return ids
}

// bindLayer binds the projection of the features, the layer, whose names begin with p, and the last norm.
func (d *Drafter) bindLayer(l *nn.Loader, p string) {
	width := l.Need("feed_forward_length")
	rot := l.Int("rope.dimension_count", d.headDim)
	if v := l.Int("attention.value_length", d.headDim); v != d.headDim {
		l.Fail("value length %d differs from key length %d", v, d.headDim)
	}
	if l.Check(nn.Range("feed_forward_length", width, 1, 1<<22),
		nn.Range("rope.dimension_count", rot, 2, d.headDim)) != nil {
		return
	}
	d.rope = l.Rope(rot, l.Float("rope.freq_base", 10000), l.RopeFactors(rot))
	features := len(d.layers) * d.target.Hidden
	d.fc = l.Matrix("fc.weight", features, d.hidden)
	normed, _, err := l.File.Bool(l.Key("norm_before_fc"))
	if l.Keep(err); normed {
		d.encode = l.Vector("enc.output_norm.weight", features)
	}
	d.outputNorm = l.Vector("output_norm.weight", d.hidden)
	d.norm, d.gNorm = l.Vector(p+"attn_norm.weight", d.hidden), l.Vector(p+"attn_norm_2.weight", d.hidden)
	d.ffnNorm = l.Vector(p+"ffn_norm.weight", d.hidden)
	d.q, d.qBias = l.Pairs(p+"attn_q", 2*d.hidden, d.heads, d.headDim, rot)
	d.k, d.kBias = l.Pairs(p+"attn_k", 2*d.hidden, d.kvHeads, d.headDim, rot)
	d.v = l.Matrix(p+"attn_v.weight", 2*d.hidden, d.kvHeads*d.headDim)
	d.vBias = l.Optional(p+"attn_v.bias", d.kvHeads*d.headDim)
	d.o = l.Matrix(p+"attn_output.weight", d.heads*d.headDim, d.hidden)
	d.oBias = l.Optional(p+"attn_output.bias", d.hidden)
	d.ffn = l.FFN(p, "", d.hidden, width, backend.SiLU)
	d.cache = l.Attention(d.kvHeads, d.headDim, 0)
}

// rejectUnknown fails on tensors that nothing has read: they would change what the drafter computes.
func (d *Drafter) rejectUnknown(l *nn.Loader) {
	known := map[string]bool{"d2t": true}
	for _, name := range []string{"fc", "token_embd", "output", "output_norm", "rope_freqs", "blk.0.attn_norm",
		"blk.0.attn_norm_2", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output", "blk.0.ffn_norm",
		"blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"} {
		known[name+".weight"] = true
	}
	for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
		known["blk.0."+name+".bias"] = true
	}
	known["enc.output_norm.weight"] = d.encode != nil
	for _, t := range l.File.Tensors() {
		if base, ok := strings.CutSuffix(t.Name, ".scale"); ok && known[base+".weight"] {
			if w := l.File.Tensor(base + ".weight"); w != nil && w.Type == quant.NVFP4 {
				continue // the scale of its weight
			}
		}
		if !known[t.Name] {
			l.Fail("tensor %q: this drafter has a part that is not supported", t.Name)
			return
		}
	}
}
