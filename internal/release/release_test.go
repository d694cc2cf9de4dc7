//go:build unix

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// compiler stands in for Go, which takes minutes: its programs say the version that they were built with. It also
// stands in for what makes packages, which gets the name of its file with -t.
const compiler = `#!/bin/sh
for a; do
	case $last in -o | -t) out=$a ;; -ldflags) flags=$a ;; -tags) tags=$a ;; esac
	last=$a
done
printf '#!/bin/sh\necho "strobe %s (%s/%s)%s"\n' "${flags##*main.version=}" "$GOOS" "$GOARCH" "$tags" >"$out"
chmod +x "$out"
`

// fake puts that compiler before the real one and returns its folder.
func fake(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go"), compiler)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
		t.Fatal(err)
	}
}

// repository is the root of the repository.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// make builds a release with the compiler that is first in PATH.
func makeRelease(t *testing.T, version, out string) {
	t.Helper()
	r, err := newRelease(t.Context(), repository(t), version, out)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.build(t.Context(), targets, true); err != nil {
		t.Fatal(err)
	}
}

// TestRelease makes everything of a release twice: the bytes are the same, archives and manifests have what they
// should.
func TestRelease(t *testing.T) {
	fake(t)
	first, second := t.TempDir(), t.TempDir()
	makeRelease(t, "v1.2.3", first)
	makeRelease(t, "v1.2.3", second)
	if err := compare(first, second); err != nil {
		t.Error(err)
	}
	if n, want := len(files(t, first)), len(targets)+4+3+len(manifestFiles); n != want {
		t.Errorf("%d files, want %d", n, want)
	}
	sums := text(t, filepath.Join(first, "SHA256SUMS"))
	if n := strings.Count(sums, "  strobe-v1.2.3-"); n != len(targets) {
		t.Errorf("%d checksums of archives\n%s", n, sums)
	}
	common := []string{"CHANGELOG.md", "LICENSE", "LICENSES.txt", "README.md", "completions/_strobe",
		"completions/strobe.bash",
		"completions/strobe.fish", "completions/strobe.ps1", "man/strobe.1"}
	linux := append([]string{"strobe", "strobe.service"}, common...)
	windows := append([]string{"strobe.exe"}, common...)
	slices.Sort(linux)
	slices.Sort(windows)
	if got := unpacked(t, filepath.Join(first, "strobe-v1.2.3-linux-arm64.tar.gz")); !slices.Equal(got, linux) {
		t.Errorf("for Linux: %q", got)
	}
	if got := unzipped(t, filepath.Join(first, "strobe-v1.2.3-windows-amd64.zip")); !slices.Equal(got, windows) {
		t.Errorf("for Windows: %q", got)
	}
	for _, m := range manifestFiles {
		if s := text(t, filepath.Join(first, m.name)); strings.Contains(s, "[[") || strings.Contains(s, "<no value>") ||
			!strings.Contains(s, "1.2.3") {
			t.Errorf("%s:\n%s", m.name, s)
		}
	}
	for file, archive := range map[string]string{"scoop/strobe.json": "strobe-v1.2.3-windows-arm64.zip",
		"aur/PKGBUILD": "strobe-v1.2.3-linux-amd64.tar.gz", "homebrew/strobe.rb": "strobe-v1.2.3-darwin-arm64.tar.gz"} {
		i := strings.Index(sums, "  "+archive+"\n")
		if i < 64 || !strings.Contains(text(t, filepath.Join(first, file)), sums[i-64:i]) {
			t.Errorf("%s has not the checksum of %s", file, archive)
		}
	}
	var scoop any
	if err := json.Unmarshal([]byte(text(t, filepath.Join(first, "scoop/strobe.json"))), &scoop); err != nil {
		t.Errorf("scoop: %v", err)
	}
	var list struct {
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal([]byte(text(t, filepath.Join(first, "strobe-v1.2.3.cdx.json"))), &list); err != nil ||
		len(list.Components) < 30 {
		t.Errorf("the list of materials has %d parts: %v", len(list.Components), err)
	}
	for _, c := range list.Components {
		if strings.Contains(c.Name, ".") && !strings.HasPrefix(c.Purl, "pkg:golang/"+c.Name+"@v") {
			t.Errorf("%+v", c)
		}
	}
}

// files are the names of all files below a folder.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestCompare: a byte that differs is found, and a file that only one folder has.
func TestCompare(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		write(t, filepath.Join(dir, "a", "same"), "1")
		write(t, filepath.Join(dir, "differs"), dir)
	}
	write(t, filepath.Join(first, "only-first"), "")
	write(t, filepath.Join(second, "only-second"), "")
	want := "differs: two builds differ\nonly-first: two builds differ\nonly-second: two builds differ"
	if err := compare(first, second); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := compare(first, first); err != nil {
		t.Error(err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// unpacked are the names in an archive, without its folder.
func unpacked(t *testing.T, path string) (names []string) {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(text(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if names = append(names, name); (name == "strobe") != (h.Mode == 0o755) || h.Uid != 0 {
			t.Errorf("%s: mode %o, user %d", h.Name, h.Mode, h.Uid)
		}
	}
}

func unzipped(t *testing.T, path string) (names []string) {
	t.Helper()
	r, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, f := range r.File {
		_, name, _ := strings.Cut(f.Name, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestInstall installs what was released: from the web, from a file, from a clone. It refuses what was changed, and
// takes away everything.
func TestInstall(t *testing.T) {
	tools := fake(t)
	site := t.TempDir()
	makeRelease(t, "v1.2.3", filepath.Join(site, "download", "v1.2.3"))
	if err := os.MkdirAll(filepath.Join(site, "latest"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../download/v1.2.3", filepath.Join(site, "latest", "download")); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	defer server.Close()
	home := t.TempDir()
	prefix := filepath.Join(home, "prefix")
	sh := func(script string, args ...string) (string, error) {
		cmd := exec.Command(script, append([]string{"--prefix", prefix}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, "config"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	clone := filepath.Join(repository(t), "install.sh")
	released := filepath.Join(site, "download", "v1.2.3", "install.sh")
	if err := os.Chmod(released, 0o777); err != nil {
		t.Fatal(err)
	}
	if s := text(t, released); !strings.Contains(s, "\nreleases=https://") {
		t.Error("the released script does not know where releases are")
	}
	here := runtime.GOOS + "/" + runtime.GOARCH
	folder := filepath.Join(site, "download")
	archive := filepath.Join(folder, "v1.2.3", "strobe-v1.2.3-"+strings.ReplaceAll(here, "/", "-")+".tar.gz")
	for _, c := range []struct {
		script, want string
		args         []string
	}{
		{clone, "strobe v1.2.3 (" + here + ")", []string{archive}},
		{clone, "strobe v1.2.3 (" + here + ")", []string{"--from", folder, "--version", "v1.2.3"}},
		{released, "strobe v1.2.3 (" + here + ")", []string{"--from", server.URL + "/download"}},
		{released, "strobe v1.2.3 (" + here + ")nomodels", []string{"--from", server.URL + "/download", "--variant",
			"small"}},
		{clone, "bin/strobe: strobe ", []string{"--build"}},
		{clone, "bin/strobe: strobe ", nil},
	} {
		out, err := sh(c.script, c.args...)
		if err != nil || !strings.Contains(out, "installed "+prefix+"/bin/strobe: ") || !strings.Contains(out, c.want) {
			t.Errorf("%q: %v, %s; want %s", c.args, err, out, c.want)
		}
		if out, err = sh(c.script, "--uninstall"); err != nil {
			t.Errorf("%v, %s", err, out)
		}
		if left, _ := os.ReadDir(prefix); len(left) > 0 {
			t.Errorf("%q: uninstalled, but %v is left", c.args, left)
		}
	}
	for want, args := range map[string][]string{
		"cannot be downloaded": {"--from", server.URL + "/download", "--version", "v9.9.9"},
		"no such file":         {"--from", folder, "--version", "v9.9.9"},
		"needs a value":        {"--from"},
		"no option":            {"--frm"},
	} {
		if out, err := sh(released, args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	b := []byte(text(t, archive))
	b[len(b)/2] ^= 1
	write(t, archive, string(b))
	for _, args := range [][]string{{archive}, {"--from", server.URL + "/download"}} {
		if out, err := sh(released, args...); err == nil || !strings.Contains(out, "is damaged") {
			t.Errorf("%q, a changed archive: %v, %s", args, err, out)
		}
	}
	if left, _ := os.ReadDir(prefix); len(left) > 0 {
		t.Errorf("what was damaged left %v", left)
	}
	testTry(t, tools)
}

// testTry: the build says what it does, and ./try runs what was built.
func testTry(t *testing.T, tools string) {
	t.Helper()
	clone := t.TempDir()
	for _, name := range []string{"try", "packaging/build"} {
		write(t, filepath.Join(clone, name), text(t, filepath.Join(repository(t), name)))
	}
	if err := os.MkdirAll(filepath.Join(clone, "bin"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ code, want string }{
		{compiler, "building strobe; the first time takes a minute or two\nstrobe devel ("},
		{"#!/bin/sh\necho no such package >&2\nexit 1\n", "\nno such package\n"},
	} {
		write(t, filepath.Join(tools, "go"), c.code)
		cmd := exec.Command(filepath.Join(clone, "try"))
		cmd.Env = append(os.Environ(), "GIT_DIR=none")
		out, err := cmd.CombinedOutput()
		if failed := c.code != compiler; (err != nil) != failed || !strings.Contains(string(out), c.want) {
			t.Errorf("try: %v, %s; want %q", err, out, c.want)
		}
	}
}

// TestLicenses: the program has the licences of all that it contains.
func TestLicenses(t *testing.T) {
	if err := checkLicenses(t.Context(), repository(t)); err != nil {
		t.Error(err)
	}
	if n := len(listed(text(t, filepath.Join(repository(t), licensesFile)))); n < 30 {
		t.Errorf("%d parts", n)
	}
	for text, want := range map[string]string{
		"Apache License\n Version 2.0": "Apache-2.0", "GNU GENERAL PUBLIC LICENSE": "",
		"Redistributions in binary form must ... Neither the name of": "BSD-3-Clause",
		"Redistributions in binary form must reproduce":               "BSD-2-Clause",
	} {
		if got := kind(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestCodeGroup: functions are counted where they come from.
func TestCodeGroup(t *testing.T) {
	for symbol, want := range map[string]string{
		"main.run": "Strobe", "strobe/internal/nn.(*Norm).Run": "Strobe", "net/http.(*Server).Serve": "Go's standard library",
		"go.opentelemetry.io/otel/trace.Start":    "traces (OpenTelemetry)",
		"github.com/spf13/cobra.(*Command).Help":  "other modules",
		"type:.eq.github.com/spf13/cobra.Command": "other modules", "runtime.main": "Go's standard library",
		"slices.SortFunc[go.shape.[]strobe/internal/draft.Guess]": "Strobe",
	} {
		if got := codeGroup(symbol); got != want {
			t.Errorf("%s: %s, want %s", symbol, got, want)
		}
	}
	if got := bySize(map[string]uint64{"a": 1, "b": 2, "c": 1}); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Error(got)
	}
}

// TestArguments: mistakes are named before anything is built.
func TestArguments(t *testing.T) {
	t.Chdir(repository(t))
	for want, args := range map[string][]string{
		"usage:":             {},
		"want one like v1":   {"build", "1.2.3"},
		"no target":          {"build", "v1.2.3", "-only", "linux/mips"},
		"want a path such":   {"rename", "Strobe"},
		"name of the packag": {"rename", "example.org/other"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestRename: with another path the module has all its packages, and no import has the old one.
func TestRename(t *testing.T) {
	testkit.Long(t) // it copies the repository and compiles some of it under its new name
	root, copied := repository(t), t.TempDir()
	old, err := modulePath(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := copySources(t.Context(), root, copied); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), copied, nil, "git", "init", "-q"); err != nil {
		t.Fatal(err)
	}
	const path = "example.org/someone/strobe"
	if err := rename(t.Context(), copied, path); err != nil {
		t.Fatal(err)
	}
	if got, err := modulePath(copied); got != path {
		t.Errorf("go.mod: %s, %v", got, err)
	}
	for _, name := range []string{"deploy/check/go.mod", "e2e/go.mod"} {
		if s := text(t, filepath.Join(copied, name)); !strings.HasPrefix(s, "module "+path+"/") {
			t.Errorf("%s: %.60s", name, s)
		}
	}
	err = filepath.WalkDir(copied, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			if p := strings.Trim(imp.Path.Value, `"`); p == old || strings.HasPrefix(p, old+"/") {
				t.Errorf("%s imports %s", file, p)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// Imports are all that changed, so a module whose imports are all found builds; some packages are built to be sure.
	env := []string{"CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOPROXY=off"}
	out, err := command(t.Context(), copied, env, "go", "list", "-e", "-deps", "-test", "-f",
		"{{with .Error}}{{.}}{{end}}{{with .DepsErrors}}{{.}}{{end}}", "./...")
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := command(t.Context(), copied, env, "go", "build", "-trimpath", "./internal/gguf", "./internal/chat/...",
		"./internal/hub"); err != nil {
		t.Error(err)
	}
}
