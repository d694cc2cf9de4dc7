package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// TestKeysSeparateResponses: a key cannot read, continue, delete or redefine what belongs to another key.
func TestKeysSeparateResponses(t *testing.T) {
	f := start(t, options{template: hermesTemplate, config: Config{Keys: []string{"one", "two"}}})
	as := func(key, method, path string, body any) (int, dict) {
		t.Helper()
		text := ""
		if body != nil {
			text = encode(t, body)
		}
		status, b := f.do(method, path, text, "Authorization", "Bearer "+key)
		return status, decodeObject(t, b)
	}
	chosen := func(words string) []dict {
		return []dict{{"type": "message", "id": "mine", "role": "user", "content": words}}
	}
	_, first := as("one", "POST", "/v1/responses", dict{"input": chosen("words of the first one"), "max_output_tokens": 2})
	id := text(first, "id")
	if id == "" {
		t.Fatal(first)
	}
	reference := dict{"input": []dict{{"type": "item_reference", "id": "mine"}}, "max_output_tokens": 2}
	for _, c := range []struct {
		method, path string
		body         any
		other        int
	}{
		{"GET", "/v1/responses/" + id, nil, 404},
		{"GET", "/v1/responses/" + id + "/input_items", nil, 404},
		{"POST", "/v1/responses", dict{"input": "go on", "previous_response_id": id, "max_output_tokens": 2}, 400},
		{"POST", "/v1/responses/input_tokens", dict{"input": "go on", "previous_response_id": id}, 400},
		{"POST", "/v1/responses", reference, 404},
		{"DELETE", "/v1/responses/" + id, nil, 404},
	} {
		if status, m := as("two", c.method, c.path, c.body); status != c.other {
			t.Errorf("%s %s by another key: %d %v", c.method, c.path, status, m)
		}
	}
	// The same id of another owner is another item.
	if status, m := as("two", "POST", "/v1/responses", dict{"input": chosen("x"), "max_output_tokens": 2}); status != 200 {
		t.Fatal(m)
	}
	count := func(key string) int {
		_, m := as(key, "POST", "/v1/responses/input_tokens", reference)
		return number(m, "input_tokens")
	}
	if one, two := count("one"), count("two"); one <= two || two == 0 {
		t.Errorf("the item has %d tokens for its owner and %d for the other one", one, two)
	}
	for _, c := range []struct{ method, path string }{{"GET", ""}, {"GET", "/input_items"}, {"DELETE", ""}} {
		if status, m := as("one", c.method, "/v1/responses/"+id+c.path, nil); status != 200 {
			t.Errorf("%s %s by its owner: %d %v", c.method, c.path, status, m)
		}
	}
}

// TestSaltPerKey: requests carry a hash of their key to the engine, and nothing on a server without keys.
func TestSaltPerKey(t *testing.T) {
	salts := map[string]string{}
	for _, keys := range [][]string{nil, {"one", "two"}} {
		f := start(t, options{config: Config{Keys: keys}})
		for _, key := range []string{"one", "two"} {
			tag := fmt.Sprint(len(keys), key)
			f.s.tweak = func(req *engine.Request, v *model) {
				req.Watch = func(engine.Round) {}
				salts[tag] = req.Salt
			}
			if status, b := f.do("POST", "/v1/completions", `{"prompt":"x","max_tokens":1}`, "X-Api-Key", key); status != 200 {
				t.Fatalf("%d %s", status, b)
			}
		}
	}
	if salts["0one"] != "" || salts["0two"] != "" || salts["2one"] == "" || salts["2one"] == salts["2two"] ||
		strings.Contains(salts["2one"], "one") {
		t.Errorf("salts %q", salts)
	}
}

// TestKeysSeparatePrefixes: cached_tokens does not tell a key what another one asked.
func TestKeysSeparatePrefixes(t *testing.T) {
	f := start(t, options{config: Config{Keys: []string{"one", "two"}}})
	body := encode(t, dict{"prompt": strings.Repeat("a b ", 60), "max_tokens": 1})
	cached := func(key string) int {
		status, b := f.do("POST", "/v1/completions", body, "X-Api-Key", key)
		usage, _ := decodeObject(t, b)["usage"].(map[string]any)
		details, _ := usage["prompt_tokens_details"].(map[string]any)
		n, ok := details["cached_tokens"].(float64)
		if status != 200 || !ok {
			t.Fatalf("%d %s", status, b)
		}
		return int(n)
	}
	if first, again, other, own := cached("one"), cached("one"), cached("two"), cached("two"); first != 0 || again == 0 ||
		other != 0 || own != again {
		t.Errorf("cached tokens: %d, then %d; another key %d, then %d", first, again, other, own)
	}
}

