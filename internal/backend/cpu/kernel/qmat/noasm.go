//go:build (!amd64 && !arm64) || noasm

package qmat

import "strobe/internal/quant"

// Scratch is the working memory of one worker.
type Scratch struct{}

// NewScratch returns working memory that grows as needed.
func NewScratch() *Scratch { return new(Scratch) }

func (m *Matrix) mulAsm(f *format, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) bool {
	return false
}

func weavePieces([]byte, []byte, int, int) bool { return false }

func weavable(quant.Type) bool { return false }

func quantizeBlocks(out []record, v []float32) { panic("qmat: no assembly in this build") }
