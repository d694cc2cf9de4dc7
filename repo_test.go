package strobe

// The tests in this file keep the house rules of the whole repository, so that
// "go test ./..." checks them too.

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"strobe/internal/testkit"
)

// tracked lists the repository's files. Without git (an unpacked archive) it is
// every file there is.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err == nil && len(out) > 0 {
		var files []string
		for f := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
			// A file that is deleted but not committed is still listed.
			if st, err := os.Lstat(f); err == nil && st.Mode().IsRegular() {
				files = append(files, f)
			}
		}
		return files
	}
	var files []string
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || p == "bin"):
			return fs.SkipDir
		case d.Type().IsRegular():
			files = append(files, filepath.ToSlash(p))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goFile is a parsed source file, with its imports and comments only.
type goFile struct {
	path string
	dir  string
	test bool
	ast  *ast.File
}

// goFiles parses all Go code except what tests only read.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var out []goFile
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, ".go") || inTestdata(f) {
			continue
		}
		a, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		out = append(out, goFile{f, path.Dir(f), strings.HasSuffix(f, "_test.go"), a})
	}
	return out
}

func inTestdata(f string) bool { return slices.Contains(strings.Split(f, "/"), "testdata") }

// short is a folder or an import without internal/, where most packages live.
func short(dir string) string { return strings.Replace(dir, "internal/", "", 1) }

// imported is the path of an import. Packages of this module are below "strobe", whatever the module's path is.
func imported(t *testing.T, imp *ast.ImportSpec) string {
	t.Helper()
	line, _, _ := strings.Cut(string(read(t, "go.mod")), "\n")
	module := strings.TrimPrefix(line, "module ")
	name, err := strconv.Unquote(imp.Path.Value)
	if err != nil {
		t.Fatal(err)
	}
	if under(name, module) {
		name = "strobe" + strings.TrimPrefix(name, module)
	}
	return name
}

// under reports whether a package folder is one of the given ones or below.
func under(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

func TestFormatted(t *testing.T) {
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, ".go") || inTestdata(f) {
			continue
		}
		src := read(t, f)
		want, err := format.Source(src)
		if err != nil {
			t.Errorf("%s: %v", f, err)
		} else if !bytes.Equal(src, want) {
			t.Errorf("%s: not formatted; run gofmt -w %s", f, f)
		}
	}
}

// TestLineLength: what is wider than a window is not read. Generated files and lines with long texts in them
// (templates, JSON, JavaScript) are as they are.
func TestLineLength(t *testing.T) {
	const limit = 120
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, ".go") || inTestdata(f) {
			continue
		}
		src := read(t, f)
		if bytes.HasPrefix(src, []byte("// Code generated ")) {
			continue
		}
		fset := token.NewFileSet()
		a, err := parser.ParseFile(fset, f, src, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		raw := map[int]bool{}
		ast.Inspect(a, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
				from, to := fset.Position(s.Pos()).Line, fset.Position(s.End()).Line
				for i := from; (from < to || len(s.Value) > limit/4) && i <= to; i++ {
					raw[i] = true
				}
			}
			return true
		})
		for i, line := range strings.Split(string(src), "\n") {
			if n := utf8.RuneCountInString(line); n > limit && !raw[i+1] {
				t.Errorf("%s:%d: %d columns, at most %d", f, i+1, n, limit)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		doc := f.ast.Doc.Text()
		ok := strings.HasPrefix(doc, "Package "+f.ast.Name.Name+" ") || strings.HasPrefix(doc, "Command ")
		documented[f.dir] = documented[f.dir] || ok
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment that begins with \"Package NAME\" or \"Command NAME\"", dir)
		}
	}
}

