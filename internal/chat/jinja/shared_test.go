package jinja

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestTransformersTexts renders real templates on shared conversations and
// compares with what Python's Jinja gave, errors included.
func TestTransformersTexts(t *testing.T) {
	dir := testkit.Shared(t, "jinja")
	templates := testkit.Shared(t, "templates")
	data, err := os.ReadFile(filepath.Join(dir, "scenarios.json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	all := v.(*Dict)
	scenarios, _ := all.Get("S")
	common, _ := all.Get("COMMON")
	files, err := filepath.Glob(filepath.Join(dir, "expected", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no expected texts: %v", err)
	}
	for _, f := range files {
		base := strings.TrimSuffix(filepath.Base(f), ".json")
		model, scenario, _ := strings.Cut(base, "@")
		t.Run(base, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(templates, model+".jinja"))
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := Parse(model, string(src))
			if err != nil {
				t.Fatal(err)
			}
			want := readExpected(t, f)
			vars := NewDict()
			sc, _ := scenarios.(*Dict).Get(scenario)
			for _, d := range []*Dict{common.(*Dict), sc.(*Dict)} {
				for i, k := range d.keys {
					vars.Set(k.(string), d.values[i])
				}
			}
			got, err := tmpl.Render(vars, Options{})
			checkExpected(t, want, got, err)
		})
	}
}

type expected struct{ OK, Err *string }

func readExpected(t *testing.T, path string) expected {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want expected
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if (want.OK == nil) == (want.Err == nil) {
		t.Fatalf("%s holds neither a text nor an error", path)
	}
	return want
}

func checkExpected(t *testing.T, want expected, got string, err error) {
	t.Helper()
	switch {
	case want.Err != nil:
		if err == nil {
			t.Fatalf("rendered although Python raises %s:\n%q", *want.Err, got)
		}
		t.Logf("raises %v (Python: %s)", err, *want.Err)
	case err != nil:
		t.Fatalf("%v\nwant %q", err, *want.OK)
	case got != *want.OK:
		t.Errorf("got  %q\nwant %q", got, *want.OK)
	}
}
