package main

import (
	"encoding/json"
	"fmt"
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
		for _, name := range regexp.MustCompile(`\b(?:vllm|strobe|llamacpp):[a-z0-9]+_[a-z0-9_]+`).FindAllString(text, -1) {
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

// TestDocumentedFleet: the runs in docs/scale.md give the numbers they show.
func TestDocumentedFleet(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "scale.md"))
	if err != nil {
		t.Fatal(err)
	}
	runs := regexp.MustCompile("(?s)`strobe (bench fleet --service [^`]*)`:\n\n(.*?)\n\n").FindAllStringSubmatch(string(b), -1)
	if len(runs) < 3 {
		t.Fatalf("%d runs", len(runs))
	}
	for _, m := range runs {
		args := strings.Fields(strings.ReplaceAll(m[1], "docs/", filepath.Join("..", "..", "docs")+"/"))
		var out, log strings.Builder
		if code := run(t.Context(), append(args, "--json"), nil, &out, &log); code != exitOK {
			t.Fatalf("%s: exit code %d, %s", m[1], code, log.String())
		}
		var r fleetReport
		if err := json.Unmarshal([]byte(out.String()), &r); err != nil || len(r.Outcomes) != 3 {
			t.Fatal(out.String(), err)
		}
		for _, o := range r.Outcomes {
			row := fmt.Sprintf("| %s | %.0f | %.1f %% | %.0f | %.0f | %.0f | %.0f | %.0f |", o.Policy, o.Speed, 100*o.HitRate,
				o.Queue.Mean, o.Queue.P95, o.First.Mean, o.First.P95, o.Total.Mean)
			if !strings.Contains(m[2], row) {
				t.Errorf("%s: there is no %s", m[1], row)
			}
		}
	}
}
