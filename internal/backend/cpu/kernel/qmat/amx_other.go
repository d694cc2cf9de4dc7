//go:build !amd64 || noasm

package qmat

// amxActs is empty where there are no tiles.
type amxActs struct{}

func (a *Acts) resetTiles()   {}
func (a *Acts) packTiles(int) {}
