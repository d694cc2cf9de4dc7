package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"strobe/internal/testkit"
)

// TestExitCodes: 0 for success, 1 for failure, 2 for a wrong command line, 130
// for an interrupt.
func TestExitCodes(t *testing.T) {
	model := testkit.Golden(t, "qwen3/model.gguf")
	tests := []struct {
		args string
		want int
	}{
		{"version", exitOK},
		{"licenses", exitOK},
		{"man", exitOK},
		{"", exitOK},
		{"--help", exitOK},
		{"inspect " + model, exitOK},
		{"inspect nothing.gguf", exitError},
		{"inspect", exitUsage},
		{"inspect --bad", exitUsage},
		{"nonsense", exitUsage},
		{"synth --shape tiny-qwen3 --quant nonsense -o x", exitUsage},
		{"synth --seed minus -o x", exitUsage},
		{"synth --shape nonsense -o x", exitUsage},
		{"check ftp://x", exitUsage},
		{"rm", exitUsage},
	}
	for _, c := range tests {
		var out, errs bytes.Buffer
		if got := run(t.Context(), strings.Fields(c.args), strings.NewReader(""), &out, &errs); got != c.want {
			t.Errorf("strobe %s: code %d, want %d; %s", c.args, got, c.want, errs.String())
		}
		if c.want == exitOK && errs.Len() > 0 {
			t.Errorf("strobe %s wrote %q to standard error", c.args, errs.String())
		}
		if c.want != exitOK && !strings.HasPrefix(errs.String(), "strobe: ") {
			t.Errorf("strobe %s: message %q", c.args, errs.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	out := filepath.Join(t.TempDir(), "x.gguf")
	if got := run(ctx, []string{"synth", "--shape", "tiny-qwen3", "-o", out}, nil, io.Discard,
		&errs); got != exitInterrupted {
		t.Errorf("cancelled: code %d, %s", got, errs.String())
	}
	errs.Reset()
	if got := run(ctx, []string{"run", "-m", model, "-p", "hello"}, nil, io.Discard, &errs); got != exitInterrupted {
		t.Errorf("cancelled run: code %d, %s", got, errs.String())
	}
}

// closedPipe fails like standard output whose reader has gone.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, &pipeError{} }

type pipeError struct{}

func (*pipeError) Error() string   { return "write: broken pipe" }
func (*pipeError) Is(t error) bool { return errors.Is(syscall.EPIPE, t) }

// TestClosedPipe: "strobe inspect FILE | head -1" is not an error.
func TestClosedPipe(t *testing.T) {
	var errs bytes.Buffer
	if got := run(t.Context(), []string{"inspect", testkit.Golden(t, "qwen3/model.gguf")}, nil, closedPipe{},
		&errs); got != exitOK || errs.Len() > 0 {
		t.Errorf("code %d, %q", got, errs.String())
	}
}

// TestHelp: every command explains itself.
func TestHelp(t *testing.T) {
	root, _ := newRootCmd()
	for _, c := range root.Commands() {
		if c.Short == "" {
			t.Errorf("%s has no short help", c.Name())
		}
		if c.Name() != "version" && c.Name() != "help" && c.Name() != "completion" && (c.Long == "" || c.Example == "") {
			t.Errorf("%s has no long help or no example", c.Name())
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 123_456: "123 kB",
		2_705_101_600: "2.7 GB", 5e15: "5000 TB"} {
		if got := formatBytes(n); got != want {
			t.Errorf("formatBytes(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"": 0, "10": 10, "1.5k": 1500, "40G": 40e9, "500MB": 500e6} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, bad := range []string{"x", "-1", "0", "1e30G", "G"} {
		if _, err := parseSize(bad); err == nil {
			t.Errorf("parseSize(%q) is accepted", bad)
		}
	}
}

// fullDisk fails like standard output in a file on a disk without room.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space") }

// TestFullOutput: a result that cannot be written is an error, of every command that prints one without a model.
func TestFullOutput(t *testing.T) {
	for _, name := range []string{"config", "version", "--version", "licenses", "man", "devices", "list --known"} {
		var errs bytes.Buffer
		code := run(t.Context(), strings.Fields(name), nil, fullDisk{}, &errs)
		if code != exitError || !strings.Contains(errs.String(), "no space") {
			t.Errorf("strobe %s: code %d, %s", name, code, errs.String())
		}
	}
}
