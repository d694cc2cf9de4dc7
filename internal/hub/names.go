package hub

import (
	_ "embed"
	"fmt"

	"github.com/BurntSushi/toml"
)

//go:embed models.toml
var names string

// Named is what a short name of a model stands for: a table of models.toml.
type Named struct {
	Model    string
	Mirrors  []string // other repositories of it, in order, for when the first does not have it
	Drafters []string // the first one that can be had is used
	MTP      bool     // its file has a layer for multi-token prediction
	Size     float64  // of the model, in gigabytes
}

// Known are the short names of models.toml, in lower case. The map is the caller's.
func Known() (map[string]Named, error) {
	known := map[string]Named{}
	if _, err := toml.Decode(names, &known); err != nil {
		return nil, fmt.Errorf("models.toml: %w", err)
	}
	return known, nil
}

// Order are the short names in the order of models.toml: what is recommended first comes first.
func Order() (order []string) {
	var tables map[string]toml.Primitive
	meta, _ := toml.Decode(names, &tables) // a test decodes it
	for _, key := range meta.Keys() {
		if len(key) == 1 {
			order = append(order, key[0])
		}
	}
	return order
}

// Memory is about what a model takes while it runs with a few thousand tokens of context, in gigabytes; 0 if its size
// is not known. A drafter of the usual type is a tenth of its model; a tenth and a gigabyte are for the rest. "strobe
// fit" says it exactly, and needs the file.
func (x Named) Memory() float64 {
	switch {
	case x.Size == 0:
		return 0
	case len(x.Drafters) > 0:
		return 1.2*x.Size + 1
	}
	return 1.1*x.Size + 1
}
