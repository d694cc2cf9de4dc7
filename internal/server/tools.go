package server

import (
	"encoding/json"
	"slices"
)

// toolChoice says whether the model may, must or must not call tools.
type toolChoice struct {
	none, required bool
	name           string // the only one to call
	// allowed are the tools to choose from; nil is all of them.
	allowed []string
}

// offered are the tools that the choice leaves, which are all the model hears of.
func (c *toolChoice) offered(tools []json.RawMessage) []json.RawMessage {
	if c.allowed == nil {
		return tools
	}
	return slices.DeleteFunc(slices.Clone(tools), func(raw json.RawMessage) bool {
		return !slices.Contains(c.allowed, nameOf(raw))
	})
}

// nameOf is the name of a tool, "" if it has none.
func nameOf(tool json.RawMessage) string {
	var t struct{ Function struct{ Name string } }
	if json.Unmarshal(tool, &t) != nil {
		return ""
	}
	return t.Function.Name
}

// checkTools makes sure that every tool is a function with a name.
func checkTools(tools []json.RawMessage) ([]json.RawMessage, error) {
	if len(tools) > maxTools {
		return nil, invalid("tools", "has %d entries; at most %d are allowed", len(tools), maxTools)
	}
	for i, raw := range tools {
		at := "tools" + index(i)
		if kindOf(raw) != "object" {
			return nil, invalid(at, "must be an object")
		}
		var t struct {
			Type     string `json:"type"`
			Function *struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
			} `json:"function"`
		}
		if err := decodeJSON(raw, at, &t); err != nil {
			return nil, err
		}
		if t.Type != "" && t.Type != "function" {
			return nil, invalid(at+".type", "%q is not supported; only function is", t.Type)
		}
		if t.Function == nil || t.Function.Name == "" {
			return nil, invalid(at+".function.name", "is missing")
		}
		if k := kindOf(t.Function.Parameters); k != "null" && k != "object" {
			return nil, invalid(at+".function.parameters", "must be an object")
		}
	}
	return tools, nil
}

// functionTool is a tool in OpenAI's shape, its keys in the order templates were trained with.
func functionTool(name, description string, schema json.RawMessage) (json.RawMessage, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	return json.Marshal(struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{"function", function{name, description, schema}})
}

type toolCallJSON struct {
	Index    *int         `json:"index,omitempty"` // in deltas only
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionJSON `json:"function"`
}

type functionJSON struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}
