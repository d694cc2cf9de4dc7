package dflash

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
)

// mustFail opens a file that must be refused with one line that names the file and every part.
func mustFail(t *testing.T, f *gguf.File, m *model.Model, opt Options, parts ...string) {
	t.Helper()
	_, err := Open(f, m, opt)
	if err == nil {
		t.Errorf("%v: opened without an error", parts)
		return
	}
	for _, p := range append(parts, f.Path()) {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not name %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q is longer than a line", err)
	}
}

// TestHostileFiles: files that do not fit or make no sense are refused with a line that names the field.
func TestHostileFiles(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, c := range []struct {
		name  string
		file  func(e *drafterFile)
		names string
	}{
		{"fc of another target", func(e *drafterFile) { e.random("fc.weight", 0, 1, 4*64, 64) }, "fc.weight"},
		{"fc of odd size", func(e *drafterFile) { e.random("fc.weight", 0, 1, 200, 64) }, "fc.weight"},
		{"fc missing", func(e *drafterFile) { e.drop("fc.weight") }, "fc.weight"},
		{"fc is a vector", func(e *drafterFile) { e.random("fc.weight", 0, 1, 192) }, "fc.weight"},
		{"layer beyond the target", func(e *drafterFile) { e.set("dflash.target_layers", []int32{1, 2, 5}) },
			"dflash.target_layers"},
		{"layer below the embedding", func(e *drafterFile) { e.set("dflash.target_layers", []int32{-1, 2, 3}) },
			"dflash.target_layers"},
		{"layer far out", func(e *drafterFile) { e.set("dflash.target_layers", []int64{1 << 60, 2, 3}) },
			"dflash.target_layers"},
		{"too few layers", func(e *drafterFile) { e.set("dflash.target_layers", []int32{1, 2}) }, "fc.weight"},
		{"layers missing", func(e *drafterFile) { e.del("dflash.target_layers") }, "dflash.target_layers"},
		{"layers of another type", func(e *drafterFile) { e.set("dflash.target_layers", "1,2,3") }, "dflash.target_layers"},
		{"mask outside the vocabulary", func(e *drafterFile) { e.set("tokenizer.ggml.mask_token_id", uint32(512)) },
			"tokenizer.ggml.mask_token_id"},
		{"mask missing", func(e *drafterFile) { e.del("tokenizer.ggml.mask_token_id") }, "tokenizer.ggml.mask_token_id"},
		{"mask huge", func(e *drafterFile) { e.set("tokenizer.ggml.mask_token_id", uint64(math.MaxUint64)) },
			"tokenizer.ggml.mask_token_id"},
		{"width of another target", func(e *drafterFile) { e.set("dflash.embedding_length", uint32(128)) }, "width 128"},
		{"width missing", func(e *drafterFile) { e.del("dflash.embedding_length") }, "dflash.embedding_length"},
		{"layers missing", func(e *drafterFile) { e.del("dflash.block_count") }, "dflash.block_count"},
		{"more layers than tensors", func(e *drafterFile) { e.set("dflash.block_count", uint32(4)) },
			"sliding_window_pattern"},
		{"absurd layers", func(e *drafterFile) { e.set("dflash.block_count", uint32(1<<31)) }, "dflash.block_count"},
		{"no heads", func(e *drafterFile) { e.set("dflash.attention.head_count", uint32(0)) }, "dflash.attention.head_count"},
		{"heads missing", func(e *drafterFile) { e.del("dflash.attention.head_count") }, "dflash.attention.head_count"},
		{"heads that cannot share", func(e *drafterFile) { e.set("dflash.attention.head_count_kv", uint32(3)) }, "head"},
		{"other head size", func(e *drafterFile) { e.set("dflash.attention.key_length", uint32(16)) }, "blk.0.attn_q.weight"},
		{"other feed-forward width", func(e *drafterFile) { e.set("dflash.feed_forward_length", uint32(100)) },
			"blk.0.ffn_gate.weight"},
		{"rotation wider than a head", func(e *drafterFile) { e.set("dflash.rope.dimension_count", uint32(64)) },
			"dflash.rope.dimension_count"},
		{"odd rotation", func(e *drafterFile) { e.set("dflash.rope.dimension_count", uint32(31)) }, "rotary"},
		{"no base", func(e *drafterFile) { e.set("dflash.rope.freq_base", float32(0)) }, "rotary"},
		{"base that is no number", func(e *drafterFile) { e.set("dflash.rope.freq_base", float32(math.NaN())) },
			"dflash.rope.freq_base"},
		{"negative epsilon", func(e *drafterFile) { e.set("dflash.attention.layer_norm_rms_epsilon", float32(-1)) },
			"layer_norm_rms_epsilon"},
		{"block of one", func(e *drafterFile) { e.set("dflash.block_size", uint32(1)) }, "dflash.block_size"},
		{"absurd block", func(e *drafterFile) { e.set("dflash.block_size", uint32(1<<20)) }, "dflash.block_size"},
		{"window without pattern", func(e *drafterFile) { e.del("dflash.attention.sliding_window_pattern") },
			"sliding_window_pattern"},
		{"short pattern", func(e *drafterFile) { e.set("dflash.attention.sliding_window_pattern", []bool{true}) },
			"sliding_window_pattern"},
		{"absurd window", func(e *drafterFile) { e.set("dflash.attention.sliding_window", uint64(1<<40)) }, "sliding_window"},
		{"causality of another type", func(e *drafterFile) { e.set("dflash.attention.causal", "yes") },
			"dflash.attention.causal"},
		{"unknown activation", func(e *drafterFile) { e.set("dflash.hidden_activation", "relu") },
			"dflash.hidden_activation"},
		{"hyper-connections", func(e *drafterFile) { e.set("dflash.hyper_connection.count", uint32(4)) },
			"hyper-connections"},
		{"unknown scaling", func(e *drafterFile) {
			e.set("dflash.rope.scaling.type", "longrope").set("dflash.rope.scaling.factor", float32(4))
		}, "dflash.rope.scaling.type"},
		{"norm missing", func(e *drafterFile) { e.drop("blk.1.attn_k_norm.weight") }, "blk.1.attn_k_norm.weight"},
		{"norm of another size", func(e *drafterFile) { e.random("blk.1.attn_k_norm.weight", 1, 0, 16) },
			"blk.1.attn_k_norm.weight"},
		{"no norm before the feed-forward layer", func(e *drafterFile) { e.drop("blk.2.ffn_norm.weight") },
			"blk.2.post_attention_norm.weight"},
		{"norm that is no number", func(e *drafterFile) { poison(e, "blk.0.attn_norm.weight", math.NaN()) },
			"blk.0.attn_norm.weight"},
		{"infinite norm", func(e *drafterFile) { poison(e, "enc.output_norm.weight", math.Inf(1)) },
			"enc.output_norm.weight"},
		{"scale that is no number", func(e *drafterFile) {
			e.put("blk.0.layer_output_scale.weight", []float32{float32(math.NaN())}, 1)
		}, "blk.0.layer_output_scale.weight"},
		{"frequency factor of zero", func(e *drafterFile) { e.put("rope_freqs.weight", make([]float32, 16), 16) },
			"rope_freqs.weight"},
		{"integer weights", func(e *drafterFile) {
			x := e.Tensor("blk.0.attn_q.weight")
			x.Type, x.Data = quant.I16, make([]byte, 2*x.Elems())
		}, "blk.0.attn_q.weight"},
		{"embedding of another vocabulary", func(e *drafterFile) { e.random("token_embd.weight", 0, 1, 64, 400) },
			"token_embd.weight"},
		{"output of another vocabulary", func(e *drafterFile) { e.random("output.weight", 0, 1, 64, 400) }, "output.weight"},
		{"reduced vocabulary without output", func(e *drafterFile) { e.putD2T([]int64{1, 2, 3}) }, "output.weight"},
		{"reduced vocabulary of another size", func(e *drafterFile) {
			e.putD2T([]int64{1, 2, 3}).random("output.weight", 0, 1, 64, 4)
		}, "output.weight"},
		{"d2t out of range", func(e *drafterFile) { e.putD2T([]int64{1, 512}).random("output.weight", 0, 1, 64, 2) }, "d2t"},
		{"negative d2t", func(e *drafterFile) { e.putD2T([]int64{1, -2}).random("output.weight", 0, 1, 64, 2) }, "d2t"},
		{"d2t of another type", func(e *drafterFile) { e.random("d2t", 0, 1, 8).random("output.weight", 0, 1, 64, 8) },
			"d2t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := golden(t, "qwen35")
			c.file(e)
			mustFail(t, e.write(t), m, Options{}, c.names)
		})
	}
	for _, c := range []struct {
		name  string
		file  func(e *drafterFile)
		names string
	}{
		{"w1 of another vocabulary", func(e *drafterFile) { e.random(markovName, 0, 1, 16, 511) }, markovName},
		{"w2 of another rank", func(e *drafterFile) { e.random("markov_w2.weight", 0, 1, 15, 512) }, "markov_w2.weight"},
		{"w2 missing", func(e *drafterFile) { e.drop("markov_w2.weight") }, "markov_w2.weight"},
		{"several scales", func(e *drafterFile) { e.random("markov_w2.scale", 1, 0, 3) }, "markov_w2.scale"},
		{"confidence of another width", func(e *drafterFile) { e.random("conf_proj.weight", 0, 1, 64, 1) },
			"conf_proj.weight"},
		{"wide bias", func(e *drafterFile) { e.random("conf_proj.bias", 0, 1, 2) }, "conf_proj.bias"},
		{"anchor of another type", func(e *drafterFile) { e.set("dflash.sample_from_anchor", "no") },
			"dflash.sample_from_anchor"},
	} {
		t.Run("markov/"+c.name, func(t *testing.T) {
			e := markovFile(t, "qwen35", 0)
			c.file(e)
			mustFail(t, e.write(t), m, Options{}, c.names)
		})
	}
	for _, c := range []struct {
		name  string
		file  func(e *drafterFile)
		names string
	}{
		{"kernel missing", func(e *drafterFile) { e.del("dflash.conv_kernel_size") }, "dflash.conv_kernel_size"},
		{"no kernel", func(e *drafterFile) { e.set("dflash.conv_kernel_size", uint32(0)) }, "dflash.conv_kernel_size"},
		{"group that does not divide", func(e *drafterFile) { e.set("dflash.conv_group_size", uint32(24)) },
			"dflash.conv_group_size"},
		{"no group", func(e *drafterFile) { e.set("dflash.conv_group_size", uint32(0)) }, "dflash.conv_group_size"},
		{"too many candidates", func(e *drafterFile) { e.set("dflash.selector_top_k", uint32(8)) }, "dflash.selector_top_k"},
		{"other rank", func(e *drafterFile) { e.set("dflash.selector_rank", uint32(13)) }, "selector_predecessor.weight"},
		{"base missing", func(e *drafterFile) { e.drop("blk.1.ffn_conv_base") }, "blk.1.ffn_conv_base"},
		{"projection of another size", func(e *drafterFile) { e.random("blk.1.ffn_conv_proj.weight", 0, 1, 64, 23) },
			"blk.1.ffn_conv_proj.weight"},
		{"base that is no number", func(e *drafterFile) { poison(e, "blk.0.attn_conv_base", math.NaN()) },
			"blk.0.attn_conv_base"},
		{"codebook of another vocabulary", func(e *drafterFile) { e.random("selector_successor.weight", 0, 1, 12, 513) },
			"selector_successor.weight"},
	} {
		t.Run("selector/"+c.name, func(t *testing.T) {
			e := selectorFile(t, "qwen35")
			c.file(e)
			mustFail(t, e.write(t), m, Options{}, c.names)
		})
	}
}

