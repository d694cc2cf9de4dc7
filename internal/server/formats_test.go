package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/sample/grammar"
)

// TestGrammar: answers match the grammar, in chat and completions, streamed and with drafts.
func TestGrammar(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	const gbnf = "root ::= move (\", \" move){1,3}\nmove ::= [a-h] [1-8] | \"castles\" # chess\n"
	matches := regexp.MustCompile(`^([a-h][1-8]|castles)(, ([a-h][1-8]|castles)){1,3}$`)
	for path, q := range map[string]dict{
		"/v1/chat/completions": {"messages": user("x")},
		"/v1/completions":      {"prompt": "x"},
	} {
		answer := func(m dict) string {
			return text(m, "choices", 0, "message", "content") + text(m, "choices", 0, "text")
		}
		for seed := range 3 {
			q := with(q, dict{"grammar": gbnf, "seed": seed, "temperature": 1, "max_tokens": 100})
			want := answer(f.post(path, q))
			if !matches.MatchString(want) {
				t.Errorf("%s: %q", path, want)
			}
			for _, draft := range []string{"off", "ngram", "dflash"} {
				if got := answer(f.post(path, with(q, dict{"strobe": dict{"draft": draft}}))); got != want {
					t.Errorf("%s, draft %s: %q, want %q", path, draft, got, want)
				}
			}
			got := ""
			for _, e := range f.events(path, with(q, dict{"stream": true})) {
				got += text(e.data, "choices", 0, "delta", "content") + text(e.data, "choices", 0, "text")
			}
			if got != want {
				t.Errorf("%s, streamed: %q, want %q", path, got, want)
			}
		}
	}
	// Reasoning before the answer is left alone.
	m := f.post("/v1/chat/completions", dict{"messages": user("x"), "grammar": gbnf, "enable_thinking": true,
		"thinking_budget_tokens": 5, "max_tokens": 200})
	if s := text(m, "choices", 0, "message", "content"); !matches.MatchString(strings.TrimSpace(s)) ||
		text(m, "choices", 0, "message", "reasoning_content") == "" {
		t.Errorf("with reasoning: %v", at(m, "choices", 0, "message"))
	}
}

// TestSchemaField: llama.cpp's json_schema does in chat what it does in completions.
func TestSchemaField(t *testing.T) {
	f := start(t, options{})
	sch := compileSchema(t, personSchema)
	q := dict{"json_schema": json.RawMessage(personSchema), "seed": 1, "temperature": 1, "max_tokens": 200}
	m := f.post("/v1/chat/completions", with(q, dict{"messages": user("x")}))
	validate(t, sch, text(m, "choices", 0, "message", "content"))
	m = f.post("/v1/completions", with(q, dict{"prompt": "x"}))
	validate(t, sch, text(m, "choices", 0, "text"))
}

// TestRefusedFields: what other servers would have made of these is not silently left out.
func TestRefusedFields(t *testing.T) {
	f := start(t, options{})
	for _, field := range []string{
		`"guided_json":{"type":"object"}`, `"guided_regex":"a+"`, `"guided_choice":["a","b"]`,
		`"guided_grammar":"root ::= \"a\""`,
		`"structured_outputs":{"regex":"a"}`, `"regex":"a"`, `"ebnf":"a"`, `"t_max_predict_ms":100`, `"grammar_lazy":true`,
		`"min_tokens":5`,
		`"stop_token_ids":[1]`, `"allowed_token_ids":[1]`, `"bad_words":["a"]`, `"best_of":3`, `"use_beam_search":true`,
		`"structural_tag":{"a":1}`,
		`"lora":[{"id":0,"scale":1}]`,
	} {
		name, _, _ := strings.Cut(strings.Trim(field, `"`), `"`)
		for path, rest := range map[string]string{
			"/v1/chat/completions": `"messages":[{"role":"user","content":"x"}]`, "/v1/completions": `"prompt":"x"`,
			"/v1/responses": `"input":"x"`,
		} {
			status, b := f.do("POST", path, fmt.Sprintf(`{%s,%s,"max_tokens":1,"max_output_tokens":1}`, rest, field))
			m := decodeObject(t, b)
			if status != http.StatusBadRequest || text(m, "error", "param") != name ||
				!strings.Contains(text(m, "error", "message"), "not supported") {
				t.Errorf("%s %s: %d %s", path, field, status, b)
			}
		}
	}
	// Off, or only tuning.
	m := f.post("/v1/chat/completions", dict{"messages": user("x"), "max_tokens": 1, "mirostat": 0, "mirostat_tau": 5,
		"guided_json": nil, "best_of": 1,
		"structured_outputs": nil, "xtc_probability": 0.1, "min_tokens": 0, "grammar": "", "lora": []any{},
		"guided_decoding_backend": "auto"})
	if text(m, "object") != "chat.completion" {
		t.Error(m)
	}
}

// TestGrammarWork: a grammar that takes too much work ends its own request, with an error that is the client's.
func TestGrammarWork(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	hostile := "root ::= "
	for i := range 60 {
		hostile += fmt.Sprintf(". root \"%d\" | ", i)
	}
	body, _ := json.Marshal(dict{"messages": user("x"), "grammar": hostile + ".", "max_tokens": 50})
	status, answer := f.do("POST", "/v1/chat/completions", string(body))
	if status != http.StatusBadRequest || !strings.Contains(string(answer), "too much work") {
		t.Errorf("%d %s", status, answer)
	}
	m := f.post("/v1/chat/completions", dict{"messages": user("x"), "grammar": `root ::= "red"`, "max_tokens": 50})
	if text(m, "choices", 0, "message", "content") != "red" {
		t.Errorf("afterwards: %v", m)
	}
}

// TestGrammarMemory: compiled grammars are kept by their size as well as by their number.
func TestGrammarMemory(t *testing.T) {
	v := &grammars{compiled: map[string]*grammar.Grammar{}}
	compiled := 0
	get := func(key string) *grammar.Grammar {
		g, err := v.compile(key, func() (*grammar.Grammar, error) { compiled++; return grammar.Object(), nil })
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	long := strings.Repeat("k", maxGrammarBytes/5)
	for i := range 20 {
		key := long + fmt.Sprint(i)
		if first := get(key); get(key) != first {
			t.Errorf("%d is compiled twice", i)
		}
		sum := 0
		for k, g := range v.compiled {
			sum += len(k) + g.Size()
		}
		if sum != v.bytes || sum > maxGrammarBytes || len(v.compiled) > 5 {
			t.Fatalf("after %d: %d grammars of %d bytes, counted %d", i, len(v.compiled), sum, v.bytes)
		}
	}
	for i := range 100 {
		get(fmt.Sprint("short", i))
	}
	if compiled != 120 || len(v.compiled) > maxGrammars {
		t.Errorf("%d compiled, %d kept", compiled, len(v.compiled))
	}
}
