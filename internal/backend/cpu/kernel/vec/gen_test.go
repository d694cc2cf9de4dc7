package vec

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

const asmFile = "vec_amd64.s"

// TestGenerated runs the generator and compares its output with the files in
// the package, except for the first line, which holds the command.
func TestGenerated(t *testing.T) {
	testkit.Long(t) // it downloads and builds the generator
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to run the assembly generator")
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(tool, args...)
		cmd.Dir = "_asm"
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		return cmd.CombinedOutput()
	}
	if out, err := run("mod", "download"); err != nil {
		t.Skipf("the modules of the generator cannot be fetched: %v: %s", err, out)
	}
	dir := t.TempDir()
	stubs := "stubs_amd64.go"
	if out, err := run("run", ".", "-out", filepath.Join(dir, asmFile), "-stubs", filepath.Join(dir, stubs), "-pkg",
		"vec"); err != nil {
		t.Fatalf("generator: %v\n%s", err, out)
	}
	for _, name := range []string{asmFile, stubs} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ = bytes.Cut(got, []byte("\n"))
		_, have, _ = bytes.Cut(have, []byte("\n"))
		if !bytes.Equal(got, have) {
			t.Errorf("%s is not what _asm generates: run go generate", name)
		}
	}
}

// features is what the levels of package kernel promise, in avo's spelling.
var features = map[string]string{
	"AVX2":   " SSE SSE2 AVX AVX2 FMA3 F16C MMX+ CMOV ",
	"AVX512": " SSE SSE2 AVX AVX2 FMA3 F16C MMX+ CMOV BMI2 AVX512F AVX512BW AVX512DQ AVX512VL ",
}

// TestInstructionSets proves that no function needs more than its level has:
// neither by the features the generator lists, nor by naming registers and
// masks that only AVX-512 has, of which its register allocator knows nothing.
func TestInstructionSets(t *testing.T) {
	src, err := os.ReadFile(asmFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(src) > 500<<10 {
		t.Errorf("%s has %d bytes, want at most 500 kB", asmFile, len(src))
	}
	wide := regexp.MustCompile(`\b(Z\d+|K[0-7]|[XY](1[6-9]|2\d|3[01]))\b`)
	var name, needs string
	functions := 0
	for i, line := range strings.Split(string(src), "\n") {
		if list, ok := strings.CutPrefix(line, "// Requires: "); ok {
			needs = list
		}
		if f, ok := strings.CutPrefix(line, "TEXT ·"); ok {
			name, _, _ = strings.Cut(f, "(")
			level := name[strings.LastIndex(name, "AVX"):]
			for _, f := range strings.Split(needs, ", ") {
				if !strings.Contains(features[level], " "+f+" ") {
					t.Errorf("%s needs %s, which level %s does not promise", name, f, level)
				}
			}
			if level == "AVX2" {
				functions++
			}
		}
		if strings.HasSuffix(name, "AVX2") && wide.MatchString(line) {
			t.Errorf("%s:%d: %s uses AVX-512: %s", asmFile, i+1, name, strings.TrimSpace(line))
		}
	}
	if functions < 20 {
		t.Errorf("found %d AVX2 functions, the test does not read the file as it is", functions)
	}
}
