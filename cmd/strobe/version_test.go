package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestVersionText: a release says its version, commit and date; a commit is cut to what people compare.
func TestVersionText(t *testing.T) {
	version, commit, date = "v1.2.3", "0123456789abcdef0123", "2026-01-02"
	defer func() { version, commit, date = "", "", "" }()
	want := "strobe v1.2.3 (commit 0123456789ab 2026-01-02, go1."
	if got := versionText(); !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s...", got, want)
	}
	version = ""
	if got := versionText(); !strings.Contains(got, "commit 0123456789ab 2026-01-02") {
		t.Error(got)
	}
}

// TestVersionFlag: the flag says what the command says, whatever stands beside it or in the settings.
func TestVersionFlag(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	if err := os.MkdirAll(filepath.Join(home, "strobe"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "strobe", "config.toml"), []byte("no settings"), 0o666); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{"--version": versionText() + "\n", "-v": versionText() + "\n",
		"--version no-such-command": versionText() + "\n", "version": versionText() + "\n"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), nil, &out, &errs); code != exitOK || out.String() != want {
			t.Errorf("strobe %s: code %d, %s%s", line, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--version=false", "no-such-command"}, nil, &out, &errs)
	if code != exitUsage || out.Len() > 0 {
		t.Errorf("code %d, %s", code, out.String())
	}
}

// TestManPage: the manual has every command and its flags, and no line that man would take for an instruction of its
// own.
func TestManPage(t *testing.T) {
	root, _ := newRootCmd()
	page := manPage(root)
	for _, want := range []string{".SS \"strobe run ", ".SS \"strobe bench serve", "\\fB\\-m, \\-\\-model\\fR",
		".SH NAME"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
	known := regexp.MustCompile(`^\.(TH|SH|SS|TP|PP|B|I|nf|fi)\b`)
	for line := range strings.Lines(page) {
		if (strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'")) && !known.MatchString(line) {
			t.Errorf("an unknown instruction: %s", line)
		}
	}
	if got := roff("a-b\\\n.c\n'd\n\te"); got != "a\\-b\\e\n\\&.c\n\\&'d\n    e" {
		t.Errorf("%q", got)
	}
}

// TestLicensesCommand: the licences are those of the program and of what is in it.
func TestLicensesCommand(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"licenses"}, nil, &out, &out); code != exitOK {
		t.Fatal(code, out.String())
	}
	for _, want := range []string{"== Strobe (MIT)", "== Go's standard library", "== github.com/spf13/cobra ",
		"== web page: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}
