package server

import (
	"encoding/json"
	"net/http"
	"strings"

	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
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
	PostSampling   bool            `json:"post_sampling_probs"`
	ReturnTokens   bool            `json:"return_tokens"`
	ResponseFields []string        `json:"response_fields"`

	InputPrefix string       `json:"input_prefix"` // of infill, like the next ones
	InputSuffix string       `json:"input_suffix"`
	InputExtra  []infillFile `json:"input_extra"`
}

func (s *Server) completion(w http.ResponseWriter, r *http.Request, q *nativeRequest) (any, error) {
	return s.native(w, r, q, func(v *view) ([]textPrompt, error) { return v.prompts(r.Context(), "prompt", q.Prompt) })
}

func (s *Server) infill(w http.ResponseWriter, r *http.Request, q *nativeRequest) (any, error) {
	return s.native(w, r, q, func(v *view) ([]textPrompt, error) {
		prefix := q.InputPrefix
		if kindOf(q.Prompt) != "null" { // begins the middle
			var more string
			if err := decodeJSON(q.Prompt, "prompt", &more); err != nil {
				return nil, err
			}
			prefix += more
		}
		p, err := v.fill(prefix, q.InputSuffix, q.InputExtra, r.Context().Done())
		return []textPrompt{p}, err
	})
}

func (s *Server) native(w http.ResponseWriter, r *http.Request, q *nativeRequest,
	prompts func(*view) ([]textPrompt, error)) (any, error) {
	if err := q.refusedFields.check(); err != nil {
		return nil, err
	}
	if q.PostSampling {
		return nil, invalid("post_sampling_probs", "is not supported; probabilities are the model's")
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	a := &nativeAnswer{q: q, v: l.view}
	if a.prompts, err = prompts(l.view); err != nil {
		return nil, err
	}
	if len(a.prompts) > maxChoices {
		return nil, invalid("prompt", "has %d entries; at most %d are allowed", len(a.prompts), maxChoices)
	}
	a.req = s.request(l.view)
	if err := q.samplingFields.apply(&a.req, l.tok); err != nil {
		return nil, err
	}
	if q.NProbs != 0 {
		if err := logProbs(&a.req, "n_probs", q.NProbs); err != nil {
			return nil, err
		}
	}
	c := &conversation{budget: -1, raw: true}
	if c.format, err = q.formatFields.format(); err != nil {
		return nil, err
	}
	reqs, replies := make([]engine.Request, len(a.prompts)), make([]*reply, len(a.prompts))
	for i, p := range a.prompts {
		reqs[i] = a.req
		reqs[i].Tokens = p.tokens
		if reqs[i].Constraint, err = l.constraint(c, &dialog.Prompt{}); err != nil {
			return nil, err
		}
		replies[i] = newReply(l.view, nil, nil, q.Stream)
		replies[i].keepTokens = true
	}
	a.replies = replies
	return s.answer(w, r, l.view, reqs, replies, q.Stream, a)
}

// nativeAnswer is an answer in llama.cpp's shape.
type nativeAnswer struct {
	q       *nativeRequest
	v       *view
	req     engine.Request
	prompts []textPrompt
	replies []*reply
}

// part is what chunks and whole answers have in common, with the tokens since the last.
func (a *nativeAnswer) part(i int, content string) map[string]any {
	rep := a.replies[i]
	out := map[string]any{
		"index": i, "content": content, "tokens": []int32{}, "stop": false, "id_slot": -1,
		"tokens_predicted": rep.count, "tokens_evaluated": len(a.prompts[i].tokens),
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
			p := prob{ID: t.ID, topJSON: newTop(a.v.tok, t.ID, t.LogProb)}
			for _, x := range t.Top {
				p.Top = append(p.Top, prob{ID: x.ID, topJSON: newTop(a.v.tok, x.ID, x.LP)})
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
	res, p := a.replies[i].result, &a.req.Params
	kinds := map[engine.Reason]string{engine.ReasonEOG: "eos", engine.ReasonLength: "limit", engine.ReasonStop: "word"}
	kind := kinds[res.Reason]
	if kind == "" {
		kind = "none"
	}
	prompt := a.prompts[i].text
	if prompt == "" {
		prompt = string(a.v.tok.Decode(a.prompts[i].tokens, tokenizer.DecodeOptions{Special: true, Opens: true}))
	}
	limit := -1
	if a.req.MaxTokens > 0 || a.req.PromptOnly {
		limit = a.req.MaxTokens
	}
	for k, v := range map[string]any{
		"stop": true, "model": a.v.name, "prompt": prompt, "id_slot": res.Slot, "truncated": false,
		"stop_type": kind, "stopping_word": res.Stop, "has_new_line": strings.Contains(a.replies[i].content.String(), "\n"),
		"tokens_cached": res.Prompt + res.Generated, "tokens_predicted": res.Generated, "timings": timings(res),
		"generation_settings": map[string]any{
			"n_predict": limit, "seed": p.Seed, "temperature": p.Temp, "top_k": p.TopK, "top_p": p.TopP,
			"min_p": p.MinP, "typical_p": p.TypicalP,
			"repeat_penalty": p.RepeatPenalty, "repeat_last_n": p.RepeatLastN, "presence_penalty": p.PresencePenalty,
			"frequency_penalty": p.FrequencyPenalty, "stop": append([]string{}, a.req.Stops...),
			"n_probs": a.q.NProbs, "grammar": a.q.Grammar, "ignore_eos": a.req.IgnoreEOG, "stream": a.q.Stream,
			"n_ctx": a.v.engine.Config().Context,
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

func (a *nativeAnswer) step(int, []delta) error { return nil }

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

func (a *nativeAnswer) stream(w http.ResponseWriter, r *http.Request, b *batch) {
	st := newStream(w)
	err := b.run(r, func(i int, ds []delta) error {
		rep, content := a.replies[i], ""
		for _, d := range ds {
			content += d.text
		}
		if content != "" || len(rep.tokens) > 0 || rep.prompt != nil {
			out := a.part(i, content)
			out["id_slot"] = b.gens[i].State().Slot
			if rep.prompt != nil {
				out["prompt_progress"], rep.prompt = rep.prompt, nil
			}
			if a.q.TimingsPerToken {
				out["timings"] = rep.progress(b.gens[i].State(), a.v.engine)
			}
			if err := st.send("", out); err != nil {
				return err
			}
		}
		if rep.result != nil {
			if err := st.send("", a.end(i, a.part(i, ""))); err != nil {
				return err
			}
		}
		return st.flush()
	}, st.ping)
	if err != nil {
		st.fail(r, err)
	}
}

// embedding is llama.cpp's POST /embedding: its texts are content, and each vector is in a list of its own.
func (s *Server) embedding(w http.ResponseWriter, r *http.Request, q *nativeEmbedding) (any, error) {
	if kindOf(q.Content) == "null" {
		return nil, invalid("content", "is missing")
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	data, _, err := l.embed(r, &embeddingRequest{Input: q.Content})
	if err != nil {
		return nil, err
	}
	out := make([]map[string]any, len(data))
	for i, d := range data {
		out[i] = map[string]any{"index": i, "embedding": []any{d.Embedding}}
	}
	return out, nil
}

type nativeEmbedding struct {
	Model   string          `json:"model"`
	Content json.RawMessage `json:"content"`
}
