// Package vision runs the image encoders ("towers") of multimodal models. An encoder is read from the mmproj file that
// accompanies a model, and turns a resized image into rows that the text model takes instead of token embeddings.
//
// A tower is a transformer over patches of the image. Each of its definitions (qwen.go, gemma4.go) says which tensors
// it has and which operations a pass does, on the device that Open is given. Package picture decodes and resizes.
//
// An Encoder belongs to the goroutine that drives its device. Its file must stay open while it is used. It keeps the
// memory that its largest image needed.
package vision

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/nn"
	"strobe/internal/quant"
)

// Like says whose results an encoder gives where implementations differ. The values are those of package picture.
type Like int

// The choices.
const (
	Reference Like = iota // what models were trained with: tanh GELU in the blocks, exact GELU in Qwen's merger
	LlamaCpp              // llama.cpp: quick GELU where the file does not ask for GELU, tanh GELU in Qwen's merger
)

// Config is what an mmproj file says of its tower.
type Config struct {
	Projector            string // the kind of tower, as its file calls it: qwen3vl_merger, gemma4v, gemma4uv
	Patch                int    // pixels of a patch's side
	Merge                int    // patches of the side of a block that becomes one row
	Width                int    // of the residual stream
	Blocks               int
	Heads, HeadDim       int
	FFN                  int // width of the feed-forward layers
	Out                  int // width of the rows, which is that of the text model
	Eps                  float32
	Mean, Std            [3]float32 // of red, green and blue
	MinTokens, MaxTokens int        // rows of an image that the model was trained with
	Bidirectional        bool       // rows of an image see each other both ways in the text model's sliding-window layers
}

// Factor is the number of pixels that the sides of an image must be multiples of: those of the side of a row's block.
func (c *Config) Factor() int { return c.Patch * c.Merge }

// Pixels is a resized image: Pix has Height rows of Width pixels of red, green and blue.
type Pixels struct {
	Width, Height int
	Pix           []byte
}

// Encoder is a tower on a device.
type Encoder struct {
	Config
	Bytes   int // of its weights
	tower   tower
	b       backend.Backend
	arena   *nn.Arena
	mem     *cache.Memory // keys and values of the block in progress; nil for towers without blocks
	weights nn.Weights
	headPad int // size of heads in attention: HeadDim, or what the device likes better
	longest int // patches of a side that have positions; 0: any
}

// tower is the definition of an architecture.
type tower interface {
	// begin returns what the host must give to the device before the first operation.
	begin(in *image) inputs
	// first embeds the patches, block i transforms them, and last makes rows of them.
	first(s *pass)
	block(s *pass, i int)
	last(s *pass) backend.Tensor
}

// inputs are tensors with a row for every patch.
type inputs struct {
	patches   []float32 // pixels [patch values]
	positions []float32 // embeddings of their positions [width]
	rotary    []angles  // of the parts of a head
}

// angles are cosines and sines, pairs of them for every patch.
type angles struct {
	pairs    int
	cos, sin []float32
}

// pass is the encoding of one image in progress.
type pass struct {
	*nn.Step
	x                  backend.Tensor // [patches, width]
	patches, positions backend.Tensor
	rotary             []rotary
	zero               backend.Tensor    // a padded head of zeros; none if heads are not padded
	wide               [3]backend.Tensor // queries, keys and values with padded heads [patches*heads, padded head]
}

type rotary struct{ cos, sin backend.Tensor }

// Open reads the tower of an mmproj file and binds its weights to a device.
func Open(f *gguf.File, b backend.Backend, like Like) (*Encoder, error) {
	e := &Encoder{b: b, arena: nn.NewArena(b)}
	e.arena.Exact() // images are larger than the steps of padding, and few sizes come again
	l := &nn.Loader{File: f, Devices: []backend.Backend{b}, Arch: "clip.vision", OneCache: true, Weights: &e.weights}
	if l.Halves = e.halves(f); !l.Halves {
		l.KV = cache.Uniform(quant.F32)
	}
	if err := e.read(l); err != nil {
		return nil, err
	}
	e.tower = kinds[e.Projector].bind(l, e, e.activation(l, like), like)
	if l.Err != nil {
		return nil, l.Err
	}
	if width := l.Int("projection_dim", e.Out); width != e.Out {
		l.Fail("key %s is %d, but rows are %d wide", l.Key("projection_dim"), width, e.Out)
	}
	e.Bytes = l.Bytes
	if spec := l.Spec(); len(spec.Layers) > 0 && l.Err == nil {
		mem, err := cache.New(l.Devices, spec)
		l.Keep(err)
		e.mem = mem
	}
	if l.Err == nil {
		l.Keep(b.Sync())
	}
	if l.Err != nil {
		return nil, l.Err
	}
	return e, nil
}

