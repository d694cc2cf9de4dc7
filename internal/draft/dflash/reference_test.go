package dflash

import (
	"math"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/testkit/edit"
)

// reference is the drafter in float64, written down from its definition without regard to speed: every
// block recomputes the whole context. Names are upstream's.
type reference struct {
	e                  *drafterFile
	hidden, heads, kv  int
	dim, layers, block int
	mask               int32
	eps, theta, scale  float64
	rotated            int // dimensions of a head that turn
	inverse            []float64
	yarn, original     float64
	gelu               bool
	embScale           float64
	embed, head        []float64 // rows of hidden values
	logitScale, cap    float64   // selector only
	kernel, group      int       // convolutions
	// sees says whether the query at q sees the key at k, when the block starts at start.
	sees func(layer, q, k, start int) bool
}

// referenceOf describes a golden drafter and its target; tests change what they change in the file.
func referenceOf(t testing.TB, e *drafterFile, m *model.Model) *reference {
	t.Helper()
	r := &reference{e: e, hidden: 64, heads: 4, kv: 2, dim: 32, rotated: 32, layers: 3, mask: 507, eps: 1e-6, embScale: 1}
	r.block = int(e.get("dflash.block_size").(uint32))
	r.theta = float64(e.get("dflash.rope.freq_base").(float32))
	r.scale = 1 / math.Sqrt(32)
	target := edit.Golden(t, m.Arch)
	of := func(name string) []float64 { return wide(target.Values(t, name)) }
	r.embed = of("token_embd.weight")
	r.head = r.embed
	if target.Tensor("output.weight") != nil {
		r.head = of("output.weight")
	}
	if strings.HasPrefix(m.Arch, "gemma") {
		r.embScale = 8 // the root of the width
	}
	r.sees = r.windows(false, func(q, k, start, w int) bool { return q-k < w })
	return r
}

// windows is a rule with the file's sliding layers limited by limit and the block open or causal there.
func (r *reference) windows(causal bool, limit func(q, k, start, w int) bool) func(layer, q, k, start int) bool {
	w, _ := r.e.get("dflash.attention.sliding_window").(uint32)
	var slides []bool
	if a, ok := r.e.get("dflash.attention.sliding_window_pattern").(gguf.Array); ok {
		slides = a.Values.([]bool)
	}
	return func(layer, q, k, start int) bool {
		if slides == nil || !slides[layer] {
			return true
		}
		return limit(q, k, start, int(w)) && (!causal || k <= q)
	}
}

func (r *reference) has(name string) bool { return r.e.Tensor(name) != nil }

func mul(w []float64, x []float64) []float64 {
	n := len(w) / len(x)
	y := make([]float64, n)
	for i := range y {
		for j, v := range x {
			y[i] += w[i*len(x)+j] * v
		}
	}
	return y
}

func (r *reference) norm(x, w []float64) []float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	s = 1 / math.Sqrt(s/float64(len(x))+r.eps)
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * s
		if w != nil {
			y[i] *= w[i]
		}
	}
	return y
}

func (r *reference) heads32(x, w []float64) []float64 {
	var y []float64
	for h := 0; h < len(x); h += r.dim {
		y = append(y, r.norm(x[h:h+r.dim], w)...)
	}
	return y
}

func (r *reference) rotate(x []float64, pos int) []float64 {
	half := r.rotated / 2
	y := append([]float64(nil), x...)
	if len(r.inverse) == 0 {
		for i := range half {
			r.inverse = append(r.inverse, math.Pow(r.theta, -2*float64(i)/float64(r.rotated)))
		}
	}
	var factors []float64
	if r.has("rope_freqs.weight") {
		factors = r.e.values("rope_freqs.weight")
	}
	for h := 0; h < len(x); h += r.dim {
		for i := range half {
			a := float64(pos) * r.inverse[i]
			if factors != nil {
				a /= factors[i]
			}
			size := 1.0
			if r.yarn > 0 {
				at := func(beta float64) float64 {
					return float64(r.rotated) * math.Log(r.original/(2*math.Pi*beta)) / (2 * math.Log(r.theta))
				}
				low := math.Max(0, math.Floor(at(32)))
				high := math.Min(float64(r.rotated-1), math.Ceil(at(1)))
				ramp := 1 - math.Max(0, math.Min(1, (float64(i)-low)/math.Max(0.001, high-low)))
				a *= (1-ramp)/r.yarn + ramp
				size = 1 + 0.1*math.Log(r.yarn)
			}
			c, s := size*math.Cos(a), size*math.Sin(a)
			y[h+i] = x[h+i]*c - x[h+i+half]*s
			y[h+i+half] = x[h+i]*s + x[h+i+half]*c
		}
	}
	return y
}

// keyValue projects one row to the key and value of a layer.
func (r *reference) keyValue(p string, x []float64, pos int) (k, v []float64) {
	raw := mul(r.e.values(p+"attn_k.weight"), x)
	if r.has(p + "attn_v.weight") {
		v = mul(r.e.values(p+"attn_v.weight"), x)
	} else {
		v = r.heads32(raw, nil)
	}
	return r.rotate(r.heads32(raw, r.e.values(p+"attn_k_norm.weight")), pos), v
}

