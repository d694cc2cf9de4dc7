package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func render(t testing.TB, src string, opt Options) (string, error) {
	t.Helper()
	tmpl, err := Parse("t", src)
	if err != nil {
		return "", err
	}
	vars := NewDict()
	vars.Set("s", "text")
	vars.Set("l", NewList(int64(1), int64(2)))
	return tmpl.Render(vars, opt)
}

// TestHostile renders templates that ask for too much. Each must end in an
// error of its own; finishing at all is the point.
func TestHostile(t *testing.T) {
	double := func(start, expr string, times string) string {
		return "{% set ns = namespace(x=" + start + ") %}{% for i in range(" + times + ") %}{% set ns.x = " + expr +
			" %}{% endfor %}"
	}
	cases := map[string]string{
		"endless loops":       strings.Repeat("{% for i in range(99999) %}", 4) + strings.Repeat("{% endfor %}", 4),
		"endless recursion":   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutual recursion":    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"range":               "{{ range(10000000000) }}",
		"range overflow":      "{{ range(-9223372036854775807, 9223372036854775807)|length }}",
		"string repeat":       "{{ 'x' * 10000000000 }}",
		"string repeat twice": "{% set a = 'x' * 1000000 %}{{ a * 1000000 }}",
		"list repeat":         "{{ [1] * 10000000000 }}",
		"repeat overflow":     "{{ ('x' * 4) * 4611686018427387904 }}",
		"string doubling":     double("'x'", "ns.x + ns.x", "200"),
		"tilde doubling":      double("'x'", "ns.x ~ ns.x", "200"),
		"list doubling":       double("[1]", "ns.x + ns.x", "200"),
		"shared tree repr":    double("[1]", "[ns.x, ns.x]", "200") + "{{ ns.x }}",
		"shared tree json":    double("[1]", "[ns.x, ns.x]", "200") + "{{ ns.x|tojson }}",
		"shared tree compare": double("[1]", "[ns.x, ns.x]", "100") + "{% set a = ns.x %}" + double("[1]", "[ns.x, ns.x]",
			"100") + "{{ a == ns.x }}",
		"shared tuple hash":    double("(1,)", "(ns.x, ns.x)", "100") + "{{ {ns.x: 1} }}",
		"deep value repr":      double("[1]", "[ns.x]", "90000") + "{{ ns.x }}",
		"deep value json":      double("[1]", "[ns.x]", "90000") + "{{ ns.x|tojson }}",
		"deep tuple hash":      double("(1,)", "(ns.x,)", "90000") + "{{ {ns.x: 1} }}",
		"namespace cycle":      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
		"replace growth":       "{% set a = 'x' * 1000000 %}{{ a|replace('x', a) }}",
		"replace empty":        "{% set a = 'x' * 1000000 %}{{ a.replace('', a) }}",
		"join growth":          "{% set a = 'x' * 1000000 %}{{ a|list|join(a) }}",
		"percent width":        "{{ '%99999999999d' % 1 }}",
		"percent precision":    "{{ '%.99999999999f' % 1 }}",
		"format width":         "{{ '{:99999999999}'.format(1) }}",
		"indent width":         "{{ s|indent(99999999999) }}",
		"json indent":          "{{ [[]]|tojson(indent=99999999999) }}",
		"power":                "{{ 9 ** 99999999 }}",
		"power tower":          "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
		"big integers":         double("3", "ns.x * ns.x", "64"),
		"output":               "{% set a = 'x' * 1000000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
		"deep parentheses":     "{{ " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + " }}",
		"deep lists":           "{{ " + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + " }}",
		"deep not":             "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"deep minus":           "{{ " + strings.Repeat("- ", 100000) + "1 }}",
		"deep conditional":     "{{ " + strings.Repeat("1 if 0 else ", 100000) + "1 }}",
		"deep ifs":             strings.Repeat("{% if 1 %}", 100000) + strings.Repeat("{% endif %}", 100000),
		"long sum":             "{{ 1" + strings.Repeat("+1", 100000) + " }}",
		"long attribute chain": "{{ s" + strings.Repeat(".x", 100000) + " }}",
		"long filter chain":    "{{ s" + strings.Repeat("|trim", 100000) + " }}",
		"long subscript chain": "{{ l" + strings.Repeat("[0]", 100000) + " }}",
		"deep target":          "{% set " + strings.Repeat("(", 100000) + "a" + strings.Repeat(")", 100000) + " = 1 %}",
		"huge source":          strings.Repeat("x", maxSource+1),
		"search work": "{% set a = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in a %}{% endif " +
			"%}{% endfor %}",
		"number with many digits": "{{ " + strings.Repeat("9", 100000) + " }}",
	}
	for name, src := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, src, Options{Limits: Limits{Steps: 3_000_000, Bytes: 64 << 20, Output: 16 << 20}})
			if err == nil {
				t.Fatalf("rendered %d bytes", len(got))
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v is not a *jinja.Error", err)
			}
			if len(err.Error()) > 400 {
				t.Errorf("error message of %d bytes", len(err.Error()))
			}
		})
	}
}