// TestKeysSeparateSlots: what one key saved no other one restores.
func TestKeysSeparateSlots(t *testing.T) {
	f := start(t, options{config: Config{Keys: []string{"one", "two"}}, engine: engine.Config{SlotDir: t.TempDir()}})
	do := func(key, action string) int {
		status, _ := f.do("POST", "/slots/0?action="+action, `{"filename":"x"}`, "X-Api-Key", key)
		return status
	}
	if status, b := f.do("POST", "/v1/completions", encode(t, dict{"prompt": strings.Repeat("a b ", 30), "max_tokens": 2}),
		"X-Api-Key", "one"); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	if status := do("one", "save"); status != 200 {
		t.Fatalf("save: %d", status)
	}
	if one, two := do("one", "restore"), do("two", "restore"); one != 200 || two != 404 {
		t.Errorf("its owner gets %d, the other key %d", one, two)
	}
}

// TestBrokenFile: a file that cannot be loaded is named without its folder, and is not the whole server's problem.
func TestBrokenFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secret place")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bad.gguf")
	if err := os.WriteFile(path, good[:len(good)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	for _, only := range []string{"", "bad"} {
		p, err := engine.NewPool(engine.PoolConfig{Files: []string{path}, Load: engine.Options{Threads: 1, Drafter: "none"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close(context.Background()) })
		var log syncBuffer
		f := &fixture{t: t}
		f.serve(New(Config{Models: Pool(p, only), Log: slog.New(slog.NewTextHandler(&log, nil))}))
		status, b := f.do("POST", "/v1/completions", `{"model":"bad","prompt":"x"}`)
		if status != 500 || !bytes.Contains(b, []byte("bad.gguf")) || bytes.Contains(b, []byte("secret")) {
			t.Errorf("a request: %d %s", status, b)
		}
		if eventually(t, "a log line", func() bool { return log.String() != "" }); !strings.Contains(log.String(), dir) {
			t.Errorf("the log does not say where the file is: %s", log.String())
		}
		_, b = f.do("GET", "/v1/models", "")
		if !bytes.Contains(b, []byte("bad.gguf")) || bytes.Contains(b, []byte("secret")) {
			t.Errorf("the list: %s", b)
		}
		want := 200
		if only != "" { // there is nothing else to ask
			want = 503
		}
		if status, b := f.do("GET", "/health", ""); status != want || bytes.Contains(b, []byte("secret")) {
			t.Errorf("health: %d %s", status, b)
		}
	}
}

// TestWithoutPaths: words of errors that say where something is.
func TestWithoutPaths(t *testing.T) {
	for want, err := range map[string]error{
		"open x.gguf: gone":                &fs.PathError{Op: "open", Path: "/my models/x.gguf", Err: errors.New("gone")},
		"load x.gguf: tensor a: too short": errors.New("load /models/mine/x.gguf: tensor a: too short"),
		"x.gguf: damaged":                  errors.New(`C:\models\x.gguf: damaged`),
		`get "y": the connection failed`:   fmt.Errorf(`get "http://10.0.0.1/x/y": %w`, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("10.0.0.1")}),
		"nothing of the kind: 3.5 of 4":    errors.New("nothing of the kind: 3.5 of 4"),
		"load y.gguf: damaged":             errors.New("load /my models/a b/y.gguf: damaged"),
	} {
		if got := withoutPaths(err); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// TestLogHidesClients: values of clients are cut in the log, and texts of conversations are not there at all.
func TestLogHidesClients(t *testing.T) {
	template := `{% for m in messages %}{% if 'refuse' in m.content %}{{ raise_exception('I refuse: ' + m.content) }}{% endif %}{{ m.content }}{% endfor %}`
	const hidden = "HIDDEN"
	long := strings.Repeat("x", maxValue) + hidden
	var log syncBuffer
	f := start(t, options{template: template, config: Config{Log: slog.New(slog.NewJSONHandler(&log, nil))}})
	msgs := user("hello")
	n := 0
	for _, c := range []struct {
		path   string
		body   any
		status int
	}{
		{"/v1/chat/completions", dict{"messages": user("refuse " + hidden)}, 400},
		{"/v1/messages", dict{"messages": user("refuse " + hidden), "max_tokens": 1}, 400},
		{"/v1/chat/completions", dict{"messages": msgs, "response_format": dict{"type": long}}, 400},
		{"/v1/chat/completions", dict{"messages": msgs, "grammar": "root ::= " + hidden}, 400},
		{"/v1/chat/completions", dict{"messages": msgs,
			"json_schema": dict{"properties": dict{hidden: dict{"type": 5}}}}, 400},
		{"/v1/chat/completions", dict{"messages": msgs, "tool_choice": long}, 400},
		{"/v1/messages", dict{"messages": []dict{{"role": "user", "content": []dict{{"type": long}}}}, "max_tokens": 1}, 400},
		{"/v1/responses", dict{"input": "x", "previous_response_id": long}, 400},
		{"/v1/responses", dict{"input": []dict{{"type": "\"" + long}}}, 400},
		{"/v1/completions", `{"prompt":"` + hidden, 400},
		{"/v1/nothing/" + long, dict{}, 404},
		{"/" + strings.Repeat("y", maxLogged) + hidden, dict{}, 404},
		{"/api/show", dict{}, 200},
	} {
		status, b := f.do("POST", c.path, encode(t, c.body))
		if status != c.status {
			t.Errorf("%s %v: %d %s", c.path, c.body, status, b)
		}
		n++
	}
	eventually(t, "all lines", func() bool { return strings.Count(log.String(), "\n") >= n })
	for line := range strings.Lines(log.String()) {
		m := decodeObject(t, []byte(line))
		path := text(m, "path")
		if strings.Contains(text(m, "error"), hidden) || strings.Contains(path, hidden) && len(path) > maxLogged {
			t.Errorf("the log says %s", line)
		}
		if number(m, "status") >= 400 && text(m, "error") == "" {
			t.Errorf("no reason: %s", line)
		}
	}
	e := &apiError{Message: `x: "` + strings.Repeat("é", 40) + `" is wrong`}
	if got, want := e.logged(), `x: "`+strings.Repeat("é", maxValue-1)+`…" is wrong`; got != want {
		t.Errorf("logged %q, want %q", got, want)
	}
	if e := (&apiError{Message: `x: "short" is wrong`}); e.logged() != e.Message {
		t.Errorf("logged %q", e.logged())
	}
	if got := cutText("abc", 3) + cutText("abcd", 3); got != "abcabc…" {
		t.Errorf("cut to %q", got)
	}
}

// TestAnthropicUsage: tokens of the input are new or cached, not both; together they are what the request has.
func TestAnthropicUsage(t *testing.T) {
	f := start(t, options{template: hermesTemplate})
	q := dict{"messages": user(strings.Repeat("count me ", 30))}
	all := number(f.post("/v1/messages/count_tokens", q), "input_tokens")
	q = with(q, dict{"max_tokens": 3, "strobe": dict{}})
	f.post("/v1/messages", q)
	check := func(how string, usage any) {
		t.Helper()
		fresh, cached := number(usage, "input_tokens"), number(usage, "cache_read_input_tokens")
		if cached == 0 || fresh == 0 || fresh+cached != all {
			t.Errorf("%s: %d new and %d cached of %d", how, fresh, cached, all)
		}
	}
	m := f.post("/v1/messages", q)
	check("whole", at(m, "usage"))
	for _, e := range f.events("/v1/messages", with(q, dict{"stream": true})) {
		switch e.name {
		case "message_start":
			check(e.name, at(e.data, "message", "usage"))
		case "message_delta":
			check(e.name, at(e.data, "usage"))
			if number(e.data, "usage", "output_tokens") != number(m, "usage", "output_tokens") {
				t.Errorf("streamed %v, whole %v", at(e.data, "usage"), at(m, "usage"))
			}
		}
	}
}

// TestOneModelInAFolder: a folder with one model is no server of one model: other names are other models.
func TestOneModelInAFolder(t *testing.T) {
	path := goldenWith(t, "qwen3", hermesTemplate)
	for _, only := range []string{"", "qwen3"} {
		p, err := engine.NewPool(engine.PoolConfig{Files: []string{path}, Load: engine.Options{Threads: 1, Drafter: "none"},
			Engine: engine.Config{Context: 256}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close(context.Background()) })
		f := &fixture{t: t}
		f.serve(New(Config{Models: Pool(p, only)}))
		pulled := ""
		f.s.SetPull(func(_ context.Context, name string, _ func(string, int64, int64)) error { pulled = name; return nil })
		if status, b := f.do("POST", "/api/show", `{"model":"other"}`); status != http.StatusNotFound {
			t.Errorf("show of another name: %d %s", status, b)
		}
		if status, b := f.do("POST", "/api/show", `{}`); only != "" && status != http.StatusOK {
			t.Errorf("show without a name: %d %s", status, b)
		}
		f.post("/api/show", dict{"model": "qwen3:latest"})
		if f.post("/api/pull", dict{"model": "qwen3", "stream": false}); pulled != "" {
			t.Error("a model that is here was pulled")
		}
		if f.post("/api/pull", dict{"model": "other", "stream": false}); pulled != "other" {
			t.Errorf("pulled %q", pulled)
		}
	}
}
