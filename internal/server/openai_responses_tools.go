package server

import (
	"encoding/json"
	"slices"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
)

// clientTool is a kind of tool that the client runs and whose shape the API fixes. The model sees a function of that
// shape; its calls are items of a type of their own.
type clientTool struct {
	name        string // what the model calls it; "" for the name in the request
	description string
	parameters  string // schema of what the model writes
	call        string // type of the item of a call
	id          string // how ids of calls begin
	field       string // of the item that has what the model wrote
	more        string // JSON members that the field has besides; "" for none
}

// clientTools are these tools by their type in requests.
var clientTools = map[string]clientTool{
	"custom": {parameters: `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],` +
		`"additionalProperties":false}`, call: "custom_tool_call", id: "ctc_", field: "input"},
	"local_shell": {name: "local_shell", description: "Runs a command on the user's machine.",
		parameters: `{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},` +
			`"description":"the program and its arguments"},"working_directory":{"type":"string"},` +
			`"timeout_ms":{"type":"integer"},"env":{"type":"object","additionalProperties":{"type":"string"}}},` +
			`"required":["command"],"additionalProperties":false}`,
		call: "local_shell_call", id: "lsh_", field: "action", more: `"type":"exec"`},
	"shell": {name: "shell", description: "Runs shell commands on the user's machine, one after another.",
		parameters: `{"type":"object","properties":{"commands":{"type":"array","items":{"type":"string"}},` +
			`"timeout_ms":{"type":"integer"},"max_output_length":{"type":"integer"}},"required":["commands"],` +
			`"additionalProperties":false}`,
		call: "shell_call", id: "sh_", field: "action"},
	"apply_patch": {name: "apply_patch", description: "Creates, changes or deletes a file. diff is in the V4A format: " +
		"lines that begin with a space, + or -, after @@ lines.",
		parameters: `{"type":"object","properties":{"type":{"enum":["create_file","update_file","delete_file"]},` +
			`"path":{"type":"string"},"diff":{"type":"string"}},"required":["type","path"],"additionalProperties":false}`,
		call: "apply_patch_call", id: "apc_", field: "operation"},
	"computer_use_preview": {name: "computer", description: "Uses the user's screen, mouse and keyboard.",
		parameters: `{"type":"object","properties":{"type":{"enum":["click","double_click","drag","keypress","move",` +
			`"screenshot","scroll","type","wait"]},"x":{"type":"integer"},"y":{"type":"integer"},` +
			`"button":{"enum":["left","right","wheel","back","forward"]},"text":{"type":"string"},` +
			`"keys":{"type":"array","items":{"type":"string"}},"scroll_x":{"type":"integer"},"scroll_y":{"type":"integer"},` +
			`"path":{"type":"array","items":{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"integer"}},` +
			`"required":["x","y"]}}},"required":["type"],"additionalProperties":false}`,
		call: "computer_call", id: "cu_", field: "action"},
}

// hostedTools run on OpenAI's servers. They are left out, so that clients which always offer them work.
var hostedTools = []string{"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation",
	"tool_search"}

// hosted reports whether a type is one of these; some have a date behind.
func hosted(kind string) bool {
	return slices.ContainsFunc(hostedTools, func(s string) bool { return kind == s || strings.HasPrefix(kind, s+"_20") })
}

// customFormat is what the input of a custom tool has to look like.
type customFormat struct {
	Type       string `json:"type"`
	Syntax     string `json:"syntax"`
	Definition string `json:"definition"`
}

// schema is the function's schema of a custom tool whose input has a format.
func (f *customFormat) schema(at string) (json.RawMessage, error) {
	switch {
	case f == nil || f.Type == "" || f.Type == "text":
		return json.RawMessage(clientTools["custom"].parameters), nil
	case f.Type != "grammar":
		return nil, invalid(at+".type", "%q is neither text nor grammar", f.Type)
	case f.Syntax != "regex":
		return nil, invalid(at+".syntax", "%q is not supported; regex is", f.Syntax)
	}
	pattern, err := json.Marshal("^(?:" + f.Definition + ")$")
	if err != nil {
		return nil, err
	}
	return json.RawMessage(`{"type":"object","properties":{"input":{"type":"string","pattern":` + string(pattern) +
		`}},"required":["input"],"additionalProperties":false}`), nil
}

