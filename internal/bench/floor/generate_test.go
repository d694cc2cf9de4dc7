package floor

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"strobe/internal/testkit"
)

// TestGenerated runs the generator in a copy of its folder and compares what it writes with the
// files here.
func TestGenerated(t *testing.T) {
	testkit.Long(t) // it downloads and builds the generator
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "_asm"), os.DirFS("_asm")); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir = filepath.Join(dir, "_asm")
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS=", "GOARCH=", "GOFLAGS=-mod=readonly")
		return cmd.CombinedOutput()
	}
	if out, err := run("mod", "download"); err != nil {
		t.Skipf("the generator's modules are not here and cannot be downloaded: %v\n%s", err, out)
	}
	if out, err := run("run", ".", "-out", "../floor_amd64.s", "-stubs", "../stubs_amd64.go", "-pkg",
		"floor"); err != nil {
		t.Fatalf("generator: %v\n%s", err, out)
	}
	for _, name := range []string{"floor_amd64.s", "stubs_amd64.go"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes; run go generate", name)
		}
	}
}
