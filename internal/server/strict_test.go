package server

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestBodies: what a request's body may be, and what the answer says of others.
func TestBodies(t *testing.T) {
	f := start(t, options{})
	body := `{"prompt":"x","max_tokens":1}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, body); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	status, b := f.do("POST", "/v1/completions", packed.String(), "Content-Encoding", "gzip")
	if status != http.StatusUnsupportedMediaType || !strings.Contains(string(b), "Content-Encoding") {
		t.Errorf("packed: %d %s", status, b)
	}
	for name, body := range map[string]string{"identity": body, "byte order mark": "\ufeff" + body} {
		if status, b := f.do("POST", "/v1/completions", body, "Content-Encoding", "identity"); status != http.StatusOK {
			t.Errorf("%s: %d %s", name, status, b)
		}
	}
	// What is shown again must be readable, whatever was sent.
	status, b = f.do("POST", "/v1/responses", `{"input":"x","max_output_tokens":1,"metadata":{"a":"`+"\xff"+`"}}`)
	if status != http.StatusOK || !utf8.Valid(b) {
		t.Errorf("bytes that are no text: %d %q", status, b)
	}
	l := startLive(t, options{})
	resp := l.send(t, "Transfer-Encoding: chunked", func(w io.Writer) error {
		_, err := io.WriteString(w, "zz\r\n"+body+"\r\n0\r\n\r\n")
		return err
	})
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusBadRequest || err != nil || !strings.Contains(string(b), "invalid_request_error") ||
		!strings.Contains(string(b), "chunk") {
		t.Errorf("wrong chunks: %d %s %v", resp.StatusCode, b, err)
	}
}

// TestAllow: a wrong method is told all that are right.
func TestAllow(t *testing.T) {
	f := start(t, options{})
	for path, want := range map[string]string{
		"/props": "GET, POST", "/v1/completions": "POST", "/v1/responses/x": "GET, DELETE", "/v1/models": "GET",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, f.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Allow"); resp.StatusCode != http.StatusMethodNotAllowed || got != want {
			t.Errorf("%s: %d, Allow %q, want %q", path, resp.StatusCode, got, want)
		}
	}
}

// TestRoles: a message whose role the template does not know would be left out of the prompt without a word.
func TestRoles(t *testing.T) {
	f := start(t, options{template: `{% for m in messages %}{% if m.role in ["user", "narrator"] %}{{ m.content }};` +
		`{% endif %}{% endfor %}`})
	q := dict{"messages": append(user("x"), dict{"role": "narrator", "content": "y"})}
	if p := text(f.post("/apply-template", q), "prompt"); p != "x;y;" {
		t.Errorf("prompt %q", p)
	}
	for _, path := range []string{"/v1/chat/completions", "/api/chat"} {
		body := encode(t, dict{"messages": append(user("x"), dict{"role": "naratorr", "content": "y"})})
		status, b := f.do("POST", path, body)
		if status != http.StatusBadRequest || !strings.Contains(string(b), "messages[1].role") {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}

// TestBiasOfText: in llama.cpp's pairs a text is a text, also one of digits; the keys of OpenAI's object are ids.
func TestBiasOfText(t *testing.T) {
	f := start(t, options{})
	q := dict{"prompt": "x", "n_predict": 1, "temperature": 0}
	seven := f.post("/completion", with(q, dict{"logit_bias": [][]any{{"7", 1000}}}))
	if got := text(seven, "content"); got != "7" {
		t.Errorf("the text 7: %q", got)
	}
	q["return_tokens"] = true
	for _, bias := range []any{dict{"7": 1000}, [][]any{{7, 1000}}} {
		if got := at(f.post("/completion", with(q, dict{"logit_bias": bias})), "tokens", 0); got != 7.0 {
			t.Errorf("%v: %v", bias, got)
		}
	}
}

// TestSeedNumbers: a seed may be written like any other integer.
func TestSeedNumbers(t *testing.T) {
	f := start(t, options{})
	q := dict{"prompt": "x", "max_tokens": 20, "temperature": 2, "seed": 42}
	want := text(f.post("/v1/completions", q), "choices", 0, "text")
	for _, s := range []string{"42.0", "4.2e1"} {
		body := strings.Replace(encode(t, q), `"seed":42`, `"seed":`+s, 1)
		if got := text(f.post("/v1/completions", body), "choices", 0, "text"); got != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
	for _, s := range []string{"1.5", `"x"`, "1e30"} {
		if status, b := f.do("POST", "/v1/completions", `{"prompt":"x","seed":`+s+`}`); status != http.StatusBadRequest ||
			!strings.Contains(string(b), "seed: must be an integer") {
			t.Errorf("%s: %d %s", s, status, b)
		}
	}
}

// TestTextOffset: offsets count characters from the beginning of the text, which with echo is the prompt.
func TestTextOffset(t *testing.T) {
	f := start(t, options{})
	f.script("é, go on")
	for _, stream := range []bool{false, true} {
		q := dict{"prompt": "añb", "max_tokens": 50, "logprobs": 1, "echo": true, "stream": stream}
		var all string
		var offsets, tokens []any
		add := func(c any) {
			all += text(c, "choices", 0, "text")
			o, _ := at(c, "choices", 0, "logprobs", "text_offset").([]any)
			w, _ := at(c, "choices", 0, "logprobs", "tokens").([]any)
			offsets, tokens = append(offsets, o...), append(tokens, w...)
		}
		if stream {
			for _, e := range f.events("/v1/completions", q) {
				add(e.data)
			}
		} else {
			add(f.post("/v1/completions", q))
		}
		// The letters that are one token each, which those of é are not.
		comma := slices.Index(tokens, any(","))
		if all != "añbé, go on" || comma < 0 {
			t.Fatalf("text %q, tokens %q", all, tokens)
		}
		if first := offsets[0]; first != 3.0 {
			t.Errorf("stream %v: the answer begins at %v", stream, first)
		}
		if got := offsets[comma]; got != 4.0 {
			t.Errorf("stream %v: the comma is at %v: %q %v", stream, got, tokens, offsets)
		}
	}
}

// TestUsageInStream: with include_usage every chunk has the field, null but in the last.
func TestUsageInStream(t *testing.T) {
	f := start(t, options{})
	for path, q := range map[string]dict{
		"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": {"messages": user("x")},
	} {
		q["max_tokens"], q["stream"] = 3, true
		for _, e := range f.events(path, q) {
			if _, has := e.data["usage"]; has {
				t.Errorf("%s: usage not asked for: %v", path, e.data)
			}
		}
		evs := f.events(path, with(q, dict{"stream_options": dict{"include_usage": true}}))
		for i, e := range evs {
			u, has := e.data["usage"]
			if last := i == len(evs)-1; !has || last != (u != nil) {
				t.Errorf("%s: chunk %d of %d: usage %v", path, i, len(evs), u)
			}
		}
	}
}

// TestAnthropicStrict: what Anthropic's API refuses because it cannot be meant, and the header its clients read.
func TestAnthropicStrict(t *testing.T) {
	f := start(t, options{})
	for body, want := range map[string]string{
		`{"messages":[{"role":"user"}]}`:                                            "messages[0].content: is missing",
		`{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enable"}}`: "thinking.type",
		`{"messages":[{"role":"user","content":"x"}],"thinking":{}}`:                "thinking.type",
	} {
		if status, b := f.do("POST", "/v1/messages", body); status != http.StatusBadRequest ||
			!strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
	for _, kind := range []string{"adaptive", "disabled", "enabled"} {
		f.post("/v1/messages", dict{"messages": user("x"), "max_tokens": 1, "thinking": dict{"type": kind}})
	}
	resp, err := http.Get(f.url + "/v1/messages")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if id := resp.Header.Get("Request-Id"); id == "" || id != resp.Header.Get("X-Request-Id") {
		t.Errorf("request-id %q", id)
	}
}

// TestOllamaLogProbs: chunks have the log probabilities of their tokens, and all of them have all.
func TestOllamaLogProbs(t *testing.T) {
	f := start(t, options{})
	for path, q := range map[string]dict{"/api/chat": {"messages": user("x")}, "/api/generate": {"prompt": "x"}} {
		q["logprobs"], q["top_logprobs"], q["options"] = true, 2, dict{"num_predict": 5, "ignore_eos": true, "seed": 1}
		var got []any
		for _, c := range f.lines(path, q) {
			l, _ := at(c, "logprobs").([]any)
			got = append(got, l...)
		}
		whole, _ := at(f.post(path, with(q, dict{"stream": false})), "logprobs").([]any)
		for _, l := range [][]any{got, whole} {
			if len(l) != 5 || text(l[0], "token") == "" || at(l[0], "logprob").(float64) > 0 ||
				len(at(l[0], "top_logprobs").([]any)) != 2 {
				t.Errorf("%s: %v", path, l)
			}
		}
		if status, b := f.do("POST", path, encode(t, with(q, dict{"top_logprobs": 99}))); status != 400 ||
			!strings.Contains(string(b), "top_logprobs") {
			t.Errorf("%s: %d %s", path, status, b)
		}
		if _, has := f.post(path, with(q, dict{"stream": false, "logprobs": false}))["logprobs"]; has {
			t.Errorf("%s: log probabilities not asked for", path)
		}
	}
}

// TestResponseEvents: every event shows the response and its items as they are at the end.
func TestResponseEvents(t *testing.T) {
	f := start(t, options{})
	f.script("a b c d e f g")
	for _, keep := range []bool{true, false} {
		evs := f.events("/v1/responses", dict{"input": "x", "max_output_tokens": 3, "stream": true, "store": keep})
		for _, e := range evs {
			if r, ok := e.data["response"]; ok && at(r, "store") != keep {
				t.Errorf("%s: store %v", e.name, at(r, "store"))
			}
			if e.name == "response.output_item.done" && text(e.data, "item", "status") != "incomplete" {
				t.Errorf("an item that was cut: %v", e.data)
			}
		}
	}
}

// deadlines is a connection that counts what is written between two deadlines.
type deadlines struct {
	http.ResponseWriter
	since, most, total int
}

func (d *deadlines) SetWriteDeadline(time.Time) error { d.since = 0; return nil }

func (d *deadlines) Write(p []byte) (int, error) {
	d.since += len(p)
	d.total += len(p)
	d.most = max(d.most, d.since)
	return len(p), nil
}

// TestLargeAnswer: a client has time for each piece of a large answer, not for the whole.
func TestLargeAnswer(t *testing.T) {
	d := &deadlines{}
	w := &response{ResponseWriter: d, rc: http.NewResponseController(d)}
	n, err := w.Write(make([]byte, 1_000_000))
	if n != 1_000_000 || err != nil || d.total != n || w.bytes != int64(n) || d.most > writePiece {
		t.Errorf("wrote %d of %d, %d with one deadline, %v", n, d.total, d.most, err)
	}
}

// TestAnthropicModels: one list of models has the fields of both APIs.
func TestAnthropicModels(t *testing.T) {
	f := start(t, options{})
	_, b := f.do("GET", "/v1/models", "", "Anthropic-Version", "2023-06-01")
	m := decodeObject(t, b)
	if at(m, "has_more") != false || text(m, "first_id") != "qwen35" || text(m, "last_id") != "qwen35" ||
		text(m, "data", 0, "type") != "model" || text(m, "data", 0, "display_name") != "qwen35" {
		t.Errorf("%s", b)
	}
	_, b = f.do("GET", "/v1/models/qwen35", "")
	for _, one := range []any{at(m, "data", 0), decodeObject(t, b)} {
		if _, err := time.Parse(time.RFC3339, text(one, "created_at")); err != nil {
			t.Error(err)
		}
	}
}

// TestErrorsCountTheClientsMessages: a message that the server adds does not move those of the client.
func TestErrorsCountTheClientsMessages(t *testing.T) {
	f := start(t, options{config: Config{Chat: ChatDefaults{System: "Be brief."}}})
	image := []dict{{"role": "user", "content": []dict{{"type": "image_url", "image_url": dict{"url": "x"}}}}}
	status, b := f.do("POST", "/v1/chat/completions", encode(t, dict{"messages": image}))
	if status != http.StatusBadRequest || !strings.Contains(string(b), `"messages[0].content[0].type"`) {
		t.Errorf("%d %s", status, b)
	}
	if p := text(f.post("/apply-template", dict{"messages": user("x")}), "prompt"); !strings.Contains(p, "Be brief.") {
		t.Errorf("prompt %q", p)
	}
}
