//go:build (!amd64 && !arm64) || noasm

package qmat

// tiledActs is empty where records are all that products read.
type tiledActs struct{}

func (a *Acts) resetTiles()   {}
func (a *Acts) packTiles(int) {}
