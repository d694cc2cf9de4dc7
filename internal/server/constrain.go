package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"strobe/internal/dialog"
	"strobe/internal/sample"
	"strobe/internal/sample/grammar"
	"strobe/internal/tokenizer"
)

var negInf = float32(math.Inf(-1))

// format is what an answer has to be: JSON that fits a schema, any JSON object, or text that fits a grammar.
type format struct {
	schema json.RawMessage // nil for any object
	gbnf   string          // "" for JSON
	tags   bool            // the schema is of a tool's arguments, which are written in tags
}

// newVocab arranges a tokenizer's vocabulary for grammars, which never write control tokens.
func newVocab(tok *tokenizer.Tokenizer) *grammar.Vocab {
	pieces := make([][]byte, tok.Size())
	for id := range pieces {
		pieces[id] = tok.Piece(int32(id), false)
	}
	return grammar.NewVocab(pieces, tok.EOG())
}

// maxGrammars is how many compiled schemas a model keeps. Clients use few, again and again, and what
// a grammar learns about the vocabulary is worth more than its compilation.
const maxGrammars = 32

// grammar returns the grammar of a format.
func (v *view) grammar(f format) (*grammar.Grammar, error) {
	key := fmt.Sprint(f.tags, "\x00", string(f.schema), "\x00", f.gbnf) // JSON has no such character
	v.mu.Lock()
	g := v.grammars[key]
	v.mu.Unlock()
	if g != nil {
		return g, nil
	}
	var err error
	switch {
	case f.gbnf != "":
		if g, err = grammar.CompileGBNF(f.gbnf); err != nil {
			return nil, invalid("grammar", "%v", err)
		}
	case f.tags:
		if g, err = grammar.CompileXML(f.schema); err != nil {
			return nil, err
		}
	case f.schema != nil:
		if g, err = grammar.Compile(f.schema); err != nil {
			return nil, err
		}
	default:
		g = grammar.Object()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.grammars) >= maxGrammars {
		clear(v.grammars)
	}
	v.grammars[key] = g
	return g, nil
}

// phase is a stretch of the answer with rules of its own.
type phase interface {
	sample.Constraint
	done() bool    // it is over
	then() []phase // what comes after it, before the phases that follow anyway
}

