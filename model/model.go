// Package model runs target models: token batches in, logits and captured features out.
//
// Open reads the hyper-parameters and binds the weights of a GGUF file; the architecture decides
// which file of this package describes the layers (qwen3.go, qwen35.go, gemma4.go). Everything a
// model does goes through Forward: prompts, single tokens, chains and trees to verify, of
// one or several sequences. Forward commits nothing; see package cache.
//
// A Model is used by one goroutine at a time, the one that drives its backend.
package model

import (
	"fmt"
	"sort"
	"strings"

	"strobe/backend"
	"strobe/cache"
	"strobe/gguf"
	"strobe/nn"
	"strobe/quant"
)

// MaxRows is the largest batch Forward takes.
const MaxRows = 512

// Options configures a model. The zero value keeps keys and values in F16.
type Options struct {
	KV quant.Type // F16 (also for the zero value, unless KVF32 is set) or Q8_0
	// KVF32 keeps keys and values in float32, for comparisons with references.
	KVF32 bool
}

func (o Options) kvType() quant.Type {
	switch {
	case o.KVF32:
		return quant.F32
	case o.KV == quant.F32:
		return quant.F16
	}
	return o.KV
}

// Config is what users of a model need to know of it.
type Config struct {
	Arch      string
	Name      string
	Layers    int
	Hidden    int
	Vocab     int
	Context   int // trained context length
	Experts   int
	UsedExps  int
	Recurrent bool    // has recurrent layers, so a sequence cannot be cut at will
	EmbScale  float32 // multiplies token embeddings
	Softcap   float32 // of the logits; 0 means none
	Suppress  []int32 // ids that must not be sampled
}

// Model is a loaded target.
type Model struct {
	Config
	b       backend.Backend
	file    *gguf.File
	mem     *cache.Memory
	arch    arch
	eps     float32
	embed   backend.Weight
	head    backend.Weight
	outNorm backend.Vector
	weights int // bytes

	capture []int // layers whose output is captured; -1 is the embedding

	rows     int // rows the buffers are for
	x, final backend.Tensor
	features backend.Tensor
	logits   backend.Tensor
	ids, pos backend.Ints
	pick     backend.Ints
}

// arch is the part of a model that differs between architectures.
type arch interface {
	reserve(m *Model, rows int) // make scratch for batches of up to rows
	begin(s *step)              // before the first layer; s.x holds the embeddings
	layer(s *step, layer int)   // advance s.x through one layer
}

// step is one forward pass in progress.
type step struct {
	*Model
	n     int
	x     backend.Tensor // residual stream
	batch *cache.Batch
}

var architectures = map[string]func(l *nn.Loader, m *Model) (arch, error){
	"qwen3":     newQwen3,
	"qwen35":    newQwen35,
	"qwen35moe": newQwen35,
	"qwen3next": newQwen35,
	"gemma4":    newGemma4,
}

// Supported reports whether Open can load an architecture.
func Supported(arch string) bool { return architectures[arch] != nil }

