package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// drawn are the architectures to draw from.
var drawn = []string{"qwen3", "qwen3moe", "qwen2", "llama", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe",
	"gpt-oss"}

// drawing is a model of random legal dimensions and weights, with what may draft for it.
type drawing struct {
	*rand.Rand
	t     testing.TB
	exact bool // products are computed in float32 on the processor
	slow  bool // the device is not the processor

	*edit.File // that is being made
	arch       string

	target, drafter, assistant, eagle *edit.File // drafters are nil where there is none
	layers, hidden, vocab             int
	kv                                []string // cache types of each layer, as cache.ParseTypes reads them
	values                            int      // of the target's matrices
	gemmaDims                         gemmaDims
	least                             float32 // probability that the drafter is to guess with
}

// draw makes up a model. Everything follows from the seed.
func draw(t testing.TB, seed uint64) *drawing {
	d := &drawing{Rand: rand.New(rand.NewPCG(seed, 77)), t: t}
	d.exact = d.odds(2)
	name := drawn[seed%uint64(len(drawn))]
	arch := strings.TrimSuffix(name, "moe")
	if strings.HasPrefix(name, "qwen") {
		arch = name
	}
	d.begin(arch)
	d.target = d.File
	switch {
	case arch == "gemma4":
		d.gemma(name == "gemma4moe")
	case d.hybrid():
		d.qwen35()
	case arch == "gpt-oss":
		d.gptOSS()
	default:
		d.transformer()
	}
	values := d.values
	if d.drawDrafter(); arch == "gemma4" && d.odds(2) {
		d.drawAssistant()
	}
	if seed%2 == 0 {
		d.drawEagle3(seed)
	}
	d.values = values
	return d
}

func (d *drawing) hybrid() bool {
	return d.arch == "qwen35" || d.arch == "qwen35moe" || d.arch == "qwen3next"
}

func (d *drawing) odds(n int) bool { return d.IntN(n) == 0 }

// from draws a number between two.
func (d *drawing) from(least, most int) int { return least + d.IntN(most-least+1) }

// pick draws one of several.
func pick[T any](d *drawing, of ...T) T { return of[d.IntN(len(of))] }

func (d *drawing) begin(arch string) {
	d.arch, d.File = arch, &edit.File{}
	d.Set("general.architecture", arch)
}

func (d *drawing) key(name string, v any) {
	if n, ok := v.(int); ok {
		v = uint32(n)
	}
	d.Set(d.arch+"."+name, v)
}

func (d *drawing) normal(n int, mean, dev float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(mean + dev*d.NormFloat64())
	}
	return v
}

// vector adds values around a mean, as float32.
func (d *drawing) vector(name string, mean, dev float64, shape ...int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	d.Put(name, d.normal(n, mean, dev), shape...)
}

func (d *drawing) norm(name string, n int) { d.vector(name+".weight", 1, 0.2, n) }

// shortRow is the row length below which the processor multiplies quantised weights as they are.
const shortRow = 512

// matrix adds a weight of any type that fits. It keeps the size of its input.
func (d *drawing) matrix(name string, shape ...int) { d.sized(name, 1, shape...) }

// sized adds a weight whose output is so many times as large as its input.
func (d *drawing) sized(name string, times float64, shape ...int) {
	types := []quant.Type{quant.F32, quant.F16, quant.BF16}
	if shape[0] < shortRow || !d.exact {
		for _, typ := range quant.BlockTypes() {
			// Gemma's routers have something else where the scale of an NVFP4 matrix would be.
			if n := typ.BlockLen(); n > 1 && shape[0]%n == 0 && qmat.Supported(typ) &&
				!(typ == quant.NVFP4 && strings.HasSuffix(name, "ffn_gate_inp")) {
				types = append(types, typ)
			}
		}
	}
	typ, rows := pick(d, types...), 1
	for _, s := range shape[1:] {
		rows *= s
	}
	x := &gguf.Tensor{Name: name + ".weight", Type: typ, Shape: shape, Data: make([]byte, rows*typ.RowBytes(shape[0]))}
	size := times / math.Sqrt(float64(shape[0]))
	if !typ.Quantizable() {
		d.blocks(typ, x.Data, size)
	} else if err := quant.Quantize(typ, x.Data, d.normal(rows*shape[0], 0, size)); err != nil {
		d.t.Fatal(err)
	}
	d.Tensors = append(d.Tensors, x)
	d.values += rows * shape[0]
	if typ == quant.NVFP4 && d.odds(2) {
		n := 1
		if len(shape) == 3 && d.odds(2) {
			n = shape[2]
		}
		d.vector(name+".scale", 1, 0.2, n)
	}
}

