// Package testkit holds what the tests of several packages need: where test
// material lies and how far two vectors are apart.
package testkit

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// Root is the repository's top folder: the nearest parent of the test's
// working folder that has a go.mod.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working folder")
		}
		dir = up
	}
}

// Golden is the path of a file or folder below testdata/golden. It is part of
// the repository, so its absence fails the test.
func Golden(t testing.TB, rel string) string {
	t.Helper()
	path := filepath.Join(Root(t), "testdata", "golden", filepath.FromSlash(rel))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("golden file: %v", err)
	}
	return path
}

// GoldenModels lists the golden models, e.g. "qwen35".
func GoldenModels(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Root(t), "testdata", "golden", "*", "model.gguf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden models (error %v)", err)
	}
	for i, f := range files {
		files[i] = filepath.Base(filepath.Dir(f))
	}
	return files
}

// Shared is the path of optional test material that is too large for the
// repository: below $STROBE_SHARED, or in a folder "shared" beside the
// repository. The test is skipped where it is absent.
func Shared(t testing.TB, rel string) string {
	t.Helper()
	base := os.Getenv("STROBE_SHARED")
	if base == "" {
		base = filepath.Join(filepath.Dir(Root(t)), "shared")
	}
	path := filepath.Join(base, filepath.FromSlash(rel))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("optional test material %q is not beside the repository; set STROBE_SHARED to its folder", rel)
	}
	return path
}

const (
	// LongVariable is set in the environment to run long tests.
	LongVariable = "STROBE_LONG"
	// LongCommand runs all tests with it, and lists what was skipped.
	LongCommand = "go run ./internal/tests -long"
	// LongReason is why a long test was skipped.
	LongReason = "a long test: " + LongCommand + " runs it, or set " + LongVariable + "=1"
)

// Long skips a test that takes long, unless $STROBE_LONG is set: go test ./... must end in minutes on any machine,
// whatever compilers and drivers for GPUs it has. Benchmarks run only when they are asked for, and are not skipped.
func Long(t testing.TB) {
	t.Helper()
	if _, bench := t.(*testing.B); !bench && os.Getenv(LongVariable) == "" {
		t.Skip(LongReason)
	}
}

// RelL2 is the length of got-want divided by the length of want. It is +Inf
// when the lengths differ, when any number is NaN, or when want is zero and
// got is not.
func RelL2(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var diff, norm float64
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff += d * d
		norm += float64(w) * float64(w)
	}
	switch {
	case diff == 0:
		return 0
	case math.IsNaN(diff) || math.IsNaN(norm) || norm == 0:
		return math.Inf(1)
	}
	return math.Sqrt(diff / norm)
}
