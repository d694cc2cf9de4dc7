package main

import (
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/testkit/edit"
)

// TestInspectSaysWhatRunSays: a file that does not load fails inspect, too, for the same reason; it used to find
// nothing wrong with metadata that makes no sense.
func TestInspectSaysWhatRunSays(t *testing.T) {
	refused := 0
	for _, name := range []string{"qwen35moe", "gemma4moe"} {
		e := edit.Golden(t, name)
		path := filepath.Join(t.TempDir(), "m.gguf")
		for _, kv := range e.KVs {
			if !strings.HasPrefix(kv.Key, e.Arch()+".") {
				continue
			}
			for _, v := range edit.HostileValues(kv.Value) {
				e.Clone().Set(kv.Key, v).WriteTo(t, path)
				m, loadErr := engine.Load(path, engine.Options{Threads: 1, Drafter: "none"})
				if loadErr == nil {
					m.Close()
				}
				f, err := gguf.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				r, err := inspectFile(f)
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				if loadErr == nil {
					continue
				}
				refused++
				said := false
				for _, c := range r.Checks {
					said = said || c.Result == "FAIL" && strings.Contains(c.What, loadErr.Error())
				}
				if !said {
					t.Errorf("%s, %s = %.40v: run says %q, inspect does not", name, kv.Key, v, loadErr)
				}
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d files were refused: the test shows little", refused)
	}
}
