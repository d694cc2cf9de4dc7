package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"strobe/internal/bench/loadgen"
)

// scripted is a server that answers with as many tokens as it is asked for, and hangs in the request number hang.
func scripted(t *testing.T, hang int, hangs func()) (url string, asked func() []map[string]any) {
	t.Helper()
	var mu sync.Mutex
	var all []map[string]any
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
			return
		}
		var b map[string]any
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			t.Error(err)
		}
		b["path"], b["key"] = r.URL.Path, r.Header.Get("Authorization")
		mu.Lock()
		all = append(all, b)
		n := len(all)
		mu.Unlock()
		if n == hang {
			hangs()
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tokens := int(b["max_tokens"].(float64))
		for range tokens {
			io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
		}
		fmt.Fprintf(w, "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", tokens)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []map[string]any {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// TestBenchServe: the flags arrive in requests, and tables, JSON and picture have what was counted.
func TestBenchServe(t *testing.T) {
	url, asked := scripted(t, 0, nil)
	dir := t.TempDir()
	file, plot := filepath.Join(dir, "run.json"), filepath.Join(dir, "run.svg")
	t.Setenv(keyVariable, "secret")
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"bench", "serve", "--base-url", url + "/v1", "--endpoint", "completions", "--clients", "2,1",
		"--requests", "3", "--output-len", "7", "--top-p", "0.95", "--top-k", "20", "--seed", "5", "--logprobs", "2", "--rounds", "2",
		"--extra-body", `{"min_p": 0.1, "strobe": {"tree": 0}}`, "--vary", "temperature=0,0.8", "--vary", "strobe.draft=off",
		"--warmup", "0", "--json", file, "--plot", plot}, nil, &out, &errs)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, errs.String())
	}
	for _, want := range []string{"temperature 0, draft off", "temperature 0.8, draft off", "output tokens/s", "model tiny", "p99",
		"against temperature 0, draft off"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(errs.String(), "round 2, 1 client, temperature 0") {
		t.Errorf("%s", errs.String())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r loadgen.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 8 || len(r.Summaries) != 4 || r.Summaries[0].Requests != 6 || r.Summaries[0].OutputTokens != 42 ||
		bytes.Contains(b, []byte("secret")) {
		t.Errorf("%s", b)
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("<svg")) {
		t.Errorf("%v: %.100s", err, b)
	}
	last := asked()[len(asked())-1]
	for field, want := range map[string]any{"path": "/v1/completions", "key": "Bearer secret", "top_p": 0.95, "top_k": 20.0,
		"min_p": 0.1, "logprobs": 2.0, "max_tokens": 7.0} {
		if last[field] != want {
			t.Errorf("%s is %v, want %v", field, last[field], want)
		}
	}
	if last["seed"] == nil || fmt.Sprint(last["strobe"]) != "map[draft:off tree:0]" {
		t.Errorf("%v", last)
	}
}

// TestBenchServePrompts: prompts of a file, and what cannot be one.
func TestBenchServePrompts(t *testing.T) {
	url, asked := scripted(t, 0, nil)
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"Why?"}]}` + "\n")
	var errs bytes.Buffer
	args := []string{"bench", "serve", "-q", "--base-url", url, "--requests", "1", "--output-len", "3", "--prompts", file}
	if code := run(t.Context(), args, nil, io.Discard, &errs); code != exitOK || errs.Len() > 0 {
		t.Fatalf("code %d: %s", code, errs.String())
	}
	last := asked()[len(asked())-1]
	if got := fmt.Sprint(last["messages"]); !strings.HasPrefix(got, "[map[content:[") || !strings.Contains(got, "] Be short. role:system] "+
		"map[content:Why? role:user]") {
		t.Errorf("%s", got)
	}
	for text, want := range map[string]string{
		`{"tokens":[1,2]}`: "give text",
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`: "only messages of text",
		`{"prompt":7}`: "line 1",
	} {
		write(text)
		errs.Reset()
		if code := run(t.Context(), args, nil, io.Discard, &errs); code != exitError || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: code %d: %s", text, code, errs.String())
		}
	}
}

// TestBenchServeUsage: what is wrong on the command line is said before anything is sent.
func TestBenchServeUsage(t *testing.T) {
	url, asked := scripted(t, 0, nil)
	for args, want := range map[string]string{
		"--plot x.png":                    ".svg",
		"--extra-body [1]":                "JSON object",
		"--vary temperature":              "a field and its values",
		"--vary temperature=1":            "a field and its values",
		"--vary =1,2":                     "name of a field",
		"--clients 0":                     "--clients 0",
		"--endpoint x":                    "--endpoint",
		"--prompts code --prefix-share 1": "--prefix-share",
		"more":                            "unexpected argument",
		"--against nothing --clients 1 --requests -1": "--requests -1",
	} {
		var errs bytes.Buffer
		line := append([]string{"bench", "serve", "--base-url", url}, strings.Fields(args)...)
		if code := run(t.Context(), line, nil, io.Discard, &errs); code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: code %d: %s", args, code, errs.String())
		}
	}
	if n := len(asked()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
	var errs bytes.Buffer
	closed := httptest.NewServer(nil)
	closed.Close()
	code := run(t.Context(), []string{"bench", "serve", "--base-url", closed.URL}, nil, io.Discard, &errs)
	if code != exitError || !strings.Contains(errs.String(), "no server answers at "+closed.URL) {
		t.Errorf("code %d: %s", code, errs.String())
	}
}

// TestBenchServeInterrupted: Ctrl-C prints and writes what was measured.
func TestBenchServeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url, _ := scripted(t, 2+3, cancel) // after two requests for the lengths of prompts
	file := filepath.Join(t.TempDir(), "run.json")
	var out, errs bytes.Buffer
	code := run(ctx, []string{"bench", "serve", "--base-url", url, "--warmup", "0", "--json", file}, nil, &out, &errs)
	if code != exitInterrupted || !strings.Contains(out.String(), "interrupted: this is what was measured") {
		t.Errorf("code %d: %s\n%s", code, out.String(), errs.String())
	}
	b, err := os.ReadFile(file)
	var r loadgen.Report
	if err != nil || json.Unmarshal(b, &r) != nil || !r.Interrupted || r.Summaries[0].Requests != 2 || r.Summaries[0].Cut != 1 {
		t.Errorf("%v: %s", err, b)
	}
}
