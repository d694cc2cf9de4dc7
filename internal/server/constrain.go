package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"strobe/internal/chat"
	"strobe/internal/chat/parse"
	"strobe/internal/dialog"
	"strobe/internal/sample"
	"strobe/internal/sample/grammar"
	"strobe/internal/tokenizer"
)

var negInf = float32(math.Inf(-1))

// newVocab arranges a tokenizer's vocabulary for grammars, which write no control tokens but those named.
func newVocab(tok *tokenizer.Tokenizer, control ...string) *grammar.Vocab {
	pieces := make([][]byte, tok.Size())
	for id := range pieces {
		pieces[id] = tok.Piece(int32(id), false)
		if len(pieces[id]) == 0 {
			if p := tok.Piece(int32(id), true); slices.Contains(control, string(p)) {
				pieces[id] = p
			}
		}
	}
	return grammar.NewVocab(pieces, tok.EOG())
}

// callMarkers are the tokens inside and at the end of calls, which some vocabularies have as control tokens.
var callMarkers = []string{"</tool_call>", "<tool_call|>", `<|"|>`, "[ARGS]", "[CALL_ID]", "<|channel|>",
	"<|constrain|>", "<|message|>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}

// maxGrammars is how many compiled schemas a model keeps, and maxGrammarBytes how much memory they may take. Clients
// use few, again and again, and what a grammar learns about the vocabulary is worth more than its compilation.
const (
	maxGrammars     = 32
	maxGrammarBytes = 64 << 20
)

// grammars builds the constraints of one model's answers and keeps what it compiled for them.
type grammars struct {
	tok      *tokenizer.Tokenizer
	template *chat.Template

	vocab     func() *grammar.Vocab // of formats
	callVocab func() *grammar.Vocab // of calls

	mu       sync.Mutex
	compiled map[string]*grammar.Grammar // by schema
	bytes    int                         // of them
}

func newGrammars(tok *tokenizer.Tokenizer, template *chat.Template) *grammars {
	g := &grammars{tok: tok, template: template, compiled: map[string]*grammar.Grammar{}}
	g.vocab = sync.OnceValue(func() *grammar.Vocab { return newVocab(tok) })
	g.callVocab = sync.OnceValue(func() *grammar.Vocab {
		for id := range tokenizer.ID(tok.Size()) {
			if tok.Kind(id) == tokenizer.Control && slices.Contains(callMarkers, string(tok.Piece(id, true))) {
				return newVocab(tok, callMarkers...)
			}
		}
		return g.vocab()
	})
	return g
}

// compile returns the grammar of a key, compiled at its first use.
func (gs *grammars) compile(key string, compile func() (*grammar.Grammar, error)) (*grammar.Grammar, error) {
	gs.mu.Lock()
	g := gs.compiled[key]
	gs.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g, err := compile()
	if err != nil {
		return nil, err
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.compiled[key] != nil {
		return gs.compiled[key], nil
	}
	n := len(key) + g.Size()
	if gs.bytes += n; len(gs.compiled) >= maxGrammars || gs.bytes > maxGrammarBytes {
		clear(gs.compiled)
		gs.bytes = n
	}
	gs.compiled[key] = g
	return g, nil
}

// grammar returns the grammar of a format.
func (gs *grammars) grammar(f format) (*grammar.Grammar, error) {
	key := fmt.Sprint(string(f.schema), "\x00", f.gbnf, f.strict) // JSON has no such character
	return gs.compile(key, func() (*grammar.Grammar, error) {
		switch {
		case f.gbnf != "":
			g, err := grammar.CompileGBNF(f.gbnf)
			if err != nil {
				return nil, refused("grammar", "the grammar cannot be used", err)
			}
			return g, nil
		case f.schema != nil && f.strict:
			return grammar.Compile(f.schema)
		case f.schema != nil:
			return grammar.CompileLoose(f.schema)
		}
		return grammar.Object(), nil
	})
}

// calls returns the grammar of calls of the tools a choice leaves, after the marker that opens them.
func (gs *grammars) calls(c *conversation) (*grammar.Grammar, error) {
	var tools []grammar.Tool
	key := "calls"
	for _, raw := range c.tools {
		var t struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
			}
		}
		if json.Unmarshal(raw, &t) != nil || t.Function.Name == "" {
			continue
		}
		if f := t.Function; c.choice.name == "" || f.Name == c.choice.name {
			tools = append(tools, grammar.Tool{Name: f.Name, Parameters: f.Parameters})
			key += "\x00" + f.Name + "\x00" + string(f.Parameters)
		}
	}
	if len(tools) == 0 {
		return nil, invalid("tool_choice", "there is no tool named %q", c.choice.name)
	}
	n := callNotations[parse.Family(gs.template.Source())]
	return gs.compile(key, func() (*grammar.Grammar, error) { return grammar.CompileCalls(n, tools) })
}

