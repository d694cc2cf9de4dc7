package convert

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/gguf"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// spacedTokenizer is a miniature of Gemma 4's tokenizer.json.
const spacedTokenizer = `{
 "added_tokens": [
  {"id": 0, "content": "<pad>", "special": true}, {"id": 1, "content": "<eos>", "special": true}, {"id": 2, "content": "<bos>", "special": true},
  {"id": 3, "content": "<|tool_call>", "special": true}, {"id": 4, "content": "<|turn>", "special": true}, {"id": 5, "content": "<unused0>", "special": false},
  {"id": 11, "content": "<extra>", "special": false}
 ],
 "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
 "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>"}}, {"Sequence": {"id": "A"}}], "pair": [], "special_tokens": {}},
 "decoder": {"type": "Sequence", "decoders": []},
 "model": {"type": "BPE", "byte_fallback": true,
  "vocab": {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<|tool_call>": 3, "<|turn>": 4, "<unused0>": 5, "<0x0A>": 6, "▁": 7, "a": 8, "▁a": 9, "\n": 10},
  "merges": [["▁", "a"], [" ", "a"]]}
}`

const spacedConfig = `{"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": {"content": "<pad>"}, "sot_token": ` +
	`"<|turn>", "stc_token": "<|tool_call>"}`

func kvMap(l *keyList) map[string]any {
	m := map[string]any{}
	for _, kv := range l.kvs {
		m[kv.Key] = kv.Value
	}
	return m
}

func keysOf(l *keyList) []string {
	var out []string
	for _, kv := range l.kvs {
		out = append(out, strings.TrimPrefix(kv.Key, "tokenizer."))
	}
	return out
}

// tokenizerKeys converts the tokenizer of a folder made from the given files.
func tokenizerKeys(t *testing.T, files map[string]string, m *model, size int) (*keyList, error) {
	t.Helper()
	c := &checkpoint{t: t, files: files, config: map[string]any{"eos_token_id": []int{1, 2}}}
	if _, ok := files["config.json"]; ok {
		c.config = nil
	}
	dir := t.TempDir()
	c.writeFiles(dir)
	tok, err := readTokenizer(dir)
	if err != nil {
		return nil, err
	}
	l := &keyList{}
	return l, tok.setVocab(l, m, "", size)
}

func TestGemmaTokenizer(t *testing.T) {
	m := &model{arch: &arch{name: "gemma4", family: gemma4}}
	l, err := tokenizerKeys(t, map[string]string{
		"tokenizer.json": spacedTokenizer, "tokenizer_config.json": spacedConfig,
		"chat_template.jinja": "{{ bos_token }}\r\nx"}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ggml.model", "ggml.tokens", "ggml.scores", "ggml.token_type", "ggml.merges", "ggml.bos_token_id",
		"ggml.eos_token_id",
		"ggml.padding_token_id", "ggml.add_bos_token", "chat_template", "ggml.add_space_prefix"}
	if d := cmp.Diff(want, keysOf(l)); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
	kv := kvMap(l)
	for key, want := range map[string]any{
		"tokenizer.ggml.model":         "gemma4",
		"tokenizer.ggml.token_type":    []int32{3, 3, 3, 4, 3, 1, 6, 1, 1, 1, 1, 4},
		"tokenizer.ggml.merges":        []string{"▁ a", "\u0120 a"},
		"tokenizer.ggml.bos_token_id":  uint32(2),
		"tokenizer.ggml.add_bos_token": true,
		"tokenizer.chat_template":      "{{ bos_token }}\nx",
	} {
		if d := cmp.Diff(want, kv[key]); d != "" {
			t.Errorf("%s: %s", key, d)
		}
	}
	if s := kv["tokenizer.ggml.scores"].([]float32); len(s) != 12 || s[0] != -1000 {
		t.Errorf("scores are %v", s)
	}
}