// kind is a kind of projector.
type kind struct {
	merge                int // patches of the side of a block, where the file does not say
	mergeKey             string
	minTokens, maxTokens int
	bind                 func(l *nn.Loader, e *Encoder, act backend.Activation, like Like) tower
}

var kinds = map[string]kind{
	"qwen3vl_merger": {2, "spatial_merge_size", 8, 4096, newQwen},
	"gemma4v":        {3, "projector.scale_factor", 70, 1120, newGemma4},
	"gemma4uv":       {3, "projector.scale_factor", 70, 1120, newGemma4Unified},
}

// halves reports whether keys, values and inputs of products may be halves, which tensor cores multiply: on GPUs, which
// are devices with memory of their own, unless the file is in float32 for the sake of precision.
func (e *Encoder) halves(f *gguf.File) bool {
	_, gpu := e.b.(backend.Parker)
	w := f.Tensor(blockPrefix(0) + "attn_out.weight")
	return gpu && w != nil && w.Type != quant.F32
}

// read reads the hyper-parameters.
func (e *Encoder) read(l *nn.Loader) error {
	if arch := l.File.Arch(); arch != "clip" {
		l.Fail("architecture %q is not that of an image encoder: want clip, the architecture of mmproj files", arch)
		return l.Err
	}
	for _, key := range []string{"clip.vision.projector_type", "clip.projector_type"} {
		if name, ok, err := l.File.String(key); ok || err != nil {
			l.Keep(err)
			e.Projector = name
			break
		}
	}
	k, ok := kinds[e.Projector]
	switch has, _, err := l.File.Bool("clip.has_vision_encoder"); {
	case err != nil:
		l.Keep(err)
	case e.Projector == "" && !has:
		l.Fail("the file has no image encoder: clip.has_vision_encoder is not true")
	case !ok:
		l.Fail("image encoders with projector type %q are not supported; supported are %s", e.Projector, projectors)
	}
	if l.Err != nil {
		return l.Err
	}
	e.MinTokens, e.MaxTokens = k.minTokens, k.maxTokens
	e.Patch, e.Merge = l.Need("patch_size"), l.Int(k.mergeKey, k.merge)
	e.Width, e.Blocks = l.Need("embedding_length"), l.Need("block_count")
	e.Eps = l.Float("attention.layer_norm_epsilon", 1e-6)
	e.readColours(l)
	if err := l.Check(nn.Range("patch_size", e.Patch, 1, 256), nn.Range(k.mergeKey, e.Merge, 1, 16),
		nn.Range("embedding_length", e.Width, 1, 1<<16), nn.Range("block_count", e.Blocks, 0, 256)); err != nil {
		return err
	}
	if e.Projector == "gemma4uv" { // has no blocks: what other towers merge is one patch here
		e.Patch, e.Merge, e.Blocks = e.Patch*e.Merge, 1, 0
		return l.Err
	}
	e.FFN, e.Heads = l.Need("feed_forward_length"), l.Need("attention.head_count")
	if err := l.Check(nn.Range("feed_forward_length", e.FFN, 1, 1<<20),
		nn.Range("attention.head_count", e.Heads, 1, 1<<10),
		nn.Range("attention.head_count_kv", l.Int("attention.head_count_kv", e.Heads), e.Heads, e.Heads),
		nn.Range("block_count", e.Blocks, 1, 256)); err != nil {
		return err
	}
	e.HeadDim = l.Int("attention.head_dim", e.Width/e.Heads)
	if e.headPad = e.HeadDim; l.Halves {
		e.headPad = backend.PadHead(e.b, e.HeadDim)
	}
	if l.Check(nn.Range("attention.head_dim", e.HeadDim, 4, 1<<10)) == nil && e.HeadDim%4 != 0 {
		l.Fail("heads of %d values: positions in two directions need a multiple of 4", e.HeadDim)
	}
	return l.Err
}

const projectors = "qwen3vl_merger, gemma4v and gemma4uv"

