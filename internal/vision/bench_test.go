package vision

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// qwenFile makes an mmproj file of Qwen's kind with random weights.
func qwenFile(t testing.TB, typ quant.Type, width, heads, ffn, blocks, out int) string {
	t.Helper()
	const patch, side = 16, 48
	e := &edit.File{KVs: []gguf.KV{
		{Key: "general.architecture", Value: "clip"}, {Key: "clip.projector_type", Value: "qwen3vl_merger"},
		{Key: "clip.has_vision_encoder", Value: true}, {Key: "clip.use_gelu", Value: true},
		{Key: "clip.vision.embedding_length", Value: uint32(width)}, {Key: "clip.vision.block_count", Value: uint32(blocks)},
		{Key: "clip.vision.attention.head_count", Value: uint32(heads)},
		{Key: "clip.vision.feed_forward_length", Value: uint32(ffn)},
		{Key: "clip.vision.projection_dim", Value: uint32(out)}, {Key: "clip.vision.patch_size", Value: uint32(patch)},
		{Key: "clip.vision.image_mean", Value: []float32{0.5, 0.5, 0.5}},
		{Key: "clip.vision.image_std", Value: []float32{0.5, 0.5, 0.5}},
		{Key: "clip.vision.attention.layer_norm_epsilon", Value: float32(1e-6)},
	}}
	r := rand.New(rand.NewPCG(1, 2))
	values := func(n int, size float32) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = size * float32(r.NormFloat64())
		}
		return v
	}
	put := func(name string, in, out int) {
		raw := make([]byte, out*typ.RowBytes(in))
		if err := quant.Quantize(typ, raw, values(in*out, 0.02)); err != nil {
			t.Fatal(err)
		}
		e.Tensors = append(e.Tensors, &gguf.Tensor{Name: name + ".weight", Type: typ, Shape: []int{in, out}, Data: raw})
		e.Put(name+".bias", values(out, 0.02), out)
	}
	norm := func(name string) {
		e.Put(name+".weight", values(width, 1), width).Put(name+".bias", values(width, 0.1), width)
	}
	for _, suffix := range []string{"", ".1"} {
		e.Put("v.patch_embd.weight"+suffix, values(patch*patch*3*width, 0.02), patch, patch, 3, width)
	}
	e.Put("v.patch_embd.bias", values(width, 0.02), width)
	e.Put("v.position_embd.weight", values(width*side*side, 0.1), width, side*side)
	for i := range blocks {
		p := blockPrefix(i)
		norm(p + "ln1")
		norm(p + "ln2")
		put(p+"attn_qkv", width, 3*width)
		put(p+"attn_out", width, width)
		put(p+"ffn_up", width, ffn)
		put(p+"ffn_down", ffn, width)
	}
	norm("v.post_ln")
	put("mm.0", 4*width, 4*width)
	put("mm.2", 4*width, out)
	return e.Write(t)
}

// BenchmarkQwen4B encodes an image of 512 rows with two of the 24 blocks of Qwen3.5-4B's tower.
func BenchmarkQwen4B(b *testing.B) {
	const blocks = 2
	for _, typ := range []quant.Type{quant.F16, quant.Q8_0, quant.F32} {
		b.Run(fmt.Sprint(typ), func(b *testing.B) {
			device := cpu.New(cpu.Options{})
			defer device.Close()
			e := openOn(b, qwenFile(b, typ, 1024, 16, 4096, blocks, 2560), device, Reference)
			p := Pixels{Width: 1024, Height: 512, Pix: make([]byte, 3*1024*512)}
			for i := range p.Pix {
				p.Pix[i] = byte(i * 7)
			}
			for b.Loop() {
				if _, _, _, err := e.Encode(b.Context(), p, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
