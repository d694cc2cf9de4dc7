package gpu

import (
	"bytes"
	"encoding/binary"
	"slices"

	"strobe/internal/backend"
)

// opKind says what an operation does.
type opKind uint32

const (
	opEmbed opKind = iota
	opMatMul
	opProduct // one output of the MatMul or ExpertMatMul before it
	opExpertMatMul
	opRMSNorm
	opLayerNorm
	opAdd
	opAddBias
	opScale
	opCopy
	opGather
	opActivate
	opGated
	opSigmoidGate
	opAddGated
	opSoftcap
	opClamp
	opAngles
	opRoPE
	opBlockConv
	opKVWrite
	opAttention
	opRoute
	opExpertBias
	opExpertSum
	opShortConv
	opGatedDelta
	opArgMax
	opTopK
	opCandidates
	opSetInts // by the host
)

// op is one operation of a step. Two lists of equal operations are the same launches. It has no padding, since lists
// are compared as bytes: that is several times faster than field by field, and there are a thousand operations in a
// step of a large model.
type op struct {
	kind         opKind
	outputs      int32   // MatMul, ExpertMatMul: the products that follow
	used         int32   // Route, ExpertMatMul, ExpertSum: experts of a row
	act          int32   // Activate, Gated: a backend.Activation
	heads        int32   // RoPE
	layer        int32   // ShortConv, GatedDelta: of the recurrent ones
	count        int32   // BlockConv: taps; TopK: how many
	set          int32   // SetInts: the first of those that are copied at once
	f, f2        float32 // f2: Clamp
	dst, a, b, c view
	w            *weight
	v, v2        Addr // vectors
	ids          Addr
	attn         attnOp
}

func (o *op) gelu() bool { return o.act == int32(backend.GELU) }

// packs reports whether kernels that pack the input of a product know the activation.
func (o *op) packs() bool { return o.act == int32(backend.SiLU) || o.gelu() }

// attnOp is what attention needs beyond the plan.
type attnOp struct {
	sinks          Addr
	group, layer   int32
	heads, kvHeads int32
	scale          float32
	used           int32
	sparse         sparseOp
}

// sparseOp is backend.Sparse, but for what changes from step to step; all zero: rows see everything.
type sparseOp struct {
	block, sink, window, last int32
	alpha                     float32
}

// sameOps compares lists. A false alarm would cost time, nothing else.
func sameOps(a, b []op) bool { return bytes.Equal(bytesOf(a), bytesOf(b)) }

// step is the step in progress.
type step struct {
	open bool
	ops  []op
	plan *backend.Plan
	sets []setInts
	data []int32 // of sets
	// sparse attention: the length of the prompts that segments are parts of
	tokens []int
}

// setInts says which integers of data the step copies where. Those that follow each other without an operation in
// between are copied at once, from the first of them on.
type setInts struct {
	dst     Addr
	from, n int
	first   int
}

func (s *step) set(dst Addr, v []int32) {
	first := len(s.sets)
	if n := len(s.ops); n > 0 && s.ops[n-1].kind == opSetInts {
		first = s.sets[first-1].first
	}
	s.ops = append(s.ops, op{kind: opSetInts, ids: dst, set: int32(first)})
	s.sets = append(s.sets, setInts{dst, len(s.data), len(v), first})
	s.data = append(s.data, v...)
}

// BeginStep starts a list of operations.
func (b *Backend) BeginStep(p *backend.Plan) {
	s := &b.step
	s.open, s.plan = true, p
	s.ops, s.sets, s.data, s.tokens = s.ops[:0], s.sets[:0], s.data[:0], nil
}

// list is the operations of a step, and what they became.
type list struct {
	name     int
	ops      []op
	sets     []setInts
	uses     []attnOp      // the kinds of attention among the operations
	rows     map[int32]int // of the operations over each plan of keys and values, padding included
	delta    int           // rows of the recurrent layers
	recorded []*recorded   // by layout
}

