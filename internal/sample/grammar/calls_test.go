package grammar

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
)

const callSchema = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9},"unit":{"enum":["C","F"]},
	"opts":{"type":"object","properties":{"a":{"type":"boolean"},"b":{"$ref":"#/$defs/list"}},"required":["a"]},"any":{"anyOf":[{"type":"string"},{"type":"null"}]}},
	"required":["city","days"],"$defs":{"list":{"type":"array","items":{"type":"string","maxLength":3}}}}`

// callTools has a second tool with the same reference to something else, one with a schema that cannot be honoured, and
// one that says nothing.
var callTools = []Tool{
	{"weather", []byte(callSchema)},
	{"other", []byte(`{"properties":{"b":{"$ref":"#/$defs/list"}},"required":["b"],"$defs":{"list":{"type":"null"}}}`)},
	{"odd", []byte(`{"type":"object","properties":{"a":{"type":"array","contains":{"type":"null"}}}}`)},
	{"bare", nil},
}

// TestCalls: calls in every notation, their arguments in any order.
func TestCalls(t *testing.T) {
	p := func(k, s string) string { return "<parameter=" + k + ">\n" + s + "\n</parameter>\n" }
	x := func(name, s string) string { return "\n<function=" + name + ">\n" + s + "</function>\n</tool_call>" }
	j := func(name, s string) string {
		return "\n{\"name\": \"" + name + "\", \"arguments\": " + s + "}\n</tool_call>"
	}
	g := func(name, s string) string { return "call:" + name + "{" + s + "}<tool_call|>" }
	q := func(s string) string { return `<|"|>` + s + `<|"|>` }
	for n, cases := range map[Notation]map[string]bool{
		CallLlama: {
			`{"name": "weather", "parameters": {"days": 3, "city": "Bonn"}}`: true,
			`{"name":"other","parameters":{"b":null}}`:                       true,
			`{"name": "weather", "parameters": {"days": 3}}`:                 false,
			`{"name": "weather", "arguments": {"days": 3, "city": "Bonn"}}`:  false,
			`{"name": "none", "parameters": {}}`:                             false,
			`{"name": "bare", "parameters": {}}</tool_call>`:                 false,
		},
		CallList: {
			`{"name": "weather", "arguments": {"days": 3, "city": "Bonn"}}`:  true,
			`{"name": "bare", "arguments": {}, "id": "abcdefghi"}`:           true,
			`{"name": "weather", "parameters": {"days": 3, "city": "Bonn"}}`: false,
			`{"name": "bare", "arguments": {}, "id": 3}`:                     false,
			`{"name": "bare", "arguments": {}}]`:                             false,
		},
		CallArgs: {
			`weather[ARGS]{"days": 3, "city": "Bonn"}`: true,
			`bare[CALL_ID]abc123[ARGS]{}`:              true,
			`bare[CALL_ID][ARGS]{}`:                    false,
			`weather[ARGS]{"days": 3}`:                 false,
			`bare{}`:                                   false,
			`none[ARGS]{}`:                             false,
		},
		CallDeepSeek: {
			`weather<｜tool▁sep｜>{"days": 3, "city": "Bonn"}<｜tool▁call▁end｜>`: true,
			`bare<｜tool▁sep｜>{}<｜tool▁call▁end｜>`:                             true,
			`weather<｜tool▁sep｜>{"days": 3}<｜tool▁call▁end｜>`:                 false,
			`none<｜tool▁sep｜>{}<｜tool▁call▁end｜>`:                             false,
			`bare{}<｜tool▁call▁end｜>`:                                         false,
			`bare<｜tool▁sep｜>{}`:                                              false,
		},
		CallDeepSeekFenced: {
			"function<｜tool▁sep｜>weather\n```json\n{\"days\": 3, \"city\": \"Bonn\"}\n```<｜tool▁call▁end｜>": true,
			"function<｜tool▁sep｜>weather\n```json\n{\"days\": 3}\n```<｜tool▁call▁end｜>":                     false,
			"weather<｜tool▁sep｜>{\"days\": 3, \"city\": \"Bonn\"}<｜tool▁call▁end｜>":                         false,
		},
		CallHarmony: {
			`functions.weather <|constrain|>json<|message|>{"days": 3, "city": "Bonn"}`:   true,
			`functions.weather<|channel|>commentary json<|message|> {"days":3,"city":""}`: true,
			`functions.bare<|channel|>analysis<|message|>{}`:                              true,
			`functions.bare<|message|>{}`:                                                 true,
			`functions.weather<|message|>{"days": 3}`:                                     false,
			`functions.none<|message|>{}`:                                                 false,
			`functions.bare<|channel|>final<|message|>{}`:                                 false,
			`functions.bare{}`:                    false,
			`functions.bare<|message|>{}<|call|>`: false,
		},
		CallTags: {
			x("weather", p("city", "Bonn\n\nor \"Köln\" </parameter> no")+p("days",
				"3")): true,
			x("weather", p("days", "3")+p("any", "null")+p("city", "")+p("unit", "C")+p("opts",
				`{"b": ["x"], "a": true}`)): true,
			x("weather", p("city", "\n\n</\n</parameter>x")+p("days",
				"1")): true,
			x("other", p("b", "null")):   true,
			x("odd", p("whatever", "1")): true,
			x("bare", ""):                true,
			x("weather", p("days", "3")): false,
			x("weather", p("city", "x")+p("city", "x")+p("days", "1")):        false,
			x("weather", p("city", "x")+p("days", "10")):                      false,
			x("weather", p("city", "x")+p("days", "3")+p("unit", "K")):        false,
			x("weather", p("city", "x")+p("days", "3")+p("opts", `{"a": 1}`)): false,
			x("weather", p("city", "x")+p("days", "3")+p("more", "1")):        false,
			x("none", ""): false,
			"\n<function=weather>\n" + p("city", "x") + p("days", "3") + "</function>": false,
		},
		CallJSON: {
			j("weather", `{"days": 3, "city": "Bonn"}`):                                    true,
			j("weather", `{"city": "Bonn", "days": 3, "opts": {"b": ["abc"], "a": true}}`): true,
			`{"name":"other","arguments":{"b":null}}</tool_call>`:                          true,
			j("odd", `{"x": [1]}`):                              true,
			j("bare", `{}`):                                     true,
			j("weather", `{"days": 3}`):                         false,
			j("weather", `{"days": 3, "city": "x", "days": 3}`): false,
			j("weather", `{"city": "x", "days": "3"}`):          false,
			j("other", `{"b": []}`):                             false,
			j("none", `{}`):                                     false,
		},
		CallGemma: {
			g("weather", "city:"+q(`Bonn "or" {Köln},`)+",days:3"):                                        true,
			g("weather", "days:3,opts:{b:["+q("abc")+"],a:true},city:"+q("")+",unit:"+q("C")+",any:null"): true,
			g("other", "b:null"):                                                   true,
			g("odd", "x:[1,{y:"+q("z")+"}],z:true"):                                true,
			g("bare", ""):                                                          true,
			g("weather", "days:3"):                                                 false,
			g("weather", "city:Bonn,days:3"):                                       false,
			g("weather", "city:"+q("x")+",days:"+q("3")):                           false,
			g("weather", "city:"+q("x")+",days:3,days:3"):                          false,
			g("weather", "city:"+q("x")+",days:3,unit:"+q("K")):                    false,
			g("weather", "city:"+q("x")+",days:3,opts:{a:true,b:["+q("abcd")+"]}"): false,
			g("bare", ":1"):                                                        false,
		},
	} {
		gr, err := CompileCalls(n, callTools)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range cases {
			if got := accepts(t, gr, testVocab(), text); got != want {
				t.Errorf("%q: %v", text, got)
			}
		}
	}
}