// constraint is what a conversation asks of the answer's tokens; nil if nothing.
func (v *view) constraint(c *conversation, p *dialog.Prompt) (sample.Constraint, error) {
	g := &guide{v: v, thinking: p.Thinking, budget: c.budget}
	g.start, g.end = v.thinkMarkers()
	mayCall := len(c.tools) > 0 && !c.choice.none
	var err error
	switch {
	case mayCall && (c.choice.required || c.choice.name != ""):
		g.phases, err = v.forcedCall(c)
	case c.format != nil:
		var gr *grammar.Grammar
		if gr, err = v.grammar(*c.format); err != nil {
			break
		}
		answer := &matched{gr.NewMatcher(v.vocab())}
		g.phases = []phase{answer}
		if open := v.callOpener(); mayCall && open != "" {
			// The answer is the JSON, or a call of a tool, which its first character tells apart.
			g.phases = []phase{&either{answer: answer, call: v.literal(open)}}
		}
	case c.budget < 0:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if g.thinking || c.budget >= 0 {
		g.closing = v.tok.Encode("\n\nThat is enough thinking; the answer follows.\n"+g.end+"\n\n", tokenizer.EncodeOptions{ParseSpecial: true})
		g.gap = v.tok.Encode("\n\n", tokenizer.EncodeOptions{})
	}
	g.left = g.budget
	g.limit()
	return g, nil
}

// thinkMarkers are what begins and ends reasoning in this model's text.
func (v *view) thinkMarkers() (start, end string) {
	if strings.Contains(v.template.Source(), "<|channel>") {
		return "<|channel>thought", "<channel|>"
	}
	return "<think>", "</think>"
}

// callOpener is what begins a tool call in this model's text, "" when it has none.
func (v *view) callOpener() string {
	switch src := v.template.Source(); {
	case strings.Contains(src, "<|tool_call>"):
		return "<|tool_call>"
	case strings.Contains(src, "<tool_call>"):
		return "<tool_call>"
	}
	return ""
}

// forcedCall makes the answer a call of one of the tools the choice leaves. Models that write calls as JSON or in tags
// get arguments that fit the schema; for the others, and where a schema cannot be written in tags, the beginning of the
// call is fixed and the rest is theirs.
func (v *view) forcedCall(c *conversation) ([]phase, error) {
	names, params, err := callable(c)
	if err != nil {
		return nil, err
	}
	l := &literals{v: v}
	open := v.callOpener()
	for i, n := range names {
		switch {
		case open == "":
			return nil, invalid("tool_choice", "the model's chat template does not say how tools are called")
		case open == "<|tool_call>":
			l.add(open+"call:"+n+"{", &until{v: v, end: "<tool_call|>"})
		case strings.Contains(v.template.Source(), "<function="):
			head := open + "\n<function=" + n + ">\n"
			if g := v.parameters(params[i]); g != nil {
				l.add(head, &object{matched{g.NewMatcher(v.vocab())}}, v.literal("\n</tool_call>"))
			} else {
				l.add(head, &until{v: v, end: "</function>"})
			}
		default:
			name, err := json.Marshal(n)
			if err != nil {
				return nil, err
			}
			l.add(open+"\n{\"name\": "+string(name)+", \"arguments\": ",
				&object{matched{v.arguments(params[i]).NewMatcher(v.vocab())}}, v.literal("}\n</tool_call>"))
		}
	}
	return []phase{l}, nil
}

// callable returns the tools that a choice leaves.
func callable(c *conversation) (names []string, params []json.RawMessage, err error) {
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
		if c.choice.name == "" || t.Function.Name == c.choice.name {
			names = append(names, t.Function.Name)
			params = append(params, t.Function.Parameters)
		}
	}
	if len(names) == 0 {
		return nil, nil, invalid("tool_choice", "there is no tool named %q", c.choice.name)
	}
	return names, params, nil
}

// arguments is the grammar of a tool's arguments. A tool without a schema, or with one that
// cannot be compiled, takes any object.
func (v *view) arguments(schema json.RawMessage) *grammar.Grammar {
	if kindOf(schema) == "object" {
		if g, err := v.grammar(format{schema: schema}); err == nil {
			return g
		}
	}
	return grammar.Object()
}

// parameters is the grammar of a tool's arguments in tags; nil when it has no schema that can be written so.
func (v *view) parameters(schema json.RawMessage) *grammar.Grammar {
	if kindOf(schema) != "object" {
		return nil
	}
	g, err := v.grammar(format{schema: schema, tags: true})
	if err != nil {
		return nil
	}
	return g
}

// guide constrains an answer from its beginning to its end: reasoning first, which is free but for its
// length, then the phases. It forces tokens by forbidding all others, so drafts that disagree
// are rejected like any wrong guess.
type guide struct {
	v          *view
	start, end string // markers of reasoning
	thinking   bool
	budget     int // most tokens of a block of reasoning; < 0 for no limit
	left       int
	tail       []byte  // end of the text, long enough to find a marker
	closing    []int32 // ends reasoning by force
	gap        []int32 // stands between reasoning and an answer with phases
	forced     []int32 // must come next
	phases     []phase // of the answer; none leaves it free
}

