// Package models carries the model pair that ships with Strobe: a small language model that completes
// Go code, and its DFlash drafter. README.md beside this file is its model card.
//
// The files are part of the binary, so that every command works without a download.
package models

import (
	_ "embed"

	"strobe/gguf"
)

// Name is how commands and the API call the pair.
const Name = "strobe-go-66m"

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
