package chat

import (
	"encoding/json"
	"strings"
	"testing"

	"strobe/internal/testkit"
)

// TestHarmony: what a template in the manner of gpt-oss's would leave out or refuse is said in another way: later
// messages of the system, all calls but the first, text beside reasoning, tools without a description.
func TestHarmony(t *testing.T) {
	tmpl, err := ForModel(testkit.HarmonyTemplate)
	if err != nil {
		t.Fatal(err)
	}
	var msgs []Message
	if err := json.Unmarshal([]byte(`[{"role":"system","content":"S1"},{"role":"developer","content":"S2"},
		{"role":"user","content":"U1"},
		{"role":"assistant","content":"Look.","reasoning_content":"Hm","tool_calls":[
			{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
			{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}},
			{"id":"c","type":"function","function":{"name":"h","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"b","content":"rb"},{"role":"tool","tool_call_id":"a","content":"ra"},
		{"role":"tool","tool_call_id":"c","content":"rc"},{"role":"tool","tool_call_id":"z","content":"rz"},
		{"role":"assistant","content":"A1"},{"role":"user","content":"U2"},
		{"role":"assistant","content":null,"tool_calls":[
			{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"g","arguments":"{}"}}]},
		{"role":"tool","content":"1"},{"role":"tool","content":"2"}]`), &msgs); err != nil {
		t.Fatal(err)
	}
	tools := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f","parameters":{}}}`)}
	got, err := tmpl.Render(msgs, Options{AddGenerationPrompt: true, Tools: tools,
		Extra: map[string]any{"reasoning_effort": "high"}})
	if err != nil {
		t.Fatal(err)
	}
	call := func(name, args, result string) string {
		return "<|start|>assistant to=functions." + name + "<|channel|>commentary json<|message|>" + args + "<|call|>" +
			"<|start|>functions." + name + " to=assistant<|channel|>commentary<|message|>\"" + result + "\"<|end|>"
	}
	want := "<|start|>system<|message|>Reasoning: high\nChannels: analysis, commentary, final<|end|>" +
		"<|start|>developer<|message|>S1\n\nS2\n// \ntype f = {}<|end|>" +
		"<|start|>user<|message|>U1<|end|>" +
		"<|start|>assistant<|channel|>analysis<|message|>Hm\n\nLook.<|end|>" +
		call("f", `{"x": 1}`, "ra") + call("g", "{}", "rb") + call("h", "{}", "rc") +
		"<|start|>functions.h to=assistant<|channel|>commentary<|message|>\"rz\"<|end|>" +
		"<|start|>assistant<|channel|>final<|message|>A1<|end|>" +
		"<|start|>user<|message|>U2<|end|>" + call("f", "{}", "1") + call("g", "{}", "2") +
		"<|start|>assistant"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", strings.ReplaceAll(got, "<|start|>", "\n<|start|>"),
			strings.ReplaceAll(want, "<|start|>", "\n<|start|>"))
	}
}
