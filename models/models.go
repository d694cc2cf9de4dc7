// Package models carries the model pair that ships with Strobe: a small language model that completes
// Go code, and its DFlash drafter. README.md beside this file is its model card.
//
// The files are part of the binary, so that every command works without a download. The build tag nomodels leaves
// them out.
package models

// Name is how commands and the API call the pair.
const Name = "strobe-go-66m"
