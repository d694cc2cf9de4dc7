package server

import (
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/testkit"
)

// TestDerivedReloaded: a model that was loaded again is another engine, and what is derived from it follows.
func TestDerivedReloaded(t *testing.T) {
	d := &derivedModel{name: "d", from: "m"}
	for range 2 {
		base := &model{name: "m", engine: &engine.Engine{}}
		if m, err := d.model(base); err != nil || m.engine != base.engine || m.name != "d" {
			t.Errorf("%v, the engine is the one before: %v", err, m.engine != base.engine)
		}
	}
}

// TestFactsOfReplacedFile: what a file says is read again when the file is another one.
func TestFactsOfReplacedFile(t *testing.T) {
	var g ggufFacts
	path := testkit.Golden(t, "qwen3/model.gguf")
	at := time.Unix(1000, 0)
	g.known = map[string]fileFacts{path: {size: 1, modified: at, parameters: -1}}
	if f := g.of(engine.ModelInfo{Path: path, Size: 1, Modified: at}); f.parameters != -1 {
		t.Error("a file that is known was read again")
	}
	for _, m := range []engine.ModelInfo{{Path: path, Size: 1, Modified: at.Add(1)}, {Path: path, Size: 2, Modified: at}} {
		g.known = map[string]fileFacts{path: {size: 1, modified: at, parameters: -1}}
		if f := g.of(m); f.parameters <= 0 {
			t.Errorf("a file that has changed was not read again: %+v", m)
		}
	}
}
