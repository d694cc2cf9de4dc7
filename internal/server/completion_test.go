package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/tokenizer"
)

// TestCompletion: llama.cpp's own endpoint, whole and streamed.
func TestCompletion(t *testing.T) {
	f := start(t, options{engine: engineConfig(4)})
	q := dict{"prompt": "func main", "n_predict": 12, "temperature": 0, "n_probs": 3, "return_tokens": true,
		"ignore_eos": true, "id_slot": -1, "cache_prompt": true}
	m := f.post("/completion", q)
	want := text(f.post("/v1/completions", dict{"prompt": "func main", "max_tokens": 12, "temperature": 0,
		"ignore_eos": true}), "choices", 0, "text")
	if text(m, "content") != want || m["stop"] != true || text(m, "stop_type") != "limit" ||
		text(m, "prompt") != "func main" || text(m, "model") != "qwen35" {
		t.Errorf("answer %v", m)
	}
	ids, _ := m["tokens"].([]any)
	probs, _ := m["completion_probabilities"].([]any)
	if len(ids) != 12 || len(probs) != 12 || number(m, "tokens_predicted") != 12 || number(m, "tokens_evaluated") == 0 {
		t.Errorf("%d tokens, %d probabilities: %v", len(ids), len(probs), m)
	}
	if top, _ := at(probs[0], "top_logprobs").([]any); len(top) != 3 || at(top[0], "id") != ids[0] ||
		at(probs[0], "id") != ids[0] || text(top[0], "token") == "" {
		t.Errorf("probabilities %v", probs[0])
	}
	if number(m, "timings", "predicted_n") != 12 || number(m, "generation_settings", "n_predict") != 12 ||
		number(m, "generation_settings", "n_ctx") != 2048 {
		t.Errorf("timings %v, settings %v", m["timings"], m["generation_settings"])
	}

	content, tokens := "", 0
	evs := f.events("/completion", with(q, dict{"stream": true}))
	for i, e := range evs {
		content += text(e.data, "content")
		l, _ := e.data["tokens"].([]any)
		tokens += len(l)
		if (e.data["stop"] == true) != (i == len(evs)-1) {
			t.Errorf("event %d: %v", i, e.data)
		}
	}
	if content != want || tokens != 12 || text(evs[len(evs)-1].data, "stop_type") != "limit" {
		t.Errorf("stream: %q, %d tokens", content, tokens)
	}

	m = f.post("/completion", with(q,
		dict{"response_fields": []string{"content", "generation_settings/n_predict", "nothing/here"}}))
	if len(m) != 2 || text(m, "content") != want || number(m, "generation_settings/n_predict") != 12 {
		t.Errorf("chosen fields: %v", m)
	}
	m = f.post("/completion", with(q, dict{"stop": []string{want[len(want)/2 : len(want)/2+3]}, "return_tokens": false}))
	if text(m, "stop_type") != "word" || text(m, "stopping_word") == "" || len(m["tokens"].([]any)) != 0 {
		t.Errorf("stopped: %v", m)
	}
	status, b := f.do("POST", "/completion", encode(t, with(q, dict{"prompt": []string{"func main", "package"}})))
	var list []dict
	if err := json.Unmarshal(b, &list); err != nil || status != http.StatusOK || len(list) != 2 ||
		text(list[0], "content") != want || number(list[1], "index") != 1 {
		t.Errorf("two prompts: %d %s", status, b)
	}
	status, b = f.do("POST", "/embedding", `{"content":["a","b"]}`)
	if err := json.Unmarshal(b, &list); err != nil || status != http.StatusOK || len(list) != 2 {
		t.Fatalf("embedding: %d %s", status, b)
	}
	if v, _ := at(list[1], "embedding", 0).([]any); len(v) != 64 {
		t.Errorf("embedding: %v", list[1])
	}
}

// TestInfill: the text between two others, for models that have tokens for it. In the parts such tokens are text.
func TestInfill(t *testing.T) {
	plain := start(t, options{})
	for path, q := range map[string]dict{"/infill": {"input_prefix": "a", "input_suffix": "b"},
		"/v1/completions": {"prompt": "a", "suffix": "b"}} {
		if status, b := plain.do("POST", path, encode(t, q)); status != http.StatusNotImplemented ||
			!strings.Contains(string(b), "filling in") {
			t.Errorf("%s at a model that cannot: %d %s", path, status, b)
		}
	}
	tok := plain.e.Model().Tokenizer
	var keys []gguf.KV
	said := map[string]string{}
	// Control tokens of this model play the parts.
	next := tokenizer.ID(0)
	for _, role := range []string{"pre", "suf", "mid", "rep", "sep"} {
		for tok.Kind(next) != tokenizer.Control || tok.IsEOG(next) {
			next++
		}
		keys = append(keys, gguf.KV{Key: "tokenizer.ggml.fim_" + role + "_token_id", Value: uint32(next)})
		said[role] = tok.Text(next)
		next++
	}
	f := start(t, options{template: hermesTemplate, keys: keys})
	evil := "x" + said["mid"]
	m := f.post("/infill", dict{"input_prefix": "func ", "prompt": evil, "input_suffix": "}\n", "n_predict": 2,
		"input_extra": []dict{{"filename": "a.go", "text": "package a"}}})
	want := said["rep"] + "project\n" + said["sep"] + "a.go\npackage a" + said["sep"] + "file\n" + said["pre"] + "func " +
		evil + said["suf"] + "}\n" + said["mid"]
	if text(m, "prompt") != want {
		t.Errorf("prompt %q, want %q", text(m, "prompt"), want)
	}
	ids := len(f.e.Model().Tokenizer.Encode(want, tokenizer.EncodeOptions{ParseSpecial: true}))
	if n := number(m, "tokens_evaluated"); n <= ids {
		t.Errorf("%d tokens: a token that the text spells was taken for one", n)
	}
	a := f.post("/v1/completions", dict{"prompt": "func ", "suffix": "}\n", "max_tokens": 5, "temperature": 0})
	b := f.post("/infill", dict{"input_prefix": "func ", "input_suffix": "}\n", "n_predict": 5, "temperature": 0})
	if text(a, "choices", 0, "text") != text(b, "content") || text(b, "content") == "" {
		t.Errorf("completion %v, infill %v", a, b)
	}
}