// blocks fills data with blocks of a type that quant can only read: a few random ones, whose values are neither tiny
// nor huge.
func (d *drawing) blocks(typ quant.Type, data []byte, size float64) {
	n, v := typ.BlockBytes(), make([]float32, typ.BlockLen())
	pool := make([][]byte, 16)
	for i := range pool {
		pool[i] = make([]byte, n)
		for most := 0.0; !(most > size && most < 4*size); {
			for k := range pool[i] {
				pool[i][k] = byte(d.Uint32())
			}
			if err := quant.Dequantize(typ, v, pool[i]); err != nil {
				d.t.Fatal(err)
			}
			most = 0
			for _, x := range v {
				most = max(most, math.Abs(float64(x))) // NaN stays NaN
			}
		}
	}
	for at := 0; at < len(data); at += n {
		copy(data[at:], pool[d.IntN(len(pool))])
	}
}

// common draws what all architectures have.
func (d *drawing) common() {
	d.layers = d.from(1, 5)
	switch d.IntN(8) {
	case 0, 1:
		d.hidden = d.from(10, 100)
	case 2:
		d.hidden = pick(d, 512, 544, 576, 768)
		d.layers = d.from(1, 2)
	default:
		d.hidden = 32 * d.from(1, 4)
	}
	d.vocab = d.from(3, pick(d, 20, 100, 300))
	d.key("block_count", d.layers)
	d.key("embedding_length", d.hidden)
	d.key("context_length", d.from(200, 100_000))
	d.key("attention.layer_norm_rms_epsilon", float32(1e-6))
	d.sized("token_embd", 1+2*d.Float64(), d.hidden, d.vocab)
	if d.odds(2) {
		d.matrix("output", d.hidden, d.vocab)
	}
	d.norm("output_norm", d.hidden)
}

// headDim draws a size of heads.
func (d *drawing) headDim() int {
	if d.odds(5) {
		return d.from(2, 70)
	}
	return pick(d, 8, 16, 24, 32, 32, 40, 64, 64, 80, 96, 128)
}

// heads draws heads and a number of key/value heads that they can share.
func (d *drawing) heads() (heads, kv int) {
	kv = d.from(1, 3)
	return kv * d.from(1, 3), kv
}

// rotated draws how many dimensions of a head are rotated.
func (d *drawing) rotated(dim int) int {
	if d.odds(2) {
		return dim / 2 * 2
	}
	return 2 * d.from(1, dim/2)
}

// width draws the size of a feed-forward layer.
func (d *drawing) width() int {
	if d.odds(4) {
		return d.from(1, 150)
	}
	if d.odds(8) {
		return pick(d, 512, 608, 768)
	}
	return 32 * d.from(1, 5)
}

// cached draws the types that the next layers keep keys and values in.
func (d *drawing) cached(layer, dim int) {
	draw := func() string {
		var types []string
		for _, typ := range quant.CacheTypes {
			if dim%typ.BlockLen() == 0 {
				types = append(types, strings.ToLower(typ.String()))
			}
		}
		return pick(d, types...)
	}
	d.kv = append(d.kv, fmt.Sprintf("%d=%s/%s", layer, draw(), draw()))
}

