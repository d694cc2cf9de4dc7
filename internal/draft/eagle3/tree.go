package eagle3

import (
	"cmp"
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/nn"
)

// node is a place in the tree that a draft goes through: the last token at depth 0, guesses below it. Each runs the
// layer once, and gives candidates for the token after it.
type node struct {
	parent, rank int // it is the parent's candidate of this rank
	depth        int
}

// width is how many nodes of a tree have one depth: the path of the best guesses, and the paths that leave it once, for
// the second best guess of its first places. If guesses are right about equally often in all places, these are the most
// probable ones of each depth. The shape is known beforehand, so the steps of a draft are one pass, without the host.
const width = 4

// nodes is the tree of a draft of n tokens, a chain where wide is 1. Nodes are sorted by depth; the first of each depth
// is on the path of the best guesses.
func nodes(n, wide int) []node {
	tree := []node{{parent: -1}}
	level := []int{0} // the nodes of one depth
	for depth := 1; depth < n; depth++ {
		var next []int
		add := func(parent, rank int) {
			next = append(next, len(tree))
			tree = append(tree, node{parent, rank, depth})
		}
		for _, at := range level {
			add(at, 0)
		}
		if len(level) < wide {
			add(level[0], 1)
		}
		level = next
	}
	return tree
}

// draftKey decides which operations a draft has: the rows of its steps, and candidates per node.
type draftKey struct {
	steps [longest]int
	top   int
}

// results is where a draft leaves the candidates of each step.
type results struct {
	ids  [longest]backend.Ints   // [rows, top] outputs
	logp [longest]backend.Tensor // [rows, top]
}

// course is a draft in progress.
type course struct {
	*nn.Step
	batch *cache.Batch
	top   int
	order []int    // requests, the longest first
	trees [][]node // of each of them
	rows  [][]int  // and the row of each node in its step

	last   []int32   // last token of each request
	parent [][]int32 // per step: the row of each row's parent in the step before
	pick   [][]int32 // per step: each row's place among the candidates of the step before
	g      backend.Tensor
}

// Draft guesses for several sequences, one step after the other for all of them, with up to top candidates per
// position. The steps are one pass: each embeds what the previous one has chosen on the device, and the host reads all
// results at the end. Where a tree is wanted, alternatives have candidates of their own.
func (d *Drafter) Draft(reqs []draft.Request, top int) (out []draft.Proposal, err error) {
	defer nn.Catch(&err)
	out = make([]draft.Proposal, len(reqs))
	c, err := d.begin(reqs, min(max(1, top), d.head.Rows()))
	if err != nil || c == nil {
		return out, err
	}
	key := draftKey{top: c.top}
	copy(key.steps[:], c.batch.Steps)
	ints := [][]int32{c.last}
	for i := range c.batch.Steps {
		ints = append(ints, c.parent[i], c.pick[i])
	}
	_, done := d.drafts.Run(c.Step, key, func() (*nn.Step, results) { return c.Step, d.steps(c, nil) }, ints...)
	c.batch.Done()
	var ids [longest][]int32
	var logp [longest][]float32
	for i := range c.batch.Steps {
		ids[i], logp[i] = slices.Clone(c.Backend.Ints(done.ids[i])), slices.Clone(c.Read(done.logp[i]))
	}
	for at, r := range c.order {
		out[r] = propose(c.trees[at], func(n int) []draft.Candidate {
			list := make([]draft.Candidate, c.top)
			for k := range list {
				depth, row := c.trees[at][n].depth, c.rows[at][n]*c.top+k
				list[k] = draft.Candidate{ID: d.targetID(ids[depth][row]), LogP: logp[depth][row]}
			}
			return list
		})
	}
	return out, d.b.Sync() // report failures here: the verifying pass has not failed
}

// Logits drafts a chain for one sequence and returns the logits of its steps [steps, outputs], for comparison with
// references.
func (d *Drafter) Logits(req draft.Request) (logits []float32, err error) {
	defer nn.Catch(&err)
	req.Tree = false
	c, err := d.begin([]draft.Request{req}, 1)
	if err != nil || c == nil {
		return nil, cmp.Or(err, fmt.Errorf("there are no features to begin with"))
	}
	all := c.New(req.N, d.head.Rows())
	d.steps(c, func(i int, logits backend.Tensor) { c.Copy(all.Slice(i, 1), logits) })
	c.End()
	c.batch.Done()
	return slices.Clone(c.Read(all)), nil
}

// targetID is the target's id of an output, -1 for none.
func (d *Drafter) targetID(id int32) int32 {
	if d.d2t == nil {
		return id
	}
	if id < 0 || int(id) >= len(d.d2t) { // ids of a failed device are undefined
		return -1
	}
	return d.d2t[id]
}

