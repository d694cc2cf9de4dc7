package model

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/nn"
)

// Block is the layers of a drafter that have the architecture of its target.
type Block struct {
	Hidden int
	Eps    float32
	ropes  []*nn.Rope
	layers []func(s *nn.Step, x backend.Tensor) // x [tokens, hidden], in place
	keys   func(s *nn.Step, x backend.Tensor)
}

// Angles computes the rotary angles of the positions, before the first layer.
func (b *Block) Angles(s *nn.Step) { s.Angles(b.ropes...) }

// Forward takes the residual stream x through the layers.
func (b *Block) Forward(s *nn.Step, x backend.Tensor) {
	for _, layer := range b.layers {
		layer(s, x)
	}
}

// Remember writes the keys and values of x to the cache and computes nothing else. It is for blocks of one layer.
func (b *Block) Remember(s *nn.Step, x backend.Tensor) { b.keys(s, x) }

// NextN is the layer of a Qwen file's first block for multi-token prediction. The file may hold a whole model or such
// a block alone.
func NextN(l *nn.Loader) (*Block, error) {
	switch l.Arch {
	case "qwen35", "qwen35moe", "qwen3next":
	default:
		return nil, fmt.Errorf("%s: architecture %q has no block for multi-token prediction that we know",
			l.File.Path(), l.Arch)
	}
	m := &Model{}
	if err := m.readConfig(l); err != nil {
		return nil, err
	}
	a, err := readQwen35(l, m)
	if err != nil {
		return nil, err
	}
	y := a.loadLayer(l, fmt.Sprintf("blk.%d.", m.Layers), m.Hidden, false)
	b := &Block{Hidden: m.Hidden, Eps: m.eps, ropes: []*nn.Rope{a.rope}}
	b.layers = append(b.layers, func(s *nn.Step, x backend.Tensor) { a.advance(s, x, &y) })
	b.keys = func(s *nn.Step, x backend.Tensor) {
		kv := s.Project(s.Norm(x, y.norm), y.attn.k, y.attn.v)
		a.remember(s, kv[0], kv[1], y.attn)
	}
	return b, l.Err
}

// Assistant is the layers of a Gemma assistant. They have no keys and values of their own: each attends to those of
// the target's last layer of its kind, on device b.
func Assistant(l *nn.Loader, target *Model, b backend.Backend) (*Block, error) {
	t, ok := target.arch.(*gemma4)
	if !ok {
		return nil, fmt.Errorf("%s: an assistant of Gemma 4 cannot draft for architecture %q", l.File.Path(),
			target.Arch)
	}
	m := &Model{Config: Config{Layers: l.Need("block_count"), Hidden: l.Need("embedding_length")}}
	if err := l.Check(nn.Range("block_count", m.Layers, 1, 256),
		nn.Range("embedding_length", m.Hidden, 1, 1<<20)); err != nil {
		return nil, err
	}
	a, err := readGemma4(l, m)
	if err != nil {
		return nil, err
	}
	if a.pleDim != 0 {
		return nil, fmt.Errorf("%s: key %s is %d; assistants have no embeddings per layer", l.File.Path(),
			l.Key("embedding_length_per_layer_input"), a.pleDim)
	}
	block := &Block{Hidden: m.Hidden, Eps: l.Float("attention.layer_norm_rms_epsilon", 1e-6),
		ropes: []*nn.Rope{a.sliding, a.full}}
	for i, from := range donors(a.slides, t.slides) {
		if from < 0 {
			l.Fail("layer %d finds no layer of its kind in the target", i)
			break
		}
		d := &t.layers[from]
		y := a.loadLayer(l, fmt.Sprintf("blk.%d.", i), m.Hidden, i, d.kvHeads)
		if y.headDim != d.headDim || y.window != d.window {
			l.Fail("layer %d has heads of %d values and a window of %d, layer %d of the target %d and %d", i,
				y.headDim, y.window, from, d.headDim, d.window)
		}
		if target.devices[target.place[from]] != b {
			l.Fail("layer %d reads the keys of layer %d of the target, which lie on another device", i, from)
		}
		if l.Err != nil {
			break
		}
		y.cache = d.cache
		block.layers = append(block.layers, func(s *nn.Step, x backend.Tensor) {
			a.advance(s, x, backend.Tensor{}, &y)
		})
	}
	return block, l.Err
}

// donors finds for each of a drafter's layers the target's last one of the same kind, -1 for none.
func donors(drafter, target []bool) []int {
	last := map[bool]int{false: -1, true: -1}
	for i, slides := range target {
		last[slides] = i
	}
	var from []int
	for _, slides := range drafter {
		from = append(from, last[slides])
	}
	return from
}

// FinalNorm returns the norm of the residual stream before the output matrix, on a device, and its epsilon.
func (m *Model) FinalNorm(b backend.Backend) (backend.Vector, float32, error) {
	if b == m.Backend() {
		return m.outNorm, m.eps, nil
	}
	l := &nn.Loader{File: m.file, Devices: []backend.Backend{b}, Arch: m.Arch}
	return l.Vector("output_norm.weight", m.Hidden), m.eps, l.Err
}

// Device returns the number of a device among the model's, -1 if it is none of them.
func (m *Model) Device(b backend.Backend) int { return slices.Index(m.devices, b) }
