// Package backend is the contract between models and the devices that run them.
//
// A model's forward pass is Go code that calls the operations of a Backend in
// order. A backend knows kernels and memory, never model names or files. Three properties
// keep the contract fit for a GPU as well as for the CPU:
//
//   - Activations live in device buffers behind Tensor views; the host sees them
//     only through Read, so a step can run asynchronously until then.
//   - Everything that changes between two steps of the same shape (token ids, positions, page tables,
//     visible ranges, which sequences take part) is set by SetInts and the step's Plan, never as
//     an argument of an operation. A device uploads the plan once and keeps it at fixed addresses,
//     so that the operations of a step can be recorded and replayed.
//   - Weights are bound once; a CPU keeps the mapped bytes, a GPU copies.
//
// A backend is driven by one goroutine at a time. Its operations fix the order of every
// floating-point reduction independently of the batch: the result of a row has the same bits
// whatever other rows are computed with it. Package backendtest checks all of this for any device.
package backend

import (
	"errors"
	"fmt"
	"time"

	"strobe/internal/quant"
)

// ErrNoMemory is in the errors of devices that have too little memory left. Such a device can be used on.
var ErrNoMemory = errors.New("out of memory")

// Buffer is device memory for float32 values.
type Buffer interface {
	Len() int // in values
}

// Ints is device memory for int32 values.
type Ints interface {
	Len() int
	First(n int) Ints // the first n of them
}

// Tensor is a view of rows in a buffer: row r holds Cols values from Off+r*Stride.
type Tensor struct {
	Buf        Buffer
	Off        int
	Rows, Cols int
	Stride     int
}

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

// Matrix is the stored form of a weight: a matrix of Rows outputs and Cols inputs, or a stack of
// Experts such matrices. Data holds the rows of all experts one after the other in the format of Type.
type Matrix struct {
	Name       string // for errors
	Type       quant.Type
	Rows, Cols int
	Experts    int // 1 for a plain matrix
	Data       []byte
	Scale      []float32 // of the product: none, one, or one per expert
	Halves     bool      // products may round activations to halves; only rows of products with such matrices agree
	Forget     func()    // if set, called when the device has a copy of Data, which need not stay in memory then
}

