package dflash

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/testkit"
)

// asDialect renames what an upstream file holds to another family's conventions.
func asDialect(e *drafterFile, arch, fc, norm string) *drafterFile {
	e.set("general.architecture", arch)
	for i := range e.KVs {
		if rest, ok := strings.CutPrefix(e.KVs[i].Key, "dflash."); ok {
			e.KVs[i].Key = arch + "." + rest
		}
	}
	ids := slices.Clone(e.get(arch + ".target_layers").(gguf.Array).Values.([]int32))
	for i := range ids {
		ids[i]-- // upstream names the layer after
	}
	e.del(arch+".target_layers").set(arch+".dflash.target_layer_ids", ids)
	e.set(arch+".dflash.block_size", e.get(arch+".block_size")).del(arch + ".block_size")
	e.set(arch+".dflash.mask_token_id", e.get("tokenizer.ggml.mask_token_id")).del("tokenizer.ggml.mask_token_id")
	return e.rename("fc.weight", fc).rename("enc.output_norm.weight", norm)
}

func asBeellama(e *drafterFile) *drafterFile {
	asDialect(e, "dflash-draft", "dflash_fc.weight", "dflash_hidden_norm.weight")
	for i := range 3 {
		e.rename(fmt.Sprintf("blk.%d.ffn_norm.weight", i), fmt.Sprintf("blk.%d.post_attention_norm.weight", i))
	}
	return e.set("dflash-draft.dflash.n_target_features", uint32(192)).set("dflash-draft.attention.causal", false)
}

func asLucebox(e *drafterFile, arch string) *drafterFile {
	return asDialect(e, arch, "dflash.fc.weight", "dflash.hidden_norm.weight").set(arch+".dflash.n_target_layers",
		uint32(4))
}

// TestDialectsAgree: the same drafter written by three families gives the same bits when the rules in
// which they differ are set alike.
func TestDialectsAgree(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		t.Run(name, func(t *testing.T) {
			m := openTarget(t, name)
			window := func(e *drafterFile, arch string, by int) *drafterFile {
				if w, ok := e.get(arch + ".attention.sliding_window").(uint32); ok {
					e.set(arch+".attention.sliding_window", uint32(int(w)+by))
				}
				return e
			}
			up := golden(t, name).open(t, m, Options{Causal: CausalOff})
			bee := window(asBeellama(golden(t, name)), "dflash-draft", -1).open(t, m, Options{Causal: CausalOff})
			// Lucebox counts its window from the block, not from the row: compare where both see all.
			arch := "gemma4-dflash-draft"
			luce := window(asLucebox(golden(t, name), arch), arch, 1000).open(t, m, Options{Causal: CausalOff})
			upWide := window(golden(t, name), "dflash", 1000).open(t, m, Options{Causal: CausalOff})
			for _, n := range []int{0, 3, 40} {
				draft := func(d *Drafter) []float32 {
					seq, _ := context(t, d, 5, n)
					return blockLogits(t, d, seq, 11)
				}
				if !sameBits(draft(up), draft(bee)) {
					t.Errorf("after %d tokens: dflash-draft file differs from dflash file", n)
				}
				if !sameBits(draft(upWide), draft(luce)) {
					t.Errorf("after %d tokens: Lucebox file differs from dflash file", n)
				}
			}
			for _, d := range []*Drafter{bee, luce} {
				if !slices.Equal(d.Capture(), up.Capture()) || d.mask != up.mask || d.block != up.block ||
					d.embScale != up.embScale || d.softcap != up.softcap {
					t.Errorf("layers %v, mask %d, block %d, scale %v, cap %v; the dflash file has %v, %d, %d, %v, %v",
						d.Capture(), d.mask, d.block, d.embScale, d.softcap, up.Capture(), up.mask, up.block, up.embScale, up.softcap)
				}
			}
			if want := []int{0, 1, 2}; !slices.Equal(up.Capture(), want) {
				t.Errorf("captures the output of layers %v, want %v", up.Capture(), want)
			}
		})
	}
}

