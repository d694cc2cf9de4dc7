package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestHelpWidth: help fits the terminal, whatever its width, but for lines that are given as they are.
func TestHelpWidth(t *testing.T) {
	root, _ := newRootCmd()
	for _, width := range []string{"72", "100"} {
		t.Setenv("COLUMNS", width)
		most := map[string]int{"72": 72, "100": 100}[width]
		for _, c := range root.Commands() {
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{c.Name(), "--help"}, nil, &out, &errs); code != exitOK {
				t.Fatalf("%s: %d %s", c.Name(), code, errs.String())
			}
			text, _, _ := strings.Cut(out.String(), "Usage:\n")
			_, flags, _ := strings.Cut(out.String(), "\nFlags:\n")
			for line := range strings.Lines(text + flags) {
				line = strings.TrimSuffix(line, "\n")
				prose := line != "" && line[0] != ' ' || strings.Contains(flags, line)
				if prose && len([]rune(line)) > most {
					t.Errorf("%s, %d columns: %q has %d", c.Name(), most, line, len([]rune(line)))
				}
			}
		}
	}
}

// TestHelpGroups: flags come in groups, all of them, and numbers as people write them.
func TestHelpGroups(t *testing.T) {
	var out, errs bytes.Buffer
	run(t.Context(), []string{"serve", "--help"}, nil, &out, &errs)
	text := out.String()
	last := 0
	for _, part := range []string{"\nFlags:\n", "--model ", "\nServer:\n", "--port ", "\nSampling:\n", "--temp ",
		"\nDrafting:\n",
		"--draft-max ", "\nMemory and devices:\n", "--kv ", "\nExperimental:\n", "--prefill-scorer "} {
		at := strings.Index(text[last:], part)
		if at < 0 {
			t.Fatalf("%q does not follow: %s", part, text[last:])
		}
		last += at
	}
	root, _ := newRootCmd()
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	serve.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.Count(text, "--"+f.Name+" ") == 0 {
			t.Errorf("--%s is not in the help", f.Name)
		}
	})
	if strings.Contains(text, "99999") || strings.Contains(text, "00000") {
		t.Errorf("a number as computers write it: %s", text)
	}
	if asWritten(0.7) != 0.7 {
		t.Errorf("0.7 is %v", asWritten(0.7))
	}
}

// TestNeighbourFlags: the names that llama.cpp and vLLM have for flags work.
func TestNeighbourFlags(t *testing.T) {
	model := testkit.Golden(t, "qwen3/model.gguf")
	for _, line := range []string{
		"run -m M --temperature 0 --max-tokens 3 -c 64 -ngl 0 --ignore-eos -ub 16 -p x --json",
		"run -m M --temp 0 --n-predict 3 --ctx-size 64 -ngl=0 --ignore-eos -ub=16 -p x --json",
		"run -m M --temp 0 -n 3 --max-model-len 64 --n-gpu-layers 0 --ignore-eos -p x --json",
	} {
		var out, errs bytes.Buffer
		args := strings.Fields(strings.Replace(line, "M", model, 1))
		if code := run(t.Context(), args, nil, &out, &errs); code != exitOK ||
			!strings.Contains(out.String(), `"tokens":3,`) {
			t.Errorf("%s: code %d, %s%s", line, code, out.String(), errs.String())
		}
	}
	if got := expand([]string{"run", "--", "-ngl"}); got[2] != "-ngl" {
		t.Errorf("after -- nothing is a flag: %q", got)
	}
	both := pflag.NewFlagSet("", pflag.ContinueOnError)
	both.Int("predict", 0, "")
	both.Int("max-tokens", 0, "")
	if got := alias(both, "max-tokens"); got != "max-tokens" {
		t.Errorf("a command with both flags takes one for the other: %s", got)
	}
	root, _ := newRootCmd()
	for command, names := range map[string][]string{"serve": {"max-tokens", "predict", "temperature"},
		"synth": {"type", "quant"}, "logits": {"output", "out"}, "bench": {"predict", "n", "ignore-eos", "ignore-end"}} {
		c, _, err := root.Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if c.Flags().Lookup(name) == nil {
				t.Errorf("%s has no --%s", command, name)
			}
		}
	}
}

