// Package e2e runs the official clients of OpenAI and Anthropic against a live server: the real command
// in a process of its own, with a tiny model. It is a module of its own because the clients bring
// many others along.
package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server is the address of the server under test, key what it wants to hear.
var server, key = os.Getenv("STROBE_URL"), "sesame"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// run starts a server unless STROBE_URL names one, and runs the tests.
func run(m *testing.M) (code int, err error) {
	if server != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "strobe-e2e")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary, model, err := build(dir)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(binary, "serve", "-m", model, "-d",
		filepath.Join("..", "testdata", "golden", "dflash-qwen35", "model.gguf"),
		"--port", "0", "--alias", "tiny", "--ctx", "4096", "--api-key", key, "--parallel", "8", "-q")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if werr := cmd.Wait(); werr != nil && err == nil {
			err = fmt.Errorf("the server ended with %w", werr)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the server did not start: %w", err)
	}
	go io.Copy(io.Discard, out)
	server = strings.TrimSpace(line)
	for range 200 {
		resp, err := http.Get(server + "/health")
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return m.Run(), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, fmt.Errorf("the server never got ready")
}

// build makes the command and a model: the golden checkpoint with a chat template that knows tools and
// reasoning.
func build(dir string) (binary, model string, err error) {
	command := func(where, name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = where
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
	binary = filepath.Join(dir, "strobe")
	if err := command("..", "go", "build", "-o", binary, "./cmd/strobe"); err != nil {
		return "", "", err
	}
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := os.CopyFS(checkpoint, os.DirFS(filepath.Join("..", "testdata", "golden", "qwen35", "hf"))); err != nil {
		return "", "", err
	}
	template, err := os.ReadFile(filepath.Join("testdata", "chat_template.jinja"))
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(filepath.Join(checkpoint, "chat_template.jinja"), template, 0o644); err != nil {
		return "", "", err
	}
	model = filepath.Join(dir, "tiny.gguf")
	return binary, model, command(".", binary, "convert", checkpoint, "-o", model, "-q")
}

// slots fails the test unless all slots are free soon.
func slots(t *testing.T) {
	t.Helper()
	for range 100 {
		req, err := http.NewRequest("GET", server+"/slots", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), `"is_processing":true`) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a slot is still busy")
}
