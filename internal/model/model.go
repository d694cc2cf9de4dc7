// Package model runs target models: token batches in, logits and captured features out.
//
// Open reads the hyper-parameters and binds the weights of a GGUF file; the architecture decides
// which file of this package describes the layers (transformer.go, qwen35.go, gemma4.go, gptoss.go). Everything a
// model does goes through Forward: prompts, single tokens, chains and trees to verify, of
// one or several sequences. Forward commits nothing; see package cache.
//
// Comments give shapes as [rows, columns]: a weight is [outputs, inputs], an activation has a row for each token.
//
// A Model is used by one goroutine at a time, the one that drives its backend.
package model

import (
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/nn"
	"strobe/internal/sample"
)

// MaxRows is the largest batch Forward takes, apart from images whose rows see each other. GPUs read prompts of models
// with experts a quarter faster in batches of 1,024 than of 512, since each expert meets more rows; twice as many once
// more would gain little and double the memory of a batch.
const MaxRows = 1024

// MaxMutual is how many rows of images that see each other a batch has besides: Gemma's largest image.
const MaxMutual = 1120

// Options configures a model. The zero value keeps keys and values in F16 and everything on one device.
type Options struct {
	KV cache.Types
	// Place chooses the device of each layer by its number among the devices given to Open; nil means the first. Token
	// embeddings lie with the first layer, the output matrix with the last.
	Place func(layer int) int
	// Experts chooses the device of each layer's experts in the same way; nil means that of the layer. If it is another
	// device, the experts' input, the choice among them and their sum are copied between the two.
	Experts func(layer int) int
	// Bound, if set, is called with the size of every weight that was bound to a device.
	Bound func(bytes int)
	// Sparse, if set, is how prompts attend on devices that support it, which loses accuracy. Its Tokens are not used.
	Sparse *backend.Sparse
	// SweepOnly: the model runs prompts layer by layer only (Sweep), so that layers share the memory of one.
	SweepOnly bool
}

// Config describes a model.
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
	Axes      bool    // rows of images have three positions; see Image
	Mutual    bool    // rows of an image see each other in layers with a window, so a pass has all of them or none
}

// Model is a loaded target.
type Model struct {
	Config
	devices []backend.Backend
	place   []int               // device of each layer
	experts func(layer int) int // device of each layer's experts; nil for the layer's
	out     int                 // device of the output
	arenas  []*nn.Arena
	file    *gguf.File
	mem     *cache.Memory
	arch    arch
	eps     float32
	embed   backend.Weight // [vocab, hidden]
	head    backend.Weight // [vocab, hidden]
	outNorm backend.Vector // [hidden]
	weights int            // bytes

	sparse  *backend.Sparse
	capture []int // layers whose output is captured; -1 is the embedding
	passes  nn.Passes[passKey, results]
}

// passKey decides which operations a pass has: its rows, the rows that get logits, and what is read of them.
type passKey struct {
	rows, picked int
	images       int  // rows of images
	axes         bool // rows have three positions
	want         sample.Want
}

// results is where a pass leaves its results; see Output.
type results struct {
	final    backend.Tensor // [picked, hidden]
	logits   backend.Tensor // [picked, vocab]
	features backend.Tensor // [rows, captured layers x hidden]
	chosen   backend.Ints   // [picked] best ids, or [picked, CandidateInts]; nil if only rows are read
}

// arch is the part of a model that differs between architectures.
type arch interface {
	begin(s *step)            // before the first layer of each device; for the first device s.x holds the embeddings
	layer(s *step, layer int) // advance s.x through one layer
}

// step is one forward pass in progress.
type step struct {
	*Model
	*nn.Step // operations and memory on the device of the current layer
	device   int
	ids      backend.Ints   // [tokens]
	pick     backend.Ints   // [picked] rows that get logits
	x        backend.Tensor // [tokens, hidden] residual stream
	features backend.Tensor // [tokens, captured layers x hidden]
	extra    backend.Tensor // what an architecture needs on every device; optional
}

var architectures = map[string]func(l *nn.Loader, m *Model) (arch, error){
	"llama":     newTransformer,
	"qwen2":     newTransformer,
	"qwen3":     newTransformer,
	"qwen3moe":  newTransformer,
	"qwen35":    newQwen35,
	"qwen35moe": newQwen35,
	"qwen3next": newQwen35,
	"gemma4":    newGemma4,
	"gpt-oss":   newGPTOSS,
}

// Supported reports whether Open can load an architecture.
func Supported(arch string) bool { return architectures[arch] != nil }