// Mask implements sample.Constraint.
func (g *guide) Mask(logits []float32) {
	switch {
	case len(g.forced) > 0:
		only(logits, g.forced[0])
	case g.thinking:
		if len(g.phases) > 0 { // the answer is still owed
			g.v.forbidEnd(logits)
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
	was := g.thinking
	g.follow(g.v.tok.Piece(id, true))
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
		g.phases[0].Accept(id)
		for len(g.phases) > 0 && g.phases[0].done() {
			then := g.phases[0].then()
			g.phases = append(slices.Clone(then), g.phases[1:]...)
		}
	}
}

// follow looks for the markers of reasoning in the text.
func (g *guide) follow(piece []byte) {
	marker := g.start
	if g.thinking {
		marker = g.end
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
		keep = 0 // banned by nobody that matters more
	}
	for i := range logits {
		logits[i] = negInf
	}
	logits[id] = keep
}

func (v *view) forbidEnd(logits []float32) {
	for _, id := range v.tok.EOG() {
		if int(id) < len(logits) {
			logits[id] = negInf
		}
	}
}

// matched is an answer or a part of it that a grammar describes.
type matched struct{ *grammar.Matcher }

func (m *matched) done() bool    { return false }
func (m *matched) then() []phase { return nil }

// object is matched for a part that ends with its closing brace.
type object struct{ matched }

func (o *object) done() bool { return o.Complete() }

// literals is one of several texts, each with what comes after it.
type literals struct {
	v    *view
	alts []alternative
}

type alternative struct {
	rest string
	next []phase
}

func (v *view) literal(text string) *literals {
	l := &literals{v: v}
	l.add(text)
	return l
}

func (l *literals) add(text string, next ...phase) {
	l.alts = append(l.alts, alternative{text, next})
}

// fits reports whether a token is a step on the way to one of the texts.
func (l *literals) fits(piece []byte) bool {
	if len(piece) == 0 {
		return false
	}
	for _, a := range l.alts {
		if strings.HasPrefix(a.rest, string(piece)) {
			return true
		}
	}
	return false
}

func (l *literals) Mask(logits []float32) {
	for id := range logits {
		if id >= l.v.tok.Size() || !l.fits(l.v.tok.Piece(int32(id), true)) {
			logits[id] = negInf
		}
	}
}

func (l *literals) Accept(id int32) {
	piece := string(l.v.tok.Piece(id, true))
	left := l.alts[:0]
	for _, a := range l.alts {
		if rest, ok := strings.CutPrefix(a.rest, piece); ok {
			left = append(left, alternative{rest, a.next})
		}
	}
	l.alts = left
}

func (l *literals) done() bool {
	return len(l.alts) == 0 || slices.ContainsFunc(l.alts, func(a alternative) bool { return a.rest == "" })
}

func (l *literals) then() []phase {
	for _, a := range l.alts {
		if a.rest == "" {
			return a.next
		}
	}
	return nil
}

// until is free text that must not end before a marker.
type until struct {
	v    *view
	end  string
	tail []byte
	over bool
}

func (u *until) Mask(logits []float32) { u.v.forbidEnd(logits) }

func (u *until) Accept(id int32) {
	u.tail = append(u.tail, u.v.tok.Piece(id, true)...)
	u.over = bytes.Contains(u.tail, []byte(u.end))
	if n := len(u.end); len(u.tail) > n {
		u.tail = append(u.tail[:0], u.tail[len(u.tail)-n:]...)
	}
}

func (u *until) done() bool    { return u.over }
func (u *until) then() []phase { return nil }

// either is an answer that a grammar describes, or a call of a tool. It decides with its first token.
type either struct {
	answer  *matched
	call    *literals
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
		if logits[id] == negInf && id < e.call.v.tok.Size() && e.call.fits(e.call.v.tok.Piece(int32(id), true)) {
			logits[id] = x
		}
	}
}

func (e *either) Accept(id int32) {
	if e.decided == nil {
		if e.decided = e.answer; e.call.fits(e.call.v.tok.Piece(id, true)) {
			e.decided = e.call
		}
	}
	e.decided.Accept(id)
}

func (e *either) done() bool    { return e.decided != nil && e.decided.done() }
func (e *either) then() []phase { return e.decided.then() }
