package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/sample/grammar"
	"strobe/internal/speculate"
)

// paramOf is the field that an error is about; "" where there is no error.
func paramOf(err error) string {
	var api *apiError
	if errors.As(err, &api) {
		return api.Param
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestSamplingBorders: the first and the last value that a field takes reach their own place in the request, and the
// values next to them are refused by the field's name.
func TestSamplingBorders(t *testing.T) {
	f := start(t, options{})
	tok := f.e.Model().Tokenizer
	apply := func(body string) (req engine.Request, err error) {
		var fields samplingFields
		if err := decodeJSON([]byte(body), "", &fields); err != nil {
			return req, err
		}
		return req, fields.apply(&req, tok)
	}
	for name, c := range map[string]struct {
		get  func(p *sample.Params) any
		good string
		bad  string
	}{
		"temperature":        {func(p *sample.Params) any { return p.Temp }, "0 100 0.5", "-0.1 100.1"},
		"top_p":              {func(p *sample.Params) any { return p.TopP }, "0 1", "-0.1 1.1"},
		"min_p":              {func(p *sample.Params) any { return p.MinP }, "0 1", "-0.1 1.1"},
		"typical_p":          {func(p *sample.Params) any { return p.TypicalP }, "0 1", "-0.1 1.1"},
		"presence_penalty":   {func(p *sample.Params) any { return p.PresencePenalty }, "-100 100", "-101 101"},
		"frequency_penalty":  {func(p *sample.Params) any { return p.FrequencyPenalty }, "-100 100", "-101 101"},
		"repeat_penalty":     {func(p *sample.Params) any { return p.RepeatPenalty }, "0 100", "-1 101"},
		"repetition_penalty": {func(p *sample.Params) any { return p.RepeatPenalty }, "0 100", "-1 101"},
		"dry_multiplier":     {func(p *sample.Params) any { return p.DRY.Multiplier }, "0 100", "-1 101"},
		"dry_base":           {func(p *sample.Params) any { return p.DRY.Base }, "0 100", "-1 101"},
		"top_k":              {func(p *sample.Params) any { return p.TopK }, "-1 0 2147483647", "-2 2147483648"},
		"repeat_last_n":      {func(p *sample.Params) any { return p.RepeatLastN }, "-1 2147483647", "-2 2147483648"},
		"dry_allowed_length": {func(p *sample.Params) any { return p.DRY.AllowedLength }, "0 7", "-2 -1"},
		"dry_penalty_last_n": {func(p *sample.Params) any { return p.DRY.LastN }, "-1 9", "-2"},
		"seed":               {func(p *sample.Params) any { return p.Seed }, "0 18446744073709551615", "1.5"},
	} {
		for _, v := range strings.Fields(c.good) {
			req, err := apply(fmt.Sprintf(`{%q:%s}`, name, v))
			if got := fmt.Sprintf("%.0f", c.get(&req.Params)); err != nil || fmt.Sprint(c.get(&req.Params)) != v && got != v {
				t.Errorf("%s: %s becomes %v, error %v", name, v, c.get(&req.Params), err)
			}
		}
		for _, v := range strings.Fields(c.bad) {
			if _, err := apply(fmt.Sprintf(`{%q:%s}`, name, v)); paramOf(err) != name {
				t.Errorf("%s: %s: error %v", name, v, err)
			}
		}
	}
	if _, err := apply(`{"temperature":100.5}`); err == nil ||
		err.Error() != "temperature: 100.5 is not between 0 and 100" {
		t.Errorf("error %v", err)
	}
	// Looking back no token turns penalties off; what is said of them does not matter then.
	req, err := apply(`{"repeat_last_n":0,"repeat_penalty":2,"presence_penalty":1,"frequency_penalty":1,
		"dry_multiplier":3,"dry_penalty_last_n":0}`)
	if r := &req.Params; err != nil || r.RepeatPenalty != 1 || r.PresencePenalty != 0 || r.FrequencyPenalty != 0 ||
		r.DRY.Multiplier != 0 || r.DRY.Breakers != nil {
		t.Errorf("without looking back: %+v, %v", r, err)
	}
	if req, err := apply(`{"dry_multiplier":0.5}`); err != nil || len(req.Params.DRY.Breakers) == 0 {
		t.Errorf("DRY without breakers: %v", err)
	}
	if req, err := apply(`{}`); err != nil || req.Params.DRY.Breakers != nil || req.Slot != nil || req.NoCache {
		t.Errorf("no fields: %+v, %v", req, err)
	}
	// Of several limits of tokens the one that OpenAI has now counts.
	for body, want := range map[string][2]any{
		`{"n_predict":1,"max_tokens":2,"max_completion_tokens":3}`: {3, false},
		`{"n_predict":1,"max_tokens":2}`:                           {2, false},
		`{"n_predict":1}`:                                          {1, false},
		`{"max_tokens":0}`:                                         {0, true}, `{"max_tokens":-1}`: {0, false},
	} {
		if req, err := apply(body); err != nil || req.MaxTokens != want[0] || req.PromptOnly != want[1] {
			t.Errorf("%s: %d, prompt only %t, %v", body, req.MaxTokens, req.PromptOnly, err)
		}
	}
	for body, want := range map[string]int{`{"id_slot":0}`: 0, `{"id_slot":3}`: 3, `{"id_slot":-1}`: -1} {
		req, err := apply(body)
		if got := req.Slot; err != nil || (got == nil) != (want < 0) || got != nil && *got != want {
			t.Errorf("%s: slot %v, %v", body, got, err)
		}
	}
	for body, want := range map[string]bool{`{"cache_prompt":true}`: false, `{"cache_prompt":false}`: true} {
		if req, err := apply(body); err != nil || req.NoCache != want {
			t.Errorf("%s: no cache %t, %v", body, req.NoCache, err)
		}
	}
	for body, want := range map[string]any{
		`{"draft_max":64}`: 64, `{"draft_max":65}`: "strobe.draft_max", `{"draft_max":-1}`: "strobe.draft_max",
		`{"draft_max":0}`: 7, `{"draft":"mtpx"}`: "strobe.draft", `{"tree":0}`: speculate.TreeOff, `{"tree":1}`: 1,
		`{"tree":256}`: 256, `{"tree":257}`: "strobe.tree", `{"tree":-1}`: "strobe.tree",
	} {
		var fields strobeFields
		if err := json.Unmarshal([]byte(body), &fields); err != nil {
			t.Fatal(err)
		}
		req := engine.Request{}
		req.Spec.Max = 7
		var got any = paramOf(fields.apply(&req))
		if got == "" {
			if got = req.Spec.Max; fields.Tree != nil {
				got = req.Spec.Tree
			}
		}
		if got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
	for n, ok := range map[int]bool{maxStops: true, maxStops + 1: false} {
		if out, err := stopList("stop", slices.Repeat([]string{"x"}, n)); (err == nil) != ok || ok && len(out) != n {
			t.Errorf("%d stops: %v", n, err)
		}
	}
	for n, ok := range map[int]bool{maxStopLen: true, maxStopLen + 1: false} {
		if _, err := stopList("stop", []string{strings.Repeat("x", n)}); (err == nil) != ok {
			t.Errorf("a stop of %d bytes: %v", n, err)
		}
	}
	if out, err := stopList("stop", []string{"", "a", ""}); err != nil || !slices.Equal(out, []string{"a"}) {
		t.Errorf("empty stops: %q, %v", out, err)
	}
	biases := func(n int) string {
		pairs := make([]string, n)
		for i := range pairs {
			pairs[i] = "[1,2]"
		}
		return "[" + strings.Join(pairs, ",") + "]"
	}
	last := tok.Size() - 1
	for body, ok := range map[string]bool{
		biases(maxBias): true, biases(maxBias + 1): false, `[[1]]`: false, `[[1,2,3]]`: false, `[[1,true]]`: false,
		fmt.Sprintf(`[[%d,false]]`, last): true, fmt.Sprintf(`[[%d,1]]`, last+1): false, `[[-1,1]]`: false, `[[0,1]]`: true,
		`{"0":1}`: true, `7`: false, `null`: true,
	} {
		got, err := logitBias(rawJSON(body), tok)
		if (err == nil) != ok || !ok && paramOf(err) != "logit_bias" {
			t.Errorf("logit_bias %.30s: %v", body, err)
		}
		if strings.Contains(body, "false") && ok && !math.IsInf(float64(got[int32(last)]), -1) {
			t.Errorf("logit_bias %s: %v", body, got)
		}
	}
	m, err := f.s.loaded("")
	if err != nil {
		t.Fatal(err)
	}
	lists := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("[1],", n), ",") + "]" }
	for body, want := range map[string]string{
		lists(maxPrompts): "", lists(maxPrompts + 1): "prompt", "[]": "prompt", "null": "prompt", "true": "prompt",
		fmt.Sprintf("[%d]", last): "", fmt.Sprintf("[0,%d]", last+1): "prompt[1]", "[-1]": "prompt[0]", `["a",[1]]`: "",
		`[[1],7]`: "prompt[1]", `{"prompt_string":"x","multimodal_data":[]}`: "",
		`{}`: "prompt.prompt_string",
	} {
		if _, err := m.prompts(t.Context(), "prompt", rawJSON(body)); paramOf(err) != want {
			t.Errorf("prompt %.40s: error %v, want it about %q", body, err, want)
		}
	}
}

// TestCountBorders: as many answers, alternatives, tools and pages as are allowed, and one more.
func TestCountBorders(t *testing.T) {
	f := start(t, options{template: hermesTemplate, engine: engineConfig(4)})
	chat := func(more dict) dict { return with(dict{"messages": user("x"), "max_tokens": 1}, more) }
	text := func(more dict) dict { return with(dict{"prompt": "x", "max_tokens": 1}, more) }
	for _, c := range []struct {
		path string
		body dict
		want string // the field that is refused; empty for none
	}{
		{"/v1/chat/completions", chat(dict{"n": 0}), "n"},
		{"/v1/chat/completions", chat(dict{"n": maxChoices + 1}), "n"},
		{"/v1/chat/completions", chat(dict{"n": maxChoices}), ""},
		{"/v1/completions", text(dict{"n": 0}), "n"},
		{"/v1/completions", text(dict{"n": maxChoices / 2, "prompt": []string{"x", "y"}}), ""},
		{"/v1/completions", text(dict{"n": maxChoices/2 + 1, "prompt": []string{"x", "y"}}), "n"},
		{"/completion", dict{"n_predict": 1, "prompt": slices.Repeat([]string{"x"}, maxChoices)}, ""},
		{"/completion", dict{"n_predict": 1, "prompt": slices.Repeat([]string{"x"}, maxChoices+1)}, "prompt"},
		{"/completion", dict{"n_predict": 1, "prompt": "x", "n_cmpl": maxChoices}, ""},
		{"/completion", dict{"n_predict": 1, "prompt": "x", "n_cmpl": 0}, "n_cmpl"},
		{"/v1/chat/completions", chat(dict{"logprobs": true, "top_logprobs": maxLogProbs}), ""},
		{"/v1/chat/completions", chat(dict{"logprobs": true, "top_logprobs": maxLogProbs + 1}), "top_logprobs"},
		{"/v1/chat/completions", chat(dict{"logprobs": true, "top_logprobs": -1}), "top_logprobs"},
		{"/v1/chat/completions", chat(dict{"logprobs": true}), ""},
		{"/v1/completions", text(dict{"logprobs": maxLogProbs + 1}), "logprobs"},
		{"/v1/messages", chat(dict{"max_tokens": 0}), "max_tokens"},
		{"/v1/messages", chat(dict{}), ""},
		{"/slots/0?action=erase", dict{"filename": strings.Repeat("x", 256)}, ""},
		{"/slots/0?action=erase", dict{"filename": strings.Repeat("x", 257)}, "filename"},
	} {
		status, b := f.do("POST", c.path, encode(t, c.body))
		if c.want == "" && status != http.StatusOK && !strings.Contains(c.path, "slots") {
			t.Errorf("%s %.60v: %d %s", c.path, c.body, status, b)
		}
		if got := textParam(b); c.want != "" && (status != http.StatusBadRequest || got != c.want) ||
			c.want == "" && got == "filename" {
			t.Errorf("%s %.60v: %d about %q, want %q", c.path, c.body, status, got, c.want)
		}
	}
	tool := func(i int) json.RawMessage {
		return rawJSON(fmt.Sprintf(`{"type":"function","function":{"name":"f%d"}}`, i))
	}
	var tools []json.RawMessage
	for i := range maxTools {
		tools = append(tools, tool(i))
	}
	if _, err := checkTools(tools); err != nil {
		t.Errorf("%d tools: %v", maxTools, err)
	}
	if _, err := checkTools(append(tools, tool(maxTools))); paramOf(err) != "tools" {
		t.Errorf("%d tools: %v", maxTools+1, err)
	}
	for i := range tools {
		tools[i] = rawJSON(fmt.Sprintf(`{"type":"function","name":"f%d"}`, i))
	}
	for _, more := range []int{0, 1} {
		last := []json.RawMessage{rawJSON(`{"type":"function","name":"g"}`)}
		q := responsesRequest{Tools: append(tools, last[:more]...)}
		if err := q.tools(newConversation("", nil, false)); (paramOf(err) == "tools") != (more > 0) {
			t.Errorf("%d functions: %v", maxTools+more, err)
		}
	}
	id := at(f.post("/v1/responses", dict{"input": "x", "max_output_tokens": 1}), "id").(string)
	for limit, status := range map[string]int{"1": 200, "100": 200, "0": 400, "101": 400, "x": 400} {
		if got, b := f.do("GET", "/v1/responses/"+id+"/input_items?limit="+limit, ""); got != status {
			t.Errorf("limit %s: %d %s", limit, got, b)
		}
	}
	for n, want := range map[int]int{-7: -1, -1: -1, 0: 0, 5: 5} {
		c := newConversation("", nil, false)
		if c.setBudget(n); c.budget != want || (c.thinking != nil) != (n == 0) {
			t.Errorf("a budget of %d: %d, thinking %v", n, c.budget, c.thinking)
		}
	}
}

// textParam is the field that an answer with an error is about.
func textParam(body []byte) string {
	var e struct{ Error struct{ Param string } }
	_ = json.Unmarshal(body, &e)
	return e.Error.Param
}

// TestWholeNumbers: numbers with a point are integers where they are, up to what a float holds exactly and eight in a
// request.
func TestWholeNumbers(t *testing.T) {
	for text, want := range map[string]any{"8.0": 8, "-8e0": -8, "9007199254740992.0": 1 << 53,
		"9007199254740994.0": nil, "8.5": nil, "1e400": nil, `"8"`: nil} {
		var got struct{ N int }
		if err := unmarshal([]byte(`{"n":`+text+`}`), &got); (err != nil) != (want == nil) || err == nil && got.N != want {
			t.Errorf("%s: %d, %v", text, got.N, err)
		}
	}
	for n, ok := range map[int]bool{maxIntegers: true, maxIntegers + 1: false} {
		var got []int
		err := unmarshal([]byte("["+strings.TrimSuffix(strings.Repeat("2.0,", n), ",")+"]"), &got)
		if (err == nil) != ok || ok && !slices.Equal(got, slices.Repeat([]int{2}, n)) {
			t.Errorf("%d numbers: %v, %v", n, got, err)
		}
	}
	for raw, want := range map[string]string{"0": "0s", "1.5": "1.5s", "-1": "-1ns", `"5m"`: "5m0s", `"2"`: "2s",
		"1e12": "27777h46m40s", "true": "keep_alive", `"x"`: "keep_alive", "null": "-"} {
		d, err := keepAlive(rawJSON(raw))
		got := paramOf(err)
		if err == nil && d == nil {
			got = "-"
		} else if err == nil {
			got = d.String()
		}
		if got != want {
			t.Errorf("keep_alive %s: %s, want %s", raw, got, want)
		}
	}
}

// TestShownTexts: what logs and headers show of clients is short and harmless.
func TestShownTexts(t *testing.T) {
	for _, c := range []struct {
		s    string
		most int
		want string
	}{{"äöü", 3, "äöü"}, {"äöüx", 3, "äöü…"}, {"", 0, ""}, {"x", 0, "…"}} {
		if got := cutText(c.s, c.most); got != c.want {
			t.Errorf("%q cut to %d: %q", c.s, c.most, got)
		}
	}
	exact := `"` + strings.Repeat("x", maxValue-2) + `"`
	longer := `"` + strings.Repeat("x", maxValue-1) + `"`
	for msg, want := range map[string]string{
		"field: " + exact: "field: " + exact, "field: " + longer: "field: " + longer[:maxValue] + `…"`,
		strings.Repeat("y", maxLogged):   strings.Repeat("y", maxLogged),
		strings.Repeat("y", maxLogged+1): strings.Repeat("y", maxLogged) + "…",
	} {
		if got := (&apiError{Message: msg}).logged(); got != want {
			t.Errorf("%.50s: logged as %.80s", msg, got)
		}
	}
	long := strings.Repeat("a", 64)
	for id, kept := range map[string]bool{long: true, long + "a": false, "": false, "a-b_9Z": true, "0": true, "9": true,
		"a": true, "z": true, "A": true, "Z": true, "a b": false, "/": false, ":": false, "@": false, "[": false,
		"`": false, "{": false, "a\n": false} {
		r := &http.Request{Header: http.Header{"X-Request-Id": {id}}}
		if got := requestID(r); (got == id) != kept || !kept && !strings.HasPrefix(got, "req_") {
			t.Errorf("id %q: %q", id, got)
		}
	}
	for addr, want := range map[string]string{"1.2.3.4:5": "1.2.3.4", "[::1]:5": "::1", "pipe": "pipe"} {
		if got := clientIP(&http.Request{RemoteAddr: addr}); got != want {
			t.Errorf("%s: %s", addr, got)
		}
	}
}

// TestMergedDeltas: neighbours of one kind and call are one delta, and calls that begin or end stay apart.
func TestMergedDeltas(t *testing.T) {
	ds := []delta{{kind: parse.Content, text: "a", call: -1}, {kind: parse.Content, text: "b", call: -1},
		{kind: parse.Reasoning, text: "c", call: -1}, {kind: parse.ToolBegin, call: 0},
		{kind: parse.ToolArguments, text: "d"},
		{kind: parse.ToolArguments, text: "e"}, {kind: parse.ToolEnd}, {kind: parse.ToolBegin, call: 1},
		{kind: parse.ToolBegin, call: 1}, {kind: parse.ToolArguments, text: "f", call: 1},
		{kind: parse.ToolArguments, text: "g", call: 2}, {kind: parse.ToolEnd, call: 2}, {kind: parse.ToolEnd, call: 2}}
	var got []string
	for _, d := range merge(ds) {
		got = append(got, fmt.Sprintf("%s %d to %d", d.text, d.call, d.end))
	}
	want := []string{"ab -1 to 2", "c -1 to 3", " 0 to 4", "de 0 to 6", " 0 to 7", " 1 to 8", " 1 to 9", "f 1 to 10",
		"g 2 to 11", " 2 to 12", " 2 to 13"}
	if !slices.Equal(got, want) {
		t.Errorf("merged %q, want %q", got, want)
	}
}

// TestPieceOfACall: which pieces of an upstream's calls belong together.
func TestPieceOfACall(t *testing.T) {
	zero, one := 0, 1
	call := func(index *int, id, name string) toolCallJSON {
		return toolCallJSON{Index: index, ID: id, Function: functionJSON{Name: name}}
	}
	open := call(&zero, "i", "f")
	for name, c := range map[string]struct {
		call toolCallJSON
		want bool
	}{
		"the same": {call(&zero, "i", "f"), true}, "without an id": {call(&zero, "", "f"), true},
		"another id": {call(&zero, "k", "f"), false}, "another name": {call(&zero, "i", "g"), false},
		"another index": {call(&one, "i", "f"), false}, "without an index": {call(nil, "i", "f"), false},
	} {
		if got := c.call.continues(&open); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if c := call(&zero, "i", "f"); c.continues(&toolCallJSON{ID: "i", Function: functionJSON{Name: "f"}}) {
		t.Error("one with an index continues one without")
	}
	p := &chunks{}
	var got []string
	for _, data := range []string{
		`{"choices":[]}`, `x`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"lost"}}]}}]}`,
		`{"choices":[{"delta":{"reasoning":"r","content":"c"}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"i","function":{"name":"f","arguments":"1"}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"i","function":{"name":"f","arguments":"2"}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"k","function":{"name":"f","arguments":"3"}}]}}]}`,
	} {
		for _, e := range p.Push(data) {
			got = append(got, fmt.Sprint(e.Kind, e.Name, e.Text))
		}
	}
	for _, e := range append(p.Close(), p.Close()...) {
		got = append(got, fmt.Sprint(e.Kind))
	}
	want := []string{fmt.Sprint(parse.Reasoning, "r"), fmt.Sprint(parse.Content, "c"), fmt.Sprint(parse.ToolBegin, "f"),
		fmt.Sprint(parse.ToolArguments, "1"), fmt.Sprint(parse.ToolArguments, "2"), fmt.Sprint(parse.ToolEnd),
		fmt.Sprint(parse.ToolBegin, "f"), fmt.Sprint(parse.ToolArguments, "3"), fmt.Sprint(parse.ToolEnd)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestAnswerBorder: an upstream's answer may be as large as a request may be.
func TestAnswerBorder(t *testing.T) {
	chunk := []byte(`{"choices":[{"delta":{"content":"12345"}}]}`)
	call := []byte(`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"12"}}]},` +
		`"finish_reason":"stop"}]}`)
	g := &remoteGeneration{most: 5 + 1 + 3 + itemCost + 1, begun: time.Now()}
	if err := errors.Join(g.note(chunk), g.note(call)); err != nil {
		t.Errorf("an answer of the size that is allowed: %v", err)
	}
	if g.finish != "stop" || !g.said || g.count != 2 || g.size != g.most {
		t.Errorf("noted %+v", g)
	}
	if err := g.note([]byte(`{"choices":[]}`)); err == nil {
		t.Error("an answer that is too large is taken")
	}
	g = &remoteGeneration{most: 1 << 20, begun: time.Now()}
	if err := g.note([]byte(`{"choices":[{"delta":{"content":""}}]}`)); err != nil || g.said {
		t.Errorf("a chunk without text: %v, said %t", err, g.said)
	}
	for _, bad := range []string{`{`, `{"error":{"message":"m"}}`} {
		if g.note([]byte(bad)) == nil {
			t.Errorf("%s is an answer", bad)
		}
	}
}

// TestCompiledBorders: so many grammars are kept, and one more drops those before; the same key is compiled once.
func TestCompiledBorders(t *testing.T) {
	gs := &grammars{compiled: map[string]*grammar.Grammar{}}
	compiled := 0
	get := func(key string) *grammar.Grammar {
		t.Helper()
		g, err := gs.compile(key, func() (*grammar.Grammar, error) {
			compiled++
			return grammar.CompileGBNF(`root ::= "x"`)
		})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	first := get("0")
	size := gs.bytes - 1
	for i := 1; i < maxGrammars; i++ {
		get(fmt.Sprint(i))
	}
	if get("0") != first || compiled != maxGrammars || len(gs.compiled) != maxGrammars {
		t.Errorf("%d compiled, %d kept", compiled, len(gs.compiled))
	}
	get("more")
	if len(gs.compiled) != 1 || gs.bytes != size+len("more") {
		t.Errorf("one more than is kept: %d, %d bytes", len(gs.compiled), gs.bytes)
	}
	// By size: a key that fills the room exactly, and one byte more.
	for extra, kept := range map[int]int{0: 2, 1: 1} {
		gs.compiled, gs.bytes = map[string]*grammar.Grammar{}, 0
		get("0")
		get(strings.Repeat("k", maxGrammarBytes-2*size-1+extra))
		if len(gs.compiled) != kept {
			t.Errorf("%d bytes more than there is room: %d grammars are kept", extra, len(gs.compiled))
		}
	}
	failed := errors.New("failed")
	if _, err := gs.compile("bad", func() (*grammar.Grammar, error) { return nil, failed }); err != failed ||
		gs.compiled["bad"] != nil {
		t.Errorf("error %v", err)
	}
	// Another request compiled the same meanwhile: both use one.
	var other *grammar.Grammar
	mine, err := gs.compile("both", func() (*grammar.Grammar, error) {
		other = get("both")
		return grammar.CompileGBNF(`root ::= "x"`)
	})
	if err != nil || mine != other || gs.compiled["both"] != other {
		t.Errorf("two grammars of one key, error %v", err)
	}
}

// TestMeterPace: tokens per second are averaged over ten to twenty seconds, and begin anew with a model that was loaded
// anew.
func TestMeterPace(t *testing.T) {
	m := newMeter(time.Now(), nil, nil)
	s := &engine.Snapshot{Started: time.Now().Add(-20 * time.Second)}
	s.Stats.Tokens = 90
	s.Slots = []engine.Slot{{Busy: true, State: engine.State{Generated: 10}}, {State: engine.State{Generated: 1000}}}
	near := func(got, want float64) bool { return math.Abs(got-want) < want/20 }
	if got := m.pace("m", s); !near(got, 5) {
		t.Errorf("100 tokens in 20 seconds: %g per second", got)
	}
	first := *m.marks["m"]
	if m.pace("m", s); *m.marks["m"] != first {
		t.Error("a second look moved the marks")
	}
	m.marks["m"][1].at = time.Now().Add(-paceTime)
	s.Stats.Tokens = 190
	if got := m.pace("m", s); !near(got, 10) || m.marks["m"][1].tokens != 200 {
		t.Errorf("100 tokens in 10 seconds: %g per second", got)
	}
	if m.marks["m"][0].tokens != 100 {
		t.Errorf("the marks are %v", m.marks["m"])
	}
	s.Stats.Tokens, s.Started = 10, time.Now().Add(-2*time.Second)
	if got := m.pace("m", s); !near(got, 10) {
		t.Errorf("loaded anew, 20 tokens in 2 seconds: %g per second", got)
	}
	if got := m.pace("other", s); !near(got, 10) || len(m.marks) != 2 {
		t.Errorf("another model: %g per second", got)
	}
}

// TestStoredAgainstAModel: responses and items are found while they are neither too old nor too many, those used last
// stay, and none is in the way of another owner's.
func TestStoredAgainstAModel(t *testing.T) {
	type entry struct {
		key  ownedID
		size int64
		used time.Time
		ids  []ownedID
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 17))
		now := time.Unix(0, 0)
		m := newMemory(6000, time.Hour)
		m.now = func() time.Time { return now }
		var kept []*entry // the one used last in front
		items := map[ownedID]*entry{}
		drop := func(e *entry) {
			kept = slices.DeleteFunc(kept, func(x *entry) bool { return x == e })
			for _, id := range e.ids {
				if items[id] == e {
					delete(items, id)
				}
			}
		}
		trim := func() {
			for len(kept) > 0 {
				bytes := int64(0)
				for _, e := range kept {
					bytes += e.size
				}
				last := kept[len(kept)-1]
				if bytes <= m.limit && now.Sub(last.used) <= time.Hour {
					return
				}
				drop(last)
			}
		}
		use := func(e *entry) {
			kept = append([]*entry{e}, slices.DeleteFunc(kept, func(x *entry) bool { return x == e })...)
			e.used = now
		}
		find := func(id ownedID) *entry {
			for _, e := range kept {
				if e.key == id {
					return e
				}
			}
			return nil
		}
		n := 0
		for step := range 400 {
			owner := []string{"a", "b"}[r.IntN(2)]
			now = now.Add(time.Duration(r.IntN(15)) * time.Minute)
			id := ownedID{owner, fmt.Sprint("r", r.IntN(n+1))}
			item := ownedID{owner, fmt.Sprint("i", r.IntN(6))}
			fail := func(what string, args ...any) {
				t.Helper()
				t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprintf(what, args...))
			}
			switch r.IntN(6) {
			case 0, 1, 2:
				n++
				resp := &responseJSON{ID: fmt.Sprint("r", n), Output: []outputItem{}}
				var input []json.RawMessage
				e := &entry{key: ownedID{owner, resp.ID}, used: now}
				for range r.IntN(3) {
					it := fmt.Sprint("i", r.IntN(6))
					if r.IntN(2) == 0 {
						resp.Output = append(resp.Output, outputItem{Type: "message", ID: it})
					} else {
						input = append(input, rawJSON(fmt.Sprintf(`{"role":"user","id":%q,"content":%q}`, it,
							strings.Repeat("x", r.IntN(2500)))))
					}
				}
				input = append(input, rawJSON(`{"type":"item_reference","id":"i0"}`)) // which is not the item itself
				body, err := json.Marshal(resp)
				if err != nil {
					t.Fatal(err)
				}
				e.size = int64(len(body)) + 1 + itemCost
				for _, raw := range input {
					e.size += int64(len(raw)) + itemCost
					if i, reference := itemID(raw); !reference {
						e.ids = append(e.ids, ownedID{owner, i})
					}
				}
				for _, it := range resp.Output {
					raw, err := json.Marshal(it)
					if err != nil {
						t.Fatal(err)
					}
					e.size += int64(len(raw)) + itemCost
					e.ids = append(e.ids, ownedID{owner, it.ID})
				}
				ok, err := putResponse(m, owner, resp, input)
				if err != nil || ok != (e.size <= m.limit) {
					fail("a response of %d bytes is kept: %t, %v", e.size, ok, err)
				}
				if ok {
					kept = append([]*entry{e}, kept...)
					for _, id := range e.ids {
						items[id] = e
					}
					trim()
				}
			case 3:
				trim()
				e := find(id)
				if got := m.get(id); (got != nil) != (e != nil) || got != nil && got.key != id {
					fail("response %v is there: %t, want %t", id, got != nil, e != nil)
				}
				if e != nil {
					use(e)
				}
			case 4:
				trim()
				e := items[item]
				if got := m.item(item); (got != nil) != (e != nil) {
					fail("item %v is there: %t, want %t", item, got != nil, e != nil)
				}
				if e != nil {
					use(e)
				}
			case 5:
				e := find(id)
				if got := m.remove(id); got != (e != nil) {
					fail("response %v was there: %t, want %t", id, got, e != nil)
				}
				if e != nil {
					drop(e)
				}
			}
			bytes := int64(0)
			for _, e := range kept {
				bytes += e.size
			}
			if m.bytes != bytes || m.recent.Len() != len(kept) || len(m.byID) != len(kept) || len(m.items) != len(items) {
				fail("%d bytes, %d responses, %d items; want %d, %d, %d", m.bytes, m.recent.Len(), len(m.items), bytes,
					len(kept),
					len(items))
			}
			at := m.recent.Front()
			for i, e := range kept {
				if at.Value.(*stored).key != e.key {
					fail("place %d has %v, want %v", i, at.Value.(*stored).key, e.key)
				}
				at = at.Next()
			}
		}
	}
}

// TestHeldBytes: all bodies together may take as much as is allowed, and give it back when they are answered.
func TestHeldBytes(t *testing.T) {
	s := New(Config{MaxHeld: 100, MaxBody: 100})
	read := make(chan error)
	goOn := make(chan struct{})
	h := s.limitHeld(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
		<-goOn
	}))
	done := make(chan struct{})
	send := func(n int) error {
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", bytes.NewReader(make([]byte, n))))
			done <- struct{}{}
		}()
		return <-read
	}
	if err := send(60); err != nil {
		t.Errorf("60 bytes: %v", err)
	}
	if err := send(40); err != nil {
		t.Errorf("40 more: %v", err)
	}
	if err := send(1); !errors.Is(err, errHeld) {
		t.Errorf("one more: %v", err)
	}
	close(goOn)
	for range 3 {
		<-done
	}
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
}
