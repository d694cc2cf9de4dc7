package vision

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/nn"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// noise is an image of random pixels.
func noise(width, height int) Pixels {
	p := Pixels{Width: width, Height: height, Pix: make([]byte, 3*width*height)}
	state := uint32(1)
	for i := range p.Pix {
		state = state*1664525 + 1013904223
		p.Pix[i] = byte(state >> 24)
	}
	return p
}

var files = []string{"qwen-small-f32", "qwen-small-q8_0", "gemma4v-small-f32", "gemma4uv-f32"}

// TestBits: an image has the same rows alone, after larger and smaller images, after a cancelled one, and with any
// number of threads.
func TestBits(t *testing.T) {
	for _, name := range files {
		path := unpacked(t, "mmproj-"+name+".gguf")
		var want []float32
		for _, threads := range []int{1, 3} {
			b := cpu.New(cpu.Options{Threads: threads})
			device := testkit.NewDevice(t, b)
			e := openOn(t, path, device, Reference)
			f := e.Factor()
			encode := func(p Pixels) []float32 {
				rows, w, h, err := e.Encode(t.Context(), p, nil)
				if err != nil || w != p.Width/f || h != p.Height/f {
					t.Fatalf("%s: %d x %d rows, error %v", name, w, h, err)
				}
				return rows
			}
			image := noise(5*f, 3*f)
			first := encode(image)
			if want == nil {
				want = first
			}
			encode(noise(7*f, 4*f))
			encode(noise(f, f))
			ctx, cancel := context.WithCancel(t.Context())
			if _, _, _, err := e.Encode(ctx, image, func(int, int) { cancel() }); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v of a cancelled image", name, err)
			}
			live := device.Live()
			if again := encode(image); !slices.Equal(first, want) || !slices.Equal(again, want) {
				t.Errorf("%s, %d threads: other bits than alone with one thread", name, threads)
			}
			if device.Live() != live {
				t.Errorf("%s: an image leaves %d values behind", name, device.Live()-live)
			}
			b.Close()
		}
	}
}

// paddingDevice likes larger heads.
type paddingDevice struct{ backend.Backend }

func (paddingDevice) PadHead(dim int) int                             { return dim + 8 }
func (paddingDevice) Park(...backend.Weight)                          {}
func (paddingDevice) Unpark(w backend.Weight, m backend.Matrix) error { return nil }

// inHalves is a file whose attention keeps halves on GPUs.
func inHalves(t *testing.T, path string) string {
	f := edit.Read(t, path)
	w := f.Tensor("v.blk.0.attn_out.weight")
	if w == nil || w.Type != quant.F32 {
		return path
	}
	raw := make([]byte, len(w.Data)/2)
	if err := quant.Quantize(quant.F16, raw, f.Values(t, w.Name)); err != nil {
		t.Fatal(err)
	}
	w.Type, w.Data = quant.F16, raw
	return f.Write(t)
}

// TestPaddedHeads: zeros behind heads change nothing but what halves do, also after another image left its values.
func TestPaddedHeads(t *testing.T) {
	for _, name := range files {
		path := inHalves(t, unpacked(t, "mmproj-"+name+".gguf"))
		b := cpu.New(cpu.Options{Threads: 2})
		padded := openOn(t, path, paddingDevice{b}, Reference)
		whole := openOn(t, path, b, Reference)
		for _, side := range []int{2, 5, 3} {
			image := noise(side*whole.Factor(), 3*whole.Factor())
			want, _, _, err := whole.Encode(t.Context(), image, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, _, _, err := padded.Encode(t.Context(), image, nil)
			if d := testkit.RelL2(got, want); err != nil || d > 2e-3 {
				t.Errorf("%s: with padded heads rows are off by %.2g, error %v", name, d, err)
			}
			padded.arena.Poison(float32(math.NaN()))
		}
		b.Close()
	}
}

// parkingDevice counts the weights that are parked.
type parkingDevice struct {
	backend.Backend
	parked int
}

func (d *parkingDevice) Park(ws ...backend.Weight) { d.parked += len(ws) }

func (d *parkingDevice) Unpark(backend.Weight, backend.Matrix) error {
	d.parked--
	return nil
}

// TestParked: weights that are parked return for the next image; while they are held it is refused.
func TestParked(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	d := &parkingDevice{Backend: b}
	e := openOn(t, unpacked(t, "mmproj-qwen-small-f32.gguf"), d, Reference)
	image := noise(e.Factor(), e.Factor())
	if e.Weights().Park(); d.parked != 15 { // two blocks of six matrices, patches, and the merger's two
		t.Fatalf("%d weights are parked", d.parked)
	}
	e.Weights().Hold(true)
	if _, _, _, err := e.Encode(t.Context(), image, nil); !errors.Is(err, nn.ErrHeld) || d.parked != 15 {
		t.Errorf("held weights: error %v, %d are parked", err, d.parked)
	}
	e.Weights().Hold(false)
	if _, _, _, err := e.Encode(t.Context(), image, nil); err != nil || d.parked != 0 {
		t.Errorf("error %v, %d weights are parked", err, d.parked)
	}
}

// TestProgress: every part is reported, up to the last.
func TestProgress(t *testing.T) {
	e := openEncoder(t, unpacked(t, "mmproj-qwen-small-f32.gguf"), Reference)
	var seen []int
	_, _, _, err := e.Encode(t.Context(), noise(e.Factor(), e.Factor()), func(done, total int) {
		seen = append(seen, done)
		if total != e.Blocks+2 {
			t.Errorf("%d parts of %d blocks", total, e.Blocks)
		}
	})
	if want := []int{1, 2, 3, 4}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("parts %v, want %v, error %v", seen, want, err)
	}
}

