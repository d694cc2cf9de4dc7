package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"strobe/internal/engine"
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
}

type ollamaDetails struct {
	Parent       string   `json:"parent_model"`
	Format       string   `json:"format"`
	Family       string   `json:"family"`
	Families     []string `json:"families"`
	Parameters   string   `json:"parameter_size"`
	Quantization string   `json:"quantization_level"`
}

func newOllamaModel(m engine.ModelInfo) ollamaModel {
	// A name for the state of the file. Reading it all for a hash would take minutes.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", m.Name, m.Size, m.Modified.UnixNano()))
	return ollamaModel{
		Name: m.Name, Model: m.Name, ModifiedAt: m.Modified.UTC(), Size: m.Size, Digest: hex.EncodeToString(sum[:]),
		Details: ollamaDetails{Format: "gguf", Family: m.Arch, Families: []string{m.Arch}},
	}
}

func (s *ollama) version(w http.ResponseWriter, r *http.Request) (any, error) {
	return map[string]string{"version": ollamaVersion}, nil
}

func (s *ollama) tags(w http.ResponseWriter, r *http.Request) (any, error) {
	out := []ollamaModel{}
	for _, m := range s.models().List() {
		out = append(out, newOllamaModel(m))
	}
	return map[string]any{"models": out}, nil
}

// loadedModels lists what is loaded. What does not expire stays until something else needs the room.
func (s *ollama) loadedModels(w http.ResponseWriter, r *http.Request) (any, error) {
	out := []ollamaModel{}
	for _, m := range s.models().List() {
		if m.State == engine.StateLoaded {
			x := newOllamaModel(m)
			never, none := time.Now().UTC().AddDate(100, 0, 0), int64(0)
			x.ExpiresAt, x.SizeVRAM, x.Context = &never, &none, m.Context
			if !m.Expires.IsZero() {
				at := m.Expires.UTC()
				x.ExpiresAt = &at
			}
			out = append(out, x)
		}
	}
	return map[string]any{"models": out}, nil
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
	list := s.models().List()
	i := slices.IndexFunc(list, func(m engine.ModelInfo) bool { return m.Name == name })
	if i < 0 {
		return engine.ModelInfo{}, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
			Message: fmt.Sprintf("model %q not found", name)}
	}
	return list[i], nil
}

func (s *ollama) show(w http.ResponseWriter, r *http.Request, q *ollamaNamed) (any, error) {
	m, err := s.find(q.name())
	if err != nil && s.models().alone() { // it answers to every name
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
	if l.template.Tools() {
		caps = append(caps, "tools")
	}
	if src := l.template.Source(); l.template.Thinking() || strings.Contains(src, "<think>") {
		caps = append(caps, "thinking")
	}
	t := l.engine.Model().Target
	return map[string]any{
		"modelfile": "", "parameters": "", "template": l.template.Source(), "modified_at": m.Modified.UTC(),
		"details": newOllamaModel(m).Details, "capabilities": caps,
		"model_info": map[string]any{
			"general.architecture": t.Arch, t.Arch + ".context_length": t.Context,
			t.Arch + ".embedding_length": t.Hidden, t.Arch + ".block_count": t.Layers,
		},
	}, nil
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
	l, err := s.acquire(r.Context(), s.name(q.Model))
	if err != nil {
		return nil, err
	}
	l.keep = keep
	defer l.release()
	load := time.Since(start)
	vectors, tokens, err := l.embed(r.Context(), q.Input, q.Dimensions)
	if err != nil {
		return nil, err
	}
	if old {
		return map[string]any{"embedding": vectors[0]}, nil
	}
	return map[string]any{
		"model": q.Model, "embeddings": vectors, "prompt_eval_count": tokens,
		"total_duration": time.Since(start), "load_duration": load,
	}, nil
}
