package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"strobe/internal/chat/parse"
	"strobe/internal/engine"
	"strobe/internal/tokenizer"
	"strobe/internal/upstream"
)

type ollamaModel struct {
	Name       string        `json:"name"`
	Model      string        `json:"model"`
	ModifiedAt time.Time     `json:"modified_at"`
	Size       int64         `json:"size"`
	Digest     string        `json:"digest"`
	Details    ollamaDetails `json:"details"`
	ExpiresAt  *time.Time    `json:"expires_at,omitempty"` // of loaded ones, like the next two
	SizeVRAM   *int64        `json:"size_vram,omitempty"`
	Context    int           `json:"context_length,omitempty"`

	DraftSources map[string]sourceJSON `json:"draft_sources,omitempty"` // of loaded ones: what each did since then
}

type ollamaDetails struct {
	Parent       string   `json:"parent_model"`
	Format       string   `json:"format"`
	Family       string   `json:"family"`
	Families     []string `json:"families"`
	Parameters   string   `json:"parameter_size"`
	Quantization string   `json:"quantization_level"`
}

// newOllamaModel describes a model. What its file says of it needs no loading.
func (s *ollama) newOllamaModel(m engine.ModelInfo) ollamaModel {
	// A name for the state of the file. Reading it all for a hash would take minutes.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", m.Name, m.Size, m.Modified.UnixNano()))
	facts := s.files.of(m)
	if m.Modified.IsZero() { // a part of the program
		m.Modified = s.started
	}
	return ollamaModel{
		Name: m.Name, Model: m.Name, ModifiedAt: m.Modified.UTC(), Size: m.Size, Digest: hex.EncodeToString(sum[:]),
		Details: ollamaDetails{Format: "gguf", Family: m.Arch, Families: []string{m.Arch},
			Parameters: parameterSize(facts.parameters), Quantization: facts.quantization},
	}
}

// upstreamModel describes a model of another server, of which only its name is known.
func (s *ollama) upstreamModel(name string) ollamaModel {
	sum := sha256.Sum256([]byte(name))
	return ollamaModel{Name: name, Model: name, ModifiedAt: s.started.UTC(), Digest: hex.EncodeToString(sum[:]),
		Details: ollamaDetails{Families: []string{}}}
}

