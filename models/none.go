//go:build nomodels

package models

import (
	"errors"

	"strobe/internal/gguf"
)

var errNone = errors.New("this program was built without a model: give one with -m FILE")

// Files says that this program was built without the pair.
func Files() (target, drafter []byte, err error) { return nil, nil, errNone }

// Open says that this program was built without the pair.
func Open() (t, d *gguf.File, err error) { return nil, nil, errNone }
