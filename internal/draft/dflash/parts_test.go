package dflash

import (
	"math"
	"slices"
	"sort"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/testkit"
)

// TestReference compares blocks with the float64 formulation, for the drafters as they are and with every
// optional part that changes the numbers.
func TestReference(t *testing.T) {
	blocks := func(fn func(p string)) {
		for _, p := range []string{"blk.0.", "blk.1.", "blk.2."} {
			fn(p)
		}
	}
	for _, c := range []struct {
		name, target string
		change       func(e *drafterFile)
		expect       func(r *reference)
		opt          Options
	}{
		{name: "plain", target: "qwen3"},
		{name: "sliding layers", target: "qwen35"},
		{name: "scaled embedding of the target", target: "gemma4"},
		{name: "embedding scale of the file", target: "gemma4",
			change: func(e *drafterFile) { e.set("dflash.embedding_scale", float32(3)) },
			expect: func(r *reference) { r.embScale = 3 }},
		{name: "causal by the file", target: "qwen35",
			change: func(e *drafterFile) { e.set("dflash.attention.causal", true) },
			expect: func(r *reference) {
				r.sees = func(il, q, k, _ int) bool { return k <= q && (il == 2 || q-k < 12) }
			}},
		{name: "causal by option", target: "qwen3", opt: Options{Causal: CausalOn},
			expect: func(r *reference) { r.sees = func(_, q, k, _ int) bool { return k <= q } }},
		{name: "causal file overruled", target: "qwen35", opt: Options{Causal: CausalOff},
			change: func(e *drafterFile) { e.set("dflash.attention.causal", true) }},
		{name: "values from keys", target: "qwen3",
			change: func(e *drafterFile) { blocks(func(p string) { e.drop(p + "attn_v.weight") }) }},
		{name: "norms of the outputs", target: "qwen3", change: func(e *drafterFile) {
			blocks(func(p string) {
				e.random(p+"post_attention_norm.weight", 1, 0.2, 64)
				e.random(p+"post_ffw_norm.weight", 1, 0.2, 64)
				e.put(p+"layer_output_scale.weight", []float32{0.7}, 1)
			})
		}},
		{name: "post_attention_norm alone", target: "qwen3", change: func(e *drafterFile) {
			blocks(func(p string) { e.rename(p+"ffn_norm.weight", p+"post_attention_norm.weight") })
		}},
		{name: "sinks", target: "qwen35", change: func(e *drafterFile) {
			blocks(func(p string) { e.random(p+"attn_sinks.weight", 1, 1, 4) })
		}},
		{name: "frequency factors", target: "qwen3",
			change: func(e *drafterFile) { e.random("rope_freqs.weight", 4, 1, 16) }},
		{name: "partial rotation", target: "qwen3",
			change: func(e *drafterFile) { e.set("dflash.rope.dimension_count", uint32(16)) },
			expect: func(r *reference) { r.rotated = 16 }},
		{name: "yarn", target: "qwen3",
			change: func(e *drafterFile) {
				e.set("dflash.rope.scaling.type", "yarn").set("dflash.rope.scaling.factor", float32(8)).
					set("dflash.rope.scaling.original_context_length", uint32(512)).set("dflash.rope.freq_base", float32(100))
			},
			expect: func(r *reference) { r.yarn, r.original, r.theta = 8, 512, 100 }},
		{name: "attention scale and gelu", target: "qwen3",
			change: func(e *drafterFile) {
				e.set("dflash.attention.scale", float32(1)).set("dflash.hidden_activation", "gelu_pytorch_tanh")
			},
			expect: func(r *reference) { r.scale, r.gelu = 1, true }},
		{name: "own embedding and head", target: "gemma4",
			change: func(e *drafterFile) {
				e.random("token_embd.weight", 0, 1, 64, 512).random("output.weight", 0, 0.2, 64, 512)
			},
			expect: func(r *reference) {
				r.embed, r.head, r.embScale = r.e.values("token_embd.weight"), r.e.values("output.weight"), 1
			}},
		{name: "own embedding is the head too", target: "gemma4",
			change: func(e *drafterFile) { e.random("token_embd.weight", 0, 0.5, 64, 512) },
			expect: func(r *reference) { r.embed, r.embScale = r.e.values("token_embd.weight"), 1; r.head = r.embed }},
		{name: "reduced head", target: "qwen3",
			change: func(e *drafterFile) { e.random("output.weight", 0, 0.2, 64, 40).putD2T(everyTwelfth(40)) },
			expect: func(r *reference) { r.head = r.e.values("output.weight") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := openTarget(t, c.target)
			e := golden(t, c.target)
			if c.change != nil {
				c.change(e)
			}
			r := referenceOf(t, e, m)
			if c.expect != nil {
				c.expect(r)
			}
			d := e.open(t, m, c.opt)
			for _, n := range []int{0, 1, 7, 30, 75} {
				seq, features := context(t, d, uint64(n), n)
				got := blockLogits(t, d, seq, 77)
				_, want := r.run(wide(features), r.tokens(77, r.block))
				if e := testkit.RelL2(got, flat(want)); !(e <= 2e-5) {
					t.Errorf("after %d tokens: logits differ by %.2e, want at most 2e-5", n, e)
				}
			}
		})
	}
}

