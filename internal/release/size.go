package main

import (
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// size prints, as a table, what is in the program for Linux on amd64: embedded files by package, and code by module.
func size(ctx context.Context, root string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "strobe-size")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "strobe")
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "GOFLAGS="}
	if _, err := command(ctx, root, env, "go", "build", "-trimpath", "-o", program, "./cmd/strobe"); err != nil {
		return err
	}
	embedded, err := embeddedFiles(ctx, root, env)
	if err != nil {
		return err
	}
	f, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return err
	}
	text := f.Section(".text")
	tables, constants, data := f.Section(".gopclntab"), f.Section(".rodata"), f.Section(".noptrdata")
	if text == nil || tables == nil || constants == nil || data == nil {
		return errors.New("the program has other sections than Go's linker wrote when this was written")
	}
	code := map[string]uint64{}
	for _, s := range symbols {
		if s.Value >= text.Addr && s.Value < text.Addr+text.Size {
			code[codeGroup(s.Name)] += s.Size
		}
	}
	row := func(name string, bytes uint64) { fmt.Fprintf(out, "| %s | %.2f |\n", name, float64(bytes)/1e6) }
	fmt.Fprintf(out, "| part | MB |\n|---|---|\n")
	rest := constants.Size + data.Size
	for _, name := range bySize(embedded) {
		if embedded[name] < 1e4 {
			continue // counted with the constants
		}
		row("files in `"+name+"`", embedded[name])
		rest -= embedded[name]
	}
	for _, name := range bySize(code) {
		row("code of "+name, code[name])
	}
	row("tables of Go's runtime, for stack traces and the collector", tables.Size)
	row("types, texts and other constants", rest)
	return nil
}

// bySize are the names of a table, the largest first.
func bySize(sizes map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
}

// embeddedFiles are the bytes that packages of the program embed.
func embeddedFiles(ctx context.Context, root string, env []string) (map[string]uint64, error) {
	out, err := command(ctx, root, env, "go", "list", "-deps", "-json=ImportPath,Dir,EmbedFiles", "./cmd/strobe")
	if err != nil {
		return nil, err
	}
	sizes := map[string]uint64{}
	for list := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir string
			EmbedFiles      []string
		}
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			return sizes, nil
		} else if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(p.Dir, root+string(filepath.Separator)) {
			continue // Go's own are small
		}
		for _, name := range p.EmbedFiles {
			st, err := os.Stat(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			sizes[p.ImportPath] += uint64(st.Size())
		}
	}
}

// A module has a dot in its first part. The standard library has none, nor has the program, whatever its path is.
var fromModule = regexp.MustCompile(`^(?:type:\.(?:eq|hash)\.)?\(?\*?([a-z0-9-]+\.[a-z.]+/[\w.-]+)`)

// codeGroup is where a function comes from.
func codeGroup(symbol string) string {
	m := fromModule.FindStringSubmatch(symbol)
	switch {
	case strings.HasPrefix(symbol, "main.") || strings.Contains(symbol, "strobe/"):
		return "Strobe"
	case m == nil:
		return "Go's standard library"
	case strings.HasPrefix(m[1], "go.opentelemetry.io/"):
		return "traces (OpenTelemetry)"
	}
	return "other modules"
}
