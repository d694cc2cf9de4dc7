package synth

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"strobe/internal/convert"
	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// Options are for callers that show progress.
type Options struct {
	// Plan is told what will be written before the first tensor.
	Plan func(convert.Plan)
	// Progress is called with the number of bytes just written.
	Progress func(n int64)
}

// Write makes the file path with random weights: shape is one of Shapes, mix a
// name quant.ParseMix knows. The same seed gives the same file. An unfinished
// file is removed.
func Write(ctx context.Context, path, shape, mix string, seed uint64, opt Options) error {
	m, err := quant.ParseMix(mix)
	if err != nil {
		return err
	}
	kvs, specs, tensors, err := planFile(shape, m)
	if err != nil {
		return err
	}
	plan := convert.Plan{Type: m.Name(), Tensors: len(specs), Arch: kvs[0].Value.(string)}
	for _, sp := range specs {
		plan.Bytes += int64(sp.Type.RowBytes(sp.Shape[0])) * int64(rowsOf(sp.Shape))
	}
	w, err := gguf.Create(path, kvs, specs, gguf.WriteOptions{})
	if err != nil {
		return err
	}
	if opt.Plan != nil {
		opt.Plan(plan)
	}
	g := &generator{seed: seed, pools: map[poolKey][]byte{}}
	for i, t := range tensors {
		if err := g.write(ctx, w, t, specs[i].Type, opt.Progress); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Close()
}

// planFile is the metadata of a file and its tensors with their types.
func planFile(shape string, m quant.Mix) ([]gguf.KV, []gguf.TensorSpec, []tensor, error) {
	if t, ok := findTower(shape); ok {
		tensors := t.tensors()
		kvs, specs, err := t.header(tensors, m)
		return kvs, specs, tensors, err
	}
	s, target, err := find(shape)
	if err != nil {
		return nil, nil, nil, err
	}
	tensors := s.tensors()
	quant.SortTensors(tensors, func(t tensor) string { return t.name })
	kvs, specs, err := s.header(target, tensors, m)
	return kvs, specs, tensors, err
}

func rowsOf(shape []int) int {
	n := 1
	for _, d := range shape[1:] {
		n *= d
	}
	return n
}

// header is the metadata and the tensor list.
func (s *shape) header(target *shape, tensors []tensor, m quant.Mix) ([]gguf.KV, []gguf.TensorSpec, error) {
	var targetConfig []byte
	if target != nil {
		targetConfig = target.config()
	}
	arch, keys, err := convert.Keys(s.config(), targetConfig, m.FileType())
	if err != nil {
		return nil, nil, err
	}
	infos := make([]quant.TensorInfo, len(tensors))
	for i, t := range tensors {
		infos[i] = quant.TensorInfo{Name: t.name, Shape: t.shape, Type: quant.BF16}
		if convert.AlwaysF32(t.name, len(t.shape)) {
			infos[i].Type = quant.F32
		}
	}
	types, err := m.Plan(arch, infos)
	if err != nil {
		return nil, nil, err
	}
	specs := make([]gguf.TensorSpec, len(tensors))
	for i, t := range tensors {
		specs[i] = gguf.TensorSpec{Name: t.name, Type: types[i], Shape: t.shape}
		if t.fill == tokenIDs {
			specs[i].Type = quant.I64
		}
	}
	kvs := []gguf.KV{
		{Key: "general.architecture", Value: arch},
		{Key: "general.type", Value: "model"},
		{Key: "general.name", Value: s.title + " (random weights)"},
		{Key: "general.size_label", Value: convert.SizeLabel(specs)},
	}
	kvs = append(kvs, keys...)
	kvs = append(kvs, s.tokenizerKeys(target)...)
	if s.class == drafterClass {
		kvs = setKey(kvs, "tokenizer.ggml.mask_token_id", uint32(s.mask))
	}
	return append(kvs, gguf.KV{Key: "general.quantization_version", Value: uint32(2)}), specs, nil
}

func setKey(kvs []gguf.KV, key string, v any) []gguf.KV {
	for i := range kvs {
		if kvs[i].Key == key {
			kvs[i].Value = v
			return kvs
		}
	}
	return append(kvs, gguf.KV{Key: key, Value: v})
}

// generator makes tensors. Quantising gigabytes of random numbers would take
// minutes, so each kind of matrix is put together from a pool of a few thousand
// quantised pieces, every piece chosen at random: rows differ, and writing runs
// at the speed of the disk.
type generator struct {
	seed  uint64
	pools map[poolKey][]byte
}

type poolKey struct {
	typ   quant.Type
	piece int
	scale float64
}

const (
	pieceLen   = 256  // values copied at a time; a multiple of every block length
	poolPieces = 2048 // pieces to choose from
)

// stream is a random source of its own for one part of the file, so that the
// result does not depend on which core makes it.
func (g *generator) stream(name string, part int) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(g.seed, h.Sum64()^uint64(part)*0x9e3779b97f4a7c15))
}

