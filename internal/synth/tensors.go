package synth

import (
	"fmt"
	"math"
)

// convTaps is the kernel length of the delta-net layers' convolution.
const convTaps = 4

// fill says what a tensor's values look like.
type fill int

const (
	random    fill = iota // zero mean, the tensor's own scale
	spread                // biases: zero mean, always float32
	nearOne               // norms and scales
	constant              // bounds of a vision tower: the scale itself
	decay                 // rates of the delta-net layers
	stepBias              // their step sizes
	taps                  // convolutions: mostly the current token
	factors               // rotary factors of Gemma's full-attention layers
	stretched             // rotary factors of Llama 3: short waves as they are, long ones longer
	tokenIDs              // target ids of a reduced vocabulary; the scale is the size of the whole one
)

// tensor is one weight of a model.
type tensor struct {
	name  string
	shape []int // GGUF order
	fill  fill
	scale float64 // standard deviation, or the value norms are near to
}

// list collects the tensors of a model.
type list struct{ out []tensor }

func (l *list) add(name string, f fill, scale float64, shape ...int) {
	l.out = append(l.out, tensor{name, shape, f, scale})
}

// matrix adds a weight that keeps the size of its input.
func (l *list) matrix(name string, shape ...int) {
	l.add(name+".weight", random, 1/math.Sqrt(float64(shape[0])), shape...)
}

func (l *list) norm(name string, n int) { l.add(name+".weight", nearOne, 1, n) }

// tensors lists the weights of a shape.
func (s *shape) tensors() []tensor {
	if s.class == eagleClass {
		return s.eagleTensors()
	}
	l := &list{}
	switch {
	case s.class == drafterClass:
		l.matrix("fc", len(s.capture)*s.hidden, s.hidden)
		l.norm("enc.output_norm", s.hidden)
	default:
		l.matrix("token_embd", s.hidden, s.vocab)
		if !s.tied {
			l.matrix("output", s.hidden, s.vocab)
		}
	}
	if s.gemma() {
		l.add("rope_freqs.weight", factors, 0.25, s.fullDim/2)
	}
	if s.class == llamaClass && !s.pieces {
		l.add("rope_freqs.weight", stretched, 8, s.headDim/2)
	}
	l.norm("output_norm", s.hidden)
	if s.class == assistantClass {
		l.matrix("nextn.pre_projection", 2*s.width, s.hidden)
		l.matrix("nextn.post_projection", s.hidden, s.width)
	}
	for i := range s.layers + s.mtp {
		p := fmt.Sprintf("blk.%d.", i)
		if i >= s.layers {
			l.matrix(p+"nextn.eh_proj", 2*s.hidden, s.hidden)
			l.norm(p+"nextn.enorm", s.hidden)
			l.norm(p+"nextn.hnorm", s.hidden)
			l.norm(p+"nextn.shared_head_norm", s.hidden)
		}
		l.norm(p+"attn_norm", s.hidden)
		if s.linear() && !s.full(i) {
			s.deltaNet(l, p)
		} else {
			s.attention(l, p, i)
		}
		s.feedForward(l, p)
	}
	return l.out
}

func (s *shape) attention(l *list, p string, i int) {
	dim, kv := s.headDim, s.kv
	queries, keyNorm := 1, 1.0
	if s.linear() {
		queries = 2 // each head's query and its output gate
	}
	if s.gemma() {
		if s.full(i) {
			dim, kv = s.fullDim, s.fullKV
		}
		// Gemma does not scale scores; small keys do it here.
		keyNorm = 1 / math.Sqrt(float64(dim))
	}
	l.matrix(p+"attn_q", s.hidden, queries*s.heads*dim)
	l.matrix(p+"attn_output", s.heads*dim, s.hidden)
	normed := s.class != llamaClass && s.class != qwen2Class && s.class != gptOSSClass
	if normed {
		l.norm(p+"attn_q_norm", dim)
	}
	if s.class == assistantClass {
		return // keys and values are the target's
	}
	l.matrix(p+"attn_k", s.hidden, kv*dim)
	if !s.gemma() || !s.full(i) {
		l.matrix(p+"attn_v", s.hidden, kv*dim) // else values are the keys
	}
	if normed {
		l.add(p+"attn_k_norm.weight", nearOne, keyNorm, dim)
	}
	if s.class == gptOSSClass {
		l.add(p+"attn_sinks.weight", spread, 1, s.heads)
		l.add(p+"attn_output.bias", spread, 0.2, s.hidden)
	}
	if s.class == qwen2Class || s.class == gptOSSClass {
		l.add(p+"attn_q.bias", spread, 0.5, s.heads*dim)
		l.add(p+"attn_k.bias", spread, 0.5, kv*dim)
		l.add(p+"attn_v.bias", spread, 0.5, kv*dim)
	}
}

