package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"strobe/internal/speculate"
)

// TestAccept: rows of all prompts, of suites and of their categories add up, for each source and each length that the
// source can do, and cancelling ends it.
func TestAccept(t *testing.T) {
	m := load(t, "qwen35", true)
	c := AcceptConfig{Lengths: []int{2, 1000, 2000}, Sources: []string{"ngram", "dflash"}, Config: Config{Tokens: 16,
		IgnoreEnd: true, Cases: append(cases(), cases()...)}}
	for i, category := range []string{"a/x", "a/y", "b"} {
		c.Cases[i].Category = category
	}
	steps := 0
	c.Progress = func(done, total int) {
		if steps++; done != steps || total != 4*len(c.Cases) {
			t.Errorf("step %d: %d of %d", steps, done, total)
		}
	}
	r, err := Accept(t.Context(), m, c)
	if err != nil {
		t.Fatal(err)
	}
	most := m.Drafters()[0].Max()
	byName := map[string]AcceptRow{}
	for _, x := range r.Rows {
		if x.Category == "" {
			if x.Source == "dflash" && x.Length != 2 && x.Length != most || len(x.ByPosition) > x.Length {
				t.Errorf("length %d of %s with positions %v", x.Length, x.Source, x.ByPosition)
			}
			byName = map[string]AcceptRow{}
		}
		byName[x.Category] = x
		if x.Accepted > x.Guessed ||
			x.Passes > 0 && math.Abs(x.TokensPerPass-1-float64(x.Accepted)/float64(x.Passes)) > 1e-9 {
			t.Errorf("%+v", x)
		}
		if x.Category == "b" {
			all, a, b := byName[""], byName["a"], byName["b"]
			if a.Prompts != 2 || b.Prompts != 1 || all.Prompts != len(c.Cases) || all.Tokens <= a.Tokens+b.Tokens ||
				a.Tokens != byName["a/x"].Tokens+byName["a/y"].Tokens ||
				a.Guessed != byName["a/x"].Guessed+byName["a/y"].Guessed || a.Passes != byName["a/x"].Passes+byName["a/y"].Passes {
				t.Errorf("%+v", byName)
			}
		}
	}
	if len(r.Rows) != 4*5 || !r.Identical.Same || len(r.Drafters) != 1 || r.Settings.Prompts != len(c.Cases) {
		t.Errorf("%d rows, %+v", len(r.Rows), r.Identical)
	}
	var text, js bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&js)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dflash 2 ", "  a/x ", "Identical: yes"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	}
	if !strings.Contains(js.String(), `"schema": "strobe-accept/1"`) {
		t.Error(js.String())
	}
	c.Progress = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Accept(ctx, m, c); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	c.Sources = []string{"mtp"}
	if _, err := Accept(t.Context(), m, c); err == nil {
		t.Error("a source that the model does not have was measured")
	}
	// Numbers of others stand beside the model they are of, and beside no other.
	m.Target.Name = "Qwen3.5 4B"
	if x := publishedFor(m, "mtp", "math/Algebra"); len(x) != 1 || x[0].TokensPerPass != 5.04 {
		t.Errorf("%+v", x)
	}
	if x := append(publishedFor(m, "mtp", "mathematics"), publishedFor(m, "ngram", "math")...); len(x) > 0 {
		t.Errorf("%+v", x)
	}
	m.Target.Name = "Qwen3.5 9B"
	if x := publishedFor(m, "mtp", "math"); len(x) > 0 {
		t.Errorf("%+v", x)
	}
}

// TestAcceptRow: the prompts of a category count, and no others; a suite has all of its categories.
func TestAcceptRow(t *testing.T) {
	run := func(lengths ...int) []result { // rounds of three guesses, by the tokens they yielded
		var st speculate.Stats
		for _, n := range lengths {
			st.Rounds++
			st.Tokens += n
			st.Guessed += 3
			st.Accepted += n - 1
			st.ByLength[n]++
			for d := range 3 {
				if d < n {
					st.Reached[d]++
				}
				if d < n-1 {
					st.Hit[d]++
				}
			}
		}
		return []result{{decode: st}}
	}
	cases := []Case{{Category: "s/x"}, {Category: "s/y"}, {Category: "sx"}, {}}
	results := [][]result{run(4, 1), run(2, 2), run(3), run(1)}
	for category, want := range map[string]AcceptRow{
		"s": {Prompts: 2, Tokens: 9, Passes: 4, TokensPerPass: 2.25, Guessed: 12, Accepted: 5,
			ByPosition: []float64{0.75, 1. / 3, 1}},
		"s/x": {Prompts: 1, Tokens: 5, Passes: 2, TokensPerPass: 2.5, Guessed: 6, Accepted: 3,
			ByPosition: []float64{0.5, 1, 1}},
		"": {Prompts: 4, Tokens: 13, Passes: 6, TokensPerPass: 13. / 6, Guessed: 18, Accepted: 7,
			ByPosition: []float64{4. / 6, 0.5, 0.5}},
	} {
		if want.Category = category; !reflect.DeepEqual(acceptRow(cases, results, category), want) {
			t.Errorf("%q: %+v, want %+v", category, acceptRow(cases, results, category), want)
		}
	}
}

// TestLayouts: prompts of the public suites are read as they are published.
func TestLayouts(t *testing.T) {
	ps, err := ReadPrompts(strings.NewReader(`{"task_id":"HumanEval/0","prompt":"def f():","canonical_solution":"x"}
{"question":"How many?","answer":"#### 3"}
{"problem":"Find $x$.","solution":"3","subject":"Algebra","level":2,"unique_id":"test/algebra/1.json"}
{"question_id":81,"category":"writing","turns":["Write.","Again."]}
`), "x")
	if err != nil {
		t.Fatal(err)
	}
	want := []Prompt{{ID: "HumanEval/0", Text: "def f():"}, {ID: "line-2", Text: "How many?"},
		{ID: "test/algebra/1.json", Text: "Find $x$.", Category: "Algebra"}, {ID: "81", Text: "Write.", Category: "writing"}}
	for i, p := range ps {
		if p.ID != want[i].ID || p.Text != want[i].Text || p.Category != want[i].Category || p.Raw {
			t.Errorf("%+v, want %+v", p, want[i])
		}
	}
}