// parameterSize is a number of parameters as Ollama writes it: 4.3B, 135.00M.
func parameterSize(n int64) string {
	switch {
	case n <= 0:
		return ""
	case n >= 1e9:
		return fmt.Sprintf("%.1fB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2fM", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2fK", float64(n)/1e3)
}

func (s *ollama) version(w http.ResponseWriter, r *http.Request) (any, error) {
	return map[string]string{"version": ollamaVersion}, nil
}

func (s *ollama) tags(w http.ResponseWriter, r *http.Request) (any, error) {
	out := []ollamaModel{}
	for _, m := range s.offered() {
		out = append(out, s.newOllamaModel(m))
	}
	for _, u := range s.cfg.Upstreams.States() {
		out = append(out, s.upstreamModel(u.Name))
	}
	return map[string]any{"models": out}, nil
}

// loadedModels lists what is loaded. What does not expire stays until something else needs the room.
func (s *ollama) loadedModels(w http.ResponseWriter, r *http.Request) (any, error) {
	out := []ollamaModel{}
	engines := s.models().Resident()
	for _, m := range s.models().List() {
		if m.State == engine.StateLoaded {
			x := s.newOllamaModel(m)
			never, none := time.Now().UTC().AddDate(100, 0, 0), int64(0)
			x.ExpiresAt, x.SizeVRAM, x.Context = &never, &none, m.Context
			if !m.Expires.IsZero() {
				at := m.Expires.UTC()
				x.ExpiresAt = &at
			}
			if e := engines[m.Name]; e != nil {
				x.DraftSources = draftSources(e)
			}
			out = append(out, x)
		}
	}
	return map[string]any{"models": out}, nil
}

// draftSources is what each source of drafts of a loaded model did in answers that ended. Drafters that were never
// asked are there, too.
func draftSources(e *engine.Engine) map[string]sourceJSON {
	snap := e.Snapshot()
	out := sourcesJSON(&snap.Stats)
	for _, d := range e.Model().Drafters() {
		if _, asked := out[d.Name()]; !asked {
			out[d.Name()] = sourceJSON{}
		}
	}
	return out
}

type ollamaNamed struct {
	Model  string `json:"model"`
	Name   string `json:"name"` // what it was called before
	Stream *bool  `json:"stream"`
}

func (q *ollamaNamed) name() string {
	if q.Model != "" {
		return q.Model
	}
	return q.Name
}

// find returns what is known of a model without loading it.
func (s *ollama) find(name string) (engine.ModelInfo, error) {
	name = s.name(name)
	list := s.offered()
	i := slices.IndexFunc(list, func(m engine.ModelInfo) bool { return m.Name == name })
	if i < 0 {
		return engine.ModelInfo{}, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
			Message: fmt.Sprintf("model %q not found", name)}
	}
	return list[i], nil
}

func (s *ollama) show(w http.ResponseWriter, r *http.Request, q *ollamaNamed) (any, error) {
	if name := q.name(); s.cfg.Upstreams.Has(name) {
		u := s.upstreamModel(name)
		return map[string]any{"modelfile": "", "parameters": "", "template": "", "modified_at": u.ModifiedAt,
			"details": u.Details, "capabilities": []string{"completion", "tools"}, "model_info": map[string]any{}}, nil
	}
	m, err := s.find(q.name())
	if err != nil && q.name() == "" && s.models().alone() { // there is only one to mean
		m, err = s.models().List()[0], nil
	}
	if err != nil {
		return nil, err
	}
	l, err := s.acquire(r.Context(), m.Name) // its template is in the file
	if err != nil {
		return nil, err
	}
	defer l.release()
	caps := []string{"completion"}
	if l.engine.Model().Vision != nil {
		caps = append(caps, "vision")
	}
	if l.template.Tools() && parse.Calls(l.template.Source()) {
		caps = append(caps, "tools")
	}
	if src := l.template.Source(); l.template.Thinking() || strings.Contains(src, "<think>") || parse.Harmony(src) {
		caps = append(caps, "thinking")
	}
	if _, ok := l.tok.Role(tokenizer.RoleFIMMid); ok && l.fills {
		caps = append(caps, "insert")
	}
	t := l.engine.Model().Target
	known := s.newOllamaModel(m)
	info := map[string]any{
		"general.architecture": t.Arch, t.Arch + ".context_length": t.Context,
		t.Arch + ".embedding_length": t.Hidden, t.Arch + ".block_count": t.Layers,
	}
	maps.Copy(info, s.files.of(m).info)
	out := map[string]any{
		"modelfile": "", "parameters": "", "template": l.template.Source(), "modified_at": known.ModifiedAt,
		"details": known.Details, "capabilities": caps, "model_info": info,
	}
	if l.derived != nil {
		known.Details.Parent = l.derived.from
		out["details"], out["system"] = known.Details, l.derived.system
	}
	return out, nil
}

// pullNews is how often a stream tells how far a download is.
const pullNews = 250 * time.Millisecond

// pullModel succeeds at once when the model is there already, and downloads it where the server's owner lets clients
// do that.
func (s *ollama) pullModel(w http.ResponseWriter, r *http.Request, q *ollamaNamed) (any, error) {
	success := map[string]string{"status": "success"}
	if _, err := s.find(q.name()); err == nil {
		return success, nil
	}
	pull := s.pull.Load()
	if pull == nil {
		return nil, &apiError{Status: http.StatusNotImplemented, Type: "not_supported_error",
			Message: fmt.Sprintf("model %q is not here, and this server downloads nothing; use strobe pull, or strobe serve --models DIR --pull", q.name())}
	}
	name := strings.TrimSuffix(q.name(), ":latest")
	if q.Stream != nil && !*q.Stream {
		if err := (*pull)(r.Context(), name, func(string, int64, int64) {}); err != nil {
			return nil, err
		}
		return success, nil
	}
	st := newStream(w)
	st.useLines()
	say := func(v any) error {
		st.send("", v)
		return st.flush()
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	var last time.Time
	err := (*pull)(ctx, name, func(file string, done, total int64) {
		if now := time.Now(); done == total || now.Sub(last) >= pullNews {
			last = now
			if err := say(map[string]any{"status": "pulling " + file, "digest": file, "total": total,
				"completed": done}); err != nil {
				cancel(err)
			}
		}
	})
	if err == nil {
		err = say(success)
	}
	if err != nil {
		st.fail(r, err)
	}
	return nil, nil
}

// ollamaEmbed is the body of POST /api/embed, and of its predecessor /api/embeddings, which has a prompt.
type ollamaEmbed struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Prompt     json.RawMessage `json:"prompt"`
	Dimensions *int            `json:"dimensions"`
	Truncate   *bool           `json:"truncate"` // inputs that do not fit are cut, unless it is false
	Keep       json.RawMessage `json:"keep_alive"`
}

func (s *ollama) embedding(w http.ResponseWriter, r *http.Request, q *ollamaEmbed) (any, error) {
	start := time.Now()
	old := strings.HasSuffix(r.URL.Path, "/embeddings")
	if old {
		q.Input = q.Prompt
	}
	keep, err := keepAlive(q.Keep)
	if err != nil {
		return nil, err
	}
	if s.cfg.Upstreams.Has(q.Model) {
		vectors, tokens, err := s.embedElsewhere(r, q.Model, q.Input, q.Dimensions)
		if err != nil {
			return nil, err
		}
		return q.answer(vectors, tokens, start, 0, old), nil
	}
	l, err := s.acquire(r.Context(), s.name(q.Model))
	if err != nil {
		return nil, err
	}
	l.keep = keep
	defer l.release()
	load := time.Since(start)
	vectors, tokens, err := l.embed(r.Context(), q.Input, q.Dimensions, q.Truncate == nil || *q.Truncate)
	if err != nil {
		return nil, err
	}
	return q.answer(vectors, tokens, start, load, old), nil
}

// answer shows vectors, as the older endpoint does if old.
func (q *ollamaEmbed) answer(vectors [][]float32, tokens int, start time.Time, load time.Duration, old bool) any {
	if old {
		return map[string]any{"embedding": vectors[0]}
	}
	return map[string]any{
		"model": q.Model, "embeddings": vectors, "prompt_eval_count": tokens,
		"total_duration": time.Since(start), "load_duration": load,
	}
}

// embedElsewhere asks another server for the vectors of texts.
func (s *ollama) embedElsewhere(r *http.Request, model string, input json.RawMessage, dimensions *int) (
	vectors [][]float32, tokens int, err error) {
	body, err := json.Marshal(struct {
		Model      string          `json:"model"`
		Input      json.RawMessage `json:"input"`
		Dimensions *int            `json:"dimensions,omitempty"`
	}{model, input, dimensions})
	if err != nil {
		return nil, 0, err
	}
	res, err := s.cfg.Upstreams.Send(r.Context(), upstream.Request{Model: model, Path: "/v1/embeddings", Body: body,
		Head: s.outgoing(r), Key: upstream.Key(body)})
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, s.cfg.MaxBody))
	if err != nil {
		return nil, 0, brokeOff(err)
	}
	if res.Status != http.StatusOK {
		return nil, 0, upstreamError(res, text)
	}
	var out struct {
		Data []struct {
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage usageJSON `json:"usage"`
	}
	if json.Unmarshal(text, &out) != nil || len(out.Data) == 0 {
		return nil, 0, badUpstream("the upstream's answer has no vectors")
	}
	for _, d := range out.Data {
		vectors = append(vectors, d.Embedding)
	}
	return vectors, out.Usage.PromptTokens, nil
}
