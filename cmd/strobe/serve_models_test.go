package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestSeveralDrafters: a server takes several drafters from the command line, from a file of settings and from the
// table of a model, in this order, and says what each of them does.
func TestSeveralDrafters(t *testing.T) {
	model := testkit.Golden(t, "qwen35/model.gguf")
	blocks, mtp := testkit.Golden(t, "dflash-qwen35/model.gguf"), testkit.Golden(t, "mtp-qwen35/block.gguf")
	settings := filepath.Join(t.TempDir(), "c.toml")
	both := "drafter = ['" + blocks + "', '" + mtp + "']\n"
	for _, c := range []struct {
		name, text string
		args       []string
		want       string
	}{
		{"flags", "", []string{"-m", model, "-d", mtp, "-d", blocks}, "dflash mtp"},
		{"file", both, []string{"-m", model}, "dflash mtp"},
		{"table", "[defaults.model]\n" + both, []string{"-m", model}, "dflash mtp"},
		{"flags before the file", both, []string{"-m", model, "-d", mtp}, "mtp"},
		{"a table of its own", "[defaults.q]\nmodel = '" + model + "'\n" + both, nil, "dflash mtp"},
		{"the table before the file", "drafter = '" + blocks + "'\n[defaults.model]\ndrafter = '" + mtp + "'\n",
			[]string{"-m", model}, "mtp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(settings, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			url, stop := serve(t, append(c.args, "--config", settings, "--device", "cpu")...)
			defer stop()
			ready(t, url)
			_, list := ask(t, url+"/v1/models", "")
			name := list["data"].([]any)[0].(map[string]any)["id"].(string)
			body := `{"model":"` + name + `","prompt":"a b a b","max_tokens":24,"temperature":0,"ignore_eos":true}`
			if status, v := ask(t, url+"/v1/completions", body); status != 200 {
				t.Fatalf("%d %v", status, v)
			}
			_, props := ask(t, url+"/props?model="+name, "")
			spec := props["speculative"].(map[string]any)
			if got := strings.Trim(fmt.Sprint(spec["drafters"]), "[]"); got != c.want {
				t.Errorf("drafters %s, want %s", got, c.want)
			}
			_, list = ask(t, url+"/v1/models", "")
			files := list["data"].([]any)[0].(map[string]any)["drafter"].(string)
			if want := len(strings.Fields(c.want)); strings.Count(files, ".gguf") != want {
				t.Errorf("files %q of %d drafters", files, want)
			}
			resp, err := http.Get(url + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			metrics, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			ps := runPs(t, url)
			for _, source := range strings.Fields(c.want) {
				if !strings.Contains(ps, source+" ") || !bytes.Contains(metrics, []byte(`source="`+source+`"`)) {
					t.Errorf("%s is missing in ps or in metrics: %s", source, ps)
				}
			}
		})
	}
}

// TestSeveralModels: several -m are offered by their names, and tables say how single ones are loaded, what else they
// are called, and which other ones there are.
func TestSeveralModels(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	golden, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := put("a.gguf", golden), put("b.gguf", golden), put("c.gguf", golden)
	template := put("t.jinja", []byte("{% for m in messages %}<{{ m.content }}>{% endfor %}"))
	settings := put("c.toml", []byte(`
[defaults."b"]
ctx = 256
alias = ["bee", "beta"]
chat-template-file = '`+template+`'
temp = 0.5

[defaults."sea"]
model = '`+c+`'
kv = "q8_0"
`))
	url, stop := serve(t, "-m", a, "-m", b, "--config", settings, "--models-max", "1", "--ctx", "512", "--device", "cpu")
	ready(t, url)
	_, list := ask(t, url+"/v1/models", "")
	var names []string
	for _, m := range list["data"].([]any) {
		names = append(names, m.(map[string]any)["id"].(string))
	}
	if got := strings.Join(names, " "); got != "a b sea" {
		t.Errorf("models %s", got)
	}
	for name, want := range map[string]struct {
		own, kv string
		ctx     float64
	}{"a": {"a", "f16", 512}, "beta": {"b", "f16", 256}, "sea": {"sea", "q8_0", 512}} {
		status, m := ask(t, url+"/v1/chat/completions",
			`{"model":"`+name+`","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
		if status != 200 || m["model"] != want.own {
			t.Errorf("%s: %d %v", name, status, m)
		}
		_, props := ask(t, url+"/props?model="+want.own, "")
		settings, _ := props["default_generation_settings"].(map[string]any)
		if settings["n_ctx"] != want.ctx {
			t.Errorf("%s: settings %v", name, settings)
		}
		tmpl, _ := props["chat_template"].(string)
		if strings.HasPrefix(tmpl, "{% for m in messages %}<{{") != (want.own == "b") {
			t.Errorf("%s: template %q", name, tmpl)
		}
		runtime, _ := props["runtime"].(map[string]any)
		if types, _ := runtime["cache_types"].([]any); len(types) != 1 || types[0] != want.kv {
			t.Errorf("%s: cache of %v", name, runtime["cache_types"])
		}
		_, list := ask(t, url+"/v1/models", "")
		loaded := 0
		for _, m := range list["data"].([]any) {
			if m.(map[string]any)["state"] == "loaded" {
				loaded++
			}
		}
		if loaded != 1 {
			t.Errorf("%d models are loaded at once", loaded)
		}
	}
	if code, log := stop(); code != exitOK {
		t.Errorf("code %d, %s", code, log)
	}

	other := filepath.Join(t.TempDir(), "a.gguf")
	if err := os.WriteFile(other, golden, 0o600); err != nil {
		t.Fatal(err)
	}
	anyModel := put("any.gguf", golden)
	for _, wrong := range []struct {
		args  []string
		table string
		says  string
	}{
		{[]string{"-m", a, "-m", other}, "", "has the same name"},
		{[]string{"-m", a, "-m", anyModel}, "", "stands for the model used last"},
		{[]string{"-m", a, "-m", b, "-d", "none", "--alias", "x"}, "", "--alias names a single model"},
		{[]string{"-m", a, "-m", b, "-d", a}, "", "-d belongs to one model"},
		{[]string{"-m", a}, "[defaults.\"a\"]\ndraft = \"off\"\n", "draft is the same for all models"},
		{[]string{"-m", a}, "[defaults.\"a\"]\nkv = \"q3\"\n", "defaults.\"a\":"},
		{[]string{"-m", a, "-m", b}, "[defaults.\"a\"]\nalias = \"b\"\n", "a model has this name already"},
		{[]string{"-m", a}, "[defaults.\"a\"]\nctx = 256\nnosuch = 1\n", "there is no setting \"nosuch\""},
		{nil, "[defaults.\"gotiny\"]\nctx = 256\n", "the built-in model is loaded as the flags say"},
	} {
		var out, errs bytes.Buffer
		file := put("w.toml", []byte(wrong.table))
		code := run(t.Context(), append([]string{"serve", "--port", "0", "--config", file}, wrong.args...), nil, &out, &errs)
		if code == exitOK || !strings.Contains(errs.String(), wrong.says) {
			t.Errorf("%v, %q: code %d, %s", wrong.args, wrong.table, code, errs.String())
		}
	}
}
