package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// testVocab has every byte, the pieces of JSON that real vocabularies have,
// words, and pieces of multi-byte characters. Token 0 is empty like a control
// token, the last two end the output.
func testVocab() *Vocab {
	pieces := [][]byte{nil}
	for b := range 256 {
		pieces = append(pieces, []byte{byte(b)})
	}
	for _, s := range []string{
		`{"`, `":`, `": `, `": "`, `","`, `", "`, `"}`, `"]`, `"},`, `"}]`, `{}`, `[]`, `[{"`, `}}`, `]}`, `[[`, `]]`, `},{"`,
		`},`, `],`, `, `, `,"`, `": {`, `": [`, `": [{"`,
		"\n", "\n ", "\n  ", "\n    ", "\n\n", "  ", "    ", " {", " [", ` "`, ` "a`, `\n`, `\"`, `\\`, `\u`, `\u00`,
		`\ud83d`, `\ude00`, `00e9`,
		"true", "false", "null", " true", " null", "tr", "nul", "10", "123", "00", "0.", ".5", "-1", "1e", "e+", "999",
		"3.14",
		"name", "age", "city", "Paris", "the ", "hello world", "a\"b", "x\",\"y", "é", "你好", "🌦", "\xf0\x9f", "\xe4\xbd",
		"kind", "cat", "dog", "value", "items", "child",
		"aaaaaaaa", "bbb", "AB", "12-", "@", "red", "green", "blue", "r", "g",
	} {
		pieces = append(pieces, []byte(s))
	}
	pieces = append(pieces, []byte("name"), []byte("<eos>"), []byte("<eot>")) // a twin and the ends
	n := int32(len(pieces))
	return NewVocab(pieces, []int32{n - 2, n - 1})
}

// greedy tokenises text by the longest piece.
func greedy(v *Vocab, text string) []int32 {
	var out []int32
	for len(text) > 0 {
		best := int32(-1)
		for id, p := range v.pieces {
			if len(p) > 0 && !v.isEOG[int32(id)] && strings.HasPrefix(text, string(p)) &&
				(best < 0 || len(p) > len(v.pieces[best])) {
				best = int32(id)
			}
		}
		out = append(out, best)
		text = text[len(v.pieces[best]):]
	}
	return out
}

// accepts reports whether the grammar takes the text as a whole document, in
// one tokenisation and byte by byte.
func accepts(t *testing.T, g *Grammar, v *Vocab, text string) bool {
	t.Helper()
	whole := g.NewMatcher(v)
	ids := greedy(v, text)
	ok := whole.Prefix(ids) == len(ids)
	for _, id := range ids {
		whole.Accept(id)
	}
	ok = ok && whole.Complete()
	single := g.NewMatcher(v)
	ok2 := true
	for i := range len(text) {
		id := int32(text[i]) + 1
		ok2 = ok2 && single.Allows(id)
		single.Accept(id)
	}
	ok2 = ok2 && single.Complete()
	if ok != ok2 {
		t.Errorf("%q: tokens say %t, bytes say %t", text, ok, ok2)
	}
	return ok
}

type schemaCase struct {
	name, schema string
	yes, no      []string
}