// run computes the final states and logits of a block after a context of feature rows.
func (r *reference) run(features []float64, tokens []int32) (final, logits [][]float64) {
	width := r.e.Tensor("fc.weight").Shape[0]
	n := len(features) / width
	var ctx [][]float64
	for t := range n {
		ctx = append(ctx, r.norm(mul(r.e.values("fc.weight"), features[t*width:][:width]),
			r.e.values("enc.output_norm.weight")))
	}
	var x [][]float64
	for _, id := range tokens {
		e := append([]float64(nil), r.embed[int(id)*r.hidden:][:r.hidden]...)
		for i := range e {
			e[i] *= r.embScale
		}
		x = append(x, e)
	}
	for il := range r.layers {
		r.layer(il, ctx, x, n)
	}
	for _, v := range x {
		u := r.norm(v, r.e.values("output_norm.weight"))
		final = append(final, u)
		logits = append(logits, mul(r.head, u))
	}
	return final, logits
}

func (r *reference) layer(il int, ctx, x [][]float64, n int) {
	p := "blk." + string(rune('0'+il)) + "."
	val := func(name string) []float64 { return r.e.values(p + name) }
	var ks, vs [][]float64
	for t, c := range ctx {
		k, v := r.keyValue(p, c, t)
		ks, vs = append(ks, k), append(vs, v)
	}
	var h [][]float64
	for _, v := range x {
		h = append(h, r.norm(v, val("attn_norm.weight")))
	}
	after := r.convolve(p+"attn_conv_", h)
	for t, v := range h {
		k, w := r.keyValue(p, v, n+t)
		ks, vs = append(ks, k), append(vs, w)
	}
	var out [][]float64
	for t, v := range h {
		q := r.rotate(r.heads32(mul(val("attn_q.weight"), v), val("attn_q_norm.weight")), n+t)
		out = append(out, mul(val("attn_output.weight"), r.attend(il, q, ks, vs, n+t, n)))
	}
	after(out)
	pre := "ffn_norm.weight"
	if !r.has(p + pre) {
		pre = "post_attention_norm.weight"
	}
	for t := range x {
		if pre == "ffn_norm.weight" && r.has(p+"post_attention_norm.weight") {
			out[t] = r.norm(out[t], val("post_attention_norm.weight"))
		}
		for i := range x[t] {
			x[t][i] += out[t][i]
		}
		h[t] = r.norm(x[t], val(pre))
	}
	after = r.convolve(p+"ffn_conv_", h)
	for t, v := range h {
		g, u := mul(val("ffn_gate.weight"), v), mul(val("ffn_up.weight"), v)
		for i, a := range g {
			if r.gelu {
				g[i] = 0.5 * a * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a))) * u[i]
			} else {
				g[i] = a / (1 + math.Exp(-a)) * u[i]
			}
		}
		out[t] = mul(val("ffn_down.weight"), g)
	}
	after(out)
	for t := range x {
		if r.has(p + "post_ffw_norm.weight") {
			out[t] = r.norm(out[t], val("post_ffw_norm.weight"))
		}
		scale := 1.0
		if r.has(p + "layer_output_scale.weight") {
			scale = val("layer_output_scale.weight")[0]
		}
		for i := range x[t] {
			x[t][i] = scale * (x[t][i] + out[t][i])
		}
	}
}

func (r *reference) attend(il int, q []float64, ks, vs [][]float64, pos, start int) []float64 {
	out := make([]float64, len(q))
	sinks := "blk." + string(rune('0'+il)) + ".attn_sinks.weight"
	for h := range r.heads {
		kh := h / (r.heads / r.kv)
		sum := 0.0
		if r.has(sinks) {
			sum = math.Exp(r.e.values(sinks)[h])
		}
		acc := make([]float64, r.dim)
		for k := range ks {
			if !r.sees(il, pos, k, start) {
				continue
			}
			s := 0.0
			for i := range r.dim {
				s += q[h*r.dim+i] * ks[k][kh*r.dim+i]
			}
			w := math.Exp(s * r.scale)
			sum += w
			for i := range r.dim {
				acc[i] += w * vs[k][kh*r.dim+i]
			}
		}
		for i := range r.dim {
			out[h*r.dim+i] = acc[i] / sum
		}
	}
	return out
}

// convolve replaces h by its convolution and returns what does the same for the output.
func (r *reference) convolve(name string, h [][]float64) func(out [][]float64) {
	if !r.has(name + "base") {
		return func([][]float64) {}
	}
	base, groups := r.e.values(name+"base"), r.hidden/r.group
	var dyn [][]float64
	for _, v := range h {
		dyn = append(dyn, mul(r.e.values(name+"proj.weight"), v))
	}
	side := func(s int, x [][]float64) {
		var y [][]float64
		for t := range x {
			row := make([]float64, r.hidden)
			for tap := range r.kernel {
				if t-tap < 0 {
					break
				}
				for c := range row {
					w := base[(s*r.kernel+tap)*r.hidden+c] + dyn[t][(s*r.kernel+tap)*groups+c/r.group]
					row[c] += w * x[t-tap][c]
				}
			}
			y = append(y, row)
		}
		copy(x, y)
	}
	side(0, h)
	return func(out [][]float64) { side(1, out) }
}

func (r *reference) tokens(last int32, n int) []int32 {
	ids := []int32{last}
	for len(ids) < n {
		ids = append(ids, r.mask)
	}
	return ids
}

func flat(rows [][]float64) (v []float32) {
	for _, r := range rows {
		for _, x := range r {
			v = append(v, float32(x))
		}
	}
	return v
}

func argmax(v []float64) int32 {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return int32(best)
}

// logSoftmax is the log-probability of entry i.
func logSoftmax(v []float64, i int32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += math.Exp(x - v[i])
	}
	return -math.Log(sum)
}