// Weight is a Matrix bound to a device. Its values multiply activations: y = W x, one output per row.
type Weight interface {
	Rows() int    // outputs (of one expert)
	Cols() int    // inputs
	Experts() int // 1 for a plain matrix
	Type() quant.Type
	Bytes() int // read by a product with all experts
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

// Activation is the non-linearity of a feed-forward layer.
type Activation int

// The activations.
const (
	SiLU      Activation = iota
	GELU                 // tanh form
	GELUErf              // x/2 * (1 + erf(x/sqrt(2)))
	QuickGELU            // x * sigmoid(1.702 x)
	// ClampedSwiGLU is that of gpt-oss, for Gated alone: QuickGELU(min(gate, 7)) * (1 + up), with up between -7 and 7.
	ClampedSwiGLU
)

// AttnParams describes one attention operation.
type AttnParams struct {
	Heads, KVHeads int
	Scale          float32
	Sinks          Vector // optional extra logit per head in the softmax denominator
	Used           int    // heads are zero from this value on, and so are results, or left as they were; 0: none is
}

// KVDims is the size and the stored types of one layer's keys and values, one of quant.CacheTypes each. Operations that
// write and read them rotate them where the types need it; no other code does.
type KVDims struct {
	Heads, KeyDim, ValueDim int
	Key, Value              quant.Type
}

// Check says why no device can keep layer i of a pool.
func (d KVDims) Check(i int) error {
	for _, part := range []struct {
		what string
		t    quant.Type
		dim  int
	}{{"keys", d.Key, d.KeyDim}, {"values", d.Value, d.ValueDim}} {
		if !part.t.Caches() {
			return fmt.Errorf("%s cannot be kept as %s", part.what, part.t)
		}
		if n := part.t.BlockLen(); part.dim <= 0 || part.dim%n != 0 {
			return fmt.Errorf("cache type %s needs heads of a multiple of %d; the %s of layer %d have %d",
				part.t, n, part.what, i, part.dim)
		}
	}
	return nil
}

// KVLayout describes a pool of cache pages. A page holds Page tokens of every layer.
type KVLayout struct {
	Page   int
	Layers []KVDims
}

// RowMove says that row Src of page From is to become row Dst of page To.
type RowMove struct {
	To   int32
	Dst  int
	From int32
	Src  int
}

// KVPool is device memory for cache pages, identified by small integers.
type KVPool interface {
	PageBytes() int
	Alloc() (int32, error)
	Free(page int32)
	Copy(dst, src int32)
	Move(rows []RowMove)              // all layers, in the given order
	ReadPage(page int32, dst []byte)  // as the device keeps it
	WritePage(page int32, src []byte) // what ReadPage of such a pool gave
	Used() int                        // pages in use; may be called from any goroutine
}

// KVPlan says where the rows of a batch write their keys and values and what they see.
// Slots count tokens of a sequence; slot s lives in page Tables[seg][s/Page].
type KVPlan struct {
	Pool   KVPool
	Tables [][]int32 // per segment
	Seg    []int32   // per row: its segment; rows of a segment follow each other
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

// StateValues is the size of one layer's recurrent state and convolution inputs.
func (d DeltaDims) StateValues() int {
	return d.VHeads*d.VDim*d.KDim + max(0, d.Kernel-1)*d.ConvDim()
}

// StatePool is device memory for the recurrent layers of sequences, identified by small integers.
// A slot holds, for every layer, the state and the newest inputs of the convolution at the last token that
// was applied, and a tape: what it takes to apply the rows of the last pass.
type StatePool interface {
	Alloc() (int32, error) // a slot that has seen no token
	Free(slot int32)
	Clear(slot int32)
	Copy(dst, src int32)                  // state, not the tape
	Reserve(slot int32, rows int) error   // room on the tape for a pass over rows; its contents stay
	Release(slot int32)                   // frees the tape
	Keep(slot int32, path []int32)        // row path[i] of the tape becomes row i, for all i in ascending order
	Settle(slot int32, pending int)       // applies the first pending rows of the tape
	Read(slot int32, layer int) []float32 // StateValues values, as the device keeps them
	Write(slot int32, layer int, v []float32)
}

// DeltaSeg is the part of a batch that belongs to one sequence, and that sequence's recurrent memory. Its
// state is at the last committed token except for the first Pending rows of the tape, which are accepted but
// not yet applied: the pass applies them on its way through the state.
type DeltaSeg struct {
	Row, N  int     // rows of the batch
	Parents []int32 // tree: parent row inside the segment or -1; nil for a chain
	Prompt  bool    // the rows are certain to be accepted: advance the state instead of taping them
	Slot    int32   // in the plan's StatePool
	Pending int
}

// Plan is what the operations of one step need to know of the sequences. Package cache makes it.
type Plan struct {
	KV    []KVPlan
	State StatePool  // nil without recurrent layers
	Delta []DeltaSeg // one per segment of the batch, in order of rows
}

// Backend is a device.
type Backend interface {
	Name() string
	Close() error

	// Memory. Allocations may fail; the device can be used on.
	Alloc(rows, cols int) (Tensor, error) // zeroed
	Free(t Tensor)                        // of the whole buffer, after the operations so far; a zero t is fine
	AllocInts(n int) (Ints, error)
	SetInts(dst Ints, v []int32)
	Ints(v Ints) []int32 // waits for the device; the slice is valid until the next operation
	NewKVPool(l KVLayout) (KVPool, error)
	NewStatePool(d DeltaDims, layers int) (StatePool, error)
	WeightBytes(m Matrix) int // memory that Weight would take on the device
	// Weight binds a matrix, whose bytes must stay readable while it is used. A device may
	// still be copying when it returns; Sync waits for that and reports what failed.
	Weight(m Matrix) (Weight, error)
	Vector(v []float32) (Vector, error)
	Read(t Tensor) []float32 // waits for the device; valid until the next operation on t
	Write(t Tensor, v []float32)

	// BeginStep and EndStep enclose operations that a device may record, and replay as a whole when the same operations
	// are issued again. The plan may be nil for operations that need none; it must not change until EndStep returns. A
	// pass may take several steps, with the same plan in each; the next pass has its own plan. A step that has begun
	// and not ended is dropped at the next BeginStep. Inside a step the host frees, reads and writes nothing (except
	// SetInts), and copies or moves no page or slot of a pool. EndStep returns an error if the step could not begin (an
	// invalid plan, no memory), and the name of the step for Replayer.Repeat, 0 for none.
	BeginStep(p *Plan)
	EndStep() (name int, err error)

	// Sync waits until all operations are done, and reports the first failure of the device since
	// it was opened. Operations return no errors: after a failure their results are undefined.
	// To time a pass, call Sync before reading the clock.
	Sync() error

	// Dense operations. Rows are tokens, or tokens x heads.
	Embed(dst Tensor, w Weight, ids Ints, scale float32) // a negative id stands for row 0
	MatMul(x Tensor, ps ...Product)
	RMSNorm(dst, x Tensor, w Vector, eps float32) // w may be nil
	// LayerNorm subtracts a row's mean, divides by its standard deviation, multiplies by w and adds bias.
	LayerNorm(dst, x Tensor, w, bias Vector, eps float32)
	Add(dst, a, b Tensor)
	AddBias(x Tensor, bias Vector)
	Scale(dst, a Tensor, s float32)
	Copy(dst, src Tensor)
	Gather(dst, src Tensor, rows Ints)
	Activate(dst, x Tensor, act Activation)     // act(x)
	Gated(dst, gate, up Tensor, act Activation) // act(gate) * up; ClampedSwiGLU bounds both
	SigmoidGate(dst, x, gate Tensor)            // x * sigmoid(gate)
	AddGated(dst, x, gate Tensor)               // dst += sigmoid(gate[row]) * x, gate has one column
	Softcap(x Tensor, c float32)
	Clamp(dst, x Tensor, least, most float32) // NaN stays NaN
	Angles(cos, sin Tensor, pos Ints, inv Vector, mscale float32)
	RoPE(x Tensor, heads int, cos, sin Tensor) // x: tokens*heads rows; rotates the first 2*cos.Cols columns

	// BlockConv mixes each row with the rows before it in its block, index[r] of them:
	// dst[r][c] = sum over taps t <= index[r] of (base[t][c] + dyn[r][t][c/group]) * x[r-t][c].
	// base is [taps][x.Cols], a row of dyn [taps][groups]. dst must not be x.
	BlockConv(dst, x, dyn Tensor, base Vector, index Ints)

	// Attention over plan KV[group] of the step. Rows of k, v and q are tokens with their heads side by side.
	KVWrite(group, layer int, k, v Tensor)
	Attention(dst, q Tensor, group, layer int, p AttnParams)

	// SparseAttention is Attention for plans in which some segments are chunks of prompts. A block of queries that is
	// partly in the plan is judged by that part. It reports false, and has done nothing, if the device has no kernels for
	// these blocks, types and rows, for example of layers with a sliding window; call Attention then, which is slower and
	// exact. A device may always show the first block and the queries' own.
	SparseAttention(dst, q Tensor, group, layer int, p AttnParams, s *Sparse) bool
	// HasSparse reports whether the device has such kernels for blocks of so many tokens.
	HasSparse(block int) bool
	// Weigh raises dst[r][j] to the largest weight that any head of row r of q gives to row j of k. Rows of q and k are
	// tokens with their heads side by side; q are the last ones of k, and each sees itself and what is before it.
	Weigh(dst, q, k Tensor, p AttnParams)

	// Mixture of experts. Route chooses the used best experts of each row, best first, and softmaxes their logits, times
	// scale; it may overwrite logits.
	Route(ids Ints, weights, logits Tensor, used int, scale float32)
	// row t*used+j of Y = W[ids[t*used+j]] x; x has tokens or tokens*used rows
	ExpertMatMul(x Tensor, ids Ints, used int, ps ...Product)
	// row r of x += bias[ids[r]]; bias has a row of x.Cols values for each expert
	ExpertBias(x Tensor, ids Ints, bias Vector)
	ExpertSum(dst, y, weights Tensor, ids Ints, used int, scale Vector)

	// Gated DeltaNet over the step's Delta segments. ShortConv turns u [n, ConvDim] into silu(conv(u)); GatedDelta runs
	// the recurrence on its output and keeps the tape. alpha and beta are the raw projections.
	ShortConv(dst, u Tensor, w Vector, layer int)
	GatedDelta(dst, qkv, alpha, beta Tensor, a, dt Vector, layer int)

	// Reductions that leave the device small. Equal values go to the lower id. NaN is never chosen: where a row has no
	// number (left), the id is -1.
	ArgMax(ids Ints, x Tensor)
	// per row: k best ids, descending, with log-softmax values; may overwrite x
	TopK(ids Ints, logp Tensor, x Tensor, k int)
	// Candidates writes the largest values of every row to dst, CandidateInts for a row, and with total the row's weight:
	// a sampler needs these instead of the row. Their number is up to the device, within the limits of Candidates.
	Candidates(dst Ints, x Tensor, total bool)
}

// Replayer is a device that runs recorded steps again.
type Replayer interface {
	// Repeat runs a step again by its name: the same operations on the same memory with another plan, and with the
	// integers that its calls of SetInts would get now, in their order; missing ones at their ends are zero. It saves
	// going through a pass operation by operation. It reports false, and has done nothing, if the device no longer
	// knows the step, for example because memory that it uses was freed.
	Repeat(name int, p *Plan, ints ...[]int32) (bool, error)
	// Pad is the number of rows to give a pass over n tokens, so that the device has few different steps to record. The
	// rows of a step beyond those of its plan are padding: they are computed from undefined values, and nothing of them
	// is kept. Choosing experts for them would cost time, so passes with experts are not padded.
	Pad(n int) int
}

// Pad is the number of rows to give a pass over n tokens on b.
func Pad(b Backend, n int) int {
	if r, ok := b.(Replayer); ok {
		return r.Pad(n)
	}
	return n
}

// Repeat runs a step of b again by its name. It reports false if b cannot.
func Repeat(b Backend, name int, p *Plan, ints ...[]int32) (bool, error) {
	if r, ok := b.(Replayer); ok {
		return r.Repeat(name, p, ints...)
	}
	return false, nil
}

// Counted is a device with memory of its own. What a model takes of it can be counted before the model is loaded.
type Counted interface {
	// Counting returns a device of the same kind that computes nothing and has endless memory, and a function that says
	// how much of it is in use. Weights are bound there without their values.
	Counting() (b Backend, used func() int, err error)
}

// Compiler is a device that compiles kernels when they are first needed.
type Compiler interface {
	// Compiling is the time spent compiling since the device was opened.
	Compiling() time.Duration
	// Rehearse calls passes, whose steps do not run, and compiles the kernels that they need. Their results are
	// undefined.
	Rehearse(passes func() error) error
}

// HeadPadder is a device whose attention is faster with heads of some sizes.
type HeadPadder interface {
	// PadHead is the size to pad heads of dim values to, with zeros.
	PadHead(dim int) int
}

// PadHead is the size to pad heads of dim values to for attention on b.
func PadHead(b Backend, dim int) int {
	if p, ok := b.(HeadPadder); ok {
		return p.PadHead(dim)
	}
	return dim
}

// Parker is a device whose weights can leave it for a while.
type Parker interface {
	// Park frees the memory of weights; those that are parked already stay parked. A parked weight must not be used
	// before Unpark.
	Park(ws ...Weight)
	// Unpark loads a weight again from the matrix it was bound with. If it fails the weight is still parked.
	Unpark(w Weight, m Matrix) error
}
