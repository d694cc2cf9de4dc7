package bench

import (
	"bytes"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"strobe/internal/speculate"
)

// timed is a run of 11 tokens that took so many milliseconds after the first.
func timed(ms float64) result {
	return result{tokens: make([]int32, 11), decode: speculate.Stats{DecodeTime: time.Duration(ms * 1e6)}}
}

func TestCompare(t *testing.T) {
	runs := func(rows ...[]float64) [][]result {
		var all [][]result
		for _, row := range rows {
			var c []result
			for _, ms := range row {
				c = append(c, timed(ms))
			}
			all = append(all, c)
		}
		return all
	}
	plain := runs([]float64{100, 110}, []float64{200, 210}, []float64{300, 310}, []float64{90, 95})
	for _, c := range []struct {
		name    string
		a, b    [][]result
		ratio   float64
		pairs   int
		verdict string
	}{
		{"with itself", plain, plain, 1, 4, Noise},
		{"twice as fast on every prompt", runs([]float64{50, 55}, []float64{101, 105}, []float64{149, 155}, []float64{45, 47}),
			plain, 2, 4, Real},
		{"slower", plain, runs([]float64{50, 55}, []float64{101, 105}, []float64{149, 155}, []float64{45, 47}), 0.5, 4, Real},
		{"now faster, now slower", runs([]float64{50, 55}, []float64{400, 420}, []float64{150, 155}, []float64{180, 190}),
			plain, 1, 4, Noise},
		{"one prompt, by repeats", runs([]float64{50, 51, 49}), runs([]float64{100, 101, 100}), 2, 3, Real},
		{"one run", runs([]float64{50}), runs([]float64{100}), 2, 1, TooFew},
	} {
		got := compare(c.a, c.b)
		if math.Abs(got.Ratio-c.ratio) > 0.02 || got.Pairs != c.pairs || got.Verdict != c.verdict || got.Low > got.Ratio ||
			got.High < got.Ratio {
			t.Errorf("%s: %+v, want %g from %d pairs: %s", c.name, got, c.ratio, c.pairs, c.verdict)
		}
	}
	if got := compare(runs([]float64{0}), plain); got.Verdict != TooFew || got.Pairs != 0 {
		t.Errorf("nothing generated: %+v", got)
	}
}

// TestJudgeNoise: of differences that are noise one in twenty is called real.
func TestJudgeNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{3, 8, 16, 40} {
		const trials = 20000
		wrong := 0
		for range trials {
			values := make([]float64, n)
			for i := range values {
				values[i] = rng.NormFloat64()
			}
			if judge(values).Verdict == Real {
				wrong++
			}
		}
		if share := float64(wrong) / trials; share < 0.043 || share > 0.057 {
			t.Errorf("%d pairs: %.3f of differences that are none are called real", n, share)
		}
	}
}

// TestSweep: models that take turns are compared with the first, and each with its own plain decoding.
func TestSweep(t *testing.T) {
	var entries []Entry
	for _, drafter := range []bool{true, false, true} {
		m := load(t, "qwen35", drafter)
		opt := ModeOptions{}
		if drafter {
			opt.Drafters = []string{"dflash"}
		}
		modes, err := Modes(opt)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, Entry{m, Config{Modes: modes, Cases: append(cases(), cases()...), Tokens: 12, Repeats: 2,
			IgnoreEnd: true}})
	}
	s, err := MeasureAll(t.Context(), entries)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Reports) != 3 || len(s.Against) != 2 || len(s.Against[0]) != 1 || len(s.Against[1]) != 4 {
		t.Fatalf("%d reports, %v", len(s.Reports), s.Against)
	}
	for _, r := range s.Reports {
		if !r.Identical.Same || r.Identical.SHA256 != s.Reports[0].Identical.SHA256 {
			t.Error(r.Verdict())
		}
		for _, m := range r.Modes {
			if m.FirstToken.Mean <= 0 || m.Against.Pairs != 4 || m.BreakEven <= 0 || m.TokensPerSecond.Deviation <= 0 {
				t.Errorf("%s: %+v", m.Name, m)
			}
		}
		if m := r.Modes[0]; m.BreakEven != 1 || m.Against.Verdict != Noise {
			t.Errorf("plain against itself: %+v", m)
		}
	}
	var text bytes.Buffer
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^  1  model.gguf with model.gguf, `, `(?m)^ +3 auto +[0-9.]+ ± [0-9.]+ `,
		`(?m)^3 Identical: yes`, `(real|noise)`} {
		if !regexp.MustCompile(want).Match(text.Bytes()) {
			t.Errorf("no %s in\n%s", want, text.Bytes())
		}
	}
	entries[1].Config.Cases = cases()
	if _, err := MeasureAll(t.Context(), entries); err == nil {
		t.Error("different prompts were compared")
	}
}
