package server

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/tokenizer"
)

// TestOllamaContext: generate returns the tokens of all that was said, and a request that sends them goes on from
// there.
func TestOllamaContext(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	var prompt []int32
	say := func(text string) {
		f.script(text)
		script := f.s.tweak
		f.s.tweak = func(req *engine.Request, m *model) { prompt = slices.Clone(req.Tokens); script(req, m) }
	}
	tok := f.e.Model().Tokenizer
	ids := func(v any) (out []int32) {
		list, _ := v.([]any)
		for _, x := range list {
			out = append(out, int32(x.(float64)))
		}
		return out
	}
	for _, stream := range []bool{false, true} {
		say("Hello.")
		list := f.lines("/api/generate", dict{"prompt": "Hi", "stream": stream})
		last := list[len(list)-1]
		context := ids(last["context"])
		said := string(tok.Decode(context, tokenizer.DecodeOptions{Special: true, Opens: true}))
		if want := "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."; !strings.HasPrefix(said, want) ||
			!tok.IsEOG(context[len(context)-1]) {
			t.Errorf("stream %v: the context says %q", stream, said)
		}
		say("Yes.")
		f.lines("/api/generate", dict{"prompt": "More?", "context": context, "stream": stream})
		if !slices.Equal(prompt[:min(len(prompt), len(context))], context) ||
			!strings.HasSuffix(string(tok.Decode(prompt, tokenizer.DecodeOptions{Special: true, Opens: true})),
				"<|im_start|>user\nMore?<|im_end|>\n<|im_start|>assistant\n") {
			t.Errorf("stream %v: the prompt is not the context and the message", stream)
		}
	}
	say("x")
	if m := f.lines("/api/generate", dict{"prompt": "x", "raw": true, "stream": false})[0]; m["context"] != nil {
		t.Errorf("raw: %v", m)
	}
	if m := f.lines("/api/chat", dict{"messages": user("x"), "stream": false})[0]; m["context"] != nil {
		t.Errorf("chat: %v", m)
	}
	if status, b := f.do("POST", "/api/generate", `{"prompt":"x","context":[99999999]}`); status != http.StatusBadRequest {
		t.Errorf("a token that does not exist: %d %s", status, b)
	}
}

// writes notes how an answer was sent.
type writes struct {
	http.ResponseWriter
	buf     bytes.Buffer
	flushed []string
}

func (w *writes) Write(b []byte) (int, error) { w.buf.Write(b); return w.ResponseWriter.Write(b) }
func (w *writes) FlushError() error {
	w.flushed = append(w.flushed, w.buf.String())
	w.buf.Reset()
	return nil
}

