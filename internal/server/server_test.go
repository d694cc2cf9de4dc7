package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/pflash"
	"strobe/internal/sample"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
	"strobe/internal/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hermesTemplate is a small template in the manner of Qwen3: JSON in tags, reasoning with a switch.
const hermesTemplate = `{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call with <tool_call>{"name":...}</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}`

// xmlTemplate is one in the manner of Qwen3-Coder.
const xmlTemplate = `{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call with <tool_call><function=name></function></tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// goldenWith writes a copy of a golden model with a chat template and more keys, or other values of some.
func goldenWith(t testing.TB, name, template string, more ...gguf.KV) string {
	t.Helper()
	e := edit.Golden(t, name).Set("tokenizer.chat_template", template)
	for _, kv := range more {
		e.Set(kv.Key, kv.Value)
	}
	path := filepath.Join(t.TempDir(), name+".gguf")
	e.WriteTo(t, path)
	return path
}

// options of a fixture.
type options struct {
	model    string    // golden model; "" is qwen35
	template string    // "" leaves the file without
	keys     []gguf.KV // added to a file with a template
	plain    bool      // without a drafter
	prefill  pflash.Options
	engine   engine.Config
	config   Config
	buffer   int // bytes the system keeps of what a live server sends; 0 leaves it
}

// fixture is a server on a golden model.
type fixture struct {
	t   testing.TB
	s   *Server
	e   *engine.Engine
	url string
}

func startEngine(t testing.TB, o *options) *engine.Engine {
	t.Helper()
	if o.model == "" {
		o.model = "qwen35"
	}
	path := testkit.Golden(t, o.model+"/model.gguf")
	if o.template != "" {
		path = goldenWith(t, o.model, o.template, o.keys...)
	}
	opt := engine.Options{Threads: 2, Drafter: testkit.Golden(t, "dflash-"+o.model+"/model.gguf")}
	if o.plain {
		opt.Drafter = "none"
	}
	opt.Scorer, opt.Prefill = "self", o.prefill // which is off, but in tests of it
	m, err := engine.Load(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	if o.engine.Context == 0 {
		o.engine.Context = 2048
	}
	e := engine.New(m, o.engine)
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s := e.Snapshot(); s.TargetBytes != 0 || s.DrafterBytes != 0 {
			t.Errorf("after Close %d and %d bytes of cache are in use", s.TargetBytes, s.DrafterBytes)
		}
	})
	return e
}

func start(t testing.TB, o options) *fixture {
	t.Helper()
	f := &fixture{t: t, e: startEngine(t, &o)}
	o.config.Models = Single(o.model, f.e)
	f.s = New(o.config)
	srv := httptest.NewServer(f.s.Handler())
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

// script makes the model say exactly this, whatever it would have said.
func (f *fixture) script(text string) {
	f.s.tweak = func(req *engine.Request, v *model) {
		req.Constraint = &scripted{v.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}), v.tok.EOG()[0]}
	}
}

type scripted struct {
	ids []int32
	eog int32
}

func (s *scripted) Mask(logits []float32) {
	if len(s.ids) == 0 {
		only(logits, s.eog)
		return
	}
	only(logits, s.ids[0])
}

func (s *scripted) Accept(int32) {
	if len(s.ids) > 0 {
		s.ids = s.ids[1:]
	}
}

var _ sample.Constraint = (*scripted)(nil)

// do sends a request and returns the status and the body.
func (f *fixture) do(method, path, body string, header ...string) (int, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, b
}

// dict is a JSON object.
type dict = map[string]any

// post sends JSON, wants 200 and returns the answer.
func (f *fixture) post(path string, body any) dict {
	f.t.Helper()
	status, b := f.do("POST", path, encode(f.t, body))
	if status != http.StatusOK {
		f.t.Fatalf("POST %s: status %d: %s", path, status, b)
	}
	return decodeObject(f.t, b)
}

func encode(t testing.TB, v any) string {
	t.Helper()
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decodeObject(t testing.TB, b []byte) dict {
	t.Helper()
	var o dict
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return o
}

// event is one of a stream.
type event struct {
	name string
	data dict
}

// events sends a streaming request and returns its events; the last one of OpenAI's streams, [DONE], is
// checked and left out.
func (f *fixture) events(path string, body any) []event {
	f.t.Helper()
	status, b := f.do("POST", path, encode(f.t, body))
	if status != http.StatusOK {
		f.t.Fatalf("POST %s: status %d: %s", path, status, b)
	}
	evs, done := parseEvents(f.t, b)
	if strings.Contains(path, "completions") != done {
		f.t.Errorf("POST %s: stream ended with [DONE]: %v", path, done)
	}
	return evs
}

func parseEvents(t testing.TB, b []byte) (evs []event, done bool) {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<24)
	var e event
	for sc.Scan() {
		line := sc.Text()
		switch {
		case line == "":
			if e.data != nil {
				evs = append(evs, e)
			}
			e = event{}
		case strings.HasPrefix(line, ":"):
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case line == "data: [DONE]":
			done = true
		case strings.HasPrefix(line, "data: "):
			if done {
				t.Errorf("an event after [DONE]: %s", line)
			}
			e.data = decodeObject(t, []byte(line[len("data: "):]))
		default:
			t.Errorf("a line that is no event: %q", line)
		}
	}
	return evs, done
}

// at walks through a decoded answer: at(o, "choices", 0, "message").
func at(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(dict)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k < 0 {
				k += len(l)
			}
			if k < 0 || k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

func text(v any, path ...any) string {
	s, _ := at(v, path...).(string)
	return s
}

func number(v any, path ...any) int {
	f, _ := at(v, path...).(float64)
	return int(f)
}

// user is a conversation of one message.
func user(s string) []dict { return []dict{{"role": "user", "content": s}} }

// with returns a copy of o with more members.
func with(o dict, more dict) dict {
	o = maps.Clone(o)
	maps.Copy(o, more)
	return o
}

// joined adds up a chat stream: content, reasoning and tool calls.
func joined(evs []event) (content, reasoning, finish string, calls []dict) {
	for _, e := range evs {
		d := at(e.data, "choices", 0, "delta")
		content += text(d, "content")
		reasoning += text(d, "reasoning_content")
		if s := text(e.data, "choices", 0, "finish_reason"); s != "" {
			finish = s
		}
		list, _ := at(d, "tool_calls").([]any)
		for _, c := range list {
			i := number(c, "index")
			for len(calls) <= i {
				calls = append(calls, dict{"arguments": ""})
			}
			if id := text(c, "id"); id != "" {
				calls[i]["id"], calls[i]["name"] = id, text(c, "function", "name")
			}
			calls[i]["arguments"] = calls[i]["arguments"].(string) + text(c, "function", "arguments")
		}
	}
	return content, reasoning, finish, calls
}

// eventually waits for a condition that needs other goroutines to get there.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never came true: %s", what)
}

func names(evs []event) []string {
	var out []string
	for _, e := range evs {
		if n := len(out); n == 0 || out[n-1] != e.name {
			out = append(out, e.name)
		}
	}
	return slices.Clip(out)
}

func engineConfig(parallel int) engine.Config { return engine.Config{Parallel: parallel} }

func mustMessages(t testing.TB, msgs []dict) []chat.Message {
	t.Helper()
	var raw []json.RawMessage
	for _, m := range msgs {
		raw = append(raw, json.RawMessage(encode(t, m)))
	}
	out, err := decodeMessages(raw)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sampleParams() sample.Params { return sample.Params{Temp: 1} }

func rawJSON(s string) json.RawMessage { return json.RawMessage(s) }

// serve puts a server behind an address.
func (f *fixture) serve(s *Server) {
	srv := httptest.NewServer(s.Handler())
	f.t.Cleanup(srv.Close)
	f.s, f.url = s, srv.URL
}
