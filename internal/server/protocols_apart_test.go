package server

import (
	"errors"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// prefix is the beginning of a file's name, which all files of a protocol have in common.
func prefix(file string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".go"), "_")
	return name
}

// protocols are the prefixes of the files whose types list endpoints. All other files are the core.
func protocols(fset *token.FileSet, files []*ast.File) map[string]bool {
	out := map[string]bool{}
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "endpoints" {
				out[prefix(fset.Position(f.Pos()).Filename)] = true
			}
		}
	}
	return out
}

// reaches lists the names of a protocol that another protocol or the core uses. server.go may: it joins them.
func reaches(fset *token.FileSet, files []*ast.File) (found []string) {
	uses := map[*ast.Ident]types.Object{}
	conf := types.Config{
		// What other packages declare does not matter here, so none is read and what lacks its type is passed over.
		Importer: importerFunc(func(string) (*types.Package, error) { return nil, errors.New("not read") }),
		Error:    func(error) {},
	}
	_, _ = conf.Check("server", fset, files, &types.Info{Uses: uses})
	rooms := protocols(fset, files)
	for id, o := range uses {
		if o.Pkg() == nil || o.Pkg().Path() != "server" {
			continue
		}
		owner, user := fset.Position(o.Pos()).Filename, fset.Position(id.Pos())
		if p := prefix(owner); rooms[p] && p != prefix(user.Filename) && filepath.Base(user.Filename) != "server.go" {
			found = append(found, user.String()+" uses "+o.Name()+" of "+filepath.Base(owner))
		}
	}
	return found
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// TestProtocolsApart: what two protocols need belongs to the core. A protocol uses no name of another one, and the core
// none of any, so each can be read, changed and removed alone.
func TestProtocolsApart(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := goparser.ParseFile(fset, path, nil, goparser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if n := len(protocols(fset, files)); n < 4 {
		t.Errorf("%d protocols were found", n)
	}
	for _, s := range reaches(fset, files) {
		t.Error(s)
	}
}

// TestReaches: the rule finds functions, methods and fields, wherever they are used.
func TestReaches(t *testing.T) {
	for name, c := range map[string]struct {
		user, code string
		want       int
	}{
		"function":    {"anthropic.go", "func f() { helper() }", 1},
		"method":      {"ollama_models.go", "func f(r *request) { r.check() }", 2}, // the type, too
		"field":       {"exchange.go", "func f() any { return newRequest().model }", 2},
		"the same":    {"openai_models.go", "func f() { helper() }", 0},
		"the routes":  {"server.go", "func f() { helper() }", 0},
		"of the core": {"openai_chat.go", "func f() { shared() }", 0},
	} {
		fset := token.NewFileSet()
		var files []*ast.File
		for file, code := range map[string]string{
			"openai.go": `import "net/http"
				type request struct{ model string; r *http.Request }
				func (r *request) endpoints() {}
				func newRequest() *request { return nil }
				func (r *request) check() {}
				func helper() {}`,
			"core.go":   "func shared() {}",
			"ollama.go": "type ollama struct{}; func (o *ollama) endpoints() {}",
			c.user:      c.code,
		} {
			f, err := goparser.ParseFile(fset, file, "package server\n"+code, goparser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		if found := reaches(fset, files); len(found) != c.want {
			t.Errorf("%s: found %q", name, found)
		}
	}
}