// TestSinkNames: some converters leave out the suffix of this one tensor.
func TestSinkNames(t *testing.T) {
	m := openTarget(t, "qwen3")
	var got [][]float32
	for _, suffix := range []string{".weight", ""} {
		e := golden(t, "qwen3")
		for _, p := range []string{"blk.0.", "blk.1.", "blk.2."} {
			e.random(p+"attn_sinks.weight", 1, 1, 4).rename(p+"attn_sinks.weight", p+"attn_sinks"+suffix)
		}
		d := e.open(t, m, Options{})
		seq, _ := context(t, d, 1, 5)
		got = append(got, blockLogits(t, d, seq, 1))
	}
	if !sameBits(got[0], got[1]) {
		t.Error("attn_sinks and attn_sinks.weight differ")
	}
}

func everyTwelfth(n int) (ids []int64) {
	for i := range n {
		ids = append(ids, int64(500-12*i))
	}
	return ids
}

// TestTransforms: probabilities are those of capped logits when the head is the target's, and of a
// reduced vocabulary in the target's ids.
func TestTransforms(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(e *drafterFile)
		cap    float64
		ids    []int64
	}{
		{name: "inherited cap", cap: 30},
		{name: "own cap", cap: 5, change: func(e *drafterFile) { e.set("dflash.final_logit_softcapping", float32(5)) }},
		{name: "own head is not capped", change: func(e *drafterFile) { e.random("output.weight", 0, 3, 64, 512) }},
		{name: "reduced vocabulary", ids: everyTwelfth(30), change: func(e *drafterFile) {
			e.random("output.weight", 0, 1, 64, 30).putD2T(everyTwelfth(30))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := openTarget(t, "gemma4")
			e := golden(t, "gemma4")
			if c.change != nil {
				c.change(e)
			}
			d := e.open(t, m, Options{})
			seq, _ := context(t, d, 3, 20)
			raw := blockLogits(t, d, seq, 9)
			cols := len(raw) / d.block
			p := propose(t, d, 4, draft.Request{Seq: seq, Last: 9, N: d.Max()})[0]
			for i, cs := range p.At {
				row := wide(raw[(i+1)*cols:][:cols])
				for j := range row {
					if c.cap > 0 {
						row[j] = c.cap * math.Tanh(row[j]/c.cap)
					}
				}
				order := make([]int32, cols)
				for j := range order {
					order[j] = int32(j)
				}
				sort.SliceStable(order, func(a, b int) bool { return row[order[a]] > row[order[b]] })
				for j, got := range cs {
					want := order[j]
					lp := logSoftmax(row, want)
					if c.ids != nil {
						want = int32(c.ids[want])
					}
					if got.ID != want || math.Abs(float64(got.LogP)-lp) > 1e-4 {
						t.Errorf("position %d, candidate %d: token %d at %.4f, want %d at %.4f", i, j, got.ID, got.LogP, want, lp)
					}
				}
			}
		})
	}
}

