package speculate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/sample"
)

// alone is a target without helpers: for many passes of a tiny model they cost more than they save.
func alone(t *testing.T, name string) *model.Model {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 1})
	t.Cleanup(func() { b.Close() })
	m, err := model.Open(open(t, name+"/model.gguf"), b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// counts is how often each token was drawn, by position.
type counts [][]int

// draws generates n continuations of a prompt, many streams at a time, each with random numbers of its
// own, and counts their tokens.
func draws(t *testing.T, m *model.Model, d draft.Source, opt Options, p sample.Params, in []int32, n, length int,
	seed uint64) (c counts, st Stats) {
	t.Helper()
	r := runner(t, m, d)
	c = make(counts, length)
	for i := range c {
		c[i] = make([]int, m.Vocab)
	}
	// All streams continue the same prefix, which runs once.
	first := start(t, r, Options{Draft: opt.Draft, Fixed: true}, greedy{}, in, 1)
	finish(t, r, len(in), first)
	seeds := rand.New(rand.NewPCG(seed, 0))
	fork := func(s *cache.Seq) *cache.Seq {
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	prefix := struct{ seq, draft *cache.Seq }{seq: first.seq, draft: first.draftSeq}
	for done := 0; done < n; done += 64 {
		var ss []*Stream
		for range min(64, n-done) {
			p.Seed = seeds.Uint64()
			at := 0
			cfg := Config{Options: opt, Seq: fork(prefix.seq), Prompt: []int32{17}, Sampler: sample.New(p, m.Vocab), Max: length,
				Emit: func(tok Token) bool { c[at][tok.ID]++; at++; return true }}
			if d != nil {
				cfg.Contexts = []draft.Context{fork(prefix.draft)}
			}
			s, err := r.NewStream(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ss = append(ss, s)
		}
		for slices.ContainsFunc(ss, func(s *Stream) bool { return !s.Done() }) {
			if err := r.Step(ss, 64); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range ss {
			st.Add(s.Stats())
			s.Close()
			s.seq.Close()
			CloseContexts(s.Contexts)
		}
	}
	return c, st
}

// chiSquare compares two samples of the same size. Tokens too rare to count are taken together. It returns
// the statistic and the degrees of freedom.
func chiSquare(a, b []int) (x float64, df int) {
	restA, restB := 0, 0
	cell := func(p, q int) {
		if p+q > 0 {
			x += float64((p-q)*(p-q)) / float64(p+q)
			df++
		}
	}
	for i := range a {
		if a[i]+b[i] < 20 {
			restA, restB = restA+a[i], restB+b[i]
			continue
		}
		cell(a[i], b[i])
	}
	cell(restA, restB)
	return x, df - 1
}

// quantile approximates the value that chi-square with df degrees of freedom exceeds in one of 100,000
// samples (Wilson and Hilferty).
func quantile(df int) float64 {
	const z = 4.265
	v := 2.0 / (9 * float64(df))
	return float64(df) * math.Pow(1-v+z*math.Sqrt(v), 3)
}

// differ is the worst position's statistic relative to its bound: above 1 the distributions differ.
func differ(t *testing.T, a, b counts) float64 {
	t.Helper()
	worst := 0.0
	for i := range a {
		x, df := chiSquare(a[i], b[i])
		if df < 3 {
			t.Fatalf("position %d has %d degrees of freedom: the test shows nothing", i, df)
		}
		worst = max(worst, x/quantile(df))
	}
	return worst
}

var cool = sample.Params{Temp: 0.4, TopK: 30, TopP: 0.95, RepeatPenalty: 1.1}

// popular guesses the tokens that are drawn most often at each position after a prompt of n tokens.
func popular(t *testing.T, m *model.Model, drawn counts, n int) *scripted {
	var best [][]int32
	for _, c := range drawn {
		ids := make([]int32, len(c))
		for i := range ids {
			ids[i] = int32(i)
		}
		slices.SortStableFunc(ids, func(a, b int32) int { return c[b] - c[a] })
		best = append(best, ids)
	}
	return script(t, m, func(pos int, _ int32, k int) (at [][]draft.Candidate) {
		for i := pos - n; i < len(best) && len(at) < k; i++ {
			var c []draft.Candidate
			for j := range 4 {
				c = append(c, draft.Candidate{ID: best[i][j], LogP: -1.2 - float32(j)/4})
			}
			at = append(at, c)
		}
		return at
	})
}

// TestDraftingKeepsTheDistribution (failure F161): over 20,000 draws the tokens at every position are distributed
// with drafting as without, for chains and trees.
func TestDraftingKeepsTheDistribution(t *testing.T) {
	const n, length = 5000, 4
	m := alone(t, "qwen3")
	in := prompt(6)
	want, _ := draws(t, m, nil, Options{Draft: Off}, cool, in, n, length, 1)
	d := popular(t, m, want, len(in))
	for name, opt := range map[string]Options{"chain": {Draft: drafter, Fixed: true},
		"tree": {Draft: drafter, Fixed: true, Tree: 5}} {
		got, st := draws(t, m, d, opt, cool, in, n, length, 3)
		if st.Accepted < n/20 || st.Accepted == st.Guessed {
			t.Errorf("%s: %d of %d guesses accepted: the test shows nothing", name, st.Accepted, st.Guessed)
		}
		if x := differ(t, got, want); x > 1 {
			t.Errorf("%s: the distribution differs from plain sampling: chi-square is %.2f of its bound", name, x)
		}
	}
}

// TestSettingsChangeTheDistribution (failure F100): settings of the sampler are not ignored when tokens are drafted:
// other settings give another distribution. It also shows that the test above would notice one.
func TestSettingsChangeTheDistribution(t *testing.T) {
	const n, length = 1500, 4
	m := alone(t, "qwen3")
	in := prompt(6)
	want, _ := draws(t, m, nil, Options{Draft: Off}, cool, in, n, length, 1)
	d := popular(t, m, want, len(in))
	for name, change := range map[string]func(p *sample.Params){
		"temperature": func(p *sample.Params) { p.Temp = 0.55 },
		"top-k":       func(p *sample.Params) { p.TopK = 6 },
		"bias":        func(p *sample.Params) { p.LogitBias = map[int32]float32{3: 2, 5: 2, 8: 2} },
	} {
		p := cool
		change(&p)
		got, _ := draws(t, m, d, Options{Draft: drafter, Fixed: true}, p, in, n, length, 3)
		if x := differ(t, got, want); x < 1 {
			t.Errorf("another %s changes nothing: chi-square is %.2f of its bound", name, x)
		}
	}
}