// callNotations are the grammars of calls by the family of the parser that reads them.
var callNotations = map[string]grammar.Notation{"hermes": grammar.CallJSON, "qwenxml": grammar.CallTags,
	"gemma4": grammar.CallGemma, "llama3": grammar.CallLlama, "mistral": grammar.CallArgs,
	"deepseek": grammar.CallDeepSeek, "deepseek fenced": grammar.CallDeepSeekFenced,
	"mistral list": grammar.CallList, "harmony": grammar.CallHarmony}

// thinkMarkers are what begins and ends reasoning in this model's text.
func (gs *grammars) thinkMarkers() (start, end string) {
	if parse.Harmony(gs.template.Source()) {
		return parse.HarmonyThink, parse.HarmonyEnd
	}
	if strings.Contains(gs.template.Source(), "<|channel>") {
		return "<|channel>thought", "<channel|>"
	}
	if strings.Contains(gs.template.Source(), "[THINK]") {
		return "[THINK]", "[/THINK]"
	}
	return "<think>", "</think>"
}

// phase is a stretch of the answer with rules of its own.
type phase interface {
	sample.Constraint
	done() bool // it is over
}

// constraint is what a conversation asks of the answer's tokens; nil if nothing.
func (gs *grammars) constraint(c *conversation, p *dialog.Prompt) (sample.Constraint, error) {
	g := &guide{gs: gs, thinking: p.Thinking, budget: c.budget, harmony: parse.Harmony(gs.template.Source())}
	g.start, g.end = gs.thinkMarkers()
	mayCall := len(c.tools) > 0 && !c.choice.none
	var tools []json.RawMessage
	if mayCall {
		tools = c.tools
	}
	g.answer = parse.For(gs.template.Source(), tools, p.Thinking)
	opener := g.answer.Opener()
	forced := mayCall && (c.choice.required || c.choice.name != "")
	var err error
	if mayCall && (opener != "" || forced) && !c.raw {
		if g.calls, err = gs.calls(c); err != nil {
			return nil, err
		}
		gs.callVocab() // now, not when the engine waits for it
	}
	switch {
	case forced && opener == "":
		return nil, invalid("tool_choice", "the model's chat template does not say how tools are called")
	case g.harmony && (forced || c.format != nil):
		if err := g.messages(c, p, opener, forced); err != nil {
			return nil, err
		}
	case forced:
		g.phases = []phase{&literal{gs, opener}}
	case c.format != nil:
		answer, err := gs.answer(c, "")
		if err != nil {
			return nil, err
		}
		if g.phases = []phase{answer}; opener != "" && g.answer.Marked() {
			// The answer is the JSON, or a call of a tool, which its first character tells apart.
			g.phases = []phase{&either{answer: answer, call: &literal{gs, opener}}}
		}
	case c.budget < 0 && g.calls == nil:
		return nil, nil
	}
	if p.Thinking || c.budget >= 0 {
		inside := tokenizer.EncodeOptions{ParseSpecial: true, Continue: true}
		gap := "\n\n"
		if g.harmony {
			gap = "" // the header of the next message follows
		}
		g.closing = gs.tok.Encode("\n\nThat is enough thinking; the answer follows.\n"+g.end+gap, inside)
		g.gap = gs.tok.Encode(gap, inside)
	}
	g.left = g.budget
	g.limit()
	return g, nil
}

