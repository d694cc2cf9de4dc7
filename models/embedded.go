//go:build !nomodels

package models

import (
	_ "embed"

	"strobe/internal/gguf"
)

//go:embed strobe-go-66m.gguf
var targetFile []byte

//go:embed strobe-go-66m-dflash.gguf
var drafterFile []byte

// Files are the GGUF files of the target and its drafter, for strobe.OpenBytes. They must not be changed.
func Files() (target, drafter []byte, err error) { return targetFile, drafterFile, nil }

// Open returns the target and its drafter, for the commands. They need no closing and stay valid forever.
func Open() (t, d *gguf.File, err error) {
	if t, err = gguf.Parse(Name, targetFile); err != nil {
		return nil, nil, err
	}
	d, err = gguf.Parse(Name+"-dflash", drafterFile)
	return t, d, err
}