func (s *shape) deltaNet(l *list, p string) {
	keys, values := s.linK*s.linDim, s.linV*s.linDim
	l.matrix(p+"attn_qkv", s.hidden, 2*keys+values)
	l.matrix(p+"attn_gate", s.hidden, values)
	l.add(p+"ssm_conv1d.weight", taps, 0.2, convTaps, 2*keys+values)
	l.add(p+"ssm_dt.bias", stepBias, 0, s.linV)
	l.add(p+"ssm_a", decay, 0, s.linV)
	if s.class == nextClass {
		l.matrix(p+"ssm_ba", s.hidden, 2*s.linV)
	} else {
		l.matrix(p+"ssm_alpha", s.hidden, s.linV)
		l.matrix(p+"ssm_beta", s.hidden, s.linV)
	}
	l.norm(p+"ssm_norm", s.linDim)
	l.matrix(p+"ssm_out", values, s.hidden)
}

func (s *shape) feedForward(l *list, p string) {
	before := "ffn_norm"
	if s.linear() || s.class == gptOSSClass {
		before = "post_attention_norm"
	}
	l.norm(p+before, s.hidden)
	dense := func() {
		l.matrix(p+"ffn_gate", s.hidden, s.ff)
		l.matrix(p+"ffn_up", s.hidden, s.ff)
		l.matrix(p+"ffn_down", s.ff, s.hidden)
	}
	switch {
	case s.gemma():
		dense()
		l.norm(p+"post_attention_norm", s.hidden)
		l.norm(p+"post_ffw_norm", s.hidden)
		l.add(p+"layer_output_scale.weight", nearOne, 1, 1)
		if s.experts > 0 {
			l.matrix(p+"ffn_gate_inp", s.hidden, s.experts)
			l.add(p+"ffn_gate_inp.scale", nearOne, 1, s.hidden)
			l.norm(p+"pre_ffw_norm_2", s.hidden)
			l.norm(p+"post_ffw_norm_1", s.hidden)
			l.norm(p+"post_ffw_norm_2", s.hidden)
			l.matrix(p+"ffn_gate_up_exps", s.hidden, 2*s.expertFF, s.experts)
			l.matrix(p+"ffn_down_exps", s.expertFF, s.hidden, s.experts)
			l.add(p+"ffn_down_exps.scale", nearOne, 1, s.experts)
		}
	case s.experts > 0:
		l.matrix(p+"ffn_gate_inp", s.hidden, s.experts)
		l.matrix(p+"ffn_gate_exps", s.hidden, s.expertFF, s.experts)
		l.matrix(p+"ffn_up_exps", s.hidden, s.expertFF, s.experts)
		l.matrix(p+"ffn_down_exps", s.expertFF, s.hidden, s.experts)
		if s.class == gptOSSClass {
			l.add(p+"ffn_gate_inp.bias", spread, 0.5, s.experts)
			l.add(p+"ffn_gate_exps.bias", spread, 3, s.expertFF, s.experts) // some beyond the limit of 7
			l.add(p+"ffn_up_exps.bias", spread, 3, s.expertFF, s.experts)
			l.add(p+"ffn_down_exps.bias", spread, 0.5, s.hidden, s.experts)
		}
		if s.sharedFF > 0 {
			l.matrix(p+"ffn_gate_inp_shexp", s.hidden)
			l.matrix(p+"ffn_gate_shexp", s.hidden, s.sharedFF)
			l.matrix(p+"ffn_up_shexp", s.hidden, s.sharedFF)
			l.matrix(p+"ffn_down_shexp", s.sharedFF, s.hidden)
		}
	default:
		dense()
	}
}