// TestOllamaLines: every line is sent alone, also the last text and the end.
func TestOllamaLines(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.script("Hello.")
	inner := f.s.handler
	var w *writes
	f.s.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w = &writes{ResponseWriter: rw}
		inner.ServeHTTP(w, r)
	})
	req, err := http.NewRequest("POST", "/api/chat", strings.NewReader(encode(t, dict{"messages": user("Hi")})))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "localhost"
	f.s.handler.ServeHTTP(discard{http.Header{}}, req)
	if len(w.flushed) < 2 {
		t.Fatalf("sent %q", w.flushed)
	}
	for _, s := range w.flushed {
		if strings.Count(s, "\n") != 1 {
			t.Errorf("sent at once: %q", s)
		}
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// TestOllamaSuffix: the text between two others is what /infill writes.
func TestOllamaSuffix(t *testing.T) {
	f := start(t, options{})
	status, b := f.do("POST", "/api/generate", `{"prompt":"a","suffix":"b"}`)
	if status != http.StatusNotImplemented {
		t.Errorf("a model without the tokens: %d %s", status, b)
	}
	tok := f.e.Model().Tokenizer
	var keys []gguf.KV
	next := tokenizer.ID(0)
	for _, role := range []string{"pre", "suf", "mid"} {
		for tok.Kind(next) != tokenizer.Control || tok.IsEOG(next) {
			next++
		}
		keys = append(keys, gguf.KV{Key: "tokenizer.ggml.fim_" + role + "_token_id", Value: uint32(next)})
		next++
	}
	f = start(t, options{template: hermesTemplate, keys: keys})
	a := f.post("/api/generate", dict{"prompt": "func ", "suffix": "}", "stream": false,
		"options": dict{"num_predict": 5, "temperature": 0}})
	c := f.post("/infill", dict{"input_prefix": "func ", "input_suffix": "}", "n_predict": 5, "temperature": 0})
	if text(a, "response") == "" || text(a, "response") != text(c, "content") {
		t.Errorf("generate %v, infill %v", a, c)
	}
	// A model that is known not to be trained for it is not asked, whatever its vocabulary.
	f.s.cfg.NoFill, f.s.inUse = []string{"qwen35"}, map[*engine.Engine]*model{}
	for path, q := range map[string]dict{"/infill": {"input_prefix": "a", "input_suffix": "b"},
		"/v1/completions": {"prompt": "a", "suffix": "b"}, "/api/generate": {"prompt": "a", "suffix": "b"}} {
		if status, b := f.do("POST", path, encode(t, q)); status != http.StatusNotImplemented {
			t.Errorf("%s at a model that is not trained for it: %d %s", path, status, b)
		}
	}
	if caps := encode(t, f.post("/api/show", dict{"model": "qwen35"})["capabilities"]); strings.Contains(caps, "insert") {
		t.Errorf("capabilities %s", caps)
	}
}

// TestOllamaTruncate: texts that do not fit are cut for embeddings, unless the client does not want that.
func TestOllamaTruncate(t *testing.T) {
	f := start(t, options{plain: true, engine: engine.Config{Context: 64}})
	long := strings.Repeat("word ", 200)
	m := f.post("/api/embed", dict{"input": long})
	if n := number(m, "prompt_eval_count"); n != 64 {
		t.Errorf("%d tokens of a context of 64", n)
	}
	if status, b := f.do("POST", "/api/embed", encode(t, dict{"input": long, "truncate": false})); status != 400 {
		t.Errorf("truncate false: %d %s", status, b)
	}
	short := f.post("/api/embed", dict{"input": "a", "dimensions": 8})
	if v, _ := at(short, "embeddings", 0).([]any); len(v) != 8 {
		t.Errorf("8 dimensions: %v", short)
	}
	if status, _ := f.do("POST", "/api/embed", encode(t, dict{"input": "a", "dimensions": 65})); status != 400 {
		t.Errorf("more dimensions than there are: %d", status)
	}
}

// TestOllamaDetails: what a file says of itself is shown.
func TestOllamaDetails(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	_, b := f.do("GET", "/api/tags", "")
	m := at(decodeObject(t, b), "models", 0)
	if text(m, "details", "parameter_size") == "" || text(m, "details", "quantization_level") == "" ||
		strings.HasPrefix(text(m, "modified_at"), "0001") {
		t.Errorf("tags: %v", m)
	}
	show := f.post("/api/show", dict{"model": "qwen35"})
	for _, key := range []string{"general.parameter_count", "general.architecture", "qwen35.attention.head_count",
		"tokenizer.ggml.model"} {
		if at(show, "model_info", key) == nil {
			t.Errorf("model_info lacks %s: %v", key, show["model_info"])
		}
	}
	if v, ok := show["model_info"].(map[string]any)["tokenizer.ggml.tokens"]; !ok || v != nil {
		t.Errorf("the vocabulary: %v", v)
	}
}

func TestParameterSize(t *testing.T) {
	for n, want := range map[int64]string{0: "", 999_000: "999.00K", 1_000_000: "1.00M", 999_999_999: "1000.00M",
		1_000_000_000: "1.0B", 27_400_000_000: "27.4B"} {
		if got := parameterSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestOllamaDerived: a model can be copied, given other defaults and a template, and removed. Files are not touched.
func TestOllamaDerived(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	f.post("/api/copy", dict{"source": "qwen35", "destination": "copy:latest"})
	f.post("/api/create", dict{"model": "loud", "from": "copy", "system": "Shout.",
		"template":   `!{{ messages[0].content }}`,
		"parameters": dict{"num_predict": 3, "temperature": 0, "stop": []string{"END"}}})
	f.post("/api/create", dict{"model": "louder", "from": "loud", "parameters": dict{"num_predict": 2}})
	var seen engine.Request
	f.s.tweak = func(req *engine.Request, m *model) { seen = *req }
	for name, want := range map[string]struct {
		prompt string
		most   int
	}{"copy": {"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", 1}, "loud": {"!Shout.", 3}, "louder": {"!Shout.", 2}} {
		q := dict{"model": name, "messages": user("Hi")}
		if name == "copy" {
			q["max_tokens"] = 1
		}
		m := f.post("/v1/chat/completions", q)
		got := string(f.e.Model().Tokenizer.Decode(seen.Tokens, tokenizer.DecodeOptions{Special: true, Opens: true}))
		if got != want.prompt || seen.MaxTokens != want.most || text(m, "model") != name ||
			(name != "copy") != slices.Equal(seen.Stops, []string{"END"}) {
			t.Errorf("%s: prompt %q, at most %d tokens, stops %q, model %q", name, got, seen.MaxTokens, seen.Stops, text(m, "model"))
		}
	}
	f.s.tweak = nil
	_, b := f.do("GET", "/api/tags", "")
	if list, _ := decodeObject(t, b)["models"].([]any); len(list) != 4 {
		t.Errorf("tags: %s", b)
	}
	if m := f.post("/api/show", dict{"model": "loud"}); text(m, "system") != "Shout." ||
		text(m, "details", "parent_model") != "qwen35" || text(m, "template") != `!{{ messages[0].content }}` {
		t.Errorf("show: %v", m)
	}
	for body, want := range map[string]int{
		`{"model":"qwen35","from":"loud"}`:                     409,
		`{"model":"x","from":"nothing"}`:                       404,
		`{"model":"x"}`:                                        400,
		`{"model":"","from":"loud"}`:                           400,
		`{"model":"x","from":"loud","template":"{{ .P }}"}`:    400,
		`{"model":"x","from":"loud","parameters":{"top_p":2}}`: 400,
		`{"model":"x","from":"loud","files":{"a":"b"}}`:        400,
	} {
		if status, b := f.do("POST", "/api/create", body); status != want {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	for name, want := range map[string]int{"loud": 200, "qwen35": 501, "nothing": 404} {
		if status, b := f.do("DELETE", "/api/delete", encode(t, dict{"model": name})); status != want {
			t.Errorf("delete %s: %d %s", name, status, b)
		}
	}
	if status, _ := f.do("POST", "/api/show", `{"model":"louder"}`); status != http.StatusOK {
		t.Errorf("what was derived from a deleted model: %d", status)
	}
}

// TestOllamaUpstream: models of other servers are listed, shown and asked for vectors.
func TestOllamaUpstream(t *testing.T) {
	back := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"sk-upstream"}}})
	f := front(t, Config{}, back.url)
	_, b := f.do("GET", "/api/tags", "")
	if text(decodeObject(t, b), "models", 0, "name") != "far" {
		t.Errorf("tags: %s", b)
	}
	if m := f.post("/api/show", dict{"model": "far"}); !strings.Contains(encode(t, m["capabilities"]), "completion") {
		t.Errorf("show: %v", m)
	}
	there := back.e
	m := f.post("/api/embed", dict{"model": "far", "input": []string{"a", "b"}})
	if v, _ := at(m, "embeddings", 1).([]any); len(v) != there.Model().Target.Hidden || number(m,
		"prompt_eval_count") == 0 {
		t.Errorf("embed: %v", m)
	}
	if v, _ := at(f.post("/api/embeddings", dict{"model": "far", "prompt": "a"}), "embedding").([]any); len(v) == 0 {
		t.Error("embeddings: none")
	}
	if status, b := f.do("POST", "/api/embed", `{"model":"far","input":""}`); status != http.StatusBadRequest {
		t.Errorf("an error of the upstream: %d %s", status, b)
	}
}
