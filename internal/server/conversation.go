package server

import (
	"encoding/json"

	"strobe/internal/chat"
)

// conversation is what the chat protocols have in common.
type conversation struct {
	messages []chat.Message
	tools    []json.RawMessage // in OpenAI's shape
	choice   toolChoice
	oneCall  bool            // at most one tool call
	format   *format         // of the answer; nil for free text
	thinking *bool           // nil leaves it to the template
	budget   int             // most tokens of thinking; < 0 for no limit
	kwargs   map[string]any  // template variables
	raw      bool            // leave reasoning and tool calls in the text
	goOn     *bool           // whether the assistant's last message is continued; nil is yes
	noTurn   bool            // do not open the assistant's turn
	sampling *samplingFields // as the client gave them
	done     <-chan struct{} // closed when nobody wants the answer any more; its prompt is incomplete then
}

// thinkingFields are the ways to ask for more, less or no reasoning.
type thinkingFields struct {
	Kwargs          map[string]any `json:"chat_template_kwargs"`
	EnableThinking  *bool          `json:"enable_thinking"`
	ReasoningEffort string         `json:"reasoning_effort"`
	ReasoningFormat string         `json:"reasoning_format"` // "none" leaves reasoning in the text
	ReasoningBudget *int           `json:"reasoning_budget_tokens"`
	ThinkingBudget  *int           `json:"thinking_budget_tokens"`
}

// apply sets how a conversation reasons.
func (f *thinkingFields) apply(c *conversation) error {
	c.kwargs, c.budget = f.Kwargs, -1
	c.thinking = f.EnableThinking
	if f.ReasoningEffort != "" {
		if f.ReasoningEffort == "none" {
			off := false
			c.thinking = &off
		}
		if _, given := c.kwargs["reasoning_effort"]; !given {
			kwargs := map[string]any{"reasoning_effort": f.ReasoningEffort}
			for k, v := range c.kwargs {
				kwargs[k] = v
			}
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
