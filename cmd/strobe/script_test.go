package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestScripts runs the command lines in testdata/script as a user would, each
// file in a folder of its own. The files are txtar archives with the language of
// the testscript package, of which this is the part they use:
//
//	[!] exec strobe ARGS   run the program; with ! it must fail
//	stdin FILE             what the next exec reads
//	[!] stdout REGEXP      what the last exec printed
//	[!] stderr REGEXP
//	[!] exists FILE
//	cmp A B, cp A B, mkdir DIR
//	truncate FILE SIZE     cut a file
//	onlyfiles DIR NAME...  DIR holds nothing else
//
// $GOLDEN is the folder of golden models.
func TestScripts(t *testing.T) {
	golden := filepath.Join(testkit.Root(t), "testdata", "golden")
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s := &script{t: t, path: path, env: map[string]string{"GOLDEN": golden}}
			t.Chdir(t.TempDir())
			s.run(string(data))
		})
	}
}

type script struct {
	t              *testing.T
	path           string
	line           int
	env            map[string]string
	stdin          string
	stdout, stderr string
}

func (s *script) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("last standard output:\n%s", s.stdout)
	s.t.Logf("last standard error:\n%s", s.stderr)
	s.t.Fatalf("%s:%d: "+format, append([]any{s.path, s.line}, args...)...)
}

func (s *script) check(err error) {
	s.t.Helper()
	if err != nil {
		s.fatalf("%v", err)
	}
}

var fileMark = regexp.MustCompile(`(?m)^-- (\S+) --\n`)

func (s *script) run(text string) {
	s.t.Helper()
	// Files after the script come first: the script uses them.
	marks := fileMark.FindAllStringSubmatchIndex(text, -1)
	end := len(text)
	for i := len(marks) - 1; i >= 0; i-- {
		m := marks[i]
		name := filepath.FromSlash(text[m[2]:m[3]])
		s.check(os.MkdirAll(filepath.Dir(name), 0o777))
		s.check(os.WriteFile(name, []byte(text[m[1]:end]), 0o666))
		end = m[0]
	}
	for i, line := range strings.Split(text[:end], "\n") {
		s.line = i + 1
		words := s.split(line)
		if len(words) == 0 {
			continue
		}
		not := words[0] == "!"
		if not {
			words = words[1:]
		}
		s.command(not, words[0], words[1:])
	}
}

func (s *script) command(not bool, name string, args []string) {
	s.t.Helper()
	switch name {
	case "exec":
		var out, errs bytes.Buffer
		code := run(s.t.Context(), args[1:], strings.NewReader(s.stdin), &out, &errs)
		s.stdin, s.stdout, s.stderr = "", out.String(), errs.String()
		if (code != exitOK) != not {
			s.fatalf("strobe %q ended with code %d", args[1:], code)
		}
	case "stdin":
		b, err := os.ReadFile(args[0])
		s.check(err)
		s.stdin = string(b)
	case "stdout", "stderr":
		text := s.stdout
		if name == "stderr" {
			text = s.stderr
		}
		re, err := regexp.Compile("(?m)" + args[0])
		s.check(err)
		if re.MatchString(text) == not {
			s.fatalf("%s: %q matches: %v", name, args[0], !not)
		}
	case "exists":
		if _, err := os.Stat(args[0]); (err == nil) == not {
			s.fatalf("%s exists: %v", args[0], !not)
		}
	case "cmp":
		a, err := os.ReadFile(args[0])
		s.check(err)
		b, err := os.ReadFile(args[1])
		s.check(err)
		if !bytes.Equal(a, b) {
			s.fatalf("%s and %s differ", args[0], args[1])
		}
	case "cp":
		data, err := os.ReadFile(args[0])
		s.check(err)
		s.check(os.WriteFile(args[1], data, 0o666))
	case "mkdir":
		s.check(os.MkdirAll(args[0], 0o777))
	case "truncate":
		n, err := parseSize(args[1])
		s.check(err)
		s.check(os.Truncate(args[0], n))
	case "onlyfiles":
		entries, err := os.ReadDir(args[0])
		s.check(err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got, want := strings.Join(names, " "), strings.Join(args[1:], " "); got != want {
			s.fatalf("%s holds %q, want %q", args[0], got, want)
		}
	default:
		s.fatalf("unknown command %q", name)
	}
}

// split cuts a line into words. Single quotes keep spaces; a doubled one inside
// them is a quote.
func (s *script) split(line string) []string {
	var words []string
	var word strings.Builder
	quoted, inWord := false, false
	flush := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quoted && c == '\'' && i+1 < len(line) && line[i+1] == '\'':
			word.WriteByte(c)
			i++
		case c == '\'':
			quoted, inWord = !quoted, true
		case !quoted && (c == ' ' || c == '\t'):
			flush()
		case !quoted && c == '#' && !inWord:
			return words
		case !quoted && c == '$':
			n := i + 1
			for n < len(line) && (line[n] == '_' || line[n] >= 'A' && line[n] <= 'Z') {
				n++
			}
			if v, ok := s.env[line[i+1:n]]; ok {
				word.WriteString(v)
				i, inWord = n-1, true
				continue
			}
			fallthrough
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	flush()
	return words
}