// Modules we depend on: where non-test code may import them, and why not
// elsewhere. A module that is missing here is a new dependency and needs a line.
var modules = []struct {
	prefix string
	dirs   []string
	why    string
}{
	{"github.com/spf13/cobra", []string{"cmd"}, "the command line belongs to commands"},
	{"github.com/BurntSushi/toml", []string{"cmd", "hub"}, "settings are read by commands; names of models are a table"},
	{"go.yaml.in/yaml/v3", []string{"convert"}, "model cards are YAML"},
	{"github.com/spf13/pflag", []string{"cmd"}, "the command line belongs to commands"},
	{"charm.land/", []string{"cmd"}, "terminal drawing belongs to commands"},
	{"github.com/charmbracelet/", []string{"cmd"}, "terminal drawing belongs to commands"},
	{"github.com/schollz/progressbar", []string{"cmd"}, "libraries report progress through callbacks"},
	{"golang.org/x/image", []string{"bench", "vision/picture"}, "plots draw letters, pictures are WebP and BMP, too"},
	{"golang.org/x/term", []string{"cmd"}, "only commands talk to a terminal"},
	{"github.com/VictoriaMetrics/metrics", []string{"cmd", "server"}, "metrics are served, libraries return numbers"},
	{"go.opentelemetry.io/proto/", nil, "a test oracle: the program writes that one message itself"},
	{"go.opentelemetry.io/otel/exporters/", nil, "a test oracle, which needs protobuf"},
	{"go.opentelemetry.io/", []string{"cmd", "server"}, "traces are of requests, libraries return numbers"},
	{"github.com/ebitengine/purego", []string{"platform", "backend"}, "only backends load shared libraries"},
	{"golang.org/x/sys", []string{"platform", "backend"}, "system differences live in platform and kernels"},
	{"golang.org/x/text", []string{"tokenizer", "convert", "chat"}, "only text handling normalises"},
	{"golang.org/x/sync", []string{"cmd", "engine", "server"}, "the standard library does elsewhere"},

	{"google.golang.org/protobuf", nil, "a test oracle"},
	{"github.com/google/go-cmp", nil, "a test helper"},
	{"github.com/dlclark/regexp2", nil, "a test oracle: splitters are written by hand"},
	{"github.com/rogpeppe/go-internal", nil, "a test helper"},
	{"github.com/creack/pty", nil, "a test helper: terminals"},
	{"github.com/hinshun/vt10x", nil, "a test helper: what a terminal shows"},
	{"github.com/santhosh-tekuri/jsonschema", nil, "a test oracle"},
	{"go.uber.org/goleak", nil, "a test helper"},
}

func TestDependencies(t *testing.T) {
	for _, f := range goFiles(t) {
		if nestedModule(f.dir) {
			continue
		}
		for _, imp := range f.ast.Imports {
			name := imported(t, imp)
			first, _, _ := strings.Cut(name, "/")
			if !strings.Contains(first, ".") {
				if name == "C" {
					t.Errorf("%s: imports C; the binary is built without cgo", f.path)
				}
				continue
			}
			i := slices.IndexFunc(modules, func(m struct {
				prefix string
				dirs   []string
				why    string
			}) bool {
				return strings.HasPrefix(name, m.prefix)
			})
			if i < 0 {
				t.Errorf("%s: imports %s, which is not in the list of dependencies in repo_test.go", f.path, name)
			} else if m := modules[i]; !f.test && !under(short(f.dir), m.dirs...) {
				t.Errorf("%s: imports %s, allowed in %v only: %s", f.path, name, m.dirs, m.why)
			}
		}
	}
}

