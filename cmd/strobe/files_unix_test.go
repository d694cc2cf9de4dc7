//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"strobe/internal/testkit"
)

// TestOddFiles: every path that a command line, a variable or a folder can name may be a pipe without a writer or a
// device that never ends. That is one clear line, at once.
func TestOddFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	model := testkit.Golden(t, "qwen3/model.gguf")
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := []string{
		"run -f X", "run --json-schema X -p x", "run --grammar X -p x", "run -m X -p x", "run -d X -p x",
		"run --prefill-scorer X -p x -m " + model, "run -m " + model + " -d X -p x", "demo -f X",
		"chat --load X -m " + model, "serve -m X",
		"serve --chat-template-file X", "serve --tls-cert X --tls-key " + good, "serve --tls-key X --tls-cert " + good,
		"serve --api-key-file X", "serve --config X", "serve --upstream a=http://127.0.0.1:1 --upstream-key a=@X",
		"check http://127.0.0.1:1 --api-key-file X", "logits --tokens X --out " + filepath.Join(dir, "out"),
		"logits --compare X", "tokenize -m X", "inspect X", "inspect " + model + " --target X",
		"quantize X " + filepath.Join(dir, "out") + " q8_0", "bench --prompts X", "bench fleet X",
	}
	for _, odd := range []struct{ path, want string }{{fifo, "is a pipe"}, {"/dev/zero", "is a device"}} {
		for _, line := range lines {
			args := strings.Fields(line)
			for i, a := range args {
				args[i] = strings.Replace(a, "X", odd.path, 1)
			}
			refuses(t, odd.path, odd.want, args)
		}
		t.Run("STROBE_CONFIG", func(t *testing.T) {
			t.Setenv(configVariable, odd.path)
			refuses(t, odd.path, odd.want, []string{"devices"})
		})
		t.Run("models.toml", func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("XDG_CONFIG_HOME", home)
			link := filepath.Join(home, "strobe", "models.toml")
			if err := os.Mkdir(filepath.Dir(link), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(odd.path, link); err != nil {
				t.Fatal(err)
			}
			refuses(t, link, odd.want, []string{"list", "--known"})
		})
		t.Run("convert", func(t *testing.T) { convertOdd(t, odd.path, odd.want) })
	}
}

func refuses(t *testing.T, path, want string, args []string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(""), &out, &errs)
	if code == exitOK || !strings.Contains(errs.String(), path+": "+want) || out.Len() > 0 {
		t.Errorf("strobe %s: code %d, %s%s", strings.Join(args, " "), code, out.String(), errs.String())
	}
}

// convertOdd has each file of a checkpoint be odd in turn.
func convertOdd(t *testing.T, odd, want string) {
	from := testkit.Golden(t, "qwen3/hf")
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"README.md", "chat_template.jinja", "modules.json", "model.safetensors.index.json"}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range names {
		dir := t.TempDir()
		for _, e := range entries {
			if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		os.Remove(filepath.Join(dir, name))
		if err := os.Symlink(odd, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		code := run(t.Context(), []string{"convert", dir, "-o", filepath.Join(dir, "out.gguf")}, nil, io.Discard, &errs)
		// Some files are only looked at if they are there. What matters is that it ends.
		if code != exitOK && !strings.Contains(errs.String(), name+": "+want) {
			t.Errorf("%s: code %d, %s", name, code, errs.String())
		}
		if code == exitOK && (name == "config.json" || name == "tokenizer.json" || strings.HasSuffix(name, ".safetensors")) {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestTokenPipe: the hub's file with a token is no reason to wait.
func TestTokenPipe(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HF_HOME", home)
	t.Setenv("HF_HUB_OFFLINE", "1")
	if err := syscall.Mkfifo(filepath.Join(home, "token"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"list"}, nil, io.Discard, &errs); code != exitOK {
		t.Errorf("code %d, %s", code, errs.String())
	}
}