// newList keeps the operations of a step.
func newList(name int, s *step) *list {
	l := &list{name: name, ops: slices.Clone(s.ops), sets: slices.Clone(s.sets), rows: map[int32]int{}}
	for i := range l.ops {
		switch o := &l.ops[i]; o.kind {
		case opAttention, opKVWrite:
			l.rows[o.attn.group] = max(l.rows[o.attn.group], int(o.a.rows))
			if o.kind == opKVWrite && attends(l.ops, o.attn.group) {
				continue // attention's tables serve for writing, too
			}
			if !slices.ContainsFunc(l.uses, func(u attnOp) bool {
				return u.group == o.attn.group && u.heads == o.attn.heads && u.kvHeads == o.attn.kvHeads &&
					u.used == o.attn.used &&
					u.sparse.block == o.attn.sparse.block && (u.heads == 0 || s.shape(u) == s.shape(o.attn))
			}) {
				l.uses = append(l.uses, o.attn)
			}
		case opShortConv, opGatedDelta:
			l.delta = max(l.delta, int(o.a.rows))
		}
	}
	return l
}

// shape is what the layer of an operation keeps.
func (s *step) shape(a attnOp) (d backend.KVDims) {
	if s.plan != nil {
		d = s.plan.KV[a.group].Pool.(*Pages).Layout.Shapes[a.layer]
	}
	return d
}

// attends reports whether operations have attention over a group.
func attends(ops []op, group int32) bool {
	return slices.ContainsFunc(ops, func(o op) bool { return o.kind == opAttention && o.attn.group == group })
}

// recorded is what a list became with tables of one layout.
type recorded struct {
	layout   layout
	launches []Launch
	rec      Recording // nil until it has come often enough
	used     int       // turn of the last use
	uses     int
}

func (r *recorded) close() {
	if r.rec != nil {
		r.rec.Close()
	}
}

// maxRecorded bounds the recorded steps: a model has a list for each size of a pass, and for each a few layouts.
const maxRecorded = 256

// recordAfter is how often launches are begun one by one before they are recorded: making a graph takes the host about
// as long as three such passes, which those of a prompt's end are not worth.
const recordAfter = 1

// shortList is the number of operations up to which a step is lowered anew each time, which is hardly more than
// comparing it.
const shortList = 2

// Pad rounds up to powers of two and the numbers halfway between them, and from 128 on to multiples of 64. Products
// work on eight rows at a time, and on 64 for prompts, so they hardly notice.
func (b *Backend) Pad(n int) int {
	step := 1
	for 4*step < n && step < 64 {
		step *= 2
	}
	return (n + step - 1) / step * step
}

// EndStep runs the list: it uploads what changes from step to step as one block, and replays what was recorded for an
// equal list. Others are launched kernel by kernel.
func (b *Backend) EndStep() (int, error) {
	s := &b.step
	s.open = false
	if b.err != nil || len(s.ops) == 0 {
		return 0, nil
	}
	// No kernel is needed to put the features of a pass aside, which happens in each of them.
	if o := &s.ops[0]; len(s.ops) == 1 && o.kind == opCopy && o.dst.whole() && o.a.whole() {
		b.d.Copy(o.dst.addr, o.a.addr, 4*int(o.a.rows)*int(o.a.cols))
		return 0, nil
	}
	if len(s.ops) <= shortList {
		l := newList(0, s)
		err := b.run(l)
		for _, r := range l.recorded {
			r.close()
		}
		return 0, err
	}
	i := slices.IndexFunc(b.lists, func(l *list) bool { return slices.Equal(l.sets, s.sets) && sameOps(l.ops, s.ops) })
	var l *list
	if i >= 0 {
		l = b.lists[i]
	} else {
		b.names++
		l = newList(b.names, s)
	}
	err := b.run(l)
	if b.rehearses {
		return 0, err
	}
	if err == nil && !slices.Contains(b.lists, l) { // it is new, or running it took the place of all its recordings
		b.lists = append(b.lists, l)
	}
	return l.name, err
}

// Repeat runs a step again with other integers and another plan.
func (b *Backend) Repeat(name int, p *backend.Plan, ints ...[]int32) (bool, error) {
	i := slices.IndexFunc(b.lists, func(l *list) bool { return l.name == name })
	if i < 0 || b.err != nil {
		return false, nil
	}
	l, s := b.lists[i], &b.step
	if len(ints) != len(l.sets) || slices.ContainsFunc(l.uses, func(u attnOp) bool { return u.sparse.block > 0 }) {
		return false, nil // nothing says how long the prompts are
	}
	s.data = s.data[:0]
	for k, v := range ints {
		n := l.sets[k].n
		if len(v) > n {
			return false, nil
		}
		s.data = append(s.data, v...)
		for range n - len(v) {
			s.data = append(s.data, 0)
		}
	}
	s.open, s.plan = false, p
	return true, b.run(l)
}

