package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

func TestReadPrompts(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		want       Prompt
		err        string
	}{
		{"messages", `{"id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "gold": 1}`,
			Prompt{ID: "a", Max: 9}, ""},
		{"prompt", `{"task_id": "HumanEval/0", "prompt": "def f():"}`, Prompt{ID: "HumanEval/0", Text: "def f():"}, ""},
		{"raw", `{"prompt": "x", "raw": true}`, Prompt{ID: "line-1", Text: "x", Raw: true}, ""},
		{"turns", `{"question_id": 81, "turns": ["one", "two"]}`, Prompt{ID: "81", Text: "one"}, ""},
		{"question", `{"question": "how many?", "answer": "2"}`, Prompt{ID: "line-1", Text: "how many?"}, ""},
		{"tokens", `{"id": 3, "tokens": [1, 2, 3]}`, Prompt{ID: "3"}, ""},
		{"nothing", `{"id": "a"}`, Prompt{}, "file: line 1: no prompt"},
		{"not json", `prompt`, Prompt{}, "file: line 1: invalid character"},
		{"wrong type", `{"prompt": 1}`, Prompt{}, "file: line 1: "},
		{"empty file", "\n \n", Prompt{}, "file: no prompts"},
	} {
		ps, err := ReadPrompts(strings.NewReader(tc.line), "file")
		if tc.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
			}
			continue
		}
		if err != nil || len(ps) != 1 {
			t.Errorf("%s: %v %v", tc.name, ps, err)
			continue
		}
		p := ps[0]
		if p.ID != tc.want.ID || p.Text != tc.want.Text || p.Raw != tc.want.Raw || p.Max != tc.want.Max {
			t.Errorf("%s: %+v, want %+v", tc.name, p, tc.want)
		}
		if tc.name == "messages" && (len(p.Messages) != 1 || p.Messages[0].Text() != "hi") || tc.name == "tokens" &&
			len(p.Tokens) != 3 {
			t.Errorf("%s: %+v", tc.name, p)
		}
	}
}

func TestSuites(t *testing.T) {
	for _, name := range []string{"code", "general"} {
		ps, err := Suite(name, "")
		if err != nil || len(ps) < 8 {
			t.Errorf("%s: %d prompts, error %v", name, len(ps), err)
		}
		seen := map[string]bool{}
		for _, p := range ps {
			if p.ID == "" || seen[p.ID] {
				t.Errorf("%s: id %q is empty or not unique", name, p.ID)
			}
			seen[p.ID] = true
			if name == "code" && (!p.Raw || !strings.HasPrefix(p.Text, "package ") || !strings.HasSuffix(p.Text, "\n")) {
				t.Errorf("%s: prompt %s is not the beginning of a Go file", name, p.ID)
			}
		}
	}
	dir := t.TempDir()
	for _, tc := range []struct{ name, dir, err string }{
		{"nonsense", "", `suite "nonsense": want one of code, general, humaneval`},
		{"humaneval", "", "put bench_he.jsonl into a folder"},
		{"gsm8k", dir, "has no file bench_gsm.jsonl or gsm8k.jsonl"},
	} {
		if _, err := Suite(tc.name, tc.dir); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("suite %s in %q: error %v, want %q", tc.name, tc.dir, err, tc.err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "mt_bench.jsonl"), []byte(`{"turns": ["hello"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if ps, err := Suite("mt-bench", dir); err != nil || len(ps) != 1 || ps[0].Text != "hello" {
		t.Errorf("mt-bench: %v %v", ps, err)
	}
}

// TestPublicSuites reads the published files where they are.
func TestPublicSuites(t *testing.T) {
	dir := testkit.Shared(t, "prompts")
	for name, n := range map[string]int{"humaneval": 10, "gsm8k": 10, "mt-bench": 80, "math": 10, "agent": 6} {
		if ps, err := Suite(name, dir); err != nil || len(ps) != n {
			t.Errorf("%s: %d prompts, error %v; want %d", name, len(ps), err, n)
		}
	}
}

func TestPick(t *testing.T) {
	var ps []Prompt
	for _, id := range strings.Split("abcdefghij", "") {
		ps = append(ps, Prompt{ID: id})
	}
	for n, want := range map[int]string{0: "abcdefghij", 1: "a", 3: "adg", 10: "abcdefghij", 99: "abcdefghij"} {
		got := ""
		for _, p := range Pick(ps, n) {
			got += p.ID
		}
		if got != want {
			t.Errorf("%d of ten: %s, want %s", n, got, want)
		}
	}
}
