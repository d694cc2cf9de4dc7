//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hangUpVariable has the arguments of TestHangUpProcess, as JSON; nohupVariable makes it ignore SIGHUP first.
const hangUpVariable, nohupVariable = "STROBE_TEST_HANGUP_ARGS", "STROBE_TEST_NOHUP"

// TestHangUpProcess is the command that TestHangUp runs; it does nothing otherwise.
func TestHangUpProcess(t *testing.T) {
	var args []string
	if json.Unmarshal([]byte(os.Getenv(hangUpVariable)), &args) == nil {
		if os.Getenv(nohupVariable) != "" {
			signal.Ignore(syscall.SIGHUP)
		}
		os.Exit(run(context.Background(), args, os.Stdin, os.Stdout, os.Stderr))
	}
}

// TestHangUp: a command whose terminal is closed while it writes a file ends and leaves nothing behind, and one that
// was started to outlive its terminal goes on.
func TestHangUp(t *testing.T) {
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP) // so that commands do not ignore it if these tests run under nohup
	defer signal.Stop(hangUps)
	for _, nohup := range []bool{false, true} {
		dir := t.TempDir()
		out := filepath.Join(dir, "out.gguf")
		args, err := json.Marshal([]string{"quantize", "../../models/strobe-go-66m.gguf", out, "q3_k_m", "--allow-requantize"})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestHangUpProcess$")
		cmd.Env = append(os.Environ(), hangUpVariable+"="+string(args))
		if nohup {
			cmd.Env = append(cmd.Env, nohupVariable+"=1")
		}
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		files := func() []os.DirEntry {
			list, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		for len(files()) == 0 { // until it writes
			select {
			case err := <-ended:
				t.Fatalf("it ended before it wrote: %v, %s", err, &said)
			case <-time.After(time.Millisecond):
			}
		}
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		want := exitHungUp
		if nohup { // what ends it comes later
			time.Sleep(20 * time.Millisecond)
			want = exitTerminated
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		<-ended
		if got := cmd.ProcessState.ExitCode(); got != want || len(files()) > 0 {
			t.Errorf("nohup %t: code %d, want %d; files %v", nohup, got, want, files())
		}
	}
}
