//go:build !nomodels

package models

import (
	_ "embed"

	"strobe/internal/gguf"
)

//go:embed strobe-go-66m.gguf
var target []byte

//go:embed strobe-go-66m-dflash.gguf
var drafter []byte

// Open returns the target and its drafter. They need no closing and stay valid forever.
func Open() (t, d *gguf.File, err error) {
	if t, err = gguf.Parse(Name, target); err != nil {
		return nil, nil, err
	}
	d, err = gguf.Parse(Name+"-dflash", drafter)
	return t, d, err
}
