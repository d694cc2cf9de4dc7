package server

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// startSeeing is a server on a golden model with an image encoder.
func startSeeing(t *testing.T, arch string, cfg Config) *fixture {
	t.Helper()
	m, err := engine.Load(edit.Golden(t, arch).WithImages(t), engine.Options{Threads: 1, Drafter: "none"})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, e: engine.New(m, engine.Config{})}
	cfg.Models = Single("m", f.e)
	f.s = New(cfg)
	srv := httptest.NewServer(f.s.Handler())
	t.Cleanup(func() {
		srv.Close()
		if err := f.e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	f.url = srv.URL
	return f
}

// seeing are the same question about an image in the words of all dialects: path, body, and where the answer and the
// number of prompt tokens are.
func seeing(data string, more dict) []struct {
	path         string
	body         dict
	said, tokens []any
} {
	url := "data:image/png;base64," + data
	question := "what is it?"
	chatting := []dict{{"role": "user", "content": []dict{
		{"type": "image_url", "image_url": dict{"url": url}}, {"type": "text", "text": question}}}}
	return []struct {
		path         string
		body         dict
		said, tokens []any
	}{
		{"/v1/chat/completions", with(dict{"messages": chatting, "max_tokens": 9, "temperature": 0}, more),
			[]any{"choices", 0, "message", "content"}, []any{"usage", "prompt_tokens"}},
		{"/v1/responses", with(dict{"max_output_tokens": 9, "temperature": 0, "input": []dict{{"role": "user",
			"content": []dict{{"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}}}}}, more),
			[]any{"output", 0, "content", 0, "text"}, []any{"usage", "input_tokens"}},
		{"/v1/messages", with(dict{"max_tokens": 9, "temperature": 0, "messages": []dict{{"role": "user", "content": []dict{
			{"type": "image", "source": dict{"type": "base64", "media_type": "image/png", "data": data}},
			{"type": "text", "text": question}}}}}, more), []any{"content", 0, "text"}, nil},
		{"/api/chat", with(dict{"stream": false, "options": dict{"num_predict": 9, "temperature": 0}, "messages": []dict{
			{"role": "user", "content": question, "images": []string{data}}}}, more), []any{"message", "content"},
			[]any{"prompt_eval_count"}},
		{"/api/generate", with(dict{"stream": false, "options": dict{"num_predict": 9, "temperature": 0},
			"prompt": question, "images": []string{data}}, more), []any{"response"}, []any{"prompt_eval_count"}},
	}
}

// TestImagesInAllDialects: an image and a question about it are the same prompt in every dialect, directly and through
// another server, and other images are other prompts.
func TestImagesInAllDialects(t *testing.T) {
	for _, arch := range []string{"qwen35", "gemma4"} {
		t.Run(arch, func(t *testing.T) {
			f := startSeeing(t, arch, Config{})
			through := front(t, Config{}, f.url)
			encoded := base64.StdEncoding.EncodeToString(testkit.PNG(t, 40, 33, 1))
			var said string
			var tokens int
			for _, q := range seeing(encoded, dict{"model": "m"}) {
				m := f.post(q.path, q.body)
				s := text(m, q.said...)
				if said == "" {
					said, tokens = s, number(m, q.tokens...)
				}
				if s != said || s == "" || q.tokens != nil && number(m, q.tokens...) != tokens {
					t.Errorf("%s: %q with %v prompt tokens, want %q and %d", q.path, s, number(m, q.tokens...), said, tokens)
				}
				if q.tokens == nil && number(m, "usage", "input_tokens")+number(m, "usage", "cache_read_input_tokens") != tokens {
					t.Errorf("%s: usage %v, want %d tokens", q.path, at(m, "usage"), tokens)
				}
				if strings.HasPrefix(q.path, "/api/generate") {
					continue
				}
				if got := text(through.post(q.path, with(q.body, dict{"model": "far"})), q.said...); got != said {
					t.Errorf("%s through another server: %q, want %q", q.path, got, said)
				}
			}
			if tokens < 20 {
				t.Errorf("%d prompt tokens: rows of the image are missing", tokens)
			}
			other := base64.StdEncoding.EncodeToString(testkit.PNG(t, 40, 33, 2))
			q := seeing(other, nil)[0]
			if s := text(f.post(q.path, q.body), q.said...); s == said {
				t.Errorf("another image, the same answer %q", s)
			}
			small := f.post("/v1/chat/completions", seeing(encoded, dict{"image_max_tokens": 4})[0].body)
			if n := number(small, "usage", "prompt_tokens"); n >= tokens {
				t.Errorf("%d prompt tokens with image_max_tokens, %d without", n, tokens)
			}
			n := f.post("/v1/messages/count_tokens", seeing(encoded, nil)[2].body)
			if number(n, "input_tokens") != tokens {
				t.Errorf("counted %v tokens, want %d", n, tokens)
			}
			// A second turn finds the first one, image included.
			again := f.post("/v1/chat/completions", seeing(encoded, nil)[0].body)
			if number(again, "usage", "prompt_tokens_details", "cached_tokens") < tokens/2 {
				t.Errorf("usage of the same request: %v", at(again, "usage"))
			}
		})
	}
}

// TestNativeImages: llama.cpp's native form marks the places of images in the text.
func TestNativeImages(t *testing.T) {
	f := startSeeing(t, "qwen35", Config{})
	data := base64.StdEncoding.EncodeToString(testkit.PNG(t, 40, 33, 1))
	native := dict{"n_predict": 9, "temperature": 0, "prompt": dict{
		"prompt_string":   "<|im_start|>user\n<|vision_start|><__media__><|vision_end|>what is it?<|im_end|>\n<|im_start|>assistant\n",
		"multimodal_data": []string{data}}}
	want := f.post("/v1/chat/completions", seeing(data, nil)[0].body)
	got := f.post("/completion", native)
	if text(got, "content") != text(want, "choices", 0, "message", "content") ||
		number(got, "tokens_evaluated") != number(want, "usage", "prompt_tokens") {
		t.Errorf("%v, want %v", got, want)
	}
	f.refuses("/completion", dict{"prompt": dict{"prompt_string": "no place", "multimodal_data": []string{data}}},
		"multimodal_data")
}

// object is the answer to a GET request.
func (f *fixture) object(path string) dict {
	f.t.Helper()
	status, b := f.do("GET", path, "")
	if status != http.StatusOK {
		f.t.Fatalf("GET %s: status %d: %s", path, status, b)
	}
	return decodeObject(f.t, b)
}

// refuses expects status 400 and words in the message.
func (f *fixture) refuses(path string, body any, words ...string) {
	f.t.Helper()
	status, b := f.do("POST", path, encode(f.t, body))
	for _, w := range words {
		if status != http.StatusBadRequest || !strings.Contains(string(b), w) {
			f.t.Errorf("%s: status %d, %s; want %q", path, status, b, w)
		}
	}
}

// TestBadImages: what is wrong with an image is said with the name of its field, before anything is generated.
func TestBadImages(t *testing.T) {
	f := startSeeing(t, "qwen35", Config{})
	good := testkit.PNG(t, 40, 33, 1)
	encoded := base64.StdEncoding.EncodeToString
	part := func(url string) dict {
		return dict{"messages": []dict{{"role": "user", "content": []dict{
			{"type": "image_url", "image_url": dict{"url": url}}}}}}
	}
	for url, want := range map[string]string{
		"":                                    "url is missing",
		"data:image/png;base64,@@":            "base64",
		"data:image/png,abc":                  "base64",
		"data:;base64," + encoded(good[:300]): "cannot be decoded",
		"data:;base64,aGVsbG8=":               "neither PNG",
		"https://example.com/a.png":           "not fetched",
		"file:///etc/passwd":                  "not fetched",
	} {
		f.refuses("/v1/chat/completions", part(url), "messages[0].content[0]", want)
	}
	data := encoded([]byte("hello"))
	for i, field := range []string{"messages[0].content[0]", "input[0].content[0]", "messages[0].content[0]",
		"messages[0].images[0]", "images[0]"} {
		q := seeing(data, dict{"system": "be brief"})[i]
		f.refuses(q.path, q.body, field, "neither PNG")
	}
	f.refuses("/v1/chat/completions", dict{"messages": []dict{{"role": "user", "content": []dict{
		{"type": "input_audio", "input_audio": dict{"data": "x"}}}}}}, "text and images")
	f.refuses("/v1/chat/completions", with(part("data:;base64,"+encoded(good)), dict{"image_max_tokens": -1}),
		"image_max_tokens")
	many, tiny := make([]dict, 10_000), "data:;base64,"+encoded(testkit.PNG(t, 1, 1, 1))
	for i := range many {
		many[i] = dict{"type": "image_url", "image_url": dict{"url": tiny}}
	}
	f.refuses("/v1/chat/completions", dict{"messages": []dict{{"role": "user", "content": many}}}, "256 images")
}

// TestImagesOfTools: a tool's result may have an image; where the template shows none there, it comes right behind.
func TestImagesOfTools(t *testing.T) {
	data := base64.StdEncoding.EncodeToString(testkit.PNG(t, 40, 33, 1))
	for _, arch := range []string{"qwen35", "gemma4"} {
		f := startSeeing(t, arch, Config{})
		body := dict{"max_tokens": 5, "messages": []dict{
			{"role": "user", "content": "look"},
			{"role": "assistant", "content": []dict{{"type": "tool_use", "id": "a", "name": "shot", "input": dict{}}}},
			{"role": "user", "content": []dict{{"type": "tool_result", "tool_use_id": "a", "content": []dict{
				{"type": "text", "text": "here"},
				{"type": "image", "source": dict{"type": "base64", "media_type": "image/png", "data": data}}}}}}}}
		with := number(f.post("/v1/messages/count_tokens", body), "input_tokens")
		body["messages"].([]dict)[2]["content"] = []dict{{"type": "tool_result", "tool_use_id": "a", "content": "here"}}
		without := number(f.post("/v1/messages/count_tokens", body), "input_tokens")
		if with < without+5 {
			t.Errorf("%s: %d tokens with an image, %d without", arch, with, without)
		}
	}
}

// TestVisionIsAnnounced: clients ask whether a model sees before they send images.
func TestVisionIsAnnounced(t *testing.T) {
	for _, sees := range []bool{true, false} {
		f := startSeeing(t, "qwen35", Config{})
		if !sees {
			f = start(t, options{})
		}
		name := text(f.object("/v1/models"), "data", 0, "id")
		show := encode(t, at(f.post("/api/show", dict{"model": name}), "capabilities"))
		if at(f.object("/props"), "modalities", "vision") != sees || strings.Contains(show, "vision") != sees {
			t.Errorf("sees %v: %v, %s", sees, at(f.object("/props"), "modalities"), show)
		}
	}
}

// TestImageAddresses: images at URLs are read only as far as the server's owner allows.
func TestImageAddresses(t *testing.T) {
	dir := t.TempDir()
	media := filepath.Join(dir, "media")
	good := testkit.PNG(t, 40, 33, 1)
	for _, path := range []string{filepath.Join(media, "a.png"), filepath.Join(dir, "secret.png")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/a.png":
			w.Write(good)
		case "/away":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer web.Close()
	f := startSeeing(t, "qwen35", Config{FetchImages: true, MediaPath: media})
	ask := func(url string) dict {
		return dict{"max_tokens": 2, "messages": []dict{{"role": "user", "content": []dict{
			{"type": "image_url", "image_url": dict{"url": url}}}}}}
	}
	f.post("/v1/chat/completions", ask("file:///a.png"))
	f.refuses("/v1/chat/completions", ask("file:///../secret.png"), "no such file")
	f.refuses("/v1/chat/completions", ask("file:///"), "no such file")
	f.refuses("/v1/chat/completions", ask("ftp://host/a.png"), "ftp")
	f.refuses("/v1/chat/completions", ask(web.URL+"/a.png"), "is not a public address")
	for _, a := range []string{"127.0.0.1:80", "10.1.2.3:80", "169.254.169.254:80", "[::1]:80", "[fe80::1]:80",
		"100.64.1.1:80", "[::ffff:192.168.1.1]:80", "0.0.0.0:80", "[fd00::1]:443"} {
		if publicAddress(a) == nil {
			t.Errorf("%s counts as public", a)
		}
	}
	if err := publicAddress("93.184.215.14:443"); err != nil {
		t.Error(err)
	}
	client := *web.Client() // without the rule about addresses
	client.CheckRedirect = imageClient.CheckRedirect
	if b, err := fetchImage(t.Context(), &client, web.URL+"/a.png"); err != nil || len(b) != len(good) {
		t.Errorf("fetched %d bytes: %v", len(b), err)
	}
	for _, path := range []string{"/none", "/away"} {
		if _, err := fetchImage(t.Context(), &client, web.URL+path); err == nil {
			t.Errorf("%s is fetched", path)
		}
	}
}

// pageImages: the page takes images by dropping and pasting, shows them small and large, sends them, and says so
// where a model reads text only. It returns the addresses of its servers.
func pageImages(t *testing.T, b *browser) []string {
	drop := func() {
		b.eval("(async () => { const c = document.createElement('canvas'); c.width = 90; c.height = 60; " +
			"const g = c.getContext('2d'); g.fillStyle = '#c33'; g.fillRect(10, 10, 40, 40); " +
			"const file = await new Promise((ok) => c.toBlob((x) => ok(new File([x], 'red.png', { type: 'image/png' })))); " +
			"const d = new DataTransfer(); d.items.add(file); document.dispatchEvent(new DragEvent('drop', " +
			"{ dataTransfer: d, bubbles: true, cancelable: true })); })()")
	}
	blind := start(t, options{template: hermesTemplate})
	b.open(blind.url + "/")
	b.until("$('#model').value === 'qwen35' && $$('#examples li').length")
	drop()
	b.until("$('#alert').textContent.startsWith('This model reads text only')")

	f := startSeeing(t, "qwen35", Config{})
	b.open(f.url + "/")
	b.until("$('#model').value === 'm' && $$('#examples li').length")
	drop()
	b.until("$$('#images li').length === 1 && $('#images img').naturalWidth === 90")
	drop()
	b.until("$$('#images li').length === 2")
	b.eval("$('#images li button:last-child').click()")
	b.until("$$('#images li').length === 1")
	shot(t, b, "image-waiting")
	b.eval("$('#max_tokens').value = '5'; $('#input').value = 'what is it?'; $('#form').requestSubmit()")
	b.until("$$('#log li.assistant .acts button').length > 0 && $$('#log li.user img').length === 1")
	if n := f.e.Snapshot().Stats.Prompt; n < 20 {
		t.Errorf("the model read %d tokens: the image is not among them", n)
	}
	b.eval("$('#log li.user .picture').click()")
	b.until("$('#lightbox').open && $('#large').naturalWidth === 90")
	shot(t, b, "image-large")
	b.eval("$('#lightbox button').click()")
	b.until("!$('#lightbox').open")
	checkProblems(t, b, 0)
	return []string{blind.url, f.url}
}
