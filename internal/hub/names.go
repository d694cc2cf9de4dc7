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
	Drafters []string // the first one that can be had is used
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