// TestGemmaVocabulary: the reference file of the real vocabulary, taken apart and
// put together again, gives the same types.
func TestGemmaVocabulary(t *testing.T) {
	f := openGGUF(t, testkit.Shared(t, "vocab/ggml-vocab-gemma-4.gguf"))
	tokens, _, _ := f.Strings("tokenizer.ggml.tokens")
	types, _, _ := f.Ints("tokenizer.ggml.token_type")
	merges, _, _ := f.Strings("tokenizer.ggml.merges")
	vocab := map[string]int{}
	cfg := map[string]any{}
	for id, text := range tokens {
		vocab[text] = id
		if types[id] == 3 || types[id] == 4 {
			cfg["t"+strings.Trim(text, "<>|\"")+string(rune('a'+id%26))+"_token"] = text
		}
	}
	tj, err := json.Marshal(map[string]any{
		"decoder": map[string]any{"type": "Sequence"},
		"model":   map[string]any{"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges}})
	if err != nil {
		t.Fatal(err)
	}
	tc, _ := json.Marshal(cfg)
	m := &model{arch: &arch{name: "gemma4", family: gemma4}}
	l, err := tokenizerKeys(t, map[string]string{"tokenizer.json": string(tj), "tokenizer_config.json": string(tc)}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	kv := kvMap(l)
	got := kv["tokenizer.ggml.token_type"].([]int32)
	for id, typ := range types {
		if got[id] != int32(typ) {
			t.Errorf("token %d %q has type %d, want %d", id, tokens[id], got[id], typ)
		}
	}
	if d := cmp.Diff(merges[:1000], kv["tokenizer.ggml.merges"].([]string)[:1000]); d != "" {
		t.Error(d)
	}
}

// byteTokenizer is a byte-level tokenizer.json around a pre-tokenizer.
func byteTokenizer(pre, post string) string {
	if post == "" {
		post = "null"
	}
	return `{"added_tokens": [
  {"id": 3, "content": "<|end|>", "special": true}, {"id": 4, "content": "<think>", "special": false},
  {"id": 5, "content": "<|fim|>", "special": false}, {"id": 6, "content": "[gMASK]", "special": false}],
 "pre_tokenizer": ` + pre + `, "post_processor": ` + post + `, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}`
}

func splitStep(pattern string) string {
	p, _ := json.Marshal(pattern)
	return `{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ` +
		string(p) + `}, "behavior": "Isolated", "invert": false},
 {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}`
}

func TestPreTokenizers(t *testing.T) {
	m := &model{arch: &arch{name: "qwen35", family: qwen35}}
	tests := []struct{ name, pre, want string }{
		{"bare", `{"type": "ByteLevel", "use_regex": true}`, "qwen35"},
		{"digits", `{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
			{"type": "ByteLevel", "use_regex": true}]}`, "smollm"},
		{"spelled out", splitStep(`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}` +
			`\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`), "qwen2"},
	}
	for pattern, name := range splitPatterns {
		tests = append(tests, struct{ name, pre, want string }{name, splitStep(pattern), name})
	}
	for _, c := range tests {
		l, err := tokenizerKeys(t, map[string]string{"tokenizer.json": byteTokenizer(c.pre, "")}, m, 8)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := kvMap(l)["tokenizer.ggml.pre"]; got != c.want {
			t.Errorf("%s is recognised as %v, want %s", c.name, got, c.want)
		}
	}
	plain := map[string]string{"tokenizer.json": byteTokenizer(tests[0].pre, "")}
	l, err := tokenizerKeys(t, plain, &model{arch: &arch{name: "llama", family: llama}}, 8)
	if got := kvMap(l)["tokenizer.ggml.pre"]; err != nil || got != "gpt-2" {
		t.Errorf("a Llama's bare pre-tokenizer is recognised as %v (%v), want gpt-2", got, err)
	}
	for name, pre := range map[string]string{
		`\p{Han}+|.`: splitStep(`\p{Han}+|.`), "Whitespace": `{"type": "Whitespace"}`, "is missing": "null",
		"step Digits": `{"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}`,
		"split pattern": `{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, ` +
			splitStep(`\p{N}`) + `]}`,
	} {
		_, err := tokenizerKeys(t, map[string]string{"tokenizer.json": byteTokenizer(pre, "")}, m, 8)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "pre_tokenizer") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestTokenTypes(t *testing.T) {
	m := &model{arch: &arch{name: "qwen3", family: qwen3}}
	l, err := tokenizerKeys(t, map[string]string{"tokenizer.json": byteTokenizer(`{"type": "ByteLevel"}`, "")}, m, 9)
	if err != nil {
		t.Fatal(err)
	}
	kv := kvMap(l)
	if d := cmp.Diff([]int32{1, 1, 1, 3, 4, 3, 4, 5, 5}, kv["tokenizer.ggml.token_type"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a", "b", "ab", "<|end|>", "<think>", "<|fim|>", "[gMASK]", "[PAD7]", "[PAD8]"},
		kv["tokenizer.ggml.tokens"]); d != "" {
		t.Error(d)
	}
}

// TestSpecialTokens covers where ids and flags come from.
func TestSpecialTokens(t *testing.T) {
	m := &model{arch: &arch{name: "qwen3", family: qwen3}}
	pre := `{"type": "ByteLevel"}`
	tests := []struct {
		name  string
		files map[string]string
		want  []gguf.KV // the keys after merges
	}{
		{"config only", map[string]string{"config.json": `{"bos_token_id": 3, "eos_token_id": [1, 2], "text_config": ` +
			`{"pad_token_id": 4}}`},
			[]gguf.KV{{Key: "bos_token_id", Value: uint32(3)}, {Key: "padding_token_id", Value: uint32(4)}}},
		{"tokenizer wins", map[string]string{"config.json": `{"eos_token_id": 0}`,
			"tokenizer_config.json": `{"eos_token": "<|end|>", "add_bos_token": false}`},
			[]gguf.KV{{Key: "eos_token_id", Value: uint32(3)}, {Key: "add_bos_token", Value: false}}},
		{"not an added token", map[string]string{"config.json": `{"eos_token_id": 0}`,
			"tokenizer_config.json": `{"eos_token": "ab"}`}, []gguf.KV{{Key: "eos_token_id", Value: uint32(0)}}},
		{"template adds", map[string]string{"tokenizer_config.json": `{"bos_token": "<think>", "eos_token": "<|end|>"}`,
			"tokenizer.json": byteTokenizer(pre, `{"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
			  "single": [{"SpecialToken": {"id": "<think>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|end|>"}}], "pair": []}]}`)},
			[]gguf.KV{{Key: "bos_token_id", Value: uint32(4)}, {Key: "eos_token_id", Value: uint32(3)},
				{Key: "add_bos_token", Value: true}, {Key: "add_eos_token", Value: true}}},
		{"other end", map[string]string{"tokenizer_config.json": `{"eos_token": "<think>"}`,
			"tokenizer.json": byteTokenizer(pre,
				`{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|end|>"}}]}`)},
			[]gguf.KV{{Key: "eos_token_id", Value: uint32(3)}, {Key: "eot_token_id", Value: uint32(4)},
				{Key: "add_eos_token", Value: true}}},
		{"separator", map[string]string{"tokenizer_config.json": `{"sep_token": "<|end|>"}`,
			"tokenizer.json": byteTokenizer(pre, `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}],
			  "pair": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "B"}}]}`)},
			[]gguf.KV{{Key: "eos_token_id", Value: uint32(3)}, {Key: "seperator_token_id", Value: uint32(3)},
				{Key: "add_sep_token", Value: true}}},
		{"flags from the decoder map",
			map[string]string{"tokenizer_config.json": `{"eos_token": "new", "added_tokens_decoder": {"7": {"content": ` +
				`"new", "special": true}}}`},
			[]gguf.KV{{Key: "eos_token_id", Value: uint32(7)}}},
		{"template in config", map[string]string{"tokenizer_config.json": `{"chat_template": "A"}`,
			"chat_template.jinja": "B"}, []gguf.KV{{Key: "chat_template", Value: "A"}}},
		{"template file", map[string]string{"tokenizer_config.json": `{"x": 1}`, "chat_template.jinja": "B"},
			[]gguf.KV{{Key: "chat_template", Value: "B"}}},
		{"template json", map[string]string{"tokenizer_config.json": `{"x": 1}`,
			"chat_template.json": `{"chat_template": "C"}`}, []gguf.KV{{Key: "chat_template", Value: "C"}}},
		{"named templates", map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", ` +
			`"template": "A"}, {"name": "tool use", "template": "B"}]}`},
			[]gguf.KV{{Key: "chat_template.tool_use", Value: "B"}, {Key: "chat_templates", Value: []string{"tool_use"}},
				{Key: "chat_template", Value: "A"}}},
		{"more files", map[string]string{"tokenizer_config.json": `{"x": 1}`, "chat_template.jinja": "A",
			"additional_chat_templates/rag.jinja": "R"},
			[]gguf.KV{{Key: "chat_template.rag", Value: "R"}, {Key: "chat_templates", Value: []string{"rag"}},
				{Key: "chat_template", Value: "A"}}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			if c.files["tokenizer.json"] == "" {
				c.files["tokenizer.json"] = byteTokenizer(pre, "")
			}
			l, err := tokenizerKeys(t, c.files, m, 8)
			if err != nil {
				t.Fatal(err)
			}
			var got []gguf.KV
			for _, kv := range l.kvs {
				key := strings.TrimPrefix(strings.TrimPrefix(kv.Key, "tokenizer."), "ggml.")
				switch key {
				case "model", "pre", "tokens", "token_type", "merges":
				default:
					got = append(got, gguf.KV{Key: key, Value: kv.Value})
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestSlowTokenizer: the older pair of files works, too.
func TestSlowTokenizer(t *testing.T) {
	m := &model{arch: &arch{name: "qwen3", family: qwen3}}
	l, err := tokenizerKeys(t, map[string]string{
		"vocab.json": `{"a": 0, "b": 1, "ab": 2}`, "merges.txt": "#version: 0.2\na b\n\n",
		"added_tokens.json":     `{"<|end|>": 3}`,
		"tokenizer_config.json": `{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|end|>"}`}, m, 4)
	if err != nil {
		t.Fatal(err)
	}
	kv := kvMap(l)
	for key, want := range map[string]any{
		"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": []string{"a", "b", "ab", "<|end|>"},
		"tokenizer.ggml.token_type": []int32{1, 1, 1, 3}, "tokenizer.ggml.merges": []string{"a b"},
		"tokenizer.ggml.eos_token_id": uint32(3),
	} {
		if d := cmp.Diff(want, kv[key]); d != "" {
			t.Errorf("%s: %s", key, d)
		}
	}
}

// TestPieceTokenizer: a SentencePiece vocabulary in the form of tokenizer.json, whose merges were made from the scores,
// gives the ids that SentencePiece gives.
func TestPieceTokenizer(t *testing.T) {
	data, err := os.ReadFile("../tokenizer/testdata/sentencepiece.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Pieces, Cases [][]any }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	vocab, merges, added := map[string]int{}, [][]string{}, []map[string]any{}
	for id, p := range file.Pieces {
		vocab[p[0].(string)] = id
		if kind := p[2].(float64); kind == 2 || kind == 3 {
			added = append(added, map[string]any{"id": id, "content": p[0], "special": true})
		}
	}
	byScore := slices.Clone(file.Pieces)
	slices.SortStableFunc(byScore, func(a, b []any) int { return int(b[1].(float64) - a[1].(float64)) }) // whole numbers
	for _, p := range byScore {
		runes := []rune(p[0].(string))
		for k := 1; k < len(runes) && p[2].(float64) == 1; k++ {
			left, right := string(runes[:k]), string(runes[k:])
			if _, ok := vocab[left]; ok && vocab[right] > 0 {
				merges = append(merges, []string{left, right})
			}
		}
	}
	m := &model{arch: &arch{name: "llama", family: llama}}
	for _, prefix := range []bool{true, false} {
		steps := []map[string]any{{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "\u2581"}}
		if prefix {
			steps = append([]map[string]any{{"type": "Prepend", "prepend": "\u2581"}}, steps...)
		}
		tj, err := json.Marshal(map[string]any{
			"added_tokens": added, "decoder": map[string]any{"type": "Sequence"},
			"normalizer": map[string]any{"type": "Sequence", "normalizers": steps},
			"model": map[string]any{"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab,
				"merges": merges}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := tokenizerKeys(t, map[string]string{"tokenizer.json": string(tj),
			"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}`}, m, len(vocab)+3)
		if err != nil {
			t.Fatal(err)
		}
		kv := kvMap(l)
		c := tokenizer.Config{Model: kv["tokenizer.ggml.model"].(string), Tokens: kv["tokenizer.ggml.tokens"].([]string),
			Scores: kv["tokenizer.ggml.scores"].([]float32)}
		for _, k := range kv["tokenizer.ggml.token_type"].([]int32) {
			c.Types = append(c.Types, tokenizer.TokenKind(k))
		}
		space := kv["tokenizer.ggml.add_space_prefix"].(bool)
		if c.AddSpace = &space; space != prefix || kv["tokenizer.ggml.add_bos_token"] != true ||
			kv["tokenizer.ggml.merges"] != nil || len(c.Tokens) != len(vocab)+3 {
			t.Errorf("space %v, keys %v", space, keysOf(l))
		}
		tok, err := tokenizer.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range file.Cases {
			var want []tokenizer.ID
			for _, id := range x[1].([]any) {
				want = append(want, tokenizer.ID(id.(float64)))
			}
			text := x[0].(string)
			if !prefix && text != "" {
				text = " " + text // the same, spelled out
			}
			if got := tok.Encode(text, tokenizer.EncodeOptions{}); !slices.Equal(got, want) {
				t.Errorf("%q: %v, want %v", text, got, want)
			}
		}
	}
	for pre, want := range map[string]bool{
		`{"type": "Metaspace", "prepend_scheme": "first"}`: true, `{"type": "Metaspace", "prepend_scheme": "never"}`: false,
		`{"type": "Metaspace", "add_prefix_space": false}`: false, `{"type": "Metaspace"}`: true, `null`: false,
		`{"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}]}`: true, `3`: false,
	} {
		if got := prepends([]byte(pre)); got != want {
			t.Errorf("%s puts a space in front: %v", pre, got)
		}
	}
}