// TestDialectRules: files that say nothing of causality start with the rule of their own run-time.
func TestDialectRules(t *testing.T) {
	m := openTarget(t, "qwen35") // windows of 12, block of 16
	for _, c := range []struct {
		name   string
		file   *drafterFile
		causal bool
		limit  func(q, k, start, w int) bool
	}{
		{"dflash", golden(t, "qwen35"), false, func(q, k, _, w int) bool { return q-k < w }},
		{"dflash-draft", asBeellama(golden(t, "qwen35")), true, func(q, k, _, w int) bool { return q-k <= w }},
		{"Lucebox", asLucebox(golden(t, "qwen35"), "gemma4-dflash-draft"), true,
			func(_, k, start, w int) bool { return k >= start-w }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.file.open(t, m, Options{})
			if !d.trial.open {
				t.Error("the file does not say how the block attends: both rules are worth a trial")
			}
			r := referenceOf(t, golden(t, "qwen35"), m)
			r.sees = r.windows(c.causal, c.limit)
			other := referenceOf(t, golden(t, "qwen35"), m)
			other.sees = other.windows(!c.causal, c.limit)
			for _, n := range []int{0, 5, 30} {
				seq, features := context(t, d, 6, n)
				_, want := r.run(wide(features), r.tokens(11, 16))
				if e := testkit.RelL2(blockLogits(t, d, seq, 11), flat(want)); !(e <= 2e-5) {
					t.Errorf("after %d tokens: logits differ by %.2e", n, e)
				}
				_, want = other.run(wide(features), r.tokens(11, 16))
				d.trial.drafts = [2]int{1, 0} // it is the other rule's turn
				p := propose(t, d, 1, draft.Request{Seq: seq, Last: 11, N: 15})[0]
				d.trial.drafts = [2]int{}
				for i, cs := range p.At {
					if best := argmax(want[i+1]); cs[0].ID != best {
						t.Errorf("after %d tokens, other rule, position %d: token %d, want %d", n, i, cs[0].ID, best)
					}
				}
			}
		})
	}
}

// TestTrialOnlyWhereOpen: a trial is only worth while when the file leaves the rule open and it matters.
func TestTrialOnlyWhereOpen(t *testing.T) {
	m := openTarget(t, "qwen35")
	for _, c := range []struct {
		name string
		file *drafterFile
		opt  Causal
		want bool
	}{
		{"open", golden(t, "qwen35"), CausalAuto, true},
		{"stated", golden(t, "qwen35").set("dflash.attention.causal", false), CausalAuto, false},
		{"fixed by the user", golden(t, "qwen35"), CausalOn, false},
		{"no windows", golden(t, "qwen35").del("dflash.attention.sliding_window"), CausalAuto, false},
		{"dflash-draft", asBeellama(golden(t, "qwen35")), CausalAuto, true},
		{"dflash-draft without windows", asBeellama(golden(t, "qwen35").del("dflash.attention.sliding_window")), CausalAuto,
			false},
	} {
		// Without windows there is nothing to say of the rule, but a window to find.
		if tr := c.file.open(t, m, Options{Causal: c.opt}).trial; (tr.open && tr.from == 0) != c.want {
			t.Errorf("%s: %+v, want %v", c.name, tr, c.want)
		}
	}
}