// rope draws a rotary embedding and how a context longer than that of the training changes it.
func (d *drawing) rope(rot int) {
	d.key("rope.freq_base", pick(d, float32(10000), 1e6, 500))
	switch d.IntN(4) {
	case 0:
		d.key("rope.scaling.type", "yarn")
		d.key("rope.scaling.factor", pick(d, float32(2), 4, 1.5, 40))
		d.key("rope.scaling.original_context_length", d.from(20, 5000))
		if d.odds(2) {
			d.key("rope.scaling.yarn_beta_fast", pick(d, float32(16), 64))
			d.key("rope.scaling.yarn_beta_slow", pick(d, float32(2), 0.5))
			d.key("rope.scaling.yarn_ext_factor", pick(d, float32(1), 0.5))
			d.key("rope.scaling.yarn_attn_factor", pick(d, float32(1), 0.7))
		}
	case 1:
		d.key("rope.scaling.type", pick(d, "linear", "none"))
		d.key("rope.scaling.factor", pick(d, float32(2), 8))
	}
	if d.odds(3) {
		d.factors(rot)
	}
}

// factors adds divisors of the frequencies, of which some are so large that nothing is turned.
func (d *drawing) factors(rot int) {
	v := make([]float32, rot/2)
	for i := range v {
		v[i] = pick(d, float32(1), 1, 1.5, 8, 1e30)
	}
	d.Put("rope_freqs.weight", v, len(v))
}

func (d *drawing) transformer() {
	d.common()
	heads, kv := d.heads()
	dim := d.headDim()
	if d.odds(4) && d.hidden/heads >= 2 {
		dim = d.hidden / heads // which files need not say
	} else {
		d.key("attention.key_length", dim)
		d.key("attention.value_length", dim)
	}
	rot := dim
	if rot%2 != 0 || d.odds(2) {
		rot = d.rotated(dim)
		d.key("rope.dimension_count", rot)
	}
	d.rope(rot)
	d.key("attention.head_count", heads)
	if kv != heads || d.odds(2) {
		d.key("attention.head_count_kv", kv)
	}
	experts, width := 0, d.width()
	if d.arch == "qwen3moe" || d.arch == "llama" && d.odds(3) {
		experts, width = d.expertKeys()
	} else {
		d.key("feed_forward_length", width)
	}
	normed := d.arch == "qwen3" || d.arch == "qwen3moe"
	biased := d.arch == "qwen2" || d.odds(4)
	joined := d.arch != "llama" && d.odds(4)
	for i := range d.layers {
		d.cached(i, dim)
		p := fmt.Sprintf("blk.%d.", i)
		d.norm(p+"attn_norm", d.hidden)
		d.norm(p+"ffn_norm", d.hidden)
		d.qkv(p, heads*dim, kv*dim, joined)
		d.matrix(p+"attn_output", heads*dim, d.hidden)
		if biased {
			d.vector(p+"attn_q.bias", 0, 0.5, heads*dim)
			d.vector(p+"attn_k.bias", 0, 0.5, kv*dim)
			d.vector(p+"attn_v.bias", 0, 0.5, kv*dim)
		}
		if d.odds(4) {
			d.vector(p+"attn_output.bias", 0, 0.3, d.hidden)
		}
		if normed {
			d.norm(p+"attn_q_norm", dim)
			d.norm(p+"attn_k_norm", dim)
		}
		if experts > 0 {
			d.experts(p, width, experts)
		} else {
			d.dense(p, "", width)
		}
	}
}

