//go:build unix

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"strobe/internal/testkit"
)

// TestModelsReplaced: whatever takes the place of a model in the folder of --models, before or after it was loaded, is
// an error for the client that asks for it, at once, and the others are served.
func TestModelsReplaced(t *testing.T) {
	whole, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	odd := map[string]func(path string) error{
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"fifo":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"loop":   func(path string) error { return os.Symlink(path, path) },
		"gone":   func(string) error { return nil },
		"empty":  func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"cut":    func(path string) error { return os.WriteFile(path, whole[:len(whole)/2], 0o600) },
		"text":   func(path string) error { return os.WriteFile(path, []byte("not a model"), 0o600) },
		"sparse": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40)
		},
	}
	dir := t.TempDir()
	write := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name+".gguf"), whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("good")
	for name, put := range odd {
		write("after-" + name)
		if err := put(filepath.Join(dir, "before-"+name+".gguf")); err != nil {
			t.Fatal(err)
		}
	}
	url, stop := serve(t, "--models", dir, "--ctx", "64")
	ask := func(model string) (int, string) {
		status, v := ask(t, url+"/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":2}`)
		message := ""
		if e, ok := v["error"].(map[string]any); ok {
			message, _ = e["message"].(string)
		}
		return status, message
	}
	for range 1000 { // until the folder was looked at
		if status, _ := ask("good"); status != http.StatusServiceUnavailable {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for name, put := range odd {
		if status, msg := ask("before-" + name); status == http.StatusOK || msg == "" {
			t.Errorf("%s from the beginning: %d %q", name, status, msg)
		}
		if status, msg := ask("after-" + name); status != http.StatusOK {
			t.Fatalf("%s, as it was: %d %q", name, status, msg)
		}
		path := filepath.Join(dir, "after-"+name+".gguf")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		// The model that is loaded may go on, since its file is still open. A clear error is right, too.
		if status, msg := ask("after-" + name); status != http.StatusOK && msg == "" {
			t.Errorf("%s in its place: %d %q", name, status, msg)
		}
		if status, msg := ask("good"); status != http.StatusOK {
			t.Fatalf("after %s another model does not answer: %d %q", name, status, msg)
		}
	}
	if code, log := stop(); code != exitOK || strings.Contains(log, "panic") {
		t.Errorf("code %d, %s", code, log)
	}
}