// nestedModule reports whether a folder belongs to a go.mod of its own.
func nestedModule(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(filepath.FromSlash(dir), "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// Imports point down. Each rule names what non-test code of some packages must
// not import, and why; except lists what is allowed all the same.
var layers = []struct {
	of, forbid, except []string
	why                string
}{
	{[]string{"quant"}, []string{"strobe"}, nil, "quant is the bottom: formats and their reference"},
	{[]string{"gguf"}, []string{"strobe"}, []string{"strobe/quant", "strobe/platform"}, "a file knows nothing of models"},
	{[]string{"safetensors"}, []string{"strobe"}, []string{"strobe/platform"}, "a file knows nothing of models"},
	{[]string{"hub"}, []string{"strobe"}, []string{"strobe/platform"}, "fetching knows nothing of models"},
	{[]string{"platform"}, []string{"strobe"}, nil, "the system is below everything"},
	{[]string{"tokenizer", "chat", "sample"}, []string{"strobe/model", "strobe/backend", "strobe/draft",
		"strobe/speculate", "strobe/engine", "strobe/server", "net/http"}, nil,
		"text and sampling know nothing of how logits are made"},
	{[]string{"backend"}, []string{"strobe/model", "strobe/draft", "strobe/speculate", "strobe/engine", "strobe/server",
		"strobe/tokenizer", "strobe/chat"}, nil, "a backend knows no models"},
	{[]string{"backend/cpu/kernel"}, []string{"strobe"},
		[]string{"strobe/quant", "strobe/platform", "strobe/backend/cpu/kernel", "strobe/weight"},
		"a kernel knows numbers only"},
	{[]string{"cache", "model"}, []string{"strobe/draft", "strobe/speculate", "strobe/engine", "strobe/server"}, nil,
		"a model does not know who drafts for it"},
	{[]string{"model", "cache", "draft", "speculate"}, []string{"strobe/backend/cuda", "strobe/backend/vulkan"}, nil,
		"models are written once, against the backend interface"},
	{[]string{"draft", "speculate"}, []string{"strobe/engine", "strobe/server"}, nil, "imports point down"},
	{[]string{"engine"}, []string{"strobe/server", "strobe/dialog"}, nil, "imports point down"},
	{[]string{"dialog"}, []string{"strobe/server", "strobe/model", "strobe/backend"}, nil, "a dialog is text and tokens"},
	{[]string{"speculate"}, []string{"strobe/draft/dflash", "strobe/draft/mtp", "strobe/draft/ngram"}, nil,
		"the loop knows sources of drafts by their interface only"},
	{[]string{"speculate/control"}, []string{"strobe"}, []string{"strobe/draft"},
		"decisions rest on costs and probabilities alone"},
	{[]string{"."}, []string{"net/http"}, nil, "network code lives in hub, upstream, server, bench/loadgen and the commands"},
}

// network lists the folders that may use net/http.
var network = []string{"hub", "upstream", "server", "bench/loadgen", "cmd", "e2e"}

func TestLayers(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || nestedModule(f.dir) {
			continue
		}
		dir := short(f.dir)
		for _, imp := range f.ast.Imports {
			name := short(imported(t, imp))
			for _, l := range layers {
				in := under(dir, l.of...) || slices.Contains(l.of, ".") && !under(dir, network...)
				if in && under(name, l.forbid...) && !under(name, l.except...) {
					t.Errorf("%s: imports %s: %s", f.path, name, l.why)
				}
			}
		}
	}
}

// TestGeneratorsStayOutside keeps the assembler generator's module out of ours.
func TestGeneratorsStayOutside(t *testing.T) {
	for _, f := range []string{"go.mod", "go.sum"} {
		if bytes.Contains(read(t, f), []byte("mmcloughlin/avo")) {
			t.Errorf("%s: names avo; generators live in modules of their own", f)
		}
	}
}

// TestNoTemplates: text/template calls methods by name, so the linker keeps every method of every type of a program
// that runs one: three megabytes of ours. cobra runs one only for programs that set their own.
func TestNoTemplates(t *testing.T) {
	uses := regexp.MustCompile(`"(text|html)/template"|\.Set(Version|Help|Usage)Template\(`)
	for _, f := range goFiles(t) {
		if f.test || nestedModule(f.dir) || under(short(f.dir), "release") { // tools
			continue
		}
		if m := uses.Find(read(t, f.path)); m != nil {
			t.Errorf("%s: %s makes the program three megabytes larger", f.path, m)
		}
	}
}

// TestNoMachinePaths: nothing may depend on, or tell of, the machine it was
// written on. Data that others wrote is exempt.
func TestNoMachinePaths(t *testing.T) {
	// Put together here, so that this file does not name one. A path inside an
	// address or another path ("https://host/x", "a/x") is none.
	names := []string{"work", "root", "tmp", "home/[a-z]+"}
	machine := regexp.MustCompile("(^|[\\s\"'`=(:])/(" + strings.Join(names, "|") + ")([^\\w-]|$)")
	text := map[string]bool{".go": true, ".md": true, ".s": true, ".cu": true, ".py": true, ".sh": true, ".mod": true,
		".txtar": true, ".yml": true, ".json": true}
	for _, f := range tracked(t) {
		if !text[path.Ext(f)] && !strings.HasPrefix(f, ".ci/") || inTestdata(f) && path.Ext(f) == ".json" ||
			strings.Contains(f, "/corpus/") {
			continue
		}
		for n, line := range strings.Split(string(read(t, f)), "\n") {
			if m := machine.FindStringSubmatch(line); m != nil {
				t.Errorf("%s:%d: names the machine path /%s", f, n+1, m[2])
			}
		}
	}
}

// TestSize keeps cloning quick.
func TestSize(t *testing.T) {
	const MB, modelsLimit, restLimit = 1_000_000, 48_000_000, 38_000_000
	var models, rest int64
	for _, f := range tracked(t) {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(f, "models/") {
			models += st.Size()
		} else {
			rest += st.Size()
		}
	}
	if models > modelsLimit || rest > restLimit {
		t.Errorf("models/ has %.2f MB (limit %d), the rest %.2f MB (limit %d)", float64(models)/MB, modelsLimit/MB,
			float64(rest)/MB, restLimit/MB)
	}
}

// TestTestCommands: what the documents tell people to run is what CI runs, and nothing else decides which tests run.
func TestTestCommands(t *testing.T) {
	const command, long = "go run ./internal/tests", testkit.LongCommand
	for _, c := range []struct{ file, line string }{
		{"README.md", "\n" + command + "\n"},
		{"CONTRIBUTING.md", "\n    " + command + "  "},
		{"CONTRIBUTING.md", "\n    " + long + " "},
		{".ci/run", "\n" + command + "\n"},
		{".ci/run", "\n" + long + " -list \"$skipped\"\n"},
	} {
		if !bytes.Contains(read(t, c.file), []byte(c.line)) {
			t.Errorf("%s does not have the test command %q at the start of a line", c.file, strings.TrimSpace(c.line))
		}
	}
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, "_test.go") || f == "repo_test.go" {
			continue
		}
		src := read(t, f)
		if bytes.Contains(src, []byte(`"`+testkit.LongVariable+`"`)) {
			t.Errorf("%s: reads %s; testkit.Long does", f, testkit.LongVariable)
		}
		if bytes.Contains(src, []byte("testing.Short()")) && path.Dir(f) != "internal/backend/gpu" {
			t.Errorf("%s: looks at -short, which only makes the sizes of kernels small; testkit.Long marks a long test", f)
		}
	}
}

