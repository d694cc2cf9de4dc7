package server

import (
	"encoding/json"

	"strobe/internal/chat"
)

// hasFunctions reports whether a request has functions, as OpenAI's API had before it had tools.
func (q *chatRequest) hasFunctions() bool { return len(q.Functions) > 0 }

// functionsToTools turns functions into tools.
func (q *chatRequest) functionsToTools() error {
	if len(q.Tools) > 0 {
		return invalid("functions", "cannot be used with tools")
	}
	for i, raw := range q.Functions {
		if kindOf(raw) != "object" {
			return invalid("functions"+index(i), "must be an object")
		}
		tool, err := json.Marshal(struct {
			Type     string          `json:"type"`
			Function json.RawMessage `json:"function"`
		}{"function", raw})
		if err != nil {
			return err
		}
		q.Tools = append(q.Tools, tool)
	}
	q.ToolChoice = q.FunctionCall // a word, or an object with the name
	return nil
}

// functionCallToToolCall turns the function call of a message into a tool call, and its result into a tool's.
func functionCallToToolCall(m *chat.Message, at string) error {
	if m.Role == "function" {
		m.Role = "tool"
	}
	for _, f := range m.Extra {
		if f.Key != "function_call" || m.Role != "assistant" || len(m.ToolCalls) > 0 || kindOf(f.Value) == "null" {
			continue
		}
		var call struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if err := decodeJSON(f.Value, at+".function_call", &call); err != nil {
			return err
		}
		if call.Name == "" {
			return invalid(at+".function_call.name", "is missing")
		}
		m.ToolCalls = []chat.ToolCall{{Name: call.Name, Arguments: call.Arguments}}
	}
	return nil
}