// run runs a list with the step's plan and integers.
func (b *Backend) run(l *list) error {
	s := &b.step
	blk, lay, err := b.block(l, s)
	if err != nil {
		return err
	}
	b.turn++
	i := slices.IndexFunc(l.recorded, func(r *recorded) bool { return r.layout.same(&lay) })
	if b.rehearses && i >= 0 {
		return nil
	}
	if i < 0 {
		calls, err := b.lower(l.ops, s.plan, lay)
		if b.rehearses {
			b.rehearsed = append(b.rehearsed, calls...)
			return err
		}
		if err != nil {
			return err
		}
		ls, err := b.emit(calls)
		if err != nil {
			return err
		}
		b.dropOldest()
		l.recorded = append(l.recorded, &recorded{layout: lay, launches: ls})
		i = len(l.recorded) - 1
	} else if r := l.recorded[i]; r.rec == nil && r.uses >= recordAfter {
		if r.rec, err = b.d.Record(r.launches); err != nil {
			return err
		}
		if r.rec == nil {
			r.uses = 0 // there may be room later
		}
	}
	r := l.recorded[i]
	r.used = b.turn
	r.uses++
	if len(blk) > 0 {
		b.d.Upload(lay.base, blk)
	}
	switch {
	case b.profile != nil:
		b.timed(r.launches)
	case r.rec != nil:
		b.d.Replay(r.rec)
	default:
		for i := range r.launches {
			b.d.Launch(&r.launches[i])
		}
	}
	return nil
}

// dropOldest makes room for one more.
func (b *Backend) dropOldest() {
	var oldest *recorded
	n := 0
	for _, l := range b.lists {
		for _, r := range l.recorded {
			if n++; oldest == nil || r.used < oldest.used {
				oldest = r
			}
		}
	}
	if n >= maxRecorded {
		b.drop(func(r *recorded) bool { return r == oldest })
	}
}

// drop forgets the recorded steps that which selects, and lists that are empty then.
func (b *Backend) drop(which func(r *recorded) bool) {
	b.lists = slices.DeleteFunc(b.lists, func(l *list) bool {
		had := len(l.recorded) > 0
		l.recorded = slices.DeleteFunc(l.recorded, func(r *recorded) bool {
			if which(r) {
				r.close()
				return true
			}
			return false
		})
		return had && len(l.recorded) == 0
	})
}

// span is a piece of device memory.
type span struct {
	at    Addr
	bytes int
}

// forget drops what names an address in some memory. What a list names all of its launches do, whatever their layout,
// so nothing is left of a list that does.
func (b *Backend) forget(gone ...span) {
	names := func(raw []byte) bool {
		for i := 0; i+8 <= len(raw); i += 8 {
			a := Addr(binary.LittleEndian.Uint64(raw[i:]))
			if slices.ContainsFunc(gone, func(s span) bool { return a >= s.at && a < s.at+Addr(s.bytes) }) {
				return true
			}
		}
		return false
	}
	b.drop(func(r *recorded) bool {
		return slices.ContainsFunc(r.launches, func(l Launch) bool { return names(l.Args) })
	})
}

// do appends an operation; outside of a step it is one by itself.
func (b *Backend) do(o op) {
	alone := b.begin()
	b.step.ops = append(b.step.ops, o)
	b.end(alone)
}

// begin says whether the operations up to end are a step by themselves.
func (b *Backend) begin() (alone bool) {
	if alone = !b.step.open; alone {
		b.BeginStep(nil)
	}
	return alone
}

func (b *Backend) end(alone bool) {
	if alone {
		if _, err := b.EndStep(); err != nil {
			b.fail(err)
		}
	}
}

// Embed looks up rows of the embedding matrix.
func (b *Backend) Embed(dst backend.Tensor, w backend.Weight, ids backend.Ints, scale float32) {
	b.do(op{kind: opEmbed, dst: viewOf(dst), w: w.(*weight), ids: ids.(*ints).addr, f: scale})
}

// MatMul multiplies x with every matrix.
func (b *Backend) MatMul(x backend.Tensor, ps ...backend.Product) {
	b.multiply(op{kind: opMatMul, a: viewOf(x)}, ps)
}

