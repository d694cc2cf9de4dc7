package strobe

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestOtherModule: a program in another module, which sees no internal package, builds with the library and uses all
// of it. Without a network: it needs no other modules than this one.
func TestOtherModule(t *testing.T) {
	testkit.Long(t) // it links a program, which takes several seconds
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	name, requirements, _ := strings.Cut(string(read(t, "go.mod")), "\n")
	library := strings.TrimPrefix(name, "module ")
	mod := "module example.org/program\n" + requirements + "\nrequire " + library + " v0.0.0\n\nreplace " + library +
		" => " + strconv.Quote(here) + "\n"
	for file, text := range map[string]string{"go.mod": mod, "go.sum": string(read(t, "go.sum")),
		"main.go": string(read(t, "testdata/program/main.go"))} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	model := edit.Golden(t, "qwen35").Set("tokenizer.chat_template", template).Write(t)
	cmd := exec.Command("go", "run", ".", model, testkit.Golden(t, "dflash-qwen35/model.gguf"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "false") || !strings.HasSuffix(string(out), "closed: true\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoInternalTypes: what the library exports can be named by programs of other modules, and its documentation shows
// it: no signature and no field has a type of an internal package.
func TestNoInternalTypes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		internal := map[string]bool{}
		for _, imp := range f.Imports {
			if p, _ := strconv.Unquote(imp.Path.Value); strings.Contains(p, "/internal/") {
				internal[p[strings.LastIndexByte(p, '/')+1:]] = true
			}
		}
		check := func(name string, typ ast.Node) {
			ast.Inspect(typ, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok && len(f.Names) > 0 && !f.Names[0].IsExported() && !isParameter(typ) {
					return false // a field that other packages do not see
				}
				if s, ok := n.(*ast.SelectorExpr); ok {
					if p, ok := s.X.(*ast.Ident); ok && internal[p.Name] {
						t.Errorf("%s: %s shows %s.%s", file, name, p.Name, s.Sel.Name)
					}
				}
				return true
			})
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() {
					check(d.Name.Name, d.Type)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() {
							check(s.Name.Name, s.Type)
						}
					case *ast.ValueSpec:
						if s.Names[0].IsExported() && s.Type != nil {
							check(s.Names[0].Name, s.Type)
						}
					}
				}
			}
		}
	}
}

func isParameter(typ ast.Node) bool { _, ok := typ.(*ast.FuncType); return ok }
