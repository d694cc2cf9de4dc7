package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func file(t *testing.T, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSite: every document is a page with the menu, the search knows its sections, and no page asks another server for
// anything.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build("../..", out); err != nil {
		t.Fatal(err)
	}
	docs, _ := filepath.Glob("../../docs/*.md")
	pages, _ := filepath.Glob(filepath.Join(out, "*.html"))
	if len(pages) != len(docs)+6 {
		t.Errorf("%d pages for %d documents", len(pages), len(docs))
	}
	foreign := regexp.MustCompile(`(src|<link[^>]*href)="[a-z]*:?//|<script>|<iframe| on[a-z]+="`)
	for _, p := range pages {
		text := file(t, p)
		if m := foreign.FindString(text); m != "" {
			t.Errorf("%s: %s", filepath.Base(p), m)
		}
		if strings.Count(text, `aria-current="page"`) != 1 || strings.Count(text, "<li><a href=") < len(pages) {
			t.Errorf("%s: the menu is not whole", filepath.Base(p))
		}
	}
	index := strings.TrimSuffix(strings.TrimPrefix(file(t, out, "index.js"), "const sections = "), ";\n")
	var sections []section
	if err := json.Unmarshal([]byte(index), &sections); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range sections {
		found = found || s.Page == "install.html" && s.Anchor == "versions" && strings.Contains(s.Text, "Semantic Versioning")
	}
	if !found || len(sections) < 100 {
		t.Errorf("the search knows %d sections", len(sections))
	}
	if strings.Contains(file(t, out, "index.html"), ".md") && strings.Contains(file(t, out, "index.html"), `href="docs/`) {
		t.Error("index.html has links to documents that are pages")
	}
}

// TestLinks: links lead to pages and headings; those that do not are errors.
func TestLinks(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT"} {
		write(name+".md", "# "+name+"\n")
	}
	write("docs/a.md", "# A\n\n## Two `words`\n\n## Two words\n\ntext\n")
	write("README.md", "# R\n\n[a](docs/a.md#two-words-1) [b](docs/a.md) [c](https://example.org/x.md)\n")
	out := t.TempDir()
	if err := build(root, out); err != nil {
		t.Fatal(err)
	}
	text := file(t, out, "index.html")
	for _, want := range []string{`href="a.html#two-words-1"`, `href="a.html"`, `href="https://example.org/x.md"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, bad := range []string{"[a](docs/a.md#none)", "[a](docs/none.md)", "![a](none.png)"} {
		write("README.md", "# R\n\n"+bad+"\n")
		if err := build(root, out); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
