// Command site makes a web site of the documentation: a page for each document, with a menu and a search that work
// without a server. It is a module of its own, so that the program does not depend on what reads Markdown.
//
//	cd packaging/site && go run . FOLDER
//
// Pages ask no other server for anything.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html
var pageText string

//go:embed style.css
var style []byte

//go:embed search.js
var search []byte

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: site FOLDER")
		os.Exit(2)
	}
	if err := build("../..", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// page is a document.
type page struct {
	File, Name, Title string // the Markdown file, the page's file name, its first heading
	Body              template.HTML
	headings          map[string]bool
	sections          []section
}

// section is what the search finds: a heading with the text below it.
type section struct {
	Page, Title, Anchor, Text string
}

// first are the pages at the top of the menu; the others follow by their titles.
var first = []string{"README.md", "docs/install.md", "docs/models.md", "docs/server.md", "docs/api.md",
	"docs/speculation.md"}

// build writes the site of the repository at root into a folder.
func build(root, out string) error {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return err
	}
	for _, name := range []string{"README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT"} {
		files = append(files, filepath.Join(root, name+".md"))
	}
	pages := map[string]*page{}
	for _, f := range files {
		rel, err := filepath.Rel(root, f)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		p, err := read(root, rel)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		pages[rel] = p
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	menu := make([]*page, 0, len(pages))
	for _, p := range pages {
		menu = append(menu, p)
	}
	rank := func(p *page) int {
		if i := slices.Index(first, p.File); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortFunc(menu, func(a, b *page) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.Title, b.Title)
	})
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return err
	}
	var sections []section
	for _, p := range menu {
		body, err := link(root, out, p, pages)
		if err != nil {
			return err
		}
		p.Body = body
		var b bytes.Buffer
		if err := t.Execute(&b, map[string]any{"Page": p, "Menu": menu}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, p.Name), b.Bytes(), 0o666); err != nil {
			return err
		}
		sections = append(sections, p.sections...)
	}
	// A script, because pages that are opened as files may not fetch others.
	index, err := json.Marshal(sections)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(out, "style.css"), style, 0o666),
		os.WriteFile(filepath.Join(out, "search.js"), search, 0o666),
		os.WriteFile(filepath.Join(out, "index.js"), append(append([]byte("const sections = "), index...), ";\n"...), 0o666))
}

// read renders a document.
func read(root, file string) (*page, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(strings.TrimSuffix(path.Base(file), ".md")) + ".html"
	if file == "README.md" {
		name = "index.html"
	}
	p := &page{File: file, Name: name, headings: map[string]bool{}}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithXHTML()))
	names := parser.NewContext(parser.WithIDs(anchors(p.headings)))
	tree := md.Parser().Parse(text.NewReader(source), parser.WithContext(names))
	for n := tree.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			title := plain(h, source)
			if p.Title == "" {
				p.Title = title
			}
			id, _ := h.AttributeString("id")
			anchor, _ := id.([]byte)
			p.sections = append(p.sections, section{Page: p.Name, Title: title, Anchor: string(anchor)})
		} else if len(p.sections) > 0 {
			s := &p.sections[len(p.sections)-1]
			s.Text = strings.TrimSpace(s.Text + " " + plain(n, source))
		}
	}
	if p.Title == "" {
		return nil, errors.New("it has no heading")
	}
	var b bytes.Buffer
	if err := md.Renderer().Render(&b, source, tree); err != nil {
		return nil, err
	}
	p.Body = template.HTML(b.String())
	return p, nil
}

// plain is the text below a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // its function fails never
		switch {
		case !entering:
		case n.Kind() == ast.KindText:
			t := n.(*ast.Text)
			b.Write(t.Segment.Value(source))
			if t.SoftLineBreak() || t.HardLineBreak() {
				b.WriteByte(' ')
			}
		case n.Type() == ast.TypeBlock && n.Lines() != nil && !n.HasChildren():
			b.Write(n.Lines().Value(source))
		}
		if !entering && n.Type() == ast.TypeBlock {
			b.WriteByte(' ')
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// anchors names headings as GitHub does, and remembers the names.
type anchors map[string]bool

func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || r == '-':
			return '-'
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(value)))
	name := id
	for i := 1; a[name]; i++ {
		name = fmt.Sprintf("%s-%d", id, i)
	}
	a[name] = true
	return []byte(name)
}

func (a anchors) Put(value []byte) { a[string(value)] = true }

var (
	attribute = regexp.MustCompile(`(href|src)="([^"]*)"`)
	web       = regexp.MustCompile(`^[a-z]+:`)
)

// link makes links between documents links between pages, and copies images. A link to a file that is no page loses
// nothing but its address.
func link(root, out string, p *page, pages map[string]*page) (template.HTML, error) {
	var problems []error
	body := attribute.ReplaceAllStringFunc(string(p.Body), func(s string) string {
		m := attribute.FindStringSubmatch(s)
		kind, target := m[1], m[2]
		if web.MatchString(target) {
			return s
		}
		file, anchor, _ := strings.Cut(target, "#")
		to := p
		if file != "" {
			rel := path.Join(path.Dir(p.File), file)
			if to = pages[rel]; to == nil {
				from := filepath.Join(root, filepath.FromSlash(rel))
				if _, err := os.Stat(from); err != nil {
					problems = append(problems, fmt.Errorf("%s: link to %s leads nowhere", p.File, target))
				}
				if kind == "href" {
					return `href="#" title="` + template.HTMLEscapeString(rel) + ` in the repository"`
				}
				data, err := os.ReadFile(from)
				if err == nil {
					err = os.WriteFile(filepath.Join(out, path.Base(rel)), data, 0o666)
				}
				if err != nil {
					problems = append(problems, err)
				}
				return `src="` + path.Base(rel) + `"`
			}
		}
		if anchor != "" && !to.headings[anchor] {
			problems = append(problems, fmt.Errorf("%s: link to %s: there is no such heading", p.File, target))
		}
		address := to.Name
		if anchor != "" {
			address += "#" + anchor
		}
		return kind + `="` + address + `"`
	})
	return template.HTML(body), errors.Join(problems...)
}