// poison replaces one value of a float32 tensor.
func poison(e *drafterFile, name string, v float64) {
	x := e.Tensor(name)
	f := make([]float32, x.Elems())
	for i, w := range e.values(name) {
		f[i] = float32(w)
	}
	f[len(f)/2] = float32(v)
	e.put(name, f, x.Shape...)
}

// TestBadWeights: a matrix with a value that is not a number is found when it first matters, and named.
// Loading does not read matrices.
func TestBadWeights(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, build := range []func(testing.TB, string) *drafterFile{golden, wholeMarkov, selectorFile} {
		for _, name := range []string{"fc.weight", "blk.1.attn_v.weight", "blk.2.ffn_down.weight"} {
			e := build(t, "qwen35")
			poison(e, name, math.NaN())
			d := e.open(t, m, Options{})
			seq, _ := context(t, d, 1, 20)
			for range 2 {
				_, err := d.Draft([]draft.Request{{Seq: seq, Last: 1, N: 5}}, 3)
				if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), d.file.Path()) {
					t.Errorf("%s: error %v", name, err)
				}
			}
		}
	}
	// Features that are not numbers are not the drafter's fault: no usable guess, no error, and other
	// sequences are untouched.
	for _, build := range []func(testing.TB, string) *drafterFile{golden, wholeMarkov, selectorFile} {
		d := build(t, "qwen35").open(t, m, Options{})
		good, features := context(t, d, 1, 20)
		want := propose(t, d, 3, draft.Request{Seq: good, Last: 1, N: 5})[0]
		bad := d.NewSeq()
		features[100] = float32(math.NaN())
		feed(t, d, bad, features)
		ps := propose(t, d, 3, draft.Request{Seq: bad, Last: 1, N: 7}, draft.Request{Seq: good, Last: 1, N: 5})
		for i := range ps {
			ps[i].Sane(m.Vocab)
		}
		if ps[0].Len() != 0 {
			t.Errorf("%d guesses from features that are not numbers", ps[0].Len())
		}
		if got, want := ps[1].Chain(nil), want.Chain(nil); len(got) != 5 || got[0] != want[0] || got[4] != want[4] {
			t.Errorf("another sequence drafts %v beside bad features, %v alone", got, want)
		}
	}
}

