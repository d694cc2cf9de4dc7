package server

import (
	"encoding/json"
	"math"
	"time"

	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
)

// usageJSON is OpenAI's count of tokens.
type usageJSON struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
		shortened
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// shortened is what speculative prefill left of a prompt: tokens the client sent, and those the model read. Both are
// missing when nothing was left out.
type shortened struct {
	SeenTokens int `json:"seen_tokens,omitempty"`
	KeptTokens int `json:"kept_tokens,omitempty"`
}

func (s *shortened) add(r *engine.Result) {
	if r.Seen > 0 {
		s.SeenTokens += r.Seen
		s.KeptTokens += r.Prompt
	}
}

// usage adds up the replies of a request. Choices share their prompt.
func usage(replies []*reply, shared int) *usageJSON {
	u := &usageJSON{}
	for i, r := range replies {
		if r.result == nil {
			continue
		}
		if i%shared == 0 {
			u.PromptTokens += r.result.Prompt
			u.PromptDetails.CachedTokens += r.result.Cached
			u.PromptDetails.add(r.result)
		}
		u.CompletionTokens += r.result.Generated
		u.CompletionDetails.ReasoningTokens += r.thinkTokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// timingsJSON is llama.cpp's account of where the time went, with our additions at the end.
type timingsJSON struct {
	CacheN              int     `json:"cache_n"`
	PromptN             int     `json:"prompt_n"`
	PromptMS            float64 `json:"prompt_ms"`
	PromptPerTokenMS    float64 `json:"prompt_per_token_ms"`
	PromptPerSecond     float64 `json:"prompt_per_second"`
	PredictedN          int     `json:"predicted_n"`
	PredictedMS         float64 `json:"predicted_ms"`
	PredictedPerTokenMS float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond  float64 `json:"predicted_per_second"`

	DraftN         *int    `json:"draft_n,omitempty"`
	DraftNAccepted *int    `json:"draft_n_accepted,omitempty"`
	DraftCycles    int     `json:"draft_cycles,omitempty"`
	AcceptLenMean  float64 `json:"accept_len_mean,omitempty"` // tokens per pass of the target
	DraftMS        float64 `json:"draft_ms,omitempty"`
	VerifyMS       float64 `json:"verify_ms,omitempty"`
	PlainPerSecond float64 `json:"plain_per_second,omitempty"` // what decoding without drafts would reach
	SpeedupEst     float64 `json:"speedup_est,omitempty"`
	QueuedMS       float64 `json:"queued_ms,omitempty"`
	FirstMS        float64 `json:"first_token_ms,omitempty"` // from the request's arrival in the queue
	ForgottenN     int     `json:"forgotten_n,omitempty"`    // tokens dropped when the context was full

	DraftSources map[string]sourceJSON `json:"draft_sources,omitempty"` // by name, of those that were asked
}

// sourceJSON is what one source of drafts did.
type sourceJSON struct {
	Drafts   int     `json:"drafts"`  // times that it was asked for guesses
	Bad      int     `json:"bad"`     // of them, those without a usable token, such as guesses that are not numbers
	Right    int     `json:"right"`   // of them, those whose first guess was right, verified or not
	Failed   int     `json:"failed"`  // answers that went on without it, because of an error or of bad drafts in a row
	Guessed  int     `json:"draft_n"` // guesses that were verified
	Accepted int     `json:"draft_n_accepted"`
	DraftMS  float64 `json:"draft_ms"` // of its drafts
}

// sourcesJSON is what each source of drafts did.
func sourcesJSON(st *speculate.Stats) map[string]sourceJSON {
	out := map[string]sourceJSON{}
	for name, x := range st.BySource {
		out[name] = sourceJSON{x.Drafts, x.Bad, x.Right, x.Failed, x.Guessed, x.Accepted, ms(x.Draft)}
	}
	return out
}

// perSecond and perToken are finite whatever happened.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 || n <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func perToken(d time.Duration, n int) float64 {
	if n <= 0 {
		return 0
	}
	return ms(d) / float64(n)
}

// timings accounts for a generation that ended.
func timings(res *engine.Result) *timingsJSON {
	st := &res.Stats
	t := &timingsJSON{
		CacheN: res.Cached, PromptN: st.Prompt, PromptMS: ms(st.PromptTime),
		PromptPerTokenMS: perToken(st.PromptTime, st.Prompt), PromptPerSecond: perSecond(st.Prompt, st.PromptTime),
		PredictedN: res.Generated, PredictedMS: ms(st.DecodeTime),
		PredictedPerTokenMS: perToken(st.DecodeTime, res.Generated-1),
		PredictedPerSecond:  perSecond(res.Generated-1, st.DecodeTime),
		QueuedMS:            ms(res.Queued), FirstMS: ms(res.First), ForgottenN: res.Forgotten,
	}
	if st.Guessed > 0 {
		t.DraftN, t.DraftNAccepted = &st.Guessed, &st.Accepted
		t.DraftCycles, t.AcceptLenMean = st.Drafts, st.Mean()
		t.DraftMS, t.VerifyMS = ms(st.Draft), ms(st.Verify)
	}
	t.DraftSources = sourcesJSON(st)
	if st.PlainCost > 0 {
		t.PlainPerSecond = 1 / st.PlainCost.Seconds()
		t.SpeedupEst = st.SpeedUp()
	}
	return t
}

// timingsSoFar accounts for a generation that is still running. What plain decoding would reach is known from
// generations that ended before.
func (r *reply) timingsSoFar() *timingsJSON {
	s := r.gen.State()
	t := &timingsJSON{CacheN: s.Cached, PromptN: max(0, s.Processed-s.Cached), PredictedN: r.count}
	if !r.firstAt.IsZero() {
		d := time.Since(r.firstAt)
		t.PredictedMS = ms(d)
		t.PredictedPerTokenMS = perToken(d, r.count-1)
		t.PredictedPerSecond = perSecond(r.count-1, d)
	}
	if r.engine != nil {
		if cost := r.engine.Snapshot().Stats.PlainCost; cost > 0 {
			t.PlainPerSecond = 1 / cost.Seconds()
		}
	}
	return t
}

// promptProgress is llama.cpp's account of a prompt that is being read.
type promptProgress struct {
	Total     int     `json:"total"`
	Cache     int     `json:"cache"`
	Processed int     `json:"processed"` // with what was cached
	TimeMS    float64 `json:"time_ms"`
}

// readSome adds the progress in an event. The first report says how much was cached. The last one, sent before the
// answer, says that the whole prompt was read: the engine reports progress only between the passes of a long prompt.
func (r *reply) readSome(ev *engine.Event) {
	s := ev.Prompt
	switch {
	case s == nil && len(ev.Tokens) == 0:
		return
	case len(ev.Tokens) > 0: // whatever else it says is older
		now := r.gen.State()
		now.Processed = now.Prompt
		s = &now
	}
	report := func(processed int) {
		r.lastRead = &promptProgress{Total: s.Prompt, Cache: s.Cached, Processed: processed, TimeMS: ms(time.Since(r.began))}
		r.reading = append(r.reading, r.lastRead)
	}
	if r.lastRead == nil {
		report(s.Cached)
	}
	if s.Processed > r.lastRead.Processed {
		report(s.Processed)
	}
}

// strobeJSON is what only this server says, in chunks of requests that ask for it.
type strobeJSON struct {
	Spans   []spanJSON `json:"spans"`   // the text of the chunk, by token
	Drafted []bool     `json:"drafted"` // of every token since the last chunk, also those without text
}

// spanJSON is a piece of the chunk's text from one token.
type spanJSON struct {
	Kind    string `json:"kind"` // content or reasoning
	Text    string `json:"text"`
	Drafted bool   `json:"drafted"` // the token was guessed by the drafter and accepted
}

// spans is the native part of a chunk. It takes the flags the reply has gathered.
func (r *reply) spans(ds []delta) *strobeJSON {
	s := &strobeJSON{Spans: []spanJSON{}, Drafted: append([]bool{}, r.drafted...)}
	r.drafted = r.drafted[:0]
	for _, d := range ds {
		if d.kind == parse.Content || d.kind == parse.Reasoning {
			s.Spans = append(s.Spans, spanJSON{d.kind.String(), d.text, d.drafted})
		}
	}
	return s
}

// itemCost is what an item takes besides its JSON, roughly: entries of maps and lists.
const itemCost = 256

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// none is the usage of chunks before the last: null where it will come, else nothing.
func (o *streamOptions) none() any {
	if o == nil || !o.IncludeUsage {
		return nil
	}
	return json.RawMessage("null")
}

// minLogProb stands for impossible, which JSON cannot say.
const minLogProb = -9999

type logProbsJSON struct {
	Content []logProbJSON `json:"content"`
}

type logProbJSON struct {
	topJSON
	Top []topJSON `json:"top_logprobs"`
}

type topJSON struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func newTop(tok *tokenizer.Tokenizer, id int32, lp float64) topJSON {
	piece := tok.Piece(id, true)
	t := topJSON{Token: string(piece), LogProb: max(lp, minLogProb), Bytes: make([]int, len(piece))}
	if math.IsNaN(lp) {
		t.LogProb = minLogProb
	}
	for i, b := range piece {
		t.Bytes[i] = int(b)
	}
	return t
}

func newLogProbs(tok *tokenizer.Tokenizer, tokens []engine.Token) *logProbsJSON {
	l := &logProbsJSON{Content: []logProbJSON{}}
	for _, t := range tokens {
		e := logProbJSON{topJSON: newTop(tok, t.ID, t.LogProb), Top: tops(tok, t.Top)}
		l.Content = append(l.Content, e)
	}
	return l
}

func tops(tok *tokenizer.Tokenizer, top []sample.LogProb) []topJSON {
	out := []topJSON{}
	for _, x := range top {
		out = append(out, newTop(tok, x.ID, x.LP))
	}
	return out
}
