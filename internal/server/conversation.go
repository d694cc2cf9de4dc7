package server

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"strobe/internal/chat"
	"strobe/internal/dialog"
)

// conversation is what a client asks for, in the words of no protocol.
type conversation struct {
	model    string
	messages []chat.Message
	tools    []json.RawMessage // in OpenAI's shape
	choice   toolChoice
	oneCall  bool            // at most one tool call
	format   *format         // of the answer; nil for free text
	thinking *bool           // nil leaves it to the template
	budget   int             // most tokens of thinking; < 0 for no limit
	kwargs   map[string]any  // template variables
	raw      bool            // leave reasoning and tool calls in the text
	noTurn   bool            // do not open the assistant's turn
	sampling *samplingFields // as the client gave them
	stops    []string        // besides those in sampling
	logProbs *int            // how many alternatives of each token to return; nil returns no log probabilities
	choices  int             // answers to each prompt
	stream   bool            // the answer is shown while it is generated
	noShift  bool            // the answer ends when the context is full, though the server would forget some of it

	imageRows    int                          // tokens an image may have; 0 leaves it open
	fetch        func(string) ([]byte, error) // gets images at URLs; nil refuses them
	continueLast *bool                        // the assistant's last message is continued (nil and true), or is complete
	keepAlive    *time.Duration               // for how long the model stays loaded afterwards; nil leaves it open
	done         <-chan struct{}              // closed when the answer is no longer wanted; its prompt is incomplete then
	// accepted is called when the generations are queued, before anything is sent; nil is not.
	accepted func() error
	// prompts returns the prompts of a request that has no messages.
	prompts func(*model) ([]*dialog.Prompt, error)
}

// newConversation returns a conversation with one answer and no limit on reasoning.
func newConversation(model string, sampling *samplingFields, stream bool) *conversation {
	return &conversation{model: model, sampling: sampling, stream: stream, choices: 1, budget: -1}
}

// thinkingFields are the ways to ask for more, less or no reasoning.
type thinkingFields struct {
	Kwargs          map[string]any `json:"chat_template_kwargs"`
	EnableThinking  *bool          `json:"enable_thinking"`
	ReasoningEffort string         `json:"reasoning_effort"`
	Verbosity       string         `json:"verbosity"`
	ReasoningFormat string         `json:"reasoning_format"` // "none" leaves reasoning in the text
	ReasoningBudget *int           `json:"reasoning_budget_tokens"`
	ThinkingBudget  *int           `json:"thinking_budget_tokens"`
}

// apply sets how a conversation reasons.
func (f *thinkingFields) apply(c *conversation) error {
	c.kwargs = f.Kwargs
	c.thinking = f.EnableThinking
	if f.ReasoningEffort != "" {
		if f.ReasoningEffort == "none" {
			off := false
			c.thinking = &off
		}
	}
	// Templates that know them follow such wishes.
	for name, word := range map[string]string{"reasoning_effort": f.ReasoningEffort, "verbosity": f.Verbosity} {
		if _, given := c.kwargs[name]; !given && word != "" {
			kwargs := map[string]any{name: word}
			maps.Copy(kwargs, c.kwargs)
			c.kwargs = kwargs
		}
	}
	if v, given := c.kwargs["enable_thinking"]; given {
		on, ok := v.(bool)
		if !ok {
			return invalid("chat_template_kwargs.enable_thinking", "must be true or false")
		}
		c.thinking = &on
	}
	switch f.ReasoningFormat {
	case "", "auto", "deepseek":
	case "none":
		c.raw = len(c.tools) == 0
	default:
		return invalid("reasoning_format", "%q is none of auto, deepseek and none", f.ReasoningFormat)
	}
	for _, b := range []*int{f.ReasoningBudget, f.ThinkingBudget} {
		if b != nil {
			c.setBudget(*b)
		}
	}
	return nil
}

// setBudget limits reasoning to a number of tokens; a negative one is no limit.
func (c *conversation) setBudget(n int) {
	c.budget = max(n, -1)
	if n == 0 && c.thinking == nil {
		off := false
		c.thinking = &off
	}
}

// wantLogProbs makes an answer have log probabilities: of each token, and of n alternatives to it.
func (c *conversation) wantLogProbs(name string, n int) error {
	if n < 0 || n > maxLogProbs {
		return invalid(name, "%d is not between 0 and %d", n, maxLogProbs)
	}
	c.logProbs = &n
	return nil
}

// toolChoice says whether the model may, must or must not call tools.
type toolChoice struct {
	none, required bool
	name           string // the only one to call
	// allowed are the tools to choose from; nil is all of them.
	allowed []string
}

// offered are the tools that the choice leaves; the model sees no others.
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
		var t struct {
			Type     string `json:"type"`
			Function *struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
			} `json:"function"`
		}
		if err := decodeFields(raw, at, &t); err != nil {
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
