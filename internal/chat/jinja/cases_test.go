package jinja

import (
	"encoding/json"
	"os"
	"strconv"
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
			T       string
			OK, Err *string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	vars, err := FromJSON(file.Vars)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range file.Cases {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			var got string
			tmpl, err := Parse("case", c.T)
			if err == nil {
				got, err = tmpl.Render(vars.(*Dict), Options{Now: pinned})
			}
			if c.OK == nil {
				if err == nil {
					t.Errorf("%q\nrendered %q\nPython raises %s", c.T, got, *c.Err)
				}
				return
			}
			if err != nil {
				t.Errorf("%q\n%v\nPython renders %q", c.T, err, *c.OK)
				return
			}
			// Python prints addresses of objects; only what precedes them is compared.
			want, _, cut := strings.Cut(*c.OK, " at 0x")
			if cut {
				got = got[:min(len(got), len(want))]
			}
			if got != want {
				t.Errorf("%q\ngot  %q\nwant %q", c.T, got, want)
			}
		})
	}
}
