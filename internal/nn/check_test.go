//go:build invariants || race

package nn

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/cache"
)

// TestStepsInTurn: a step that begins twice, ends without a beginning or is written to by the host is
// found.
func TestStepsInTurn(t *testing.T) {
	r := newPassRun(t)
	for name, wrong := range map[string]func(s *Step){
		"begins twice": func(s *Step) { s.Begin(); s.Begin() },
		"never begins": func(s *Step) { s.End() },
		"is written to": func(s *Step) {
			x := s.Rows(4)
			s.Begin()
			s.Take(r.device, x)
		},
	} {
		if err := r.arena.Begin(3, 0); err != nil {
			t.Fatal(err)
		}
		s := NewStep(r.arena, &cache.Batch{Pos: []int32{7, 8, 9}, Plans: make([]backend.Plan, 1)}, nil, 0, 1e-6)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a step that %s is not found", name)
				}
			}()
			wrong(s)
		}()
	}
}