// propose makes a proposal of the candidates of the nodes. Where two nodes of a depth have the same token, the more
// probable one says what follows it.
func propose(tree []node, candidates func(n int) []draft.Candidate) (p draft.Proposal) {
	all, path := make([][]draft.Candidate, len(tree)), make([]float32, len(tree)) // log-probability of the path to a node
	for n, x := range tree {
		all[n] = candidates(n)
		if n > 0 {
			path[n] = path[x.parent] + all[x.parent][x.rank].LogP
		}
		if len(p.At) == x.depth {
			p.At = append(p.At, all[n])
		}
	}
	if len(tree) == len(p.At) {
		return p
	}
	p.Next = func(i int, before int32) []draft.Candidate {
		best := -1
		for n, x := range tree {
			if x.depth == i && all[x.parent][x.rank].ID == before && (best < 0 || path[n] > path[best]) {
				best = n
			}
		}
		if best < 0 {
			return nil
		}
		return all[best]
	}
	return p
}

// begin prepares the steps of all requests, nil if there is nothing to do.
func (d *Drafter) begin(reqs []draft.Request, top int) (*course, error) {
	c := &course{top: top}
	rows := 0
	for i, r := range reqs {
		if err := r.Check(longest, d.target.Vocab); err != nil {
			return nil, err
		}
		if r.Seq.Len() > 0 { // else there are no features to begin with
			c.order = append(c.order, i)
		}
	}
	if len(c.order) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(c.order, func(a, b int) int { return reqs[b].N - reqs[a].N })
	var segs []cache.Segment
	for _, r := range c.order {
		wide := 1
		if reqs[r].Tree && top > 1 {
			wide = width
		}
		tree := nodes(reqs[r].N, wide)
		seg := cache.Segment{Seq: reqs[r].Seq.(*cache.Seq), Rows: len(tree)}
		if len(tree) > reqs[r].N {
			for _, x := range tree {
				seg.Parents = append(seg.Parents, int32(x.parent))
			}
		}
		c.trees, segs = append(c.trees, tree), append(segs, seg)
		rows += len(tree)
	}
	if err := d.makeRoom(rows); err != nil {
		return nil, err
	}
	var err error
	if c.batch, err = d.mem.BeginSteps(segs); err != nil {
		return nil, err
	}
	for _, p := range c.batch.Plans {
		for _, kv := range p.KV {
			for r := range kv.Lo { // nothing comes before the first token: its row is no pair
				kv.Lo[r] = max(kv.Lo[r], 1)
				kv.Hi[r] = max(kv.Hi[r], kv.Lo[r])
			}
		}
	}
	c.wire()
	c.Step = nn.NewStep(d.arena, c.batch, d.mem, 0, d.eps)
	// Each sequence carries its row at another address, so these rows are copied outside of the pass, which may be run
	// again.
	c.g = c.New(len(c.order), d.hidden)
	for at, r := range c.order {
		c.last = append(c.last, reqs[r].Last)
		c.Copy(c.g.Slice(at, 1), reqs[r].Seq.(*cache.Seq).Carry())
	}
	return c, nil
}

// wire finds where the rows of each step come from.
func (c *course) wire() {
	steps := len(c.batch.Steps)
	c.parent, c.pick = make([][]int32, steps), make([][]int32, steps)
	next := make([]int, steps)
	for _, tree := range c.trees {
		rows := make([]int, len(tree))
		for n, x := range tree {
			rows[n] = next[x.depth]
			next[x.depth]++
			if n > 0 {
				up := rows[x.parent]
				c.parent[x.depth] = append(c.parent[x.depth], int32(up))
				c.pick[x.depth] = append(c.pick[x.depth], int32(up*c.top+x.rank))
			}
		}
		c.rows = append(c.rows, rows)
	}
}

// steps goes through the pass; see, if set, gets the logits of each step.
func (d *Drafter) steps(c *course, see func(i int, logits backend.Tensor)) (done results) {
	c.Begin()
	c.Angles(d.rope)
	last := c.Ints32(c.last)
	var parent, pick [longest]backend.Ints
	var out [longest]backend.Tensor // of the layer
	for i, n := range c.batch.Steps {
		if i > 0 {
			parent[i], pick[i] = c.Ints32(c.parent[i]), c.Ints32(c.pick[i])
		}
		done.ids[i], done.logp[i] = c.NewInts(n*c.top), c.New(n, c.top)
		out[i] = c.New(n, d.hidden)
	}
	mark := c.Mark()
	for i, n := range c.batch.Steps {
		t, g := c.At(i), c.g
		if i > 0 {
			g = t.New(n, d.hidden)
			t.Gather(g, out[i-1], parent[i])
		}
		in, x := d.input(t, g, func(to backend.Tensor) {
			if i == 0 {
				t.Embed(to, d.embed, last, 1)
				return
			}
			// If no logit was a number the guess is dropped later; any token will do here.
			all := t.New(c.batch.Steps[i-1]*c.top, d.hidden)
			t.Embed(all, d.byOutput, done.ids[i-1], 1)
			t.Gather(to, all, pick[i])
		})
		d.forward(t, in, x)
		t.Copy(out[i], x)
		logits := t.Multiply(t.Norm(x, d.outputNorm), d.head)
		if see != nil {
			see(i, logits)
		}
		t.TopK(done.ids[i], done.logp[i], logits, c.top)
		c.Release(mark)
	}
	return done
}
