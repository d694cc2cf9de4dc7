// Package parse takes a model's output apart while it streams: reasoning,
// answer and tool calls.
//
// A [Parser] reads text in pieces of any size and returns [Event]s:
//
//	p := parse.For(template, tools, parse.ThinkingOpen(prompt))
//	for piece := range output {
//		handle(p.Push(piece))
//	}
//	handle(p.Close())
//
// It decides byte by byte, so how the text was cut never changes the result
// beyond how deltas are divided. Text that could still turn out to be a marker
// is held back. What looks like a tool call but is none (broken syntax, the
// output ending in the middle, an example inside a fenced code block) is
// ordinary content; there are no errors. A call of an unknown function
// is a call: the client decides what to answer. A complete call ends the
// reasoning it stands in.
//
// The families differ in their tool calls: JSON in tags (hermes.go), JSON
// without any or in a list (the same), functions and parameters as tags
// (qwenxml.go), Gemma 4's own notation (gemma4.go), Mistral's (mistral.go),
// DeepSeek's (deepseek.go). All that gpt-oss says is messages with headers (harmony.go). The text must contain
// the special tokens that mark them. A Parser belongs to one response and one
// goroutine.
package parse

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Kind of an event.
type Kind uint8

const (
	Content       Kind = iota // Text is a piece of the answer
	Reasoning                 // Text is a piece of the thinking
	ToolBegin                 // a call of the tool Name starts
	ToolArguments             // Text is a piece of the call's arguments, a JSON object
	ToolEnd                   // the call is complete
	ToolAbort                 // the call is none after all; its text follows as content
)

func (k Kind) String() string {
	return [...]string{"content", "reasoning", "tool begin", "tool arguments", "tool end", "tool abort"}[k]
}

// Event is a step of the output.
type Event struct {
	Kind  Kind
	Text  string
	Name  string // of the tool, on ToolBegin
	Index int    // of the call, counted from 0; aborted calls give their number back
}

// call parses one tool call, byte by byte, after its opening marker.
type call interface {
	// feed takes the next byte. Once the call is complete but for its closing
	// marker it has called settle; what does not fit after that ends the call
	// and is read again.
	feed(c byte) status
}

type status uint8

const (
	more status = iota
	done
	bad // the byte just fed does not belong to a call
)

// Parser takes apart the output of one response.
type Parser struct {
	// Whole holds a call's events back until it is complete, so that an
	// unfinished one never begins. Set it before the first Push.
	Whole bool

	tools   map[string]*schema
	open    string // marker that opens a tool call, "" without tools
	bare    string // marker of a call that lacks its opening marker, "" where there is none
	shut    string // closing marker, dropped after a bare call
	opener  string // what a call begins with that is written by force
	firsts  string // first bytes of all markers
	alone   bool   // a call without a marker stands at the beginning of the answer, or after another one
	lists   bool   // the opening marker is followed by a list of calls
	newCall func(p *Parser, bare bool) call
	harmony *harmony // reads everything, for gpt-oss; nil for others

	thinkStart, thinkEnd string // "" when the model does not think in the text
	anywhere             bool   // thinking may start after content
	drop                 []string

	events []Event
	kind   Kind   // of delta
	delta  []byte // text of the event being gathered
	held   []byte // may become a marker
	ws     []byte // white space whose fate the next text decides
	fence  fence

	thinking  bool
	fresh     bool // nothing but thinking and calls since the start or the last of them
	answered  bool // some content was emitted
	block     bool // a think block or call stands before: space after it is layout
	afterBare bool

	list    listState
	listRaw []byte // of a list, until its first call

	call    call
	unsure  bool   // the call may still be something else, as far as its text tells
	opened  int    // calls that began, whatever became of them
	raw     []byte // of the current call, with its marker
	head    int    // how much of raw is its marker and what stands before it
	settled int    // length of raw when the call was complete; 0 before
	begun   bool   // ToolBegin is out
	ncalls  int
	queue   []Event // events of the current call under Whole
}

// Family finds out which notation a template teaches its model; "" for none that is known.
func Family(template string) string {
	switch {
	case Harmony(template):
		return "harmony"
	case strings.Contains(template, "<|tool_call>"):
		return "gemma4"
	case strings.Contains(template, deepSeekBegin) && strings.Contains(template, codeFence):
		return "deepseek fenced"
	case strings.Contains(template, deepSeekBegin):
		return "deepseek"
	case strings.Contains(template, "<tool_call>") && strings.Contains(template, "<function="):
		return "qwenxml"
	case strings.Contains(template, "<tool_call>"):
		return "hermes"
	case strings.Contains(template, "[TOOL_CALLS]") && strings.Contains(template, "[ARGS]"):
		return "mistral"
	case strings.Contains(template, "[TOOL_CALLS]"):
		return "mistral list"
	case strings.Contains(template, "<|start_header_id|>") && strings.Contains(template, `"parameters": `):
		return "llama3"
	}
	return ""
}