func (d *drawing) gptOSS() {
	d.common()
	heads, kv := d.heads()
	dim := d.headDim()
	rot := d.rotated(dim)
	d.key("attention.head_count", heads)
	d.key("attention.head_count_kv", kv)
	d.key("attention.key_length", dim)
	d.key("rope.dimension_count", rot)
	d.rope(rot)
	if d.odds(4) {
		d.key("rope.freq_base_swa", float32(5000))
	}
	d.key("attention.sliding_window", d.from(1, 90))
	if d.odds(3) {
		d.key("attention.sliding_window_pattern", d.pattern(d.layers))
	}
	experts, width := d.expertKeys()
	for i := range d.layers {
		d.cached(i, dim)
		p := fmt.Sprintf("blk.%d.", i)
		d.norm(p+"attn_norm", d.hidden)
		d.norm(p+"post_attention_norm", d.hidden)
		d.qkv(p, heads*dim, kv*dim, false)
		d.matrix(p+"attn_output", heads*dim, d.hidden)
		d.vector(p+"attn_q.bias", 0, 0.5, heads*dim)
		d.vector(p+"attn_k.bias", 0, 0.5, kv*dim)
		d.vector(p+"attn_v.bias", 0, 0.5, kv*dim)
		d.vector(p+"attn_output.bias", 0, 0.3, d.hidden)
		d.vector(p+"attn_sinks.weight", 0, 2, heads)
		d.experts(p, width, experts)
		d.vector(p+"ffn_gate_inp.bias", 0, 1, experts)
		if d.Tensor(p+"ffn_gate_up_exps.weight") != nil {
			d.vector(p+"ffn_gate_up_exps.bias", 0, 4, 2*width, experts) // some beyond the limit of 7
		} else {
			d.vector(p+"ffn_gate_exps.bias", 0, 4, width, experts)
			d.vector(p+"ffn_up_exps.bias", 0, 4, width, experts)
		}
		d.vector(p+"ffn_down_exps.bias", 0, 0.5, d.hidden, experts)
	}
}

func (d *drawing) qkv(p string, q, kv int, joined bool) {
	if joined {
		d.matrix(p+"attn_qkv", d.hidden, q+2*kv)
		return
	}
	d.matrix(p+"attn_q", d.hidden, q)
	d.matrix(p+"attn_k", d.hidden, kv)
	d.matrix(p+"attn_v", d.hidden, kv)
}

func (d *drawing) dense(p, suffix string, width int) {
	d.matrix(p+"ffn_gate"+suffix, d.hidden, width)
	d.matrix(p+"ffn_up"+suffix, d.hidden, width)
	d.matrix(p+"ffn_down"+suffix, width, d.hidden)
}

// expertKeys draws experts; they are narrow, since there are many.
func (d *drawing) expertKeys() (experts, width int) {
	experts = d.from(1, 12)
	width = pick(d, d.from(1, 60), 32, 64, 96)
	if d.odds(6) {
		width = 512
	}
	d.key("expert_count", experts)
	d.key("expert_used_count", d.from(1, min(experts, 5)))
	d.key("expert_feed_forward_length", width)
	if d.arch != "gemma4" && d.odds(3) {
		d.key("expert_weights_scale", pick(d, float32(2.5), 0.5, 0))
	}
	return experts, width
}

func (d *drawing) experts(p string, width, experts int) {
	d.sized(p+"ffn_gate_inp", 3, d.hidden, experts)
	if d.odds(2) {
		d.matrix(p+"ffn_gate_up_exps", d.hidden, 2*width, experts)
	} else {
		d.matrix(p+"ffn_gate_exps", d.hidden, width, experts)
		d.matrix(p+"ffn_up_exps", d.hidden, width, experts)
	}
	d.matrix(p+"ffn_down_exps", width, d.hidden, experts)
}

