package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"strobe/internal/draft/dflash"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loadGolden(t testing.TB, name string, drafter bool) *Model {
	t.Helper()
	// One thread: the models are so small that a second one only gets in the way.
	// The rule of attention is given: while a drafter tries two, its guesses do not depend on the text alone.
	opt := Options{Threads: 1, Drafter: "none", Causal: dflash.CausalOff}
	if drafter {
		opt.Drafter = testkit.Golden(t, "dflash-"+name+"/model.gguf")
	}
	m, err := Load(testkit.Golden(t, name+"/model.gguf"), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// start returns an engine on a golden model that ends with the test. Afterwards no memory may be in
// use but the cache's.
func start(t testing.TB, name string, cfg Config) *Engine {
	t.Helper()
	return startModel(t, loadGolden(t, name, true), cfg)
}

func startModel(t testing.TB, m *Model, cfg Config) *Engine {
	t.Helper()
	e := New(m, cfg)
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s := e.Snapshot(); s.TargetBytes != 0 || s.DrafterBytes != 0 {
			t.Errorf("after Close %d and %d bytes of cache are in use", s.TargetBytes, s.DrafterBytes)
		}
	})
	return e
}

// randomPrompt is n tokens that depend on the seed; prompts of one seed begin alike.
func randomPrompt(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 99))
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(5 + r.IntN(240))
	}
	return p
}

func generate(t testing.TB, e *Engine, req Request) Event {
	t.Helper()
	g, err := e.Submit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := g.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if ev.Result == nil {
		t.Fatal("no result")
	}
	if ev.Result.Err != nil {
		t.Fatal(ev.Result.Err)
	}
	return ev
}

func ids(ts []Token) []int32 {
	var out []int32
	for _, t := range ts {
		out = append(out, t.ID)
	}
	return out
}

var (
	greedy = sample.Params{}
	seeded = sample.Params{Temp: 1, TopK: 50, Seed: 7, RepeatPenalty: 1.1}
)

// plain is what the model says without engine, cache or speculation.
func plain(t testing.TB, name string, req Request) []int32 {
	t.Helper()
	m := loadGolden(t, name, false)
	defer m.Close()
	seq := m.Target.NewSeq()
	var got []int32
	s, err := m.Runner.NewStream(speculate.Config{
		Options: speculate.Options{Draft: speculate.Off}, Seq: seq, Prompt: req.Tokens, Sampler: m.newSampler(&req),
		Max: req.MaxTokens,
		Emit: func(tok speculate.Token) bool {
			if !req.IgnoreEOG && m.Tokenizer.IsEOG(tok.ID) {
				return false
			}
			got = append(got, tok.ID)
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for !s.Done() {
		if err := m.Runner.Step([]*speculate.Stream{s}, 64); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// TestSameText: a request says the same alone or with seven others, with and without speculation,
// with and without a cache hit, greedy and seeded.
func TestSameText(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		t.Run(name, func(t *testing.T) {
			const n = 20
			var reqs []Request
			var want [][]int32
			for i := range 8 {
				req := Request{Tokens: randomPrompt(uint64(i%5), 20+37*i), MaxTokens: n, IgnoreEOG: true, Params: greedy}
				if i%2 == 1 {
					req.Params = seeded
					req.Params.Seed = uint64(i)
				}
				reqs = append(reqs, req)
				want = append(want, plain(t, name, req))
			}
			check := func(how string, i int, ev Event) {
				t.Helper()
				if got := ids(ev.Tokens); !slices.Equal(got, want[i]) {
					t.Errorf("%s: request %d differs\n got %v\nwant %v", how, i, got, want[i])
				}
			}
			for _, opt := range []speculate.Options{{Draft: speculate.Off}, {}, {Fixed: true, Tree: speculate.TreeOff},
				{Draft: "ngram"}} {
				e := start(t, name, Config{Parallel: 8, Chunk: 32})
				for i, req := range reqs {
					req.Spec = opt
					check(fmt.Sprintf("alone %+v", opt), i, generate(t, e, req))
				}
				together(t, e, reqs, opt, func(i int, ev Event) {
					check(fmt.Sprintf("together, from the cache, %+v", opt), i, ev)
				})
				for i := range reqs {
					reqs[i].NoCache = true
				}
				together(t, e, reqs, opt, func(i int, ev Event) {
					check(fmt.Sprintf("together, cold, %+v", opt), i, ev)
				})
				for i := range reqs {
					reqs[i].NoCache = false
				}
				if s := e.Snapshot(); s.Cache.Hits == 0 || s.Stats.Cached == 0 {
					t.Errorf("%+v: no cache hit: %+v", opt, s.Cache)
				}
			}
		})
	}
}

// together runs requests at the same time.
func together(t *testing.T, e *Engine, reqs []Request, opt speculate.Options, check func(i int, ev Event)) {
	t.Helper()
	var gs []*Generation
	for _, req := range reqs {
		req.Spec = opt
		g, err := e.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		gs = append(gs, g)
	}
	for i, g := range gs {
		ev, err := g.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Result.Err != nil {
			t.Errorf("request %d: %v", i, ev.Result.Err)
		}
		check(i, ev)
	}
}

// TestSourceNotLoaded: a request that names a source of drafts which the model lacks is refused at once.
func TestSourceNotLoaded(t *testing.T) {
	e := startModel(t, loadGolden(t, "qwen3", false), Config{})
	for _, name := range []string{"auto", "off", "ngram", "dflash", "magic"} {
		draft, err := ParseDraft(name)
		if (err != nil) != (name == "magic") {
			t.Errorf("%s: error %v", name, err)
		}
		if err != nil {
			continue
		}
		req := Request{Tokens: randomPrompt(1, 5), MaxTokens: 3, Spec: speculate.Options{Draft: draft}}
		if name != "dflash" {
			generate(t, e, req)
		} else if _, err := e.Submit(t.Context(), req); !errors.Is(err, speculate.ErrNoSource) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
