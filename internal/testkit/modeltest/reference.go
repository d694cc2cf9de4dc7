package modeltest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// reference computes a model in float64 from the published definitions of the architectures, a layer after the other, a
// position after the other, one value after the other. It shares no code with package model and looks at nothing but
// the keys and tensors of the file.
type reference struct {
	t       testing.TB
	f       *gguf.File
	arch    string
	decoded map[string][]float64
	own     [][]float64 // Gemma: what the layers are told of each token, one after the other
	kept    []kept      // keys and values of each layer
	images  []Picture
	inputs  [][][]float64 // of each layer, and what the last one left
}

// Picture is an image in a text: rows instead of tokens.
type Picture struct {
	At, W, H int
	Rows     []float32
}

// kept is what a layer of attention remembers of each position.
type kept struct{ keys, values [][]float64 }

// Reference returns the logits of all positions. Tokens below 0 are rows of images.
func Reference(t testing.TB, f *gguf.File, tokens []int32, images ...Picture) (logits []float32) {
	t.Helper()
	r, xs := run(t, f, tokens, images...)
	head, top := "output.weight", 0.0
	if f.Tensor(head) == nil {
		head = "token_embd.weight"
	}
	if r.gemma() {
		top = r.or("final_logit_softcapping", 30)
	}
	for _, x := range xs {
		for _, v := range r.times(head, r.norm("output_norm.weight", x)) {
			if top > 0 {
				v = top * math.Tanh(v/top)
			}
			logits = append(logits, float32(v))
		}
	}
	return logits
}

// run takes tokens through the layers: what it returns is their states after the last one.
func run(t testing.TB, f *gguf.File, tokens []int32, images ...Picture) (r *reference, xs [][]float64) {
	t.Helper()
	r = &reference{t: t, f: f, arch: f.Arch(), decoded: map[string][]float64{}, images: images}
	hidden, layers := int(r.key("embedding_length")), int(r.key("block_count")-r.or("nextn_predict_layers", 0))
	r.kept = make([]kept, layers)
	embed := r.values("token_embd.weight")
	xs = make([][]float64, len(tokens))
	for i, id := range tokens {
		if id < 0 {
			p, at := r.picture(i)
			for _, v := range p.Rows[at*hidden:][:hidden] {
				xs[i] = append(xs[i], float64(v))
			}
			continue
		}
		xs[i] = slices.Clone(embed[int(id)*hidden:][:hidden])
		if r.gemma() {
			scale(xs[i], math.Sqrt(float64(hidden)))
		}
	}
	if r.gemma() {
		r.embedLayers(tokens, xs, layers)
	}
	note := func() {
		var all [][]float64
		for _, x := range xs {
			all = append(all, slices.Clone(x))
		}
		r.inputs = append(r.inputs, all)
	}
	for il := range layers {
		note()
		r.layer(il, layers, xs)
	}
	note()
	return r, xs
}

// picture is the image that has a row at an index, and the number of the row; nil for none.
func (r *reference) picture(index int) (*Picture, int) {
	for i := range r.images {
		if p := &r.images[i]; index >= p.At && index < p.At+p.W*p.H {
			return p, index - p.At
		}
	}
	return nil, 0
}

// position is the place of an index on three axes. Only files with sections of rotary dimensions have them.
func (r *reference) position(index int) [3]int {
	_, ok := r.f.Kind(r.arch + ".rope.dimension_sections")
	if !ok {
		return [3]int{index, index, index}
	}
	next := 0 // position
	for at := 0; ; at++ {
		p, i := r.picture(at)
		if p == nil {
			if at == index {
				return [3]int{next, next, next}
			}
			next++
			continue
		}
		if at == index {
			return [3]int{next, next + i/p.W, next + i%p.W}
		}
		if i == p.W*p.H-1 {
			next += max(p.W, p.H)
		}
	}
}

// axis is the one that turns a pair.
func (r *reference) axis(pair int) int {
	v, ok, _ := r.f.Ints(r.arch + ".rope.dimension_sections")
	if a := pair % 3; ok && pair < 3*int(v[a]) {
		return a
	}
	return 0
}

func (r *reference) gemma() bool { return r.arch == "gemma4" }
func (r *reference) oss() bool   { return r.arch == "gpt-oss" }

