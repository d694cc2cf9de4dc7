package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMain: go test -exec calls the program itself, which is this binary here.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == eachFlag {
		if err := runEach(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// tiny writes a module of one package and enters it. Its tests know some of what the package does.
func tiny(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module tiny\n\ngo 1.26\n",
		"tiny.go": `package tiny

import (
	"crypto/sha256"
	"errors"
	"sync"
)

var ErrEmpty = errors.New("empty")

type Box struct {
	mu   sync.Mutex
	list []int
	Open bool
}

func (b *Box) Close() { b.Open = false }

func (b *Box) Last() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.list) == 0 {
		return 0, ErrEmpty
	}
	return b.list[len(b.list)-1], nil
}

func (b *Box) Use(n int) (sum int, err error) {
	b.Open = true
	defer b.Close()
	for i, v := range b.list {
		if v < 0 {
			continue
		}
		if i >= n {
			break
		}
		sum += v
	}
	return sum, nil
}

func Key(role, text, more string) (k [32]byte) {
	h := sha256.New()
	for _, s := range []string{role, text, more} {
		h.Write([]byte{byte(len(s))})
		h.Write([]byte(s))
	}
	h.Sum(k[:0])
	return k
}

func Minus(a, b int) int { return a - b }

func Twice(a, b int) int { return 2 * Minus(a, b) }

func Size(n int) string {
	switch {
	case n < 1:
		return "none"
	}
	return "some"
}

func Same(a, b *Box) bool { return len(a.list) == len(b.list) && a.Open == b.Open }
`,
		"tiny_test.go": `package tiny

import "testing"

func TestTiny(t *testing.T) {
	b := &Box{list: []int{3, -1, 4, 5}}
	if v, err := b.Last(); v != 5 || err != nil {
		t.Error(v, err)
	}
	if sum, _ := b.Use(3); sum != 7 || b.Open {
		t.Error(sum, b.Open)
	}
	if Key("a", "b", "") == Key("a", "c", "") || Key("a", "b", "") == Key("b", "b", "") {
		t.Error("equal keys")
	}
	if Twice(3, 1) != 4 {
		t.Error("twice")
	}
	if Size(1) != "some" {
		t.Error("size")
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
}

// TestMutants: every operator finds its places, and nothing else does.
func TestMutants(t *testing.T) {
	tiny(t)
	var out strings.Builder
	if err := run(t.Context(), []string{"-list", "."}, &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(got)
	want := []string{
		"border   tiny.go:25: -1 is dropped",
		"border   tiny.go:32: < becomes <=",
		"border   tiny.go:35: >= becomes >",
		"border   tiny.go:59: < becomes <=",
		"branch   tiny.go:33: continue is missing",
		"branch   tiny.go:36: break is missing",
		"cleanup  tiny.go:30: missing: defer b.Close()",
		"error    tiny.go:23: nil instead of the error",
		"key      tiny.go:45: left out: more",
		"key      tiny.go:45: left out: role",
		"key      tiny.go:45: left out: text",
		"key      tiny.go:46: not hashed: h.Write([]byte{byte(len(s))})",
		"key      tiny.go:47: not hashed: h.Write([]byte(s))",
		"key      tiny.go:65: not compared: a.Open == b.Open",
		"key      tiny.go:65: not compared: len(a.list) == len(b.list)",
		"lock     tiny.go:20: b.mu is not locked",
		"negate   tiny.go:22: the condition is negated",
		"negate   tiny.go:32: the condition is negated",
		"negate   tiny.go:35: the condition is negated",
		"swap     tiny.go:55: swapped: a, b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("mutants are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRun: what the tests of a package notice is killed, what they do not is shown, and nothing is changed on disk.
func TestRun(t *testing.T) {
	tiny(t)
	before, err := os.ReadFile("tiny.go")
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(name, temp)
	}
	var out strings.Builder
	err = run(t.Context(), []string{"-n", "0", "-op", "key,error", "-strict", "-json", "out.json", "."}, &out)
	if !errors.Is(err, errSurvivors) {
		t.Fatalf("error is %v\n%s", err, &out)
	}
	raw, err := os.ReadFile("out.json")
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range r.Mutants {
		got[m.What] = m.Result
		if rest := "{ return (len(a.list) == len(b.list)) }"; m.What == "not compared: a.Open == b.Open" &&
			!strings.Contains(m.Diff, rest) {
			t.Errorf("%s: want %q in\n%s", m.What, rest, m.Diff)
		}
	}
	want := map[string]string{
		"left out: more": survived, "left out: role": killed, "left out: text": killed,
		"not hashed: h.Write([]byte{byte(len(s))})": survived, "not hashed: h.Write([]byte(s))": killed,
		"nil instead of the error": notRun, "not compared: a.Open == b.Open": notRun,
		"not compared: len(a.list) == len(b.list)": notRun,
	}
	for what, result := range want {
		if got[what] != result {
			t.Errorf("%s: %q, want %q", what, got[what], result)
		}
	}
	if all := (score{3, 8}); len(got) != len(want) || r.All != all || r.Scores["key"] != (score{3, 7}) {
		t.Errorf("%d mutants, scores %v and %+v; want %d, %v", len(got), r.All, r.Scores, len(want), all)
	}
	if diff := "tiny.go:45: survived: key: left out: more\n@@ -45,1 +45,1 @@\n" +
		"-\tfor _, s := range []string{role, text, more} {\n+\tfor _, s := range []string{role, text} {\n"; !strings.Contains(
		out.String(), diff) {
		t.Errorf("no survivor\n%sin\n%s", diff, &out)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "mutate*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	after, err := os.ReadFile("tiny.go")
	if err != nil || string(after) != string(before) {
		t.Errorf("the package was changed: %v", err)
	}
}

// TestSample: the same seed gives the same mutants, another one others, and operators come in turn.
func TestSample(t *testing.T) {
	tiny(t)
	lists := map[uint64]string{}
	for _, seed := range []uint64{1, 1, 2} {
		_, all, err := load(t.Context(), ".")
		if err != nil {
			t.Fatal(err)
		}
		all = shuffled(all, seed)
		var lines []string
		first := map[string]bool{}
		for i, m := range all {
			lines = append(lines, m.Operator+" "+m.What)
			if i < 8 {
				first[m.Operator] = true
			}
		}
		if len(first) != 8 {
			t.Errorf("the first 8 mutants have %d operators", len(first))
		}
		text := strings.Join(lines, "\n")
		if was := lists[seed]; was != "" && was != text {
			t.Errorf("seed %d gives\n%s\nand\n%s", seed, was, text)
		}
		lists[seed] = text
	}
	if lists[1] == lists[2] {
		t.Error("two seeds give the same order")
	}
}

// TestStops: a run that is cancelled ends, and tests that fail without any mutant are an error.
func TestStops(t *testing.T) {
	tiny(t)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(done, []string{"."}, &strings.Builder{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want cancelled", err)
	}
	broken := "package tiny\n\nimport \"testing\"\n\nfunc TestBroken(t *testing.T) { t.Error(\"broken\") }\n"
	if err := os.WriteFile("broken_test.go", []byte(broken), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"."}, &strings.Builder{}); err == nil ||
		!strings.Contains(err.Error(), "the tests fail without any mutant") {
		t.Errorf("error is %v", err)
	}
	// Flags behind -- are those of go test.
	var out strings.Builder
	if err := run(t.Context(), []string{"-n", "1", "-op", "swap", ".", "--", "-run", "TestTiny"}, &out); err != nil ||
		!strings.Contains(out.String(), "1 of 1 (100 %)") {
		t.Errorf("error is %v\n%s", err, &out)
	}
}

// TestHunk: only lines that differ are shown.
func TestHunk(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"a\nb\nc", "a\nx\nc", "@@ -2,1 +2,1 @@\n-b\n+x\n"},
		{"a\nb\nc\nd\ne", "a\nx\nc\ny\ne", "@@ -2,1 +2,1 @@\n-b\n+x\n@@ -4,1 +4,1 @@\n-d\n+y\n"},
		{"a\nb\nc\nd", "a\nbc\nd", "@@ -2,2 +2,1 @@\n-b\n-c\n+bc\n"},
		{"a\nb", "a\nx", "@@ -2,1 +2,1 @@\n-b\n+x\n"},
	} {
		if got := hunk([]byte(c.before), []byte(c.after)); got != c.want {
			t.Errorf("%q to %q: got %q, want %q", c.before, c.after, got, c.want)
		}
	}
}

// TestCase: a test that looks at the condition of a case and does not run what it guards finds mutants of it.
func TestCase(t *testing.T) {
	tiny(t)
	var out strings.Builder
	if err := run(t.Context(), []string{"-n", "0", "-op", "border", "-strict", "."}, &out); !errors.Is(err, errSurvivors) {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "tiny.go:59") || !strings.Contains(out.String(), "3 of 4 (75 %)") {
		t.Errorf("the test that sees it was not run\n%s", &out)
	}
}

// TestChoose: a line is for the tests that run it, the fastest first and apart; one that no test runs is for none,
// and one that no profile knows for all.
func TestChoose(t *testing.T) {
	x := &tests{lines: map[string]int{"a.go:1": 3, "a.go:2": 1, "a.go:3": 0}, alone: []alone{
		{Test: "A", Seconds: 2, Lines: map[string]int{"a.go:1": 1}},
		{Test: "B", Seconds: firstSeconds - 2, Lines: map[string]int{"a.go:1": 9, "a.go:2": 0}},
		{Test: "C", Seconds: 60, Lines: map[string]int{"a.go:1": 1, "a.go:2": 1}},
	}}
	for line, want := range map[string]string{
		"a.go:1": "A B | C ", "a.go:2": "C | ", "a.go:3": "| ", "a.go:4": "A B | C ",
	} {
		got := ""
		first, rest := x.choose(line)
		for _, one := range first {
			got += one.Test + " "
		}
		got += "| "
		for _, one := range rest {
			got += one.Test + " "
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestEachAlone: tests that pass together and fail alone are named.
func TestEachAlone(t *testing.T) {
	tiny(t)
	needs := "package tiny\n\nimport \"testing\"\n\nvar ready bool\n\nfunc TestBefore(t *testing.T) { ready = true }\n\n" +
		"func TestNeedsAnother(t *testing.T) {\n\tif !ready {\n\t\tt.Error(\"not ready\")\n\t}\n}\n"
	if err := os.WriteFile("needs_test.go", []byte(needs), 0o666); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"."}, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "TestNeedsAnother alone") {
		t.Errorf("error is %v", err)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"-n", "1", "-op", "swap", ".", "--", "-skip", "Needs"}, &out); err != nil ||
		!strings.Contains(out.String(), "1 of 1 (100 %)") {
		t.Errorf("without it: %v\n%s", err, &out)
	}
}

// TestProfile: a line counts as run when any part of it is.
func TestProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cover")
	text := "mode: set\ntiny/a.go:1.2,3.4 5 1\ntiny/a.go:3.5,4.2 1 0\ntiny/a.go:6.1,6.9 1 0\n"
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := readProfile(path)
	want := map[string]int{"a.go:1": 1, "a.go:2": 1, "a.go:3": 1, "a.go:4": 0, "a.go:6": 0}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, want %v; error %v", got, want, err)
	}
}
