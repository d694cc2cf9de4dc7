package model

import (
	"context"
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/nn"
)

// Sweep is a prompt that is run for its attention.
type Sweep struct {
	Tokens  []int32
	Queries int  // of how many tokens, the last ones, queries are wanted
	Rotated bool // queries and keys are wanted after the rotary embedding
	Rows    int  // tokens of a pass; 0 means MaxRows
	// Sparse, if set, is how rows attend, where the device can do it; its Tokens are set here.
	Sparse *backend.Sparse
	// Layer is called after each attention layer with the queries [Queries, heads x dim] and the keys of all tokens
	// [tokens, heads x dim], which lie on the model's device and are valid until it returns.
	Layer func(q, k backend.Tensor, p backend.AttnParams) error
}

// Sweep runs a prompt layer by layer: all tokens through the first layer, then all through the second. That way
// the keys of one layer are all there is to keep, however long the prompt, and nothing remains of it. The model
// must lie on one device.
func (m *Model) Sweep(ctx context.Context, w Sweep) (err error) {
	n := len(w.Tokens)
	seg := Segment{Tokens: w.Tokens}
	switch err := m.checkSegment(&seg); {
	case err != nil:
		return err
	case len(m.devices) > 1:
		return fmt.Errorf("a model on several devices cannot run layer by layer")
	case w.Queries < 1 || w.Queries > n:
		return fmt.Errorf("queries of %d of %d tokens", w.Queries, n)
	case m.Arch != "qwen3" && m.Arch != "qwen35" && m.Arch != "qwen35moe" && m.Arch != "qwen3next":
		return fmt.Errorf("the attention of %s is not looked at", m.Arch)
	}
	defer nn.Catch(&err)
	r := &sweep{Model: m, Sweep: w, b: m.Backend()}
	if r.Rows <= 0 {
		r.Rows = MaxRows
	}
	defer r.free()
	if w.Sparse != nil {
		s := *w.Sparse
		s.Tokens = []int{n}
		r.Sparse = &s
	}
	if r.x, err = r.b.Alloc(n, m.Hidden); err != nil {
		return err
	}
	for il := range m.Layers {
		if err := r.layer(ctx, il); err != nil {
			return err
		}
	}
	return nil
}

// sweep is one in progress.
type sweep struct {
	*Model
	Sweep
	b       backend.Backend
	x, q, k backend.Tensor // residual stream; what is kept of a layer
}

func (r *sweep) free() {
	for _, t := range []backend.Tensor{r.x, r.q, r.k} {
		r.b.Free(t)
	}
}

// layer takes all tokens through a layer.
func (r *sweep) layer(ctx context.Context, il int) error {
	seq := r.NewSeq()
	defer seq.Close()
	kept := nn.Kept{Rotated: r.Rotated}
	for from := 0; from < len(r.Tokens); from += r.Rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.chunk(il, seq, from, min(r.Rows, len(r.Tokens)-from), &kept); err != nil {
			return err
		}
	}
	if err := r.b.Sync(); err != nil || kept.K.Buf == nil {
		return err
	}
	return r.Layer(r.q, r.k, backend.AttnParams{Heads: kept.Heads, KVHeads: kept.KVHeads, Scale: invSqrt(kept.KeyDim)})
}

// chunk takes some tokens through a layer.
func (r *sweep) chunk(il int, seq *cache.Seq, from, n int, kept *nn.Kept) error {
	a := r.arenas[0]
	if err := a.Begin(n, 0); err != nil {
		return err
	}
	batch, err := r.mem.Begin([]cache.Segment{{Seq: seq, Rows: n, Prompt: true}})
	if err != nil {
		return err
	}
	s := &step{Model: r.Model, Step: nn.NewStep(a, batch, r.mem, 0, r.eps)}
	s.Kept, s.Sparse = kept, r.Sparse
	s.x = s.Rows(r.Hidden)
	x := r.x.Slice(from, n)
	if il > 0 {
		r.b.Copy(s.x.Slice(0, n), x)
	}
	s.Begin()
	if il == 0 {
		s.ids = s.Ints32(r.Tokens[from:][:n])
		s.Embed(s.x, r.embed, s.ids, r.EmbScale)
	}
	r.arch.begin(s)
	r.arch.layer(s, il)
	s.End()
	batch.Done()
	r.b.Copy(x, s.x.Slice(0, n))
	if kept.K.Buf != nil {
		if err := r.keep(kept, from, n); err != nil {
			return err
		}
	}
	return seq.CommitAll()
}

// keep copies what a chunk left.
func (r *sweep) keep(kept *nn.Kept, from, n int) (err error) {
	if r.k.Buf == nil {
		if r.k, err = r.b.Alloc(len(r.Tokens), kept.K.Cols); err != nil {
			return err
		}
		if r.q, err = r.b.Alloc(r.Queries, kept.Q.Cols); err != nil {
			return err
		}
	}
	r.b.Copy(r.k.Slice(from, n), kept.K.Slice(0, n))
	first := len(r.Tokens) - r.Queries // of the tokens with queries
	if at := max(first, from); at < from+n {
		r.b.Copy(r.q.Slice(at-first, from+n-at), kept.Q.Slice(at-from, from+n-at))
	}
	return nil
}
