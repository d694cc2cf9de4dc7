package main

import (
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/synth"
	"strobe/internal/testkit/edit"
)

// TestInspectVision: what is wrong with an mmproj file is named.
func TestInspectVision(t *testing.T) {
	dir := t.TempDir()
	tower := func(shape string) *edit.File {
		path := filepath.Join(dir, shape+".gguf")
		if err := synth.Write(t.Context(), path, shape, "f32", 1, synth.Options{}); err != nil {
			t.Fatal(err)
		}
		return edit.Read(t, path)
	}
	qwen, gemma := tower("tiny-qwen35-mmproj"), tower("tiny-gemma4e-mmproj")
	for _, x := range []struct {
		name string
		file *edit.File
		want string // one check that says so; "" if all is well
	}{
		{"as it is", qwen, ""},
		{"another projector", qwen.Clone().Set("clip.projector_type", "pixtral"), `"pixtral"`},
		{"no patches", qwen.Clone().Set("clip.vision.patch_size", uint32(0)), "patch_size"},
		{"another width of the text model", qwen.Clone().Set("clip.vision.projection_dim", uint32(99)), "projection_dim"},
		{"a missing tensor", qwen.Clone().Drop("v.blk.1.ffn_up.weight"), "v.blk.1.ffn_up.weight"},
		{"no merger", qwen.Clone().Drop("mm."), "mm."},
		{"two colours", gemma.Clone().Set("clip.vision.image_std", []float32{1, 1}), "image_std"},
		{"a bound that is none", gemma.Clone().Put("v.blk.0.attn_q.input_max", []float32{inf()}, 1), ""},
		{"a bound that is no number", gemma.Clone().Put("v.blk.0.attn_q.input_max", []float32{inf() - inf()}, 1), "NaN"},
		{"an infinite norm", gemma.Clone().Put("v.blk.0.ln1.weight", append(make([]float32, 63), inf()), 64), "Inf"},
	} {
		path := filepath.Join(dir, "mmproj.gguf")
		x.file.WriteTo(t, path)
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := inspectFile(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, c := range r.Checks {
			if c.Result == "FAIL" {
				failed = append(failed, c.What)
			}
		}
		said := strings.Join(failed, "; ")
		if x.want == "" && said != "" || x.want != "" && !strings.Contains(said, x.want) {
			t.Errorf("%s: checks that failed: %q, want one with %q", x.name, said, x.want)
		}
		var out strings.Builder
		if err := r.print(&out); err != nil || !strings.Contains(out.String(), "sees with") {
			t.Errorf("%s: %v, printed %q", x.name, err, out.String())
		}
	}
	heard := gemma.Clone().Set("clip.audio.projector_type", "gemma4a")
	path := filepath.Join(dir, "mmproj.gguf")
	heard.WriteTo(t, path)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := inspectFile(f)
	if err != nil || r.Vision.Audio != "gemma4a" || r.failed() > 0 {
		t.Errorf("sound: %+v, %v", r.Vision, err)
	}
}

func inf() float32 {
	zero := float32(0)
	return 1 / zero
}
