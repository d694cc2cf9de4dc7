package server

import (
	"encoding/json"
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

	continueLast *bool           // the assistant's last message is continued (nil and true), or is complete
	keepAlive    *time.Duration  // for how long the model stays loaded afterwards; nil leaves it open
	done         <-chan struct{} // closed when the answer is no longer wanted; its prompt is incomplete then
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
