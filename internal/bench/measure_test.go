package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/synth"
	"strobe/internal/testkit"
)

func load(t *testing.T, name string, drafter bool) *engine.Model {
	t.Helper()
	opt := engine.Options{Threads: 2, Drafter: "none"}
	if drafter {
		opt.Drafter = testkit.Golden(t, "dflash-"+name+"/model.gguf")
	}
	m, err := engine.Load(testkit.Golden(t, name+"/model.gguf"), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func cases() []Case {
	return []Case{
		{ID: "a", Tokens: []int32{5, 17, 40, 99, 3}},
		{ID: "b", Tokens: []int32{100, 101, 102, 103, 100, 101, 102}, Max: 9},
	}
}

func TestMeasure(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen35moe", "gemma4"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, name, true)
			modes, err := Modes(ModeOptions{Names: []string{"chain", "tree", "ngram", "auto"}, Drafters: []string{"dflash"},
				Tree: 12})
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			r, err := Measure(t.Context(), m, Config{Modes: modes, Cases: cases(), Tokens: 24, Repeats: 2, IgnoreEnd: true,
				Progress: func(done, total int) {
					if runs++; done != runs || total != 5*2*2 {
						t.Errorf("progress %d of %d after %d runs", done, total, runs)
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Identical.Checked || !r.Identical.Same {
				t.Errorf("%s", r.Verdict())
			}
			for _, mode := range r.Modes {
				// Both prompts, both repeats; the second prompt wants 9 tokens at most.
				if mode.Tokens != 2*(24+9) || len(mode.TokensPerSecond.Values) != 2 || len(mode.SpeedUp.Values) != 2 {
					t.Errorf("%s: %d tokens, %d speeds", mode.Name, mode.Tokens, len(mode.TokensPerSecond.Values))
				}
				if sum(mode.Lengths) != mode.Passes || mode.TokensPerPass < 1 {
					t.Errorf("%s: %d passes, histogram %v, %g tokens per pass", mode.Name, mode.Passes, mode.Lengths,
						mode.TokensPerPass)
				}
			}
			if p := r.Modes[0]; p.Guessed != 0 || p.Drafts != 0 || p.Passes != p.Tokens-4 || p.Time.Draft != 0 {
				t.Errorf("plain decoding drafted: %+v", p)
			}
			if c := r.Modes[1]; c.Drafts == 0 || c.Guessed == 0 || c.Time.Draft <= 0 || c.Sources["dflash"] == 0 {
				t.Errorf("the chain did not draft: %+v", c)
			}
			if len(r.Prompts) != 2 || r.Prompts[1].Tokens != 9 || len(r.Prompts[0].Modes) != 5 {
				t.Errorf("prompts: %+v", r.Prompts)
			}
			if r.Memory.Weights <= 0 || r.Memory.Cache <= 0 || r.Memory.DrafterCache <= 0 {
				t.Errorf("memory: %+v", r.Memory)
			}
		})
	}
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

// TestMeasureSampled: the same seed gives the same tokens in every mode.
func TestMeasureSampled(t *testing.T) {
	m := load(t, "qwen3", true)
	modes, _ := Modes(ModeOptions{Drafters: []string{"dflash"}})
	r, err := Measure(t.Context(), m, Config{Modes: modes, Cases: cases()[:1], Tokens: 20, Repeats: 1,
		Params: sample.Params{Temp: 1, Seed: 7}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Identical.Same {
		t.Error(r.Verdict())
	}
}

// TestSynthetic: pretended acceptance reaches the wanted mean with a chain, and with a tree as far as
// its paths are long enough.
func TestSynthetic(t *testing.T) {
	m := load(t, "qwen3", true)
	modes, err := Modes(ModeOptions{Drafters: []string{"dflash"}, Synthetic: 4})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Measure(t.Context(), m, Config{Modes: modes, Cases: cases()[:1], Tokens: 161, Repeats: 1, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range r.Modes[1:] {
		if mode.TokensPerPass < 3.9 && mode.Name == "chain" || mode.TokensPerPass < 1.5 || mode.TokensPerPass > 4.1 {
			t.Errorf("%s: %.2f tokens per pass, want 4", mode.Name, mode.TokensPerPass)
		}
	}
	if r.Identical.Checked || !strings.Contains(r.Verdict(), "not checked") {
		t.Errorf("made-up text was compared: %s", r.Verdict())
	}
}

// TestMeasureMTP: a model's own layer is measured beside its drafter, and alone.
func TestMeasureMTP(t *testing.T) {
	write := func(shape string) string {
		path := filepath.Join(t.TempDir(), shape+".gguf")
		if err := synth.Write(t.Context(), path, shape, "q4_k_m", 1, synth.Options{}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	target := write("tiny-qwen35-mtp")
	for _, drafter := range []string{"", write("tiny-qwen35-dflash")} {
		m, err := engine.Load(target, engine.Options{Threads: 2, Drafter: drafter, MTP: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		modes, err := Modes(ModeOptions{Drafters: names(m)})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Measure(t.Context(), m, Config{Modes: modes, Cases: cases(), Tokens: 24, Repeats: 1, IgnoreEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Identical.Checked || !r.Identical.Same || len(r.Modes) != 5 {
			t.Errorf("%d modes, %s", len(r.Modes), r.Verdict())
		}
		own := r.Drafter
		if drafter != "" {
			own = r.MTP
		}
		if own == nil || own.Name != "mtp" || own.Path != target || own.WeightBytes == 0 ||
			drafter == "" && r.MTP != nil {
			t.Errorf("drafters %+v and %+v", r.Drafter, r.MTP)
		}
		name := "mtp"
		if drafter != "" {
			name = "dflash"
		}
		for _, x := range r.Modes[1:] {
			checkSources(t, &x)
		}
		if c := r.Modes[1]; c.Sources[name] == 0 || r.Modes[3].Name != "mtp" || r.Modes[3].Sources["dflash"] > 0 {
			t.Errorf("chain drafted by %v, mtp by %v", c.Sources, r.Modes[3].Sources)
		}
	}
}

// checkSources: the stages of a mode's sources add up to what the mode did.
func checkSources(t *testing.T, m *ModeReport) {
	t.Helper()
	var guessed, accepted int
	draft, verify := 0.0, 0.0 // milliseconds of all
	for _, s := range m.BySource {
		guessed, accepted = guessed+s.Guessed, accepted+s.Accepted
		draft += s.Draft * float64(s.Drafts)
		verify += s.Verify * float64(s.Rounds)
		if s.Rounds != m.Sources[s.Name] || s.Rounds > 0 && (s.Verify <= 0 || s.Accept <= 0 || s.Host <= 0) ||
			s.Drafts > 0 && s.Draft <= 0 || s.Right > s.Drafts {
			t.Errorf("%s: %+v", m.Name, s)
		}
	}
	all := float64(m.Tokens)
	if guessed != m.Guessed || accepted != m.Accepted || math.Abs(draft-m.Time.Draft*all) > 1e-6*draft ||
		verify > m.Time.Verify*all*(1+1e-6) {
		t.Errorf("%s: sources guessed %d, %d right, drafts took %.3f ms, passes %.3f; all %+v", m.Name, guessed, accepted,
			draft, verify, m)
	}
}

// names lists a model's drafters.
func names(m *engine.Model) (out []string) {
	for _, d := range m.Drafters() {
		out = append(out, d.Name())
	}
	return out
}

func TestModes(t *testing.T) {
	names := func(opt ModeOptions) string {
		ms, err := Modes(opt)
		if err != nil {
			return err.Error()
		}
		var s []string
		for _, m := range ms {
			s = append(s, m.Name)
		}
		return strings.Join(s, " ")
	}
	for _, tc := range []struct {
		opt  ModeOptions
		want string
	}{
		{ModeOptions{Drafters: []string{"dflash"}}, "plain chain tree auto"},
		{ModeOptions{Drafters: []string{"dflash", "mtp"}}, "plain chain tree mtp auto"},
		{ModeOptions{Names: []string{"mtp"}, Drafters: []string{"dflash"}},
			`mode "mtp" needs a layer for multi-token prediction: give it with -d FILE`},
		{ModeOptions{Drafters: []string{"mtp"}}, "plain chain tree mtp auto"},
		{ModeOptions{Drafters: []string{"eagle3"}}, "plain chain tree auto"},
		{ModeOptions{Drafters: []string{"dflash", "eagle3", "mtp"}}, "plain chain tree mtp eagle3 auto"},
		{ModeOptions{Names: []string{"eagle3"}, Drafters: []string{"dflash"}},
			`mode "eagle3" needs an EAGLE-3 drafter: give it with -d FILE`},
		{ModeOptions{}, "plain ngram"},
		{ModeOptions{Drafters: []string{"dflash"}, Synthetic: 3}, "plain chain tree"},
		{ModeOptions{Names: []string{"auto", "chain"}, Drafters: []string{"dflash"}}, "plain chain auto"},
		{ModeOptions{Names: []string{"chain"}}, `mode "chain" needs a drafter: give it with -d FILE`},
		{ModeOptions{Names: []string{"fast"}}, `mode "fast": want some of plain, chain, tree, mtp, eagle3, ngram, auto`},
	} {
		if got := names(tc.opt); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.opt, got, tc.want)
		}
	}
}

func TestMeasureErrors(t *testing.T) {
	m := load(t, "qwen3", false)
	modes, _ := Modes(ModeOptions{})
	if _, err := Measure(t.Context(), m, Config{Modes: modes}); err == nil {
		t.Error("no prompts, no error")
	}
	_, err := Measure(t.Context(), m, Config{Modes: modes, Cases: []Case{{ID: "far", Tokens: []int32{1 << 20}}}})
	if err == nil || !strings.Contains(err.Error(), "prompt far, mode plain: token id") {
		t.Errorf("bad id: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, m, Config{Modes: modes, Cases: cases()}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestMachine(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4moe"} {
		m := load(t, name, false)
		mc, err := MeasureMachine(t.Context(), m, MachineConfig{ReadBytes: 1 << 20, Rounds: 2, Prompt: 40, Chunk: 16})
		if err != nil {
			t.Fatal(err)
		}
		var rows []int
		for _, p := range mc.Passes {
			rows = append(rows, p.Rows)
			if p.Milliseconds.Min <= 0 || p.ReadFloor <= 0 || p.DotFloor <= 0 || p.Share <= 0 || p.Ratio <= 0 ||
				p.QuietShare <= 0 || p.QuietRatio <= 0 {
				t.Errorf("%s: pass %+v", name, p)
			}
		}
		if !slices.Equal(rows, []int{1, 2, 4, 8, 16, 32}) {
			t.Errorf("%s: passes of %v rows", name, rows)
		}
		if mc.ReadOne.Median <= 0 || mc.ReadAll.Median <= 0 || mc.Dot.Median <= 0 || mc.DecodeShare <= 0 ||
			len(mc.PromptTokensPerSecond.Values) != 1 {
			t.Errorf("%s: %+v", name, mc)
		}
	}
}

// TestWeights: what a token needs, counted by hand from the files.
func TestWeights(t *testing.T) {
	for _, name := range testkit.GoldenModels(t) {
		if strings.HasPrefix(name, "dflash") || strings.HasSuffix(name, "assistant") {
			continue
		}
		m := load(t, name, false)
		w := weightsOf(m.Target.File(), &m.Target.Config)
		total := 0
		for _, x := range m.Target.File().Tensors() {
			total += len(x.Data)
		}
		one, many := w.bytes(1), w.bytes(1000)
		if one <= 0 || one > many || many > float64(total) {
			t.Errorf("%s: one token needs %.0f bytes, many %.0f, the file has %d", name, one, many, total)
		}
		if moe := m.Target.Experts > 0; moe != (one < many) {
			t.Errorf("%s: experts %d, but one token needs %.0f bytes and many %.0f", name, m.Target.Experts, one, many)
		}
		if w.macs() <= 0 {
			t.Errorf("%s: no products", name)
		}
	}
}

// TestJSON: the documented names are there.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(b.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "system", "model", "drafter", "settings", "modes", "prompts", "identical",
		"memory", "machine"} {
		if _, ok := o[key]; !ok {
			t.Errorf("no field %q", key)
		}
	}
	mode := o["modes"].([]any)[1].(map[string]any)
	if mode["tokens_per_second"].(map[string]any)["median"] != 24.0 || mode["tokens_per_pass"] != 3.0 {
		t.Errorf("mode: %v", mode)
	}
}

func TestText(t *testing.T) {
	r := sampleReport()
	r.Prompts = []PromptReport{{ID: "one", Tokens: 12, Modes: map[string]PromptMode{"plain": {10, 1}, "chain": {24, 3}}}}
	r.Machine = &Machine{Threads: 2, ReadOne: NewSpread([]float64{1e10}),
		Passes: []Pass{{Rows: 1, Milliseconds: NewSpread([]float64{2}), Ratio: 1, Share: 0.5}}}
	var b strings.Builder
	if err := r.WriteText(&b, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"chain", "23.7 ± 1.5", "2.50 (2.10..2.90)  real", "20 of 150", "Prompts: tokens/s",
		"one +12 +10.0 +1.00 +24.0 +3.00", "10.0 GB/s with 1 thread", "Identical: yes, all 2 modes"} {
		if !strings.Contains(b.String(), want) && !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	r.Identical = Identical{Checked: true, Differences: []Difference{{"chain", "a", 17}}}
	if v := r.Verdict(); v != "Identical: NO, 1 differences; mode chain differs from plain on prompt a at token 17" {
		t.Error(v)
	}
}
