package main

import (
	"bytes"
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
	if got := roff("a-b\\\n.c\n'd"); got != "a\\-b\\e\n\\&.c\n\\&'d" {
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