// documents are the pages that people read.
func documents(t *testing.T) (pages []string) {
	t.Helper()
	for _, f := range tracked(t) {
		if path.Ext(f) == ".md" && !inTestdata(f) && !strings.Contains(f, "/corpus/") {
			pages = append(pages, f)
		}
	}
	return pages
}

// TestDocumentLength: a page that is longer than its readers' patience is a journal. Notes go to docs/lab.
func TestDocumentLength(t *testing.T) {
	word := regexp.MustCompile(`\pL|\d`)
	for _, c := range []struct {
		file         string
		lines, words int // at most; 0 means any number
	}{
		{"README.md", 200, 0},
		{"ARCHITECTURE.md", 0, 1500},
		{"docs/performance.md", 200, 0},
	} {
		text := strings.TrimSpace(string(read(t, c.file)))
		words := 0
		for w := range strings.FieldsSeq(text) {
			if word.MatchString(w) {
				words++
			}
		}
		if n := strings.Count(text, "\n") + 1; c.lines > 0 && n > c.lines {
			t.Errorf("%s: %d lines, at most %d", c.file, n, c.lines)
		}
		if c.words > 0 && words > c.words {
			t.Errorf("%s: %d words, at most %d", c.file, words, c.words)
		}
	}
}

// TestDocumentWidth: like code, text is at most 120 columns wide. Tables and blocks are as they are.
func TestDocumentWidth(t *testing.T) {
	const limit = 120
	wide := []string{"CONTRIBUTING.md", "docs/api.md", "docs/quant-error.md"} // the last is written by a test
	for _, f := range documents(t) {
		if strings.Contains(f, "/") && !strings.HasPrefix(f, "docs/") || slices.Contains(wide, f) {
			continue // among them cards and notes of other folders
		}
		block := false
		for i, line := range strings.Split(string(read(t, f)), "\n") {
			if strings.HasPrefix(line, "```") {
				block = !block
			}
			table := strings.HasPrefix(strings.TrimSpace(line), "|")
			if n := utf8.RuneCountInString(line); n > limit && !block && !table {
				t.Errorf("%s:%d: %d columns, at most %d", f, i+1, n, limit)
			}
		}
	}
}

// TestRecipes: the files that the recipes in CONTRIBUTING.md name are there, at the root or below internal.
func TestRecipes(t *testing.T) {
	_, recipes, _ := strings.Cut(string(read(t, "CONTRIBUTING.md")), "\n## Recipes\n")
	names := regexp.MustCompile("`([\\w./-]+/[\\w./-]*)`").FindAllStringSubmatch(recipes, -1)
	for _, m := range names {
		_, err := os.Stat(filepath.Join("internal", filepath.FromSlash(m[1])))
		if _, atRoot := os.Stat(filepath.FromSlash(m[1])); err != nil && atRoot != nil {
			t.Errorf("CONTRIBUTING.md: %s is neither here nor below internal", m[1])
		}
	}
	if len(names) < 20 {
		t.Errorf("the recipes name %d files only", len(names))
	}
}

