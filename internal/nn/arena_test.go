package nn

import (
	"testing"

	"strobe/internal/backend/cpu"
)

// TestArenaResults: what a pass needs at its end whatever its rows does not count as what each row needs, and there is
// room for both when a pass begins.
func TestArenaResults(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	a := NewArena(b)
	const perRow, results = 320, 1 << 20
	pass := func(rows, results int) {
		t.Helper()
		if err := a.Begin(rows, results); err != nil {
			t.Fatal(err)
		}
		mark := a.Mark()
		a.New(a.Pad(rows), perRow)
		a.Release(mark)
		a.New(1, results)
	}
	pass(1, results)
	pass(1, results)
	if n := len(a.chunks); n != 1 {
		t.Fatalf("a pass like the one before is in %d pieces", n)
	}
	pass(1000, results)
	if n := len(a.chunks); n != 1 {
		t.Errorf("a pass with more rows is in %d pieces", n)
	}
	if most := 2*(perRow*1000+results) + leastChunk; a.chunks[0].Cols > most {
		t.Errorf("%d values for a pass that needs %d", a.chunks[0].Cols, perRow*1000+results)
	}
	pass(8, 3*results)
	if n := len(a.chunks); n != 1 {
		t.Errorf("a pass with larger results is in %d pieces", n)
	}
}
