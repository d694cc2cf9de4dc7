package parse

import "strings"

// harmony reads the format of gpt-oss. The whole output is messages, each a header and a text:
//
//	<|channel|>analysis<|message|>TEXT<|end|>                        reasoning
//	<|start|>assistant<|channel|>commentary<|message|>TEXT<|end|>    said before a call, part of the answer
//	<|start|>assistant<|channel|>final<|message|>TEXT<|return|>      the answer
//
// A message with a recipient is a call, its text the arguments. The recipient stands before the channel or after it,
// and the type of the text is there or not:
//
//	<|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>
//	<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//
// The prompt ends with <|start|>assistant, or inside the text of an answer to be continued.
type harmony struct {
	p      *Parser
	header []byte // of the message that begins, up to the marker of its text
	inText bool   // the header is complete
	kind   Kind   // of the text: Content, Reasoning or ToolArguments
	held   []byte // may become a marker
	texts  [2]bool
	gap    bool      // text of this kind stands before: an empty line separates them
	args   *jsonScan // of a call; nil elsewhere
	raw    []byte    // text of the call's arguments so far
	said   []byte    // of a call, from its recipient on; nil when the output is in none
}

// The markers. <|return|> and <|call|> end the generation and are rarely seen here.
const (
	harmonyStart   = "<|start|>"
	harmonyChannel = "<|channel|>"
	harmonyMessage = "<|message|>"
	harmonyEnd     = "<|end|>"
	harmonyTo      = " to="
	harmonyTools   = "functions."
)

// What opens the turn of gpt-oss, its reasoning and its answer, and what ends a message.
const (
	HarmonyTurn   = harmonyStart + "assistant"
	HarmonyThink  = harmonyChannel + "analysis" + harmonyMessage
	HarmonyAnswer = harmonyChannel + "final" + harmonyMessage
	HarmonyEnd    = harmonyEnd
)

// Harmony reports whether a chat template is one of gpt-oss.
func Harmony(template string) bool {
	return strings.Contains(template, harmonyChannel) && strings.Contains(template, harmonyMessage)
}

var harmonyEnds = []string{harmonyEnd, harmonyStart, "<|return|>", "<|call|>"}

// maxHeader is how long a header may be. What is longer is text without one.
const maxHeader = 2 * maxName

// feed takes the next byte.
func (h *harmony) feed(c byte) {
	if h.said != nil {
		h.said = append(h.said, c)
	}
	if !h.inText {
		h.inHeader(c)
		return
	}
	h.held = append(h.held, c)
	for len(h.held) > 0 {
		maybe := false
		for _, m := range harmonyEnds {
			if string(h.held) == m {
				h.endText()
				if m == harmonyStart { // the message before was not ended
					h.header = append(h.header, m...)
				}
				return
			}
			maybe = maybe || strings.HasPrefix(m, string(h.held))
		}
		if maybe {
			return
		}
		h.text(h.held[0])
		h.held = h.held[1:]
	}
}

// inHeader takes a byte before the text of a message. A message that begins otherwise has no header: a part of an
// answer that the prompt began, or of a model that forgot it.
func (h *harmony) inHeader(c byte) {
	h.header = append(h.header, c)
	text := string(h.header)
	if head, ok := strings.CutSuffix(text, harmonyMessage); ok {
		h.beginText(head)
		return
	}
	begins := false
	for _, m := range []string{harmonyStart, harmonyChannel, harmonyMessage, harmonyTo, harmonyEnd} {
		begins = begins || strings.HasPrefix(text, m) || strings.HasPrefix(m, text)
	}
	if text == harmonyEnd { // once more
		h.header = h.header[:0]
		return
	}
	if h.said == nil && len(h.p.tools) > 0 && strings.HasSuffix(text, harmonyTo+harmonyTools) {
		h.said = append(h.said, harmonyTools...)
		h.p.opened++
	}
	if begins && len(h.header) < maxHeader {
		return
	}
	h.noHeader()
}

// noHeader makes text of what looked like a header. Its last byte may begin a marker.
func (h *harmony) noHeader() {
	text := h.header
	h.header, h.said = nil, nil
	h.start(Content)
	for _, c := range text[:len(text)-1] {
		h.text(c)
	}
	h.feed(text[len(text)-1])
}

// beginText ends a header.
func (h *harmony) beginText(head string) {
	kind := Content
	if i := strings.LastIndex(head, harmonyChannel); i >= 0 &&
		strings.HasPrefix(head[i+len(harmonyChannel):], "analysis") {
		kind = Reasoning
	}
	name := recipient(head)
	// A name without "functions." is taken for a call when there is such a tool, too late to be held to a grammar.
	if (h.said != nil || h.p.tools[name] != nil) && h.p.begin(name) {
		h.start(ToolArguments)
		h.args = &jsonScan{out: h.p.arguments}
		return
	}
	h.said = nil
	h.start(kind)
}

// recipient is the name of the function that a header calls.
func recipient(head string) string {
	_, to, _ := strings.Cut(head, harmonyTo)
	if i := strings.IndexAny(to, " \t\n<"); i >= 0 {
		to = to[:i]
	}
	return strings.TrimPrefix(to, harmonyTools)
}

// start begins the text of a message.
func (h *harmony) start(kind Kind) {
	h.inText, h.kind, h.raw = true, kind, h.raw[:0]
	h.p.thinking = kind == Reasoning
	h.gap = kind != ToolArguments && h.texts[kind]
}

// text takes a byte of a message's text.
func (h *harmony) text(c byte) {
	if h.kind == ToolArguments {
		h.argument(c)
		return
	}
	if h.gap {
		h.gap = false
		h.p.put(h.kind, "\n\n")
	}
	h.texts[h.kind] = true
	h.p.put(h.kind, string([]byte{c}))
}

// argument takes a byte of a call's text, which is one JSON object.
func (h *harmony) argument(c byte) {
	outside := len(h.raw) == 0 || h.args == nil
	if outside && isJSONSpace(c) {
		return
	}
	if h.args == nil { // text after the object
		h.p.endCall()
		h.said = nil
		h.start(Content)
		h.text(c)
		return
	}
	h.raw = append(h.raw, c)
	if len(h.raw) == 1 && c != '{' {
		h.abort()
		return
	}
	switch h.args.feed(c) {
	case scanDone:
		h.args = nil
	case scanBad, scanDoneBefore:
		h.abort()
	}
}

// abort makes an answer of a call whose text is no JSON object.
func (h *harmony) abort() {
	h.p.flush()
	if !h.p.Whole {
		h.p.emit(Event{Kind: ToolAbort, Index: h.p.ncalls})
	}
	h.p.begun, h.p.queue = false, nil
	text := h.raw
	h.args, h.raw, h.said = nil, nil, nil
	h.start(Content)
	for _, c := range text {
		h.text(c)
	}
}

// endText ends a message.
func (h *harmony) endText() {
	switch {
	case h.kind != ToolArguments:
	case h.args == nil:
		h.p.endCall()
	default:
		h.abort()
	}
	h.args, h.header, h.held, h.said = nil, nil, nil, nil
	h.inText, h.p.thinking = false, false
}

// close ends the output.
func (h *harmony) close() {
	if !h.inText {
		// Half a header says nothing; text that looks like the beginning of one is text.
		if strings.HasPrefix(string(h.header), "<|") || h.said != nil || len(h.header) == 0 {
			return
		}
		h.noHeader()
	}
	for _, c := range h.held {
		h.text(c)
	}
	h.endText()
}
