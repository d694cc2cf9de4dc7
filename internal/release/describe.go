package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// What all packages and manifests say of the program.
const (
	summary     = "Run large language models on your own machine"
	description = "Strobe runs large language models from GGUF files. A small model drafts a block of tokens, the large " +
		"model verifies it in one pass, and the text stays the same. Command line, server with the OpenAI, Anthropic and " +
		"Ollama APIs, and a web page in one program."
	maintainer = "The Strobe authors"
	licenseID  = "MIT"
)

// target is one way to build the program.
type target struct {
	os, arch string
	// variant leaves things out: "small" the built-in models, "static" GPUs, and with them the need for a C library.
	variant string
}

func (t target) String() string {
	return strings.TrimSuffix(t.os+"/"+t.arch+"/"+t.variant, "/")
}

// tags are the build tags.
func (t target) tags() string {
	return map[string]string{"": "", "small": "nomodels", "static": "nogpu", "static-small": "nogpu,nomodels"}[t.variant]
}

func (t target) program() string {
	if t.os == "windows" {
		return "strobe.exe"
	}
	return "strobe"
}

// targets are all ways to build the program. A program for macOS or Windows loads drivers of GPUs if they are there,
// and needs nothing else.
var targets = []target{
	{"linux", "amd64", ""}, {"linux", "amd64", "static"}, {"linux", "amd64", "small"}, {"linux", "amd64", "static-small"},
	{"linux", "arm64", ""}, {"linux", "arm64", "static"}, {"linux", "arm64", "small"}, {"linux", "arm64", "static-small"},
	{"darwin", "arm64", ""}, {"darwin", "arm64", "small"}, {"darwin", "amd64", ""}, {"darwin", "amd64", "small"},
	{"windows", "amd64", ""}, {"windows", "amd64", "small"}, {"windows", "arm64", ""}, {"windows", "arm64", "small"},
}

// modulePath is the path of the module, which is also its public address.
func modulePath(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	name, ok := strings.CutPrefix(line, "module ")
	if !ok {
		return "", fmt.Errorf("go.mod: the first line is not that of the module")
	}
	return strings.TrimSpace(name), nil
}

// homepage is the address of a module on the web. Until the module has a public path, it is one that is reserved for
// documentation.
func homepage(module string) string {
	if first, _, _ := strings.Cut(module, "/"); strings.Contains(first, ".") {
		return "https://" + module
	}
	return "https://example.org/" + module
}

// semver is a version as packages need it: v1.2.3, perhaps with a suffix.
var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
