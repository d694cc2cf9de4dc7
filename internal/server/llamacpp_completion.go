package server

import (
	"encoding/json"
	"net/http"
	"strings"

	"strobe/internal/dialog"
	"strobe/internal/engine"
)

// nativeRequest is the body of llama.cpp's POST /completion and POST /infill.
type nativeRequest struct {
	samplingFields
	formatFields
	refusedFields
	Model          string          `json:"model"`
	Prompt         json.RawMessage `json:"prompt"`
	Stream         bool            `json:"stream"`
	NProbs         int             `json:"n_probs"`
	NCompletions   *int            `json:"n_cmpl"`
	N              *int            `json:"n"` // the same
	ReturnTokens   bool            `json:"return_tokens"`
	ResponseFields []string        `json:"response_fields"`

	InputPrefix string       `json:"input_prefix"` // of infill, like the next ones
	InputSuffix string       `json:"input_suffix"`
	InputExtra  []infillFile `json:"input_extra"`
}

func (s *llamaCPP) completion(w http.ResponseWriter, r *http.Request, q *nativeRequest) (any, error) {
	return s.answer(w, r, q, func(m *model) ([]*dialog.Prompt, error) {
		list, err := m.prompts(r.Context(), "prompt", q.Prompt)
		if n := max(1, len(list)) * max(1, q.completions()); err == nil && n > maxChoices {
			err = invalid("prompt", "has %d answers; at most %d are allowed", n, maxChoices)
		}
		return list, err
	})
}

// completions is how many answers each prompt gets.
func (q *nativeRequest) completions() int {
	for _, n := range []*int{q.NCompletions, q.N} {
		if n != nil {
			return *n
		}
	}
	return 1
}

func (s *llamaCPP) infill(w http.ResponseWriter, r *http.Request, q *nativeRequest) (any, error) {
	for i, f := range q.InputExtra {
		if f.Name == nil || f.Text == nil {
			return nil, invalid("input_extra"+index(i), "must have a filename and a text")
		}
	}
	return s.answer(w, r, q, func(m *model) ([]*dialog.Prompt, error) {
		prefix := q.InputPrefix
		if kindOf(q.Prompt) != "null" { // begins the middle
			var more string
			if err := decodeJSON(q.Prompt, "prompt", &more); err != nil {
				return nil, err
			}
			prefix += more
		}
		p, err := m.fill(prefix, q.InputSuffix, q.InputExtra, r.Context().Done())
		return []*dialog.Prompt{p}, err
	})
}

func (s *llamaCPP) answer(w http.ResponseWriter, r *http.Request, q *nativeRequest,
	prompts func(*model) ([]*dialog.Prompt, error)) (any, error) {
	if err := q.refusedFields.check(); err != nil {
		return nil, err
	}
	c := newConversation(q.Model, &q.samplingFields, q.Stream)
	if c.choices = q.completions(); c.choices < 1 || c.choices > maxChoices {
		return nil, invalid("n_cmpl", "%d is not between 1 and %d", c.choices, maxChoices)
	}
	c.raw, c.prompts = true, prompts
	var err error
	if c.format, err = q.formatFields.format(); err != nil {
		return nil, err
	}
	if q.NProbs != 0 {
		if err := c.wantLogProbs("n_probs", q.NProbs); err != nil {
			return nil, err
		}
	}
	return s.converse(w, r, c, func(x *exchange) answer {
		for _, rep := range x.replies {
			rep.keepTokens = true
		}
		return &nativeAnswer{x, q}
	})
}

// nativeAnswer is an answer in llama.cpp's shape.
type nativeAnswer struct {
	*exchange
	q *nativeRequest
}

// part is what chunks and whole answers have in common, with the tokens since the last.
func (a *nativeAnswer) part(i int, content string) map[string]any {
	rep := a.replies[i]
	out := map[string]any{
		"index": i, "content": content, "tokens": []int32{}, "stop": false, "id_slot": -1,
		"tokens_predicted": rep.count, "tokens_evaluated": len(rep.prompt.Tokens),
	}
	if a.q.ReturnTokens || a.q.Stream {
		ids := make([]int32, len(rep.tokens))
		for i, t := range rep.tokens {
			ids[i] = t.ID
		}
		out["tokens"] = ids
	}
	if a.q.NProbs > 0 {
		type prob struct {
			ID int32 `json:"id"`
			topJSON
			Top []prob `json:"top_logprobs,omitempty"`
		}
		probs := []prob{}
		for _, t := range rep.tokens {
			p := prob{ID: t.ID, topJSON: newTop(rep.tok, t.ID, t.LogProb)}
			for _, x := range t.Top {
				p.Top = append(p.Top, prob{ID: x.ID, topJSON: newTop(rep.tok, x.ID, x.LP)})
			}
			probs = append(probs, p)
		}
		out["completion_probabilities"] = probs
	}
	rep.tokens = rep.tokens[:0]
	return out
}