// TestConfig: what a file says of its tower.
func TestConfig(t *testing.T) {
	half := [3]float32{0.5, 0.5, 0.5}
	for name, want := range map[string]Config{
		"qwen-small-f32": {Projector: "qwen3vl_merger", Patch: 8, Merge: 2, Width: 32, Blocks: 2, Heads: 2, HeadDim: 16,
			FFN: 64, Out: 64, Eps: 1e-6, Mean: half, Std: half, MinTokens: 8, MaxTokens: 4096},
		"gemma4v-small-f32": {Projector: "gemma4v", Patch: 8, Merge: 3, Width: 32, Blocks: 2, Heads: 2, HeadDim: 16,
			FFN: 64, Out: 64, Eps: 1e-6, Std: [3]float32{1, 1, 1}, MinTokens: 70, MaxTokens: 1120, Bidirectional: true},
		"gemma4uv-f32": {Projector: "gemma4uv", Patch: 24, Merge: 1, Width: 64, Out: 64, Eps: 1e-6,
			Std: [3]float32{1, 1, 1}, MinTokens: 70, MaxTokens: 1120, Bidirectional: true},
	} {
		e := openEncoder(t, unpacked(t, "mmproj-"+name+".gguf"), Reference)
		if e.Config != want {
			t.Errorf("%s: %+v, want %+v", name, e.Config, want)
		}
	}
}

// TestLike: the two ways differ where their activations do.
func TestLike(t *testing.T) {
	for _, c := range []struct {
		file        string
		least, most float64
	}{
		{"qwen-small-f32", 1e-6, 1e-2},    // the merger's GELU
		{"gemma4v-small-f32", 1e-3, 3e-2}, // quick GELU
		{"gemma4uv-f32", 0, 0},
	} {
		path := unpacked(t, "mmproj-"+c.file+".gguf")
		var rows [2][]float32
		for like := range rows {
			e := openEncoder(t, path, Like(like))
			var err error
			if rows[like], _, _, err = e.Encode(t.Context(), noise(4*e.Factor(), 3*e.Factor()), nil); err != nil {
				t.Fatal(err)
			}
		}
		if d := testkit.RelL2(rows[0], rows[1]); d < c.least || d > c.most {
			t.Errorf("%s: the reference and llama.cpp differ by %.2g, want %g to %g", c.file, d, c.least, c.most)
		}
	}
}

