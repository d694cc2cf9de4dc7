package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

func TestReport(t *testing.T) {
	const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: no file: \"x\"\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestEnds","Output":"panic: x\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":1}
not JSON
{"Action":"output","Package":"q","Test":"TestD","Output":"a passing test says something\n"}
{"Action":"pass","Package":"q","Test":"TestD"}
{"Action":"output","Package":"q","Output":"PASS\n"}
{"Action":"output","Package":"q","Output":"ok  \tq\t(cached)\n"}
{"Action":"pass","Package":"q","Elapsed":2.5}
{"Action":"output","Package":"none","Output":"?   \tnone\t[no test files]\n"}
{"Action":"skip","Package":"none"}
{"Action":"skip","Package":"q","Test":"TestC"}`
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	const want = "skipped for other reasons: 2\n  p TestA: no file: \"x\"\n  q TestC: no reason given\n"
	if got := r.skips(); got != want {
		t.Errorf("skipped %q, want %q", got, want)
	}
	if s := out.String(); s != "    b_test.go:1: wrong\npanic: x\nFAIL\nnot JSON\nok  \tq\t(cached)\n" {
		t.Errorf("shown: %q", s)
	}
}

// TestRun: tests of a module of their own, as the command runs them.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n",
		"good/a_test.go": `package good

import ("os"; "testing")

func TestGood(t *testing.T) {}
func TestLack(t *testing.T) { t.Skip("no GPU") }
func TestLong(t *testing.T) {
	if os.Getenv("` + testkit.LongVariable + `") == "" { t.Skip("` + testkit.LongReason + `") }
}
`,
		"bad/a_test.go":    "package bad\n\nimport \"testing\"\n\nfunc TestEnd(t *testing.T) { go func() { panic(\"ouch\") }(); select {} }\n",
		"wrong/a_test.go":  "package wrong\n\nimport \"testing\"\n\nfunc TestWrong(t *testing.T) { t.Error(\"it differs\") }\n",
		"broken/a_test.go": "package broken\n\nfunc f() int { return nothing }\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv(testkit.LongVariable, "1") // as if this run were a long one
	t.Setenv("GOFLAGS", "")
	const lack = "skipped for other reasons: 1\n  m/good TestLack: no GPU\n"
	const long = "skipped because they are long, go run ./internal/tests -long runs them: 1\n  m/good: 1\n"
	for _, c := range []struct {
		long  bool
		args  []string
		code  int
		shown []string
		list  string
	}{
		{false, []string{"./good"}, 0, []string{"ok  \tm/good"}, long + lack},
		{true, []string{"./good"}, 0, []string{"ok  \tm/good"}, lack},
		{true, []string{"-run=TestGood", "./good"}, 0, []string{"ok  \tm/good"}, "no test was skipped\n"},
		{false, nil, 1, []string{"ok  \tm/good", "panic: ouch", "it differs", "nothing", "FAIL\tm/bad", "FAIL\tm/wrong",
			"FAIL\tm/broken", "\nFAIL\n"}, long + lack},
	} {
		var out strings.Builder
		list := filepath.Join(t.TempDir(), "list")
		code, err := run(&out, c.long, list, c.args)
		if err != nil || code != c.code {
			t.Errorf("long %t, %q: exit code %d, %v, want %d\n%s", c.long, c.args, code, err, c.code, &out)
		}
		for _, s := range append(c.shown, c.list) {
			if !strings.Contains(out.String(), s) {
				t.Errorf("long %t, %q: %q is not shown:\n%s", c.long, c.args, s, &out)
			}
		}
		if got, err := os.ReadFile(list); err != nil || string(got) != c.list {
			t.Errorf("long %t, %q: listed %q, %v, want %q", c.long, c.args, got, err, c.list)
		}
		if c.code == 0 && strings.Contains(out.String(), "FAIL") {
			t.Errorf("long %t, %q: FAIL is shown:\n%s", c.long, c.args, &out)
		}
	}
	nowhere := filepath.Join(dir, "no", "list")
	if _, err := run(&strings.Builder{}, false, nowhere, []string{"-run=TestGood", "./good"}); err == nil {
		t.Error("a list that cannot be written: no error")
	}
}

// TestProgress: who waits learns what is running, but only if nothing else was shown.
func TestProgress(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	say := func(e event) {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		r.line(string(b))
	}
	said := func(want string) {
		t.Helper()
		out.Reset()
		r.progress()
		if got := out.String(); got != want {
			t.Errorf("progress %q, want %q", got, want)
		}
	}
	r.progress()
	said("... packages done: 0, at work: go, which compiles\n")
	say(event{Action: "start", Package: "p"})
	say(event{Action: "run", Package: "p", Test: "TestA"})
	say(event{Action: "output", Package: "p", Test: "TestA", Output: "what tests say is not shown"})
	said("... packages done: 0, at work: p (0 s, now TestA)\n")
	say(event{Action: "output", Package: "p", Output: "ok  \tp\t0.1s\n"})
	say(event{Action: "pass", Package: "p"})
	said("")
	said("... packages done: 1, at work: go, which compiles\n")
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args, want string
	}{
		{"", "false  [] <nil>"},
		{"-long", "true  [] <nil>"},
		{"-list f", "false f [] <nil>"},
		{"-long -list f -count=1 -run X ./a -long", "true f [-count=1 -run X ./a -long] <nil>"},
		{"./a", "false  [./a] <nil>"},
		{"-long -list", "false  [] -list needs the name of a file"},
		{"-h", "false  [] usage: go run ./internal/tests [-long] [-list FILE] [ARGUMENTS OF go test]"},
	} {
		long, list, rest, err := parse(strings.Fields(c.args))
		if got := fmt.Sprint(long, " ", list, " ", rest, " ", err); got != c.want {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
}