func (d *drawing) qwen35() {
	d.common()
	heads, kv := d.heads()
	dim := d.headDim()
	rot := d.rotated(dim)
	d.key("attention.head_count", heads)
	d.key("attention.head_count_kv", kv)
	d.key("attention.key_length", dim)
	d.key("rope.dimension_count", rot)
	d.key("rope.freq_base", pick(d, float32(10000), 1e7))
	if n := rot / 2; d.arch != "qwen3next" {
		d.key("rope.dimension_sections", []int32{int32(n+2) / 3, int32(n+1) / 3, int32(n) / 3, 0})
	}
	kHeads, times := d.from(1, 3), d.from(1, 3)
	state, taps := pick(d, d.from(1, 40), 16, 32, 64, 128), pick(d, d.from(2, 8), 4) // 128 and 4 have kernels of their own
	vHeads := kHeads * times
	d.key("ssm.group_count", kHeads)
	d.key("ssm.time_step_rank", vHeads)
	d.key("ssm.state_size", state)
	d.key("ssm.conv_kernel", taps)
	d.key("ssm.inner_size", vHeads*state)
	experts, width, shared := 0, d.width(), 0
	if d.arch != "qwen35" && (d.arch == "qwen35moe" || !d.odds(4)) {
		experts, width = d.expertKeys()
		shared = d.width()
		d.key("expert_shared_feed_forward_length", shared)
	} else {
		d.key("feed_forward_length", width)
	}
	every := d.from(1, 4)
	recurrent := make([]bool, d.layers)
	listed := d.odds(2)
	for i := range recurrent {
		if recurrent[i] = (i+1)%every != 0; listed {
			recurrent[i] = d.odds(2)
		}
	}
	mtp := d.odds(2)
	if d.key("full_attention_interval", every); mtp {
		d.key("block_count", d.layers+1)
		d.key("nextn_predict_layers", 1)
		recurrent = append(recurrent, false)
	}
	if listed {
		d.key("attention.recurrent_layers", recurrent)
	}
	for i, r := range recurrent {
		d.cached(i, dim)
		p := fmt.Sprintf("blk.%d.", i)
		d.norm(p+"attn_norm", d.hidden)
		d.norm(p+"post_attention_norm", d.hidden)
		if r {
			d.deltaNet(p, kHeads, vHeads, state, taps)
		} else {
			d.qkv(p, 2*heads*dim, kv*dim, d.odds(5))
			d.matrix(p+"attn_output", heads*dim, d.hidden)
			d.norm(p+"attn_q_norm", dim)
			d.norm(p+"attn_k_norm", dim)
		}
		if experts > 0 {
			d.experts(p, width, experts)
			d.dense(p, "_shexp", shared)
			d.matrix(p+"ffn_gate_inp_shexp", d.hidden, 1)
		} else {
			d.dense(p, "", width)
		}
		if i == d.layers {
			d.matrix(p+"nextn.eh_proj", 2*d.hidden, d.hidden)
			d.norm(p+"nextn.enorm", d.hidden)
			d.norm(p+"nextn.hnorm", d.hidden)
			if d.odds(2) {
				d.norm(p+"nextn.shared_head_norm", d.hidden)
			}
			if d.odds(3) {
				d.matrix(p+"nextn.shared_head_head", d.hidden, d.vocab)
			}
			if d.odds(3) {
				d.matrix(p+"nextn.embed_tokens", d.hidden, d.vocab)
			}
		}
	}
}

func (d *drawing) deltaNet(p string, kHeads, vHeads, dim, taps int) {
	keys, values := kHeads*dim, vHeads*dim
	if d.arch == "qwen3next" && d.odds(2) {
		d.matrix(p+"ssm_in", d.hidden, 2*keys+2*values)
	} else {
		d.matrix(p+"attn_qkv", d.hidden, 2*keys+values)
		d.matrix(p+"attn_gate", d.hidden, values)
	}
	if d.arch == "qwen3next" {
		d.matrix(p+"ssm_ba", d.hidden, 2*vHeads)
	} else {
		d.matrix(p+"ssm_alpha", d.hidden, vHeads)
		d.matrix(p+"ssm_beta", d.hidden, vHeads)
	}
	d.vector(p+"ssm_conv1d.weight", 0.2, 0.4, taps, 2*keys+values)
	d.vector(p+"ssm_a", -1, 0.3, vHeads)
	d.vector(p+"ssm_dt.bias", -1, 1, vHeads)
	d.norm(p+"ssm_norm", dim)
	d.matrix(p+"ssm_out", values, d.hidden)
}

// pattern draws which layers have a window.
func (d *drawing) pattern(n int) []bool {
	v := make([]bool, n)
	for i := range v {
		v[i] = d.odds(2)
	}
	return v
}

// gemmaDims is what an assistant has to know of its target.
type gemmaDims struct {
	slides          []bool
	dim, slideDim   int
	window          int
	rot, rotSlide   int
	kv              []int // of each layer
	base, slideBase float32
	factors         *gguf.Tensor
}