// Calls reports whether the calls of a model with this chat template are understood.
func Calls(template string) bool { return Family(template) != "" }

// For returns a parser for the output of the model with this chat template.
// tools are the tool objects of the request, in OpenAI's or Anthropic's shape;
// without any, nothing is a tool call. thinkingOpen says that the prompt ended
// inside an open block of reasoning (see ThinkingOpen).
func For(template string, tools []json.RawMessage, thinkingOpen bool) *Parser {
	p := &Parser{thinking: thinkingOpen, fresh: true, tools: map[string]*schema{}}
	for _, t := range tools {
		if name, s := toolSchema(t); name != "" {
			p.tools[name] = s
		}
	}
	fam := Family(template)
	if fam == "harmony" {
		p.harmony = &harmony{p: p}
		if thinkingOpen {
			p.harmony.start(Reasoning)
		}
		if len(p.tools) > 0 {
			p.opener = harmonyChannel + "commentary" + harmonyTo + harmonyTools
		}
		return p
	}
	if fam == "gemma4" {
		p.thinkStart, p.thinkEnd, p.anywhere = "<|channel>thought", "<channel|>", true
		p.drop = []string{"<|tool_response>", "<turn|>"}
	} else if strings.Contains(template, "[THINK]") {
		p.thinkStart, p.thinkEnd = "[THINK]", "[/THINK]"
	} else if thinkingOpen || strings.Contains(template, "<think>") {
		p.thinkStart, p.thinkEnd = "<think>", "</think>"
	}
	p.firsts = "<["
	if len(p.tools) == 0 {
		return p
	}
	switch fam {
	case "hermes":
		p.open, p.newCall = "<tool_call>", newHermes
	case "qwenxml":
		p.open, p.bare, p.shut, p.newCall = "<tool_call>", "<function=", "</tool_call>", newQwenXML
	case "gemma4":
		p.open, p.newCall = "<|tool_call>", newGemma4
	case "mistral":
		p.open, p.newCall = "[TOOL_CALLS]", newMistral
	case "deepseek", "deepseek fenced":
		p.open, p.opener, p.newCall = deepSeekBegin, deepSeekCalls+deepSeekBegin, newDeepSeek
		p.drop = []string{deepSeekCalls, deepSeekCallEnd}
	case "mistral list":
		p.open, p.opener, p.newCall, p.lists = "[TOOL_CALLS]", "[TOOL_CALLS][{", newJSONCall, true
	case "llama3":
		p.open, p.opener, p.newCall, p.alone = "<|python_tag|>", `{"name": `, newJSONCall, true
		p.firsts += "{;"
	}
	if p.opener == "" {
		p.opener = p.open
	}
	return p
}

// ThinkingOpen reports whether a prompt ends with the start of a reasoning
// block, so that the output begins inside it.
func ThinkingOpen(prompt string) bool {
	prompt = strings.TrimRight(prompt, " \t\r\n")
	return strings.HasSuffix(prompt, "<think>") || strings.HasSuffix(prompt, "<|channel>thought") ||
		strings.HasSuffix(prompt, "[THINK]") || strings.HasSuffix(prompt, HarmonyThink)
}

// Thinking reports whether the output is inside reasoning.
func (p *Parser) Thinking() bool { return p.thinking }

// Calls is the number of complete calls.
func (p *Parser) Calls() int { return p.ncalls }

// Calling tells that the output is inside a call: its text so far, without the marker that opens it, and which of
// all that were begun it is, from 1. 0 is none, as far as anyone can tell yet.
func (p *Parser) Calling() (text []byte, n int) {
	if p.harmony != nil {
		if p.harmony.said == nil {
			return nil, 0
		}
		return p.harmony.said, p.opened
	}
	if p.call == nil || p.unsure {
		return nil, 0
	}
	return p.raw[p.head:], p.opened
}

// Opener is what opens a call: the marker, or as much of a call as only a call begins with. It is "" when there are no
// tools or the template does not teach calls.
func (p *Parser) Opener() string { return p.opener }

// Marked reports whether a marker opens calls, so that no other text looks like one.
func (p *Parser) Marked() bool { return !p.alone }

// Push takes the next piece of output and returns what it settles.
func (p *Parser) Push(text string) []Event {
	for i := range len(text) {
		p.feed(text[i])
	}
	return p.take()
}