// TestClipped: bounds that bite change rows as bounding the values themselves does, and a model with them does not see
// images both ways.
func TestClipped(t *testing.T) {
	path := unpacked(t, "mmproj-gemma4v-small-f32.gguf")
	encode := func(e *Encoder) []float32 {
		rows, _, _, err := e.Encode(t.Context(), noise(3*e.Factor(), 3*e.Factor()), nil)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	plain := openEncoder(t, path, Reference)
	clip := func(name string, v ...float32) *Encoder {
		f := edit.Read(t, path)
		for i, suffix := range []string{".input_min", ".input_max", ".output_min", ".output_max"}[:len(v)] {
			f.Put(name+suffix, v[i:i+1], 1)
		}
		return openEncoder(t, f.Write(t), Reference)
	}
	want := encode(plain)
	wide := clip("v.blk.0.attn_q", -1e30, 1e30, -1e30, 1e30)
	if !slices.Equal(encode(wide), want) {
		t.Error("bounds that nothing reaches change rows")
	}
	if wide.Bidirectional || !plain.Bidirectional {
		t.Errorf("images are seen both ways: %v with bounds, %v without", wide.Bidirectional, plain.Bidirectional)
	}
	for _, name := range []string{"v.blk.0.attn_q", "v.blk.1.attn_out", "v.blk.1.ffn_up", "mm.input_projection"} {
		if slices.Equal(encode(clip(name, -0.01, 0.01)), want) {
			t.Errorf("%s: bounds of its input do nothing", name)
		}
	}
	const bound = 0.125
	got := encode(clip("mm.input_projection", float32(math.Inf(-1)), float32(math.Inf(1)), -bound, bound))
	for i, v := range want {
		want[i] = min(max(v, -bound), bound)
	}
	if !slices.Equal(got, want) {
		t.Error("bounded rows are not the rows, bounded")
	}
}

// TestRefused: what a file lacks or has too much of is an error that names it.
func TestRefused(t *testing.T) {
	qwen := unpacked(t, "mmproj-qwen-small-f32.gguf")
	gemma := unpacked(t, "mmproj-gemma4v-small-f32.gguf")
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	for _, c := range []struct {
		file string
		edit func(f *edit.File)
		want string
	}{
		{qwen, func(f *edit.File) { f.Set("general.architecture", "qwen3") }, "want clip"},
		{qwen, func(f *edit.File) { f.Set("clip.projector_type", "pixtral") }, `"pixtral" are not supported; supported are`},
		{qwen, func(f *edit.File) { f.Set("clip.projector_type", nil).Set("clip.has_vision_encoder", false) },
			"no image encoder"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.patch_size", uint32(0)) }, "clip.vision.patch_size is 0"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.patch_size", nil) }, "missing key clip.vision.patch_size"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.attention.head_count", uint32(0)) }, "attention.head_count is 0"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.attention.head_count", uint32(16)) }, "head_dim is 2"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.attention.head_count_kv", uint32(1)) }, "head_count_kv is 1"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.image_mean", []float32{1, 2}) }, "image_mean has 2 values"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.image_std", []float32{1, 0, 1}) }, "cannot be normalised"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.projection_dim", uint32(65)) }, "rows are 64 wide"},
		{qwen, func(f *edit.File) { f.Set("clip.vision.block_count", uint32(3)) }, `missing tensor "v.blk.2.`},
		{qwen, func(f *edit.File) { f.Drop("v.blk.1.ffn_up.bias") }, `missing tensor "v.blk.1.ffn_up.bias"`},
		{qwen, func(f *edit.File) { f.Drop("mm.2.weight") }, `missing tensor "mm.2.weight"`},
		{qwen, func(f *edit.File) { f.Put("v.position_embd.weight", make([]float32, 32*24), 32, 24) }, "not a square"},
		{qwen, func(f *edit.File) { f.Put("v.deepstack.1.fc1.weight", []float32{1}, 1) }, "v.deepstack.1.fc1.weight"},
		{gemma, func(f *edit.File) { f.Drop("v.position_embd.weight") }, `missing tensor "v.position_embd.weight"`},
		{gemma, func(f *edit.File) { f.Drop("v.std_scale") }, `missing tensor "v.std_scale"`},
		{gemma, func(f *edit.File) { f.Put("v.blk.0.attn_q.input_max", []float32{float32(math.NaN())}, 1) }, "bound is NaN"},
	} {
		e := edit.Read(t, c.file)
		c.edit(e)
		f, err := gguf.Open(e.Write(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(f, b, Reference); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, c.want)
		}
		f.Close()
	}
}

