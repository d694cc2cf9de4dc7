package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestLogitsRounds: the command's rounds of multi-token prediction are those of the reference, for the block in the
// model and for one in a file of its own.
func TestLogitsRounds(t *testing.T) {
	for _, arch := range []string{"qwen35", "qwen35moe", "qwen3next"} {
		want, err := safetensors.Open(testkit.Golden(t, "mtp-"+arch+"/expected.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer want.Close()
		dir := t.TempDir()
		var ids []int32
		for i, data := 0, want.Tensor("tokens").Data; i < len(data); i += 4 {
			ids = append(ids, int32(data[i])|int32(data[i+1])<<8)
		}
		list, _ := json.Marshal(ids)
		if err := os.WriteFile(filepath.Join(dir, "ids.json"), list, 0o600); err != nil {
			t.Fatal(err)
		}
		model := edit.MTP(t, arch).Write(t)
		for _, args := range [][]string{nil, {"-d", testkit.Golden(t, "mtp-"+arch+"/block.gguf")}} {
			out := filepath.Join(dir, "out.safetensors")
			args = append([]string{"logits", "-m", model, "--tokens", filepath.Join(dir, "ids.json"), "--steps", "4",
				"--accept", "2,0,4,1", "--out", out, "--threads", "2"}, args...)
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitOK {
				t.Fatalf("%v ended with code %d: %s", args, code, stderr.String())
			}
			got, err := safetensors.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			for r := range 4 {
				for _, what := range []string{"h_in", "h_out", "logits", "verify_logits"} {
					name := fmt.Sprintf("round%d.%s", r, what)
					g, err := got.Tensor(name).Float32s()
					if err != nil {
						t.Fatal(err)
					}
					if what == "verify_logits" && arch != "qwen35" {
						continue // the repository has them of one model
					}
					w, _ := want.Tensor(name).Float32s()
					if e := testkit.RelL2(g, w); !(e <= 1e-4) {
						t.Errorf("%s: %s differs by %.2e", arch, name, e)
					}
				}
				name := fmt.Sprintf("round%d.draft", r)
				if !bytes.Equal(got.Tensor(name).Data, want.Tensor(name).Data) {
					t.Errorf("%s: %s differs", arch, name)
				}
			}
			got.Close()
		}
	}
}