func (d *drawing) gemma(mixed bool) {
	d.common()
	g := gemmaDims{dim: d.headDim(), slideDim: d.headDim(), window: d.from(1, 90), slides: d.pattern(d.layers)}
	g.rot, g.rotSlide = d.rotated(g.dim), d.rotated(g.slideDim)
	g.base, g.slideBase = pick(d, float32(1e6), 5e4), pick(d, float32(10000), 1000)
	heads := pick(d, 1, 2, 4, 6)
	of := []int{1, heads}
	if heads%2 == 0 {
		of = append(of, heads/2)
	}
	kvOf := map[bool]int{false: pick(d, of...), true: pick(d, of...)}
	shared := 0
	if d.odds(2) {
		shared = d.from(0, d.layers-1)
	}
	owners := map[bool]bool{}
	for i := range d.layers {
		if i >= d.layers-shared && !owners[g.slides[i]] {
			g.slides[i] = !g.slides[i] // nobody to share with
		}
		owners[g.slides[i]] = true
		g.kv = append(g.kv, kvOf[g.slides[i]])
	}
	d.key("attention.head_count", heads)
	if kvs := make([]int32, d.layers); kvOf[false] != kvOf[true] || d.odds(2) {
		for i, n := range g.kv {
			kvs[i] = int32(n)
		}
		d.key("attention.head_count_kv", kvs)
	} else {
		d.key("attention.head_count_kv", g.kv[0])
	}
	if shared > 0 || d.odds(2) {
		d.key("attention.shared_kv_layers", shared)
	}
	d.gemmaKeys(&g)
	if d.odds(2) {
		d.factors(g.rot)
		g.factors = d.Tensor("rope_freqs.weight")
	}
	if d.odds(2) {
		d.key("final_logit_softcapping", pick(d, float32(0), 30, 5))
	}
	own := 0
	if d.odds(3) {
		own = pick(d, d.from(1, 20), 32)
		d.matrix("per_layer_token_embd", own*d.layers, d.vocab)
		d.matrix("per_layer_model_proj", d.hidden, own*d.layers)
		d.norm("per_layer_proj_norm", own)
	}
	d.key("embedding_length_per_layer_input", own)
	widths := make([]int32, d.layers)
	if one, same := int32(d.width()), d.odds(2); same {
		d.key("feed_forward_length", uint32(one))
		for i := range widths {
			widths[i] = one
		}
	} else {
		for i := range widths {
			widths[i] = int32(d.width())
		}
		d.key("feed_forward_length", widths)
	}
	experts, width := 0, 0
	if mixed {
		experts, width = d.expertKeys()
	}
	for i, slides := range g.slides {
		p, dim := fmt.Sprintf("blk.%d.", i), g.dim
		if slides {
			dim = g.slideDim
		}
		d.cached(i, dim)
		d.gemmaLayer(p, heads*dim, dim, int(widths[i]))
		if i < d.layers-shared || d.odds(2) { // tensors that are not used
			d.matrix(p+"attn_k", d.hidden, g.kv[i]*dim)
			d.vector(p+"attn_k_norm.weight", 1/math.Sqrt(float64(dim)), 0.1/math.Sqrt(float64(dim)), dim)
			if d.odds(2) {
				d.matrix(p+"attn_v", d.hidden, g.kv[i]*dim)
			}
		}
		if mixed && !d.odds(4) {
			d.experts(p, width, experts)
			d.vector(p+"ffn_gate_inp.scale", math.Sqrt(float64(d.hidden)), 0.2, d.hidden)
			if d.Tensor(p+"ffn_down_exps.weight").Type != quant.NVFP4 && d.odds(2) {
				d.vector(p+"ffn_down_exps.scale", 1, 0.3, experts)
			}
			d.norm(p+"pre_ffw_norm_2", d.hidden)
			d.norm(p+"post_ffw_norm_1", d.hidden)
			d.norm(p+"post_ffw_norm_2", d.hidden)
		}
		if own > 0 {
			d.matrix(p+"inp_gate", d.hidden, own)
			d.matrix(p+"proj", own, d.hidden)
			d.norm(p+"post_norm", d.hidden)
		}
	}
	d.gemmaDims = g
}

