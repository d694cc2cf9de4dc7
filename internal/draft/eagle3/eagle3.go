// Package eagle3 runs EAGLE-3 drafters: one transformer layer that guesses the next token from the newest one and the
// target's features before it, and goes on from its own guess and its own output.
//
// The features are the hidden states of three target layers, projected to one row g by a matrix. The input of the layer
// at token t is the embedding of t beside the g of the token before; where the drafter goes on from a guess, its output
// takes the place of g. The output matrix may have a row for some of the target's tokens only (a reduced vocabulary).
//
// The context of a sequence is a *cache.Seq with the keys and values of the layer. It carries one row: the g of the
// newest token, which is used with the token after it. Nothing comes before the first token, so no row sees the keys of
// it.
//
// A drafter belongs to the goroutine that drives the target's backend.
package eagle3

import (
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/nn"
)

// Options configures a drafter. The zero value keeps keys and values in F16, beside the target's output.
type Options struct {
	KV cache.Types
	// Device runs the drafter; nil means the one that has the target's output.
	Device backend.Backend
}

var _ draft.Source = (*Drafter)(nil)

// Drafter is a loaded drafter.
type Drafter struct {
	params
	b       backend.Backend
	arena   *nn.Arena
	target  *model.Model
	mem     *cache.Memory
	weights nn.Weights
	bytes   int  // of the weights
	sees    bool // rows of images, whose embeddings are captured, too

	final      backend.Vector // [target's width] its last norm, of features that are its final state
	finalEps   float32
	encode     backend.Vector // [features] norm of the features; optional
	fc         backend.Weight // [hidden, features]
	embed      backend.Weight // [vocab, hidden]
	byOutput   backend.Weight // [outputs, hidden] the embedding of each output
	head       backend.Weight // [outputs, hidden]
	outputNorm backend.Vector // [hidden]
	d2t        []int32        // [outputs] target id of each output; nil if they are the target's
	rope       *nn.Rope

	// The layer. Queries, keys and values are made of the normalised embedding and the normalised g, side by side.
	norm, gNorm, ffnNorm       backend.Vector // [hidden]
	q                          backend.Weight // [heads*headDim, 2*hidden]
	k, v                       backend.Weight // [kvHeads*headDim, 2*hidden]
	o                          backend.Weight // [hidden, heads*headDim]
	qBias, kBias, vBias, oBias backend.Vector // optional
	ffn                        nn.FFN
	cache                      int // number of the layer in the cache

	drafts  nn.Passes[draftKey, results]
	extends nn.Passes[extendKey, struct{}]
}

// extendKey decides which operations an Extend has: rows, sequences, and where the features lie.
type extendKey struct {
	rows, seqs int
	images     bool // some rows are of images
	features   backend.Tensor
}

// longest is the most tokens one draft guesses. Drafters are trained on a few steps from their own output; published
// trees have up to eight.
const longest = 8

// Name is what flags, requests and statistics call the source.
func (d *Drafter) Name() string { return "eagle3" }

// Target returns the model the drafter drafts for.
func (d *Drafter) Target() *model.Model { return d.target }

// Capture lists the target layers whose outputs Extend needs, and the embeddings of texts with images.
func (d *Drafter) Capture() []int {
	layers := make([]int, 0, len(d.layers)+1)
	for _, id := range d.layers {
		layers = append(layers, id-1)
	}
	if d.sees {
		layers = append(layers, -1)
	}
	return layers
}

// SeeImages makes the drafter follow texts with images: a row of an image has no token to embed, so what the target
// was given is captured. It must be called before the drafter's first use. A drafter of another width than its target
// cannot use those rows and takes the embedding of token 0 for them.
func (d *Drafter) SeeImages() { d.sees = d.hidden == d.target.Hidden }

// Max is the largest number of tokens one draft can guess.
func (d *Drafter) Max() int { return longest }

// Devices are those that run the drafter.
func (d *Drafter) Devices() []backend.Backend { return []backend.Backend{d.b} }

// WeightBytes is the size of the drafter's own weights.
func (d *Drafter) WeightBytes() int { return d.bytes }

// Weights are the drafter's own. Passes bring them back when they are parked.
func (d *Drafter) Weights() *nn.Weights { return &d.weights }

// Memory returns the drafter's cache.
func (d *Drafter) Memory() *cache.Memory { return d.mem }

// NewSeq returns an empty context.
func (d *Drafter) NewSeq() *cache.Seq { return d.mem.NewSeq() }

// NewContext implements draft.Source.
func (d *Drafter) NewContext() draft.Context { return d.NewSeq() }