// TestManyTools: more tools than an automaton has room for keep their names.
func TestManyTools(t *testing.T) {
	var props []string
	for i := range 60 {
		props = append(props, fmt.Sprintf(`"p%d":{"type":"string","pattern":"^[a-z]{1,40}$"}`, i))
	}
	var tools []Tool
	for i := range 80 {
		tools = append(
			tools,
			Tool{fmt.Sprintf("t%d", i), []byte(`{"type":"object","properties":{` + strings.Join(props, ",") + `}}`)},
		)
	}
	g, err := CompileCalls(CallJSON, tools)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`{"name":"t79","arguments":{"x":1}}</tool_call>`: true, `{"name":"t80","arguments":{}}</tool_call>`: false} {
		if got := accepts(t, g, testVocab(), text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestAnchors: the end of a text as Python spells it.
func TestAnchors(t *testing.T) {
	g := mustCompile(t, `{"type":"string","pattern":"\\Aa+\\Z"}`)
	for text, want := range map[string]bool{`"aa"`: true, `"Aaa"`: false, `"aaZ"`: false, `"ba"`: false} {
		if accepts(t, g, testVocab(), text) != want {
			t.Errorf("%s: want %t", text, want)
		}
	}
}

// TestPatterns compares patterns as people write them with an engine that knows look aheads.
func TestPatterns(t *testing.T) {
	v := testVocab()
	for _, expr := range []string{
		`^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,8}$`, `^(?!b)[abc]+$`, `^a(?=b)b+$`, `^(?!.*aa)[ab]*$`, `^(?!ab$)[ab]+$`,
		`(?=ab)a`, `^(?:(?!a)\w|b)c$`,
		`^(?!\.)(?!.*\.\.)([a-c.]*)[a-c]@(?:b\.)+[ab]{2,}$`, `^(?=a(?!b))[abc]{2}$`, `^\u0061[^]?\/$`, `^[^\s\d]\S$`, `^(?<n>a|b)\1?$`, `^(?=[ab]{2}$).*$`, `a(?!b)`, `^[[a]$`, `^\cJ?$`,
	} {
		re, err := regexp2.Compile(expr, regexp2.ECMAScript|regexp2.Unicode)
		if err != nil {
			t.Fatal(expr, err)
		}
		p, err := parsePattern(expr)
		if strings.Contains(expr, `\1`) {
			if err == nil || !strings.Contains(err.Error(), "not regular") {
				t.Errorf("%s: %v", expr, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		g := mustCompile(t, `{"type":"string","pattern":`+encode(expr)+`}`)
		r := rand.New(rand.NewSource(1))
		found := 0
		samples := []string{"a.b@b.aa", "abb", "bc", "cc", "aA1b", "ac"}
		for i := range 800 {
			text := make([]rune, r.Intn(9))
			for i := range text {
				text[i] = []rune("aaabbbcA1.@/[ \u00a0\n")[r.Intn(16)]
			}
			if i < len(samples) {
				text = []rune(samples[i])
			}
			want, err := re.MatchString(string(text))
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.matches(string(text))
			if err != nil || got != want {
				t.Errorf("%s: %q: %v, want %v (%v)", expr, string(text), got, want, err)
			}
			m := g.NewMatcher(v)
			for _, id := range greedy(v, encode(string(text))) {
				m.Accept(id)
			}
			if m.Complete() != want {
				t.Errorf("%s: %q: the grammar says %v", expr, string(text), !want)
			}
			if want {
				found++
			}
		}
		t.Logf("%s: %d matched", expr, found)
	}
	for expr, why := range map[string]string{
		`(?:(?=a)b)*`: "repetition", `(?<=a)b`: "looks behind", `(?<!a)b`: "looks behind", `(a)\1`: "not regular",
		`a\bb`: "not supported",
		`\Qa`:  `\Q`, `a\E`: `\E`, `\C`: `\C`, `[\A]`: `\A`, `\y`: `\y`,
		`(?=a`: "not closed", `[a`: "not closed", `a)`: "unexpected", `\p{Emoji}`: "not supported", `\`: "backslash",
	} {
		if _, err := Compile([]byte(`{"type":"string","pattern":` + encode(expr) + `}`)); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", expr, err)
		}
	}
}
