package grammar

import (
	"encoding/json"
	"errors"
	"math/rand"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// anySchema puts keywords together without regard to sense, from few names and values, so that they meet.
type anySchema struct{ r *rand.Rand }

func (z anySchema) one(choices ...any) any { return choices[z.r.Intn(len(choices))] }

func (z anySchema) list(n int, f func(int) any, depth int) []any {
	out := []any{}
	for range n {
		out = append(out, f(depth))
	}
	return out
}

// value is a document that may or may not fit.
func (z anySchema) value(depth int) any {
	n := json.Number(z.one("0", "1", "2", "3", "-1", "0.5", "1.5", "10", "2.0", "1e1", "-0").(string))
	simple := z.one(nil, true, false, n, n, n, "", "a", "b", "ab", "abc", "é", "ba", "aa")
	switch k := z.r.Intn(6); {
	case depth > 0 && k == 0:
		return z.list(z.r.Intn(4), z.value, depth-1)
	case depth > 0 && k == 1:
		m := map[string]any{}
		for range z.r.Intn(4) {
			m[z.one("a", "b", "ab", "c").(string)] = z.value(depth - 1)
		}
		return m
	}
	return simple
}

func (z anySchema) schema(depth int) any {
	if depth < 0 {
		return z.one(true, true, false, map[string]any{"type": "integer"}, map[string]any{"type": "string"})
	}
	m := map[string]any{"$defs": map[string]any{"x": map[string]any{"type": "integer"}}}
	in := func(n int, key string, value func() any) {
		if z.r.Intn(n) == 0 {
			m[key] = value()
		}
	}
	sub := func() any { return z.schema(depth - 1) }
	small := func() any { return z.r.Intn(4) }
	number := func() any {
		return json.Number(z.one("0", "1", "-1", "2.5", "10", "-3.25", "1e1", "0.1", "1e-3").(string))
	}
	named := func(names ...any) func() any {
		return func() any {
			p := map[string]any{}
			for range 1 + z.r.Intn(2) {
				p[z.one(names...).(string)] = sub()
			}
			return p
		}
	}
	kinds := []any{"object", "array", "string", "number", "integer", []any{"string", "null"}, []any{"object", "array"}}
	kind := z.r.Intn(len(kinds))
	in(1+kind%2, "type", func() any { return kinds[kind] })
	switch kind {
	case 0, 6:
		in(2, "properties", named("a", "b", "ab", "c"))
		in(3, "required", func() any { return z.one([]any{"a"}, []any{"b", "c"}) })
		in(2, "additionalProperties", sub)
		in(4, "unevaluatedProperties", sub)
		in(4, "patternProperties", named("^a", "b$", "^[ab]+$"))
		in(6, "propertyNames", func() any { return map[string]any{"enum": []any{"a", "b", "zz"}} })
		in(8, "dependentRequired", func() any { return map[string]any{"a": []any{"b"}, "c": []any{"a", "ab"}} })
		in(12, "dependencies", func() any { return map[string]any{"b": sub()} })
		in(6, "minProperties", small)
		in(6, "maxProperties", small)
	case 1:
		in(2, "items", sub)
		in(3, "prefixItems", func() any { return z.list(1+z.r.Intn(2), z.schema, depth-1) })
		in(4, "unevaluatedItems", sub)
		in(3, "minItems", small)
		in(3, "maxItems", small)
		in(6, "uniqueItems", func() any { return true })
		in(9, "contains", sub)
	case 2, 5:
		in(3, "minLength", small)
		in(3, "maxLength", small)
		in(2, "pattern", func() any { return z.one("^a", "b$", "^[ab]+$", "^(a|bc)*$", "^a|b$", "[^a]", "^(?!a)") })
	default:
		in(4, "minimum", number)
		in(4, "maximum", number)
		in(4, "exclusiveMinimum", number)
		in(4, "exclusiveMaximum", number)
		in(4, "multipleOf", func() any { return z.one(2, 3, 7, json.Number("0.5"), json.Number("0.01")) })
	}
	in(9, "enum", func() any { return z.list(3, z.value, 2) })
	in(14, "const", func() any { return z.value(1) })
	for _, k := range []string{"allOf", "anyOf", "oneOf"} {
		in(6, k, func() any { return z.list(1+z.r.Intn(2), z.schema, depth-1) })
	}
	in(7, "not", func() any {
		return z.one(map[string]any{"type": "string"}, map[string]any{"type": []any{"integer", "null"}},
			map[string]any{"required": []any{"a"}}, map[string]any{"required": []any{"a", "b"}},
			map[string]any{"anyOf": []any{map[string]any{"required": []any{"a"}}, map[string]any{"required": []any{"c"}}}},
			map[string]any{"enum": []any{"a", 1}}, map[string]any{})
	})
	in(8, "$ref", func() any { return "#/$defs/x" })
	return m
}

// TestRandomKeywords: a schema of any keywords is refused or honoured. What its grammar emits is valid, and so is
// whatever else it accepts.
func TestRandomKeywords(t *testing.T) {
	v := testVocab()
	z := anySchema{rand.New(rand.NewSource(9))}
	honoured, emitted, valid := 0, 0, 0
	for range 800 {
		raw, err := json.Marshal(z.schema(2))
		if err != nil {
			t.Fatal(err)
		}
		g, err := Compile(raw)
		var refused *Error
		if errors.As(err, &refused) {
			continue
		}
		honoured++
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("schema.json", doc); err != nil {
			t.Fatal(err)
		}
		o, err := c.Compile("schema.json")
		if err != nil {
			continue // a pattern that Go's own regular expressions lack
		}
		for range 2 {
			if text, complete := generate(t, g, v, z.r, false); complete {
				emitted++
				if err := validate(o, text); err != nil {
					t.Fatalf("%s\nemitted %s\n%v", raw, text, err)
				}
			}
		}
		for range 20 {
			doc, err := json.Marshal(z.value(2))
			if err != nil {
				t.Fatal(err)
			}
			m := g.NewMatcher(v)
			m.AcceptText(doc)
			accepted := m.Complete()
			if err := validate(o, string(doc)); err == nil {
				valid++
			} else if accepted {
				t.Fatalf("%s\naccepted %s\n%v", raw, doc, err)
			}
		}
	}
	if honoured < 100 || emitted < 100 || valid < 100 {
		t.Errorf("only %d schemas were honoured, %d documents emitted, %d valid", honoured, emitted, valid)
	}
}

// TestKeywordsByExample: keywords that are said in another way take what they should, not only less.
func TestKeywordsByExample(t *testing.T) {
	for schema, cases := range map[string]map[string]bool{
		`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},
			"additionalProperties":false,"dependentRequired":{"a":["b"]}}`: {
			`{}`: true, `{"b": 1}`: true, `{"a": 1, "b": 1}`: true, `{"a": 1, "b": 2, "c": 3}`: true, `{"a": 1}`: false,
			`{"a": 1, "c": 1}`: false},
		`{"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false,
			"dependencies":{"a":{"properties":{"b":{"type":"null"}},"required":["b"]}}}`: {
			`{"b": 1}`: true, `{"a": 1, "b": null}`: true, `{"a": 1, "b": 1}`: false, `{"a": 1}`: false},
		`{"not":{"type":"null"}}`: {`1`: true, `"x"`: true, `{}`: true, `null`: false},
		`{"type":"object","properties":{"a":{},"b":{}},"not":{"required":["a","b"]}}`: {
			`{"a": 1}`: true, `{"b": 1}`: true, `{}`: true, `{"a": 1, "b": 1}`: false},
		`{"enum":["a","b","c"],"not":{"enum":["b","x"]}}`: {`"a"`: true, `"c"`: true, `"b"`: false},
		`{"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2}`: {
			`{"a": 1, "b": 1}`: true, `{"c": 1, "b": 1}`: true, `{"a": 1}`: false, `{}`: false},
		`{"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"maxProperties":1}`: {
			`{"a": 1}`: true, `{"c": 1}`: true, `{}`: true, `{"a": 1, "b": 1}`: false},
		`{"type":"string","format":"date","pattern":"^20[0-9-]+$"}`: {
			`"2020-02-28"`: true, `"2020-02-30"`: false, `"1999-01-01"`: false},
		`{"type":"string","format":"ipv4","pattern":"\\.7$"}`: {`"1.2.3.7"`: true, `"1.2.3.77"`: false, `"7.7"`: false},
		`{"type":"string","format":"uri-reference"}`:          {`"a/b?c#d"`: true, `"/a"`: true, `"http://a.b/c"`: true, `"a b"`: false},
		`{"type":"string","format":"json-pointer"}`:           {`""`: true, `"/a/0/~1"`: true, `"a"`: false, `"/~2"`: false},
		`{"type":"string","format":"uri-template"}`:           {`"/a/{id}"`: true, `"/a/{id"`: false},
		`{"type":"string","format":"regex"}`:                  {`"^[a]+\\d$"`: true, `"[a"`: false},
	} {
		g, err := Compile([]byte(schema))
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		for text, want := range cases {
			if got := accepts(t, g, testVocab(), text); got != want {
				t.Errorf("%s\ntakes %s: %v", schema, text, got)
			}
		}
	}
	overlap := []byte(`{"oneOf":[{"type":"integer"},{"type":"number","minimum":5}]}`)
	if _, err := Compile(overlap); err == nil {
		t.Error("alternatives that overlap")
	}
	g, err := CompileLoose(overlap)
	if err != nil || !accepts(t, g, testVocab(), "3") || !accepts(t, g, testVocab(), "5.5") {
		t.Errorf("taken for anyOf: %v", err)
	}
}
