package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/testkit"
)

// serve runs the command until the test ends and returns its address. stop ends it and returns its
// exit code and log.
func serve(t *testing.T, args ...string) (url string, stop func() (int, string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var log bytes.Buffer
	code := make(chan int, 1)
	go func() {
		c := run(ctx, append([]string{"serve", "--port", "0"}, args...), strings.NewReader(""), w, &log)
		w.Close()
		code <- c
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("serve did not start: code %d, log %s", <-code, log.String())
	}
	go io.Copy(io.Discard, r)
	stopped := false
	stop = func() (int, string) {
		stopped = true
		cancel()
		return <-code, log.String()
	}
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	return strings.TrimSpace(line), stop
}

func ask(t *testing.T, url, body string, header ...string) (int, map[string]any) {
	t.Helper()
	method := "GET"
	if body != "" {
		method = "POST"
	}
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v in %s", url, err, b)
	}
	return resp.StatusCode, v
}

// ready waits until the model is loaded.
func ready(t *testing.T, url string) {
	t.Helper()
	for range 1000 {
		resp, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("the server never got ready")
}

func TestServe(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("# ours\nsesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := serve(t, "-m", testkit.Golden(t, "qwen35/model.gguf"), "-d",
		testkit.Golden(t, "dflash-qwen35/model.gguf"),
		"--alias", "tiny", "--ctx", "512", "--api-key-file", keys, "--log-format", "json", "--temp", "0")
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("it listens on %s", url)
	}
	ready(t, url)
	body := `{"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"ignore_eos":true}`
	if status, v := ask(t, url+"/v1/chat/completions", body); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d %v", status, v)
	}
	status, v := ask(t, url+"/v1/chat/completions", body, "Authorization", "Bearer sesame")
	if status != http.StatusOK || v["model"] != "tiny" {
		t.Errorf("%d %v", status, v)
	}
	if _, v := ask(t, url+"/props", "", "X-Api-Key", "sesame"); fmt.Sprint(v["total_slots"]) != "4" {
		t.Errorf("props %v", v)
	}
	code, log := stop()
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	found := false
	for line := range strings.Lines(log) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Errorf("log line %q: %v", line, err)
		}
		found = found || v["msg"] == "request" && v["status"] == 200.0 && v["tokens"] == 4.0
	}
	if !found {
		t.Errorf("the request is not in the log: %s", log)
	}
}