// messages constrains an answer in the format of gpt-oss: reasoning first, unless the prompt says that it is over, then
// a message that is a call, or the answer in a format, or either of them.
func (g *guide) messages(c *conversation, p *dialog.Prompt, opener string, forced bool) error {
	lead := ""
	switch text := p.Text; {
	case p.Thinking:
		lead = parse.HarmonyTurn
	case strings.HasSuffix(text, parse.HarmonyThink+parse.HarmonyEnd+parse.HarmonyTurn):
	case strings.HasSuffix(text, parse.HarmonyTurn):
		g.forced = g.gs.tok.Encode(parse.HarmonyThink, tokenizer.EncodeOptions{ParseSpecial: true, Continue: true})
		lead = parse.HarmonyTurn
	case forced:
		lead = parse.HarmonyEnd + parse.HarmonyTurn
	default: // inside an answer
		answer, err := g.gs.answer(c, "")
		g.phases = []phase{answer}
		return err
	}
	// All headers begin with the same marker.
	marker, final, _ := strings.Cut(parse.HarmonyAnswer, ">")
	call := &literal{g.gs, strings.TrimPrefix(opener, marker+">")}
	g.phases = []phase{&literal{g.gs, lead + marker + ">"}, call}
	if forced {
		return nil
	}
	answer, err := g.gs.answer(c, final)
	if g.phases[1] = answer; opener != "" {
		g.phases[1] = &either{answer: answer, call: call}
	}
	return err
}

// answer is the part of an answer that its format describes, and a text before it.
func (gs *grammars) answer(c *conversation, head string) (*matched, error) {
	g, err := gs.grammar(*c.format)
	if err != nil {
		return nil, err
	}
	return &matched{literal{gs, head}, g.NewMatcher(gs.vocab())}, nil
}

// guide constrains an answer from its beginning to its end: reasoning first, which is free but for its
// length, then the phases, then free text, in which calls of tools are held to the schemas of the tools from where
// they begin. It forces tokens by forbidding all others, so drafts that disagree are rejected like any wrong guess.
type guide struct {
	gs         *grammars
	start, end string // markers of reasoning
	harmony    bool   // the answer consists of messages
	thinking   bool
	budget     int // most tokens of a block of reasoning; < 0 for no limit
	left       int
	tail       []byte  // end of the text, long enough to find a marker
	closing    []int32 // ends reasoning by force
	gap        []int32 // stands between reasoning and an answer with phases
	forced     []int32 // must come next
	phases     []phase // of the answer; none leaves it free

	answer *parse.Parser    // knows where calls begin and end
	calls  *grammar.Grammar // of calls; nil leaves them free
	call   *grammar.Matcher // of the call that the answer is in; nil when there is none or it cannot be helped
	nth    int              // which call that is
}

// Mask implements sample.Constraint.
func (g *guide) Mask(logits []float32) {
	if g.call != nil && g.call.Dead() {
		g.call = nil // the token that began it went on with something else
	}
	switch {
	case len(g.forced) > 0:
		only(logits, g.forced[0])
	case g.call != nil:
		g.call.Mask(logits)
	case g.thinking:
		if len(g.phases) > 0 { // the answer is still owed
			g.gs.forbidEnd(logits)
		}
	case len(g.phases) > 0:
		g.phases[0].Mask(logits)
	}
}

// Accept implements sample.Constraint.
func (g *guide) Accept(id int32) {
	forced := len(g.forced) > 0
	if forced {
		g.forced = g.forced[1:]
	}
	piece := g.gs.tok.Piece(id, true)
	was := g.thinking
	g.answer.Push(string(piece))
	g.follow(piece)
	switch {
	case was && g.thinking:
		g.left--
		g.limit()
	case was:
		if !forced && len(g.phases) > 0 {
			g.forced = g.gap
		}
	case g.thinking: // one more block
		g.left = g.budget
		g.limit()
	case !forced && len(g.phases) > 0:
		if g.phases[0].Accept(id); g.phases[0].done() {
			g.phases = g.phases[1:]
		}
	}
	g.inCall(piece)
}

// follow looks for the markers of reasoning in the text. A complete call ends it, too, and is an answer.
func (g *guide) follow(piece []byte) {
	if g.harmony { // headers say it, not one marker
		g.thinking = g.answer.Thinking()
		g.tail = append(g.tail[:0], piece...)
		return
	}
	marker := g.start
	if g.thinking {
		marker = g.end
		if g.answer.Calls() > 0 && !g.answer.Thinking() {
			g.thinking, g.phases, g.tail = false, nil, g.tail[:0]
			return
		}
	} else if len(g.phases) > 0 {
		return // an answer with phases has no reasoning inside
	}
	g.tail = append(g.tail, piece...)
	if bytes.Contains(g.tail, []byte(marker)) {
		g.thinking = !g.thinking
		g.tail = g.tail[:0]
	} else if n := len(marker) + utf8.UTFMax; len(g.tail) > n {
		g.tail = append(g.tail[:0], g.tail[len(g.tail)-n:]...)
	}
}

