//go:build unix

package strobe

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// compiler stands in for Go, which takes minutes: its programs say the version that they were built with.
const compiler = `#!/bin/sh
for a; do
	case $last in -o) out=$a ;; -ldflags) flags=$a ;; -tags) tags=$a ;; esac
	last=$a
done
printf '#!/bin/sh\necho "strobe %s (%s/%s)%s"\n' "${flags##*main.version=}" "$GOOS" "$GOARCH" "$tags" >"$out"
chmod +x "$out"
`

// TestRelease makes the archives of all platforms, installs that of this one, and refuses one that was changed.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(compiler), 0o777); err != nil {
		t.Fatal(err)
	}
	sh := func(name string, args ...string) (string, error) {
		cmd := exec.Command("./"+name, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := sh("packaging/release", "v1.2.3", dir); err != nil {
		t.Fatal(err, out)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if n := strings.Count(string(sums), "  strobe-v1.2.3-"); err != nil || n != 8 {
		t.Errorf("%d checksums, %v\n%s", n, err, sums)
	}
	archive := filepath.Join(dir, "strobe-v1.2.3-"+runtime.GOOS+"-"+runtime.GOARCH+".tar.gz")
	prefix := filepath.Join(dir, "prefix")
	want := "installed " + prefix + "/bin/strobe: strobe v1.2.3 (" + runtime.GOOS + "/" + runtime.GOARCH + ")"
	if out, err := sh("install.sh", "--prefix", prefix, archive); err != nil || !strings.Contains(out, want) {
		t.Errorf("%v, %s; want %s", err, out, want)
	}
	static := filepath.Join(dir, "strobe-v1.2.3-linux-amd64-static.tar.gz")
	if out, err := sh("install.sh", "--prefix", prefix, static); err != nil ||
		!strings.Contains(out, "(linux/amd64)nogpu") {
		t.Errorf("the program that needs nothing: %v, %s", err, out)
	}
	if out, err := sh("install.sh", "--prefix", filepath.Join(dir, "built")); err != nil ||
		!strings.Contains(out, "built/bin/strobe: strobe ") {
		t.Errorf("from the clone: %v, %s", err, out)
	}
	// The build says what it does, and ./try runs what was built.
	clone := t.TempDir()
	for _, name := range []string{"try", "packaging/build"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(clone, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ code, want string }{
		{compiler, "building strobe; the first time takes a minute or two\nstrobe devel ("},
		{"#!/bin/sh\necho no such package >&2\nexit 1\n", "\nno such package\n"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "go"), []byte(c.code), 0o777); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(clone, "try"))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "GIT_DIR=none")
		if err := os.MkdirAll(filepath.Join(clone, "bin"), 0o777); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		if failed := c.code != compiler; (err != nil) != failed || !strings.Contains(string(out), c.want) {
			t.Errorf("try: %v, %s; want %q", err, out, c.want)
		}
	}
	b, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(archive, b, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := sh("install.sh", "--prefix", prefix, archive); err == nil || !strings.Contains(out, "is damaged") {
		t.Errorf("a changed archive: %v, %s", err, out)
	}
}

// TestContainerVersion: the container is built with the Go that the module asks for.
func TestContainerVersion(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	docker, err := os.ReadFile("deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(docker), "FROM golang:")
	version, _, _ := strings.Cut(rest, " ")
	if version == "" || !strings.Contains(string(mod), "\ngo "+version) {
		t.Errorf("the container has Go %q, go.mod says otherwise", version)
	}
}
