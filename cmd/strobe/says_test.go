package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"strobe/internal/testkit"
)

// interrupting is an output whose reader interrupts the command at the first text.
type interrupting struct {
	text   bytes.Buffer
	cancel context.CancelFunc
}

func (w *interrupting) Write(b []byte) (int, error) {
	w.cancel()
	return w.text.Write(b)
}

// TestInterruptEndsLine: what the shell prints after an interrupted answer is on a line of its own.
func TestInterruptEndsLine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &interrupting{cancel: cancel}
	var errs bytes.Buffer
	code := run(ctx, []string{"run", "-m", testkit.Golden(t, "qwen3/model.gguf"), "--ignore-eos", "--temp", "0", "--raw",
		"-p", "x"}, nil, out, &errs)
	if code != exitInterrupted || !strings.HasSuffix(out.text.String(), "\n") {
		t.Errorf("code %d, %q, %s", code, out.text.String(), errs.String())
	}
}

// TestSummaryOfAssistant: a drafter without a cache of its own says nothing of one.
func TestSummaryOfAssistant(t *testing.T) {
	var errs bytes.Buffer
	code := run(t.Context(), []string{"run", "-v", "-m", testkit.Golden(t, "gemma4/model.gguf"), "-d",
		testkit.Golden(t, "gemma4-assistant/model.gguf"), "-n", "1", "-p", "x"}, nil, io.Discard, &errs)
	if code != exitOK || !strings.Contains(errs.String(), "; drafter ") || strings.Contains(errs.String(), "(, ") {
		t.Errorf("code %d, %s", code, errs.String())
	}
}

// TestUnloadLog: a model that was unloaded without an error is not logged with one.
func TestUnloadLog(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.gguf"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := serve(t, "--models", dir, "--models-idle", "1ms")
	ready(t, url)
	ask(t, url+"/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`)
	for range 1000 {
		if _, v := ask(t, url+"/api/ps", ""); len(v["models"].([]any)) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, log := stop(); !strings.Contains(log, "model unloaded") || strings.Contains(log, "<nil>") {
		t.Errorf("log %s", log)
	}
}