// inCall takes the call that the answer is in a step further, or begins or ends it. Reasoning may talk of calls.
func (g *guide) inCall(piece []byte) {
	text, n := g.answer.Calling()
	if n == 0 || g.calls == nil || g.thinking {
		g.call, g.nth = nil, 0
		return
	}
	if n != g.nth {
		g.call, g.nth = g.calls.NewMatcher(g.gs.callVocab()), n
		piece = text
	}
	if g.call != nil {
		g.call.AcceptText(piece)
	}
}

// Prepare does the work of the next Mask; see grammar.Matcher.
func (g *guide) Prepare(ctx context.Context, quick bool) bool {
	if m := g.matcher(); m != nil {
		return m.Prepare(ctx, quick)
	}
	return true
}

// Err is why no token can follow.
func (g *guide) Err() error {
	if m := g.matcher(); m != nil {
		return m.Err()
	}
	return nil
}

// matcher is the grammar that the next token has to fit; nil for none.
func (g *guide) matcher() *grammar.Matcher {
	switch {
	case len(g.forced) > 0:
		return nil
	case g.call != nil:
		return g.call
	case g.thinking || len(g.phases) == 0:
		return nil
	}
	m, _ := g.phases[0].(*matched)
	if e, ok := g.phases[0].(*either); ok && (e.decided == nil || e.decided == phase(e.answer)) {
		m = e.answer
	}
	if m == nil || !m.head.done() {
		return nil
	}
	return m.Matcher
}

// limit ends reasoning when its budget is spent, though not inside a character.
func (g *guide) limit() {
	if !g.thinking || g.budget < 0 || g.left > 0 || len(g.forced) > 0 {
		return
	}
	if r, n := utf8.DecodeLastRune(g.tail); r == utf8.RuneError && n == 1 && g.left > -utf8.UTFMax {
		return
	}
	g.forced = g.closing
}

// only leaves one token.
func only(logits []float32, id int32) {
	keep := logits[id]
	if keep == negInf {
		keep = 0 // a ban by logit_bias gives way
	}
	for i := range logits {
		logits[i] = negInf
	}
	logits[id] = keep
}

func (gs *grammars) forbidEnd(logits []float32) {
	for _, id := range gs.tok.EOG() {
		if int(id) < len(logits) {
			logits[id] = negInf
		}
	}
}

// matched is an answer that a grammar describes, after a text.
type matched struct {
	head literal
	*grammar.Matcher
}

func (m *matched) Mask(logits []float32) {
	if m.head.done() {
		m.Matcher.Mask(logits)
	} else {
		m.head.Mask(logits)
	}
}

func (m *matched) Accept(id int32) {
	if m.head.done() {
		m.Matcher.Accept(id)
	} else {
		m.head.Accept(id)
	}
}

func (m *matched) done() bool { return false }

// literal is a text.
type literal struct {
	gs   *grammars
	rest string
}

// fits reports whether a token is a step on the way to the text.
func (l *literal) fits(id int32) bool {
	piece := l.gs.tok.Piece(id, true)
	return len(piece) > 0 && strings.HasPrefix(l.rest, string(piece))
}

func (l *literal) Mask(logits []float32) {
	for id := range logits {
		if id >= l.gs.tok.Size() || !l.fits(int32(id)) {
			logits[id] = negInf
		}
	}
}

func (l *literal) Accept(id int32) {
	l.rest = strings.TrimPrefix(l.rest, string(l.gs.tok.Piece(id, true)))
}
func (l *literal) done() bool { return l.rest == "" }

// either is an answer that a grammar describes, or a call of a tool. It decides with its first token.
type either struct {
	answer  *matched
	call    *literal
	decided phase
	copy    []float32
}

func (e *either) Mask(logits []float32) {
	if e.decided != nil {
		e.decided.Mask(logits)
		return
	}
	e.copy = append(e.copy[:0], logits...)
	e.answer.Mask(logits)
	for id, x := range e.copy {
		if logits[id] == negInf && id < e.call.gs.tok.Size() && e.call.fits(int32(id)) {
			logits[id] = x
		}
	}
}

func (e *either) Accept(id int32) {
	if e.decided == nil {
		if e.decided = e.answer; e.call.fits(id) {
			e.decided = e.call
		}
	}
	e.decided.Accept(id)
}

func (e *either) done() bool { return e.decided != nil && e.decided.done() }
