package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// pinned is what strftime_now sees in cases.json.
var pinned = time.Date(2025, 2, 3, 14, 5, 9, 0, time.UTC)

// TestPythonCases renders the snippets of testdata/cases.json, whose expected
// results come from Python's Jinja (see testdata/README.md).
func TestPythonCases(t *testing.T) {
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vars  json.RawMessage
		Cases []struct {
			About, T    string
			OK, Err     *string
			Unsupported string // the message, where this package leaves something out
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	vars, err := FromJSON(file.Vars)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		t.Run(c.About+"/"+c.T, func(t *testing.T) {
			var got string
			tmpl, err := Parse("case", c.T)
			if err == nil {
				got, err = tmpl.Render(vars.(*Dict), Options{Now: pinned})
			}
			switch {
			case c.Unsupported != "":
				if want := "case line 1: " + c.Unsupported; err == nil || err.Error() != want {
					t.Errorf("%q: %v, want %s", got, err, want)
				}
				return
			case c.OK == nil:
				if err == nil {
					t.Errorf("rendered %q\nPython raises %s", got, *c.Err)
				}
				return
			case err != nil:
				t.Errorf("%v\nPython renders %q", err, *c.OK)
				return
			}
			// Python prints addresses of objects; only what precedes them is compared.
			want, _, cut := strings.Cut(*c.OK, " at 0x")
			if cut {
				got = got[:min(len(got), len(want))]
			}
			if got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}
