package chat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"strobe/internal/chat/jinja"
)

// Span is a range of bytes of a prompt.
type Span struct{ Start, End int }

// RenderMarked renders like Render and also finds where special tokens in the
// prompt are not the template's but text of the conversation: a web page that
// says <|im_end|> must not end the turn, nor one that says it in two parts
// which the template joins. The spans, in order, are to be tokenised as ordinary
// text. special lists the texts of the model's control tokens.
//
// It works by rendering a second time with the angle brackets broken in all
// that clients wrote, and comparing. Tags the template itself looks for in the
// model's answers, such as </think>, change the outcome when broken and stay
// unmarked. A token anywhere else that changes more than itself when broken is refused
// with a *FieldError: it cannot be told apart from the template's own.
func (t *Template) RenderMarked(msgs []Message, opt Options, special []string) (string, []Span, error) {
	text, r, err := t.render(msgs, opt)
	if err != nil {
		return "", nil, err
	}
	tokens := newTokenSet(special)
	var found []string // special tokens that clients spelled
	suspect := false   // there is something to break
	jinja.MapStrings(r.said, func(s string) string {
		suspect = suspect || strings.ContainsAny(s, "<>")
		tokens.find(s, func(at Span) {
			if tok := s[at.Start:at.End]; !slices.Contains(found, tok) {
				found = append(found, tok)
			}
		})
		return s
	})
	if !suspect && len(found) == 0 {
		return text, nil, nil
	}
	keep := slices.DeleteFunc(tag.FindAllString(t.source, -1), func(s string) bool { return tokens.texts[s] })
	everything := jinja.MapStrings(r.said, func(s string) string { return broken(s, found, keep) })
	if spans, ok := t.compare(r, text, tokens, everything.(*jinja.Dict)); ok {
		return text, spans, nil
	}
	// What templates look for in the model's own words they leave alone in those of others.
	all, odd := t.marks(r, text, tokens, found, keep, false)
	for _, tok := range odd {
		if t.written(r, text, tok) {
			return "", nil, &FieldError{"messages", fmt.Sprintf("%q in a message or tool cannot be told apart from the "+
				"control token of the same name that the chat template writes; leave it out or spell it differently", tok)}
		}
	}
	answers, _ := t.marks(r, text, tokens, found, keep, true)
	return text, join(append(all, answers...)), nil
}

// written reports whether a token in the words of others than the model may have become one of the prompt.
func (t *Template) written(r *rendering, text, tok string) bool {
	other, err := t.say(r, r.change(false, func(s string) string { return strings.ReplaceAll(s, tok, brokenToken(tok)) }))
	return err != nil || strings.Count(other, tok) != strings.Count(text, tok)
}

// marks finds the tokens in the model's answers, or those in all else, where some of them matter to the template. odd
// are those that cannot be compared.
func (t *Template) marks(r *rendering, text string, tokens *tokenSet, found, keep []string, own bool) (
	all []Span, odd []string) {
	breakAll := func() ([]Span, bool) {
		return t.compare(r, text, tokens, r.change(own, func(s string) string { return broken(s, found, keep) }))
	}
	if spans, ok := breakAll(); ok {
		return spans, nil
	}
	// One by one leaves out only those that matter.
	keep = slices.Clone(keep)
	for _, tok := range found {
		change := func(s string) string { return strings.ReplaceAll(s, tok, brokenToken(tok)) }
		spans, ok := t.compare(r, text, newTokenSet([]string{tok}), r.change(own, change))
		if !ok {
			keep, odd = append(keep, tok), append(odd, tok)
		}
		all = append(all, spans...)
	}
	if spans, ok := breakAll(); ok {
		return spans, odd
	}
	return all, odd
}

// answers are the fields of the assistant's messages that the model wrote as text.
var answers = []string{"content", "reasoning_content"}

