package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strconv"
	"time"
	"unicode/utf8"

	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
)

// llamaCPP answers the endpoints of llama.cpp's server.
type llamaCPP struct{ *core }

func (s *llamaCPP) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"GET /health":         s.health,
		"GET /v1/health":      s.health,
		"GET /props":          s.props,
		"POST /props":         post(s.core, s.changeProps),
		"GET /slots":          s.slots,
		"POST /slots/{id}":    optional(post(s.core, s.slotAction)),
		"POST /models/load":   post(s.core, s.loadModel),
		"POST /models/unload": post(s.core, s.unloadModel),
		"POST /v1/rerank":     post(s.core, s.rerank),
		"POST /rerank":        post(s.core, s.rerank),
		"POST /v1/reranking":  post(s.core, s.rerank),
		"POST /reranking":     post(s.core, s.rerank),
		"POST /completion":    post(s.core, s.completion),
		"POST /infill":        post(s.core, s.infill),
		"POST /embedding":     post(s.core, s.embedding),
		"POST /tokenize":      post(s.core, s.tokenize),
		"POST /detokenize":    post(s.core, s.detokenize),
	}
}

// health says whether the server can answer. It fails when the server's only model has stopped by a defect; a broken
// file in a folder of models is a matter of that one.
func (s *llamaCPP) health(w http.ResponseWriter, r *http.Request) (any, error) {
	if s.models().alone() {
		for _, m := range s.models().List() {
			if m.State == engine.StateFailed && m.Err != nil {
				return nil, unavailable(withoutPaths(m.Err))
			}
		}
	}
	return map[string]string{"status": "ok"}, nil
}

// props shows the effective configuration of a model: what runs, not what was asked for.
func (s *llamaCPP) props(w http.ResponseWriter, r *http.Request) (any, error) {
	v, err := s.loaded(r.URL.Query().Get("model"))
	if err != nil {
		// Nothing is loaded; what the server itself knows is still worth showing.
		return map[string]any{"build_info": s.fingerprint(), "total_slots": 0, "models": len(s.models().List()),
			"pull": s.pull.Load() != nil, "mcp": s.mcpNames()}, nil
	}
	cfg, m := v.engine.Config(), v.engine.Model()
	req := s.defaults(v)
	p := req.Params
	out := map[string]any{
		"default_generation_settings": map[string]any{
			"n_ctx": cfg.Context,
			"params": map[string]any{
				"temperature": p.Temp, "top_k": p.TopK, "top_p": p.TopP, "min_p": p.MinP, "typical_p": p.TypicalP,
				"repeat_penalty": p.RepeatPenalty, "presence_penalty": p.PresencePenalty, "frequency_penalty": p.FrequencyPenalty,
				"repeat_last_n": p.RepeatLastN, "max_tokens": req.MaxTokens,
			},
		},
		"total_slots":   cfg.Parallel,
		"queue":         cfg.Queue,
		"pull":          s.pull.Load() != nil, // models can be downloaded through /api/pull
		"mcp":           s.mcpNames(),
		"model_alias":   v.name,
		"model_path":    filepath.Base(m.Path), // clients have no business with folders
		"build_info":    s.fingerprint(),
		"chat_template": v.template.Source(),
		"chat_template_caps": map[string]bool{
			"supports_tools":    v.template.Tools() && parse.Calls(v.template.Source()),
			"supports_thinking": v.template.Thinking() || parse.Harmony(v.template.Source()), "fallback": v.template.Fallback(),
		},
		"modalities": map[string]bool{"vision": m.Vision != nil, "audio": false},
		"bos_token":  v.format.BOS,
		"eos_token":  v.format.EOS,
		"model": map[string]any{
			"arch": m.Target.Arch, "n_ctx_train": m.Target.Context, "n_vocab": m.Target.Vocab, "n_embd": m.Target.Hidden,
			"n_layer": m.Target.Layers, "size": m.Target.WeightBytes(), "recurrent": m.Target.Recurrent,
			"n_expert": m.Target.Experts,
		},
		"runtime": map[string]any{
			"backend": m.Backend().Name(), "chunk": cfg.Chunk, "parallel": cfg.Parallel,
			"cache_types":           m.Target.Memory().Types(),
			"cache_bytes_per_token": m.Target.Memory().TokenBytes(), "cache_bytes_per_sequence": m.Target.Memory().SeqBytes(),
		},
		"prefix_cache": map[string]any{"ram_bytes": max(cfg.CacheBytes, 0), "disk": cfg.CacheDir != "",
			"disk_bytes": cfg.CacheDiskBytes},
		"prefill":     prefill(m),
		"speculative": speculative(m, sourceName(s.cfg.Spec.Draft)),
	}
	return out, nil
}

// prefill says who shortens prompts, and with which attention.
func prefill(m *engine.Model) map[string]any {
	if !m.Prefill.Active() {
		return map[string]any{"scorer": nil}
	}
	file, attention := m.Prefill.Scorer()
	return map[string]any{"scorer": filepath.Base(file), "attention": attention}
}

func speculative(m *engine.Model, source string) map[string]any {
	drafters := m.Drafters()
	out := map[string]any{"draft": source, "drafter": len(drafters) > 0}
	var names []string
	size, perToken, perSequence := 0, 0, 0 // of all drafters together
	for _, d := range drafters {
		names = append(names, d.Name())
		size += d.WeightBytes()
		perToken += d.Memory().TokenBytes()
		perSequence += d.Memory().SeqBytes()
	}
	if len(drafters) > 0 {
		out["drafters"], out["block"], out["size"] = names, drafters[0].Max()+1, size
		out["cache_types"] = drafters[0].Memory().Types()
		out["cache_bytes_per_token"], out["cache_bytes_per_sequence"] = perToken, perSequence
	}
	if m.Drafter != nil {
		out["block"] = m.Drafter.Block()
	}
	return out
}