// readColours reads how pixels are normalised.
func (e *Encoder) readColours(l *nn.Loader) {
	for name, to := range map[string]*[3]float32{"image_mean": &e.Mean, "image_std": &e.Std} {
		v, _, err := l.File.Floats(l.Key(name))
		l.Keep(err)
		if len(v) < 3 {
			l.Fail("key %s has %d values; want one for each of 3 colours", l.Key(name), len(v))
		}
		copy(to[:], v)
	}
	for i := range 3 {
		if m, s := e.Mean[i], e.Std[i]; m-m != 0 || s-s != 0 || s == 0 {
			l.Fail("pixels cannot be normalised by mean %v and standard deviation %v", e.Mean, e.Std)
			return
		}
	}
}

// activation is that of the feed-forward layers.
func (e *Encoder) activation(l *nn.Loader, like Like) backend.Activation {
	has := func(key string) bool {
		v, _, err := l.File.Bool(key)
		l.Keep(err)
		return v
	}
	switch {
	case has("clip.use_silu"):
		return backend.SiLU
	case has("clip.use_gelu") || like == Reference:
		return backend.GELU
	}
	return backend.QuickGELU
}

// OutWidth is the width of the rows, which must be that of the text model's embeddings.
func (e *Encoder) OutWidth() int { return e.Out }

// Weights are the matrices of the encoder, which can leave their device while no image is encoded.
func (e *Encoder) Weights() *nn.Weights { return &e.weights }

// maxPatches bounds the memory of an image: four times as many as any model was trained with.
const maxPatches = 1 << 16

// Grid returns the rows of an image of the given size: columns and lines of them.
func (e *Encoder) Grid(width, height int) (w, h int, err error) {
	f := e.Factor()
	if width <= 0 || height <= 0 || width%f != 0 || height%f != 0 {
		return 0, 0, fmt.Errorf("an image of %dx%d pixels: this encoder needs sides that are multiples of %d", width,
			height, f)
	}
	if n := (width / e.Patch) * (height / e.Patch); n > maxPatches {
		return 0, 0, fmt.Errorf("an image of %dx%d pixels has %d patches; at most %d can be encoded", width, height, n,
			maxPatches)
	}
	if n := max(width, height) / e.Patch; e.longest > 0 && n > e.longest {
		return 0, 0, fmt.Errorf("an image of %dx%d pixels has %d patches side by side; the encoder has positions for %d",
			width, height, n, e.longest)
	}
	return width / f, height / f, nil
}

// Encode returns the rows of an image [gridW*gridH, Out], line by line. progress, if not nil, is called after every
// part of the work. Cancelling ctx ends it between two parts.
func (e *Encoder) Encode(ctx context.Context, p Pixels, progress func(done, total int)) (
	rows []float32, gridW, gridH int, err error) {
	if gridW, gridH, err = e.Grid(p.Width, p.Height); err != nil {
		return nil, 0, 0, err
	}
	if len(p.Pix) != 3*p.Width*p.Height {
		return nil, 0, 0, fmt.Errorf("an image of %dx%d pixels has %d bytes; want 3 for a pixel", p.Width, p.Height,
			len(p.Pix))
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, 0, err
	}
	if err := e.weights.Return(); err != nil {
		return nil, 0, 0, err
	}
	rows, err = e.encode(ctx, newImage(&e.Config, p), progress)
	if err != nil {
		return nil, 0, 0, err
	}
	return rows, gridW, gridH, nil
}

func (e *Encoder) encode(ctx context.Context, in *image, progress func(done, total int)) (rows []float32, err error) {
	n := len(in.at)
	if err := e.arena.Begin(n, 0); err != nil {
		return nil, err
	}
	batch := &cache.Batch{Pos: make([]int32, n), Plans: make([]backend.Plan, 1)}
	if e.mem != nil {
		seq := e.mem.NewSeq()
		defer seq.Close()
		// All patches see each other.
		if batch, err = e.mem.Begin([]cache.Segment{{Seq: seq, Rows: n, Prompt: true, Block: []bool{true}}}); err != nil {
			return nil, err
		}
	}
	defer nn.Catch(&err)
	s := &pass{Step: nn.NewStep(e.arena, batch, e.mem, 0, e.Eps)}
	s.take(n, e.tower.begin(in))
	s.x = s.Rows(e.Width)
	s.widen(&e.Config, e.headPad)
	var out backend.Tensor
	// Each part is a step of its own, so that a client that goes away waits for one of them at most.
	parts := []func(){func() { s.clearWide(); e.tower.first(s) }}
	for i := range e.Blocks {
		parts = append(parts, func() { e.tower.block(s, i) })
	}
	parts = append(parts, func() { out = e.tower.last(s) })
	at := s.Mark()
	for i, part := range parts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.Release(at)
		s.Begin()
		part()
		s.End()
		if progress != nil {
			progress(i+1, len(parts))
		}
	}
	rows = e.b.Read(out)
	if _, gpu := e.b.(backend.Parker); !gpu { // others give their own memory
		rows = slices.Clone(rows)
	}
	return rows, e.b.Sync()
}

