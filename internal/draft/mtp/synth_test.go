package mtp

import (
	"path/filepath"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/synth"
)

// TestSynthetic: made-up files of both kinds load, fit each other and draft.
func TestSynthetic(t *testing.T) {
	for name, drafter := range map[string]string{
		"tiny-qwen35-mtp": "", "tiny-qwen35moe-mtp": "", "tiny-qwen3next-mtp": "",
		"tiny-gemma4": "tiny-gemma4-assistant", "tiny-gemma4moe": "tiny-gemma4moe-assistant",
	} {
		t.Run(name, func(t *testing.T) {
			write := func(shape string) string {
				path := filepath.Join(t.TempDir(), shape+".gguf")
				if err := synth.Write(t.Context(), path, shape, "q4_k_m", 3, synth.Options{}); err != nil {
					t.Fatal(err)
				}
				return path
			}
			m := openTarget(t, write(name))
			f := m.File()
			if drafter != "" {
				f = openFile(t, write(drafter))
			}
			s := newStream(m, openDrafter(t, f, m))
			s.pass(t, text(1, 100), 100)
			ps, err := s.d.Draft([]draft.Request{s.request(5, 8)}, 4)
			if err != nil {
				t.Fatal(err)
			}
			if ps[0].Sane(m.Vocab); ps[0].Len() != 8 || len(ps[0].At[7]) != 4 {
				t.Errorf("proposal %v", ps[0].At)
			}
		})
	}
}