// change returns what clients wrote with strings replaced: in the text of the assistant's messages, or in all else.
func (r *rendering) change(own bool, f func(string) string) *jinja.Dict {
	out := jinja.NewDict()
	out.Merge(r.said)
	messages := jinja.NewList()
	list, _ := r.said.Get("messages")
	for _, m := range list.(*jinja.List).Items {
		was := m.(*jinja.Dict)
		now := was
		if !own {
			now = jinja.MapStrings(was, f).(*jinja.Dict)
		}
		if role, _ := was.Get("role"); role == "assistant" {
			changed := jinja.NewDict()
			changed.Merge(now)
			for _, k := range answers {
				if v, ok := was.Get(k); ok {
					if own {
						v = jinja.MapStrings(v, f)
					}
					changed.Set(k, v)
				}
			}
			now = changed
		}
		messages.Items = append(messages.Items, now)
	}
	if !own {
		out = jinja.MapStrings(out, f).(*jinja.Dict)
	}
	out.Set("messages", messages)
	return out
}

// tag is what templates look for in messages.
var tag = regexp.MustCompile(`<[^<>\s'"]+>`)

// compare renders what clients wrote with strings broken and returns the tokens in which that
// shows. It fails when more than that changed.
func (t *Template) compare(r *rendering, text string, tokens *tokenSet, changed *jinja.Dict) ([]Span, bool) {
	other, err := t.say(r, changed)
	if err != nil || len(other) != len(text) {
		return nil, false
	}
	// Nothing else may differ but the broken characters themselves.
	for i := range len(text) {
		if text[i] != other[i] && other[i] != breaker(text[i]) {
			return nil, false
		}
	}
	var spans []Span
	tokens.find(text, func(at Span) {
		if other[at.Start:at.End] != text[at.Start:at.End] {
			spans = append(spans, at)
		}
	})
	return join(spans), true
}

// tokenSet finds tokens in texts. There may be thousands of them.
type tokenSet struct {
	texts   map[string]bool
	lengths []int // that occur
	first   [256]bool
}

func newTokenSet(texts []string) *tokenSet {
	t := &tokenSet{texts: map[string]bool{}}
	for _, s := range texts {
		if s == "" {
			continue
		}
		t.texts[s], t.first[s[0]] = true, true
		if !slices.Contains(t.lengths, len(s)) {
			t.lengths = append(t.lengths, len(s))
		}
	}
	return t
}

// find calls fn for every place where a token stands, also where they overlap.
func (t *tokenSet) find(s string, fn func(Span)) {
	for i := range len(s) {
		if !t.first[s[i]] {
			continue
		}
		for _, n := range t.lengths {
			if i+n <= len(s) && t.texts[s[i:i+n]] {
				fn(Span{i, i + n})
			}
		}
	}
}

// breaker is the character that stands for one when a token is broken: of one byte, not escaped in JSON, and next to it
// in the order of characters, so that templates that sort keys, as Gemma's do, sort them in the same way.
func breaker(c byte) byte {
	switch {
	case c >= utf8.RuneSelf: // a part of a character, all of which is broken
		return '?'
	case c == '[': // JSON escapes what follows
		return 'Z'
	case c == '!':
		return '#'
	}
	return c + 1
}

// broken is a text of the same length without angle brackets, but for those of
// the texts to keep, and without the tokens.
func broken(s string, tokens, keep []string) string {
	b := []byte(s)
	for i := 0; i < len(b); i++ {
		if b[i] != '<' && b[i] != '>' {
			continue
		}
		n := 0
		for _, k := range keep {
			if strings.HasPrefix(s[i:], k) {
				n = max(n, len(k))
			}
		}
		if n > 0 {
			i += n - 1
		} else {
			b[i] = breaker(b[i])
		}
	}
	s = string(b)
	for _, tok := range tokens {
		if !slices.Contains(keep, tok) {
			s = strings.ReplaceAll(s, tok, brokenToken(tok))
		}
	}
	return s
}

// brokenToken is a text of the same length that is no special token. Quotes
// stay, so that it takes as much room when written as JSON.
func brokenToken(tok string) string {
	out := []byte(tok)
	for i, c := range out {
		if c == '<' || c == '>' {
			out[i] = breaker(c)
		}
	}
	if string(out) == tok {
		_, n := utf8.DecodeRuneInString(tok)
		for i := range n {
			out[i] = breaker(out[i])
		}
	}
	return string(out)
}

// join sorts spans and merges those that touch.
func join(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int { return a.Start - b.Start })
	var out []Span
	for _, s := range spans {
		if n := len(out); n > 0 && s.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, s.End)
			continue
		}
		out = append(out, s)
	}
	return out
}
