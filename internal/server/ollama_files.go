package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// fileFacts is what a model's file says of it.
type fileFacts struct {
	size         int64 // of the file that was read, like the next one
	modified     time.Time
	parameters   int64
	quantization string
	info         map[string]any // metadata; lists are null, as Ollama has them
}

// ggufFacts remembers what files say. Its zero value works; its methods may be called from any goroutine.
type ggufFacts struct {
	mu    sync.Mutex
	known map[string]fileFacts // by path
}

// of returns what the file of a model says; nothing if it cannot be read, or is a part of the program.
func (g *ggufFacts) of(m engine.ModelInfo) fileFacts {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.known[m.Path]; ok && f.size == m.Size && f.modified.Equal(m.Modified) {
		return f
	}
	f := readFacts(m.Path)
	f.size, f.modified = m.Size, m.Modified
	if g.known == nil {
		g.known = map[string]fileFacts{}
	}
	g.known[m.Path] = f
	return f
}

func readFacts(path string) (f fileFacts) {
	file, err := gguf.Open(path)
	if err != nil {
		return f
	}
	defer file.Close()
	f.info = map[string]any{}
	for _, key := range file.Keys() {
		kind, _ := file.Kind(key)
		switch {
		case key == "tokenizer.chat_template": // shown as the template
		case kind.IsArray():
			f.info[key] = nil
		default:
			if v, _, err := file.Value(key); err == nil {
				f.info[key] = v
			}
		}
	}
	for _, t := range file.Tensors() {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		f.parameters += n
	}
	f.info["general.parameter_count"] = f.parameters
	if n, ok, err := file.Uint("general.file_type"); ok && err == nil && n < 1<<32 {
		f.quantization = quant.FileTypeName(uint32(n))
	}
	if f.quantization == "" { // most of its weights say it
		bytes := map[string]int{}
		for _, t := range file.Tensors() {
			name := t.Type.String()
			if bytes[name] += len(t.Data); bytes[name] > bytes[f.quantization] {
				f.quantization = name
			}
		}
	}
	return f
}

type ollamaCopy struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// copyModel gives a model another name.
func (s *ollama) copyModel(w http.ResponseWriter, r *http.Request, q *ollamaCopy) (any, error) {
	d, err := s.derivedFrom(q.Source, "source")
	if err != nil {
		return nil, err
	}
	if d.name, err = derivedName(q.Destination, "destination"); err != nil {
		return nil, err
	}
	return map[string]any{}, s.derive(d)
}

// derivedFrom is a model that is like another one so far.
func (s *ollama) derivedFrom(name, at string) (*derivedModel, error) {
	if name == "" {
		return nil, invalid(at, "is missing")
	}
	m, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if old := s.derivedOf(m.Name); old != nil {
		return &derivedModel{from: old.from, fields: slices.Clip(old.fields), system: old.system, template: old.template}, nil
	}
	return &derivedModel{from: m.Name}, nil
}

// maxModelName is how long the name of a derived model may be.
const maxModelName = 256

func derivedName(name, at string) (string, error) {
	name = strings.TrimSuffix(name, ":latest")
	if name == "" || len(name) > maxModelName {
		return "", invalid(at, "must be a name of 1 to %d bytes", maxModelName)
	}
	return name, nil
}

// deleteModel removes a name that clients made. Files stay: what is on the disk is its owner's.
func (s *ollama) deleteModel(w http.ResponseWriter, r *http.Request, q *ollamaNamed) (any, error) {
	name := s.name(q.name())
	if s.underive(name) {
		return map[string]any{}, nil
	}
	if _, err := s.find(name); err != nil {
		return nil, err
	}
	return nil, &apiError{Status: http.StatusNotImplemented, Type: "not_supported_error",
		Message: fmt.Sprintf("model %q is a file, and this server deletes no files", name)}
}

// ollamaCreate is the body of POST /api/create.
type ollamaCreate struct {
	ollamaNamed
	From       string          `json:"from"`
	System     string          `json:"system"`
	Template   string          `json:"template"`
	Parameters json.RawMessage `json:"parameters"`
	Files      json.RawMessage `json:"files"` // refused, like the next ones
	Adapters   json.RawMessage `json:"adapters"`
	Messages   json.RawMessage `json:"messages"`
	Quantize   string          `json:"quantize"`
	Modelfile  string          `json:"modelfile"`
}

// createModel derives a model from another one: with other defaults, a system prompt, a template.
func (s *ollama) createModel(w http.ResponseWriter, r *http.Request, q *ollamaCreate) (any, error) {
	for name, given := range map[string]bool{"files": kindOf(q.Files) != "null", "adapters": kindOf(q.Adapters) != "null",
		"messages": kindOf(q.Messages) != "null", "quantize": q.Quantize != "", "modelfile": q.Modelfile != ""} {
		if given {
			return nil, invalid(name, "is not supported; from, parameters, system and template are")
		}
	}
	d, err := s.derivedFrom(q.From, "from")
	if err != nil {
		return nil, err
	}
	if d.name, err = derivedName(q.name(), "model"); err != nil {
		return nil, err
	}
	if kindOf(q.Parameters) != "null" {
		var options ollamaOptions
		if err := decodeFields(q.Parameters, "parameters", &options); err != nil {
			return nil, err
		}
		fields, err := options.fields()
		if err != nil {
			return nil, err
		}
		l, err := s.acquire(r.Context(), d.from) // its tokenizer reads them
		if err != nil {
			return nil, err
		}
		defer l.release()
		req := s.defaults(l.model)
		if err := fields.apply(&req, l.tok); err != nil {
			return nil, err
		}
		d.fields = append(d.fields, fields)
	}
	if q.System != "" {
		d.system = q.System
	}
	if q.Template != "" {
		if _, err := chat.ParseTemplate("template", q.Template); err != nil {
			return nil, refused("", "the template cannot be used", fmt.Errorf("%w; templates are Jinja, as in GGUF files", err))
		}
		d.template = q.Template
	}
	if err := s.derive(d); err != nil {
		return nil, err
	}
	return map[string]string{"status": "success"}, nil
}
