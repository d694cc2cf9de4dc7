//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"strobe/internal/device"
	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// argsVariable makes the test binary run a command line of the program and end.
const argsVariable = "STROBE_TEST_ARGS"

// TestProcess is the program in a process of its own, for tests that send it signals.
func TestProcess(t *testing.T) {
	var args []string
	if json.Unmarshal([]byte(os.Getenv(argsVariable)), &args) == nil {
		var in io.Reader = os.Stdin
		if os.Getenv(waitVariable) != "" {
			in = tellingReader{in}
		}
		endWithin = 10 * time.Millisecond // a server has its own time
		if os.Getenv(hangVariable) != "" {
			listDevices = func() []device.Info {
				os.Stdout.WriteString("hanging\n")
				select {}
			}
		}
		os.Exit(run(context.Background(), args, in, os.Stdout, os.Stderr))
	}
}

// startProcess runs the server as a process and returns its address.
func startProcess(t *testing.T, args ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	b, err := json.Marshal(append([]string{"serve", "--port", "0"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0], "-test.run=^TestProcess$")
	cmd.Env = append(os.Environ(), argsVariable+"="+string(b))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// TestSecondSignal: the first one lets requests finish, the second one ends the process at once.
func TestSecondSignal(t *testing.T) {
	cmd, url := startProcess(t, "-m", testkit.Golden(t, "qwen3/model.gguf"), "--shutdown-timeout", "1h")
	ready(t, url)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A request that does not finish: its body does not come.
	if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: 10\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it asks for the body
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for { // until it takes no requests
		r, err := http.Get(url + "/health")
		if err != nil {
			break
		}
		r.Body.Close()
	}
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	for running := true; running; { // one that comes with the first is the first, too
		cmd.Process.Signal(os.Interrupt)
		select {
		case err = <-ended:
			running = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("the process ended with %v", err)
	}
}

// TestStopWhileLoading: a server that is told to stop while it loads does so.
func TestStopWhileLoading(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	newPool = func(cfg engine.PoolConfig) (*engine.Pool, error) {
		close(begun)
		<-goOn
		return engine.NewPool(cfg)
	}
	defer func() { newPool = engine.NewPool }()
	defer close(goOn)
	_, stop := serve(t, "-m", testkit.Golden(t, "qwen3/model.gguf"), "--shutdown-timeout", "1h")
	<-begun
	if code, log := stop(); code != exitOK {
		t.Errorf("exit code %d, log %s", code, log)
	}
}

// TestServeChangedFile: a server of one file goes on with the new one when it was overwritten.
func TestServeChangedFile(t *testing.T) {
	read := func(name string) []byte {
		b, err := os.ReadFile(testkit.Golden(t, name+"/model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, read("qwen3"), 0o644); err != nil {
		t.Fatal(err)
	}
	url, _ := serve(t, "-m", path, "--temp", "0")
	ready(t, url)
	arch := func() any {
		status, v := ask(t, url+"/v1/completions", `{"prompt":"x","max_tokens":2}`)
		if status != http.StatusOK {
			t.Errorf("%d %v", status, v)
		}
		resp, err := http.Get(url + "/props")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var props struct {
			Model struct{ Arch string }
		}
		b, _ := io.ReadAll(resp.Body)
		if err := json.Unmarshal(b, &props); err != nil {
			t.Fatal(err)
		}
		return props.Model.Arch
	}
	if got := arch(); got != "qwen3" {
		t.Errorf("it serves %v", got)
	}
	if err := os.WriteFile(path, read("gemma4"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := arch(); got != "gemma4" {
		t.Errorf("after the file was overwritten it serves %v", got)
	}
}

// TestSignals: an interrupt ends a command that waits for its input, with the code shells expect.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		args   string
		want   int
	}{
		{os.Interrupt, `["run", "-n", "1"]`, exitInterrupted},
		{syscall.SIGTERM, `["run", "-n", "1"]`, exitTerminated},
		{os.Interrupt, `["tokenize"]`, exitInterrupted},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$")
		cmd.Env = append(os.Environ(), argsVariable+"="+c.args, waitVariable+"=1")
		in, err := cmd.StdinPipe() // nothing ever comes
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it reads
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != c.want {
			t.Errorf("%s, %v: code %d, want %d", c.args, c.signal, got, c.want)
		}
		in.Close()
	}
}

// hangVariable makes TestProcess wait for ever for its devices.
const hangVariable = "STROBE_TEST_HANG"

// TestSignalsWhileHanging: a command that waits for a driver or a file that does not answer ends all the same.
func TestSignalsWhileHanging(t *testing.T) {
	for signal, want := range map[os.Signal]int{os.Interrupt: exitInterrupted, syscall.SIGTERM: exitTerminated} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$")
		cmd.Env = append(os.Environ(), argsVariable+`=["devices"]`, hangVariable+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it hangs
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v: code %d, want %d", signal, got, want)
		}
	}
}

// waitVariable makes TestProcess say when its input is read for the first time.
const waitVariable = "STROBE_TEST_WAIT"

type tellingReader struct{ io.Reader }

func (r tellingReader) Read(b []byte) (int, error) {
	os.Stdout.WriteString("reading\n")
	return r.Reader.Read(b)
}

// TestDrain: told to stop, a server finishes its streams, takes nothing new and ends well; so does one in front of it.
func TestDrain(t *testing.T) {
	back, backURL := startProcess(t, "-m", testkit.Golden(t, "qwen3/model.gguf"), "--alias", "m", "--ctx", "4096",
		"--threads", "1", "--shutdown-timeout", "2m")
	ready(t, backURL)
	front, frontURL := startProcess(t, "--upstream", "m="+backURL, "--shutdown-timeout", "2m")
	ready(t, frontURL)
	type streaming struct {
		begun chan struct{}
		ended chan streamed
	}
	q := map[string]any{"model": "m", "stream": true, "max_tokens": 3000, "temperature": 0, "ignore_eos": true,
		"stream_options": map[string]bool{"include_usage": true},
		"messages":       []map[string]string{{"role": "user", "content": "hi"}}}
	begin := func(url string) streaming {
		s := streaming{make(chan struct{}), make(chan streamed, 1)}
		go func() {
			r, err := streamTelling(t.Context(), url, q, s.begun)
			if err != nil {
				r.err = err.Error()
			}
			s.ended <- r
		}()
		return s
	}
	through, direct := begin(frontURL), begin(backURL)
	for _, s := range []streaming{through, direct} {
		select {
		case <-s.begun:
		case r := <-s.ended:
			t.Fatalf("it ended before it began: %+v", r)
		}
	}
	for _, p := range []struct {
		cmd *exec.Cmd
		url string
	}{{front, frontURL}, {back, backURL}} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		for { // until it takes no requests
			r, err := http.Get(p.url + "/health")
			if err != nil {
				break
			}
			r.Body.Close()
		}
	}
	early := 0
	for _, s := range []streaming{through, direct} {
		select {
		case <-s.ended:
			early++
		default:
		}
	}
	if early > 0 {
		t.Fatalf("%d streams were over before the servers took no more requests, so nothing was shown", early)
	}
	for name, s := range map[string]streaming{"through": through, "direct": direct} {
		if r := <-s.ended; !r.whole || r.err != "" || r.completion != 3000 {
			t.Errorf("%s: the stream ended with %d tokens, whole %v, %q", name, r.completion, r.whole, r.err)
		}
	}
	for name, cmd := range map[string]*exec.Cmd{"front": front, "back": back} {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	}
}