var schemaCases = []schemaCase{
	{"any", `{}`, []string{`1`, `-0.5e3`, `"x"`, `null`, `true`, `[]`, `{}`, `{"a": [1, {"b": null}]}`,
		"{\n  \"a\": 1\n}"}, []string{``, `tru`, `[1,]`, `{"a"}`, `01`, `+1`, `{"a":1}x`, `"a`, "\"\n\"", `"\x"`, `[1 2]`,
		"\"\xff\"", `"\ud800"`}},
	{"true", `true`, []string{`7`}, []string{`x`}},
	{"string", `{"type":"string"}`, []string{`""`, `"é你🌦"`, `"\u00e9\n\"\\\/"`, `"\ud83d\ude00"`},
		[]string{`1`, `"\ude00"`, `"\ud83dx"`, `"a"b`}},
	{"length", `{"type":"string","minLength":2,"maxLength":4}`, []string{`"ab"`, `"é你🌦x"`, `"\n\u00e9\ud83d\ude00"`},
		[]string{`"a"`, `""`, `"abcde"`}},
	{"minLength only", `{"type":"string","minLength":1}`, []string{`"a"`, `"` + strings.Repeat("a", 500) + `"`},
		[]string{`""`}},
	{"long maxLength", `{"type":"string","maxLength":100000}`, []string{`""`, `"` + strings.Repeat("ab", 1000) + `"`},
		nil},
	{"pattern", `{"type":"string","pattern":"^[A-Z]{2}-\\d+$"}`, []string{`"AB-12"`},
		[]string{`"AB-"`, `"ab-1"`, `"xAB-12"`, `"AB-12x"`}},
	{"pattern with anchors of Go", `{"type":"string","pattern":"\\A[ab]+\\z"}`, []string{`"ab"`},
		[]string{`"xab"`, `"Aab"`, `"abz"`, `"A"`, `""`}},
	{"pattern anywhere", `{"type":"string","pattern":"cat|^dog"}`, []string{`"a cat!"`, `"dogs"`, `"cat"`},
		[]string{`"hotdog"`, `""`}},
	{"pattern and length", `{"type":"string","pattern":"^a*b*$","minLength":2,"maxLength":4}`, []string{`"aabb"`, `"bb"`},
		[]string{`"a"`, `"aabbb"`, `"ba"`}},
	{"pattern with specials", `{"type":"string","pattern":"^[\"\\\\\\n/é]+$"}`, []string{`"\"\\\n/é"`},
		[]string{`"a"`, `"\t"`}},
	{"integer", `{"type":"integer"}`, []string{`0`, `-12`, `1234567890`}, []string{`1.5`, `-`, `1e3`, `00`}},
	{"integer range", `{"type":"integer","minimum":-12,"maximum":345}`,
		[]string{`-12`, `-9`, `-1`, `0`, `7`, `99`, `345`, `344`, `199`}, []string{`-13`, `346`, `1000`, `-100`, `400`}},
	{"integer from", `{"type":"integer","minimum":1}`, []string{`1`, `10`, `99999`}, []string{`0`, `-1`}},
	{"integer exclusive", `{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10}`, []string{`1`, `9`},
		[]string{`0`, `10`}},
	{"integer between fractions", `{"type":"integer","exclusiveMinimum":-2.5,"exclusiveMaximum":4.5}`,
		[]string{`-2`, `0`, `4`}, []string{`-3`, `5`}},
	{"number between fractions", `{"type":"number","exclusiveMinimum":-2.5,"exclusiveMaximum":4.5}`,
		[]string{`-2`, `-2.4`, `4`, `4.4`}, []string{`-2.5`, `-3`, `4.5`, `5`}},
	{"integer draft 4", `{"type":"integer","minimum":0,"exclusiveMinimum":true,"maximum":3.5}`, []string{`1`, `3`},
		[]string{`0`, `4`}},
	{"number", `{"type":"number"}`, []string{`0`, `-1.5`, `1e5`, `1.25E-3`}, []string{`.5`, `1.`, `1e`, `0x1`}},
	{"number range", `{"type":"number","minimum":0.25,"maximum":12.5}`,
		[]string{`0.25`, `0.3`, `1`, `1.0`, `12.5`, `12.499`, `12.50`, `9.99`},
		[]string{`0.24`, `0`, `12.51`, `13`, `-1`, `12.500001`}},
	{"number range around 0", `{"type":"number","minimum":-1.5,"exclusiveMaximum":2}`,
		[]string{`-1.5`, `-0.1`, `0`, `1.99`, `-1.49`}, []string{`-1.51`, `2`, `2.0`, `-2`}},
	{"number below 0", `{"type":"number","exclusiveMaximum":0}`, []string{`-0.1`, `-3`, `-100.5`},
		[]string{`0`, `1`, `-0`}},
	{"number above 0", `{"type":"number","exclusiveMinimum":0,"maximum":1}`, []string{`0.001`, `1`, `1.0`, `0.5`},
		[]string{`0`, `0.0`, `1.1`}},
	{"boolean and null", `{"type":["boolean","null"]}`, []string{`true`, `false`, `null`}, []string{`0`, `"true"`}},
	{"enum", `{"enum":["red","green",3,null,{"a":[1,"x"]},[],"q\"\\é"]}`,
		[]string{`"red"`, `3`, `null`, `{"a":[1,"x"]}`, `{"a": [1, "x"]}`, `[]`, `"q\"\\é"`},
		[]string{`"blue"`, `{"a":[1]}`, `"re"`}},
	{"enum with type", `{"type":"string","enum":["a",1,"bbb"],"minLength":2}`, []string{`"bbb"`}, []string{`1`, `"a"`}},
	{"record", `{"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}}`,
		[]string{`{}`, `{"a":1,"b": 2}`}, []string{`{"a":"x"}`}},
	{"record of names", `{"type":"object","propertyNames":{"type":"string",` +
		`"enum":["a","b"]},"additionalProperties":{"type":"integer"},"required":["a","b"]}`,
		[]string{`{"a":1,"b":2}`}, []string{`{"a":1}`, `{}`, `{"a":1,"b":2,"c":3}`}},
	{"some of the names", `{"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"type":"integer"}}`,
		[]string{`{}`, `{"a":1}`, `{"b":1}`}, []string{`{"c":1}`, `{"a":"x"}`}},
	{"no names", `{"type":"object","propertyNames":false}`, []string{`{}`}, []string{`{"a":1}`}},
	{"names of a pattern", `{"type":"object","propertyNames":{"pattern":"^k_"},"additionalProperties":{"type":"integer"}}`,
		[]string{`{}`, `{"k_1":1,"k_":2}`}, []string{`{"k":1}`, `{"k_":"x"}`}},
	{"names of a length", `{"type":"object","propertyNames":{"maxLength":2}}`, []string{`{"ab":1}`, `{}`},
		[]string{`{"abc":1}`}},
	{"values by pattern", `{"type":"object","properties":{"x":{"type":"null"}` +
		`},"patternProperties":{"^k_":{"type":"integer"}},"additionalProperties":false}`,
		[]string{`{"x":null,"k_1":1}`, `{"k_":3}`, `{}`}, []string{`{"y":1}`, `{"k_":"x"}`, `{"x":1}`}},
	{"never", `{"type":"object","properties":{"a":{"not":{}},"b":{"type":"null"}}}`, []string{`{}`, `{"b":null}`},
		[]string{`{"a":1}`}},
	{"multiples", `{"type":"number","multipleOf":15}`, []string{`0`, `15`, `-30`, `1005`, `150000`},
		[]string{`5`, `10`, `16`, `015`, `-0`, `15.0`}},
	{"positive multiples", `{"type":"integer","multipleOf":7,"exclusiveMinimum":0}`, []string{`7`, `14`, `7007`},
		[]string{`0`, `-7`, `8`}},
	{"few multiples", `{"type":"number","multipleOf":2.5,"minimum":-5,"exclusiveMaximum":5}`,
		[]string{`-5`, `-2.5`, `0`, `2.5`}, []string{`5`, `1`, `-7.5`}},
	{"cents", `{"type":"number","multipleOf":0.01,"minimum":0}`, []string{`0`, `12`, `0.5`, `19.99`},
		[]string{`-1`, `0.001`, `1e2`}},
	{"integers of a fraction", `{"type":"integer","multipleOf":1.5}`, []string{`3`, `-6`, `0`}, []string{`1`, `1.5`}},
	{"date", `{"type":"string","format":"date"}`, []string{`"2024-02-28"`, `"1999-12-31"`},
		[]string{`"2024-02-30"`, `"24-1-1"`, `"x"`}},
	{"date-time", `{"type":"string","format":"date-time"}`,
		[]string{`"2024-02-28T23:59:59Z"`, `"2024-02-28T00:00:00.123+02:00"`},
		[]string{`"2024-02-28"`, `"2024-02-28T24:00:00Z"`}},
	{"duration", `{"type":"string","format":"duration"}`, []string{`"P1D"`, `"PT5M"`, `"P1Y2M3DT4H5M6S"`, `"P2W"`},
		[]string{`"P"`, `"PT"`, `"1D"`}},
	{"email", `{"type":"string","format":"email"}`, []string{`"a.b+c@example.com"`}, []string{`"a"`, `"@b.c"`, `"a@b"`}},
	{"uuid", `{"type":"string","format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`},
		[]string{`"123e4567"`}},
	{"ipv4", `{"type":"string","format":"ipv4"}`, []string{`"192.168.0.1"`}, []string{`"256.1.1.1"`, `"1.1.1"`}},
	{"ipv6", `{"type":"string","format":"ipv6"}`, []string{`"::1"`, `"fe80::1:2"`, `"1:2:3:4:5:6:7:8"`, `"1::"`},
		[]string{`":"`, `"1:2"`, `"1::2::3"`}},
	{"uri", `{"type":"string","format":"uri"}`, []string{`"https://example.com/a?b=c#d"`, `"http://localhost:80"`},
		[]string{`"example.com"`, `"http://"`}},
	{"format unknown", `{"type":"string","format":"colour"}`, []string{`"x"`}, nil},
	{"const", `{"const":"x"}`, []string{`"x"`}, []string{`"y"`}},
	{"object", `{"type":"object","properties":{"name":{"type":"string"}` +
		`,"age":{"type":"integer"},"city":{"type":"string"}},"required":["name","city"]}`,
		[]string{`{"name":"x","city":"y"}`, `{"name": "x", "age": 3, "city": "y"}`,
			"{\n  \"name\": \"x\",\n  \"city\": \"y\"\n}"},
		[]string{`{}`, `{"name":"x"}`, `{"city":"y","name":"x"}`, `{"name":"x","city":"y","q":1}`,
			`{"name":"x","age":"3","city":"y"}`, `{"name":"x","city":"y",}`}},
	{"object all optional", `{"properties":{"name":{"type":"string"},"age":{"type":"integer"}}}`,
		[]string{`{}`, `{"name":"x"}`, `{"age":1}`, `{"name":"x","age":1}`, `{ }`},
		[]string{`{"age":1,"name":"x"}`, `{,}`, `1`}},
	{"any object", `{"type":"object"}`, []string{`{}`, `{"a":1,"b":[]}`}, []string{`[]`, `{"a":}`}},
	{
		"additional schema",
		`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":{"type":"integer"}}`,
		[]string{
			`{"name":"x"}`,
			`{"name":"x","nam":1,"names":2,"":3}`,
		},
		[]string{`{"name":"x","name":1}`, `{"name":"x","q":"s"}`, `{"q":1}`, `{"name":"x","n\u0061me":1}`},
	},
	{
		"map",
		`{"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":2}`,
		[]string{`{"a":true}`, `{"a":true,"b":false}`},
		[]string{`{}`, `{"a":true,"b":true,"c":true}`},
	},
	{
		"required without schema",
		`{"type":"object","required":["a"]}`,
		[]string{`{"a":1}`, `{"a":[2],"b":3}`},
		[]string{`{}`, `{"b":1}`},
	},
	{
		"array",
		`{"type":"array","items":{"type":"integer"}}`,
		[]string{`[]`, `[1]`, `[1, 2,3]`, `[ ]`},
		[]string{`["a"]`, `[1,]`},
	},
	{
		"array bounds",
		`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`,
		[]string{`[1,2]`, `[1,2,3]`},
		[]string{`[]`, `[1]`, `[1,2,3,4]`},
	},
	{
		"array min",
		`{"type":"array","items":{"type":"integer"},"minItems":1}`,
		[]string{`[1]`, `[1,2,3,4,5]`},
		[]string{`[]`},
	},
	{
		"unique",
		`{"type":"array","items":{"enum":["a","b",3]},"uniqueItems":true}`,
		[]string{`[]`, `["b", 3, "a"]`, `["a"]`},
		[]string{`["a","a"]`, `["a","b",3,"a"]`, `["c"]`},
	},
	{
		"unique, some",
		`{"type":"array","items":{"type":"string","enum":["a","b","c",1]},"uniqueItems":true,"minItems":1,"maxItems":2}`,
		[]string{`["b","a"]`, `["c"]`},
		[]string{`[]`, `["a","b","c"]`, `["a","a"]`, `[1]`},
	},
	{
		"unique, all",
		`{"type":"array","items":{"enum":["a","b"]},"uniqueItems":true,"minItems":2}`,
		[]string{`["a","b"]`, `["b","a"]`},
		[]string{`["a"]`, `[]`, `["a","a"]`},
	},
	{
		"unique booleans",
		`{"type":"array","items":{"type":"boolean"},"uniqueItems":true}`,
		[]string{`[true,false]`, `[]`},
		[]string{`[true,true]`},
	},
	{
		"array max 1",
		`{"type":"array","items":{"type":"integer"},"maxItems":1,"uniqueItems":true}`,
		[]string{`[1]`, `[]`},
		[]string{`[1,2]`},
	},
	{"array max 0", `{"type":"array","maxItems":0}`, []string{`[]`}, []string{`[1]`}},
	{"tuple", `{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false,"minItems":2}`,
		[]string{`["a",1]`}, []string{`["a"]`, `["a",1,2]`, `[1,"a"]`}},
	{"tuple and more", `{"type":"array","prefixItems":[{"type":"string"}` +
		`],"items":{"type":"integer"},"minItems":1,"maxItems":3}`, []string{`["a"]`, `["a",1,2]`},
		[]string{`[]`, `["a",1,2,3]`, `["a","b"]`}},
	{"old tuple", `{"items":[{"type":"string"}],"additionalItems":{"type":"integer"}}`, []string{`[]`, `["a",1,2]`},
		[]string{`[1]`}},
	{"anyOf", `{"anyOf":[{"type":"string"},{"type":"integer",` +
		`"minimum":5},{"$ref":"#/$defs/x"}],"$defs":{"x":{"type":"object",` +
		`"properties":{"a":{"type":"null"}},"required":["a"]}}}`, []string{`"a"`, `7`, `{"a":null}`},
		[]string{`4`, `{}`, `true`}},
	{"anyOf beside properties", `{"type":"object","properties":{"a":{"type":"integer"}` +
		`,"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
		[]string{`{"a":1}`, `{"b":1}`, `{"a":1,"b":2}`}, []string{`{}`}},
	{"oneOf by kind", `{"oneOf":[{"type":"object","properties":{"kind":{"const":"cat"}` +
		`,"age":{"type":"integer"}},"required":["kind",` +
		`"age"]},{"type":"object","properties":{"kind":{"const":"dog"},"name":{"type":"string"}},"required":["kind"]}]}`,
		[]string{`{"kind":"cat","age":3}`, `{"kind":"dog"}`, `{"kind":"dog","name":"x"}`},
		[]string{`{"kind":"cat"}`, `{"kind":"dog","age":3}`}},
	{"oneOf by type", `{"oneOf":[{"type":"string"},{"type":"null"}]}`, []string{`"a"`, `null`}, []string{`1`}},
	{"allOf", `{"allOf":[{"type":"object","properties":{"a":{"type":"integer",` +
		`"minimum":1}},"required":["a"]},{"properties":{"b":{"type":"string"},"a":{"maximum":5}},"required":["b"]}]}`,
		[]string{`{"a":3,"b":"x"}`}, []string{`{"a":6,"b":"x"}`, `{"a":0,"b":"x"}`, `{"a":3}`}},
	{"reference with siblings", `{"$ref":"#/$defs/n","maximum":5,"$defs":{"n":{"type":"integer","minimum":1}}}`,
		[]string{`1`, `5`}, []string{`0`, `6`}},
	{"recursive", `{"$ref":"#/$defs/node","$defs":{"node":{"type":"object",` +
		`"properties":{"value":{"type":"integer"}` +
		`,"child":{"anyOf":[{"$ref":"#/$defs/node"}` +
		`,{"type":"null"}]},"items":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value","child"]}}}`,
		[]string{`{"value":1,"child":null}`,
			`{"value":1,"child":{"value":2,"child":null,"items":[{"value":3,"child":null}]}}`},
		[]string{`{"value":1}`, `{"value":1,"child":1}`}},
	{"recursive root", `{"type":"array","items":{"$ref":"#"}}`, []string{`[]`, `[[],[[]]]`}, []string{`[1]`}},
	{"recursive with siblings", `{"type":"object","properties":{"child":{"$ref":"#",` +
		`"required":["value"]},"value":{"type":"integer"}}}`, []string{`{}`, `{"child":{"child":{"value":1},"value":2}}`},
		[]string{`{"child":{}}`, `{"child":{"child":{},"value":1}}`}},
	{"annotations", `{"type":"integer","title":"t","description":"d",` +
		`"default":3,"format":"int32","x-foo":{"not":1},"examples":[1]}`, []string{`1`}, []string{`"a"`}},
	{"false property", `{"type":"object","properties":{"a":false,"b":{"type":"integer"}}}`, []string{`{}`, `{"b":1}`},
		[]string{`{"a":1}`}},
	{"escaped names", `{"type":"object","properties":{"a\"b":{"type":"integer"}` +
		`,"c/d~e":{"$ref":"#/properties/a\"b"}},"required":["a\"b"]}`, []string{`{"a\"b":1,"c/d~e":2}`},
		[]string{`{"ab":1}`}},
	{"unevaluated without properties", `{"type":"object","unevaluatedProperties":false}`, []string{`{}`}, []string{`{"a":1}`}},
	{"unevaluated with a schema", `{"properties":{"a":true},"unevaluatedProperties":{"type":"integer"}}`,
		[]string{`{"a":"x","b":1}`}, []string{`{"b":"x"}`}},
	{"unevaluated beside parts", `{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}`,
		[]string{`{"a":1}`, `{}`}, []string{`{"b":1}`}},
	{"unevaluated items", `{"type":"array","unevaluatedItems":false}`, []string{`[]`}, []string{`[1]`}},
	{"unevaluated items after others", `{"anyOf":[{"prefixItems":[{"type":"null"}]}],"unevaluatedItems":{"type":"integer"}}`,
		[]string{`[null,1]`}, []string{`[1]`, `[null,null]`}},
	{"escaped reference", `{"$ref":"#/$defs/Part%3CA%3E","$defs":{"Part<A>":{"type":"null"}}}`, []string{`null`},
		[]string{`1`}},
	{"unevaluated", `{"type":"object","properties":{"a":{"type":"integer"}},"unevaluatedProperties":false}`,
		[]string{`{"a":1}`}, []string{`{"b":1}`}},
	{"big enum numbers", `{"enum":[1e2,18446744073709551616,-0.50]}`, []string{`1e2`, `18446744073709551616`, `-0.50`},
		[]string{`100`}},
}

func mustCompile(t testing.TB, schema string) *Grammar {
	t.Helper()
	g, err := Compile([]byte(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return g
}

// oracle is an independent validator.
func oracle(t testing.TB, schema string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if strings.Contains(schema, `"items":[`) || strings.Contains(schema, `"exclusiveMinimum":true`) {
		c.DefaultDraft(jsonschema.Draft4)
	}
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(s *jsonschema.Schema, text string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func TestSchemas(t *testing.T) {
	v := testVocab()
	for _, c := range schemaCases {
		t.Run(c.name, func(t *testing.T) {
			g := mustCompile(t, c.schema)
			o := oracle(t, c.schema)
			for _, doc := range c.yes {
				if err := validate(o, doc); err != nil {
					t.Errorf("the case is wrong: %s: %v", doc, err)
				}
				if !accepts(t, g, v, doc) {
					t.Errorf("refused: %s", doc)
				}
			}
			for _, doc := range c.no {
				if accepts(t, g, v, doc) {
					t.Errorf("accepted: %s", doc)
				}
			}
		})
	}
}

// generate walks randomly over allowed tokens, checking the mask against
// Allows on the way, and steers to the end after a while.
func generate(t testing.TB, g *Grammar, v *Vocab, r *rand.Rand, checkAll bool) (string, bool) {
	m := g.NewMatcher(v)
	var out []byte
	logits := make([]float32, v.Size()+3)
	for step := range 400 {
		for i := range logits {
			logits[i] = 0
		}
		m.Mask(logits)
		var ids []int32
		for id, l := range logits {
			if math.IsInf(float64(l), -1) {
				continue
			}
			ids = append(ids, int32(id))
		}
		if checkAll {
			for id := range int32(len(logits)) {
				if got, want := m.Allows(id), !math.IsInf(float64(logits[id]), -1); got != want {
					t.Fatalf("after %q: Allows(%d %q) = %t, mask says %t", out, id, piece(v, id), got, want)
				}
			}
		}
		if len(ids) == 0 {
			t.Fatalf("after %q nothing is allowed", out)
		}
		if m.Complete() != m.Allows(v.eog[0]) {
			t.Fatalf("after %q: complete %t, end allowed %t", out, m.Complete(), m.Allows(v.eog[0]))
		}
		if m.Complete() && (step > 40 || r.Intn(3) == 0 || len(ids) == len(v.eog)) {
			return string(out), true
		}
		// Prefer closing characters the longer it takes.
		var id int32
		for range 1 + step/8 {
			id = ids[r.Intn(len(ids))]
			if p := piece(v, id); len(p) > 0 && bytes.ContainsAny(p[:1], `"]},`) && step > 30 && p[0] != ',' {
				break
			}
		}
		if v.isEOG[id] {
			return string(out), true
		}
		m.Accept(id)
		out = append(out, piece(v, id)...)
	}
	return string(out), false
}

func piece(v *Vocab, id int32) []byte {
	if int(id) < len(v.pieces) {
		return v.pieces[id]
	}
	return nil
}

// TestEmittedValidates: whatever the masks let through is valid.
func TestEmittedValidates(t *testing.T) {
	v := testVocab()
	r := rand.New(rand.NewSource(3))
	for _, c := range schemaCases {
		t.Run(c.name, func(t *testing.T) {
			g := mustCompile(t, c.schema)
			o := oracle(t, c.schema)
			done := 0
			for i := range 60 {
				text, complete := generate(t, g, v, r, i < 3)
				if !complete {
					continue
				}
				done++
				if err := validate(o, text); err != nil {
					t.Fatalf("emitted %s\n%v", text, err)
				}
				if !accepts(t, g, v, text) {
					t.Fatalf("emitted but not accepted: %s", text)
				}
			}
			if done < 10 {
				t.Errorf("only %d of 60 walks came to an end", done)
			}
		})
	}
}

// TestRandomSchemas builds schemas at random and checks both directions:
// emitted documents validate, and documents made for the schema are accepted.
func TestRandomSchemas(t *testing.T) {
	v := testVocab()
	r := rand.New(rand.NewSource(5))
	compiled := 0
	for range 250 {
		schema, sample := randomSchema(r, 3)
		raw, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Compile(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		compiled++
		o := oracle(t, string(raw))
		for range 4 {
			if text, complete := generate(t, g, v, r, false); complete {
				if err := validate(o, text); err != nil {
					t.Fatalf("%s\nemitted %s\n%v", raw, text, err)
				}
			}
			doc := sample()
			if err := validate(o, doc); err != nil {
				t.Fatalf("the generator is wrong: %s\n%s\n%v", raw, doc, err)
			}
			if !accepts(t, g, v, doc) {
				t.Fatalf("%s\nrefused %s", raw, doc)
			}
		}
	}
	if compiled == 0 {
		t.Error("nothing was tested")
	}
}

// ordered keeps the properties of a generated schema in order.
type ordered []struct {
	name   string
	schema any
}

func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		k, _ := json.Marshal(p.name)
		s, err := json.Marshal(p.schema)
		if err != nil {
			return nil, err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(s)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// randomSchema returns a schema and a source of documents for it.
func randomSchema(r *rand.Rand, depth int) (any, func() string) {
	kind := r.Intn(12)
	if depth == 0 {
		kind = r.Intn(5)
	}
	type m = map[string]any
	switch kind {
	case 0:
		lo, n := r.Intn(4), r.Intn(6)
		return m{"type": "string", "minLength": lo, "maxLength": lo + n}, func() string {
			return `"` + strings.Repeat("é", lo+r.Intn(n+1)) + `"`
		}
	case 1:
		lo := r.Intn(4000) - 2000
		hi := lo + r.Intn(3000)
		return m{"type": "integer", "minimum": lo, "maximum": hi}, func() string { return fmt.Sprint(lo + r.Intn(hi-lo+1)) }
	case 2:
		lo := float64(r.Intn(400)-200) / 8
		hi := lo + float64(r.Intn(300)+1)/16
		return m{"type": "number", "minimum": lo, "maximum": hi}, func() string {
			return fmt.Sprintf("%.4f", lo+float64(r.Intn(int((hi-lo)*16)+1))/16)
		}
	case 3:
		vals := []string{"red", "green", "r", "g\n"}[:1+r.Intn(4)]
		return m{"enum": vals}, func() string {
			b, _ := json.Marshal(vals[r.Intn(len(vals))])
			return string(b)
		}
	case 4:
		return m{"type": []string{"boolean", "null"}}, func() string { return []string{"true", "false", "null"}[r.Intn(3)] }
	case 5:
		item, doc := randomSchema(r, depth-1)
		lo := r.Intn(3)
		hi := lo + r.Intn(3)
		return m{"type": "array", "items": item, "minItems": lo, "maxItems": hi}, func() string {
			var parts []string
			for range lo + r.Intn(hi-lo+1) {
				parts = append(parts, doc())
			}
			return "[" + strings.Join(parts, ", ") + "]"
		}
	case 6:
		a, docA := randomSchema(r, depth-1)
		b, docB := randomSchema(r, depth-1)
		return m{"anyOf": []any{a, b}}, func() string {
			if r.Intn(2) == 0 {
				return docA()
			}
			return docB()
		}
	case 7:
		// The parts of one schema, spread over allOf.
		lo := r.Intn(50)
		s, doc := m{"allOf": []any{m{"type": "number", "minimum": lo}, m{"type": []string{"integer", "string"}},
			m{"maximum": lo + 20, "minimum": lo - 5}}}, func() string {
			return fmt.Sprint(lo + r.Intn(21))
		}
		return s, doc
	case 8:
		a, docA := randomSchema(r, 0)
		type pair = struct {
			name   string
			schema any
		}
		kindOf := func(k string) m {
			return m{"type": "object", "properties": ordered{pair{"kind", m{"const": k}}, pair{"value", a}},
				"required": []string{"kind"}}
		}
		return m{"oneOf": []any{kindOf("cat"), kindOf("dog"), m{"type": "null"}}}, func() string {
			return []string{`null`, `{"kind":"cat"}`, `{"kind": "dog", "value": ` + docA() + `}`}[r.Intn(3)]
		}
	case 9:
		base, doc := randomSchema(r, 0)
		return m{"allOf": []any{base, m{"description": "x"}, true}, "title": "y"}, doc
	default:
		var props ordered
		var docs []func() string
		required := []string{}
		for i, name := range []string{"name", "age", "names", "é", "z"}[:r.Intn(6)] {
			s, doc := randomSchema(r, depth-1)
			props = append(props, struct {
				name   string
				schema any
			}{name, s})
			docs = append(docs, doc)
			if (i+depth)%2 == 0 {
				required = append(required, name)
			}
		}
		extra := r.Intn(2) == 0
		s := m{"type": "object", "properties": props, "required": required, "additionalProperties": extra}
		if len(props) == 0 {
			s["properties"] = m{}
		}
		return s, func() string {
			var parts []string
			for i, p := range props {
				req := false
				for _, k := range required {
					req = req || k == p.name
				}
				if req || r.Intn(2) == 0 {
					parts = append(parts, fmt.Sprintf("%q: %s", p.name, docs[i]()))
				}
			}
			if extra && r.Intn(2) == 0 {
				parts = append(parts, `"nam": [1]`, `"agee": {}`)
			}
			return "{" + strings.Join(parts, ", ") + "}"
		}
	}
}

func TestErrors(t *testing.T) {
	deep := strings.Repeat(`{"items":`, 200) + `{}` + strings.Repeat(`}`, 200)
	var wide, defs strings.Builder
	for i := range 20 {
		fmt.Fprintf(&defs, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&wide, `{"$ref":"#/$defs/d0","$defs":{%s"d20":{"type":"integer"}}}`, defs.String())
	for schema, want := range map[string]string{
		``:                        "schema #: not JSON",
		`{`:                       "schema #: not JSON",
		`{} x`:                    "schema #: not JSON",
		`7`:                       "schema #: must be an object or a boolean",
		`false`:                   "schema #: the schema allows nothing",
		`{"enum":[]}`:             "schema #: the schema allows nothing",
		`{"type":"strin"}`:        "schema #/type: must be the name of a JSON type",
		`{"not":{}}`:              `schema #: the schema allows nothing`,
		`{"not":{"pattern":"a"}}`: `schema #/not: keyword "not" is not supported`,
		`{"if":{},"then":{}}`:     `schema #/if: keyword "if" is not supported`,
		`{"type":"object","properties":{"a":{"type":"array","items":true,"uniqueItems":true}}}`:    `schema #/properties/a/uniqueItems: is not supported for lists of anything`,
		`{"type":"integer","multipleOf":3001}`:                                                     `schema #/multipleOf: is supported for integers up to 1000`,
		`{"type":"number","multipleOf":0.25}`:                                                      `schema #/multipleOf: is supported for integers up to 1000`,
		`{"type":"number","multipleOf":0}`:                                                         `schema #/multipleOf: must be a number above 0`,
		`{"type":"integer","multipleOf":7,"minimum":3}`:                                            `schema #/multipleOf: together with these bounds`,
		`{"type":"object","patternProperties":{"a":{},"b":{}}}`:                                    `schema #/patternProperties: more than one pattern`,
		`{"type":"object","patternProperties":{"(?<=a)":{}}}`:                                      `schema #/patternProperties: regular expression is not supported`,
		`{"properties":{"ab":{}},"patternProperties":{"^a":{}}}`:                                   `schema #/patternProperties: a pattern that matches the property "ab"`,
		`{"properties":{"ab":{}},"propertyNames":{"maxLength":3}}`:                                 `schema #/propertyNames: beside named properties`,
		`{"type":"object","propertyNames":{"anyOf":[{"enum":["a"]}]}}`:                             `schema #/propertyNames/anyOf: keyword "anyOf" is not supported for names`,
		`{"properties":{"ab":{}},"propertyNames":{"enum":["c"]}}`:                                  `schema #/propertyNames: property "ab" is not among them`,
		`{"type":"object","properties":{"a":{}},"minProperties":1}`:                                `schema #/minProperties: keyword "minProperties" is not supported`,
		`{"type":"array","contains":{"type":"string"}}`:                                            `schema #/contains: keyword "contains" is not supported`,
		`{"type":"string","pattern":"(?<=a)b"}`:                                                    `schema #/pattern: regular expression is not supported`,
		`{"type":"string","pattern":"a\\bb"}`:                                                      `schema #/pattern: \b inside a regular expression is not supported`,
		`{"type":"string","pattern":"a^b"}`:                                                        `schema #/pattern: \A inside a regular expression is not supported`,
		`{"$ref":"http://x/y"}`:                                                                    `schema #/$ref: reference "http://x/y" is not supported, only local ones (#/...) are`,
		`{"$ref":"#/a/b"}`:                                                                         `schema #/$ref: reference "#/a/b" leads nowhere`,
		`{"$ref":"#"}`:                                                                             "schema #: references and allOf are nested too deep or lead back to themselves",
		`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`:                                                 "schema #: the schema refers to itself without anything in between",
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`:                       "schema #: the schema allows nothing",
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:                                         "schema #/oneOf: alternatives 0 and 1 may overlap, which is not supported; use anyOf",
		`{"type":"string","minLength":-1}`:                                                         "schema #/minLength: must be an integer, 0 or more",
		`{"type":"integer","minimum":"x"}`:                                                         "schema #/minimum: must be a number of reasonable size",
		`{"type":"integer","minimum":1e999999999}`:                                                 "schema #/minimum: must be a number of reasonable size",
		`{"type":"object","properties":[]}`:                                                        "schema #/properties: must be an object",
		`{"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]}`: `schema #/allOf: additionalProperties together with properties of another part ("b") is not supported`,
		`{"type":"array","uniqueItems":true}`:                                                      `schema #/uniqueItems: is not supported for lists of anything`,
		`{"type":"array","contains":true}`:                                                         `schema #/contains: keyword "contains" is not supported`,
		`{"allOf":[{"patternProperties":{"^a":true}},{"additionalProperties":false}]}`:             `schema #/allOf: additionalProperties together with patternProperties of another part`,
		`{"allOf":[{"items":{"type":"null"}}],"prefixItems":[{"type":"string"}]}`:                  `schema #/allOf: items together with prefixItems of another part`,
		`{"allOf":[{"unevaluatedProperties":false},{"properties":{"a":true}}]}`:                    `schema #/allOf/0/unevaluatedProperties: inside allOf, anyOf, oneOf or $ref is not supported`,
		`{"anyOf":[{"unevaluatedItems":false}],"prefixItems":[true]}`:                              `schema #/anyOf/0/unevaluatedItems: inside`,
		deep:          "schema #: nested more than 128 levels deep",
		wide.String(): "too complex",
		`{"type":"string","pattern":"^((a{1,100}){1,100}){1,100}$"}`: "schema #/pattern: regular expression",
		`{"type":"array","items":[` + strings.Repeat(`{"type":"string","pattern":"^[^x]{0,900}$"},`,
			40) + `{}]}`: "too complex",
		`{"oneOf":[{"type":"object","properties":{"a":{}},"required":["k"]},` +
			`{"type":"object","properties":{},"required":["k"]}]}`: "schema #/oneOf: alternatives 0 and 1 may overlap",
		`{"description":"` + strings.Repeat("x", maxSchema) + `"}`: "schema #: 1048594 bytes are over the limit of 1048576",
	} {
		_, err := Compile([]byte(schema))
		var e *Error
		if err == nil || !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s\ngot  %v\nwant %s", schema, err, want)
		}
	}
}

func TestObjectMode(t *testing.T) {
	v := testVocab()
	g := Object()
	for _, doc := range []string{`{}`, `{"a": {"b": [1, 2.5e3, "x", null, true]}}`} {
		if !accepts(t, g, v, doc) {
			t.Errorf("refused %s", doc)
		}
	}
	for _, doc := range []string{`[]`, `1`, ` {}`, `{}{}`} {
		if accepts(t, g, v, doc) {
			t.Errorf("accepted %s", doc)
		}
	}
	if !accepts(t, builtin(ruleValue), v, `[1]`) {
		t.Error("any value: refused [1]")
	}
}

// TestDrafts: clones advance alone, and a draft is cut at the first token the
// grammar forbids.
func TestDrafts(t *testing.T) {
	v := testVocab()
	g := mustCompile(t, `{"type":"object","properties":{"name":{"type":"string","maxLength":5}},"required":["name"]}`)
	m := g.NewMatcher(v)
	for _, id := range greedy(v, `{"name": "`) {
		m.Accept(id)
	}
	eog := v.eog[1]
	for _, c := range []struct {
		draft string
		eog   bool
		want  string
	}{
		{`Paris"}`, false, `Paris"}`},
		{`Paris"}`, true, `Paris"}`},
		{`Parisx"}`, false, `Paris`},
		{`r"]`, false, `r`},
		{`r`, true, `r`},
	} {
		ids := greedy(v, c.draft)
		if c.eog {
			ids = append(ids, eog, eog)
		}
		n := m.Prefix(ids)
		var got []byte
		ended := 0
		for _, id := range ids[:n] {
			if id == eog {
				ended++
			} else {
				got = append(got, v.pieces[id]...)
			}
		}
		wantEnd := 0
		if c.eog && strings.HasSuffix(c.want, "}") {
			wantEnd = 1
		}
		if string(got) != c.want || ended != wantEnd {
			t.Errorf("draft %q: %q and %d ends pass, want %q and %d", c.draft, got, ended, c.want, wantEnd)
		}
	}
	if m.Complete() {
		t.Error("looking at drafts moved the matcher")
	}
	c := m.Clone().(*Matcher)
	for _, id := range greedy(v, `x"}`) {
		c.Accept(id)
	}
	if !c.Complete() || m.Complete() {
		t.Errorf("clone complete %t, original %t", c.Complete(), m.Complete())
	}
}

// TestAfterViolation: a token that was not allowed leaves only the end.
func TestAfterViolation(t *testing.T) {
	v := testVocab()
	m := Object().NewMatcher(v)
	m.Accept(greedy(v, "x")[0])
	logits := make([]float32, v.Size())
	m.Mask(logits)
	for id, l := range logits {
		if ok := !math.IsInf(float64(l), -1); ok != v.isEOG[int32(id)] {
			t.Errorf("token %d allowed: %t", id, ok)
		}
	}
	m.Accept(-1)
	m.Accept(int32(v.Size()))
	if m.Allows(-1) || m.Allows(int32(v.Size())) || m.Allows(0) {
		t.Error("ids outside the vocabulary or without text are allowed")
	}
}

// TestLongOutput: tables are renewed on long outputs without losing the place.
func TestLongOutput(t *testing.T) {
	v := testVocab()
	g := mustCompile(t, `{"type":"array","items":{"type":"string","minLength":1,"maxLength":60000}}`)
	m := g.NewMatcher(v)
	text := `["` + strings.Repeat("hello world", 4000) + `","` + strings.Repeat("é", 60000) + `"]`
	logits := make([]float32, v.Size())
	for i, id := range greedyBytes(text) {
		if !m.Allows(id) {
			t.Fatalf("byte %d refused", i)
		}
		if i%5000 == 0 {
			m.Mask(logits)
		}
		m.Accept(id)
		if n := len(m.m.configs) + len(m.m.frames); n > maxTables+1000 {
			t.Fatalf("tables hold %d entries", n)
		}
	}
	if !m.Complete() {
		t.Error("not complete")
	}
	if m.Allows('"' + 1) {
		t.Error("more text allowed after the end")
	}
}

func greedyBytes(text string) []int32 {
	out := make([]int32, len(text))
	for i := range len(text) {
		out[i] = int32(text[i]) + 1
	}
	return out
}

// TestDeepNesting: depth costs memory in proportion, no more.
func TestDeepNesting(t *testing.T) {
	v := testVocab()
	m := builtin(ruleValue).NewMatcher(v)
	renewed, was := 0, m.m
	for _, id := range greedyBytes(strings.Repeat("[", 2*maxTables) + strings.Repeat("]", 2*maxTables)) {
		if m.Accept(id); m.m != was {
			renewed, was = renewed+1, m.m
		}
	}
	if renewed > 20 { // each time costs as much as the text is deep
		t.Errorf("the tables were renewed %d times", renewed)
	}
	if !m.Complete() {
		t.Error("not complete")
	}
}

// TestHostileSchemas compiles and masks: whatever the schema, an answer or an
// error comes, and what is allowed stays right.
func TestHostileSchemas(t *testing.T) {
	v := testVocab()
	var consts, optional, nested strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&consts, `{"const":"a%da"},`, i)
		fmt.Fprintf(&optional, `"p%d":{"type":"string","maxLength":%d},`, i, i)
	}
	for range 30 {
		nested.WriteString(`{"anyOf":[{"type":"array","items":`)
	}
	nested.WriteString("true")
	for range 30 {
		nested.WriteString(`},{"type":"null"}]}`)
	}
	for name, schema := range map[string]string{
		"many states at once":  `{"type":"string","pattern":"a.{0,400}b.{0,400}c"}`,
		"doubling states":      `{"type":"string","pattern":"^(a|b)*a(a|b){200}$"}`,
		"many constants":       `{"anyOf":[` + consts.String() + `{"type":"null"}]}`,
		"many optional fields": `{"type":"object","properties":{` + optional.String() + `"z":{}}}`,
		"nested alternatives":  nested.String(),
		"huge lengths":         `{"type":"string","minLength":1000000000,"maxLength":99999999999999999999}`,
		"huge list":            `{"type":"array","items":{"type":"integer"},"minItems":1000000,"maxItems":1000000000}`,
		"nested counts": `{"type":"array","maxItems":1000000,"items":{"type":"array",` +
			`"maxItems":1000000,"items":{"type":"string","maxLength":1000000}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Compile([]byte(schema))
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			m := g.NewMatcher(v)
			r := rand.New(rand.NewSource(1))
			logits := make([]float32, v.Size())
			for range 30 {
				clear(logits)
				m.Mask(logits)
				var ids []int32
				for id, l := range logits {
					if !math.IsInf(float64(l), -1) {
						if !m.Allows(int32(id)) {
							t.Fatalf("mask allows token %d, the matcher does not", id)
						}
						ids = append(ids, int32(id))
					}
				}
				if len(ids) == 0 {
					t.Fatal("nothing is allowed")
				}
				m.Accept(ids[r.Intn(len(ids))])
			}
		})
	}
}

var hugeExponent = regexp.MustCompile(`[eE][+-]?\d{5}`)

func FuzzSchema(f *testing.F) {
	for _, c := range schemaCases {
		f.Add(c.schema, int64(1))
	}
	f.Add(`{"oneOf":[{"type":"object","properties":{"a":{}`+
		`},"required":["a"]},{"type":"object","properties":{"b":{}},"required":["b"]}]}`, int64(2))
	v := testVocab()
	f.Fuzz(func(t *testing.T, schema string, seed int64) {
		g, err := Compile([]byte(schema))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v is no *Error", err)
			}
			return
		}
		r := rand.New(rand.NewSource(seed))
		text, complete := generate(t, g, v, r, false)
		if !complete {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%s\nemitted invalid JSON %q", schema, text)
		}
		if hugeExponent.MatchString(schema) { // the oracle cannot tell such numbers from each other
			return
		}
		// The oracle refuses some schemas that are not valid themselves.
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
		if err != nil {
			return
		}
		c := jsonschema.NewCompiler()
		if c.AddResource("schema.json", doc) != nil {
			return
		}
		s, err := c.Compile("schema.json")
		if err != nil {
			return
		}
		if err := validate(s, text); err != nil {
			t.Fatalf("%s\nemitted %s\n%v", schema, text, err)
		}
	})
}

// TestLibraryPattern: a library's own expression for a format may be more than we read; the format is enough then.
func TestLibraryPattern(t *testing.T) {
	g, err := Compile([]byte(`{"type":"string","format":"duration","pattern":"^P(?!$)"}`))
	if err != nil {
		t.Fatal(err)
	}
	v := testVocab()
	if !accepts(t, g, v, `"PT5M"`) || accepts(t, g, v, `"P"`) {
		t.Error("the wrong durations are accepted")
	}
	if _, err := Compile([]byte(`{"type":"string","pattern":"^P(?<!$)"}`)); err == nil {
		t.Error("an expression that cannot be read is accepted")
	}
}