// TestErrors: unsupported and wrong templates name the construct and the line.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"a\nb {% include 'x' %}", "t line 2: tag 'include' is not supported"},
		{"\n\n{% do x %}", "t line 3: tag 'do' is not supported"},
		{"{% frobnicate %}", "t line 1: unknown tag 'frobnicate'"},
		{"\n{{ s|urlize }}", "t line 2: filter 'urlize' is not supported"},
		{"\n{{ s|frob }}", "t line 2: no filter named 'frob'"},
		{"{% if s %}\n{{ s|frob }}{% endif %}", "t line 2: no filter named 'frob'"},
		{"{{ s }}\n{{ l|batch(2) }}", "t line 2: filter 'batch' is not supported"},
		{"{% for x in l %}\n{{ s.zfill(3) }}{% endfor %}", "t line 2: method 'zfill' is not supported"},
		{"\n{% for x in l recursive %}{% endfor %}", "t line 2: a recursive loop is not supported"},
		{"\n{{ joiner() }}", "t line 2: function 'joiner' is not supported"},
		{"\n{{ s is frob }}", "t line 2: no test named 'frob'"},
		{"\n\n{{ s.encode() }}", "t line 3: method 'encode' is not supported"},
		{"{{ lipsum() }}", "t line 1: function 'lipsum' is not supported"},
		{"{{ strftime_now('%Q') }}", "t line 1: strftime_now: directive '%Q' is not supported"},
		{"{% if s %}\nx", "t line 2: unexpected end of template, expected 'endif'"},
		{"{{ s }", "t line 1: unexpected '}'"},
		{"\n{{ 'abc", "t line 2: unclosed string"},
		{"\n{# abc", "t line 2: missing end of comment"},
		{"{{ s +\n }}", "t line 2: unexpected '}}'"},
		{"{{\n nope.x }}", "t line 2: 'nope' is undefined"},
		{"{{ l\n .append(1) }}", "t line 2: access to attribute 'append' of 'list' object is unsafe."},
		{"a\n{{ raise_exception('no ' ~ s) }}", "t line 2: no text"},
		{"{% set x = 1 %}\n{% for a, b in l %}{% endfor %}", "t line 2: cannot unpack non-iterable int object"},
	} {
		_, err := render(t, c.src, Options{})
		if err == nil || err.Error() != c.want {
			t.Errorf("%q\ngot  %v\nwant %s", c.src, err, c.want)
		}
	}
	_, err := render(t, "{{ raise_exception('x') }}", Options{})
	var e *Error
	if !errors.As(err, &e) || !e.Raised {
		t.Errorf("raise_exception gives %#v, want Raised", err)
	}
}