// Close ends the output and returns what was held back.
func (p *Parser) Close() []Event {
	if p.harmony != nil {
		p.harmony.close()
		return p.take()
	}
	if p.call != nil {
		if p.settled > 0 && !p.thinking { // only the closing marker is missing
			p.endCall()
		} else {
			p.abort(nil)
		}
	}
	p.endList()
	for _, c := range p.held {
		p.text(c)
	}
	p.held = nil
	if !p.thinking && !(p.fresh && p.block) {
		p.put(Content, string(p.ws))
	}
	p.ws = nil
	return p.take()
}

func (p *Parser) take() []Event {
	p.flush()
	e := p.events
	p.events = nil
	return e
}

// put adds text to the delta being gathered.
func (p *Parser) put(kind Kind, text string) {
	if text == "" {
		return
	}
	if kind != p.kind {
		p.flush()
		p.kind = kind
	}
	p.delta = append(p.delta, text...)
}

// flush makes an event of the gathered delta.
func (p *Parser) flush() {
	if len(p.delta) == 0 {
		return
	}
	e := Event{Kind: p.kind, Text: string(p.delta)}
	p.delta = p.delta[:0]
	if e.Kind == ToolArguments {
		e.Index = p.ncalls
	}
	p.emit(e)
}

// emit sends an event; those of an unfinished call wait under Whole, and inside reasoning.
func (p *Parser) emit(e Event) {
	if (p.Whole || p.thinking) && (e.Kind == ToolBegin || e.Kind == ToolArguments) {
		p.queue = append(p.queue, e)
		return
	}
	p.events = append(p.events, e)
}

// begin starts a call of the named tool; false when no tool can have this name.
func (p *Parser) begin(name string) bool {
	if p.tools[name] == nil && !plausible.MatchString(name) {
		return false
	}
	p.begun = true
	p.flush()
	p.emit(Event{Kind: ToolBegin, Name: name, Index: p.ncalls})
	return true
}

