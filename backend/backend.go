// Package backend is the contract between models and the devices that run them.
//
// A model's forward pass is Go code that calls the operations of a Backend in
// order. A backend knows kernels and memory, never model names. Three properties
// keep the contract fit for a GPU as well as for the CPU:
//
//   - Activations live in device buffers behind Tensor views; the host sees them
//     only through Read, so a step can run asynchronously until then.
//   - Whatever changes between two steps of the same shape (token ids, positions,
//     page tables, visible ranges, recurrent state) is handed over through Ints,
//     KVPlan and DeltaSeg, never as a scalar argument of an operation. A device
//     keeps copies of them at fixed addresses, so that the operations between
//     BeginStep and EndStep can be recorded once and replayed.
//   - Weights are bound once with Weight; a CPU keeps the mapped bytes, a GPU copies.
//
// A backend is driven by one goroutine at a time. Operations on the CPU fix the order
// of every floating-point reduction independently of the batch: the result of a row
// has the same bits whatever other rows are computed with it.
package backend

import (
	"strobe/gguf"
	"strobe/quant"
)

// Buffer is device memory for float32 values.
type Buffer interface {
	Len() int // in values
}

// Ints is device memory for int32 values.
type Ints interface {
	Len() int
}

// Tensor is a view of rows in a buffer: row r holds Cols values from Off+r*Stride.
type Tensor struct {
	Buf        Buffer
	Off        int
	Rows, Cols int
	Stride     int
}

// First returns the first n rows.
func (t Tensor) First(n int) Tensor { t.Rows = n; return t }

// Slice returns rows [from, from+n).
func (t Tensor) Slice(from, n int) Tensor {
	t.Off += from * t.Stride
	t.Rows = n
	return t
}

// Columns returns columns [from, from+n) of every row.
func (t Tensor) Columns(from, n int) Tensor {
	t.Off += from
	t.Cols = n
	return t
}

// Split views every row as parts rows of Cols/parts columns. Rows must be contiguous.
func (t Tensor) Split(parts int) Tensor {
	if t.Stride != t.Cols {
		panic("backend: Split of a tensor whose rows are not contiguous")
	}
	t.Rows *= parts
	t.Cols /= parts
	t.Stride = t.Cols
	return t
}

// Weight is a matrix (or a stack of expert matrices) bound to a device. Its values
// multiply activations: y = W x, one output per row.
type Weight interface {
	Rows() int    // outputs (of one expert)
	Cols() int    // inputs
	Experts() int // 1 for a plain matrix
	Type() quant.Type
	Bytes() int // stored size of all experts
}

// Vector is a float32 parameter vector bound to a device: norms, biases, small tables.
type Vector interface {
	Len() int
}

// Product is one output of a matrix product: Y = W X.
type Product struct {
	W Weight
	Y Tensor
}

// Activation is the non-linearity of a gated feed-forward layer.
type Activation int

// The activations.
const (
	SiLU Activation = iota
	GELU            // tanh form
)

// AttnParams describes one attention operation.
type AttnParams struct {
	Heads, KVHeads int
	Scale          float32
	Sinks          Vector // optional extra logit per head in the softmax denominator
}

// KVDims is the size of one layer's keys and values.
type KVDims struct {
	Heads, KeyDim, ValueDim int
}

// KVLayout describes a pool of cache pages. A page holds Page tokens of every layer.
type KVLayout struct {
	Type   quant.Type // F32, F16 or Q8_0
	Page   int
	Layers []KVDims
}

// KVPool is device memory for cache pages, identified by small integers.
type KVPool interface {
	PageBytes() int
	Alloc() (int32, error)
	Free(page int32)
	Copy(dst, src int32)
	CopyRow(dst int32, dstRow int, src int32, srcRow int) // all layers
	ReadPage(page int32, dst []byte)
	WritePage(page int32, src []byte)
	Used() int // pages in use
}

// KVPlan says where the rows of a batch write their keys and values and what they see.
// Slots count tokens of a sequence; slot s lives in page Tables[seg][s/Page].
type KVPlan struct {
	Tables [][]int32 // per segment
	Seg    []int32   // per row: its segment
	Slot   []int32   // per row: where its key and value go
	Lo, Hi []int32   // per row: visible slots [Lo, Hi)
	Extra  [][]int32 // per row: visible slots beyond Hi, ascending (tree ancestors and the row itself); nil without trees
}

// Visible returns the number of slots a row sees.
func (p *KVPlan) Visible(row int) int {
	n := int(p.Hi[row] - p.Lo[row])
	if p.Extra != nil {
		n += len(p.Extra[row])
	}
	return n
}

// DeltaDims are the sizes of a Gated DeltaNet layer.
type DeltaDims struct {
	KHeads, VHeads, KDim, VDim int
	Kernel                     int     // taps of the short convolution
	Grouped                    bool    // V head h uses K head h/(VHeads/KHeads) instead of h mod KHeads
	Eps                        float32 // of the L2 norm
}

// ConvDim is the width of the convolution: queries, keys and values.
func (d DeltaDims) ConvDim() int { return 2*d.KHeads*d.KDim + d.VHeads*d.VDim }