// take gives the inputs of a pass to its device.
func (s *pass) take(n int, in inputs) {
	give := func(v []float32) backend.Tensor {
		t := s.New(n, len(v)/n)
		s.Write(t, v)
		return t
	}
	s.patches, s.positions = give(in.patches), give(in.positions)
	for _, a := range in.rotary {
		s.rotary = append(s.rotary, rotary{give(a.cos), give(a.sin)})
	}
}

// widen makes room for padded heads.
func (s *pass) widen(c *Config, pad int) {
	if c.Heads == 0 || pad == c.HeadDim {
		return
	}
	s.zero = s.New(1, pad)
	s.Write(s.zero, make([]float32, pad))
	for i := range s.wide {
		s.wide[i] = s.Rows(c.Heads * pad).Split(c.Heads)
	}
}

// clearWide makes padded heads zero. Each block writes their first values.
func (s *pass) clearWide() {
	if s.zero.Buf == nil {
		return
	}
	none := s.Ints32(make([]int32, s.wide[0].Rows))
	for _, w := range s.wide {
		s.Gather(w, s.zero, none)
	}
}

// attend returns the attention of all patches to all patches [patches, heads*headDim].
func (s *pass) attend(cache int, q, k, v backend.Tensor, heads int, scale float32) backend.Tensor {
	p := backend.AttnParams{Heads: heads, KVHeads: heads, Scale: scale, Used: q.Cols / heads}
	if s.zero.Buf == nil {
		s.Remember(cache, k, v)
		return s.Attend(cache, q, p)
	}
	dim := q.Cols / heads
	for i, x := range []backend.Tensor{q, k, v} {
		s.Copy(s.wide[i].Columns(0, dim), x.Split(heads))
	}
	s.Remember(cache, sideBySide(s.wide[1], heads), sideBySide(s.wide[2], heads))
	padded := s.Attend(cache, sideBySide(s.wide[0], heads), p).Split(heads)
	o := s.Rows(heads * dim)
	s.Copy(o.Split(heads), padded.Columns(0, dim))
	return o
}

// layerNorm is the vectors of a LayerNorm.
type layerNorm struct{ w, bias backend.Vector }

func bindLayerNorm(l *nn.Loader, name string, width int) layerNorm {
	return layerNorm{l.Vector(name+".weight", width), l.Vector(name+".bias", width)}
}

// layerNorm returns the normalised rows of x.
func (s *pass) layerNorm(x backend.Tensor, n layerNorm, eps float32) backend.Tensor {
	h := s.New(x.Rows, x.Cols)
	s.LayerNorm(h, x, n.w, n.bias, eps)
	return h
}

// linear is a matrix with a bias.
type linear struct {
	w    backend.Weight
	bias backend.Vector
}

func bindLinear(l *nn.Loader, name string, in, out int) linear {
	m := linear{w: l.Matrix(name+".weight", in, out)} // out may be 0, for any
	if m.w != nil {
		m.bias = l.Vector(name+".bias", m.w.Rows())
	}
	return m
}

func (s *pass) linear(x backend.Tensor, m linear) backend.Tensor {
	y := s.Multiply(x, m.w)
	s.AddBias(y, m.bias)
	return y
}

// patchMatrix binds a convolution over patches as a matrix of all values of a patch, in float32. Several kernels are
// added up: a still image is every frame of a video.
func patchMatrix(l *nn.Loader, patch, width int, names ...string) backend.Weight {
	var sum []float32
	for _, name := range names {
		v := l.Floats(name, patch, patch, 3, width)
		if l.Err != nil {
			return nil
		}
		if sum == nil {
			sum = v
			continue
		}
		for i := range sum {
			sum[i] += v[i]
		}
	}
	return l.Bind(&gguf.Tensor{Name: strings.TrimSuffix(names[0], ".weight"), Type: quant.F32,
		Shape: []int{3 * patch * patch, width}, Data: floatBytes(sum)})
}

func floatBytes(v []float32) []byte {
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		bits := math.Float32bits(x)
		raw = append(raw, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
	}
	return raw
}
