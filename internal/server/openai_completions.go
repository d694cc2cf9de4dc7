package server

import (
	"context"
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"strobe/internal/dialog"
)

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	samplingFields
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	Suffix        string          `json:"suffix"`
	Echo          bool            `json:"echo"`
	Stream        bool            `json:"stream"`
	StreamOptions *streamOptions  `json:"stream_options"`
	N             *int            `json:"n"`
	LogProbs      *int            `json:"logprobs"`
	formatFields
	refusedFields
}

type completionChoice struct {
	Index        int            `json:"index"`
	Text         string         `json:"text"`
	LogProbs     *textProbsJSON `json:"logprobs"`
	FinishReason *string        `json:"finish_reason"`
}

// textProbsJSON is the older shape of log probabilities.
type textProbsJSON struct {
	Tokens        []string             `json:"tokens"`
	TokenLogProbs []float64            `json:"token_logprobs"`
	TopLogProbs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

func (s *openAI) completions(w http.ResponseWriter, r *http.Request, q *completionRequest) (any, error) {
	if err := q.refusedFields.check(); err != nil {
		return nil, err
	}
	c := newConversation(q.Model, &q.samplingFields, q.Stream)
	c.raw = true
	if q.N != nil {
		c.choices = *q.N
	}
	c.prompts = func(m *model) (list []*dialog.Prompt, err error) {
		if q.Suffix != "" {
			list, err = q.suffixed(r.Context(), m)
		} else {
			list, err = m.prompts(r.Context(), "prompt", q.Prompt)
		}
		if total := c.choices * len(list); err == nil && (c.choices < 1 || total > maxChoices) {
			err = invalid("n", "%d choices are not between 1 and %d", total, maxChoices)
		}
		return list, err
	}
	var err error
	if c.format, err = q.formatFields.format(); err != nil {
		return nil, err
	}
	if q.LogProbs != nil {
		if err := c.wantLogProbs("logprobs", *q.LogProbs); err != nil {
			return nil, err
		}
	}
	return s.converse(w, r, c, func(x *exchange) answer {
		a := &textAnswer{q: q, choicesAnswer: newChoicesAnswer[completionChoice](x, "cmpl-", "text_completion", c.choices,
			q.StreamOptions)}
		for _, rep := range x.replies {
			a.offset = append(a.offset, utf8.RuneCountInString(a.echo(rep)))
		}
		return a
	})
}

// suffixed returns the prompt of a text that is filled in before the suffix.
func (q *completionRequest) suffixed(ctx context.Context, m *model) ([]*dialog.Prompt, error) {
	if q.Echo {
		return nil, invalid("echo", "cannot be used with suffix")
	}
	var prefix string
	if err := decodeJSON(q.Prompt, "prompt", &prefix); err != nil {
		return nil, err
	}
	p, err := m.fill(prefix, q.Suffix, nil, ctx.Done())
	return []*dialog.Prompt{p}, err
}

// textAnswer is the answer to a completion request: n choices per prompt.
type textAnswer struct {
	choicesAnswer[completionChoice]
	q      *completionRequest
	offset []int // of each choice, in characters, for log probabilities
}

// echo is the prompt's text where the answer begins with it.
func (a *textAnswer) echo(rep *reply) string {
	if !a.q.Echo {
		return ""
	}
	return rep.promptText()
}

func (a *textAnswer) logProbs(i int) *textProbsJSON {
	if a.q.LogProbs == nil {
		return nil
	}
	tok := a.replies[i].tok
	l := &textProbsJSON{Tokens: []string{}, TokenLogProbs: []float64{}, TopLogProbs: []map[string]float64{},
		TextOffset: []int{}}
	for _, t := range a.replies[i].tokens {
		e := newTop(tok, t.ID, t.LogProb)
		l.Tokens = append(l.Tokens, e.Token)
		l.TokenLogProbs = append(l.TokenLogProbs, e.LogProb)
		top := map[string]float64{}
		for _, x := range tops(tok, t.Top) {
			top[x.Token] = x.LogProb
		}
		l.TopLogProbs = append(l.TopLogProbs, top)
		l.TextOffset = append(l.TextOffset, a.offset[i])
		for _, b := range []byte(e.Token) { // counts characters; a token may hold a part of one
			if utf8.RuneStart(b) {
				a.offset[i]++
			}
		}
	}
	return l
}

func (a *textAnswer) whole() (any, error) {
	var choices []completionChoice
	for i, rep := range a.replies {
		finish := rep.finish()
		choices = append(choices, completionChoice{
			Index: i, Text: a.echo(rep) + rep.content.String(), LogProbs: a.logProbs(i), FinishReason: &finish,
		})
	}
	return a.total(choices), nil
}

func (a *textAnswer) chunk(i int, ds []delta) {
	rep := a.replies[i]
	ch := completionChoice{Index: i}
	a.progress(rep, ch)
	if !a.begun[i] {
		a.begun[i] = true
		ch.Text = a.echo(rep)
	}
	for _, d := range ds {
		ch.Text += d.text
	}
	out := a.base
	if len(rep.tokens) > 0 {
		ch.LogProbs = a.logProbs(i)
		rep.tokens = rep.tokens[:0]
	}
	if rep.result != nil {
		finish := rep.finish()
		ch.FinishReason = &finish
		if len(a.replies) == 1 {
			out.Timings = timings(rep.result)
		}
	} else if a.q.TimingsPerToken {
		out.Timings = rep.timingsSoFar()
	}
	if ch.Text == "" && ch.FinishReason == nil && ch.LogProbs == nil {
		return // all of it is held back
	}
	out.Choices = []completionChoice{ch}
	if a.q.Strobe != nil && a.q.Strobe.Spans {
		out.Strobe = rep.spans(ds)
	}
	a.st.send("", &out)
	a.endStream()
}
