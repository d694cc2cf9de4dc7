//go:build invariants || race

package cache

import (
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/quant"
)

// TestInvariantsAreChecked: each of these mistakes is found by the next call that goes through the place.
func TestInvariantsAreChecked(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	for _, c := range []struct {
		name, want string
		spoil      func(s *Seq)
	}{
		{"a page freed too early", "free", func(s *Seq) { s.m.groups[0].refs[s.tables[0][0]] = 0 }},
		{"a page lost", "missing", func(s *Seq) { s.tables[0][0] = -1 }},
		{"a page freed twice", "free", func(s *Seq) {
			s.m.groups[0].release(s.tables[0][0])
			s.m.groups[0].release(s.tables[0][0])
		}},
		{"rows that were never taped", "tape", func(s *Seq) { s.pending = 99 }},
		{"a shared page written", "shared", func(s *Seq) {
			batch, err := s.m.Begin([]Segment{{Seq: s, Rows: 1}})
			if err == nil {
				s.m.groups[0].refs[s.tables[0][1]]++
				s.m.check(batch, true)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := New([]backend.Backend{b}, Spec{Layers: []Layer{{KVDims: backend.KVDims{Heads: 1, KeyDim: 32,
				ValueDim: 32, Key: quant.F16, Value: quant.F16}}}})
			if err != nil {
				t.Fatal(err)
			}
			s := m.NewSeq()
			batch, err := m.Begin([]Segment{{Seq: s, Rows: PageTokens + 3, Prompt: true}})
			if err != nil {
				t.Fatal(err)
			}
			batch.Done()
			if err := s.CommitAll(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if said, _ := recover().(string); !strings.Contains(said, c.want) {
					t.Errorf("panic %q, want one that says %q", said, c.want)
				}
			}()
			c.spoil(s)
			s.check()
		})
	}
}