// end adds what is known at the end.
func (a *nativeAnswer) end(i int, out map[string]any) map[string]any {
	rep := a.replies[i]
	res, p := rep.result, &a.req.Params
	kinds := map[engine.Reason]string{engine.ReasonEOG: "eos", engine.ReasonLength: "limit", engine.ReasonStop: "word"}
	kind := kinds[res.Reason]
	if kind == "" {
		kind = "none"
	}
	limit := -1
	if a.req.MaxTokens > 0 || a.req.PromptOnly {
		limit = a.req.MaxTokens
	}
	for k, v := range map[string]any{
		"stop": true, "model": a.name, "prompt": rep.promptText(), "id_slot": res.Slot, "truncated": res.Forgotten > 0,
		"stop_type": kind, "stopping_word": res.Stop, "has_new_line": strings.Contains(rep.content.String(), "\n"),
		"tokens_cached": res.Prompt + res.Generated, "tokens_predicted": res.Generated, "timings": timings(res),
		"generation_settings": map[string]any{
			"n_predict": limit, "seed": p.Seed, "temperature": p.Temp, "top_k": p.TopK, "top_p": p.TopP,
			"min_p": p.MinP, "typical_p": p.TypicalP,
			"repeat_penalty": p.RepeatPenalty, "repeat_last_n": p.RepeatLastN, "presence_penalty": p.PresencePenalty,
			"frequency_penalty": p.FrequencyPenalty, "stop": append([]string{}, a.req.Stops...),
			"n_probs": a.q.NProbs, "grammar": a.q.Grammar, "ignore_eos": a.req.IgnoreEOG, "stream": a.q.Stream,
			"n_ctx": rep.engine.Config().Context,
		},
	} {
		out[k] = v
	}
	return a.chosen(out)
}

// chosen leaves the fields that the request wants, each under its path.
func (a *nativeAnswer) chosen(m map[string]any) map[string]any {
	if len(a.q.ResponseFields) == 0 {
		return m
	}
	out := map[string]any{}
	for _, path := range a.q.ResponseFields {
		var v any = m
		for key := range strings.SplitSeq(path, "/") {
			inside, _ := v.(map[string]any)
			v = inside[key]
		}
		if v != nil {
			out[path] = v
		}
	}
	return out
}

func (a *nativeAnswer) whole() (any, error) {
	out := make([]any, len(a.replies))
	for i, rep := range a.replies {
		out[i] = a.end(i, a.part(i, rep.content.String()))
	}
	if len(out) == 1 {
		return out[0], nil
	}
	return out, nil
}

func (a *nativeAnswer) chunk(i int, ds []delta) {
	rep, content := a.replies[i], ""
	for _, d := range ds {
		content += d.text
	}
	for _, p := range rep.reading {
		a.st.send("", map[string]any{"index": i, "content": "", "tokens": []int32{}, "stop": false,
			"id_slot": rep.gen.State().Slot, "tokens_predicted": 0, "tokens_evaluated": p.Total, "prompt_progress": p})
	}
	rep.reading = nil
	if content != "" || len(rep.tokens) > 0 {
		out := a.part(i, content)
		out["id_slot"] = rep.gen.State().Slot
		if a.q.TimingsPerToken {
			out["timings"] = rep.timingsSoFar()
		}
		a.st.send("", out)
	}
	if rep.result != nil {
		a.st.send("", a.end(i, a.part(i, "")))
	}
}

// embedding is llama.cpp's POST /embedding: its texts are content, and each vector is in a list of its own.
func (s *llamaCPP) embedding(w http.ResponseWriter, r *http.Request, q *nativeEmbedding) (any, error) {
	if kindOf(q.Content) == "null" {
		return nil, invalid("content", "is missing")
	}
	if q.Normalize != nil && *q.Normalize != 2 {
		return nil, invalid("embd_normalize", "%d is not supported; vectors have the length 1, which is 2", *q.Normalize)
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	vectors, _, err := l.embed(r.Context(), q.Content, nil, false)
	if err != nil {
		return nil, err
	}
	out := make([]map[string]any, len(vectors))
	for i, x := range vectors {
		out[i] = map[string]any{"index": i, "embedding": []any{x}}
	}
	return out, nil
}

type nativeEmbedding struct {
	Model   string          `json:"model"`
	Content json.RawMessage `json:"content"`

	Normalize *int `json:"embd_normalize"`
}