// Open loads the model of f on a device, or on several if Options.Place says so. The file must stay open while the
// model is used.
func Open(f *gguf.File, b backend.Backend, opt Options, more ...backend.Backend) (*Model, error) {
	if why := WhyNot(f); why != "" {
		return nil, fmt.Errorf("%s: %s", f.Path(), why)
	}
	devices := append([]backend.Backend{b}, more...)
	l := &nn.Loader{File: f, Devices: devices, Arch: f.Arch(), KV: opt.KV, Bound: opt.Bound,
		OneCache: opt.SweepOnly}
	m := &Model{devices: devices, file: f, experts: opt.Experts, sparse: opt.Sparse}
	if err := m.readConfig(l); err != nil {
		return nil, err
	}
	if err := opt.KV.Check(l.Need("block_count")); err != nil { // with those of multi-token prediction
		return nil, err
	}
	for _, b := range devices {
		a := nn.NewArena(b)
		if m.Experts > 0 || len(devices) > 1 { // devices may disagree on padding
			a.Exact()
		}
		m.arenas = append(m.arenas, a)
	}
	l.Arenas = m.arenas
	if l.Int("nextn_predict_layers", 0) > 0 && !l.Has("blk.0.attn_norm.weight") {
		return nil, fmt.Errorf("%s: a layer for multi-token prediction without a model; give it with -d beside one",
			f.Path())
	}
	m.place = make([]int, m.Layers)
	for i := range m.place {
		if opt.Place != nil {
			m.place[i] = opt.Place(i)
		}
	}
	m.out = m.place[m.Layers-1]
	l.On(m.place[0], m.place[0])
	m.embed = l.Matrix("token_embd.weight", m.Hidden, 0)
	m.head = m.embed
	l.On(m.out, m.out)
	if l.Has("output.weight") {
		m.head = l.Matrix("output.weight", m.Hidden, 0)
	} else if m.place[0] != m.out {
		m.head = l.Matrix("token_embd.weight", m.Hidden, 0)
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
	if m.arch, err = architectures[f.Arch()](l, m); err != nil {
		return nil, err
	}
	if l.Err != nil {
		return nil, l.Err
	}
	if m.mem, err = cache.New(devices, l.Spec()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	m.Recurrent = len(l.Spec().Recurrent) > 0
	m.weights = l.Bytes
	if err := m.Sync(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	return m, nil
}

// readConfig reads what all architectures have in common.
func (m *Model) readConfig(l *nn.Loader) error {
	m.Arch = l.Arch
	m.Name, _, _ = l.File.String("general.name")
	m.Layers = l.Need("block_count") - l.Int("nextn_predict_layers", 0)
	m.Hidden = l.Need("embedding_length")
	m.Context = l.Need("context_length")
	m.Experts = l.Int("expert_count", 0)
	m.UsedExps = l.Int("expert_used_count", 0)
	m.eps = l.Float("attention.layer_norm_rms_epsilon", 1e-6)
	m.EmbScale = 1
	return l.Check(
		nn.Range("block_count", m.Layers, 1, 1024), nn.Range("embedding_length", m.Hidden, 1, 1<<20),
		nn.Range("context_length", m.Context, 1, 1<<30), nn.Range("expert_count", m.Experts, 0, 1<<16),
		nn.Range("expert_used_count", m.UsedExps, 0, max(m.Experts, 0)),
	)
}

// block chooses the devices of a layer and returns the prefix of its tensors.
func (m *Model) block(l *nn.Loader, i int) string {
	experts := m.place[i]
	if m.experts != nil {
		experts = m.experts(i)
	}
	l.On(m.place[i], experts)
	l.Layer = i
	return fmt.Sprintf("blk.%d.", i)
}

// Backend returns the device of the model's output: its logits and features.
func (m *Model) Backend() backend.Backend { return m.devices[m.out] }

// Devices are all that run the model.
func (m *Model) Devices() []backend.Backend { return m.devices }

// Sync waits for all devices and returns their first failure.
func (m *Model) Sync() error { return m.mem.Sync() }

// Memory returns the model's cache.
func (m *Model) Memory() *cache.Memory { return m.mem }

// File returns the file the model was loaded from.
func (m *Model) File() *gguf.File { return m.file }

// WeightBytes is the size of the weights one pass may read.
func (m *Model) WeightBytes() int { return m.weights }

// Vocabulary returns the token embedding and output matrices on a device, for drafters that share them.
func (m *Model) Vocabulary(b backend.Backend) (embed, head backend.Weight, err error) {
	first, last := m.devices[m.place[0]], m.Backend()
	l := &nn.Loader{File: m.file, Devices: []backend.Backend{b}, Arch: m.Arch}
	bind := func(w backend.Weight, at backend.Backend, name string) backend.Weight {
		if at == b {
			return w
		}
		return l.Matrix(name, m.Hidden, m.Vocab)
	}
	embed = bind(m.embed, first, "token_embd.weight")
	switch {
	case m.file.Tensor("output.weight") != nil:
		head = bind(m.head, last, "output.weight")
	case last == b:
		head = m.head
	default:
		head = embed
	}
	return embed, head, l.Err
}

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
	if !slices.Equal(m.capture, layers) {
		m.capture = slices.Clone(layers)
		m.passes.Forget() // they captured other layers
	}
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
	Want    sample.Want // how much of its logits is read
	Images  []Image     // of the sequence up to here, in order; tokens below 0 are their rows
}

// Output is the result of a pass, valid until the next one.
type Output struct {
	m        *Model
	first    []int          // per segment: its first row in Logits
	firstRow []int          // per segment: its first row in Features
	full     []bool         // per segment: it wants whole rows of logits
	rows     []float32      // read by Fetch: the wanted rows of Logits, others are zero
	chosen   []int32        // read by Fetch from picked
	picked   backend.Ints   // best ids, or candidates; nil if only rows are wanted
	want     sample.Want    // the most that a segment wants
	late     bool           // Row has read a row that Fetch did not
	Logits   backend.Tensor // [picked, vocab], segment by segment
	Final    backend.Tensor // [picked, hidden], the same rows after the final norm
	Features backend.Tensor // [tokens and padding, captured layers x hidden]
}

// Row returns the logits of the i-th row with logits of a segment. The caller may change them.
func (o *Output) Row(segment, i int) []float32 {
	o.Fetch()
	at := o.first[segment] + i
	if !o.full[segment] {
		o.late = true
		return o.m.Backend().Read(o.Logits.Slice(at, 1))
	}
	n := o.Logits.Cols
	return o.rows[at*n:][:n]
}

// Best returns the best id of the i-th row with logits of a segment, -1 if there is none. Segments that want their rows
// have none unless another segment wants its best ids.
func (o *Output) Best(segment, i int) int32 {
	o.Fetch()
	if o.want != sample.WantBest {
		return -1
	}
	return o.chosen[o.first[segment]+i]
}

// Candidates returns what the device chose of the i-th row with logits of a segment, nil where no segment wants a
// shortlist.
func (o *Output) Candidates(segment, i int) backend.Candidates {
	o.Fetch()
	if o.want < sample.WantShort {
		return nil
	}
	return backend.Candidates(o.chosen[(o.first[segment]+i)*backend.CandidateInts:][:backend.CandidateInts])
}

// Fetch reads what the device has chosen and the rows of segments that want them. It waits for the pass; a Sync after
// it reports whether the results are valid.
func (o *Output) Fetch() {
	b := o.m.Backend()
	if o.picked != nil && o.chosen == nil {
		o.chosen = b.Ints(o.picked)
	}
	if o.rows != nil || o.Logits.Rows == 0 || !slices.Contains(o.full, true) {
		return
	}
	if !slices.Contains(o.full, false) {
		o.rows = b.Read(o.Logits)
		return
	}
	n := o.Logits.Cols
	o.rows = make([]float32, o.Logits.Rows*n)
	for i, full := range o.full {
		end := o.Logits.Rows
		if i+1 < len(o.first) {
			end = o.first[i+1]
		}
		if from := o.first[i]; full && from < end {
			copy(o.rows[from*n:], b.Read(o.Logits.Slice(from, end-from)))
		}
	}
}

// Late reports whether Row has read a row that Fetch did not.
func (o *Output) Late() bool { return o.late }

// Chosen is the most that the device chose for any segment.
func (o *Output) Chosen() sample.Want { return o.want }

// FeatureRows returns the captured features of n rows of a segment.
func (o *Output) FeatureRows(segment, from, n int) backend.Tensor {
	return o.Features.Slice(o.firstRow[segment]+from, n)
}

// FeatureRow returns the row in Features of row i of a segment.
func (o *Output) FeatureRow(segment, i int) int { return o.firstRow[segment] + i }

// Forward runs a batch. Its rows are in the caches afterwards but not committed; each
// sequence needs a Commit before its next pass. After an error its sequences are unusable, except where nothing had
// begun.
func (m *Model) Forward(segs []Segment) (out *Output, err error) {
	out = &Output{m: m}
	var ids, pick []int32
	var images imageRows
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
		if s.Logits != LogitsNone {
			out.want = max(out.want, s.Want)
		}
		out.full = append(out.full, s.Want == sample.WantRow && s.Logits != LogitsNone)
		ids = append(ids, s.Tokens...)
		parts[i] = cache.Segment{Seq: s.Seq, Rows: len(s.Tokens), Parents: s.Parents, Prompt: s.Prompt}
		parts[i].Images = images.add(m, s, out.firstRow[i])
	}
	n := len(ids)
	mutual := 0
	if m.Mutual {
		mutual = min(images.count(), MaxMutual)
	}
	if n == 0 || n-mutual > MaxRows {
		return nil, fmt.Errorf("a batch of %d tokens; want 1 to %d", n, MaxRows)
	}
	heads := 0
	if m.out == m.place[0] {
		heads = m.arenas[m.out].Pad(len(pick)) * (m.Hidden + m.Vocab)
	}
	if err := m.arenas[m.place[0]].Begin(n, heads); err != nil { // before anything happens to the sequences
		return nil, err
	}
	batch, err := m.mem.Begin(parts)
	if err != nil {
		return nil, err
	}
	defer nn.Catch(&err)
	m.positions(segs, batch)
	a := m.arenas[m.place[0]]
	s := nn.NewStep(a, batch, m.mem, m.place[0], m.eps)
	s.Sparse = m.sparseFor(segs)
	key := passKey{a.Pad(n), a.Pad(len(pick)), a.Pad(images.count()), batch.More != nil, out.want}
	images.write(m, s, n)
	_, done := m.passes.Run(s, key, func() (*nn.Step, results) { return m.pass(s, ids, pick, &images, out.want) },
		ids, pick, images.from)
	out.Features = done.features
	if len(pick) > 0 {
		out.Final, out.Logits = done.final.Slice(0, len(pick)), done.logits.Slice(0, len(pick))
		if done.chosen != nil {
			n := len(pick)
			if out.want >= sample.WantShort {
				n *= backend.CandidateInts
			}
			out.picked = done.chosen.First(n)
		}
	}
	batch.Done()
	return out, nil
}

// pass goes through the layers.
func (m *Model) pass(first *nn.Step, ids, pick []int32, images *imageRows, want sample.Want) (*nn.Step, results) {
	s := &step{Model: m, Step: first, device: m.place[0]}
	s.Begin()
	s.ids, s.pick = s.Ints32(ids), s.Ints32(pick)
	s.x = s.Rows(m.Hidden)
	s.features = s.Rows(max(1, len(m.capture)) * m.Hidden)
	if images.count() == 0 {
		s.Embed(s.x, m.embed, s.ids, m.EmbScale)
	} else {
		s.Embed(images.table.Slice(0, s.N), m.embed, s.ids, m.EmbScale)
		s.Gather(s.x, images.table, s.Ints32(images.from))
	}
	m.arch.begin(s)
	s.captured(-1)
	at := s.Mark()
	for il := range m.Layers {
		if m.place[il] != s.device {
			s.move(m.place[il], ids, pick)
			m.arch.begin(s)
			at = s.Mark()
		}
		m.arch.layer(s, il)
		s.captured(il)
		s.Release(at)
	}
	if m.out != s.device {
		s.move(m.out, ids, pick)
	}
	r := results{features: s.features}
	if n := s.Pad(len(pick)); n > 0 {
		r.final, r.logits = s.New(n, m.Hidden), s.New(n, m.Vocab)
		s.Gather(r.final, s.x, s.pick)
		s.RMSNorm(r.final, r.final, m.outNorm, m.eps)
		s.MatMul(r.final, backend.Product{W: m.head, Y: r.logits})
		if m.Softcap > 0 {
			s.Step.Softcap(r.logits, m.Softcap)
		}
		switch want {
		case sample.WantBest:
			r.chosen = s.NewInts(n)
			s.ArgMax(r.chosen, r.logits)
		case sample.WantShort, sample.WantWeighed:
			r.chosen = s.NewInts(n * backend.CandidateInts)
			s.Candidates(r.chosen, r.logits, want == sample.WantWeighed)
		}
	}
	return s.Step, r
}

// move continues the pass on the device of the next layers.
func (s *step) move(device int, ids, pick []int32) {
	s.Step = s.Step.Move(s.arenas[device], device, &s.x, &s.features, &s.extra)
	s.device, s.ids, s.pick = device, s.Ints32(ids), s.Ints32(pick)
}

// sparseFor is how the segments of a batch attend; nil if all see everything. A plan then has one table per segment.
func (m *Model) sparseFor(segs []Segment) *backend.Sparse {
	if m.sparse == nil {
		return nil
	}
	s := *m.sparse
	s.Tokens = make([]int, len(segs))
	for i, g := range segs {
		if !g.Prompt {
			return nil // a batch with generated rows is dense
		}
		s.Tokens[i] = max(g.Seq.Expected(), g.Seq.Len()+len(g.Tokens))
	}
	return &s
}

func (m *Model) checkSegment(s *Segment) error {
	if len(s.Tokens) == 0 {
		return fmt.Errorf("a segment without tokens")
	}
	after := 0
	if len(s.Images) > 0 {
		after = s.Seq.Len()
	}
	if err := m.CheckTokens(s.Tokens, s.Images, after); err != nil {
		return err
	}
	if err := m.checkImages(s, after); err != nil {
		return err
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
			s.Copy(s.features.Columns(i*s.Hidden, s.Hidden), s.x)
		}
	}
}