// DeltaSeg is the part of a batch that belongs to one sequence, and that sequence's
// recurrent memory in one layer. State is at the last committed token except for
// the first Pending rows of the tape, which are accepted but not yet applied: the next
// GatedDelta applies them on its way through the state.
type DeltaSeg struct {
	Row, N  int     // rows of the batch
	Parents []int32 // tree: parent row inside the segment or -1; nil for a chain
	Prompt  bool    // the rows are certain to be accepted: advance the state instead of taping them

	State Tensor // VHeads*VDim*KDim values, laid out as the backend likes
	Conv  Tensor // [Kernel-1, ConvDim], oldest first
	// The tape: what a commit needs of each row.
	TapeU   Tensor // convolution inputs [rows, ConvDim]
	TapeK   Tensor // normalised keys [rows, KHeads*KDim]
	TapeD   Tensor // updates [rows, VHeads*VDim]
	TapeG   Tensor // decay factors [rows, VHeads]
	Pending int
}

// Backend is a device.
type Backend interface {
	Name() string
	Threads() int
	Close() error

	// Memory.
	Alloc(rows, cols int) Tensor // zeroed
	Free(t Tensor)               // gives the buffer of t back when the operations so far are done with it; a zero t is fine
	AllocInts(n int) Ints
	SetInts(dst Ints, v []int32)
	Ints(v Ints) []int32 // waits for the device; the slice is valid until the next operation
	NewKVPool(l KVLayout) (KVPool, error)
	Weight(t *gguf.Tensor, scale *gguf.Tensor) (Weight, error) // scale: optional companion of NVFP4 weights
	Vector(t *gguf.Tensor) (Vector, error)
	VectorOf(v []float32) Vector
	Read(t Tensor) []float32 // contiguous rows; waits for the device; valid until the next operation on t
	Write(t Tensor, v []float32)

	// BeginStep and EndStep enclose operations that a device may record and replay as a whole when
	// they come again. The key is a hint, not a promise: under the same key a device compares what
	// it is asked with what it recorded, since buffers move when they grow and a batch of eight rows is
	// eight sequences, a chain or a tree. Inside a step nothing is allocated, freed, read or written by
	// the host (SetInts excepted), and no page of a pool is copied.
	BeginStep(key string)
	EndStep()

	// Sync waits until all operations are done, and reports the first failure of the device since
	// it was opened. Operations have no errors of their own: after a failure their results mean nothing.
	// Whoever times a pass calls it before looking at the clock.
	Sync() error

	// Dense operations. Rows are tokens, or tokens x heads.
	Embed(dst Tensor, w Weight, ids Ints, scale float32)
	MatMul(x Tensor, ps ...Product)
	AddBias(x Tensor, bias Vector)
	RMSNorm(dst, x Tensor, w Vector, eps float32) // w may be nil
	Add(dst, a, b Tensor)
	Mul(dst, a, b Tensor)
	MulVec(dst, a Tensor, v Vector) // row-wise elementwise product
	Scale(dst, a Tensor, s float32)
	Copy(dst, src Tensor)
	Gather(dst, src Tensor, rows Ints)
	Gated(dst, gate, up Tensor, act Activation) // act(gate) * up
	SigmoidGate(dst, x, gate Tensor)            // x * sigmoid(gate)
	AddGated(dst, x, gate Tensor)               // dst += sigmoid(gate[row]) * x, gate has one column
	Softcap(x Tensor, c float32)
	Angles(cos, sin Tensor, pos Ints, inv Vector, mscale float32)
	RoPE(x Tensor, heads int, cos, sin Tensor) // x: tokens*heads rows; rotates the first 2*cos.Cols columns

	// BlockConv mixes each row with the rows before it in its block, index[r] of them:
	// dst[r][c] = sum over taps t <= index[r] of (base[t][c] + dyn[r][t][c/group]) * x[r-t][c].
	// base is [taps][x.Cols], a row of dyn [taps][groups]. dst must not be x.
	BlockConv(dst, x, dyn Tensor, base Vector, index Ints)

	// Attention.
	KVWrite(pool KVPool, layer int, k, v Tensor, plan *KVPlan)
	Attention(dst, q Tensor, pool KVPool, layer int, plan *KVPlan, p AttnParams)

	// Mixture of experts.
	Route(ids Ints, weights, logits Tensor, used int, scale float32)
	ExpertMatMul(x Tensor, ids Ints, used int, ps ...Product) // row t*used+j of Y = W[ids[t*used+j]] x; x has tokens or tokens*used rows
	ExpertSum(dst, y, weights Tensor, ids Ints, used int, scale Vector)

	// Gated DeltaNet. ShortConv turns u [n, ConvDim] into silu(conv(u)); GatedDelta runs the
	// recurrence on its output and keeps the tape. alpha and beta are the raw projections.
	ShortConv(dst, u Tensor, w Vector, d DeltaDims, segs []DeltaSeg)
	GatedDelta(dst, qkv, alpha, beta Tensor, a, dt Vector, d DeltaDims, segs []DeltaSeg)
	// DeltaCommit applies the pending rows of a segment's tape to its state.
	DeltaCommit(d DeltaDims, seg DeltaSeg)

	// Reductions that leave the device small.
	ArgMax(ids Ints, x Tensor)
	TopK(ids Ints, logp Tensor, x Tensor, k int) // per row: k best ids, descending, with log-softmax values; overwrites x
}
