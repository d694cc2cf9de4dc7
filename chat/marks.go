package chat

import (
	"slices"
	"strings"

	"strobe/chat/jinja"
)

// Span is a range of bytes of a prompt.
type Span struct{ Start, End int }

// RenderMarked renders like Render and also finds where special tokens in the
// prompt are not the template's but text of the conversation: a web page that
// says <|im_end|> must not end the turn. The spans, in order, are to be
// tokenised as plain text. special lists the texts of the model's control
// tokens.
//
// It works by rendering a second time with those texts broken in the messages,
// and comparing. Tokens the template itself looks for in messages, such as
// </think>, change the outcome when broken and stay unmarked.
func (t *Template) RenderMarked(msgs []Message, opt Options, special []string) (string, []Span, error) {
	text, r, err := t.render(msgs, opt)
	if err != nil {
		return "", nil, err
	}
	var found []string
	jinja.MapStrings(r.list, func(s string) string {
		for _, tok := range special {
			if tok != "" && strings.Contains(s, tok) && !slices.Contains(found, tok) {
				found = append(found, tok)
			}
		}
		return s
	})
	if len(found) == 0 {
		return text, nil, nil
	}
	// All at once is the usual case; one by one leaves out only those that matter
	// to the template.
	if spans, ok := t.compare(r, text, found); ok {
		return text, spans, nil
	}
	var all []Span
	for _, tok := range found {
		if spans, ok := t.compare(r, text, []string{tok}); ok {
			all = append(all, spans...)
		}
	}
	return text, join(all), nil
}

// compare renders with the tokens broken and returns where that shows. It
// fails when more than that changed.
func (t *Template) compare(r *rendering, text string, tokens []string) ([]Span, bool) {
	list := jinja.MapStrings(r.list, func(s string) string {
		for _, tok := range tokens {
			s = strings.ReplaceAll(s, tok, broken(tok))
		}
		return s
	})
	other, err := t.again(r, list.(*jinja.List))
	if err != nil || len(other) != len(text) {
		return nil, false
	}
	var spans []Span
	for _, tok := range tokens {
		for at := 0; ; {
			i := strings.Index(text[at:], tok)
			if i < 0 {
				break
			}
			at += i
			if other[at:at+len(tok)] != tok {
				spans = append(spans, Span{at, at + len(tok)})
			}
			at++
		}
	}
	// Nothing else may differ but the broken characters themselves.
	for i := range len(text) {
		if text[i] != other[i] && other[i] != breaker {
			return nil, false
		}
	}
	return join(spans), true
}

// breaker is a character of one byte that no special token has and that JSON
// does not escape.
const breaker = 0x7f

// broken is a text of the same length that is no special token. Quotes stay,
// so that it takes as much room when written as JSON.
func broken(tok string) string {
	out := strings.Map(func(r rune) rune {
		if r == '<' || r == '>' {
			return breaker
		}
		return r
	}, tok)
	if out == tok {
		return string(rune(breaker)) + tok[1:]
	}
	return out
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