// TestImagesRefused: images that do not fit are errors that say why.
func TestImagesRefused(t *testing.T) {
	e := openEncoder(t, unpacked(t, "mmproj-gemma4uv-f32.gguf"), Reference)
	f := e.Factor()
	for _, c := range []struct {
		p    Pixels
		want string
	}{
		{Pixels{}, "multiples of"},
		{noise(f+1, f), "multiples of"},
		{noise(f, f/2), "multiples of"},
		{Pixels{Width: -f, Height: f}, "multiples of"},
		{Pixels{Width: f, Height: f, Pix: make([]byte, 3*f*f-1)}, "bytes"},
		{Pixels{Width: f << 12, Height: f << 12}, "patches; at most"},
		{Pixels{Width: f << 12, Height: f}, "side by side"},
	} {
		rows, w, h, err := e.Encode(t.Context(), c.p, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || rows != nil || w != 0 || h != 0 {
			t.Errorf("%d x %d pixels: error %v, want %q", c.p.Width, c.p.Height, err, c.want)
		}
	}
}

// TestNoMemory: an image that does not fit in memory is an error, and the next one can be encoded.
func TestNoMemory(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	device := testkit.NewDevice(t, b)
	e := openOn(t, unpacked(t, "mmproj-qwen-small-f32.gguf"), device, Reference)
	image := noise(3*e.Factor(), e.Factor())
	left := 0
	device.Fail = func() error {
		if left--; left < 0 {
			return backend.ErrNoMemory
		}
		return nil
	}
	failed := 0
	for n := range 50 {
		left = n
		_, _, _, err := e.Encode(t.Context(), image, nil)
		if err == nil {
			break
		}
		if failed++; !errors.Is(err, backend.ErrNoMemory) {
			t.Fatal(err)
		}
	}
	device.Fail = nil
	if _, _, _, err := e.Encode(t.Context(), image, nil); err != nil || failed == 0 {
		t.Errorf("after %d failures: %v", failed, err)
	}
}

// TestHostile: whatever a file says in its keys, and whichever tensor it lacks or has in another shape, opening it is
// an error of one line, or gives an encoder that works.
func TestHostile(t *testing.T) {
	b := cpu.New(cpu.Options{Threads: 1})
	defer b.Close()
	try := func(what string, e *edit.File) {
		t.Helper()
		f, err := gguf.Open(e.Write(t))
		if err != nil {
			return // refused before
		}
		defer f.Close()
		x, err := Open(f, b, Reference)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), f.Path()) {
				t.Errorf("%s: error %q", what, err)
			}
			return
		}
		if side := x.Factor(); side <= 1<<10 {
			if _, _, _, err := x.Encode(t.Context(), noise(side, side), nil); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	for _, name := range []string{"qwen-small-q8_0", "gemma4v-small-f32"} {
		whole := edit.Read(t, unpacked(t, "mmproj-"+name+".gguf"))
		optional := []string{"attention.head_dim", "attention.head_count_kv", "spatial_merge_size",
			"projector.scale_factor", "projection_dim"}
		for _, key := range optional {
			for _, v := range edit.HostileValues(uint32(2)) {
				try(name+" "+key, whole.Clone().Set("clip.vision."+key, v))
			}
		}
		for _, kv := range whole.KVs {
			for _, v := range edit.HostileValues(kv.Value) {
				try(name+" "+kv.Key, whole.Clone().Set(kv.Key, v))
			}
			try(name+" "+kv.Key, whole.Clone().Set(kv.Key, "nonsense"))
		}
		for _, x := range whole.Tensors {
			if strings.HasPrefix(x.Name, "v.blk.1.") { // as those of the first block
				continue
			}
			try(name+" without "+x.Name, whole.Clone().Drop(x.Name))
			try(name+" short "+x.Name, whole.Clone().Drop(x.Name).Put(x.Name, []float32{1}, 1))
			try(name+" wide "+x.Name, whole.Clone().Drop(x.Name).Put(x.Name, make([]float32, 96), 32, 3))
		}
	}
}

// TestMemory: blocks use the same memory one after the other.
func TestMemory(t *testing.T) {
	live := func(blocks int) int {
		b := cpu.New(cpu.Options{Threads: 1})
		defer b.Close()
		device := testkit.NewDevice(t, b)
		e := openOn(t, qwenFile(t, quant.F16, 64, 4, 96, blocks, 64), device, Reference)
		for range 2 { // the first one finds out how much it takes
			if _, _, _, err := e.Encode(t.Context(), noise(8*e.Factor(), 8*e.Factor()), nil); err != nil {
				t.Fatal(err)
			}
		}
		return device.Live()
	}
	if one, four := live(1), live(4); four > one {
		t.Errorf("four blocks take %d values, one takes %d", four, one)
	}
}
