package pflash

import (
	"cmp"
	"context"
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/tokenizer"
)

// Scorer is a small model that says which parts of a text matter for what comes at its end. It belongs to one goroutine
// at a time.
type Scorer struct {
	Tokenizer *tokenizer.Tokenizer
	// Rotated scores with queries and keys after the rotary embedding. Before it, what is far away counts as much as what
	// is near. Models with few attention layers, which know positions from elsewhere as well, do better after it.
	Rotated bool
	Pool    int            // tokens that scores are averaged over
	Rule    Rule           // of selections
	Sparse  backend.Sparse // how the model reads; an Alpha of 0 is full attention
	Rows    int            // tokens of a pass; 0 means as many as suit the device

	model *model.Model
}

// DefaultSparse is the setting of the authors; with their other one of 0.85 single facts were lost.
func DefaultSparse() backend.Sparse {
	return backend.Sparse{Block: 128, Sink: 2, Window: 4, Last: 2, Alpha: 0.7}
}

// NewScorer binds the model of a file to a device. The file must stay open while it is used.
func NewScorer(f *gguf.File, b backend.Backend, kv quant.Type) (*Scorer, error) {
	s := &Scorer{Pool: 13, Rule: DefaultRule(), Sparse: DefaultSparse()}
	switch f.Arch() {
	case "qwen3":
	case "qwen35": // Rule.Repeats, which others use with these, made things worse on the built-in model
		s.Rotated, s.Pool = true, 5
	default:
		return nil, fmt.Errorf("%s: architecture %q cannot score prompts; want qwen3 or qwen35", f.Path(), f.Arch())
	}
	var err error
	if s.Tokenizer, err = tokenizer.FromGGUF(f); err != nil {
		return nil, err
	}
	s.model, err = model.Open(f, b, model.Options{KV: cache.Uniform(kv), SweepOnly: true})
	return s, err
}

// WeightBytes is the size of the model's weights.
func (s *Scorer) WeightBytes() int { return s.model.WeightBytes() }

// Kernel names the attention that the device really has.
func (s *Scorer) Kernel() string {
	if s.Sparse.Alpha > 0 && s.model.Backend().HasSparse(s.Sparse.Block) {
		return "block-sparse"
	}
	return "dense"
}

// A GPU with gpuRoom free bytes, more than a pass of a small model needs, takes gpuRows tokens at a time: with fewer,
// the kernels of a layer take longer to begin than to run.
const (
	gpuRows = 8 * model.MaxRows
	gpuRoom = 2 << 30
)

// rowsOn is how many tokens a pass has on a device. All numbers give the same scores.
func rowsOn(b backend.Backend) int {
	if gpu, ok := b.(interface{ Memory() (free, total int) }); ok {
		if free, _ := gpu.Memory(); free > gpuRoom {
			return gpuRows
		}
	}
	return model.MaxRows
}

// Attention returns the largest weight that any head of any layer gives to each token, for each of the last tokens
// that are asked for: [queries][tokens].
func (s *Scorer) Attention(ctx context.Context, ids []int32, queries int) ([][]float32, error) {
	b := s.model.Backend()
	dst, err := b.Alloc(queries, len(ids))
	if err != nil {
		return nil, err
	}
	defer b.Free(dst)
	sweep := model.Sweep{Tokens: ids, Queries: queries, Rotated: s.Rotated, Rows: cmp.Or(s.Rows, rowsOn(b))}
	if s.Sparse.Alpha > 0 {
		sweep.Sparse = &s.Sparse
	}
	sweep.Layer = func(q, k backend.Tensor, p backend.AttnParams) error {
		b.Weigh(dst, q, k, p)
		return nil
	}
	if err := s.model.Sweep(ctx, sweep); err != nil {
		return nil, err
	}
	all := b.Read(dst)
	out := make([][]float32, queries)
	for i := range out {
		out[i] = append(out[i], all[i*len(ids):][:len(ids)]...)
	}
	return out, b.Sync()
}

// Tokens scores each token: what the last ones pay attention to, on average.
func (s *Scorer) Tokens(ctx context.Context, ids []int32) ([]float64, error) {
	a, err := s.Attention(ctx, ids, min(lookahead, len(ids)))
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(ids))
	for _, row := range a {
		for j, x := range row {
			out[j] += float64(x)
		}
	}
	for j := range out {
		out[j] /= float64(len(a))
		if out[j]-out[j] != 0 {
			return nil, fmt.Errorf("the score of token %d is not a number; the scorer's file may be damaged", j)
		}
	}
	return out, nil
}

// Scores is a text with the scores of its parts.
type Scores struct {
	IDs    []int32
	Tokens []float64
	Pooled []float64
	Chunks []float64
}

// Score scores a text by its end.
func (s *Scorer) Score(ctx context.Context, ids []int32) (Scores, error) {
	raw, err := s.Tokens(ctx, ids)
	if err != nil {
		return Scores{}, err
	}
	pooled := pool(raw, s.Pool)
	return Scores{ids, raw, pooled, means(pooled, s.Rule.Chunk)}, nil
}