// TestNow: the clock is read only when asked for, and once.
func TestNow(t *testing.T) {
	got, err := render(t, "{{ strftime_now('%Y-%m-%d') }}", Options{Now: time.Date(2031, 4, 5, 0, 0, 0, 0, time.UTC)})
	if err != nil || got != "2031-04-05" {
		t.Errorf("got %q, %v", got, err)
	}
	got, err = render(t, "{{ strftime_now('%Y')|length }}", Options{})
	if err != nil || got != "4" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestVariablesUntouched: a rendering leaves the caller's values as they were.
func TestVariablesUntouched(t *testing.T) {
	v, err := FromJSON([]byte(`{"l":[3,1,2],"d":{"b":1,"a":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse("t", "{% set l = l|sort %}{% set d = dict(d, c=3) %}{{ l }}{{ d }}{{ l|reverse|list }}")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := tmpl.Render(v.(*Dict), Options{})
		if want := "[1, 2, 3]{'b': 1, 'a': 2, 'c': 3}[3, 2, 1]"; got != want || err != nil {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{% for m in messages %}{{ m.role }}: {{ m['content']|trim }}\n{% endfor %}",
		"{%- macro a(x, y=1) -%}{{ x ~ y }}{%- endmacro -%}{{ a(1)|upper }}",
		"{% set ns = namespace(a=0) %}{% for i in range(3) if i %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
		"{{ messages[::-1]|map(attribute='role')|join(', ') }}{{ {'a': [1, 2.5]}|tojson(indent=2) }}",
		"{% raw %}{{ x }}{% endraw %}{# c #}{% call(x) a() %}{% endcall %}{% filter upper %}x{% endfilter %}",
		"{{ '%.2f %s' % (1.5, 'x') }}{{ '{:.2f} {a}'.format(1, a={'b': [1]}) }}",
		"{% with a = 1 %}{{ a if b is defined else c }}{% endwith %}{{ s.split('e')[-1].strip() }}",
	} {
		f.Add(s)
	}
	vars, err := FromJSON([]byte(`{"messages":[{"role":"user","content":"hi"}` +
		`,{"role":"assistant","content":null}],"s":"text","n":3}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := Parse("fuzz", src)
		if err != nil {
			return
		}
		opt := Options{Now: pinned, Limits: Limits{Steps: 20000, Bytes: 1 << 20, Output: 1 << 18, Depth: 200}}
		a, err1 := tmpl.Render(vars.(*Dict), opt)
		b, err2 := tmpl.Render(vars.(*Dict), opt)
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Errorf("two renderings differ: %q (%v), %q (%v)", a, err1, b, err2)
		}
		if len(a) > 1<<18 {
			t.Errorf("output of %d bytes", len(a))
		}
	})
}

// TestDone: a cancelled rendering ends.
func TestDone(t *testing.T) {
	tmpl, err := Parse("t", "{% for i in range(100000) %}{% for j in range(100) %}{% set x = i + j %}{% endfor "+
		"%}{% endfor %}done")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	close(closed)
	if out, err := tmpl.Render(nil, Options{Done: closed}); err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("%q, error %v", out, err)
	}
	short, err := Parse("t", "{% for i in range(100) %}{{ i }}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := short.Render(nil, Options{Done: make(chan struct{})}); err != nil {
		t.Error(err)
	}
}

// longWork are operations that take time in proportion to the texts a and b, which are equal, or to the list l.
var longWork = []string{
	"a|trim", "a|first", "a|last", "a|length", "a|upper", "a|int", "a == b", "a != b", "a < b", "a >= b",
	"a[-1]", "a[0]", "a[5:9]", "a[::2]", "a.rfind('y')", "a.find('y')", "a.strip()", "a.lstrip('y')",
	"a.startswith(b)", "a.endswith(b)", "a.count('y')", "a.partition('y')", "a.removeprefix(b)", "a.isspace()",
	"a.replace('y', 'z')", "a.split('y')", "a.splitlines()", "'y' in a", "a in b", "a in {'k': 1}", "{'k': 1}[a]",
	"{'k': 1}.get(a)", "{a: 1}", "a is upper", "a is eq b", "a is in b", "[a]|map('trim')|list",
	"[a]|select('eq', b)|list",
	"[a, b]|sort", "[a, b]|unique|list", "[a, b]|min",
	"a.rstrip()",
	"[{'k': 1}]|map(attribute=a)|list", "[{'k': 1}]|sort(attribute=a)", "{a: 1, 'k': 2}|dictsort", "[a] == [b]", "b in [a]",
	"[a].index(b)", "[a].count(b)", "'%s' % a", "'{}'.format(a)", "a + 'y'", "a|tojson", "a|e", "a|string|trim",
	"k|trim", "k|first", "k[-1]", "[a]|select('upper')|list", "[{'k': a}]|rejectattr('k', 'upper')|list",
	"l|first", "l|length", "l|reverse|list", "l|join(',')", "l|list", "l + l", "l|unique|list", "l|sum",
	"l|max", "l == m", "l[::2]",
}