func (g *generator) write(ctx context.Context, w *gguf.Writer, t tensor, typ quant.Type, progress func(int64)) error {
	if t.fill == tokenIDs {
		data := tokenMap(t)
		if progress != nil {
			progress(int64(len(data)))
		}
		return w.WriteTensor(t.name, data)
	}
	if t.fill != random {
		data := make([]byte, 0, 4*t.shape[0]*rowsOf(t.shape))
		for _, v := range g.special(t) {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		if progress != nil {
			progress(int64(len(data)))
		}
		return w.WriteTensor(t.name, data)
	}
	pool, size, err := g.pool(typ, t)
	if err != nil {
		return err
	}
	row := typ.RowBytes(t.shape[0])
	walk := g.stream(t.name, -1)
	step, first := 2*walk.IntN(poolPieces/2)+1, walk.IntN(poolPieces) // odd: reaches every piece
	enc := func() convert.RowEncoder {
		return func(dst []byte, from, to int) error {
			rng := g.stream(t.name, from)
			for at := 0; at < len(dst); at += size {
				i := int(rng.Uint32() % poolPieces)
				if size == row {
					// A row of one piece: walk through the pool instead, so that
					// neighbours differ.
					i = (step*(from+at/row) + first) % poolPieces
				}
				copy(dst[at:], pool[i*size:(i+1)*size])
			}
			return nil
		}
	}
	return convert.WriteRows(ctx, w, t.name, rowsOf(t.shape), row, enc, progress)
}

// pool is a set of quantised pieces with the tensor's scale, and the size of
// one. Pieces divide rows evenly, so a row is whole pieces.
func (g *generator) pool(typ quant.Type, t tensor) (pool []byte, size int, err error) {
	piece := pieceLen
	for t.shape[0]%piece != 0 {
		piece /= 2
	}
	if piece < typ.BlockLen() {
		piece = t.shape[0]
	}
	size = typ.RowBytes(piece)
	key := poolKey{typ, piece, t.scale}
	if pool = g.pools[key]; pool != nil {
		return pool, size, nil
	}
	rng := g.stream(typ.String(), piece)
	values := make([]float32, piece)
	pool = make([]byte, poolPieces*size)
	for i := range poolPieces {
		for j := range values {
			values[j] = float32(rng.NormFloat64() * t.scale)
		}
		if err := quant.Quantize(typ, pool[i*size:(i+1)*size], values); err != nil {
			return nil, 0, err
		}
	}
	g.pools[key] = pool
	return pool, size, nil
}

// special makes the values of vectors that are not plain weights.
func (g *generator) special(t tensor) []float32 {
	rng := g.stream(t.name, 0)
	out := make([]float32, t.shape[0]*rowsOf(t.shape))
	for i := range out {
		switch t.fill {
		case spread:
			out[i] = float32(t.scale * rng.NormFloat64())
		case constant:
			out[i] = float32(t.scale)
		case nearOne:
			out[i] = float32(t.scale * (1 + 0.05*rng.NormFloat64()))
		case decay:
			out[i] = -float32(1 + 15*rng.Float64())
		case stepBias:
			// The inverse softplus of a step between 0.001 and 0.1.
			step := 0.001 * math.Pow(100, rng.Float64())
			out[i] = float32(step + math.Log(-math.Expm1(-step)))
		case taps:
			out[i] = float32(t.scale * rng.NormFloat64())
			if i%convTaps == convTaps-1 {
				out[i] += 0.8
			}
		case stretched:
			out[i] = float32(1 + (t.scale-1)*float64(i)/float64(len(out)-1))
		case factors:
			if out[i] = 1; i >= int(float64(len(out))*t.scale) {
				out[i] = 1e30
			}
		}
	}
	return out
}