// wholeMarkov is a Markov drafter with the target's vocabulary.
func wholeMarkov(t testing.TB, target string) *drafterFile { return markovFile(t, target, 0) }

// markovFile adds DSpark's heads to a golden drafter. With outputs > 0 it gets a reduced head.
func markovFile(t testing.TB, target string, outputs int) *drafterFile {
	e := golden(t, target)
	e.random("markov_w1.weight", 0, 1, 16, 512)
	e.random("conf_proj.weight", 0, 0.2, 64+16, 1)
	e.put("conf_proj.bias", []float32{0.3}, 1)
	if outputs > 0 {
		e.random("output.weight", 0, 0.2, 64, outputs).putD2T(everyTwelfth(outputs))
		return e.random("markov_w2.weight", 0, 0.5, 16, outputs)
	}
	return e.random("markov_w2.weight", 0, 0.5, 16, 512)
}

// markovWalk is the walk by its definition: the guesses, their log-probabilities and confidences.
func markovWalk(r *reference, features []float64, last int32, n int, anchor bool, d2t []int64,
	scale float64) (ids []int32, logp, conf []float64) {
	w1, w2 := r.e.values("markov_w1.weight"), r.e.values("markov_w2.weight")
	slots, first := n+1, 1
	if anchor {
		slots, first = n, 0
	}
	final, logits := r.run(features, r.tokens(last, slots))
	prev := last
	for s := first; s < slots; s++ {
		e := w1[int(prev)*16:][:16]
		l := slices.Clone(logits[s])
		for i, b := range mul(w2, e) {
			l[i] += scale * b
		}
		x := 0.3
		for i, w := range r.e.values("conf_proj.weight") {
			x += w * append(slices.Clone(final[s]), e...)[i]
		}
		best := argmax(l)
		logp = append(logp, logSoftmax(l, best))
		conf = append(conf, 1/(1+math.Exp(-x)))
		prev = best
		if d2t != nil {
			prev = int32(d2t[best])
		}
		ids = append(ids, prev)
	}
	return ids, logp, conf
}

