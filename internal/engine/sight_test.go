package engine

import (
	"slices"
	"testing"

	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// TestDecodeWindow: what generated tokens see depends on nothing but their position, so drafts change nothing under a
// window either; a window that is long enough changes nothing at all.
func TestDecodeWindow(t *testing.T) {
	for _, name := range []string{"qwen3", "gemma4"} {
		path := testkit.Golden(t, name+"/model.gguf")
		drafter := testkit.Golden(t, "dflash-"+name+"/model.gguf")
		req := Request{Tokens: randomPrompt(5, 300), MaxTokens: 150, Params: greedy, IgnoreEOG: true}
		texts := map[int][]int32{}
		for _, window := range []int{0, 64, 4000} {
			m, err := Load(path, Options{Device: "cpu", KV: "f32", Drafter: drafter, DecodeWindow: window})
			if err != nil {
				t.Fatal(err)
			}
			for _, opt := range []speculate.Options{
				{Draft: speculate.Off}, {Draft: "dflash", Fixed: true, Tree: speculate.TreeOff},
				{Draft: "dflash", Fixed: true, Tree: 12},
			} {
				req.Spec = opt
				ev, _ := solo(t, m, req, 64)
				got := ids(ev.Tokens)
				if texts[window] == nil {
					texts[window] = got
				} else if !slices.Equal(got, texts[window]) {
					t.Errorf("%s, window %d, %+v: not the text of plain decoding", name, window, opt)
				}
			}
			m.Close()
		}
		if !slices.Equal(texts[0], texts[4000]) {
			t.Errorf("%s: a window longer than the text changes it", name)
		}
		if slices.Equal(texts[0], texts[64]) {
			t.Errorf("%s: the window hides nothing", name)
		}
	}
}

// TestSparsePrefill: prompts attend to fewer blocks, and to all of them where the setting keeps all.
func TestSparsePrefill(t *testing.T) {
	req := Request{Tokens: randomPrompt(6, 1500), MaxTokens: 40, Params: greedy, IgnoreEOG: true,
		Spec: speculate.Options{Draft: speculate.Off}}
	texts := map[float32][]int32{}
	for _, alpha := range []float32{0, 1e-30, 1} {
		m, err := Load(testkit.Golden(t, "qwen3/model.gguf"), Options{Device: "cpu", KV: "f32", Drafter: "none",
			SparsePrefill: alpha})
		if err != nil {
			t.Fatal(err)
		}
		ev, _ := solo(t, m, req, 512)
		texts[alpha] = ids(ev.Tokens)
		m.Close()
	}
	if !slices.Equal(texts[0], texts[1e-30]) {
		t.Error("a setting that keeps all blocks changes the text")
	}
	if slices.Equal(texts[0], texts[1]) {
		t.Error("nothing is sparse")
	}
}

// TestLossySettingsShareNoPrefix: what is remembered of a prompt depends on sparse attention and on the window of
// generated tokens, so models that differ in them use no stored prefix of each other.
func TestLossySettingsShareNoPrefix(t *testing.T) {
	dir := t.TempDir()
	req := Request{Tokens: randomPrompt(1, 100), MaxTokens: 2, IgnoreEOG: true}
	seen := map[string]bool{}
	for _, opt := range []Options{{}, {SparsePrefill: 0.1}, {SparsePrefill: 0.2}, {DecodeWindow: 64}, {DecodeWindow: 128},
		{SparsePrefill: 0.1, DecodeWindow: 64}, {KV: "q8_0"}} {
		opt.Threads, opt.Drafter = 1, "none"
		for again := range 2 {
			m, err := Load(testkit.Golden(t, "qwen3/model.gguf"), opt)
			if err != nil {
				t.Fatal(err)
			}
			if f := m.Fingerprint(); seen[f] != (again == 1) {
				t.Errorf("%+v: fingerprint %s seen before: %v", opt, f, seen[f])
			} else {
				seen[f] = true
			}
			e := startModel(t, m, Config{CacheDir: dir})
			if n := generate(t, e, req).Result.Cached; (n > 0) != (again == 1) {
				t.Errorf("%+v, again %d: %d tokens cached", opt, again, n)
			}
			stop(t, e)
		}
	}
}

// TestManyLogProbs: more alternatives than a shortlist is sure to have need the whole row.
func TestManyLogProbs(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	for n, want := range map[int]sample.Want{5: sample.WantBest, sample.ShortLen: sample.WantBest,
		sample.ShortLen + 1: sample.WantRow} {
		if got := m.newSampler(&Request{Tokens: []int32{1}, LogProbs: n}).Wants(m.Target.Vocab); got != want {
			t.Errorf("%d alternatives: wants %d, expected %d", n, got, want)
		}
	}
}
