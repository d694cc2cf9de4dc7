package server

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"path/filepath"
	"time"

	"strobe/internal/engine"
	"strobe/internal/upstream"
)

// modelJSON is an entry of GET /v1/models: OpenAI's fields, then what llama.cpp and vLLM add, then
// how the model stands here.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`

	Type      string    `json:"type"` // Anthropic's, like the next two
	Display   string    `json:"display_name"`
	CreatedAt time.Time `json:"created_at"`

	MaxModelLen   int            `json:"max_model_len"`  // vLLM
	ContextLength int            `json:"context_length"` // Open WebUI and others
	Meta          map[string]any `json:"meta,omitempty"` // llama.cpp; of loaded models

	State      string `json:"state"`  // unloaded, loading, loaded or failed
	Status     any    `json:"status"` // the same in llama.cpp's words
	Error      string `json:"error,omitempty"`
	Size       int64  `json:"size"`         // bytes of the files
	LastUsedMS int64  `json:"last_used_ms"` // Unix time; 0 is never
	InUse      int    `json:"in_use"`       // requests
	Arch       string `json:"arch,omitempty"`
	Drafter    string `json:"drafter,omitempty"`

	// Capabilities are llama.cpp's words for what the model does; those with images have "multimodal".
	Capabilities []string `json:"capabilities,omitempty"`

	Replicas []replicaJSON `json:"replicas,omitempty"` // of a model that lives elsewhere
}

// replicaJSON is a server of a model that lives elsewhere.
type replicaJSON struct {
	State string `json:"state"` // ready or failed
	Error string `json:"error,omitempty"`
	InUse int    `json:"in_use"` // requests from here
}

// named says in the words of both APIs what a model is called and how old it is.
func (j modelJSON) named() modelJSON {
	status := map[string]any{"value": j.State}
	if j.State == string(engine.StateFailed) {
		status = map[string]any{"value": string(engine.StateUnloaded), "failed": true}
	}
	j.Status = status
	j.Object, j.Type, j.Display, j.CreatedAt = "model", "model", j.ID, time.Unix(j.Created, 0).UTC()
	return j
}

// upstreamEntry describes a model of another server, without its address.
func (s *openAI) upstreamEntry(u *upstream.State) modelJSON {
	j := modelJSON{ID: u.Name, OwnedBy: "upstream", Created: s.started.Unix(),
		State: string(engine.StateLoaded)}
	if !u.Ready() {
		j.State = string(engine.StateFailed)
	}
	for _, r := range u.Replicas {
		x := replicaJSON{State: "ready", InUse: r.Load}
		if r.Err != nil {
			x.State, x.Error = "failed", r.Err.Error()
		}
		j.InUse += r.Load
		j.Replicas = append(j.Replicas, x)
	}
	return j.named()
}

func (s *openAI) modelEntry(m *engine.ModelInfo, e *engine.Engine) modelJSON {
	j := modelJSON{
		ID: m.Name, OwnedBy: "strobe", Created: s.started.Unix(), MaxModelLen: m.Context,
		ContextLength: m.Context,
		State:         string(m.State), Size: m.Size, InUse: m.Users, Arch: m.Arch,
	}
	if j.Capabilities = []string{"completion"}; m.Vision != "" {
		j.Capabilities = append(j.Capabilities, "multimodal")
	}
	if m.Drafter != "" {
		j.Drafter = filepath.Base(m.Drafter) // without its folder
		for _, path := range m.MoreDrafters {
			j.Drafter += ", " + filepath.Base(path)
		}
	}
	if !m.Modified.IsZero() {
		j.Created = m.Modified.Unix()
	}
	if !m.LastUsed.IsZero() {
		j.LastUsedMS = m.LastUsed.UnixMilli()
	}
	if m.Err != nil {
		j.Error = withoutPaths(m.Err)
	}
	if e != nil {
		t := e.Model().Target
		j.Meta = map[string]any{
			"n_vocab": t.Vocab, "n_ctx": e.Config().Context, "n_ctx_train": t.Context, "n_embd": t.Hidden,
			"size": t.WeightBytes(),
		}
	}
	return j.named()
}

// modelEntries describes all models, those of other servers last.
func (s *openAI) modelEntries() []modelJSON {
	engines := s.models().Resident()
	data := []modelJSON{}
	for _, m := range s.offered() {
		data = append(data, s.modelEntry(&m, engines[m.Name]))
	}
	for _, u := range s.cfg.Upstreams.States() {
		data = append(data, s.upstreamEntry(&u))
	}
	return data
}

func (s *openAI) listModels(w http.ResponseWriter, r *http.Request) (any, error) {
	data := s.modelEntries()
	out := map[string]any{"object": "list", "data": data, "has_more": false, "first_id": nil, "last_id": nil}
	if n := len(data); n > 0 {
		out["first_id"], out["last_id"] = data[0].ID, data[n-1].ID
	}
	if r.URL.Query().Has("client_version") {
		out["models"] = codexModels(data)
	}
	return out, nil
}

// codexModels describes models to the Codex command line, which asks with its version and reads no
// other list.
func codexModels(data []modelJSON) []map[string]any {
	out := []map[string]any{}
	for _, m := range data {
		out = append(out, map[string]any{
			"slug": m.ID, "display_name": m.ID, "description": m.Arch, "visibility": "list", "supported_in_api": true,
			"priority":       1,
			"context_window": m.ContextLength, "shell_type": "shell_command", "supports_parallel_tool_calls": true,
			"supports_reasoning_summaries": false, "default_reasoning_level": "low",
			"supported_reasoning_levels": []map[string]string{{"effort": "none", "description": "no reasoning"},
				{"effort": "low", "description": "as the model likes"}},
		})
	}
	return out
}

func (s *openAI) getModel(w http.ResponseWriter, r *http.Request) (any, error) {
	for _, m := range s.modelEntries() {
		if m.ID == r.PathValue("id") {
			return m, nil
		}
	}
	return nil, &engine.UnknownModelError{Name: r.PathValue("id")}
}

// embeddingRequest is the body of POST /v1/embeddings.
type embeddingRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	EncodingFormat string          `json:"encoding_format"`
	Dimensions     *int            `json:"dimensions"`
}

type embeddingJSON struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"`
}

func (s *openAI) embeddings(w http.ResponseWriter, r *http.Request, q *embeddingRequest) (any, error) {
	if q.EncodingFormat != "" && q.EncodingFormat != "float" && q.EncodingFormat != "base64" {
		return nil, invalid("encoding_format", "%q is neither float nor base64", q.EncodingFormat)
	}
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	vectors, tokens, err := l.embed(r.Context(), q.Input, q.Dimensions, false)
	if err != nil {
		return nil, err
	}
	data := make([]embeddingJSON, len(vectors))
	for i, x := range vectors {
		data[i] = embeddingJSON{Object: "embedding", Index: i, Embedding: x}
		if q.EncodingFormat == "base64" {
			b := make([]byte, 0, 4*len(x))
			for _, f := range x {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			data[i].Embedding = base64.StdEncoding.EncodeToString(b)
		}
	}
	logOf(r).add(slog.String("model", l.name), slog.Int("prompt", tokens))
	return map[string]any{
		"object": "list", "model": l.name, "data": data,
		"usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	}, nil
}