// fill puts what the model wrote into the item of a call. Arguments that are no object are kept as text.
func (t *clientTool) fill(it *outputItem, args string) {
	body := objectOr(args)
	if t.field == "input" {
		var o struct{ Input *string }
		if json.Unmarshal(body, &o) != nil || o.Input == nil {
			o.Input = &args
		}
		it.Input = o.Input
		return
	}
	if t.more != "" {
		comma := ","
		if strings.TrimSpace(string(body[1:])) == "}" {
			comma = ""
		}
		body = json.RawMessage("{" + t.more + comma + string(body[1:]))
	}
	switch t.field {
	case "operation":
		it.Operation = body
	default:
		it.Action = body
	}
	if t.call == "computer_call" {
		it.Checks = &[]any{}
	}
}

// clientCall adds the call of a tool whose shape the API fixes to the output. It is shown when it is complete.
func (a *responseAnswer) clientCall(t clientTool, c *toolCall) {
	it := outputItem{Type: t.call, ID: newID(t.id), CallID: c.id}
	if t.field == "input" {
		name := a.q.names[c.name]
		it.Name, it.Namespace, it.Input = name.name, name.namespace, new(string)
	}
	a.begin(parse.ToolBegin, it)
	open := a.item()
	t.fill(open, c.args.String())
	if t.field == "input" {
		const event = "response.custom_tool_call_input"
		a.event(event+".delta", a.place(map[string]any{"delta": *open.Input}))
		a.event(event+".done", a.place(map[string]any{"input": *open.Input}))
	}
	a.open = false
	open.Status = "completed"
	a.event("response.output_item.done", map[string]any{"output_index": len(a.base.Output) - 1, "item": open})
}

// clientCallMessage is the call of such a tool in the input, as the model made it. ok is false for other items.
func (it *inputItem) clientCallMessage(kind string) (call chat.ToolCall, ok bool, err error) {
	for _, t := range clientTools {
		if t.call != kind {
			continue
		}
		call = chat.ToolCall{ID: it.CallID, Name: t.name}
		switch t.field {
		case "input":
			call.Name = toolName{it.Namespace, it.Name}.flat()
			call.Arguments, err = json.Marshal(map[string]string{"input": it.Input})
		case "operation":
			call.Arguments = it.Operation
		default:
			call.Arguments = it.Action
		}
		if kindOf(call.Arguments) != "object" {
			call.Arguments = json.RawMessage("{}")
		}
		return call, true, err
	}
	return call, false, nil
}

// isClientOutput reports whether an item is the result of such a tool.
func isClientOutput(kind string) bool {
	for _, t := range clientTools {
		if kind == t.call+"_output" {
			return true
		}
	}
	return false
}

// result is what a tool returned: text, parts, or an object that is shown as it is.
func (it *inputItem) result(at string) (any, error) {
	switch kindOf(it.Output) {
	case "object":
		var o struct{ Type string }
		if json.Unmarshal(it.Output, &o) == nil && o.Type == "computer_screenshot" {
			return itemContent(json.RawMessage("["+string(it.Output)+"]"), at, true)
		}
		return string(it.Output), nil
	case "array":
		var parts []struct{ Type string }
		if json.Unmarshal(it.Output, &parts) == nil && len(parts) > 0 && parts[0].Type == "" {
			return string(it.Output), nil // of shell: stdout, stderr and how each command ended
		}
	}
	content, err := itemContent(it.Output, at, true)
	if text, ok := content.(string); ok && it.Status == "failed" {
		content = "Error: " + text
	}
	return content, err
}
