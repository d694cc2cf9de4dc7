package dflash

import (
	"fmt"
	"math"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// dialect is how a family of drafter files spells the same things. It is decided by the
// architecture name and the tensor names, never guessed from values.
type dialect struct {
	name       string
	fc, norm   string // tensor names of the feature projection and its norm
	idsOffset  int    // added to a Hugging Face layer id in the file
	idsKey     string // below the architecture; "" when the file lists none
	blockKey   string
	maskKey    string // a full key when it begins with "tokenizer."
	slidesLast bool   // a window without a pattern: every layer but the last slides
	extraKey   int    // keys a sliding query sees beyond the window
	wholeCtx   bool   // the window of every row is the one before the block
	causal     bool   // sliding layers are causal in the block unless the file says otherwise
}

var (
	upstream = dialect{name: "dflash", fc: "fc.weight", norm: "enc.output_norm.weight", idsOffset: 1,
		idsKey: "target_layers", blockKey: "block_size", maskKey: "tokenizer.ggml.mask_token_id"}
	beellama = dialect{name: "dflash-draft", fc: "dflash_fc.weight", norm: "dflash_hidden_norm.weight",
		idsKey: "dflash.target_layer_ids", blockKey: "dflash.block_size", maskKey: "dflash.mask_token_id", extraKey: 1,
		causal: true}
	lucebox = dialect{name: "lucebox", fc: "dflash.fc.weight", norm: "dflash.hidden_norm.weight",
		idsKey: "dflash.target_layer_ids", blockKey: "dflash.block_size", maskKey: "dflash.mask_token_id", slidesLast: true,
		wholeCtx: true, causal: true}
)

// Supported reports whether a file is a DFlash drafter.
func Supported(f *gguf.File) bool {
	_, err := dialectOf(f)
	return err == nil
}

func dialectOf(f *gguf.File) (dialect, error) {
	switch a := f.Arch(); {
	case a == "dflash":
		return upstream, nil
	case a == "dflash-draft" && f.Tensor(lucebox.fc) == nil:
		return beellama, nil
	case strings.HasSuffix(a, "dflash-draft"):
		return lucebox, nil
	default:
		return dialect{}, fmt.Errorf("%s: architecture %q is not a DFlash drafter", f.Path(), a)
	}
}

// causality inside the block: of sliding layers and of full ones.
type causality struct{ sliding, full bool }

// params is a drafter's hyper-parameters in one convention for all dialects.
type params struct {
	layers, hidden          int
	heads, kvHeads, headDim int
	width                   int
	block                   int
	mask                    int32
	ids                     []int // target layers whose outputs are the features
	window                  []int // per layer, 0 for none
	wholeWindow             bool  // the window of every row is the one before the block
	stated                  bool  // the file says whether the block is causal
	rule                    causality
	theta                   float32
	scale                   float32
	embScale                float32 // 0 until bindVocabulary
	logitScale, softcap     float32
	act                     backend.Activation
	eps                     float32
}

// minBlock and maxBlock limit the tokens of a block: one to begin with and those that are guessed.
const minBlock, maxBlock = 2, 256

// readParams reads the hyper-parameters of a drafter and checks that it fits the target.
func readParams(l *nn.Loader, d dialect, t *model.Model) (params, error) {
	desc, err := Describe(l.File)
	if err != nil {
		return params{}, err
	}
	p := params{
		layers: l.Need("block_count"), hidden: l.Need("embedding_length"),
		width: l.Need("feed_forward_length"), block: desc.Block,
		eps: l.Float("attention.layer_norm_rms_epsilon", 1e-6), theta: l.Float("rope.freq_base", 10000),
		scale: l.Float("attention.scale", 0), embScale: l.Float("embedding_scale", 0),
		logitScale: l.Float("logit_scale", 0), softcap: l.Float("final_logit_softcapping", 0),
	}
	p.heads, p.kvHeads, p.headDim = l.Heads(p.hidden)
	if desc.Mask < 0 {
		l.Fail("missing key %s", d.key(l.File, d.maskKey))
	}
	if err := l.Check(nn.Range("block_count", p.layers, 1, 256), nn.Range("embedding_length", p.hidden, 1, 1<<20),
		nn.Range("feed_forward_length", p.width, 1, 1<<22),
		nn.Range(d.blockKey, p.block, minBlock, maxBlock), nn.Range(d.maskKey, int(desc.Mask), 0, t.Vocab-1)); err != nil {
		return p, err
	}
	p.mask = int32(desc.Mask)
	if p.eps < 0 || p.eps >= 1 {
		l.Fail("key %s is %g", l.Key("attention.layer_norm_rms_epsilon"), p.eps)
	}
	if n := l.Int("hyper_connection.count", 0); n > 0 {
		l.Fail("drafters with hyper-connections are not supported")
	}
	if p.hidden != t.Hidden {
		l.Fail("the drafter has width %d, the target %d: it was trained for another target", p.hidden, t.Hidden)
	}
	if p.scale == 0 {
		p.scale = float32(1 / math.Sqrt(float64(p.headDim)))
	}
	if p.logitScale == 0 {
		p.logitScale = 1
	}
	switch act, _, err := l.File.String(l.Key("hidden_activation")); act {
	case "", "silu":
		l.Keep(err)
	case "gelu", "gelu_pytorch_tanh":
		p.act = backend.GELU
	default:
		l.Fail("key %s is %q; supported are silu and gelu", l.Key("hidden_activation"), act)
	}
	// Lucebox writes a wrong base for Qwen drafters; theirs is the target's.
	if d.name == lucebox.name && strings.HasPrefix(l.Arch, "qwen") {
		if base, ok, _ := t.File().Float(t.Arch + ".rope.freq_base"); ok {
			p.theta = float32(base)
		}
	}
	readWindows(l, d, &p)
	readCausality(l, d, &p)
	readTargetLayers(l, d, desc, &p, t)
	return p, l.Err
}

func readWindows(l *nn.Loader, d dialect, p *params) {
	p.window = make([]int, p.layers)
	w := l.Int("attention.sliding_window", 0)
	p.wholeWindow = d.wholeCtx
	if w == 0 {
		return
	}
	if w < 0 || w > 1<<30 {
		l.Fail("key %s is %d", l.Key("attention.sliding_window"), w)
		return
	}
	pattern, ok, err := l.File.Bools(l.Key("attention.sliding_window_pattern"))
	l.Keep(err)
	switch {
	case ok && len(pattern) >= p.layers:
	case d.slidesLast && !ok:
		pattern = make([]bool, p.layers)
		for i := range p.layers - 1 {
			pattern[i] = true
		}
	case err == nil && (ok || d.name == upstream.name):
		l.Fail("key %s: want %d entries", l.Key("attention.sliding_window_pattern"), p.layers)
		return
	default:
		pattern = make([]bool, p.layers)
	}
	for i := range p.window {
		if pattern[i] {
			p.window[i] = w + d.extraKey
		}
	}
}

// readCausality finds out whether block rows see later rows. A file that does not say so
// starts with its run-time's rule, and a trial may find the other one better.
func readCausality(l *nn.Loader, d dialect, p *params) {
	v, ok, err := l.File.Bool(l.Key("attention.causal"))
	l.Keep(err)
	if d.name != upstream.name {
		// These files say false for the full layers; the sliding rule is their run-time's.
		p.rule = causality{sliding: d.causal, full: ok && v}
		return
	}
	p.stated = ok
	p.rule = causality{sliding: v, full: v}
}

// readTargetLayers finds the target layers whose outputs are the drafter's features.
func readTargetLayers(l *nn.Loader, d dialect, desc *Description, p *params, t *model.Model) {
	fc := l.Tensor(d.fc, 0, p.hidden)
	if fc == nil {
		return
	}
	var err error
	if p.ids, err = desc.TargetLayers(t.Layers); err != nil {
		l.Fail("%v", err)
	}
	if len(p.ids)*t.Hidden != fc.Shape[0] {
		l.Fail("tensor %q takes %d features; %d captured layers of width %d give %d: it was trained for another target",
			d.fc, fc.Shape[0], len(p.ids), t.Hidden, len(p.ids)*t.Hidden)
	}
	if v, ok, err := l.File.Uint(l.Key("dflash.n_target_features")); ok && v != uint64(fc.Shape[0]) {
		l.Fail("key %s is %d; tensor %q takes %d", l.Key("dflash.n_target_features"), v, d.fc, fc.Shape[0])
	} else {
		l.Keep(err)
	}
}

// Tensors of a block, without prefix and suffix. conv are those of drafters with convolutions.
var (
	blockNames = []string{"attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm",
		"attn_k_norm",
		"ffn_gate", "ffn_up", "ffn_down", "post_attention_norm", "post_ffw_norm", "layer_output_scale", "attn_sinks"}
	convNames = []string{"attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight"}
)

// rejectUnknown fails on tensors that nothing has read: they would change what the drafter computes.
func (d *Drafter) rejectUnknown(l *nn.Loader, dia dialect) {
	known := map[string]bool{}
	add := func(prefix, suffix string, names ...string) {
		for _, n := range names {
			known[prefix+n+suffix] = true
		}
	}
	add("", "", dia.fc, dia.norm, "output_norm.weight", "token_embd.weight", "output.weight", "d2t", "rope_freqs.weight")
	if d.markov != nil {
		add("", "", markovNames...)
	}
	if d.selector != nil {
		add("", "", selectorNames...)
	}
	for i := range d.params.layers {
		p := fmt.Sprintf("blk.%d.", i)
		add(p, ".weight", blockNames...)
		add(p, "", "attn_sinks")
		if d.taps > 0 {
			add(p, "", convNames...)
		}
	}
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