func (d *drawing) gemmaKeys(g *gemmaDims) {
	d.key("attention.key_length", g.dim)
	d.key("attention.key_length_swa", g.slideDim)
	d.key("attention.sliding_window", g.window)
	d.key("attention.sliding_window_pattern", g.slides)
	d.key("rope.dimension_count", g.rot)
	d.key("rope.dimension_count_swa", g.rotSlide)
	d.key("rope.freq_base", g.base)
	d.key("rope.freq_base_swa", g.slideBase)
}

// gemmaLayer adds what layers of targets and assistants have.
func (d *drawing) gemmaLayer(p string, q, dim, width int) {
	d.norm(p+"attn_norm", d.hidden)
	d.norm(p+"post_attention_norm", d.hidden)
	d.norm(p+"ffn_norm", d.hidden)
	d.norm(p+"post_ffw_norm", d.hidden)
	d.matrix(p+"attn_q", d.hidden, q)
	d.matrix(p+"attn_output", q, d.hidden)
	d.norm(p+"attn_q_norm", dim)
	d.dense(p, "", width)
	if d.odds(2) {
		d.vector(p+"layer_output_scale.weight", 1, 0.3, 1)
	}
}

// drawAssistant draws an assistant of a Gemma target.
func (d *drawing) drawAssistant() {
	g, target := d.gemmaDims, d.hidden
	d.begin("gemma4-assistant")
	d.assistant = d.File
	d.hidden = 16 * d.from(1, 6)
	n := d.from(1, 4)
	of := g.slides
	g.slides = nil
	kv := 1
	for range n {
		at := d.IntN(len(of))
		g.slides = append(g.slides, of[at])
		kv *= g.kv[at] / gcd(kv, g.kv[at])
	}
	heads := kv * d.from(1, 2)
	d.key("block_count", n)
	d.key("nextn_predict_layers", n)
	d.key("embedding_length", d.hidden)
	d.key("embedding_length_out", target)
	d.key("attention.head_count", heads)
	d.gemmaKeys(&g)
	if g.factors != nil {
		d.Tensors = append(d.Tensors, g.factors)
	}
	width := d.width()
	d.key("feed_forward_length", width)
	d.matrix("nextn.pre_projection", 2*target, d.hidden)
	d.matrix("nextn.post_projection", d.hidden, target)
	d.matrix("token_embd", d.hidden, d.vocab)
	d.norm("output_norm", d.hidden)
	for i, slides := range g.slides {
		dim := g.dim
		if slides {
			dim = g.slideDim
		}
		d.gemmaLayer(fmt.Sprintf("blk.%d.", i), heads*dim, dim, width)
	}
	d.hidden = target
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// drawDrafter draws a DFlash drafter with any of its parts.
func (d *drawing) drawDrafter() {
	arch, taps := d.arch, d.from(1, 3)
	// The three ways to write such a file down.
	name := pick(d, "dflash", "dflash-draft", "gemma4-dflash-draft")
	prefix, fc, norm := "dflash.", "dflash.fc", "dflash.hidden_norm"
	first := -1 // what the file calls the embeddings
	switch name {
	case "dflash":
		prefix, fc, norm, first = "", "fc", "enc.output_norm", 0
	case "dflash-draft":
		fc, norm = "dflash_fc", "dflash_hidden_norm"
	}
	d.begin(name)
	d.drafter = d.File
	layers := d.from(1, 3)
	heads, kv := d.heads()
	dim, width := pick(d, 8, 16, 20, 32, 64), d.width()
	ids := make([]int32, taps)
	for i := range ids {
		ids[i] = int32(d.from(max(first, 0), d.layers+first))
	}
	d.key("block_count", layers)
	d.key("embedding_length", d.hidden)
	d.key("attention.head_count", heads)
	d.key("attention.head_count_kv", kv)
	d.key("attention.key_length", dim)
	d.key("feed_forward_length", width)
	d.key(prefix+"block_size", d.from(2, 17))
	if prefix == "" {
		d.key("target_layers", ids)
		d.Set("tokenizer.ggml.mask_token_id", uint32(d.IntN(d.vocab)))
	} else {
		d.key("dflash.target_layer_ids", ids)
		d.key("dflash.mask_token_id", d.IntN(d.vocab))
	}
	if d.odds(2) {
		d.key("attention.sliding_window", d.from(1, 70))
		d.key("attention.sliding_window_pattern", d.pattern(layers))
	}
	if d.odds(2) {
		d.key("attention.causal", d.odds(2))
	}
	if d.odds(4) {
		d.key("hidden_activation", "gelu")
	}
	d.matrix(fc, taps*d.hidden, d.hidden)
	d.norm(norm, d.hidden)
	d.norm("output_norm", d.hidden)
	outputs := d.vocab
	if d.odds(4) {
		d.matrix("token_embd", d.hidden, d.vocab)
	}
	if d.odds(4) {
		if d.odds(2) { // a vocabulary of its own
			outputs = d.from(1, d.vocab)
			var data []byte
			for range outputs {
				data = binary.LittleEndian.AppendUint64(data, uint64(d.IntN(d.vocab)))
			}
			d.Tensors = append(d.Tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{outputs}, Data: data})
		}
		d.matrix("output", d.hidden, outputs)
	}
	rank := pick(d, d.from(1, 20), 32)
	switch d.IntN(4) {
	case 0:
		d.matrix("markov_w1", rank, d.vocab)
		d.matrix("markov_w2", rank, outputs)
		if d.odds(2) {
			d.key("sample_from_anchor", d.odds(2))
		}
		if d.odds(2) {
			d.matrix("conf_proj", d.hidden+rank, 1)
			d.vector("conf_proj.bias", 0, 1, 1)
			d.least = pick(d, float32(0), 0.4)
		}
	case 1:
		top := d.from(1, 4)
		if top*(top+1) <= d.hidden {
			d.key("selector_rank", rank)
			d.key("selector_top_k", top)
			d.least = pick(d, float32(0), 0.4)
			d.matrix("selector_predecessor", rank, d.vocab)
			d.matrix("selector_successor", rank, d.vocab)
			d.matrix("selector_hidden", d.hidden, rank)
		}
	}
	kernel, group := 0, 1
	if d.odds(4) {
		kernel = d.from(1, 4)
		for group = d.from(1, d.hidden); d.hidden%group != 0; group-- {
		}
		d.key("conv_kernel_size", kernel)
		d.key("conv_group_size", group)
	}
	for i := range layers {
		p := fmt.Sprintf("blk.%d.", i)
		d.norm(p+"attn_norm", d.hidden)
		d.norm(p+"ffn_norm", d.hidden)
		d.matrix(p+"attn_q", d.hidden, heads*dim)
		d.matrix(p+"attn_k", d.hidden, kv*dim)
		if !d.odds(4) {
			d.matrix(p+"attn_v", d.hidden, kv*dim)
		}
		d.matrix(p+"attn_output", heads*dim, d.hidden)
		d.norm(p+"attn_q_norm", dim)
		d.norm(p+"attn_k_norm", dim)
		d.dense(p, "", width)
		if d.odds(3) {
			d.vector(p+"attn_sinks.weight", 0, 1, heads)
		}
		if d.odds(3) {
			d.norm(p+"post_attention_norm", d.hidden)
			d.norm(p+"post_ffw_norm", d.hidden)
		}
		if kernel > 0 {
			for _, half := range []string{"attn_conv_", "ffn_conv_"} {
				d.matrix(p+half+"proj", d.hidden, 2*kernel*(d.hidden/group))
				d.vector(p+half+"base", 0.3, 0.3, d.hidden, kernel, 2)
			}
		}
	}
	d.arch = arch
}
