package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// licensesFile is part of the program.
const licensesFile = "cmd/strobe/licenses.txt"

// part is something of others that is in the program.
type part struct {
	name, version, text string
}

// licenses collects the licences of everything in the program, on all platforms.
func licenses(ctx context.Context, root string) (string, error) {
	parts, err := modules(ctx, root)
	if err != nil {
		return "", err
	}
	goroot, err := command(ctx, root, nil, "go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	library, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(goroot)), "LICENSE"))
	if err != nil {
		return "", fmt.Errorf("the licence of Go: %w", err)
	}
	parts = append(parts, part{"Go's standard library", "", string(library)})
	page, err := pageParts(root)
	if err != nil {
		return "", err
	}
	own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("Strobe and its built-in models are under this licence. Licences of what else is in it follow.\n\n")
	fmt.Fprintf(&b, "== Strobe (%s)\n\n%s\n", kind(string(own)), strings.TrimSpace(string(own)))

	// Parts with the same text share it.
	names := map[string][]string{}
	var texts []string
	for _, p := range append(parts, page...) {
		text := strings.TrimSpace(strings.ReplaceAll(p.text, "\r\n", "\n"))
		if kind(text) == "" {
			return "", fmt.Errorf("%s: its licence is of no kind that internal/release/licenses.go knows", p.name)
		}
		if names[text] == nil {
			texts = append(texts, text)
		}
		names[text] = append(names[text], strings.TrimSpace(p.name+" "+p.version))
	}
	for _, text := range texts {
		slices.Sort(names[text])
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(names[a][0], names[b][0]) })
	for _, text := range texts {
		b.WriteString("\n")
		for _, name := range names[text] {
			fmt.Fprintf(&b, "== %s (%s)\n", name, kind(text))
		}
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	return b.String(), nil
}

// modules are those that the program imports on any platform, with their licences.
func modules(ctx context.Context, root string) (parts []part, err error) {
	seen := map[string]bool{}
	for _, system := range []string{"linux", "darwin", "windows"} {
		out, err := command(ctx, root, []string{"GOOS=" + system, "GOARCH=amd64", "CGO_ENABLED=0"}, "go", "list", "-deps",
			"-f",
			"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/strobe")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Split(strings.TrimSpace(line), "\t")
			if len(f) != 3 || seen[f[0]] {
				continue
			}
			seen[f[0]] = true
			text, err := licenseText(f[2])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f[0], err)
			}
			parts = append(parts, part{f[0], f[1], text})
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s: the program imports no modules", root)
	}
	return parts, nil
}

// licenseText is the text of the licence in a module's folder, with its notice.
func licenseText(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var text []byte
	for _, e := range entries { // LICENSE stands before NOTICE
		name := strings.ToUpper(strings.TrimSuffix(strings.TrimSuffix(e.Name(), ".txt"), ".md"))
		if e.Type().IsRegular() && (name == "LICENSE" || name == "COPYING" || name == "NOTICE") {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return "", err
			}
			text = append(append(text, b...), '\n')
		}
	}
	if len(text) == 0 {
		return "", fmt.Errorf("no licence in %s", filepath.Base(dir))
	}
	return string(text), nil
}

// pageParts are the libraries of the web page: NAME.LICENSE.txt or NAME/LICENSE.txt in its folder for them.
func pageParts(root string) (parts []part, err error) {
	dir := os.DirFS(filepath.Join(root, "internal/server/ui/vendor"))
	err = fs.WalkDir(dir, ".", func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimSuffix(strings.TrimSuffix(p, "LICENSE.txt"), ".")
		if err != nil || d.IsDir() || name == p {
			return err
		}
		b, err := fs.ReadFile(dir, p)
		parts = append(parts, part{"web page: " + path.Base(path.Clean(name)), "", string(b)})
		return err
	})
	return parts, err
}

// kind is the identifier in SPDX's list for the text of a licence, "" for none that is known here.
func kind(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("Apache License Version 2.0") && has("Mozilla Public License"):
		return "Apache-2.0 OR MPL-2.0"
	case has("Apache License Version 2.0") && has("Redistribution and use in source"):
		return "Apache-2.0 AND BSD-3-Clause"
	case has("Apache License Version 2.0"):
		return "Apache-2.0"
	case has("Permission is hereby granted, free of charge") && has("Apache License"):
		return "MIT AND Apache-2.0"
	case has("Permission is hereby granted, free of charge"):
		return "MIT"
	case has("Redistributions in binary form") && has("either the name") || has("The names of") ||
		has("name of the copyright holder"):
		return "BSD-3-Clause"
	case has("Redistributions in binary form"):
		return "BSD-2-Clause"
	}
	return ""
}

// listed are the parts that a file of licences names, for the list of materials.
func listed(text string) (parts []part) {
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "== ")
		if !ok || strings.HasPrefix(line, "Strobe (") {
			continue
		}
		open := strings.LastIndex(line, " (")
		name, version := line[:open], ""
		if i := strings.LastIndex(name, " v"); i > 0 {
			name, version = name[:i], name[i+1:]
		}
		parts = append(parts, part{name, version, strings.TrimSuffix(line[open+2:], ")")})
	}
	return parts
}

// checkLicenses compares the file with what the program imports now.
func checkLicenses(ctx context.Context, root string) error {
	want, err := licenses(ctx, root)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(filepath.Join(root, licensesFile))
	if err != nil {
		return err
	}
	if !bytes.Equal(have, []byte(want)) {
		return fmt.Errorf("%s is not what the program contains; \"go run ./internal/release licenses\" writes it",
			licensesFile)
	}
	return nil
}
