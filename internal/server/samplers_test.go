package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/sample"
)

// TestSamplerFields: the fields of rare samplers reach the engine from every protocol that has them, and wrong values
// are refused.
func TestSamplerFields(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	var got sample.Params
	f.s.tweak = func(req *engine.Request, _ *model) { got = req.Params }
	for name, c := range map[string]struct {
		fields dict
		want   func(*sample.Params)
	}{
		"sigma":    {dict{"top_n_sigma": 1.5}, func(p *sample.Params) { p.TopNSigma = 1.5 }},
		"no sigma": {dict{"top_n_sigma": -1}, func(p *sample.Params) {}},
		"xtc": {dict{"xtc_probability": 0.5}, func(p *sample.Params) {
			p.XTC = sample.XTCParams{Probability: 0.5,
				Threshold: 0.1}
		}},
		"xtc 2": {dict{"xtc_probability": 0.5, "xtc_threshold": 0.2},
			func(p *sample.Params) { p.XTC = sample.XTCParams{Probability: 0.5, Threshold: 0.2} }},
		"dynatemp": {dict{"dynatemp_range": 0.5, "dynatemp_exponent": 2},
			func(p *sample.Params) { p.DynaTemp = sample.DynaTempParams{Range: 0.5, Exponent: 2} }},
		"mirostat": {dict{"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2},
			func(p *sample.Params) { p.Mirostat = sample.MirostatParams{Version: 2, Tau: 3, Eta: 0.2} }},
		"order": {dict{"samplers": []string{"temperature", "top_k"}},
			func(p *sample.Params) { p.Steps = []sample.Step{sample.StepTemperature, sample.StepTopK} }},
		"letters": {dict{"samplers": "tk"}, func(p *sample.Params) {
			p.Steps = []sample.Step{sample.StepTemperature,
				sample.StepTopK}
		}},
		"vLLM's name": {dict{"repetition_penalty": 1.3}, func(p *sample.Params) { p.RepeatPenalty = 1.3 }},
	} {
		for path, body := range map[string]dict{
			"/v1/chat/completions": {"messages": user("x"), "max_tokens": 1}, "/v1/completions": {"prompt": "x",
				"max_tokens": 1},
			"/completion": {"prompt": "x", "n_predict": 1}, "/api/chat": {"messages": user("x"), "stream": false},
		} {
			q := with(body, c.fields)
			base := with(body, dict{"seed": 1, "temperature": 1})
			if path == "/api/chat" {
				base = with(body, dict{"options": dict{"seed": 1, "temperature": 1, "num_predict": 1}})
				q = with(body, dict{"options": with(dict{"seed": 1, "temperature": 1, "num_predict": 1}, c.fields)})
			} else {
				q = with(q, dict{"seed": 1, "temperature": 1})
			}
			f.post(path, base)
			want := got
			c.want(&want)
			f.post(path, q)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %+v, want %+v", path, name, got, want)
			}
		}
	}
	f.s.tweak = nil
	for _, field := range []string{`"xtc_probability":2`, `"xtc_threshold":-1`, `"dynatemp_range":-1`, `"mirostat":3`,
		`"samplers":["nope"]`, `"samplers":["top_k","top_k"]`, `"samplers":3`, `"samplers":"q"`,
		`"dry_sequence_breakers":3`} {
		body := `{"prompt":"x","n_predict":1,` + field + `}`
		if status, b := f.do("POST", "/completion", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", field, status, b)
		}
	}
	status, b := f.do("POST", "/completion", `{"prompt":"x","n_predict":3,"n_cmpl":2}`)
	var list []dict
	if err := json.Unmarshal(b, &list); status != http.StatusOK || err != nil || len(list) != 2 {
		t.Errorf("two completions: %d %s", status, b)
	}
}

// TestSamplersAndDrafts: with rare samplers, too, a text is the same with and without drafts.
func TestSamplersAndDrafts(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	for i, fields := range []dict{
		{"top_n_sigma": 1, "xtc_probability": 0.5, "xtc_threshold": 0.05}, {"mirostat": 2, "mirostat_tau": 2},
		{"dynatemp_range": 0.5, "samplers": []string{"temperature", "top_k", "penalties"}, "repeat_penalty": 1.2},
	} {
		var texts []string
		for _, draft := range []string{"off", "dflash", "ngram"} {
			f.s.tweak = func(req *engine.Request, _ *model) { req.Spec.Fixed = true } // drafting need not pay here
			m := f.post("/completion", with(fields, dict{"prompt": "a b a b a b a b", "n_predict": 40, "temperature": 0.8,
				"seed":       3,
				"ignore_eos": true, "strobe": dict{"draft": draft}}))
			texts = append(texts, text(m, "content"))
		}
		if texts[0] == "" || texts[1] != texts[0] || texts[2] != texts[0] {
			t.Errorf("%d: %s", i, fmt.Sprintf("%q", texts))
		}
	}
}
