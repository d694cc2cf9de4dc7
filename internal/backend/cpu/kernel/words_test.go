package kernel

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// assembler finds llvm-mc, which Debian installs with its version.
func assembler() string {
	for _, name := range []string{"llvm-mc-19", "llvm-mc", "llvm-mc-20", "llvm-mc-18", "llvm-mc-17", "llvm-mc-14"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

var wordLine = regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`)

// TestWords assembles the text beside every instruction that was written as a number and compares.
func TestWords(t *testing.T) {
	mc := assembler()
	if mc == "" {
		t.Skip("no llvm-mc: the words of the arm64 kernels are not compared with their comments")
	}
	for _, file := range []string{"qmat/kernels_arm64.s", "vec/vec_arm64.s"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n, m := bytes.Count(src, []byte("WORD")), len(wordLine.FindAll(src, -1)); n != m || n == 0 {
			t.Fatalf("%s: %d words, %d of them with an instruction beside them", file, n, m)
		}
		// An instruction has the same code wherever it is: one line for each kind.
		want := map[string]string{} // text to code
		var lines []string
		for _, m := range wordLine.FindAllStringSubmatch(string(src), -1) {
			code, text := m[1], m[2]
			if old, ok := want[text]; ok && old != code {
				t.Errorf("%s: %q is %s and %s", file, text, old, code)
			}
			if want[text] == "" {
				want[text] = code
				lines = append(lines, text)
			}
		}
		cmd := exec.Command(mc, "-triple=aarch64", "-mattr=+dotprod,+i8mm", "-show-encoding")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, errs.String())
		}
		encoding := regexp.MustCompile(`encoding: \[0x(..),0x(..),0x(..),0x(..)\]`)
		at := 0
		for s := bufio.NewScanner(&out); s.Scan(); {
			m := encoding.FindStringSubmatch(s.Text())
			if m == nil {
				continue
			}
			if at == len(lines) {
				t.Fatalf("%s: more instructions than lines", file)
			}
			if got := m[4] + m[3] + m[2] + m[1]; got != want[lines[at]] {
				t.Errorf("%s: %q is 0x%s, the file has 0x%s", file, lines[at], got, want[lines[at]])
			}
			at++
		}
		if at != len(lines) {
			t.Errorf("%s: %d of %d instructions were assembled", file, at, len(lines))
		}
	}
}

// TestGenerated runs the generator of the arm64 kernels and compares its output with the files of the packages. It
// needs no modules, only the go command.
func TestGenerated(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to run the assembly generator")
	}
	dir := t.TempDir()
	for _, p := range []string{"qmat", "vec"} {
		if err := os.Mkdir(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(tool, "run", ".", "-out", dir)
	cmd.Dir = "_asm"
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOOS=", "GOARCH=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("generator: %v\n%s", err, out)
	}
	for _, name := range []string{
		"qmat/kernels_arm64.s", "qmat/kernels_arm64.go", "vec/vec_arm64.s", "vec/stubs_arm64.go",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, have) {
			t.Errorf("%s is not what _asm generates: run go generate", name)
		}
	}
}

func TestLevels(t *testing.T) {
	all := All()
	if all[0] != Generic {
		t.Errorf("the lowest level is %v", all[0])
	}
	for i, l := range all {
		if got, err := parse(l.String()); err != nil || got != l {
			t.Errorf("%v is read as %v, %v", l, got, err)
		}
		if i > 0 && l <= all[i-1] {
			t.Errorf("%v is not above %v", l, all[i-1])
		}
	}
	want := fmt.Sprintf("unknown CPU level %q: want %s", "mmx", names(all))
	if _, err := parse("mmx"); err == nil || err.Error() != want {
		t.Errorf("a level that does not exist: %v", err)
	}
	have := Available()
	if have[len(have)-1] != Best() {
		t.Errorf("available are %v, the best is %v", have, Best())
	}
	for _, l := range all {
		func() {
			defer Set(l)()
			if got := Current(); slices.Contains(have, l) && got != l || got > l || !slices.Contains(have, got) {
				t.Errorf("set to %v, got %v of %v", l, got, have)
			}
		}()
		if f := l.Floats(); f > l || f.Floats() != f || (f == Generic) != (l == Generic) {
			t.Errorf("%v has the float kernels of %v", l, f)
		}
	}
}

// TestLevelsWithGaps: a level that a CPU lacks is replaced by the next lower one that it has.
func TestLevelsWithGaps(t *testing.T) {
	defer func(have []Level) { available = have }(available)
	available = []Level{Generic, AVX2, AVX512} // as Cascade Lake and Zen 4
	for _, c := range []struct{ ask, want Level }{{Generic, Generic}, {AVX2, AVX2}, {AVXVNNI, AVX2}, {AVX512, AVX512},
		{numLevels, AVX512}} {
		if got := highest(c.ask); got != c.want {
			t.Errorf("at most %d gives %v, want %v", c.ask, got, c.want)
		}
	}
	if Best() != AVX512 {
		t.Errorf("best is %v", Best())
	}
}

func names(ls []Level) string {
	var s []string
	for _, l := range ls {
		s = append(s, l.String())
	}
	return strings.Join(s, ", ")
}
