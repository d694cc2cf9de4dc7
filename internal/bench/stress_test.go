package bench

import (
	"context"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/synth"
	"strobe/internal/tokenizer"
	"strobe/models"
)

// tiny loads a model of random weights with its drafter.
func tiny(t *testing.T, shape string, opt engine.Options) *engine.Model {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, shape+".gguf")
	opt.Threads, opt.Drafter = 2, filepath.Join(dir, "dflash.gguf")
	for file, name := range map[string]string{path: shape, opt.Drafter: shape + "-dflash"} {
		if err := synth.Write(t.Context(), file, name, "q8_0", 3, synth.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := engine.Load(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestStress: five shapes, each plainly, in chains, in trees and with a sampler, over several windows and pages.
func TestStress(t *testing.T) {
	run := func(name string, m *engine.Model, c StressConfig) {
		t.Helper()
		r, err := Stress(context.Background(), m, c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, x := range r.Runs {
			if x.Problem != "" {
				t.Errorf("%s, %s: %s", name, x.Mode, x.Problem)
			}
		}
		if len(r.Runs) != 4 {
			t.Errorf("%s: %d runs", name, len(r.Runs))
		}
	}
	for _, shape := range []string{"tiny-qwen35", "tiny-qwen35moe", "tiny-qwen3next", "tiny-gemma4", "tiny-gemma4moe"} {
		m := tiny(t, shape, engine.Options{KVKey: "q4_0", KVValue: "q4_1", KVDraft: "q8_0"})
		run(shape, m, StressConfig{Context: 700, Tokens: 20, Chunk: 100})
	}
	target, drafter, err := models.Open()
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, engine.Options{Threads: 2, KV: "turbo3"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	run("turbo3", m, StressConfig{Context: 330, Tokens: 20, Chunk: 128})
}

// TestStressFindsLosses: a report whose memory or texts are wrong says so.
func TestStressFindsLosses(t *testing.T) {
	r := &StressReport{Model: ModelInfo{TokenBytes: 100}, Cache: 100_000, Formula: 150_000}
	if r.memoryProblem() == "" {
		t.Error("two thirds of the memory are enough")
	}
	if r.Cache = 151_000; r.memoryProblem() != "" {
		t.Error(r.memoryProblem())
	}
	r.Runs = []StressRun{{Mode: "plain"}, {Mode: "tree", Problem: "token 3 is another one"}}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || r.Failed() != 1 || !strings.Contains(b.String(), "LOST: token 3") {
		t.Errorf("%d failed: %v\n%s", r.Failed(), err, b.String())
	}
}

// TestWorkOfAToken: what the host allocates for a token does not grow with the text before it, plainly or in chains,
// and what a sequence takes is its pages alone.
func TestWorkOfAToken(t *testing.T) {
	m := tiny(t, "tiny-gemma4", engine.Options{})
	work := func(n int, opt speculate.Options) float64 {
		f := &stressed{m: m, seq: m.Target.NewSeq(), contexts: m.Runner.NewContexts()}
		defer f.close()
		for i := range n {
			f.tokens = append(f.tokens, int32(i*7%2000))
		}
		if err := f.fill(context.Background(), &StressReport{}, StressConfig{Chunk: 500, Tokens: 100}); err != nil {
			t.Fatal(err)
		}
		s, err := m.Runner.NewStream(speculate.Config{Options: opt, Seq: f.seq, Contexts: f.contexts,
			Known: f.tokens[:n-1], Prompt: f.tokens[n-1:],
			Sampler: sample.New(sample.Params{}, m.Target.Vocab), Emit: func(speculate.Token) bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		step := func(n int) {
			for range n {
				if err := m.Runner.Step([]*speculate.Stream{s}, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		step(10) // what grows once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		step(40)
		runtime.ReadMemStats(&after)
		if held, most := f.seq.Bytes(), f.seq.Len()*m.Target.Memory().TokenBytes()+m.Target.Memory().SeqBytes()+
			cache.PageTokens*m.Target.Memory().TokenBytes(); held > most {
			t.Errorf("%d tokens hold %d bytes, at most %d", f.seq.Len(), held, most)
		}
		return float64(after.TotalAlloc-before.TotalAlloc) / 40
	}
	for name, opt := range map[string]speculate.Options{
		"plain": {Draft: speculate.Off}, "chain": {Draft: "dflash", Fixed: true, Tree: speculate.TreeOff},
		"tree": {Draft: "dflash", Fixed: true, Tree: 12},
	} {
		short, long := work(300, opt), work(3800, opt)
		if long > 1.5*short+2000 {
			t.Errorf("%s: %.0f bytes for a token after 300 others, %.0f after 3800", name, short, long)
		}
		t.Logf("%s: %.0f and %.0f bytes", name, short, long)
	}
}

// TestCompareTypes: rougher types do worse, and the first one agrees with itself.
func TestCompareTypes(t *testing.T) {
	open := func(kv string) (*engine.Model, error) {
		target, drafter, err := models.Open()
		if err != nil {
			return nil, err
		}
		return engine.LoadFiles(engine.Source{Target: target, Drafter: drafter}, engine.Options{Threads: 2, KV: kv})
	}
	m, err := open("f16")
	if err != nil {
		t.Fatal(err)
	}
	text := "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() {\n\tfor i := 0; i < len(os.Args); i++ {\n"
	ids := m.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
	m.Close()
	c := Config{Cases: []Case{{Tokens: ids}}, Tokens: 40, Chunk: 64}
	r, err := CompareTypes(context.Background(), []string{"f32", "q8_0", "turbo3"}, c, open)
	if err != nil {
		t.Fatal(err)
	}
	f32, q8, t3 := r.Rows[0], r.Rows[1], r.Rows[2]
	if f32.Agree != 1 || q8.Agree < 0.9 || t3.Agree < 0.5 || f32.PerPass < 1.5 || f32.TokenBytes <= q8.TokenBytes ||
		q8.TokenBytes <= t3.TokenBytes || !(f32.Loss > 0) || math.Abs(q8.Loss-f32.Loss) > 0.02 || t3.Loss < f32.Loss-0.05 {
		t.Errorf("%+v", r.Rows)
	}
}