// hybrid architectures have layers without attention.
func (r *reference) hybrid() bool {
	return r.arch == "qwen35" || r.arch == "qwen35moe" || r.arch == "qwen3next"
}

// or is the number of a key, or another one without it.
func (r *reference) or(name string, without float64) float64 {
	r.t.Helper()
	if k, ok := r.f.Kind(r.arch + "." + name); !ok || k.IsArray() {
		return without
	}
	return r.key(name)
}

func (r *reference) key(name string) float64 {
	r.t.Helper()
	v, ok, err := r.f.Float(r.arch + "." + name)
	if err != nil || !ok {
		r.t.Fatalf("key %s: %v", name, err)
	}
	return v
}

// at is the number of a key that may have one for each layer.
func (r *reference) at(name string, il int) int {
	if k, ok := r.f.Kind(r.arch + "." + name); !ok || !k.IsArray() {
		return int(r.key(name))
	}
	v, _, err := r.f.Ints(r.arch + "." + name)
	if err != nil {
		r.t.Fatal(err)
	}
	return int(v[il])
}

// says is the answer of a key that has one for each layer; false without it.
func (r *reference) says(name string, il int) (yes, ok bool) {
	v, ok, err := r.f.Bools(r.arch + "." + name)
	if err != nil {
		r.t.Fatal(err)
	}
	return ok && v[il], ok
}

// values are those of a tensor, nil if there is none.
func (r *reference) values(name string) []float64 {
	r.t.Helper()
	x := r.f.Tensor(name)
	if x == nil {
		return nil
	}
	if v := r.decoded[name]; v != nil {
		return v
	}
	v := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil {
		r.t.Fatal(err)
	}
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	if base, ok := strings.CutSuffix(name, ".weight"); ok && x.Type == quant.NVFP4 { // which may be scaled once more
		if by := r.values(base + ".scale"); by != nil {
			for i := range out {
				out[i] *= by[i*len(by)/len(out)]
			}
		}
	}
	r.decoded[name] = out
	return out
}

func (r *reference) times(name string, x []float64) []float64 {
	r.t.Helper()
	return product(r.values(name), x)
}

// product multiplies a matrix of rows as long as x.
func product(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for i := range y {
		for j, v := range x {
			y[i] += w[i*len(x)+j] * v
		}
	}
	return y
}

// norm is x in units of its root mean square, times weights if there are any.
func (r *reference) norm(name string, x []float64) []float64 {
	w, sum := r.values(name), 0.0
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum/float64(len(x))+r.or("attention.layer_norm_rms_epsilon", 1e-6))
		if w != nil {
			y[i] *= w[i]
		}
	}
	return y
}

// normHeads normalises heads of dim values in place.
func (r *reference) normHeads(name string, x []float64, dim int) {
	for at := 0; at < len(x); at += dim {
		copy(x[at:], r.norm(name, x[at:at+dim]))
	}
}

func add(x, y []float64, times float64) {
	for i := range x {
		x[i] += times * y[i]
	}
}

