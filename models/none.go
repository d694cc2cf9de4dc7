//go:build nomodels

package models

import (
	"errors"

	"strobe/internal/gguf"
)

// Open says that this program was built without the pair.
func Open() (t, d *gguf.File, err error) {
	return nil, nil, errors.New("this program was built without a model: give one with -m FILE")
}
