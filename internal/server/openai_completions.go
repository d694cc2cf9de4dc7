package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
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

type completionResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"` // text_completion, also in streams
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	SystemFingerprint string             `json:"system_fingerprint"`
	Choices           []completionChoice `json:"choices"`
	Usage             any                `json:"usage,omitempty"`
	Timings           *timingsJSON       `json:"timings,omitempty"`
	Strobe            *strobeJSON        `json:"strobe,omitempty"`
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

func (s *Server) completions(w http.ResponseWriter, r *http.Request, q *completionRequest) (any, error) {
	if err := q.refusedFields.check(); err != nil {
		return nil, err
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	a, reqs, err := s.newTextAnswer(r.Context(), q, l.view)
	if err != nil {
		return nil, err
	}
	return s.answer(w, r, l.view, reqs, a.replies, q.Stream, a)
}

// suffixed is the prompt of a text that is to be filled in before the suffix.
func (v *view) suffixed(ctx context.Context, q *completionRequest) ([]textPrompt, error) {
	if q.Echo {
		return nil, invalid("echo", "cannot be used with suffix")
	}
	var prefix string
	if err := decodeJSON(q.Prompt, "prompt", &prefix); err != nil {
		return nil, err
	}
	p, err := v.fill(prefix, q.Suffix, nil, ctx.Done())
	return []textPrompt{p}, err
}

// textAnswer is the answer to a completion request: n choices per prompt.
type textAnswer struct {
	q       *completionRequest
	v       *view
	n       int
	base    completionResponse
	prompts []textPrompt
	replies []*reply
	offset  []int // of each choice, in characters, for log probabilities
}

func (s *Server) newTextAnswer(ctx context.Context, q *completionRequest, v *view) (
	*textAnswer, []engine.Request, error) {
	a := &textAnswer{q: q, v: v, n: 1, base: completionResponse{
		ID: newID("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: v.name,
		SystemFingerprint: s.fingerprint(),
	}}
	if q.N != nil {
		a.n = *q.N
	}
	var err error
	if q.Suffix != "" {
		a.prompts, err = v.suffixed(ctx, q)
	} else {
		a.prompts, err = v.prompts(ctx, "prompt", q.Prompt)
	}
	if err != nil {
		return nil, nil, err
	}
	if total := a.n * len(a.prompts); a.n < 1 || total > maxChoices {
		return nil, nil, invalid("n", "%d choices are not between 1 and %d", total, maxChoices)
	}
	req := s.request(v)
	if err := q.samplingFields.apply(&req, v.tok); err != nil {
		return nil, nil, err
	}
	if q.LogProbs != nil {
		if err := logProbs(&req, "logprobs", *q.LogProbs); err != nil {
			return nil, nil, err
		}
	}
	c := &conversation{budget: -1, raw: true}
	if c.format, err = q.formatFields.format(); err != nil {
		return nil, nil, err
	}
	var reqs []engine.Request
	for _, p := range a.prompts {
		for i := range a.n {
			one := req
			one.Tokens = p.tokens
			one.Params.Seed += uint64(i)
			if one.Constraint, err = v.constraint(c, &dialog.Prompt{}); err != nil {
				return nil, nil, err
			}
			reqs = append(reqs, one)
			rep := newReply(v, nil, nil, q.Stream)
			rep.keepTokens = q.LogProbs != nil
			a.replies = append(a.replies, rep)
		}
	}
	a.offset = make([]int, len(a.replies))
	for i := range a.offset {
		a.offset[i] = utf8.RuneCountInString(a.echo(i))
	}
	return a, reqs, nil
}

// echo is the prompt's text where the answer begins with it.
func (a *textAnswer) echo(i int) string {
	p := a.prompts[i/a.n]
	switch {
	case !a.q.Echo:
		return ""
	case p.text != "":
		return p.text
	}
	return string(a.v.tok.Decode(p.tokens, tokenizer.DecodeOptions{Special: true, Opens: true}))
}

func (a *textAnswer) logProbs(i int, tokens []engine.Token) *textProbsJSON {
	if a.q.LogProbs == nil {
		return nil
	}
	l := &textProbsJSON{Tokens: []string{}, TokenLogProbs: []float64{}, TopLogProbs: []map[string]float64{},
		TextOffset: []int{}}
	for _, t := range tokens {
		e := newTop(a.v.tok, t.ID, t.LogProb)
		l.Tokens = append(l.Tokens, e.Token)
		l.TokenLogProbs = append(l.TokenLogProbs, e.LogProb)
		top := map[string]float64{}
		for _, x := range tops(a.v.tok, t.Top) {
			top[x.Token] = x.LogProb
		}
		l.TopLogProbs = append(l.TopLogProbs, top)
		l.TextOffset = append(l.TextOffset, a.offset[i])
		for _, b := range []byte(e.Token) { // characters, of which a token may have a part
			if utf8.RuneStart(b) {
				a.offset[i]++
			}
		}
	}
	return l
}

func (a *textAnswer) step(int, []delta) error { return nil }

func (a *textAnswer) whole() (any, error) {
	out := a.base
	for i, rep := range a.replies {
		finish := rep.finish()
		out.Choices = append(out.Choices, completionChoice{
			Index: i, Text: a.echo(i) + rep.content.String(), LogProbs: a.logProbs(i, rep.tokens), FinishReason: &finish,
		})
	}
	out.Usage = usage(a.replies, a.n)
	out.Timings = timings(a.replies[0].result)
	return &out, nil
}

func (a *textAnswer) stream(w http.ResponseWriter, r *http.Request, b *batch) {
	st := newStream(w)
	a.base.Usage = a.q.StreamOptions.none()
	begun := make([]bool, len(a.replies))
	err := b.run(r, func(i int, ds []delta) error {
		rep := a.replies[i]
		ch := completionChoice{Index: i}
		if !begun[i] {
			begun[i] = true
			ch.Text = a.echo(i)
		}
		for _, d := range ds {
			ch.Text += d.text
		}
		out := a.base
		if len(rep.tokens) > 0 {
			ch.LogProbs = a.logProbs(i, rep.tokens)
			rep.tokens = rep.tokens[:0]
		}
		if rep.result != nil {
			finish := rep.finish()
			ch.FinishReason = &finish
			if len(a.replies) == 1 {
				out.Timings = timings(rep.result)
			}
		} else if a.q.TimingsPerToken {
			out.Timings = rep.progress(b.gens[i].State(), a.v.engine)
		}
		if ch.Text == "" && ch.FinishReason == nil && ch.LogProbs == nil {
			return nil // all of it is held back
		}
		out.Choices = []completionChoice{ch}
		if a.q.Strobe != nil && a.q.Strobe.Spans {
			out.Strobe = rep.spans(ds)
		}
		if err := st.send("", &out); err != nil {
			return err
		}
		return st.flush()
	}, st.ping)
	if err == nil && a.base.Usage != nil {
		last := a.base
		last.Choices = []completionChoice{}
		last.Usage = usage(a.replies, a.n)
		last.Timings = timings(a.replies[0].result)
		err = st.send("", &last)
	}
	st.end(r, err)
}
