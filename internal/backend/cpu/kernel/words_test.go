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

// coded is an instruction that was written as a number, and the text beside it.
type coded struct{ code, text string }

var (
	wordLine = regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`)
	// Of an instruction of amd64 the text comes first, then pieces of four, two and one bytes.
	textLine  = regexp.MustCompile(`^\t// (\S.*)$`)
	pieceLine = regexp.MustCompile(`^\t(?:LONG|WORD|BYTE) +\$0x([0-9a-f]+)$`)
	vpdpbusd  = regexp.MustCompile(`^VPDPBUSD Y(\d+), Y(\d+), Y(\d+)$`)
)

// armWords returns the instructions of an arm64 file that were written as numbers.
func armWords(t *testing.T, file string) (list []coded) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range wordLine.FindAllStringSubmatch(string(src), -1) {
		c := m[1]
		list = append(list, coded{c[6:] + c[4:6] + c[2:4] + c[:2], m[2]})
	}
	if n := bytes.Count(src, []byte("WORD")); n != len(list) || n == 0 {
		t.Fatalf("%s: %d words, %d of them with an instruction beside them", file, n, len(list))
	}
	return list
}

// intelWords does the same for an amd64 file.
func intelWords(t *testing.T, file string) (list []coded) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for line := range strings.Lines(string(src)) {
		line = strings.TrimSuffix(line, "\n")
		if m := textLine.FindStringSubmatch(line); m != nil {
			list = append(list, coded{"", vpdpbusd.ReplaceAllString(m[1], "{vex} vpdpbusd %ymm$1, %ymm$2, %ymm$3")})
			text = m[1]
		} else if m := pieceLine.FindStringSubmatch(line); m != nil {
			if text == "" {
				t.Fatalf("%s: %q has no instruction above it", file, line)
			}
			code := &list[len(list)-1].code
			for i := len(m[1]); i > 0; i -= 2 {
				*code += m[1][i-2 : i]
			}
		} else {
			text = ""
		}
	}
	list = slices.DeleteFunc(list, func(c coded) bool { return c.code == "" }) // other comments
	if len(list) == 0 {
		t.Fatalf("%s: no instructions that were written as numbers", file)
	}
	return list
}

// TestWords assembles the text beside every instruction that was written as a number and compares.
func TestWords(t *testing.T) {
	mc := assembler()
	if mc == "" {
		t.Skip("needs llvm-mc (Debian: llvm-19), which assembles the comments that instructions are compared with")
	}
	arm := []string{"-triple=aarch64", "-mattr=+dotprod,+i8mm"}
	intel := []string{"-triple=x86_64", "-mattr=+avxvnni,+amx-tile,+amx-int8"}
	for _, c := range []struct {
		file  string
		flags []string
		read  func(*testing.T, string) []coded
	}{
		{"qmat/kernels_arm64.s", arm, armWords},
		{"vec/vec_arm64.s", arm, armWords},
		{"qmat/kernels_amd64.s", intel, intelWords},
		{"../../../bench/floor/floor_amd64.s", intel, intelWords},
	} {
		// An instruction has the same code wherever it is: one line for each kind.
		want := map[string]string{} // text to code
		var lines []string
		for _, i := range c.read(t, c.file) {
			if old, ok := want[i.text]; ok && old != i.code {
				t.Errorf("%s: %q is %s and %s", c.file, i.text, old, i.code)
			}
			if want[i.text] == "" {
				want[i.text] = i.code
				lines = append(lines, i.text)
			}
		}
		cmd := exec.Command(mc, append(c.flags, "-show-encoding")...)
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", c.file, err, errs.String())
		}
		encoding := regexp.MustCompile(`encoding: \[(.*)\]`)
		at := 0
		for s := bufio.NewScanner(&out); s.Scan(); {
			m := encoding.FindStringSubmatch(s.Text())
			if m == nil {
				continue
			}
			if at == len(lines) {
				t.Fatalf("%s: more instructions than lines", c.file)
			}
			got := strings.NewReplacer("0x", "", ",", "").Replace(m[1])
			if got != want[lines[at]] {
				t.Errorf("%s: %q is %s, the file has %s", c.file, lines[at], got, want[lines[at]])
			}
			at++
		}
		if at != len(lines) {
			t.Errorf("%s: %d of %d instructions were assembled", c.file, at, len(lines))
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
		want := l
		if lower, ok := map[Level]Level{AVXVNNI: AVX2, AMX: AVX512, DotProd: NEON, I8MM: NEON}[l]; ok {
			want = lower
		}
		if got := l.Floats(); got != want {
			t.Errorf("%v has the float kernels of %v, want those of %v", l, got, want)
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
