package models_test

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"slices"
	"testing"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
	"strobe/models"
)

var prompts = []string{
	"package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n",
	"package cache\n\nimport \"sync\"\n\n// Cache keeps values by key.\ntype Cache struct {\n\tmu sync.Mutex\n",
	"// Reverse returns its argument with the bytes in reverse order.\nfunc Reverse(s string) string {\n",
}

func load(t *testing.T) *engine.Model {
	t.Helper()
	return loadWith(t, engine.Options{})
}

func loadWith(t *testing.T, opt engine.Options) *engine.Model {
	t.Helper()
	opt.Threads = 2
	target, drafter, err := models.Open()
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func generate(t *testing.T, m *engine.Model, prompt string, opt speculate.Options, p sample.Params, n int) ([]int32,
	speculate.Stats) {
	t.Helper()
	return generateIDs(t, m, m.Tokenizer.Encode(prompt, tokenizer.EncodeOptions{AddSpecial: true}), opt, p, n)
}

func generateIDs(t *testing.T, m *engine.Model, prompt []int32, opt speculate.Options, p sample.Params, n int) ([]int32,
	speculate.Stats) {
	t.Helper()
	seq, contexts := m.Target.NewSeq(), m.Runner.NewContexts()
	defer seq.Close()
	defer speculate.CloseContexts(contexts)
	var out []int32
	s, err := m.Runner.NewStream(speculate.Config{
		Options: opt, Seq: seq, Contexts: contexts, Max: n, Sampler: sample.New(p, m.Target.Vocab),
		Prompt: prompt,
		Emit:   func(tok speculate.Token) bool { out = append(out, tok.ID); return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for !s.Done() {
		if err := m.Runner.Step([]*speculate.Stream{s}, 64); err != nil {
			t.Fatal(err)
		}
	}
	return out, s.Stats()
}

// TestSampling: the pair's file asks for little randomness, without which its text soon wanders.
func TestSampling(t *testing.T) {
	p := sample.Params{Temp: 0.8, TopK: 7, TopP: 0.95}
	m := load(t)
	m.Sampling.Apply(&p)
	if want := (sample.Params{Temp: 0.2, TopK: 40, TopP: 0.95}); !reflect.DeepEqual(p, want) {
		t.Errorf("the file's sampling makes %+v, want %+v", p, want)
	}
}

// TestLossless: on real weights, too, no way of drafting changes a token, greedy or with a seed.
func TestLossless(t *testing.T) {
	m := load(t)
	for _, params := range []sample.Params{{}, {Temp: 0.8, TopK: 40, TopP: 0.95, RepeatPenalty: 1.1, Seed: 7}} {
		for _, prompt := range prompts {
			want, _ := generate(t, m, prompt, speculate.Options{Draft: speculate.Off}, params, 80)
			for name, opt := range map[string]speculate.Options{
				"automatic": {}, "ngram": {Draft: "ngram"},
				"chain": {Draft: "dflash", Fixed: true, Tree: speculate.TreeOff}, "tree": {Draft: "dflash", Fixed: true, Tree: 24},
			} {
				if got, _ := generate(t, m, prompt, opt, params, 80); !slices.Equal(got, want) {
					t.Errorf("%s at temperature %v: other tokens than plain decoding after %q", name, params.Temp, prompt)
				}
			}
		}
	}
}

// TestLosslessCaches: nor does it in any type of keys and values, the target's and the drafter's, nor in pairs of them.
func TestLosslessCaches(t *testing.T) {
	for i, opt := range []engine.Options{
		{KV: "f32", KVDraft: "q4_1"}, {KV: "q8_0", KVDraft: "q8_0"}, {KV: "q4_1"}, {KV: "q4_0", KVDraft: "q4_0"},
		{KV: "turbo4"}, {KV: "turbo3", DraftWindow: 40}, {KVKey: "q4_0", KVValue: "q4_1"}, {KVKey: "q8_0", KVValue: "turbo3"},
		{KV: "turbo3", KVKey: "f16", KVLayers: "3=q8_0/q4_0,7-11=turbo4"},
	} {
		m := loadWith(t, opt)
		prompt, params := prompts[i%2], []sample.Params{{}, {Temp: 0.8, TopK: 40, TopP: 0.95, Seed: 7}}[i%2]
		want, _ := generate(t, m, prompt, speculate.Options{Draft: speculate.Off}, params, 60)
		for name, o := range map[string]speculate.Options{
			"chain": {Draft: "dflash", Fixed: true, Tree: speculate.TreeOff}, "tree": {Draft: "dflash", Fixed: true, Tree: 24},
		} {
			got, st := generate(t, m, prompt, o, params, 60)
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %s at temperature %v: other tokens than plain decoding after %q", opt, name, params.Temp, prompt)
			}
			if st.Mean() < 1.5 {
				t.Errorf("%+v: %s: %.2f tokens per pass", opt, name, st.Mean())
			}
		}
		m.Close()
	}
}

// TestAcceptance keeps the drafter honest: lossless output would hide a broken one (failure F97).
func TestAcceptance(t *testing.T) {
	m := load(t)
	var all speculate.Stats
	for _, prompt := range prompts {
		_, st := generate(t, m, prompt, speculate.Options{Draft: "dflash", Fixed: true, Tree: speculate.TreeOff},
			sample.Params{}, 128)
		all.Add(st)
	}
	if got := all.Mean(); got < 3 {
		t.Errorf("%.2f tokens per pass, want at least 3", got)
	}
}

// TestReference: where the text is the one that PyTorch wrote with the same weights in float32, the drafter
// is right as often as there. Rounded activations may turn single guesses either way.
func TestReference(t *testing.T) {
	data, err := os.ReadFile("../train/reference/pair.json")
	if err != nil {
		t.Fatal(err)
	}
	var ref struct {
		New     int
		Prompts []struct {
			Prompt, Greedy []int32
			Passes         int
		}
	}
	if err := json.Unmarshal(data, &ref); err != nil {
		t.Fatal(err)
	}
	m := load(t)
	same, got, want := 0, 0, 0
	for i := 0; i < len(ref.Prompts); i += 17 {
		p := ref.Prompts[i]
		text, st := generateIDs(t, m, p.Prompt, speculate.Options{Draft: "dflash", Fixed: true, Tree: speculate.TreeOff},
			sample.Params{}, ref.New)
		if slices.Equal(text, p.Greedy) {
			same, got, want = same+1, got+st.Rounds, want+p.Passes
		}
	}
	if same < 3 || got < want-4 || got > want+4 {
		t.Errorf("%d passes for %d texts, PyTorch takes %d", got, same, want)
	}
}

// TestBatchIdentity: with K-quants and rounded activations, too, logits have the same bits in any batch,
// with any number of threads, on every instruction set.
func TestBatchIdentity(t *testing.T) {
	logits := func(threads, batch int, ids []int32) (all []float32) {
		target, _, err := models.Open()
		if err != nil {
			t.Fatal(err)
		}
		m, err := engine.LoadFiles(engine.Source{Target: target}, engine.Options{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		seq := m.Target.NewSeq()
		for from := 0; from < len(ids); from += batch {
			part := ids[from:min(from+batch, len(ids))]
			out, err := m.Target.Forward([]model.Segment{{Seq: seq, Tokens: part, Logits: model.LogitsAll}})
			if err != nil {
				t.Fatal(err)
			}
			for r := range part {
				all = append(all, out.Row(0, r)...)
			}
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	for _, level := range kernel.Available() {
		restore := kernel.Set(level)
		n := 36
		if level == kernel.Generic {
			n = 3 // plain Go takes a second per token
		}
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(300 + 37*i)
		}
		want := logits(1, 1, ids)
		for _, c := range [][2]int{{1, 2}, {2, 3}, {2, 5}, {3, 16}, {2, 33}} {
			if c[1] > n {
				continue
			}
			got := logits(c[0], c[1], ids)
			if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
				t.Errorf("%s: other bits with %d threads in batches of %d", level, c[0], c[1])
			}
		}
		restore()
	}
}