// TestPackageTable: the table in ARCHITECTURE.md has every package, and imports point down it.
func TestPackageTable(t *testing.T) {
	_, table, _ := strings.Cut(string(read(t, "ARCHITECTURE.md")), "\n| package | job |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	name := regexp.MustCompile("`([^`]+)`")
	var rows [][]string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		var names []string
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, strings.TrimSuffix(m[1], "/*"))
		}
		rows = append(rows, names)
	}
	// rowOf is the row with the longest name that covers a package.
	rowOf := func(dir string) (row int) {
		row, longest := -1, 0
		for i, names := range rows {
			for _, n := range names {
				if len(n) > longest && under(dir, n) {
					row, longest = i, len(n)
				}
			}
		}
		return row
	}
	kits := []string{"testkit", "tests", "mutate", "release", "backend/backendtest", "backend/cuda/emulate"}
	for _, f := range goFiles(t) {
		if f.test || nestedModule(f.dir) || under(f.dir, "e2e", "deploy", "train", "packaging", "testdata") {
			continue
		}
		dir := short(f.dir)
		if dir == "." {
			dir = "strobe"
		}
		from := rowOf(dir)
		if from < 0 {
			t.Errorf("%s: the table of packages in ARCHITECTURE.md lacks %s", f.path, dir)
			continue
		}
		for _, imp := range f.ast.Imports {
			to := imported(t, imp)
			if to != "strobe" {
				if !strings.HasPrefix(to, "strobe/") {
					continue
				}
				to = strings.TrimPrefix(short(to), "strobe/")
			}
			if row := rowOf(to); row < from && !under(dir, kits...) {
				t.Errorf("%s: imports %s, which stands above it in the table of packages in ARCHITECTURE.md", f.path, to)
			}
		}
	}
}

// TestTroubleshooting: the lines that docs/troubleshooting.md explains are lines that the program prints.
func TestTroubleshooting(t *testing.T) {
	var texts strings.Builder
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasSuffix(f, "_test.go") || inTestdata(f) {
			continue
		}
		a, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		ast.Inspect(a, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
				text, _ := strconv.Unquote(s.Value)
				texts.WriteString(text + "\n")
			}
			return true
		})
	}
	code := regexp.MustCompile("`([^`]+)`")
	lines := 0
	for line := range strings.Lines(string(read(t, "docs/troubleshooting.md"))) {
		if !strings.HasPrefix(line, "### ") {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(line, -1) {
			lines++
			for part := range strings.SplitSeq(m[1], "…") { // names and numbers
				if part = strings.Trim(part, " :,;%"); !strings.Contains(texts.String(), part) {
					t.Errorf("docs/troubleshooting.md: %s: nothing prints %q", strings.TrimSpace(line), part)
				}
			}
		}
	}
	if lines < 10 {
		t.Errorf("docs/troubleshooting.md explains %d lines only", lines)
	}
}

// anchors are the places in a page that links may lead to: its headings in lower case, with hyphens for spaces.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	block := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			block = !block
		}
		title := strings.TrimLeft(line, "#")
		if block || title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title))
		all[name] = true
	}
	return all
}

// TestLinks: every relative link in the documents leads to a file, and to a heading of it if it names one.
func TestLinks(t *testing.T) {
	for _, f := range documents(t) {
		rest := string(read(t, f))
		for {
			_, after, ok := strings.Cut(rest, "](")
			if !ok {
				break
			}
			target, tail, ok := strings.Cut(after, ")")
			rest = tail
			file, heading, _ := strings.Cut(target, "#")
			if !ok || target == "" || strings.Contains(target, ":") || strings.ContainsAny(target, " \n") {
				continue
			}
			page := f
			if file != "" {
				page = filepath.Join(filepath.Dir(f), filepath.FromSlash(file))
			}
			if _, err := os.Stat(page); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: link to %s leads nowhere", f, target)
			} else if err != nil {
				t.Error(fmt.Errorf("%s: %w", f, err))
			} else if heading != "" && filepath.Ext(page) == ".md" && !anchors(string(read(t, page)))[heading] {
				t.Errorf("%s: link to %s: there is no such heading", f, target)
			}
		}
	}
}
