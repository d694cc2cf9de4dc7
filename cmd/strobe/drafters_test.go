package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// TestCheckpointDrafter: a drafter that is published as a checkpoint, in a folder or on the hub, is converted once and
// drafts from then on without the hub.
func TestCheckpointDrafter(t *testing.T) {
	requests := newHub(t, map[string][]byte{
		"owner/draft/config.json":       golden(t, "dflash-qwen35/hf/config.json"),
		"owner/draft/model.safetensors": golden(t, "dflash-qwen35/hf/model.safetensors"),
	})
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache) // where the system's caches are elsewhere, leftovers of this test are small
	model := testkit.Golden(t, "qwen35/model.gguf")
	folder := testkit.Golden(t, "dflash-qwen35/hf")
	run := func(drafter string) (stderr string) {
		t.Helper()
		code, text, stderr := command(t, "run", model, "-d", drafter, "-p", "hello", "-n", "6", "--temp", "0", "--device",
			"cpu", "--draft", "dflash")
		if code != 0 || strings.TrimSpace(text) == "" {
			t.Fatalf("code %d, %q, %s", code, text, stderr)
		}
		return stderr
	}
	for _, drafter := range []string{folder, "owner/draft"} {
		if stderr := run(drafter); !strings.Contains(stderr, "dflash") || !strings.Contains(stderr, "Q8_0") {
			t.Errorf("%s: nothing was converted: %s", drafter, stderr)
		}
		before := requests.Load()
		if stderr := run(drafter); strings.Contains(stderr, "Q8_0") {
			t.Errorf("%s: converted again: %s", drafter, stderr)
		}
		if n := requests.Load() - before; n > 0 {
			t.Errorf("%s: the hub got %d requests for what is here", drafter, n)
		}
	}
	// With a Markov head, as DSpark's drafters have.
	dspark := filepath.Join(t.TempDir(), "dspark")
	if err := os.CopyFS(dspark, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(golden(t, "dflash-qwen35/hf/config.json")), "DFlashDraftModel", "DSparkDraftModel", 1)
	weights := filepath.Join(dspark, "model.safetensors")
	f, err := safetensors.Open(weights)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []safetensors.Tensor
	for _, name := range f.Names() {
		x := *f.Tensor(name)
		x.Data = bytes.Clone(x.Data)
		tensors = append(tensors, x)
	}
	f.Close()
	for _, name := range []string{"markov_w1", "markov_w2"} {
		tensors = append(tensors, floatTensor("markov_head."+name+".weight", make([]float32, 512*32), 512, 32))
	}
	os.Remove(weights)
	if err := safetensors.Write(weights, tensors, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dspark, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	if stderr := run(dspark); !strings.Contains(stderr, "Q8_0") {
		t.Errorf("DSpark: nothing was converted: %s", stderr)
	}
	files, _ := filepath.Glob(filepath.Join(cache, "strobe", "drafters", "*.gguf"))
	if st, err := os.Stat(filepath.Join(cache, "strobe")); err == nil && st.IsDir() && len(files) != 3 {
		t.Errorf("the cache has %v", files)
	}
	// List and rm know them: a repository stands for the checkpoint and what was made from it, a file for itself.
	if len(files) > 0 {
		if code, out, stderr := command(t, "list"); code != 0 || strings.Count(out, "converted drafter") != 3 ||
			!strings.Contains(out, "owner--draft-") {
			t.Errorf("list: code %d, %s %s", code, out, stderr)
		}
		if code, _, stderr := command(t, "rm", "owner/draft"); code != 0 || strings.Count(stderr, "deleted ") != 2 ||
			!strings.Contains(stderr, "owner--draft-") {
			t.Errorf("rm owner/draft: code %d, %s", code, stderr)
		}
		for _, file := range files {
			code, _, stderr := command(t, "rm", file)
			if gone := strings.Contains(file, "owner--draft-"); code != 0 && !gone || gone && code != exitUsage {
				t.Errorf("rm %s: code %d, %s", file, code, stderr)
			}
		}
		if code, out, _ := command(t, "list", "--json"); code != 0 || strings.TrimSpace(out) != "[]" {
			t.Errorf("after rm: code %d, %s", code, out)
		}
	}
	if code, _, stderr := command(t, "rm", model); code != exitUsage || !strings.Contains(stderr, "did not download") {
		t.Errorf("rm of another file: code %d, %s", code, stderr)
	}
	if code, _, stderr := command(t, "run", folder, "-p", "x"); code != exitUsage ||
		!strings.Contains(stderr, "strobe convert") {
		t.Errorf("a checkpoint as the model: code %d, %s", code, stderr)
	}
	if code, _, stderr := command(t, "run", testkit.Golden(t, "gemma4/model.gguf"), "-d", t.TempDir(), "-p",
		"x"); code == 0 || strings.Contains(stderr, "\n\n") {
		t.Errorf("an empty folder: code %d, %s", code, stderr)
	}
}