// multiply appends an operation with its outputs.
func (b *Backend) multiply(o op, ps []backend.Product) {
	o.outputs = int32(len(ps))
	alone := b.begin()
	b.step.ops = append(b.step.ops, o)
	for _, p := range ps {
		b.step.ops = append(b.step.ops, op{kind: opProduct, w: p.W.(*weight), dst: viewOf(p.Y)})
	}
	b.end(alone)
}

// RMSNorm normalises every row.
func (b *Backend) RMSNorm(dst, x backend.Tensor, w backend.Vector, eps float32) {
	b.do(op{kind: opRMSNorm, dst: viewOf(dst), a: viewOf(x), v: vectorOf(w), f: eps})
}

// LayerNorm normalises every row to mean 0 and variance 1, then scales and shifts it.
func (b *Backend) LayerNorm(dst, x backend.Tensor, w, bias backend.Vector, eps float32) {
	b.do(op{kind: opLayerNorm, dst: viewOf(dst), a: viewOf(x), v: vectorOf(w), v2: vectorOf(bias), f: eps})
}

// Add adds row by row.
func (b *Backend) Add(dst, x, y backend.Tensor) {
	b.do(op{kind: opAdd, dst: viewOf(dst), a: viewOf(x), b: viewOf(y)})
}

// AddBias adds a vector to every row.
func (b *Backend) AddBias(x backend.Tensor, bias backend.Vector) {
	b.do(op{kind: opAddBias, dst: viewOf(x), a: viewOf(x), v: vectorOf(bias)})
}

// Scale multiplies every value by s.
func (b *Backend) Scale(dst, x backend.Tensor, s float32) {
	b.do(op{kind: opScale, dst: viewOf(dst), a: viewOf(x), f: s})
}

// Copy copies row by row.
func (b *Backend) Copy(dst, src backend.Tensor) {
	b.do(op{kind: opCopy, dst: viewOf(dst), a: viewOf(src)})
}

// Gather copies the rows of src that rows names.
func (b *Backend) Gather(dst, src backend.Tensor, rows backend.Ints) {
	b.do(op{kind: opGather, dst: viewOf(dst), a: viewOf(src), ids: rows.(*ints).addr})
}

// Activate computes act(x).
func (b *Backend) Activate(dst, x backend.Tensor, act backend.Activation) {
	b.do(op{kind: opActivate, dst: viewOf(dst), a: viewOf(x), act: int32(act)})
}

// Gated computes act(gate) * up.
func (b *Backend) Gated(dst, gate, up backend.Tensor, act backend.Activation) {
	b.do(op{kind: opGated, dst: viewOf(dst), a: viewOf(gate), b: viewOf(up), act: int32(act)})
}

// SigmoidGate computes x * sigmoid(gate).
func (b *Backend) SigmoidGate(dst, x, gate backend.Tensor) {
	b.do(op{kind: opSigmoidGate, dst: viewOf(dst), a: viewOf(x), b: viewOf(gate)})
}

// AddGated adds x scaled by the sigmoid of one gate value per row.
func (b *Backend) AddGated(dst, x, gate backend.Tensor) {
	b.do(op{kind: opAddGated, dst: viewOf(dst), a: viewOf(x), b: viewOf(gate)})
}

// Softcap bounds values smoothly to (-c, c).
func (b *Backend) Softcap(x backend.Tensor, c float32) {
	b.do(op{kind: opSoftcap, dst: viewOf(x), a: viewOf(x), f: c})
}

// Clamp bounds values to [least, most].
func (b *Backend) Clamp(dst, x backend.Tensor, least, most float32) {
	b.do(op{kind: opClamp, dst: viewOf(dst), a: viewOf(x), f: least, f2: most})
}

// Angles computes the cosines and sines of rotary embedding for every position.
func (b *Backend) Angles(cos, sin backend.Tensor, pos backend.Ints, inv backend.Vector, mscale float32) {
	b.do(op{kind: opAngles, dst: viewOf(cos), b: viewOf(sin), ids: pos.(*ints).addr, v: vectorOf(inv), f: mscale})
}

// RoPE rotates pairs (i, i+n) of every head.
func (b *Backend) RoPE(x backend.Tensor, heads int, cos, sin backend.Tensor) {
	b.do(op{kind: opRoPE, dst: viewOf(x), a: viewOf(x), b: viewOf(cos), c: viewOf(sin), heads: int32(heads)})
}

