package main

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// modulePattern is a path that "go get" can ask for.
var modulePattern = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9_.-]+)+$`)

// rename gives the module another path: in go.mod, also of nested modules, in all imports, and in the README's command.
// The names of the command and of the package stay strobe.
func rename(ctx context.Context, root, to string) error {
	if !modulePattern.MatchString(to) || filepath.Base(to) != "strobe" {
		return fmt.Errorf("%q: want a path such as example.org/owner/strobe, whose last part is the name of the package", to)
	}
	from, err := modulePath(root)
	if err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("go.mod: the module is %s already", to)
	}
	list, err := command(ctx, root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		path := filepath.Join(root, filepath.FromSlash(name))
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		text := string(b)
		switch {
		case strings.HasSuffix(name, ".go"):
			text, err = renameImports(name, text, from, to)
		case filepath.Base(name) == "go.mod":
			text = renameModule(text, from, to)
		case name == "README.md":
			text = strings.ReplaceAll(text, "go mod edit -require "+from+"@v0.0.0 -replace "+from+"=",
				"go mod edit -require "+to+
					"@v0.0.0 -replace "+to+"=")
		}
		if err != nil {
			return err
		}
		if text != string(b) {
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				return err
			}
		}
	}
	return nil
}

// renameImports changes the paths of imports.
func renameImports(name, text, from, to string) (string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
	if err != nil {
		return "", err
	}
	for i := len(f.Imports) - 1; i >= 0; i-- { // from the end, so that places stay
		imp := f.Imports[i].Path
		path, err := strconv.Unquote(imp.Value)
		if err != nil {
			return "", err
		}
		if path != from && !strings.HasPrefix(path, from+"/") {
			continue
		}
		at, end := int(imp.Pos())-1, int(imp.End())-1
		text = text[:at] + strconv.Quote(to+strings.TrimPrefix(path, from)) + text[end:]
	}
	return text, nil
}

// renameModule changes the module line of go.mod, and requirements and replacements of nested modules.
func renameModule(text, from, to string) string {
	word := regexp.MustCompile(`(?m)(^|[\s(])` + regexp.QuoteMeta(from) + `(/[^\s]*)?(\s|$)`)
	return word.ReplaceAllString(text, "${1}"+to+"${2}${3}")
}
