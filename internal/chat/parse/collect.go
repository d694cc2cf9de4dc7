package parse

import "strings"

// Call is a complete tool call.
type Call struct {
	Name      string
	Arguments string // JSON object
}

// Result is a whole response, taken apart.
type Result struct {
	Content   string
	Reasoning string
	Calls     []Call
}

// Collector adds events up to a Result.
type Collector struct {
	content, reasoning, args strings.Builder
	name                     string
	calls                    []Call
}

// Add takes events in order.
func (c *Collector) Add(events ...Event) {
	for _, e := range events {
		switch e.Kind {
		case Content:
			c.content.WriteString(e.Text)
		case Reasoning:
			c.reasoning.WriteString(e.Text)
		case ToolBegin:
			c.name = e.Name
			c.args.Reset()
		case ToolArguments:
			c.args.WriteString(e.Text)
		case ToolEnd:
			c.calls = append(c.calls, Call{c.name, c.args.String()})
		case ToolAbort:
			c.args.Reset()
		}
	}
}

// Result returns what was collected so far.
func (c *Collector) Result() Result {
	return Result{c.content.String(), c.reasoning.String(), c.calls}
}
