package server

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"strobe/internal/engine"
	"strobe/internal/sample"
)

// changeProps is POST /props: other defaults for what requests leave out, until the server ends.
func (s *llamaCPP) changeProps(w http.ResponseWriter, r *http.Request, q *propsRequest) (any, error) {
	if !s.cfg.ChangeProps {
		return nil, &apiError{Status: http.StatusNotImplemented, Type: "not_supported_error",
			Message: "this server's properties cannot be changed; strobe serve --props allows it"}
	}
	fields := &q.samplingFields
	if q.Settings != nil && q.Settings.Params != nil {
		fields = q.Settings.Params
	}
	v, err := s.loaded(q.Model)
	if err != nil {
		return nil, err
	}
	req := engine.Request{Params: s.cfg.Params}
	if err := fields.apply(&req, v.tok); err != nil {
		return nil, err
	}
	d := sample.Defaults{}
	if old := s.changed.Load(); old != nil {
		d = *old
	}
	d.Add(sample.Defaults{
		Temp: fields.Temperature, TopP: fields.TopP, MinP: fields.MinP, TypicalP: fields.TypicalP, TopK: fields.TopK,
		RepeatPenalty: fields.RepeatPenalty, RepeatLastN: fields.RepeatLastN,
		FrequencyPenalty: fields.FrequencyPenalty, PresencePenalty: fields.PresencePenalty,
	})
	s.changed.Store(&d)
	return map[string]bool{"success": true}, nil
}

// propsRequest has the fields of sampling, where GET /props shows them or at its top.
type propsRequest struct {
	Model string `json:"model"`
	samplingFields
	Settings *struct {
		Params *samplingFields `json:"params"`
	} `json:"default_generation_settings"`
}

// slotAction saves, restores or erases what a slot remembers.
func (s *llamaCPP) slotAction(w http.ResponseWriter, r *http.Request, q *slotRequest) (any, error) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		return nil, invalid("id_slot", "must be a number")
	}
	v, err := s.loaded(cmp.Or(q.Model, r.URL.Query().Get("model")))
	if err != nil {
		return nil, err
	}
	start := time.Now()
	out := map[string]any{"id_slot": id}
	took := func(name string) { out["timings"] = map[string]float64{name: ms(time.Since(start))} }
	action := r.URL.Query().Get("action")
	if action != "erase" && q.Filename == "" {
		return nil, invalid("filename", "is missing")
	}
	if len(q.Filename) > 256 {
		return nil, invalid("filename", "is longer than 256 bytes")
	}
	owner := ownerOf(r.Context())
	if (action == "save" || action == "restore") && v.engine.Config().SlotDir == "" {
		return nil, &apiError{Status: http.StatusNotImplemented, Type: "not_supported_error",
			Message: "This server does not support slots action. Start it with `--slot-save-path`"}
	}
	switch action {
	case "save":
		n, size, err := v.engine.SaveSlot(r.Context(), id, owner, q.Filename)
		if err != nil {
			return nil, err
		}
		out["filename"], out["n_saved"], out["n_written"] = q.Filename, n, size
		took("save_ms")
	case "restore":
		n, size, err := v.engine.RestoreSlot(r.Context(), id, owner, q.Filename)
		if err != nil {
			return nil, err
		}
		out["filename"], out["n_restored"], out["n_read"] = q.Filename, n, size
		took("restore_ms")
	case "erase":
		n, err := v.engine.EraseSlot(r.Context(), id)
		if err != nil {
			return nil, err
		}
		out["n_erased"] = n
	default:
		return nil, invalid("action", "%q is none of save, restore and erase", action)
	}
	return out, nil
}

type slotRequest struct {
	Model    string `json:"model"`
	Filename string `json:"filename"` // in --slot-save-path
}

type modelRequest struct {
	Model string `json:"model"`
}

// loadModel loads a model before anybody asks it something.
func (s *llamaCPP) loadModel(w http.ResponseWriter, r *http.Request, q *modelRequest) (any, error) {
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	l.release()
	return map[string]any{"success": true, "model": l.name}, nil
}

// unloadModel takes one out of memory.
func (s *llamaCPP) unloadModel(w http.ResponseWriter, r *http.Request, q *modelRequest) (any, error) {
	if err := s.models().Unload(r.Context(), q.Model); err != nil {
		return nil, err
	}
	return map[string]any{"success": true}, nil
}

// rerank needs a head that no model here has: scores of something else would look right and mean nothing.
func (s *llamaCPP) rerank(w http.ResponseWriter, r *http.Request, q *modelRequest) (any, error) {
	l, err := s.acquire(r.Context(), q.Model)
	if err != nil {
		return nil, err
	}
	defer l.release()
	return nil, fmt.Errorf("%w: %s has no head for ranking; /v1/embeddings compares texts", engine.ErrUnsupported, l.name)
}
