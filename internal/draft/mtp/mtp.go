// Package mtp runs drafters for multi-token prediction: small networks that guess the next token from the newest one
// and the target's final hidden state before it, and go on from their own guess and their own state.
//
// There are two kinds. Qwen files carry a block of one layer (NextN), which has keys and values of its own; a file
// may also hold such a block alone. Assistants of Gemma 4 are files of a few layers that look at the target's keys
// and values.
//
// The context of a sequence is a *cache.Seq. It carries one row: the target's state of the newest token, which is used
// with the token after it. The row belongs to the sequence; it is copied, saved and restored with it, and zero before
// the first token.
//
// A drafter belongs to the goroutine that drives the target's backend.
package mtp

import (
	"cmp"
	"fmt"
	"slices"

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
	b       backend.Backend
	arena   *nn.Arena
	target  *model.Model
	mem     *cache.Memory
	weights nn.Weights
	bytes   int // of the weights

	final backend.Vector // [hidden] the target's last norm
	eps   float32        // its epsilon

	// The network: a token's embedding and a state side by side, each normalised by NextN blocks, are projected to the
	// input of the layers. Their output is normalised, and either is the next state or is projected to it. hidden is the
	// target's width, width that of the layers.
	embed        backend.Weight // [vocab, hidden]
	embScale     float32
	enorm, hnorm backend.Vector // [hidden]; nil for none
	in           backend.Weight // [width, 2*hidden]
	layers       *model.Block
	norm         backend.Vector // [width]
	head         backend.Weight // [vocab, width]
	out          backend.Weight // [hidden, width]; nil for none

	looks bool // at the target's keys and values; it has none of its own
	sees  bool // rows of images, whose embeddings are captured, too

	drafts  nn.Passes[draftKey, guesses]
	extends nn.Passes[extendKey, struct{}]
}

// draftKey decides which operations a draft has: the rows of its steps, and candidates per position.
type draftKey struct {
	steps [longest]int
	top   int
}

// guesses is where a draft leaves its results: the candidates of all steps, one after the other.
type guesses struct {
	ids  backend.Ints   // [rows, top]
	logp backend.Tensor // [rows, top]
}

// extendKey decides which operations an Extend has: rows of the batch, rows of the features that it reads, sequences,
// and where the features lie.
type extendKey struct {
	rows, picked, seqs int
	images             bool // some rows are of images
	features           backend.Tensor
}

// longest is the most tokens one draft guesses. A block is trained to look one token ahead; what it guesses from its
// own guesses is right less and less often, and each costs a pass through it.
const longest = 8

// Name is what flags, requests and statistics call the source.
func (d *Drafter) Name() string { return "mtp" }

// Target returns the model the drafter drafts for.
func (d *Drafter) Target() *model.Model { return d.target }

// Capture lists the target layers whose outputs Extend needs: the last one, and the embeddings of texts with images.
func (d *Drafter) Capture() []int {
	if d.sees {
		return []int{d.target.Layers - 1, -1}
	}
	return []int{d.target.Layers - 1}
}

// SeeImages makes the drafter follow texts with images: a row of an image has no token to embed, so what the target
// was given is captured. It must be called before the drafter's first use. Assistants look at the target's own keys.
func (d *Drafter) SeeImages() { d.sees = !d.looks }

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