// Extend adds committed tokens and the target's features there to the contexts. Only keys and values of the layer are
// needed, so the rest of it is not computed.
func (d *Drafter) Extend(features backend.Tensor, items []draft.Rows) (err error) {
	var segs []cache.Segment
	for _, it := range items {
		if len(it.Tokens) != len(it.Rows) {
			return fmt.Errorf("%d tokens with %d rows of features", len(it.Tokens), len(it.Rows))
		}
		if len(it.Rows) > 0 {
			segs = append(segs, cache.Segment{Seq: it.Seq.(*cache.Seq), Rows: len(it.Rows), Prompt: true})
		}
	}
	if len(segs) == 0 {
		return nil
	}
	// The table of g has the rows that the sequences carry, then those of the new tokens.
	var tokens, pick, before, last []int32
	for _, it := range items {
		for i, row := range it.Rows {
			if i == 0 {
				before = append(before, int32(len(last)))
			} else {
				before = append(before, int32(len(segs)+len(pick)-1))
			}
			pick = append(pick, row)
		}
		if len(it.Rows) > 0 {
			last = append(last, int32(len(segs)+len(pick)-1))
			tokens = append(tokens, it.Tokens...)
		}
	}
	if err := d.makeRoom(len(pick)); err != nil {
		return err
	}
	batch, err := d.mem.Begin(segs)
	if err != nil {
		return err
	}
	defer nn.Catch(&err)
	s := nn.NewStep(d.arena, batch, d.mem, 0, d.eps)
	features = s.TakeRows(d.target.Backend(), features, pick)
	// Each sequence carries its row at another address, so these rows are copied outside of the pass, which may be run
	// again.
	table := s.New(len(segs)+s.N, d.hidden)
	carry := s.New(s.Pad(len(segs)), d.hidden)
	for i, g := range segs {
		s.Copy(table.Slice(i, 1), g.Seq.Carry())
	}
	from := draft.ImageRows(tokens, s.N) // nil without images
	key := extendKey{s.N, len(segs), d.sees && from != nil, features}
	ints := [][]int32{pick, before, tokens, last}
	if key.images {
		ints = [][]int32{pick, before, tokens, from, last}
	}
	d.extends.Run(s, key, func() (*nn.Step, struct{}) {
		s.Begin()
		picked := s.Ints32(pick)
		d.project(s, table.Slice(len(segs), s.N), features, picked)
		s.Angles(d.rope)
		g := s.Rows(d.hidden)
		s.Gather(g, table, s.Ints32(before))
		ids := s.Ints32(tokens)
		in, _ := d.input(s, g, func(to backend.Tensor) {
			if !key.images {
				s.Embed(to, d.embed, ids, 1)
				return
			}
			both := s.New(2*s.N, d.hidden) // embeddings of tokens, then what the target was given
			s.Embed(both.Slice(0, s.N), d.embed, ids, 1)
			s.Gather(both.Slice(s.N, s.N), features.Columns(len(d.layers)*d.target.Hidden, d.hidden), picked)
			s.Gather(to, both, s.Ints32(from))
		})
		kv := s.Project(in, d.k, d.v)
		d.remember(s, kv[0], kv[1])
		s.Gather(carry, table, s.Ints32(last))
		return s, struct{}{}
	}, ints...)
	for i, g := range segs {
		s.Copy(g.Seq.Carry(), carry.Slice(i, 1))
	}
	batch.Done()
	for _, g := range segs {
		if err := g.Seq.CommitAll(); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom prepares the weights and the arena for a pass over rows.
func (d *Drafter) makeRoom(rows int) error {
	if err := d.weights.Return(); err != nil {
		return err
	}
	return d.arena.Begin(rows, 0)
}

// project makes the rows g of the picked rows of features.
func (d *Drafter) project(s *nn.Step, g, features backend.Tensor, picked backend.Ints) {
	width := d.target.Hidden
	f := s.New(g.Rows, len(d.layers)*width)
	s.Gather(f, features.Columns(0, f.Cols), picked)
	for i, id := range d.layers {
		if id == d.target.Layers {
			x := f.Columns(i*width, width)
			s.RMSNorm(x, x, d.final, d.finalEps)
		}
	}
	if d.encode != nil {
		s.RMSNorm(f, f, d.encode, d.eps)
	}
	s.MatMul(f, backend.Product{W: d.fc, Y: g})
}

// input is the input of the layer [rows, 2*hidden] for the rows g [rows, hidden] and what embed writes: the embeddings
// of the tokens after them. x is the residual stream.
func (d *Drafter) input(s *nn.Step, g backend.Tensor, embed func(to backend.Tensor)) (in, x backend.Tensor) {
	in, x = s.New(g.Rows, 2*d.hidden), s.New(g.Rows, d.hidden)
	embed(x)
	s.RMSNorm(in.Columns(0, d.hidden), x, d.norm, d.eps)
	s.RMSNorm(in.Columns(d.hidden, d.hidden), g, d.gNorm, d.eps)
	if d.normed {
		g = in.Columns(d.hidden, d.hidden)
	}
	s.Copy(x, g)
	return in, x
}

// remember rotates keys and writes them to the cache with their values.
func (d *Drafter) remember(s *nn.Step, k, v backend.Tensor) {
	addBias(s, k, d.kBias)
	addBias(s, v, d.vBias)
	s.Rotate(k, d.kvHeads, d.rope)
	s.Remember(d.cache, k, v)
}

// forward takes the residual stream x through the layer, in place.
func (d *Drafter) forward(s *nn.Step, in, x backend.Tensor) {
	p := s.Project(in, d.q, d.k, d.v)
	q := p[0]
	addBias(s, q, d.qBias)
	s.Rotate(q, d.heads, d.rope)
	d.remember(s, p[1], p[2])
	o := s.Attend(d.cache, q, backend.AttnParams{Heads: d.heads, KVHeads: d.kvHeads, Scale: d.scale})
	o = s.Multiply(o, d.o)
	addBias(s, o, d.oBias)
	s.Add(x, x, o)
	s.Add(x, x, d.ffn.Forward(s, s.Norm(x, d.ffnNorm)))
}

func addBias(s *nn.Step, x backend.Tensor, v backend.Vector) {
	if v != nil {
		s.AddBias(x, v)
	}
}