// plausible is the name of a function that is not among the tools.
var plausible = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.:/-]*$`)

// schemaOf is what is known of a tool's parameters.
func (p *Parser) schemaOf(name string) *schema {
	if s := p.tools[name]; s != nil {
		return s
	}
	return &schema{}
}

func (p *Parser) arguments(text string) { p.put(ToolArguments, text) }

func (p *Parser) feed(c byte) {
	if p.harmony != nil {
		p.harmony.feed(c)
		return
	}
	if p.call != nil {
		p.raw = append(p.raw, c)
		switch p.call.feed(c) {
		case done:
			p.endCall()
		case bad:
			if p.settled == 0 || p.thinking {
				p.abort(p.raw[len(p.raw)-1:])
				break
			}
			rest := append([]byte(nil), p.raw[p.settled:]...)
			p.endCall()
			for _, c := range rest {
				p.feed(c)
			}
		}
		return
	}
	if p.list != noList && p.inList(c) {
		return
	}
	p.held = append(p.held, c)
	for len(p.held) > 0 {
		m, hit := p.match()
		if hit == "" && m {
			return
		}
		if hit != "" {
			p.held = p.held[:0]
			p.marker(hit)
			return
		}
		p.text(p.held[0])
		p.held = p.held[1:]
	}
}

// match compares the held text with the markers that count at this place. hit
// is the one it equals; maybe says that it begins one.
func (p *Parser) match() (maybe bool, hit string) {
	if strings.IndexByte(p.firsts, p.held[0]) < 0 || p.fence.open && !p.thinking {
		return false, ""
	}
	try := func(m string) {
		if m == "" || len(m) < len(p.held) || m[:len(p.held)] != string(p.held) {
			return
		}
		maybe = true
		if len(m) == len(p.held) {
			hit = m
		}
	}
	if p.thinking {
		try(p.thinkEnd)
		try(p.open)
		return
	}
	if p.fresh || p.anywhere {
		try(p.thinkStart)
	}
	try(p.open)
	try(p.bare)
	if p.alone && p.fresh && !p.answered {
		try("{")
		if p.ncalls > 0 {
			try(";")
		}
	}
	if p.afterBare {
		try(p.shut)
	}
	for _, d := range p.drop {
		try(d)
	}
	return
}

// marker acts on a marker that was just completed.
func (p *Parser) marker(m string) {
	switch {
	case p.thinking && m == p.thinkEnd:
		p.thinking = false
		p.ws = nil // the line break before the end marker
		p.fresh, p.block = true, true
	case m == p.thinkStart:
		p.thinking, p.fresh = true, true
		p.ws = nil
	case m == p.open && p.lists:
		p.list = listBegins
		p.listRaw = append(append([]byte{}, p.ws...), m...)
		p.ws = nil
	case m == p.open || m == p.bare || m == "{":
		p.begins(m)
	default: // a marker to drop
		p.afterBare = false
		p.ws = nil
	}
}

// begins starts a call after what opens it.
func (p *Parser) begins(m string) {
	bare := m != p.open
	p.unsure = false
	p.call = p.newCall(p, bare)
	p.raw = append(append(p.raw[:0], p.ws...), m...)
	p.head = len(p.raw)
	if bare {
		p.head -= len(m)
	}
	p.opened++
	p.settled = 0
}

// listState is where the output is in a list of calls, between them.
type listState uint8

const (
	noList     listState = iota
	listBegins           // its bracket is missing
	listOpen
)

// inList takes a byte between the calls of a list; false when it does not belong there.
func (p *Parser) inList(c byte) bool {
	if p.listRaw != nil {
		p.listRaw = append(p.listRaw, c)
	}
	switch {
	case isJSONSpace(c):
		return true
	case p.list == listBegins && c == '[':
		p.list = listOpen
		return true
	case p.list == listOpen && c == '{':
		p.ws = p.listRaw
		if n := len(p.ws); n > 0 {
			p.ws = p.ws[:n-1] // it is added as the marker
		}
		p.listRaw = nil
		p.begins("{")
		p.ws = nil
		return true
	case p.list == listOpen && p.listRaw == nil && c == ',':
		return true
	case p.list == listOpen && c == ']':
		if p.listRaw != nil { // without calls
			break
		}
		p.list = noList
		return true
	}
	if p.listRaw != nil {
		p.listRaw = p.listRaw[:len(p.listRaw)-1]
	}
	p.endList()
	return false
}

// endList leaves a list. One without any call was text.
func (p *Parser) endList() {
	raw := p.listRaw
	p.list, p.listRaw = noList, nil
	for _, c := range raw {
		p.text(c)
	}
}

// text handles a byte that is no part of a marker.
func (p *Parser) text(c byte) {
	space := c == ' ' || c == '\t' || c == '\n' || c == '\r'
	if p.thinking {
		if space {
			p.ws = append(p.ws, c)
			return
		}
		// Leading space was dropped with the marker or belongs to the prompt.
		if p.fresh {
			p.ws = nil
			p.fresh = false
		}
		p.put(Reasoning, string(append(p.ws, c)))
		p.ws = nil
		return
	}
	p.fence.feed(c)
	if space {
		p.ws = append(p.ws, c)
		return
	}
	if p.fresh && p.block && !p.answered {
		p.ws = nil
	}
	p.put(Content, string(append(p.ws, c)))
	p.ws = nil
	p.fresh, p.answered, p.afterBare = false, true, false
}

func (p *Parser) endCall() {
	_, p.afterBare = p.call.(interface{ bareCall() })
	p.call = nil
	p.flush()
	if p.thinking { // the end of reasoning may still come
		p.thinking = false
		p.drop = append(p.drop, p.thinkEnd)
	}
	p.events = append(p.events, p.queue...)
	p.queue = nil
	p.emit(Event{Kind: ToolEnd, Index: p.ncalls})
	p.ncalls++
	p.begun = false
	p.ws = nil // around a call, white space is layout
	p.fresh, p.block = true, true
}

// settle is called by a call that needs nothing more but its closing marker.
func (p *Parser) settle() { p.settled = len(p.raw) }

// abort turns the current call back into content. rest is the tail of its text
// that has not been judged yet and goes through the front door again.
func (p *Parser) abort(rest []byte) {
	rest = append([]byte(nil), rest...)
	raw := p.raw[:len(p.raw)-len(rest)]
	if p.begun {
		p.flush()
		if !p.Whole && !p.thinking {
			p.emit(Event{Kind: ToolAbort, Index: p.ncalls})
		}
	}
	p.call, p.begun, p.queue, p.ws = nil, false, nil, nil
	p.list = noList
	if p.alone && len(raw) > 0 && raw[len(raw)-1] == '{' && len(rest) > 0 {
		p.answered = true // what begins like a call and is none is not looked at again
	}
	for _, c := range raw {
		p.text(c)
	}
	p.raw = p.raw[:0]
	for _, c := range rest {
		p.feed(c)
	}
}

// fence tracks fenced code blocks in the answer, where markers are examples.
type fence struct {
	open   bool
	col    int // bytes since the line began, 4 and more meaning "inside the line"
	ticks  int
	inLine bool
}

func (f *fence) feed(c byte) {
	switch {
	case c == '\n':
		*f = fence{open: f.open}
	case f.inLine:
	case c == '`':
		if f.ticks++; f.ticks == 3 {
			f.open = !f.open
			f.inLine = true
		}
	case c == ' ' && f.ticks == 0 && f.col < 3:
		f.col++
	default:
		f.inLine = true
	}
}