// Extend adds committed tokens and the target's states there to the contexts. A row of the cache is computed from a
// token and the state before it; only its keys and values are needed, so the rest of the layer is not computed.
func (d *Drafter) Extend(features backend.Tensor, items []draft.Rows) (err error) {
	var tokens, pick, before, last []int32
	var segs []cache.Segment
	for _, it := range items {
		if len(it.Rows) == 0 {
			continue
		}
		if len(it.Tokens) != len(it.Rows) {
			return fmt.Errorf("%d tokens with %d rows of features", len(it.Tokens), len(it.Rows))
		}
		segs = append(segs, cache.Segment{Seq: it.Seq.(*cache.Seq), Rows: len(it.Rows), Prompt: true})
	}
	if len(segs) == 0 {
		return nil
	}
	// states holds the rows that the sequences carry, then the states of the new tokens.
	for _, it := range items {
		if n := len(it.Rows); d.looks && n > 0 { // only the newest state is needed
			it.Rows = it.Rows[n-1:]
		}
		for i := range it.Rows {
			if i == 0 {
				before = append(before, int32(len(last)))
			} else {
				before = append(before, int32(len(segs)+len(pick)-1))
			}
			pick = append(pick, it.Rows[i])
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
	s := nn.NewStep(d.arena, batch, d.mem, 0, d.layers.Eps)
	features = s.TakeRows(d.target.Backend(), features, pick)
	// Each sequence carries its row at another address, so these rows are copied outside of the pass, which may be run
	// again.
	states := s.New(len(segs)+s.Pad(len(pick)), d.target.Hidden)
	carry := s.New(s.Pad(len(segs)), d.target.Hidden)
	for i, g := range segs {
		s.Copy(states.Slice(i, 1), g.Seq.Carry())
	}
	from := draft.ImageRows(tokens, s.N) // nil without images
	key := extendKey{s.N, s.Pad(len(pick)), len(segs), d.sees && from != nil, features}
	ints := [][]int32{pick, before, tokens, last}
	switch {
	case d.looks:
		ints = [][]int32{pick, last}
	case key.images:
		ints = [][]int32{pick, before, tokens, from, last}
	}
	final, given := features.Columns(0, d.target.Hidden), backend.Tensor{}
	if d.sees {
		given = features.Columns(d.target.Hidden, d.target.Hidden)
	}
	d.extends.Run(s, key, func() (*nn.Step, struct{}) {
		s.Begin()
		rows := states.Slice(len(segs), key.picked)
		picked := s.Ints32(pick)
		s.Gather(rows, final, picked)
		s.RMSNorm(rows, rows, d.final, d.eps)
		if !d.looks {
			d.layers.Angles(s)
			h := s.Rows(states.Cols)
			s.Gather(h, states, s.Ints32(before))
			ids := s.Ints32(tokens)
			d.layers.Remember(s, d.input(s, h, func(to backend.Tensor) {
				if !key.images {
					s.Embed(to, d.embed, ids, d.embScale)
					return
				}
				table := s.New(2*s.N, states.Cols) // embeddings of tokens, then what the target was given
				s.Embed(table.Slice(0, s.N), d.embed, ids, d.embScale)
				s.Gather(table.Slice(s.N, s.N), given, picked)
				s.Gather(to, table, s.Ints32(from))
			}))
		}
		s.Gather(carry, states, s.Ints32(last))
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

// input is the input of the layers [rows, width] for the states h [rows, hidden] and what embed writes: the embeddings
// of the tokens after them.
func (d *Drafter) input(s *nn.Step, h backend.Tensor, embed func(to backend.Tensor)) backend.Tensor {
	both := s.New(h.Rows, 2*h.Cols)
	e, state := both.Columns(0, h.Cols), both.Columns(h.Cols, h.Cols)
	if d.enorm == nil {
		embed(e)
		s.Copy(state, h)
	} else {
		raw := s.New(h.Rows, h.Cols)
		embed(raw)
		s.RMSNorm(e, raw, d.enorm, s.Eps)
		s.RMSNorm(state, h, d.hnorm, s.Eps)
	}
	return s.Multiply(both, d.in)
}

// Draft guesses for several sequences, one step after the other for all of them, with up to top candidates per
// position. The steps are one pass: each embeds the previous step's choice on the device, without a host round trip,
// and the host reads all results at the end.
func (d *Drafter) Draft(reqs []draft.Request, top int) (out []draft.Proposal, err error) {
	defer nn.Catch(&err)
	top = max(1, top)
	out = make([]draft.Proposal, len(reqs))
	c, err := d.begin(reqs)
	if err != nil || c == nil {
		return out, err
	}
	key := draftKey{top: top}
	copy(key.steps[:], c.batch.Steps)
	_, done := d.drafts.Run(c.Step, key, func() (*nn.Step, guesses) {
		logits := d.chain(c, nil)
		g := guesses{ids: c.NewInts(logits.Rows * top), logp: c.New(logits.Rows, top)}
		c.TopK(g.ids, g.logp, logits, top)
		return c.Step, g
	}, c.last)
	if !d.looks {
		c.batch.Done()
	}
	best, lp := c.Backend.Ints(done.ids), c.Read(done.logp)
	for _, n := range c.batch.Steps {
		for _, r := range c.order[:n] {
			at := make([]draft.Candidate, top)
			for j := range at {
				at[j] = draft.Candidate{ID: best[j], LogP: lp[j]}
			}
			out[r].At = append(out[r].At, at)
			best, lp = best[top:], lp[top:]
		}
	}
	return out, d.b.Sync() // report failures here: the verifying pass has not failed
}

// Trace is the intermediate results of a draft, step by step, for comparison with references.
type Trace struct {
	In, Out []float32 // states
	Logits  []float32
	Best    []int32
}

// Trace drafts for one sequence and returns all intermediate results.
func (d *Drafter) Trace(req draft.Request) (t *Trace, err error) {
	defer nn.Catch(&err)
	c, err := d.begin([]draft.Request{req})
	if err != nil || c == nil {
		return nil, cmp.Or(err, fmt.Errorf("there are no keys to look at"))
	}
	in, out := c.New(req.N, d.target.Hidden), c.New(req.N, d.target.Hidden)
	ids := c.NewInts(req.N)
	logits := d.chain(c, func(i int, h, next backend.Tensor) {
		c.Copy(in.Slice(i, 1), h)
		c.Copy(out.Slice(i, 1), next)
	})
	c.ArgMax(ids, logits)
	c.End()
	if !d.looks {
		c.batch.Done()
	}
	return &Trace{In: slices.Clone(c.Read(in)), Out: slices.Clone(c.Read(out)), Logits: slices.Clone(c.Read(logits)),
		Best: slices.Clone(c.Backend.Ints(ids)[:req.N])}, nil
}

// course is a draft in progress.
type course struct {
	*nn.Step
	batch *cache.Batch
	order []int          // requests, the longest first
	last  []int32        // last token of each
	h     backend.Tensor // [requests, hidden] the state before each last token
}

// begin prepares the steps of all requests, nil if there is nothing to do. Each sequence carries its row at another
// address, so these rows are copied outside of the pass, which may be run again.
func (d *Drafter) begin(reqs []draft.Request) (*course, error) {
	batch, mem, order, err := d.plan(reqs)
	if err != nil || batch == nil {
		return nil, err
	}
	c := &course{Step: nn.NewStep(d.arena, batch, mem, 0, d.layers.Eps), batch: batch, order: order}
	c.h = c.New(len(order), d.target.Hidden)
	for at, r := range order {
		c.last = append(c.last, reqs[r].Last)
		c.Copy(c.h.Slice(at, 1), reqs[r].Seq.(*cache.Seq).Carry())
	}
	return c, nil
}

// chain begins the pass and runs the steps; see, if set, gets the states before and after each of them. It returns the
// logits of all steps, one after the other: [rows, vocab].
func (d *Drafter) chain(c *course, see func(i int, h, next backend.Tensor)) backend.Tensor {
	c.Begin()
	d.layers.Angles(c.Step)
	ids, best := c.Ints32(c.last), c.NewInts(len(c.last))
	logits := c.New(len(c.batch.Pos), d.head.Rows())
	mark, from := c.Mark(), 0
	for i, n := range c.batch.Steps {
		t, h, l := c.At(i), c.h.Slice(0, n), logits.Slice(from, n)
		x := d.input(t, h, func(to backend.Tensor) { t.Embed(to, d.embed, ids, d.embScale) })
		d.layers.Forward(t, x)
		next := t.Norm(x, d.norm)
		t.MatMul(next, backend.Product{W: d.head, Y: l})
		if d.out != nil {
			next = t.Multiply(next, d.out)
		}
		if ids = best; i+1 < len(c.batch.Steps) {
			// If no logit is a number the guess is dropped later; any token will do here.
			t.ArgMax(ids, l)
		}
		if see != nil {
			see(i, h, next)
		}
		c.Copy(h, next)
		c.Release(mark)
		from += n
	}
	return logits
}

// plan checks the requests and prepares a pass over their steps, nil if there is nothing to do.
func (d *Drafter) plan(reqs []draft.Request) (batch *cache.Batch, mem *cache.Memory, order []int, err error) {
	mem = d.mem
	for i, r := range reqs {
		if err := r.Check(longest, d.target.Vocab); err != nil {
			return nil, nil, nil, err
		}
		if d.looks && (r.Target == nil || r.Target.Len() < r.Seq.Len()) {
			return nil, nil, nil, fmt.Errorf("the drafter knows %d tokens of a sequence, the target others",
				r.Seq.Len())
		}
		if d.looks && r.Seq.Len() == 0 {
			continue // the target has no keys yet
		}
		order = append(order, i)
	}
	if len(order) == 0 {
		return nil, nil, nil, nil
	}
	rows := 0
	for _, r := range order {
		rows += reqs[r].N
	}
	if err := d.makeRoom(rows); err != nil {
		return nil, nil, nil, err
	}
	slices.SortStableFunc(order, func(a, b int) int { return reqs[b].N - reqs[a].N })
	segs := make([]cache.Segment, len(order))
	for at, r := range order {
		segs[at] = cache.Segment{Seq: reqs[r].Seq.(*cache.Seq), Rows: reqs[r].N}
		if d.looks {
			segs[at].Seq = reqs[r].Target
		}
	}
	if !d.looks {
		batch, err = mem.BeginSteps(segs)
		return batch, mem, order, err
	}
	mem = d.target.Memory()
	batch, err = mem.Look(segs, d.target.Device(d.b))
	return batch, mem, order, err
}
