package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// recording is a request of an agent.
type recording struct {
	Method string          `json:"method"`
	Path   string          `json:"path"`
	Body   json.RawMessage `json:"body,omitempty"`
}

// agent is a coding agent that is run as its users run it. Files are written into its home before, with {URL}
// standing for the server's address; {PROMPT} stands for what it is asked.
type agent struct {
	name, pkg, bin string
	setup, args    []string // setup is run before, if there is one
	env            []string
	files          map[string]string
	call           string // the tool call that the model makes: it reads a file with a secret in it
}

const secretFile = "note.txt"

func toolCallText(name string, args any) string {
	b, err := json.Marshal(map[string]any{"name": name, "arguments": args})
	if err != nil {
		panic(err)
	}
	return "<tool_call>\n" + string(b) + "\n</tool_call>"
}

var agents = []agent{
	{name: "codex", pkg: "@openai/codex", bin: "codex",
		args: []string{"exec", "--skip-git-repo-check", "-s", "danger-full-access", "{PROMPT}"},
		files: map[string]string{
			".codex/config.toml": "model = \"tiny\"\nmodel_provider = \"strobe\"\n[model_providers.strobe]\nname = \"strobe\"\nbase_url = \"{URL}/v1\"\nwire_api = \"responses\"\n",
		},
		call: toolCallText("exec_command", dict{"cmd": "cat " + secretFile})},
	{name: "claude-code", pkg: "@anthropic-ai/claude-code", bin: "claude",
		args: []string{"-p", "{PROMPT}", "--model", "tiny", "--allowedTools", "Read", "Bash"},
		env:  []string{"ANTHROPIC_BASE_URL={URL}", "ANTHROPIC_API_KEY=x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
		call: toolCallText("Bash", dict{"command": "cat " + secretFile, "description": "read"})},
	{name: "opencode", pkg: "opencode-ai", bin: "opencode",
		args: []string{"run", "-m", "strobe/tiny", "{PROMPT}"},
		env:  []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1"},
		files: map[string]string{
			".config/opencode/opencode.json": `{"provider": {"strobe": {"npm": "@ai-sdk/openai-compatible", "name": "strobe",
			"options": {"baseURL": "{URL}/v1"}, "models": {"tiny": {"name": "tiny"}}}}}`,
		},
		call: toolCallText("bash", dict{"command": "cat " + secretFile, "description": "read"})},
	{name: "qwen-code", pkg: "@qwen-code/qwen-code", bin: "qwen",
		args: []string{"-y", "-p", "{PROMPT}"},
		env: []string{
			"OPENAI_API_KEY=x",
			"OPENAI_BASE_URL={URL}/v1",
			"OPENAI_MODEL=tiny",
			"HTTP_PROXY=",
			"HTTPS_PROXY=",
		}, // it would use them for every address
		files: map[string]string{
			".qwen/settings.json": `{"security": {"auth": {"selectedType": "openai"}}, "telemetry": {"enabled": false}, "privacy": {"usageStatisticsEnabled": false},
			"general": {"disableAutoUpdate": true, "enableAutoUpdate": false}}`,
		},
		call: toolCallText("run_shell_command", dict{"command": "cat " + secretFile, "is_background": false})},
	{name: "continue", pkg: "@continuedev/cli", bin: "cn",
		args: []string{"-p", "{PROMPT}", "--config", "{HOME}/config.yaml", "--auto"},
		env:  []string{"CONTINUE_TELEMETRY_ENABLED=0"},
		files: map[string]string{
			"config.yaml": "name: test\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: tiny\n    provider: openai\n    model: tiny\n    apiBase: {URL}/v1\n" +
				"    apiKey: x\n    roles: [chat]\n    capabilities: [tool_use]\n",
		},
		call: toolCallText("Bash", dict{"command": "cat " + secretFile})},
	{name: "pi", pkg: "@mariozechner/pi-coding-agent", bin: "pi",
		args: []string{"-p", "--offline", "--provider", "strobe", "--model", "tiny", "{PROMPT}"},
		env:  []string{"PI_OFFLINE=1"},
		files: map[string]string{
			".pi/agent/models.json": `{"providers": {"strobe": {"baseUrl": "{URL}/v1", "api": "openai-completions", "apiKey": "x", "models": [
			{"id": "tiny", "name": "tiny", "contextWindow": 32000, "maxTokens": 4000}]}}}`,
		},
		call: toolCallText("bash", dict{"command": "cat " + secretFile})},
	{name: "copilot", pkg: "@github/copilot", bin: "copilot",
		args: []string{"-p", "{PROMPT}", "--allow-all-tools"},
		env: []string{
			"COPILOT_PROVIDER_BASE_URL={URL}/v1",
			"COPILOT_MODEL=tiny",
			"COPILOT_OFFLINE=true",
			"COPILOT_AUTO_UPDATE=false",
		},
		call: toolCallText("bash", dict{"command": "cat " + secretFile, "description": "read"})},
	{name: "cline", pkg: "cline", bin: "cline",
		setup: []string{"auth", "-p", "openai-compatible", "-k", "x", "-m", "tiny", "-b", "{URL}/v1"},
		args:  []string{"-P", "openai-compatible", "-m", "tiny", "{PROMPT}"},
		call:  toolCallText("run_commands", dict{"commands": []string{"cat " + secretFile}})},
}

// TestAgents runs real coding agents, each of which is asked something, calls a tool, and answers with what the tool
// said. STROBE_AGENTS names a folder with a folder for each agent in which its package is installed; e2e/agents makes
// it. With STROBE_RECORD their requests are kept for TestReplay, without their texts.
func TestAgents(t *testing.T) {
	dir := os.Getenv("STROBE_AGENTS")
	if dir == "" {
		t.Skip("STROBE_AGENTS is not set: e2e/agents installs the agents and runs this")
	}
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			bin := filepath.Join(dir, a.name, "node_modules", ".bin", a.bin)
			if _, err := os.Stat(bin); err != nil {
				t.Skipf("%s is not installed: %v", a.pkg, err)
			}
			f := start(t, options{template: hermesTemplate, engine: engine.Config{Context: 32768, Parallel: 4}})
			f.scriptedClients()
			script := f.s.tweak
			f.s.tweak = func(req *engine.Request, v *model) {
				script(req, v)
				// what it says does not depend on the rest
				req.Tokens, req.Checkpoints = req.Tokens[max(0, len(req.Tokens)-1000):], nil
			}
			recorder := &recorder{handler: f.s.Handler()}
			srv := httptest.NewServer(recorder)
			t.Cleanup(srv.Close)
			home, work := t.TempDir(), t.TempDir()
			fill := strings.NewReplacer("{URL}", srv.URL, "{HOME}", home, "{PROMPT}", a.prompt(t))
			for name, text := range a.files {
				path := filepath.Join(home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(fill.Replace(text)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(work, secretFile), []byte("the-secret-is-42\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			run := func(list []string) ([]byte, error) {
				var args []string
				for _, s := range list {
					args = append(args, fill.Replace(s))
				}
				cmd := exec.CommandContext(ctx, bin, args...)
				cmd.Dir = work
				// Nothing but this machine is to be reached.
				cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TERM=dumb", "CI=1", "NO_PROXY=127.0.0.1,localhost",
					"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "no_proxy=127.0.0.1,localhost"}
				for _, s := range a.env {
					cmd.Env = append(cmd.Env, fill.Replace(s))
				}
				cmd.WaitDelay = 5 * time.Second
				return cmd.CombinedOutput()
			}
			if len(a.setup) > 0 {
				if out, err := run(a.setup); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			out, err := run(a.args)
			recorder.report(t)
			if err != nil || !strings.Contains(string(out), "All is well.") {
				t.Fatalf("%v\n%s", err, out)
			}
			if !recorder.said("the-secret-is-42") {
				t.Errorf("the tool's result did not come back\n%s", out)
			}
			if to := os.Getenv("STROBE_RECORD"); to != "" {
				recorder.save(t, filepath.Join(to, a.name+".json"))
			}
		})
	}
}

// prompt makes the model call the agent's tool and then say that all is well.
func (a *agent) prompt(t *testing.T) string {
	b, err := json.Marshal([]string{a.call, "All is well."})
	if err != nil {
		t.Fatal(err)
	}
	return "Please. SCRIPT[" + base64.StdEncoding.EncodeToString(b) + "]"
}

// recorder keeps the requests that pass through it.
type recorder struct {
	handler http.Handler
	mu      sync.Mutex
	list    []recording
	status  []int
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	at := &statusWriter{ResponseWriter: w}
	r.handler.ServeHTTP(at, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, recording{req.Method, req.URL.RequestURI(), body})
	r.status = append(r.status, at.status)
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(code int) {
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (r *recorder) said(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.list {
		if bytes.Contains(x.Body, []byte(text)) {
			return true
		}
	}
	return false
}

func (r *recorder) report(t *testing.T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, x := range r.list {
		var names []string
		var q struct{ Tools []json.RawMessage }
		_ = json.Unmarshal(x.Body, &q)
		for _, raw := range q.Tools {
			var tool struct {
				Name, Type string
				Function   struct{ Name string }
			}
			_ = json.Unmarshal(raw, &tool)
			names = append(names, tool.Name+tool.Function.Name+"/"+tool.Type)
		}
		t.Logf("%s %s: %d, %d bytes, tools %v", x.Method, x.Path, r.status[i], len(x.Body), names)
	}
}

// save writes the requests without the texts of the agent and of the machine.
func (r *recorder) save(t *testing.T, path string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []recording
	seen := map[string]bool{}
	for i, x := range r.list {
		if r.status[i] != http.StatusOK && r.status[i] != 0 {
			continue
		}
		var v any
		if len(x.Body) > 0 && json.Unmarshal(x.Body, &v) == nil {
			b, err := json.Marshal(sanitize("", v))
			if err != nil {
				t.Fatal(err)
			}
			x.Body = b
		} else {
			x.Body = nil
		}
		if key := x.Method + x.Path + string(x.Body); !seen[key] {
			seen[key] = true
			out = append(out, x)
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kept are the keys whose strings say how a request is meant. All other strings are texts.
var kept = map[string]bool{
	"role": true, "type": true, "name": true, "model": true, "format": true, "tool_choice": true, "effort": true,
	"summary": true, "namespace": true,
	"call_id": true, "id": true, "tool_call_id": true, "tool_use_id": true, "status": true, "pattern": true,
	"$schema": true, "required": true, "enum": true,
	"include": true, "const": true, "verbosity": true, "service_tier": true, "syntax": true, "object": true,
	"reasoning_effort": true, "mode": true, "$ref": true,
}

// sanitize replaces the texts of a request by one of ours, and keeps its shape.
func sanitize(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if k == "properties" || k == "$defs" { // names of parameters, which are no keys of ours
				if m, ok := x.(map[string]any); ok {
					for name, schema := range m {
						m[name] = sanitize("", schema)
					}
					continue
				}
			}
			v[k] = sanitize(k, x)
		}
	case []any:
		for i, x := range v {
			v[i] = sanitize(key, x)
		}
	case string:
		switch {
		case kept[key] && len(v) < 200 && !strings.Contains(v, os.TempDir()):
			return v
		case key == "arguments":
			return `{"command":"cat ` + secretFile + `"}`
		case key == "data" || key == "image_url" || key == "encrypted_content":
			return v[:0]
		case v == "":
			return v
		}
		return "Some words."
	}
	return v
}

// TestReplay: what agents send is answered on every template: their tools, histories with calls and results, and
// whatever they ask for beside that.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/agents/*.json")
	if err != nil || len(files) != len(agents) {
		t.Fatalf("recordings of %d agents, want %d: %v", len(files), len(agents), err)
	}
	for _, x := range []struct{ name, model, ours, file string }{
		{"Qwen3", "qwen3", hermesTemplate, "Qwen-Qwen3-0.6B.jinja"}, {"Qwen3.5", "qwen35", xmlTemplate, "Qwen3.5-4B.jinja"},
		{"Qwen3-Coder", "qwen35", xmlTemplate, "Qwen3-Coder.jinja"}, {"Gemma 4", "gemma4", gemmaTemplate,
			"google-gemma-4-31B-it.jinja"},
	} {
		replay := func(t *testing.T, template string) {
			f := start(
				t,
				options{model: x.model, template: template, plain: true, engine: engine.Config{Context: 4096, Parallel: 1}},
			)
			f.s.tweak = func(req *engine.Request, _ *model) { // the whole was rendered; to run its end is enough
				req.MaxTokens, req.Tokens, req.Checkpoints = 4, req.Tokens[max(0, len(req.Tokens)-200):], nil
			}
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				var list []recording
				if err := json.Unmarshal(b, &list); err != nil {
					t.Fatal(err)
				}
				calls := 0
				for _, r := range list {
					if r.Method == http.MethodPost {
						calls++
					}
					status, answer := f.do(r.Method, r.Path, string(r.Body))
					if status != 200 || strings.Contains(string(answer), `"error":{`) {
						t.Errorf("%s: %s %s: %d %.300s", filepath.Base(file), r.Method, r.Path, status, answer)
					}
				}
				if calls < 2 {
					t.Errorf("%s has %d requests; a loop with a tool has two", filepath.Base(file), calls)
				}
			}
		}
		t.Run(x.name+" in our words", func(t *testing.T) { replay(t, x.ours) })
		t.Run(x.name, func(t *testing.T) {
			b, err := os.ReadFile(testkit.Shared(t, "templates/"+x.file))
			if err != nil {
				t.Fatal(err)
			}
			replay(t, string(b))
		})
	}
}