// TestLucebox: what those files leave out or get wrong.
func TestLucebox(t *testing.T) {
	m := openTarget(t, "qwen35")
	base, _, err := m.File().Float("qwen35.rope.freq_base")
	if err != nil || base == 1e6 {
		t.Fatalf("the target's base is %v (%v): the test shows nothing", base, err)
	}
	arch := "qwen35-dflash-draft"
	e := asLucebox(golden(t, "qwen35"), arch)
	e.set(arch+".rope.freq_base", float32(1e6)).del(arch + ".dflash.target_layer_ids")
	d := e.open(t, m, Options{})
	if d.theta != float32(base) {
		t.Errorf("rotary base %v, want the target's %v", d.theta, base)
	}
	// Three layers of a target of N are spread over 1 to N-1.
	if step := (m.Layers - 2) / 2; !slices.Equal(d.Capture(), []int{1, 1 + step, 1 + 2*step}) {
		t.Errorf("captures layers %v of %d", d.Capture(), m.Layers)
	}

	// Gemma files list their layers, and every layer but the last slides.
	g := openTarget(t, "gemma4")
	arch = "gemma4-dflash-draft"
	e = asLucebox(golden(t, "gemma4"), arch).set(arch+".rope.freq_base", float32(1e6)).
		set(arch+".attention.sliding_window", uint32(9)).del(arch + ".attention.sliding_window_pattern")
	d = e.open(t, g, Options{})
	if !slices.Equal(d.window, []int{9, 9, 0}) || d.theta != 1e6 {
		t.Errorf("windows %v, base %v; want 9 9 0 and the file's base", d.window, d.theta)
	}
	mustFail(t, e.del(arch+".dflash.target_layer_ids").write(t), g, Options{}, "target_layer_ids")

	// The architecture of one family with the tensors of the other is the second's file.
	e = asLucebox(golden(t, "qwen35"), "dflash-draft")
	if d := e.open(t, m, Options{}); !d.wholeWindow {
		t.Error("a file with Lucebox tensors was read as a beellama file")
	}
}

// TestBeellama: checks of their own keys.
func TestBeellama(t *testing.T) {
	m := openTarget(t, "qwen35")
	e := asBeellama(golden(t, "qwen35")).set("dflash-draft.dflash.n_target_features", uint32(25600))
	mustFail(t, e.write(t), m, Options{}, "n_target_features")
	e = asBeellama(golden(t, "qwen35")).set("dflash-draft.dflash.target_layer_ids", []int32{1, 2, 4})
	mustFail(t, e.write(t), m, Options{}, "target_layer_ids")
	e = asBeellama(golden(t, "qwen35")).set("dflash-draft.dflash.target_layer_ids", []int32{-1, 2, 3})
	mustFail(t, e.write(t), m, Options{}, "target_layer_ids")
	e = asBeellama(golden(t, "qwen35")).del("dflash-draft.dflash.mask_token_id")
	mustFail(t, e.write(t), m, Options{}, "mask_token_id")
	// Without a pattern no layer slides.
	e = asBeellama(golden(t, "qwen35")).del("dflash-draft.attention.sliding_window_pattern")
	if d := e.open(t, m, Options{}); d.slides() {
		t.Errorf("windows %v without a pattern", d.window)
	}
}

// TestFirstInput: upstream can name the input of layer 0, which is the embeddings.
func TestFirstInput(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").set("dflash.target_layers", []int32{0, 2, 4}).open(t, m, Options{})
	if !slices.Equal(d.Capture(), []int{-1, 1, 3}) {
		t.Errorf("captures %v, want the embeddings and layers 1 and 3", d.Capture())
	}
	if err := m.Capture(d.Capture()); err != nil {
		t.Error(err)
	}
}

// TestSupported tells drafters from targets.
func TestSupported(t *testing.T) {
	if !Supported(golden(t, "qwen3").write(t)) || !Supported(asBeellama(golden(t, "qwen3")).write(t)) ||
		!Supported(asLucebox(golden(t, "qwen3"), "qwen35-dflash-draft").write(t)) {
		t.Error("a drafter is not recognised")
	}
	m := openTarget(t, "qwen3")
	if Supported(m.File()) {
		t.Error("a target is taken for a drafter")
	}
	mustFail(t, golden(t, "qwen3").set("general.architecture", "eagle3").write(t), m, Options{}, "eagle3")
}