// Open loads the model of f on b. The file must stay open while the model is used.
func Open(f *gguf.File, b backend.Backend, opt Options) (*Model, error) {
	build := architectures[f.Arch()]
	if build == nil {
		var names []string
		for n := range architectures {
			names = append(names, n)
		}
		sort.Strings(names)
		return nil, fmt.Errorf("%s: architecture %q is not supported (supported: %s)", f.Path(), f.Arch(), strings.Join(names, ", "))
	}
	l := &nn.Loader{File: f, Backend: b, Arch: f.Arch(), KV: opt.kvType()}
	m := &Model{b: b, file: f}
	m.Arch = f.Arch()
	m.Name, _, _ = f.String("general.name")
	m.Layers = l.Need("block_count") - l.Int("nextn_predict_layers", 0)
	m.Hidden = l.Need("embedding_length")
	m.Context = l.Need("context_length")
	m.Experts = l.Int("expert_count", 0)
	m.UsedExps = l.Int("expert_used_count", 0)
	m.eps = l.Float("attention.layer_norm_rms_epsilon", 1e-6)
	m.EmbScale = 1
	if err := l.Check(
		nn.Range("block_count", m.Layers, 1, 1024), nn.Range("embedding_length", m.Hidden, 1, 1<<20),
		nn.Range("context_length", m.Context, 1, 1<<30), nn.Range("expert_count", m.Experts, 0, 1<<16),
		nn.Range("expert_used_count", m.UsedExps, 0, max(m.Experts, 0)),
	); err != nil {
		return nil, err
	}
	m.embed = l.Matrix("token_embd.weight", m.Hidden, 0)
	m.head = m.embed
	if l.Has("output.weight") {
		m.head = l.Matrix("output.weight", m.Hidden, 0)
	}
	m.outNorm = l.Vector("output_norm.weight", m.Hidden)
	if l.Err != nil {
		return nil, l.Err
	}
	m.Vocab = m.head.Rows()
	if m.embed.Rows() != m.Vocab {
		return nil, fmt.Errorf("%s: output.weight has %d rows, token_embd.weight %d", f.Path(), m.Vocab, m.embed.Rows())
	}
	if s, ok, _ := f.Ints("tokenizer.ggml.suppress_tokens"); ok {
		for _, id := range s {
			if id >= 0 && id < int64(m.Vocab) {
				m.Suppress = append(m.Suppress, int32(id))
			}
		}
	}
	var err error
	if m.arch, err = build(l, m); err != nil {
		return nil, err
	}
	if l.Err != nil {
		return nil, l.Err
	}
	if m.mem, err = cache.New(b, l.Spec()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	m.Recurrent = l.DeltaLayers > 0
	m.weights = l.Bytes
	return m, nil
}

// Backend returns the device of the model.
func (m *Model) Backend() backend.Backend { return m.b }

// Memory returns the model's cache.
func (m *Model) Memory() *cache.Memory { return m.mem }

// File returns the file the model was loaded from.
func (m *Model) File() *gguf.File { return m.file }

// WeightBytes is the size of the weights one pass may read.
func (m *Model) WeightBytes() int { return m.weights }

// Embedding returns the token embedding matrix, and Head the output matrix, for drafters that
// share them.
func (m *Model) Embedding() backend.Weight { return m.embed }

// Head returns the output matrix.
func (m *Model) Head() backend.Weight { return m.head }

// NewSeq returns an empty sequence.
func (m *Model) NewSeq() *cache.Seq { return m.mem.NewSeq() }

// Capture chooses the layers whose outputs later passes put into Output.Features: the residual
// stream after layer l, or the embeddings for l = -1.
func (m *Model) Capture(layers []int) error {
	for _, l := range layers {
		if l < -1 || l >= m.Layers {
			return fmt.Errorf("cannot capture layer %d of a model with %d layers", l, m.Layers)
		}
	}
	m.capture = append([]int(nil), layers...)
	m.rows = 0
	return nil
}

// LogitRows says which rows of a segment get logits.
type LogitRows int

// The choices.
const (
	LogitsNone LogitRows = iota
	LogitsLast
	LogitsAll
)

// Segment is the tokens of one sequence in a batch.
type Segment struct {
	Seq     *cache.Seq
	Tokens  []int32
	Parents []int32 // tree: index of the parent token in this segment, -1 for the last committed token; nil for a chain
	Prompt  bool    // known to be accepted whole, so recurrent layers need no tape
	Logits  LogitRows
}

// Output is the result of a pass, valid until the next one.
type Output struct {
	m        *Model
	first    []int          // per segment: its first row in Logits
	firstRow []int          // per segment: its first row in Features
	Logits   backend.Tensor // rows that asked for logits, segment by segment
	Final    backend.Tensor // the same rows after the final norm
	Features backend.Tensor // all rows: captured layers side by side
}

// Row returns the logits of the i-th row with logits of a segment. The caller may change them.
func (o *Output) Row(segment, i int) []float32 {
	return o.m.b.Read(o.Logits.Slice(o.first[segment]+i, 1))
}

// FeatureRows returns the captured features of n rows of a segment.
func (o *Output) FeatureRows(segment, from, n int) backend.Tensor {
	return o.Features.Slice(o.firstRow[segment]+from, n)
}

// FeatureRow returns the row in Features of row i of a segment.
func (o *Output) FeatureRow(segment, i int) int { return o.firstRow[segment] + i }

// Forward runs a batch. Its rows are in the caches afterwards but not committed; each
// sequence needs a Commit before its next pass.
func (m *Model) Forward(segs []Segment) (*Output, error) {
	out := &Output{m: m}
	var ids, pick []int32
	parts := make([]cache.Segment, len(segs))
	for i := range segs {
		s := &segs[i]
		if err := m.checkSegment(s); err != nil {
			return nil, err
		}
		out.first = append(out.first, len(pick))
		out.firstRow = append(out.firstRow, len(ids))
		switch s.Logits {
		case LogitsLast:
			pick = append(pick, int32(len(ids)+len(s.Tokens)-1))
		case LogitsAll:
			for r := range s.Tokens {
				pick = append(pick, int32(len(ids)+r))
			}
		}
		ids = append(ids, s.Tokens...)
		parts[i] = cache.Segment{Seq: s.Seq, Rows: len(s.Tokens), Parents: s.Parents, Prompt: s.Prompt}
	}
	n := len(ids)
	if n == 0 || n > MaxRows {
		return nil, fmt.Errorf("a batch of %d tokens; want 1 to %d", n, MaxRows)
	}
	batch, err := m.mem.Begin(parts)
	if err != nil {
		return nil, err
	}
	m.reserve(n, len(pick))

	b := m.b
	b.BeginStep(fmt.Sprintf("target/%d/%d", n, len(pick)))
	b.SetInts(m.ids, ids)
	b.SetInts(m.pos, batch.Pos)
	b.SetInts(m.pick, pick)
	s := &step{Model: m, n: n, x: m.x.First(n), batch: batch}
	b.Embed(s.x, m.embed, m.ids, m.EmbScale)
	m.arch.begin(s)
	out.Features = m.features.First(n)
	s.captured(-1)
	for il := range m.Layers {
		m.arch.layer(s, il)
		s.captured(il)
	}
	if len(pick) > 0 {
		out.Final = m.final.First(len(pick))
		out.Logits = m.logits.First(len(pick))
		b.Gather(out.Final, s.x, m.pick)
		b.RMSNorm(out.Final, out.Final, m.outNorm, m.eps)
		b.MatMul(out.Final, backend.Product{W: m.head, Y: out.Logits})
		if m.Softcap > 0 {
			b.Softcap(out.Logits, m.Softcap)
		}
	}
	b.EndStep()
	batch.Done()
	return out, nil
}

func (m *Model) checkSegment(s *Segment) error {
	if len(s.Tokens) == 0 {
		return fmt.Errorf("a segment without tokens")
	}
	for _, id := range s.Tokens {
		if id < 0 || int(id) >= m.Vocab {
			return fmt.Errorf("token id %d is outside the vocabulary of %d", id, m.Vocab)
		}
	}
	if s.Parents != nil {
		if len(s.Parents) != len(s.Tokens) {
			return fmt.Errorf("%d parents for %d tokens", len(s.Parents), len(s.Tokens))
		}
		for i, p := range s.Parents {
			if p < -1 || int(p) >= i {
				return fmt.Errorf("token %d has parent %d; parents come before children", i, p)
			}
		}
	}
	return nil
}

// captured copies the residual stream into the features of the layers that want it.
func (s *step) captured(layer int) {
	for i, l := range s.capture {
		if l == layer {
			s.b.Copy(s.features.First(s.n).Columns(i*s.Hidden, s.Hidden), s.x)
		}
	}
}

// reserve makes the buffers large enough for a batch.
func (m *Model) reserve(n, picks int) {
	if n > m.rows {
		// Powers of two, so that growing step by step does not allocate each time.
		r := 16
		for r < n {
			r *= 2
		}
		m.rows = r
		m.x = m.b.Alloc(r, m.Hidden)
		m.ids, m.pos = m.b.AllocInts(r), m.b.AllocInts(r)
		m.features = m.b.Alloc(r, max(1, len(m.capture))*m.Hidden)
		m.arch.reserve(m, r)
	}
	if picks > m.final.Rows {
		r := 1
		for r < picks {
			r *= 2
		}
		m.final = m.b.Alloc(r, m.Hidden)
		m.logits = m.b.Alloc(r, m.Vocab)
		m.pick = m.b.AllocInts(r)
	} else if m.pick == nil {
		m.pick = m.b.AllocInts(1)
	}
}
