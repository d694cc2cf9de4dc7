package chat

import (
	"testing"
	"time"
)

// TestExpectedVariables: templates get what their writers counted on: the day, and a switch for thinking that is on
// where they do not ask whether it is there. A strict rendering gets neither, as in transformers.
func TestExpectedVariables(t *testing.T) {
	on, off := true, false
	for name, c := range map[string]struct {
		template, want, strict string
		thinking               *bool
		extra                  map[string]any
	}{
		"date": {template: `{% if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}{{ date_string }}`,
			want: "05 Mar 2026", strict: "26 Jul 2024"},
		"a date of the client": {template: `{{ date_string }}`, extra: map[string]any{"date_string": "x"}, want: "x",
			strict: "x"},
		"thinking":           {template: `{% if enable_thinking %}on{% else %}off{% endif %}`, want: "on", strict: "off"},
		"thinking off":       {template: `{% if enable_thinking %}on{% else %}off{% endif %}`, thinking: &off, want: "off", strict: "off"},
		"thinking asked for": {template: `{% if enable_thinking %}on{% else %}off{% endif %}`, thinking: &on, want: "on", strict: "on"},
		"defined": {template: `{% if enable_thinking is defined and enable_thinking %}on{% else %}off{% endif %}`, want: "off",
			strict: "off"},
		"not defined": {template: `{% if enable_thinking  is not defined %}open{% endif %}`, want: "open", strict: "open"},
		"default":     {template: `{{ enable_thinking | default("open") }}`, want: "open", strict: "open"},
	} {
		tmpl, err := ParseTemplate("t", c.template)
		if err != nil {
			t.Fatal(err)
		}
		for _, strict := range []bool{false, true} {
			want := c.want
			if strict {
				want = c.strict
			}
			got, err := tmpl.Render([]Message{{Role: "user", Content: "x"}}, Options{EnableThinking: c.thinking, Strict: strict,
				Extra: c.extra, Now: time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC)})
			if err != nil || got != want {
				t.Errorf("%s, strict %v: %q %v, want %q", name, strict, got, err, want)
			}
		}
	}
}