// TestServeModels: a folder of models, one of them broken.
func TestServeModels(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"qwen3", "qwen35"} {
		b, err := os.ReadFile(testkit.Golden(t, name+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".gguf"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if name == "qwen3" {
			if err := os.WriteFile(filepath.Join(dir, "cut.gguf"), b[:len(b)/2], 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	url, _ := serve(t, "--models", dir, "--models-memory", "1", "--ctx", "256", "--quiet")
	ready(t, url)
	chat := func(model string) (int, map[string]any) {
		return ask(t, url+"/v1/chat/completions",
			`{"model":"`+model+`","messages":[{"role":"user","content":"hi"}],"max_tokens":3}`)
	}
	state := func(name string) any {
		_, v := ask(t, url+"/v1/models", "")
		for _, m := range v["data"].([]any) {
			if m := m.(map[string]any); m["id"] == name {
				return m["state"]
			}
		}
		return nil
	}
	if status, v := chat("any"); status != http.StatusBadRequest {
		t.Errorf("any, with nothing loaded: %d %v", status, v)
	}
	for _, name := range []string{"qwen3", "qwen35"} { // the second one makes the first one leave
		if status, v := chat(name); status != http.StatusOK || v["model"] != name {
			t.Errorf("%s: %d %v", name, status, v)
		}
	}
	if state("qwen3") != "unloaded" || state("qwen35") != "loaded" {
		t.Errorf("states %v, %v", state("qwen3"), state("qwen35"))
	}
	for range 2 {
		if status, v := chat("cut"); status != http.StatusInternalServerError || !strings.Contains(fmt.Sprint(v), "cut") {
			t.Errorf("a broken file: %d %v", status, v)
		}
	}
	if status, v := chat("qwen3"); status != http.StatusOK {
		t.Errorf("after the broken one: %d %v", status, v)
	}
	if status, v := chat("any"); status != http.StatusOK || v["model"] != "qwen3" {
		t.Errorf("any: %d %v", status, v)
	}
	if status, _ := chat("../../etc/passwd"); status != http.StatusNotFound {
		t.Errorf("a path: %d", status)
	}
}

// TestServeModelsDrafter: a drafter that lies beside its model in the folder is used, unless drafting is off.
func TestServeModelsDrafter(t *testing.T) {
	dir := t.TempDir()
	for name, golden := range map[string]string{"m": "qwen35", "m-dflash": "dflash-qwen35"} {
		b, err := os.ReadFile(testkit.Golden(t, golden+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".gguf"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for draft, want := range map[string]bool{"auto": true, "dflash": true, "off": false, "ngram": false} {
		url, stop := serve(t, "--models", dir, "--draft", draft, "--quiet")
		ready(t, url)
		if status, v := ask(t, url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`); status != http.StatusOK {
			t.Errorf("%d %v", status, v)
		}
		_, v := ask(t, url+"/props", "")
		if got := v["speculative"].(map[string]any)["drafter"]; got != want {
			t.Errorf("--draft %s: drafter %v, want %v", draft, got, want)
		}
		stop()
	}
}

func TestServeFlags(t *testing.T) {
	model := testkit.Golden(t, "qwen35/model.gguf")
	empty := filepath.Join(t.TempDir(), "empty")
	broken, wrong := filepath.Join(t.TempDir(), "broken"), filepath.Join(t.TempDir(), "wrong")
	odd := filepath.Join(t.TempDir(), "odd")
	for path, text := range map[string]string{empty: "", odd: "[defaults.x]\nport = 1\n", broken: "{% for %}",
		wrong: "# mine\ncolour = \"red\"\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-m", "no-such.gguf", "--port", "0"}, exitError, "no-such.gguf"},
		{[]string{"-m", model, "--models", ".", "--port", "0"}, exitUsage, "not both"},
		{[]string{"--models", "no-such-folder", "--port", "0"}, exitError, "no-such-folder"},
		{[]string{"-m", model, "--log-format", "xml"}, exitUsage, "text or json"},
		{[]string{"-m", model, "--tls-cert", "x"}, exitUsage, "belong together"},
		{[]string{"-m", model, "--tls-cert", "x", "--tls-key", "y"}, exitError, "x"},
		{[]string{"-m", model, "--port", "70000"}, exitUsage, "65535"},
		{[]string{"-m", model, "--cache-ram", "lots"}, exitUsage, "4GiB"},
		{[]string{"-m", model, "--parallel", "0"}, exitUsage, "at least 1"},
		{[]string{"-m", model, "--api-key-file", empty}, exitError, "no key"},
		{[]string{"-m", model, "--api-key", " "}, exitUsage, "empty"},
		{[]string{"-m", model, "--thinking", "hard"}, exitUsage, "auto, on or off"},
		{[]string{"-m", model, "--chat-template-kwargs", "[1]"}, exitUsage, "not an object"},
		{[]string{"-m", model, "--chat-template-file", empty}, exitError, "no template"},
		{[]string{"-m", model, "--chat-template-file", broken}, exitError, "broken"},
		{[]string{"--models", ".", "--chat-template-file", broken}, exitUsage, "single model"},
		{[]string{"--config", "no-such-file"}, exitError, "no-such-file"},
		{[]string{"--config", wrong}, exitError, "wrong: there is no setting \"colour\""},
		{[]string{"--config", broken}, exitError, "broken:1: "},
		{[]string{"--config", odd}, exitError, "there is no setting \"port\""},
		{[]string{"-m", model, "--host", "256.1.1.1", "--port", "0"}, exitError, "256.1.1.1"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve"}, c.args...), strings.NewReader(""), &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: code %d, %q; want %d and %q", c.args, code, errs.String(), c.code, c.says)
		}
	}
}

// TestServeSettings: a flag comes from the command line, the environment or a file, in this order, and what it says of
// conversations reaches their prompts.
func TestServeSettings(t *testing.T) {
	dir := t.TempDir()
	template := filepath.Join(dir, "template")
	file := filepath.Join(dir, "settings")
	for path, text := range map[string]string{
		template: "{{ tone }}{% for m in messages %}|{{ m.role }}:{{ m.content }}{% endfor %}{% if enable_thinking is defined %}|{{ enable_thinking }}{% endif %}",
		file: "# a comment\n\nsystem = \"Be brief.\"\nalias=\"from-file\"\nthinking = \"off\"\nchat-template-file = '" + template +
			"'\nchat-template-kwargs = {tone = \"calm\"}\ntemp = 0.5\ntop-k = 7\ncors = [\"http://a\", \"http://b\"]\n" +
			"[defaults.from-environment]\ntop-k = 9\nmax-tokens = 3\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("STROBE_ALIAS", "from-environment")
	t.Setenv("STROBE_CONFIG", file)
	url, _ := serve(t, "-m", testkit.Golden(t, "qwen35/model.gguf"), "--thinking", "on")
	ready(t, url)
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"x"}]}`: "calm|system:Be brief.|user:x|True",
		`{"messages":[{"role":"system","content":"s"}` +
			`,{"role":"user","content":"x"}],"enable_thinking":false,` +
			`"chat_template_kwargs":{"tone":"glad"}}`: "glad|system:s|user:x|False",
	} {
		if code, m := ask(t, url+"/apply-template", body); code != 200 || m["prompt"] != want {
			t.Errorf("%s: %d %v", body, code, m)
		}
	}
	if _, m := ask(t, url+"/props", ""); m["model_alias"] != "from-environment" {
		t.Errorf("the name is %v", m["model_alias"])
	}
	_, m := ask(t, url+"/completion", `{"prompt":"x","ignore_eos":true}`)
	settings, _ := m["generation_settings"].(map[string]any)
	if settings["temperature"] != 0.5 || settings["top_k"] != 9.0 || m["tokens_predicted"] != 3.0 {
		t.Errorf("settings %v, %v tokens", settings, m["tokens_predicted"])
	}
}

// TestHostNames: what a server may be called, by where it listens and what it wants.
func TestHostNames(t *testing.T) {
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	machine = strings.ToLower(machine)
	for _, c := range []struct {
		host  string
		allow []string
		keys  bool
		names map[string]bool // nil: any
	}{
		{"127.0.0.1", nil, false, map[string]bool{"localhost": true, machine: false, "evil.example": false}},
		{"127.0.0.1", nil, true, map[string]bool{"localhost": true, "evil.example": false}},
		{"localhost", []string{"Box.lan"}, false, map[string]bool{"localhost": true, "box.lan": true, "evil.example": false}},
		{"0.0.0.0", nil, false, map[string]bool{"localhost": true, machine: true, "evil.example": false}},
		{"", nil, false, map[string]bool{"localhost": true, machine: true, "evil.example": false}},
		{"::", []string{"box"}, false, map[string]bool{"localhost": true, "box": true, machine: false,
			"evil.example": false}},
		{"box.lan", nil, false, map[string]bool{"box.lan": true, "evil.example": false}},
		{"0.0.0.0", []string{"box"}, true, map[string]bool{"box": true, "evil.example": false}},
		{"0.0.0.0", nil, true, nil},
	} {
		o := serveOptions{host: c.host, hosts: c.allow}
		got := o.hostNames(c.keys)
		if (got == nil) != (c.names == nil) {
			t.Errorf("%+v: %q", c, got)
		}
		for name, want := range c.names {
			if slices.Contains(got, name) != want {
				t.Errorf("--host %q --allow-host %q, keys %v: %q is allowed: %v, want %v", c.host, c.allow, c.keys, name, !want,
					want)
			}
		}
	}
}

func TestByteSize(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "512": 512, "4KiB": 4096, "1.5MiB": 3 << 19, "2g": 2 << 30,
		"500MB": 500e6, "1 TiB": 1 << 40} {
		var b byteSize
		if err := b.Set(s); err != nil || int64(b) != want {
			t.Errorf("%q is %d, %v; want %d", s, b, err, want)
		}
	}
	for _, s := range []string{"", "GiB", "-1", "1XB", "1e99", "NaN", "9999999TiB"} {
		var b byteSize
		if err := b.Set(s); err == nil {
			t.Errorf("%q is %d", s, b)
		}
	}
}
