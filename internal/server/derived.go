package server

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	"strobe/internal/dialog"
	"strobe/internal/engine"
)

// derivedModel is another name for a model of this server, with defaults of its own. Clients make them; they last until
// the server ends.
type derivedModel struct {
	name, from string
	fields     []samplingFields // for what requests leave out; later ones come before earlier ones
	system     string           // for conversations without a message of the system; "" leaves it
	template   string           // in place of the file's; "" leaves it

	mu     sync.Mutex
	engine *engine.Engine // that built was made for
	built  *model
}

// maxDerived is how many of them there may be: clients make them, and each may have a template.
const maxDerived = 256

// model is the model of an engine with what was derived from it.
func (d *derivedModel) model(base *model) (*model, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.engine == base.engine {
		return d.built, nil
	}
	m := &model{name: d.name, engine: base.engine, tok: base.tok, format: base.format, template: base.template,
		defaults: base.defaults, grammars: base.grammars, derived: d, fills: base.fills}
	if d.system != "" {
		m.defaults.System = d.system
	}
	if d.template != "" {
		var err error
		m.format = dialog.WithTemplate(base.engine.Model(), d.template)
		if m.template, err = m.format.Template(); err != nil {
			return nil, err
		}
		m.grammars = newGrammars(m.tok, m.template)
	}
	d.engine, d.built = base.engine, m
	return m, nil
}

// derive adds a name, or replaces one that was derived before. Names of files and of other servers' models stay theirs.
func (s *core) derive(d *derivedModel) error {
	taken := s.cfg.Upstreams.Has(d.name) || d.name == engine.Any ||
		slices.ContainsFunc(s.models().List(), func(m engine.ModelInfo) bool { return m.Name == d.name })
	if taken {
		return &apiError{Status: http.StatusConflict, Type: "invalid_request_error", Param: "model",
			Message: fmt.Sprintf("model %q is there already and cannot be replaced", d.name)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.derived[d.name] == nil && len(s.derived) >= maxDerived {
		return invalid("model", "there are %d derived models; delete one", maxDerived)
	}
	s.derived[d.name] = d
	return nil
}

// derivedOf returns what was derived under a name, nil if nothing was.
func (s *core) derivedOf(name string) *derivedModel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.derived[name]
}

// underive removes a name and reports whether it was there.
func (s *core) underive(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.derived[name]
	delete(s.derived, name)
	return d != nil
}

// offered lists the models of this server with those derived from them, sorted by name after those they came from.
func (s *core) offered() []engine.ModelInfo {
	list := s.models().List()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.derived {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, m := range list {
			if m.Name == s.derived[name].from {
				m.Name = name
				list = append(list, m)
				break
			}
		}
	}
	return list
}