// TestRequests: requests a drafter cannot serve are refused.
func TestRequests(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	seq, _ := context(t, d, 1, 5)
	for _, r := range []draft.Request{{Seq: seq, Last: 1}, {Seq: seq, Last: 1, N: -1}, {Seq: seq, Last: 1, N: d.Max() + 1},
		{Seq: seq, Last: -1, N: 3}, {Seq: seq, Last: 512, N: 3}} {
		if _, err := d.Draft([]draft.Request{r}, 3); err == nil {
			t.Errorf("request %+v was accepted", r)
		}
	}
	if p, err := d.Draft(nil, 3); err != nil || len(p) != 0 {
		t.Errorf("no requests: %v, %v", p, err)
	}
	if err := d.Extend(upload(m.Backend(), make([]float32, 192), 1, 192), nil); err != nil {
		t.Error(err)
	}
}

// TestHostileRandom: files changed at random are refused with an error or give a drafter that works; nothing
// panics.
func TestHostileRandom(t *testing.T) {
	m := openTarget(t, "qwen35")
	r := rand.New(rand.NewPCG(6, 6))
	numbers := []any{uint32(0), uint32(1), uint32(2), uint32(7), uint32(64), uint32(1 << 20), uint32(math.MaxUint32),
		uint64(math.MaxUint64), int32(-1),
		float32(0), float32(-1), float32(1e30), float32(math.NaN()), float32(math.Inf(1)), "text", true, []int32{},
		[]int32{1, 2, 3}, []bool{true}, []float32{1}}
	types := []quant.Type{quant.F32, quant.F16, quant.BF16, quant.I8, quant.I32, quant.I64}
	opened := 0
	for i := range 400 {
		var e *drafterFile
		switch i % 3 {
		case 0:
			e = golden(t, "qwen35")
		case 1:
			e = markovFile(t, "qwen35", 30*(i%2))
		default:
			e = selectorFile(t, "qwen35")
		}
		for range 1 + r.IntN(2) {
			switch r.IntN(4) {
			case 0:
				if kv := e.KVs[r.IntN(len(e.KVs))]; strings.HasPrefix(kv.Key, "dflash.") {
					e.set(kv.Key, numbers[r.IntN(len(numbers))])
				}
			case 1:
				e.drop(e.Tensors[r.IntN(len(e.Tensors))].Name)
			case 2: // another shape with as many values
				x := e.Tensors[r.IntN(len(e.Tensors))]
				if len(x.Shape) == 2 && x.Shape[1]%2 == 0 && x.Type != quant.I64 {
					x.Shape = [][]int{{x.Shape[0] * 2, x.Shape[1] / 2}, {x.Shape[1], x.Shape[0]}, {x.Shape[0], 2, x.Shape[1] / 2},
						{x.Shape[0] * x.Shape[1]}}[r.IntN(4)]
				}
			default: // another type, with data of the right size
				x := e.Tensors[r.IntN(len(e.Tensors))]
				x.Type = types[r.IntN(len(types))]
				x.Data = make([]byte, x.Elems()*x.Type.BlockBytes())
				for j := range x.Data {
					x.Data[j] = byte(r.Uint32())
				}
			}
		}
		f := e.write(t)
		d, err := Open(f, m, Options{})
		if err != nil {
			if !strings.Contains(err.Error(), f.Path()) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q", err)
			}
			continue
		}
		opened++
		seq, _ := context(t, d, 1, 20)
		if p, err := d.Draft([]draft.Request{{Seq: seq, Last: 1, N: d.Max()}}, 3); err == nil {
			p[0].Sane(m.Vocab)
		}
	}
	if opened < 20 || opened > 380 {
		t.Errorf("%d of 400 files opened: the test shows little", opened)
	}
}