// TestMarkov: DSpark's walk, with and without prediction from the anchor, with a reduced vocabulary and a
// scaled head, alone and with other requests of other lengths.
func TestMarkov(t *testing.T) {
	for _, c := range []struct {
		name    string
		anchor  bool
		outputs int
		scale   float64
		change  func(e *drafterFile)
	}{
		{name: "anchor by default", anchor: true, scale: 1},
		{name: "anchor off", scale: 1, change: func(e *drafterFile) { e.set("dflash.sample_from_anchor", false) }},
		{name: "reduced", anchor: true, outputs: 36, scale: 1},
		{name: "scaled", anchor: true, scale: 2.5,
			change: func(e *drafterFile) { e.put("markov_w2.scale", []float32{2.5}, 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := openTarget(t, "qwen35")
			e := markovFile(t, "qwen35", c.outputs)
			if c.change != nil {
				c.change(e)
			}
			d := e.open(t, m, Options{})
			r := referenceOf(t, e, m)
			var d2t []int64
			if c.outputs > 0 {
				r.head = e.values("output.weight")
				d2t = everyTwelfth(c.outputs)
			}
			want := 15
			if c.anchor {
				want = 16
			}
			if d.Max() != want {
				t.Errorf("Max is %d, want %d", d.Max(), want)
			}
			var reqs []draft.Request
			biased := 0
			for i, n := range []int{5, d.Max(), 1, 9} {
				seq, features := context(t, d, uint64(i), 10+9*i)
				last := int32(100 + i)
				req := draft.Request{Seq: seq, Last: last, N: n}
				reqs = append(reqs, req)
				ids, logp, _ := markovWalk(r, wide(features), last, n, c.anchor, d2t, c.scale)
				p := propose(t, d, 3, req)[0]
				if got := p.Chain(nil); !slices.Equal(got, ids) {
					t.Errorf("guesses %v, want %v", got, ids)
				}
				for j, cs := range p.At {
					if math.Abs(float64(cs[0].LogP)-logp[j]) > 1e-3 {
						t.Errorf("position %d: log-probability %v, want %v", j, cs[0].LogP, logp[j])
					}
				}
				plain, _, _ := markovWalk(r, wide(features), last, n, c.anchor, d2t, 0)
				if !slices.Equal(plain, ids) {
					biased++
				}
			}
			if biased == 0 {
				t.Error("the Markov head changes nothing here: the test shows nothing")
			}
			together(t, d, reqs)
		})
	}
}

// together checks that requests give the same bits in one pass as alone.
func together(t *testing.T, d *Drafter, reqs []draft.Request) {
	t.Helper()
	all := propose(t, d, 3, reqs...)
	for i, r := range reqs {
		alone := propose(t, d, 3, r)[0]
		if len(alone.At) != len(all[i].At) {
			t.Fatalf("request %d: %d positions with others, %d alone", i, len(all[i].At), len(alone.At))
		}
		for j := range alone.At {
			if !slices.Equal(alone.At[j], all[i].At[j]) {
				t.Errorf("request %d, position %d: %v with others, %v alone", i, j, all[i].At[j], alone.At[j])
			}
		}
	}
}

// TestConfidence: a draft ends before the first guess the confidence head doubts.
func TestConfidence(t *testing.T) {
	m := openTarget(t, "qwen35")
	e := markovFile(t, "qwen35", 0)
	r := referenceOf(t, e, m)
	for _, least := range []float32{0.3, 0.5, 0.7, 0.9} {
		d := e.open(t, m, Options{PMin: least})
		for i := range 4 {
			seq, features := context(t, d, uint64(i), 12)
			ids, _, conf := markovWalk(r, wide(features), 8, d.Max(), true, nil, 1)
			want := 0
			for want < len(conf) && conf[want] >= float64(least) {
				want++
			}
			p := propose(t, d, 1, draft.Request{Seq: seq, Last: 8, N: d.Max()})[0]
			if got := p.Chain(nil); !slices.Equal(got, ids[:want]) {
				t.Errorf("least %v: %d guesses, want %d (confidences %.2f)", least, len(got), want, conf)
			}
		}
	}
	e.set("dflash.has_confidence_head", false)
	if _, err := Open(e.write(t), m, Options{PMin: 0.5}); err == nil {
		t.Error("a least probability without a confidence head was accepted")
	}
	if d := e.open(t, m, Options{}); d.markov.conf != nil {
		t.Error("the file says that the confidence head is not to be used")
	}
}

// selectorFile adds DFlash2's parts to a golden drafter.
func selectorFile(t testing.TB, target string) *drafterFile {
	e := selectorOnly(t, target)
	e.set("dflash.conv_kernel_size", uint32(3)).set("dflash.conv_group_size", uint32(16))
	for _, p := range []string{"blk.0.", "blk.1.", "blk.2."} {
		for _, half := range []string{"attn", "ffn"} {
			e.random(p+half+"_conv_base", 0.3, 0.3, 64, 3, 2)
			e.random(p+half+"_conv_proj.weight", 0, 0.1, 64, 2*3*4)
		}
	}
	return e
}

// selectorOnly adds the selector alone.
func selectorOnly(t testing.TB, target string) *drafterFile {
	e := golden(t, target)
	e.set("dflash.selector_rank", uint32(12)).set("dflash.selector_top_k", uint32(5))
	e.set("dflash.logit_scale", float32(0.8)).set("dflash.final_logit_softcapping", float32(6))
	e.random("selector_predecessor.weight", 0, 1, 12, 512)
	e.random("selector_successor.weight", 0, 1, 12, 512)
	return e.random("selector_hidden.weight", 0, 0.3, 64, 12)
}

func selectorReference(t testing.TB, e *drafterFile, d *Drafter) *reference {
	r := referenceOf(t, e, d.target)
	r.kernel, r.group, r.logitScale, r.cap = 3, 16, 0.8, 6
	return r
}

// selectorBySpec returns the candidates of slot s after the token prev, their probabilities among each other, best
// first, and how probable all of them are by the logits.
func selectorBySpec(r *reference, features []float64, last int32, n int,
	d2t []int64) func(s int, prev int32) (ids []int32, p []float64, mass float64) {
	pred, succ := r.e.values("selector_predecessor.weight"), r.e.values("selector_successor.weight")
	final, logits := r.run(features, r.tokens(last, n+1))
	target := func(id int32) int32 {
		if d2t != nil {
			return int32(d2t[id])
		}
		return id
	}
	return func(s int, prev int32) (ids []int32, p []float64, mass float64) {
		l := slices.Clone(logits[s])
		for i := range l {
			l[i] = r.cap * math.Tanh(r.logitScale*l[i]/r.cap)
		}
		order := make([]int32, len(l))
		for i := range order {
			order[i] = int32(i)
		}
		sort.SliceStable(order, func(a, b int) bool { return l[order[a]] > l[order[b]] })
		gate := mul(r.e.values("selector_hidden.weight"), final[s])
		var scores []float64
		for _, c := range order[:5] {
			v := l[c]
			mass += math.Exp(logSoftmax(l, c))
			for k := range 12 {
				v += succ[int(target(c))*12+k] * pred[int(prev)*12+k] * gate[k]
			}
			scores = append(scores, v)
		}
		best := []int{0, 1, 2, 3, 4}
		sort.SliceStable(best, func(a, b int) bool { return scores[best[a]] > scores[best[b]] })
		for _, i := range best {
			ids = append(ids, target(order[i]))
			p = append(p, math.Exp(logSoftmax(scores, int32(i))))
		}
		return ids, p, mass
	}
}

// selectorWalkBySpec returns the chain and the probability of each of its tokens.
func selectorWalkBySpec(r *reference, features []float64, last int32, n int, d2t []int64) (ids []int32, p []float64) {
	slot := selectorBySpec(r, features, last, n, d2t)
	for s := 1; s <= n; s++ {
		at, q, _ := slot(s, last)
		last = at[0]
		ids, p = append(ids, at[0]), append(p, q[0])
	}
	return ids, p
}

// TestSelector: DFlash2's convolutions and selector, the selector alone, and with a reduced vocabulary.
func TestSelector(t *testing.T) {
	for _, parts := range []string{"both", "selector", "reduced"} {
		m := openTarget(t, "qwen35")
		e := selectorFile(t, "qwen35")
		reduced := parts == "reduced"
		var d2t []int64
		if parts == "selector" {
			e = selectorOnly(t, "qwen35")
		}
		if reduced {
			d2t = everyTwelfth(36)
			e.random("output.weight", 0, 0.3, 64, 36).putD2T(d2t)
		}
		d := e.open(t, m, Options{})
		r := selectorReference(t, e, d)
		if reduced {
			r.head = e.values("output.weight")
		}
		var reqs []draft.Request
		swayed := 0
		for i, n := range []int{4, 15, 1, 8} {
			seq, features := context(t, d, uint64(i), 5+11*i)
			last := int32(40 + i)
			got := blockLogits(t, d, seq, last)
			_, want := r.run(wide(features), r.tokens(last, 16))
			if e := testkit.RelL2(got, flat(want)); !(e <= 2e-5) {
				t.Errorf("logits differ by %.2e, want at most 2e-5", e)
			}
			req := draft.Request{Seq: seq, Last: last, N: n}
			reqs = append(reqs, req)
			p := propose(t, d, 3, req)[0]
			ids, prob := selectorWalkBySpec(r, wide(features), last, n, d2t)
			if got := p.Chain(nil); !slices.Equal(got, ids) {
				t.Errorf("%s, %d guesses: %v, want %v", parts, n, got, ids)
			}
			slot := selectorBySpec(r, wide(features), last, n, d2t)
			for j, cs := range p.At {
				_, _, mass := slot(j+1, last)
				if math.Abs(math.Exp(float64(cs[0].LogP))-prob[j]*mass) > 1e-3 || len(cs) != 3 {
					t.Errorf("position %d: %d candidates, best at %.4f; want 3 and %.4f", j, len(cs), math.Exp(float64(cs[0].LogP)),
						prob[j]*mass)
				}
			}
			for j := 1; j < n; j++ {
				for _, before := range p.At[j-1] {
					ids, prob, mass := slot(j+1, before.ID)
					for k, c := range p.After(j, before.ID) {
						if c.ID != ids[k] || math.Abs(math.Exp(float64(c.LogP))-prob[k]*mass) > 1e-3 {
							t.Errorf("position %d after %d: candidate %d is %d at %.4f; want %d at %.4f", j, before.ID, k, c.ID,
								math.Exp(float64(c.LogP)), ids[k], prob[k]*mass)
						}
					}
				}
				if got := p.After(j, -5); got != nil {
					t.Errorf("position %d after a token that was no candidate: %v", j, got)
				}
			}
			_, logits := r.run(wide(features), r.tokens(last, n+1))
			for j, id := range ids {
				best := argmax(logits[j+1])
				if d2t != nil {
					best = int32(d2t[best])
				}
				if id != best {
					swayed++
				}
			}
		}
		if swayed == 0 {
			t.Error("the selector always agrees with the logits here: the test shows nothing")
		}
		together(t, d, reqs)

		for _, least := range []float32{0.4, 0.7} {
			d := e.open(t, m, Options{PMin: least})
			seq, features := context(t, d, 77, 20)
			ids, prob := selectorWalkBySpec(r, wide(features), 3, 15, d2t)
			want := 0
			for want < len(prob) && prob[want] >= float64(least) {
				want++
			}
			if got := propose(t, d, 1, draft.Request{Seq: seq, Last: 3, N: 15})[0].Chain(nil); !slices.Equal(got, ids[:want]) {
				t.Errorf("least %v: %d guesses, want %d", least, len(got), want)
			}
		}
	}
}

// TestUnknownParts: whatever the drafter would not compute is an error that names it.
func TestUnknownParts(t *testing.T) {
	m := openTarget(t, "qwen3")
	for _, name := range []string{"g_proj.weight", "blk.0.attn_qkv.weight", "blk.0.attn_q.bias", "blk.3.attn_norm.weight",
		"blk.x.attn_norm.weight",
		"aux_hidden_norms.0.weight", "blk.1.attn_conv_base", "selector_successor.weight", "markov_w2.weight", "blk.0.attn_v",
		"fc.scale"} {
		f := golden(t, "qwen3").random(name, 0, 1, 64).write(t)
		mustFail(t, f, m, Options{}, name)
	}
	// Convolutions are known, but not without their shape.
	mustFail(t, golden(t, "qwen3").random("blk.0.attn_conv_base", 0, 1, 64).write(t), m, Options{}, "conv_kernel_size")
	// No format has both heads.
	e := selectorFile(t, "qwen3")
	e.random(markovName, 0, 1, 16, 512)
	mustFail(t, e.write(t), m, Options{}, markovName)
}