// BlockConv convolves the rows of blocks with taps of their own.
func (b *Backend) BlockConv(dst, x, dyn backend.Tensor, base backend.Vector, index backend.Ints) {
	b.do(op{kind: opBlockConv, dst: viewOf(dst), a: viewOf(x), b: viewOf(dyn), v: vectorOf(base),
		count: int32(base.Len() / dst.Cols), ids: index.(*ints).addr})
}

// KVWrite stores the keys and values of the batch at their slots.
func (b *Backend) KVWrite(group, layer int, k, v backend.Tensor) {
	b.do(op{kind: opKVWrite, a: viewOf(k), b: viewOf(v), attn: attnOp{group: int32(group), layer: int32(layer)}})
}

// Attention computes softmax(q k) v for every row and head over the slots the row sees.
func (b *Backend) Attention(dst, q backend.Tensor, group, layer int, p backend.AttnParams) {
	b.attend(dst, q, group, layer, p, sparseOp{})
}

func (b *Backend) attend(dst, q backend.Tensor, group, layer int, p backend.AttnParams, s sparseOp) {
	b.do(op{kind: opAttention, dst: viewOf(dst), a: viewOf(q), attn: attnOp{
		sinks: vectorOf(p.Sinks), group: int32(group), layer: int32(layer), heads: int32(p.Heads), kvHeads: int32(p.KVHeads),
		scale: p.Scale, used: int32(p.Used), sparse: s}})
}

// Route chooses the experts of every row.
func (b *Backend) Route(ids backend.Ints, weights, logits backend.Tensor, used int, scale float32) {
	b.do(op{kind: opRoute, dst: viewOf(weights), a: viewOf(logits), ids: ids.(*ints).addr, used: int32(used), f: scale})
}

// ExpertMatMul multiplies rows with the experts chosen for them.
func (b *Backend) ExpertMatMul(x backend.Tensor, ids backend.Ints, used int, ps ...backend.Product) {
	b.multiply(op{kind: opExpertMatMul, a: viewOf(x), ids: ids.(*ints).addr, used: int32(used)}, ps)
}

// ExpertBias adds the bias of its expert to every row.
func (b *Backend) ExpertBias(x backend.Tensor, ids backend.Ints, bias backend.Vector) {
	b.do(op{kind: opExpertBias, dst: viewOf(x), a: viewOf(x), v: vectorOf(bias), ids: ids.(*ints).addr})
}

// ExpertSum adds the outputs of each row's experts with their weights.
func (b *Backend) ExpertSum(dst, y, weights backend.Tensor, ids backend.Ints, used int, scale backend.Vector) {
	b.do(op{kind: opExpertSum, dst: viewOf(dst), a: viewOf(y), b: viewOf(weights), ids: ids.(*ints).addr,
		used: int32(used), v: vectorOf(scale)})
}

// ShortConv computes silu of the causal depthwise convolution along each row's ancestors.
func (b *Backend) ShortConv(dst, u backend.Tensor, w backend.Vector, layer int) {
	b.do(op{kind: opShortConv, dst: viewOf(dst), a: viewOf(u), v: vectorOf(w), layer: int32(layer)})
}

// GatedDelta runs the gated delta rule over every segment.
func (b *Backend) GatedDelta(dst, qkv, alpha, beta backend.Tensor, a, dt backend.Vector, layer int) {
	b.do(op{kind: opGatedDelta, dst: viewOf(dst), a: viewOf(qkv), b: viewOf(alpha), c: viewOf(beta),
		v: vectorOf(a), v2: vectorOf(dt), layer: int32(layer)})
}

// ArgMax finds the largest value of every row.
func (b *Backend) ArgMax(ids backend.Ints, x backend.Tensor) {
	b.do(op{kind: opArgMax, a: viewOf(x), ids: ids.(*ints).addr})
}

// TopK finds the k largest values of every row and their log-softmax.
func (b *Backend) TopK(ids backend.Ints, logp, x backend.Tensor, k int) {
	b.do(op{kind: opTopK, dst: viewOf(logp), a: viewOf(x), ids: ids.(*ints).addr, count: int32(k)})
}

// Candidates finds the largest values of every row, and with total the row's weight.
func (b *Backend) Candidates(dst backend.Ints, x backend.Tensor, total bool) {
	o := op{kind: opCandidates, a: viewOf(x), ids: dst.(*ints).addr}
	if total {
		o.v = b.weightTable
	}
	b.do(o)
}
