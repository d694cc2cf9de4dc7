package server

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// clientScript is what a test in JavaScript wants the model to say, inside a user's message: a list with one entry
// for the answer to that message and one for each answer to the results of tools after it.
var clientScript = regexp.MustCompile(`SCRIPT\[([A-Za-z0-9+/=]*)\]`)

// scriptedClients makes the model say what the last message of the user asks for.
func (f *fixture) scriptedClients() {
	f.s.tweak = func(req *engine.Request, v *model) {
		prompt := string(v.tok.Decode(req.Tokens, tokenizer.DecodeOptions{Special: true}))
		found := clientScript.FindAllStringSubmatchIndex(prompt, -1)
		if len(found) == 0 {
			return
		}
		last := found[len(found)-1]
		var said []string
		b, err := base64.StdEncoding.DecodeString(prompt[last[2]:last[3]])
		if err == nil {
			err = json.Unmarshal(b, &said)
		}
		if err != nil || len(said) == 0 {
			f.t.Errorf("script %q: %v", prompt[last[2]:last[3]], err)
			return
		}
		step := min(strings.Count(prompt[last[1]:], "<|im_start|>tool"), len(said)-1)
		text := said[step]
		if strings.HasSuffix(prompt, "<think>\n") && !strings.Contains(text, "<tool_call>") { // an answer is not reasoning
			text = "Hm.\n</think>\n\n" + text
		}
		req.Constraint = &scripted{v.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}), v.tok.EOG()[0]}
	}
}

// TestClients runs real clients in JavaScript, with a model that says what each test wants to hear, so that loops with
// tools are real. It needs Node and the packages in e2e/js, which e2e/run installs.
func TestClients(t *testing.T) {
	if os.Getenv("STROBE_JS") == "" {
		t.Skip("STROBE_JS is not set: e2e/run runs the clients in JavaScript")
	}
	f := start(t, options{template: hermesTemplate, engine: engine.Config{Context: 8192, Parallel: 4}})
	f.scriptedClients()
	dir := filepath.Join(testkit.Root(t), "e2e", "js")
	files, err := filepath.Glob(filepath.Join(dir, "scripted", "*.test.js"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".test.js"), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "node", "--test", file)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "STROBE_URL="+f.url)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