// TestLongWork: what takes long counts in steps by the length of what it works on.
func TestLongWork(t *testing.T) {
	work := func(expr string, n int) error {
		src := "{% for i in range(100) %}{% set x = " + expr + " %}{% endfor %}"
		tmpl, err := Parse("t", src)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		vars := NewDict()
		vars.Set("a", strings.Repeat("x", n))
		vars.Set("b", strings.Repeat("x", n))
		vars.Set("k", Markup(strings.Repeat("x", n)))
		l, m := NewList(), NewList()
		for i := range n / 16 {
			l.Items, m.Items = append(l.Items, int64(i)), append(m.Items, int64(i))
		}
		vars.Set("l", l)
		vars.Set("m", m)
		_, err = tmpl.Render(vars, Options{Limits: Limits{Steps: 50_000, Bytes: 1 << 40}})
		return err
	}
	for _, expr := range longWork {
		var e *Error
		if err := work(expr, 16); errors.As(err, &e) && e.Limit {
			t.Errorf("%s: %v with short texts", expr, err)
		}
		if err := work(expr, 100_000); !errors.As(err, &e) || !e.Limit {
			t.Errorf("%s: %v with long texts, want the step limit", expr, err)
		}
	}
}

// TestLongWorkDone: a few operations on long texts look at whether the result is still wanted.
func TestLongWorkDone(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	vars := NewDict()
	vars.Set("a", strings.Repeat("x", 200_000))
	vars.Set("b", strings.Repeat("x", 200_000))
	for _, expr := range []string{"a|trim", "a == b", "a[-1]", "a|first", "a.rfind('y')", "[a, b]|sort"} {
		tmpl, err := Parse("t", "{{ ("+expr+") is defined }}")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tmpl.Render(vars, Options{Done: closed}); err == nil || !strings.Contains(err.Error(), "cancelled") {
			t.Errorf("%s: %v, want that it was cancelled", expr, err)
		}
	}
}

// TestRaisedText: what a template raises is printed without what a terminal would obey, and not at any length.
func TestRaisedText(t *testing.T) {
	_, err := render(t, `{{ raise_exception("no\x1b[2J\nway" ~ "\u202e") }}`, Options{})
	if want := `t line 1: no\x1b[2J\nway\u202e`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	_, err = render(t, `{{ raise_exception('é' * 100000) }}`, Options{})
	if err == nil || len(err.Error()) > maxMessage+100 || !strings.HasSuffix(err.Error(), "é...") {
		t.Errorf("%.100v", err)
	}
}

// TestFoldedMemory: the copies that comparing without case makes are counted.
func TestFoldedMemory(t *testing.T) {
	vars := NewDict()
	l := NewList()
	for range 100 {
		d := NewDict()
		d.Set("k", strings.Repeat("X", 50_000))
		l.Items = append(l.Items, d)
	}
	vars.Set("l", l)
	for _, expr := range []string{
		"l|sort(attribute='k')", "l|unique(attribute='k')|list", "l|min(attribute='k')",
	} {
		tmpl, err := Parse("t", "{% set x = "+expr+" %}")
		if err != nil {
			t.Fatal(err)
		}
		var e *Error
		if _, err := tmpl.Render(vars, Options{Limits: Limits{Bytes: 1 << 20}}); !errors.As(err, &e) || !e.Limit {
			t.Errorf("%s: %v, want the limit of memory", expr, err)
		}
	}
}

// TestOutputLimit: the whole text counts, not its parts.
func TestOutputLimit(t *testing.T) {
	for n, ok := range map[int]bool{12: true, 11: false} {
		got, err := render(t, "{{ 'xxxxxx' }}{{ 'yyyyyy' }}", Options{Limits: Limits{Output: n}})
		if (err == nil) != ok {
			t.Errorf("at most %d bytes: %q, %v", n, got, err)
		}
	}
}

// TestSliceBorders: what Python gives beyond the ends.
func TestSliceBorders(t *testing.T) {
	for expr, want := range map[string]string{
		"'abc'[-10::-1]": "", "'abc'[-3::-1]": "a", "'abc'[-4::-1]": "", "'abc'[-10:2]": "ab", "'abc'[10::-1]": "cba",
		"'abc'[:-10:-1]": "cba", "'abc'[:-3:-1]": "cb", "'abc'[1:10]": "bc", "'äbc'[-10:1]": "ä", "'äbc'[::-99]": "c",
	} {
		if got, err := render(t, "{{ "+expr+" }}", Options{}); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", expr, got, err, want)
		}
	}
}
