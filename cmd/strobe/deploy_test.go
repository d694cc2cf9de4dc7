package main

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// deployFiles reads all that is said of deployments.
func deployFiles(t *testing.T, more ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	root := filepath.Join("..", "..")
	add := func(path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = string(b)
	}
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".go" && filepath.Ext(path) != ".sum" {
			add(path)
		}
		return err
	})
	if err != nil || len(out) < 10 {
		t.Fatalf("%d files, %v", len(out), err)
	}
	for _, f := range more {
		add(filepath.Join(root, f))
	}
	return out
}

// TestDeploymentsUseRealFlags: what manifests and images set, the command knows.
func TestDeploymentsUseRealFlags(t *testing.T) {
	cmd := newServeCmd()
	variables := []string{keyVariable}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { variables = append(variables, variable(f)) })
	used := 0
	for path, text := range deployFiles(t) {
		for _, v := range regexp.MustCompile(`\bSTROBE_[A-Z_]+`).FindAllString(text, -1) {
			used++
			if !slices.Contains(variables, v) {
				t.Errorf("%s: there is no variable %s", path, v)
			}
		}
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		for _, m := range regexp.MustCompile(`(?:- |value: )--([a-z-]+)=`).FindAllStringSubmatch(text, -1) {
			used++
			if cmd.Flags().Lookup(m[1]) == nil {
				t.Errorf("%s: there is no flag --%s", path, m[1])
			}
		}
	}
	if used < 15 {
		t.Errorf("only %d settings were found", used)
	}
}

// TestDocumentedMetrics: every metric that documents and manifests name is one that a server exports.
func TestDocumentedMetrics(t *testing.T) {
	back, _ := serve(t, "--alias", "near")
	ready(t, back)
	front, _ := serve(t, "--upstream", "far="+back)
	ready(t, front)
	page := ""
	for _, url := range []string{back, front} {
		for _, model := range []string{"near", "far"} { // one of them is elsewhere; a server of one model does not mind
			ask(t, url+"/v1/completions", `{"model":"`+model+`","prompt":"package main\n\nimport (\n","max_tokens":32,"temperature":0}`)
		}
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		page += string(b)
	}
	named := 0
	for path, text := range deployFiles(t, "docs/api.md", "docs/scale.md", "README.md") {
		for _, name := range regexp.MustCompile(`\b(?:vllm|strobe|llamacpp):[a-z_]+`).FindAllString(text, -1) {
			named++
			if !strings.Contains(page, "\n"+name+"{") && !strings.Contains(page, "\n"+name+"_bucket{") {
				t.Errorf("%s: nobody exports %s", path, name)
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d metrics are documented", named)
	}
}
