// Package e2e runs the official clients of OpenAI and Anthropic against a live server: the real command
// in a process of its own, with a tiny model. It is a module of its own because the clients bring
// many others along.
package e2e

import (
	"bufio"
	"errors"
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

// server is the address of the server under test, key what it wants to hear. The model runs at back, which is the
// same server or one behind it.
var (
	server, key   = os.Getenv("STROBE_URL"), "sesame"
	back, backKey = server, key
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// run starts a server unless STROBE_URL names one, and runs the tests; then once more through a server in front of it,
// which knows the model as an upstream.
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
	var stop, stopFront func() error
	drafter := filepath.Join("..", "testdata", "golden", "dflash-qwen35", "model.gguf")
	server, stop, err = start(binary, "-m", model, "-d", drafter, "--alias", "tiny", "--ctx", "4096", "--api-key", key,
		"--parallel", "8")
	if err != nil {
		return 0, err
	}
	back, backKey = server, key
	defer func() { err = errors.Join(err, stop()) }()
	if code = m.Run(); code != 0 {
		return code, nil
	}
	fmt.Println("again, through a server in front")
	key = "another sesame"
	server, stopFront, err = start(binary, "--upstream", "tiny="+back, "--upstream-key", "tiny="+backKey, "--api-key", key)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stopFront()) }()
	return m.Run(), nil
}

// start runs a server and waits until its models are ready.
func start(binary string, args ...string) (url string, stop func() error, err error) {
	cmd := exec.Command(binary, append([]string{"serve", "--port", "0", "-q"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("the server ended with %w", err)
		}
		return nil
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("the server did not start: %w", err), stop())
	}
	go io.Copy(io.Discard, out)
	url = strings.TrimSpace(line)
	for range 200 {
		req, err := http.NewRequest("GET", url+"/v1/models", nil)
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", nil, errors.Join(err, stop())
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && strings.Contains(string(b), `"state":"loaded"`) {
			return url, stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", nil, errors.Join(errors.New("the server never got ready"), stop())
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
		req, err := http.NewRequest("GET", back+"/slots", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+backKey)
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