func scale(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func silu(x float64) float64    { return x * sigmoid(x) }

func gelu(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// rotation is how heads are turned.
type rotation struct {
	dims    int // the first of a head
	base    float64
	factors []float64 // divide frequencies
}

// turn rotates the pairs of a head: neighbours in Llama files, halves elsewhere.
func (r *reference) turn(x []float64, pos [3]int, t rotation) {
	kind, _, _ := r.f.String(r.arch + ".rope.scaling.type")
	stretch := r.or("rope.scaling.factor", r.or("rope.scale_linear", 1))
	size := 1.0
	if kind == "none" {
		stretch = 1
	}
	if stretch != 1 {
		size = r.or("rope.scaling.attn_factor", 1)
	}
	if kind == "yarn" && stretch != 1 {
		size *= (1 + 0.1*math.Log(stretch)) * r.or("rope.scaling.yarn_attn_factor", 1)
	}
	n := float64(t.dims)
	turns := func(beta float64) float64 { // the pair that turns so often in the original context
		original := r.or("rope.scaling.original_context_length", r.or("context_length", 0))
		return n * math.Log(original/(2*math.Pi*beta)) / (2 * math.Log(t.base))
	}
	for i := range t.dims / 2 {
		a, b := i, i+t.dims/2
		if r.arch == "llama" || r.arch == "eagle3" {
			a, b = 2*i, 2*i+1
		}
		angle := float64(pos[r.axis(i)]) / math.Pow(t.base, float64(2*i)/n)
		if t.factors != nil {
			angle /= t.factors[i]
		}
		if kind == "yarn" && stretch != 1 {
			low := max(0, math.Floor(turns(r.or("rope.scaling.yarn_beta_fast", 32))))
			high := min(n-1, math.Ceil(turns(r.or("rope.scaling.yarn_beta_slow", 1))))
			stays := (1 - min(1, max(0, (float64(i)-low)/max(0.001, high-low)))) * r.or("rope.scaling.yarn_ext_factor", 1)
			angle *= (1-stays)/stretch + stays
		} else {
			angle /= stretch
		}
		sin, cos := math.Sincos(angle)
		x[a], x[b] = size*(x[a]*cos-x[b]*sin), size*(x[a]*sin+x[b]*cos)
	}
}

// embedLayers computes what Gemma tells each layer of each token.
func (r *reference) embedLayers(tokens []int32, xs [][]float64, layers int) {
	dim := int(r.or("embedding_length_per_layer_input", 0))
	if dim == 0 {
		return
	}
	table := r.values("per_layer_token_embd.weight")
	for i, x := range xs {
		b := r.times("per_layer_model_proj.weight", x)
		scale(b, 1/math.Sqrt(float64(len(x))))
		r.normHeads("per_layer_proj_norm.weight", b, dim)
		add(b, table[max(0, int(tokens[i]))*dim*layers:][:dim*layers], math.Sqrt(float64(dim)))
		scale(b, math.Sqrt(0.5))
		r.own = append(r.own, b)
	}
}

// layer takes all positions through a layer.
func (r *reference) layer(il, layers int, xs [][]float64) {
	p := fmt.Sprintf("blk.%d.", il)
	hs := make([][]float64, len(xs))
	for i, x := range xs {
		hs[i] = r.norm(p+"attn_norm.weight", x)
	}
	if r.recurrent(il) {
		hs = r.delta(p, hs)
	} else {
		hs = r.attention(il, layers, hs)
	}
	for i, x := range xs {
		if r.gemma() {
			add(x, r.norm(p+"post_attention_norm.weight", hs[i]), 1)
			add(x, r.norm(p+"post_ffw_norm.weight", r.feedGemma(p, x)), 1)
			if r.own != nil {
				n := len(r.own[i]) / layers
				g := r.times(p+"inp_gate.weight", x)
				for j, v := range r.own[i][il*n:][:n] {
					g[j] = gelu(g[j]) * v
				}
				add(x, r.norm(p+"post_norm.weight", r.times(p+"proj.weight", g)), 1)
			}
			if s := r.values(p + "layer_output_scale.weight"); s != nil {
				scale(x, s[0])
			}
			continue
		}
		add(x, hs[i], 1)
		norm := "ffn_norm.weight"
		if r.hybrid() || r.oss() {
			norm = "post_attention_norm.weight"
		}
		add(x, r.feed(p, r.norm(p+norm, x)), 1)
	}
}

// recurrent reports whether a layer is one without attention.
func (r *reference) recurrent(il int) bool {
	if !r.hybrid() {
		return false
	}
	if yes, ok := r.says("attention.recurrent_layers", il); ok {
		return yes
	}
	return (il+1)%int(r.or("full_attention_interval", 4)) != 0
}

// part is some rows of a tensor, or all of another one.
func (r *reference) part(name, of string, from, n, cols int) []float64 {
	if v := r.values(name); v != nil {
		return v
	}
	v := r.values(of)
	if v == nil {
		return nil
	}
	return v[from*cols:][:n*cols]
}

func (r *reference) attention(il, layers int, hs [][]float64) (out [][]float64) {
	p, hidden := fmt.Sprintf("blk.%d.", il), len(hs[0])
	heads := int(r.key("attention.head_count"))
	dim := int(r.or("attention.key_length", float64(hidden/heads)))
	t := rotation{base: r.or("rope.freq_base", 10000), factors: r.values("rope_freqs.weight")}
	by, window, owner := 1/math.Sqrt(float64(dim)), 0, il
	if r.gemma() {
		t.base = r.or("rope.freq_base", 1e6)
		by = 1
		slides, _ := r.says("attention.sliding_window_pattern", il)
		for owner >= layers-int(r.or("attention.shared_kv_layers", 0)) {
			for owner--; owner >= 0; owner-- {
				if same, _ := r.says("attention.sliding_window_pattern", owner); same == slides {
					break
				}
			}
		}
		if slides {
			window = int(r.key("attention.sliding_window"))
			dim = int(r.or("attention.key_length_swa", float64(dim)))
			t = rotation{dims: int(r.or("rope.dimension_count_swa", float64(dim))), base: r.or("rope.freq_base_swa", 10000)}
		}
	}
	if r.oss() {
		slides, ok := r.says("attention.sliding_window_pattern", il)
		if !ok {
			slides = il%2 == 0
		}
		if slides {
			window = int(r.key("attention.sliding_window"))
			t.base = r.or("rope.freq_base_swa", t.base)
		}
	}
	if t.dims == 0 {
		t.dims = int(r.or("rope.dimension_count", float64(dim)))
	}
	kv := heads
	if _, ok := r.f.Kind(r.arch + ".attention.head_count_kv"); ok {
		kv = r.at("attention.head_count_kv", owner)
	}
	queries := 1 // and a gate
	if r.hybrid() {
		queries = 2
	}
	qw, kw := queries*heads*dim, kv*dim
	project := func(name string, from, n int, h []float64) []float64 {
		y := product(r.part(p+name+".weight", p+"attn_qkv.weight", from, n, hidden), h)
		for i, b := range r.values(p + name + ".bias") {
			y[i] += b
		}
		return y
	}
	ready := func(y []float64, norm string, pos [3]int) {
		if r.f.Tensor(p+norm) != nil {
			r.normHeads(p+norm, y, dim)
		}
		for at := 0; at < len(y); at += dim {
			r.turn(y[at:at+dim], pos, t)
		}
	}
	for pos, h := range hs {
		if owner == il {
			k := project("attn_k", qw, kw, h)
			v := slices.Clone(k)
			if !r.gemma() || r.f.Tensor(p+"attn_v.weight") != nil {
				v = project("attn_v", qw+kw, kw, h)
			}
			if r.gemma() {
				r.normHeads("", v, dim)
			}
			ready(k, "attn_k_norm.weight", r.position(pos))
			r.kept[il].keys, r.kept[il].values = append(r.kept[il].keys, k), append(r.kept[il].values, v)
		}
	}
	for pos, h := range hs {
		both := project("attn_q", 0, qw, h)
		q, gate := both, []float64(nil)
		if queries == 2 {
			q = nil
			for at := 0; at < len(both); at += 2 * dim {
				q, gate = append(q, both[at:at+dim]...), append(gate, both[at+dim:at+2*dim]...)
			}
		}
		ready(q, "attn_q_norm.weight", r.position(pos))
		from, to := 0, pos+1
		if window > 0 {
			from = max(0, to-window)
			if p, _ := r.picture(pos); p != nil && r.own == nil { // its rows see each other
				to = p.At + p.W*p.H
			}
		}
		o := attend(q, r.kept[owner], r.values(p+"attn_sinks.weight"), from, to, heads, kv, dim, by)
		for i, g := range gate {
			o[i] *= sigmoid(g)
		}
		y := r.times(p+"attn_output.weight", o)
		for i, b := range r.values(p + "attn_output.bias") {
			y[i] += b
		}
		out = append(out, y)
	}
	return out
}

// attend is softmax attention of the heads of one position over some positions. A sink, if there are any, is one more
// logit of its head, without a value.
func attend(q []float64, c kept, sinks []float64, from, to, heads, kv, dim int, by float64) []float64 {
	out := make([]float64, heads*dim)
	for head := range heads {
		at, sum, top := head/(heads/kv)*dim, 0.0, math.Inf(-1)
		weights := make([]float64, to)
		for i := from; i < to; i++ {
			for d := range dim {
				weights[i] += by * q[head*dim+d] * c.keys[i][at+d]
			}
			top = max(top, weights[i])
		}
		if sinks != nil {
			top = max(top, sinks[head])
			sum = math.Exp(sinks[head] - top)
		}
		for i := from; i < to; i++ {
			weights[i] = math.Exp(weights[i] - top)
			sum += weights[i]
		}
		for i := from; i < to; i++ {
			for d := range dim {
				out[head*dim+d] += weights[i] / sum * c.values[i][at+d]
			}
		}
	}
	return out
}

// delta is a layer of the gated delta rule.
func (r *reference) delta(p string, hs [][]float64) (out [][]float64) {
	kHeads, vHeads := int(r.key("ssm.group_count")), int(r.key("ssm.time_step_rank"))
	dim, taps := int(r.key("ssm.state_size")), int(r.key("ssm.conv_kernel"))
	keys, per := kHeads*dim, vHeads/kHeads
	conv, rate, bias := r.values(p+"ssm_conv1d.weight"), r.values(p+"ssm_a"), r.values(p+"ssm_dt.bias")
	states := make([][]float64, vHeads) // of each head: what a key says, value by value
	for h := range states {
		states[h] = make([]float64, dim*dim)
	}
	var us [][]float64
	for _, h := range hs {
		u, z, alpha, beta := r.deltaInputs(p, h, kHeads, vHeads, dim)
		us = append(us, u)
		y := make([]float64, len(u))
		for c := range y {
			for j := range taps {
				if at := len(us) - taps + j; at >= 0 {
					y[c] += conv[c*taps+j] * us[at][c]
				}
			}
			y[c] = silu(y[c])
		}
		for at := 0; at < 2*keys; at += dim {
			sum := r.or("attention.layer_norm_rms_epsilon", 1e-6)
			for _, v := range y[at : at+dim] {
				sum += v * v
			}
			scale(y[at:at+dim], 1/math.Sqrt(sum))
		}
		o := make([]float64, vHeads*dim)
		for head, s := range states {
			kh := head % kHeads
			if r.arch == "qwen3next" {
				kh = head / per
			}
			q, k, v := y[kh*dim:][:dim], y[keys+kh*dim:][:dim], y[2*keys+head*dim:][:dim]
			scale(s, math.Exp(rate[head]*math.Log1p(math.Exp(alpha[head]+bias[head]))))
			for i := range dim {
				said := 0.0
				for j := range dim {
					said += s[i*dim+j] * k[j]
				}
				add(s[i*dim:][:dim], k, sigmoid(beta[head])*(v[i]-said))
				for j := range dim {
					o[head*dim+i] += s[i*dim+j] * q[j] / math.Sqrt(float64(dim))
				}
			}
		}
		r.normHeads(p+"ssm_norm.weight", o, dim)
		for i := range o {
			o[i] *= silu(z[i])
		}
		out = append(out, r.times(p+"ssm_out.weight", o))
	}
	return out
}

// deltaInputs are the projections of a row: those for the convolution, the output gate, decay and strength of each
// head. Files of Qwen3-Next have some of them together, key head by key head.
func (r *reference) deltaInputs(p string, h []float64, kHeads, vHeads, dim int) (u, z, alpha, beta []float64) {
	per := vHeads / kHeads
	if both := r.values(p + "ssm_in.weight"); both != nil {
		var q, k, v []float64
		all := product(both, h)
		for len(all) > 0 {
			for _, part := range []struct {
				to *[]float64
				n  int
			}{{&q, dim}, {&k, dim}, {&v, per * dim}, {&z, per * dim}} {
				*part.to, all = append(*part.to, all[:part.n]...), all[part.n:]
			}
		}
		u = slices.Concat(q, k, v)
	} else {
		u, z = r.times(p+"attn_qkv.weight", h), r.times(p+"attn_gate.weight", h)
	}
	if both := r.values(p + "ssm_ba.weight"); both != nil {
		all := product(both, h)
		for at := 0; at < len(all); at += 2 * per {
			beta, alpha = append(beta, all[at:at+per]...), append(alpha, all[at+per:at+2*per]...)
		}
		return u, z, alpha, beta
	}
	return u, z, r.times(p+"ssm_alpha.weight", h), r.times(p+"ssm_beta.weight", h)
}

// clamped is the expert of gpt-oss: biases everywhere, bounded factors.
func clamped(gate, up, down, gateBias, upBias, downBias, h []float64) []float64 {
	g, u := product(gate, h), product(up, h)
	for i := range g {
		a, b := min(g[i]+gateBias[i], 7), max(-7, min(u[i]+upBias[i], 7))
		g[i] = a * sigmoid(1.702*a) * (b + 1)
	}
	y := product(down, g)
	add(y, downBias, 1)
	return y
}

// gated is down(act(gate h) * (up h)).
func gated(gate, up, down, h []float64, act func(float64) float64) []float64 {
	g, u := product(gate, h), product(up, h)
	for i, v := range g {
		g[i] = act(v) * u[i]
	}
	return product(down, g)
}

// dense is the feed-forward layer of tensors with a suffix.
func (r *reference) dense(p, suffix string, h []float64, act func(float64) float64) []float64 {
	w := func(name string) []float64 { return r.values(p + name + suffix + ".weight") }
	return gated(w("ffn_gate"), w("ffn_up"), w("ffn_down"), h, act)
}

// feed is the feed-forward layer, or the experts with the shared one.
func (r *reference) feed(p string, h []float64) []float64 {
	if r.f.Tensor(p+"ffn_gate_inp.weight") == nil {
		return r.dense(p, "", h, silu)
	}
	if r.oss() {
		return r.experts(p, h, h, nil)
	}
	y := r.experts(p, h, h, silu)
	if w := r.values(p + "ffn_gate_inp_shexp.weight"); w != nil {
		add(y, r.dense(p, "_shexp", h, silu), sigmoid(product(w, h)[0]))
	}
	return y
}

// feedGemma is Gemma's, where experts come beside the dense layer.
func (r *reference) feedGemma(p string, x []float64) []float64 {
	y := r.dense(p, "", r.norm(p+"ffn_norm.weight", x), gelu)
	if r.f.Tensor(p+"ffn_gate_inp.weight") == nil {
		return y
	}
	y = r.norm(p+"post_ffw_norm_1.weight", y)
	router := r.norm(p+"ffn_gate_inp.scale", x)
	scale(router, 1/math.Sqrt(float64(len(x))))
	e := r.experts(p, r.norm(p+"pre_ffw_norm_2.weight", x), router, gelu)
	add(y, r.norm(p+"post_ffw_norm_2.weight", e), 1)
	return y
}

// experts is the sum of the most probable experts weighted by their probabilities among each other.
func (r *reference) experts(p string, h, router []float64, act func(float64) float64) []float64 {
	scores := r.times(p+"ffn_gate_inp.weight", router)
	if bias := r.values(p + "ffn_gate_inp.bias"); bias != nil {
		add(scores, bias, 1)
	}
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if scores[a] > scores[b] {
			return -1
		}
		return 1
	})
	order = order[:int(r.key("expert_used_count"))]
	sum, by := 0.0, r.or("expert_weights_scale", 1)
	if by == 0 { // as some files say it
		by = 1
	}
	for _, e := range order {
		sum += math.Exp(scores[e] - scores[order[0]])
	}
	y := make([]float64, len(h))
	part := func(name string, e int) []float64 {
		all := r.values(p + name)
		n := len(all) / len(scores)
		return all[e*n:][:n]
	}
	for _, e := range order {
		w := by * math.Exp(scores[e]-scores[order[0]]) / sum
		if s := r.values(p + "ffn_down_exps.scale"); s != nil && r.f.Tensor(p+"ffn_down_exps.weight").Type != quant.NVFP4 {
			w *= s[e]
		}
		down := part("ffn_down_exps.weight", e)
		if r.oss() {
			halves := func(end string) (gate, up []float64) {
				if r.f.Tensor(p+"ffn_gate_up_exps.weight") == nil {
					return part("ffn_gate_exps"+end, e), part("ffn_up_exps"+end, e)
				}
				both := part("ffn_gate_up_exps"+end, e)
				return both[:len(both)/2], both[len(both)/2:]
			}
			gate, up := halves(".weight")
			gateBias, upBias := halves(".bias")
			add(y, clamped(gate, up, down, gateBias, upBias, part("ffn_down_exps.bias", e), h), w)
			continue
		}
		if r.f.Tensor(p+"ffn_gate_up_exps.weight") != nil {
			both := part("ffn_gate_up_exps.weight", e)
			add(y, gated(both[:len(both)/2], both[len(both)/2:], down, h, act), w)
		} else {
			add(y, gated(part("ffn_gate_exps.weight", e), part("ffn_up_exps.weight", e), down, h, act), w)
		}
	}
	return y
}