// TestMistakes: a wrong command line is a sentence, without names of Go's functions.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, c := range []struct{ line, want string }{
		{"run --temp abc -p x", `--temp "abc": want a number`},
		{"run --top-k 1.5 -p x", `--top-k "1.5": want a whole number`},
		{"synth --seed -1 -o x", `--seed "-1": want a whole number of 0 or more`},
		{"serve --models-idle 5", `--models-idle "5": want a time such as 30s or 5m`},
		{"serve --cache-ram much", `--cache-ram: "much" is not a size`},
		{"run -d a.gguf -d none -p x", `-d none: there are other drafters, too; give none or the others`},
		{"run -d none -d a.gguf -p x", `-d none: there are other drafters, too; give none or the others`},
		{"run -m a.gguf -m b.gguf -p x", `--model: "a.gguf" and "b.gguf": give one of them`},
		{"help foo", `there is no command "foo"`},
		{"help bench foo", `there is no command "bench foo"`},
		{"completion klingon", `there is no shell "klingon"`},
		{"demo --record x.gif", "--record x.gif: the picture is SVG"},
		{"run --ubatch-size -1 -p x", "--ubatch-size -1: want 0 or more"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(c.line), nil, &out, &errs)
		if code != exitUsage || !strings.Contains(errs.String(), c.want) || strings.Contains(errs.String(), "strconv") {
			t.Errorf("strobe %s: code %d, %s", c.line, code, errs.String())
		}
	}
	for _, line := range []string{"help", "help run", "help bench fleet", "completion", "completion bash", "run --help"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), nil, &out, &errs); code != exitOK || out.Len() == 0 {
			t.Errorf("strobe %s: code %d, %s", line, code, errs.String())
		}
	}
	for text, want := range map[string]string{
		"temp = \"abc\"":                    `--temp "abc": want a number`,
		"port = [":                          "config.toml:1: ",
		"nosuch = 1":                        `there is no setting "nosuch"`,
		"[run]\nport = 1":                   `[run]: there is no setting "port"`,
		strings.Repeat("a.", 100) + "a = 1": "inside each other",
	} {
		file := filepath.Join(dir, "strobe", "config.toml")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"config"}, nil, &out, &errs)
		if code != exitError || !strings.Contains(errs.String(), want) || !strings.Contains(out.String(), file) {
			t.Errorf("config with %q: code %d, %s%s", text, code, out.String(), errs.String())
		}
	}
}

// TestNesting: what nests too deeply for the parser is refused, and strings are no nesting.
func TestNesting(t *testing.T) {
	deep := strings.Repeat("[", maxNesting+1)
	for text, want := range map[string]int{
		"":                                0,
		"a = " + deep:                     1,
		"a = 1\nb = " + deep:              2,
		"a = 1 # " + deep:                 0,
		"a = 1 # " + deep + "\nb=" + deep: 2,
		`a = "` + deep + `"`:              0,
		`a = "\"` + deep + `"`:            0,
		`a = '\'` + deep:                  1,
		"a = '''\n'" + deep + "\n'''\nb = " + deep:   4,
		"a = \"\"\"\n\"" + deep + "\n\"\"\"":         0,
		"a = \"\nb = " + deep:                        2,
		"a = " + strings.Repeat("[", maxNesting):     0,
		strings.Repeat("a.", maxNesting) + "a = 1":   0,
		strings.Repeat("a.", maxNesting+1) + "a = 1": 1,
		strings.Repeat("a = 0.5\n", 100):             0,
		"a = [" + strings.Repeat("0.5, ", 100) + "]": 0,
		"a = " + strings.Repeat("[],", 100):          0,
		strings.Repeat("{a=", maxNesting+1):          1,
	} {
		if got := tooDeep(text); got != want {
			t.Errorf("%q: line %d, want %d", text, got, want)
		}
	}
}

// TestUnknownVariable: a variable that no flag reads is said, with what may have been meant.
func TestUnknownVariable(t *testing.T) {
	t.Setenv("STROBE_TEMPP", "1")
	t.Setenv("STROBE_SERVICE_HOST", "10.0.0.1") // as Kubernetes does
	t.Setenv("STROBE_TOP_K", "10")
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"list", "--known"}, nil, &out, &errs); code != exitOK ||
		errs.String() != "note: no flag reads the variable STROBE_TEMPP, did you mean STROBE_TEMP?\n" {
		t.Errorf("code %d, %q", code, errs.String())
	}
}

// TestEscapes: what a terminal would obey is shown, wherever it comes from a file.
func TestEscapes(t *testing.T) {
	const evil = "a\x1b]0;x\ab"
	path := edit.Golden(t, "qwen3").Set("general.name", evil).Set("general."+evil, evil).
		Set("general.list", []string{evil}).Write(t)
	for _, line := range []string{"inspect", "inspect --keys", "show", "run -p x -n 1", "chat", "demo -n 4"} {
		var out, errs bytes.Buffer
		args := append(strings.Fields(line), path)
		run(t.Context(), args, strings.NewReader("x\n"), &out, &errs)
		if strings.Contains(out.String()+errs.String(), "\x1b]0;x") {
			t.Errorf("%s: %q", line, out.String()+errs.String())
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 tokens", 1: "1 token", 2: "2 tokens"} {
		if got := count(n, "token"); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
}