// slots shows what every slot of a model does. ?fail_on_no_slot=1 turns it into a check for a free one.
func (s *llamaCPP) slots(w http.ResponseWriter, r *http.Request) (any, error) {
	v, err := s.loaded(r.URL.Query().Get("model"))
	if err != nil {
		return []any{}, nil
	}
	snap, cfg := v.engine.Snapshot(), v.engine.Config()
	if r.URL.Query().Get("fail_on_no_slot") == "1" && snap.Active() == len(snap.Slots) {
		return nil, unavailable("no slot is free")
	}
	c := snap.Cache
	shared := map[string]any{"entries": c.Entries, "bytes": c.Bytes, "limit_bytes": c.Limit, "hits": c.Hits,
		"misses": c.Misses, "tokens_reused": c.Found, "evicted": c.Evicted} // all slots share it
	out := []map[string]any{}
	for _, x := range snap.Slots {
		j := map[string]any{"id": x.ID, "n_ctx": cfg.Context, "speculative": len(v.engine.Model().Drafters()) > 0,
			"is_processing": x.Busy, "prefix_cache": shared}
		if !x.Since.IsZero() {
			st := x.State
			j["phase"] = st.Phase.String()
			j["n_prompt_tokens"] = st.Prompt
			j["n_prompt_tokens_processed"] = max(0, st.Processed-st.Cached)
			j["n_prompt_tokens_cache"] = st.Cached
			j["draft"] = sourceName(x.Draft)
			j["next_token"] = []map[string]any{{"has_next_token": x.Busy, "n_remain": -1, "n_decoded": st.Generated}}
			if x.Busy {
				j["busy_ms"] = ms(time.Since(x.Since))
			}
		}
		out = append(out, j)
	}
	return out, nil
}

type tokenizeRequest struct {
	Model        string `json:"model"`
	Content      string `json:"content"`
	AddSpecial   bool   `json:"add_special"`
	ParseSpecial *bool  `json:"parse_special"`
	WithPieces   bool   `json:"with_pieces"`
}

func (s *llamaCPP) tokenize(w http.ResponseWriter, r *http.Request, q *tokenizeRequest) (any, error) {
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	ids := l.tok.Encode(q.Content, tokenizer.EncodeOptions{
		AddSpecial: q.AddSpecial, ParseSpecial: q.ParseSpecial == nil || *q.ParseSpecial, Done: r.Context().Done(),
	})
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	out := newPieces(w, r)
	out.text(`{"tokens":[`)
	for i, id := range ids {
		if i > 0 {
			out.text(",")
		}
		if !q.WithPieces {
			out.text(strconv.Itoa(int(id)))
			continue
		}
		var piece any
		b := l.tok.Piece(id, true)
		if piece = string(b); !utf8.Valid(b) {
			list := make([]int, len(b))
			for i, c := range b {
				list[i] = int(c)
			}
			piece = list
		}
		out.text(`{"id":` + strconv.Itoa(int(id)) + `,"piece":`)
		out.value(piece)
		out.text("}")
	}
	out.text("]}\n")
	out.end()
	return nil, nil // it is sent
}

// pieces writes an answer that may be much larger than its request, piece by piece.
type pieces struct {
	ctx context.Context
	b   *bufio.Writer
	enc *json.Encoder
	err error
}

func newPieces(w http.ResponseWriter, r *http.Request) *pieces {
	jsonHeader(w)
	b := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return &pieces{ctx: r.Context(), b: b, enc: enc}
}

func (p *pieces) text(s string) {
	if p.err == nil {
		if _, p.err = p.b.WriteString(s); p.err == nil {
			p.err = p.ctx.Err()
		}
	}
}

func (p *pieces) value(v any) {
	if p.err == nil {
		p.err = p.enc.Encode(v)
	}
}

// inside writes a part of a string.
func (p *pieces) inside(b []byte) {
	var quoted bytes.Buffer
	enc := json.NewEncoder(&quoted)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(string(b)); err != nil {
		p.err = err
		return
	}
	p.text(string(quoted.Bytes()[1 : quoted.Len()-2])) // without quotes and line feed
}

// end sends the rest. An answer that broke off must not look complete.
func (p *pieces) end() {
	if p.err == nil {
		p.err = p.b.Flush()
	}
	if p.err != nil {
		panic(http.ErrAbortHandler)
	}
}

type detokenizeRequest struct {
	Model  string          `json:"model"`
	Tokens json.RawMessage `json:"tokens"`
}

func (s *llamaCPP) detokenize(w http.ResponseWriter, r *http.Request, q *detokenizeRequest) (any, error) {
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	ids, err := l.tokenList(q.Tokens, "tokens")
	if err != nil {
		return nil, err
	}
	out := newPieces(w, r)
	text := l.tok.NewStream()
	text.Special, text.Opens = true, true
	out.text(`{"content":"`)
	for _, id := range ids {
		out.inside(text.Push(id))
	}
	out.inside(text.Flush())
	out.text("\"}\n")
	out.end()
	return nil, nil // it is sent
}

// sourceName is what flags and requests call a source of drafts.
func sourceName(s string) string {
	if s == speculate.Auto {
		return "auto"
	}
	return s
}
