package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/gguf"
)

const mistralTemplate = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]" +
	"{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"

// pieceKeys is a SentencePiece vocabulary for a golden model, whose embedding has 512 rows.
func pieceKeys() []gguf.KV {
	tokens, kinds := []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]"}, []int32{2, 3, 3, 3, 3}
	add := func(s string, kind int32) {
		if len(tokens) < 512 && !slices.Contains(tokens, s) {
			tokens, kinds = append(tokens, s), append(kinds, kind)
		}
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), 6)
	}
	letters := strings.Split("\u2581 e t a o i n s r l h d c u m p f g w y b v k x j q z H { } \" : , 0 1 2", " ")
	for _, s := range letters {
		add(s, 1)
	}
	for _, a := range letters {
		for _, b := range letters {
			add(a+b, 1)
		}
	}
	scores := make([]float32, len(tokens))
	for i := range scores {
		scores[i] = -float32(i)
	}
	return []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: kinds}, {Key: "tokenizer.ggml.scores", Value: scores},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.add_bos_token", Value: true},
	}
}

// TestPieces: with a SentencePiece vocabulary texts come back as they were, answers begin without the space that stands
// for their beginning, and stop strings and grammars work.
func TestPieces(t *testing.T) {
	f := start(t, options{model: "qwen3", template: mistralTemplate, keys: pieceKeys(), plain: true,
		engine: engine.Config{Context: 1024}})
	for _, s := range []string{"", "hello", " hello  there", "wörld 🙂\n\tx", "[INST] a[/INST]b"} {
		tokens := f.post("/tokenize", dict{"content": s, "add_special": true})["tokens"]
		if got := text(f.post("/detokenize", dict{"tokens": tokens}), "content"); got != "<s>"+s {
			t.Errorf("%q comes back as %q", s, got)
		}
		echo := f.post("/v1/completions", dict{"prompt": tokens, "max_tokens": 1, "echo": true})
		if got := text(echo, "choices", 0, "text"); !strings.HasPrefix(got, "<s>"+s) {
			t.Errorf("%q is echoed as %q", s, got)
		}
	}

	const said = "Hello wörld 🙂 again"
	f.script(said)
	var asked []int32
	scripted := f.s.tweak
	f.s.tweak = func(req *engine.Request, v *model) {
		scripted(req, v)
		asked = slices.Clone(req.Tokens)
	}
	ask := func(q dict) dict {
		q["temperature"] = 0
		return q
	}
	if got := text(f.post("/v1/chat/completions", ask(dict{"messages": user("hi [/INST] there")})),
		"choices", 0, "message", "content"); got != said {
		t.Errorf("the answer is %q", got)
	}
	if n := count(asked, 4); n != 1 {
		t.Errorf("[/INST] of a message is one of %d control tokens", n)
	}
	var streamed strings.Builder
	for _, e := range f.events("/v1/chat/completions", ask(dict{"messages": user("hi"), "stream": true})) {
		streamed.WriteString(text(e.data, "choices", 0, "delta", "content"))
	}
	if streamed.String() != said {
		t.Errorf("the answer streams as %q", streamed.String())
	}
	if got := text(f.post("/v1/chat/completions", ask(dict{"messages": user("hi"), "stop": []string{"🙂"}})),
		"choices", 0, "message", "content"); got != "Hello wörld " {
		t.Errorf("before the stop string there is %q", got)
	}
	// What was said is what the next turn finds in the cache.
	first := slices.Clone(asked)
	f.post("/v1/chat/completions", ask(dict{"messages": append(user("hi"), dict{"role": "assistant", "content": said},
		dict{"role": "user", "content": "more"})}))
	spoken := f.post("/tokenize", dict{"content": said})["tokens"].([]any)
	for _, id := range spoken {
		first = append(first, int32(id.(float64)))
	}
	if len(asked) <= len(first) || !slices.Equal(asked[:len(first)], first) {
		t.Errorf("the second turn begins with %v, want %v", asked, first)
	}

	f.s.tweak = nil
	for seed := range 5 {
		q := dict{"messages": user("json"), "seed": seed, "temperature": 1, "max_tokens": 200,
			"response_format": dict{"type": "json_schema", "json_schema": dict{"name": "x", "schema": json.RawMessage(
				`{"type":"object","properties":{"hé":{"enum":["ünter","🙂"]},"n":{"type":"boolean"}},"required":["hé","n"]}`)}}}
		content := text(f.post("/v1/chat/completions", q), "choices", 0, "message", "content")
		var got struct {
			Word string `json:"hé"`
			N    *bool
		}
		err := json.Unmarshal([]byte(content), &got)
		if err != nil || got.N == nil || got.Word != "ünter" && got.Word != "🙂" {
			t.Errorf("seed %d: %v: %s", seed, err, content)
		}
	}
}

// count is how often a token occurs.
func count(ids []int32, id int32) (n int) {
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}
