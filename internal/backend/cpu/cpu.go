// Package cpu runs models on the processor: a persistent pool of workers, weights read
// in place from the mapped file, and the kernels of backend/cpu/kernel.
//
// New starts the workers; Close stops them. A Backend is used by one goroutine at a time.
package cpu

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/backend/cpu/kernel/vec"
	"strobe/internal/platform"
	"strobe/internal/quant"
)

// Options configures a Backend. The zero value uses every core.
type Options struct {
	Threads int // workers including the caller; 0 means one per core, of the fast ones where some are slow
}

// Backend is the CPU device.
type Backend struct {
	pool    *pool
	spare   int // bytes of memory for copies of weights; negative before it is known
	workers []worker
	rounded bool      // whether the current matrix product needs rows
	rows    qmat.Rows // its activations, rounded to int8
	acts    qmat.Acts // the same, arranged for the kernels
	tiles   []tile    // of the current attention operation
	experts expertScratch
	delta   deltaScratch
	plan    *backend.Plan // of the current step
	segs    []deltaSeg    // of the current recurrent layer
	chosen  []float32     // see Candidates
}

// worker is the scratch memory of one worker.
type worker struct {
	mul                   *qmat.Scratch
	scores, queries, sums []float32 // of attention
	soft                  []softmax
	_                     [64]byte
}

var _ backend.Backend = (*Backend)(nil)

// New returns a CPU backend.
func New(opt Options) *Backend {
	n := opt.Threads
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
		if fast := platform.FastCores(); fast > 0 {
			n = min(n, fast)
		}
	}
	b := &Backend{pool: newPool(n), workers: make([]worker, n), spare: -1}
	for i := range b.workers {
		b.workers[i].mul = qmat.NewScratch()
	}
	return b
}

// Name describes the device.
func (b *Backend) Name() string {
	return fmt.Sprintf("cpu (%s, %d threads)", kernel.Current(), b.pool.n)
}

// Threads returns the number of workers.
func (b *Backend) Threads() int { return b.pool.n }

// Close stops the workers.
func (b *Backend) Close() error {
	b.pool.close()
	return nil
}

type buffer []float32

func (b buffer) Len() int { return len(b) }

type ints []int32

func (v ints) Len() int { return len(v) }

func (v ints) First(n int) backend.Ints { return v[:n] }

type vector []float32

func (v vector) Len() int { return len(v) }

// Alloc returns zeroed memory that starts on a cache line.
func (b *Backend) Alloc(rows, cols int) (backend.Tensor, error) {
	n := rows * cols
	m := make([]float32, n+16)
	skip := 0
	if r := uintptr(unsafe.Pointer(&m[0])) % 64; r != 0 {
		skip = int(64-r) / 4
	}
	return backend.Tensor{Buf: buffer(m[skip : skip+n : skip+n]), Rows: rows, Cols: cols, Stride: cols}, nil
}

// Free leaves the memory to the garbage collector.
func (b *Backend) Free(backend.Tensor) {}

// AllocInts returns n zeroed integers.
func (b *Backend) AllocInts(n int) (backend.Ints, error) { return make(ints, n), nil }

// SetInts copies v to the start of dst.
func (b *Backend) SetInts(dst backend.Ints, v []int32) { copy(dst.(ints), v) }

// Ints returns the values of v.
func (b *Backend) Ints(v backend.Ints) []int32 { return v.(ints) }

// BeginStep keeps the plan for the operations that need it; there is nothing to record on a CPU.
func (b *Backend) BeginStep(p *backend.Plan) { b.plan = p }

// EndStep has nothing to start: operations are done when they return.
func (b *Backend) EndStep() (int, error) { return 0, nil }

// Sync has nothing to wait for.
func (b *Backend) Sync() error { return nil }

// f32 returns the memory of t from its first value on.
func f32(t backend.Tensor) []float32 { return t.Buf.(buffer)[t.Off:] }

// row returns row r of t.
func row(t backend.Tensor, r int) []float32 {
	o := t.Off + r*t.Stride
	return t.Buf.(buffer)[o : o+t.Cols : o+t.Cols]
}

// Read returns the values of t, which alias its memory when its rows are contiguous.
func (b *Backend) Read(t backend.Tensor) []float32 {
	if t.Stride == t.Cols || t.Rows == 1 {
		return f32(t)[:t.Rows*t.Cols]
	}
	out := make([]float32, 0, t.Rows*t.Cols)
	for r := range t.Rows {
		out = append(out, row(t, r)...)
	}
	return out
}

// Write copies v to the rows of t.
func (b *Backend) Write(t backend.Tensor, v []float32) {
	for r := range t.Rows {
		copy(row(t, r), v[r*t.Cols:][:t.Cols])
	}
}

// weight is a matrix in the mapped file.
type weight struct {
	typ        quant.Type
	data       []byte
	rows, cols int
	experts    int
	woven      []byte    // a copy for products, in another order; nil for none
	scale      []float32 // of the product: none, one, or one per expert
}

func (w *weight) Rows() int        { return w.rows }
func (w *weight) Cols() int        { return w.cols }
func (w *weight) Experts() int     { return w.experts }
func (w *weight) Type() quant.Type { return w.typ }
func (w *weight) Bytes() int       { return len(w.data) }

// expert returns the matrix of expert e.
func (w *weight) expert(e int) []byte {
	n := len(w.data) / w.experts
	return w.data[e*n:][:n]
}

func (w *weight) scaleOf(e int) float32 {
	switch len(w.scale) {
	case 0:
		return 1
	case 1:
		return w.scale[0]
	}
	return w.scale[e]
}

// WeightBytes is what a copy of a matrix in another order would take; most weights stay in the mapped file.
func (b *Backend) WeightBytes(backend.Matrix) int { return 0 }

// Weight binds a matrix, whose bytes stay where they are.
func (b *Backend) Weight(m backend.Matrix) (backend.Weight, error) {
	w := &weight{typ: m.Type, data: m.Data, cols: m.Cols, rows: m.Rows, experts: m.Experts, scale: m.Scale}
	if isFloat(m.Type) {
		return w, nil
	}
	if !qmat.Supported(m.Type) {
		return nil, fmt.Errorf("tensor %q: weights of type %s are not supported", m.Name, m.Type)
	}
	if w.cols < exactCols {
		if err := w.expand(); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", m.Name, err)
		}
		return w, nil
	}
	q := w.matrix(0)
	if err := q.Validate(); err != nil {
		return nil, fmt.Errorf("tensor %q: %w", m.Name, err)
	}
	b.weave(w, m.Forget)
	return w, nil
}

// exactCols is the row length below which quantised weights are multiplied in float32. Rounding
// activations to int8 is harmless in sums over many values; short rows neither hide the error
// nor cost enough to matter.
const exactCols = 512

// expand replaces quantised values by float32 ones.
func (w *weight) expand() error {
	n := w.rows * w.experts * w.cols
	v := make([]float32, n)
	if err := quant.Dequantize(w.typ, v, w.data); err != nil {
		return err
	}
	w.typ, w.data = quant.F32, unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*n)
	return nil
}

func (w *weight) matrix(e int) qmat.Matrix {
	return qmat.Matrix{Type: w.typ, Rows: w.rows, K: w.cols, Data: w.expert(e), Woven: w.woven}
}

func isFloat(t quant.Type) bool { return t == quant.F32 || t == quant.F16 || t == quant.BF16 }

// Vector binds a parameter vector.
func (b *Backend) Vector(v []float32) (backend.Vector, error) { return vector(v), nil }

func values(v backend.Vector) []float32 {
	if v == nil {
		return nil
	}
	return v.(vector)
}

// smallWork is the number of values below which sharing an elementwise operation among
// workers costs more than it saves.
const smallWork = 1 << 14

// rowsOf calls fn for rows [0, n), in parallel when n rows of cols values are worth it.
func (b *Backend) rowsOf(n, cols int, fn func(r int)) {
	if b.pool.n == 1 || n == 1 || n*cols < smallWork {
		for r := range n {
			fn(r)
		}
		return
	}
	per := max(1, min(smallWork/2/max(cols, 1), (n+2*b.pool.n-1)/(2*b.pool.n)))
	b.pool.each((n+per-1)/per, func(_, t int) {
		for r := t * per; r < min(n, (t+1)*per); r++ {
			fn(r)
		}
	})
}

// Embed looks up rows of the embedding matrix.
func (b *Backend) Embed(dst backend.Tensor, w backend.Weight, ids backend.Ints, scale float32) {
	m := w.(*weight)
	rb := m.typ.RowBytes(m.cols)
	id := ids.(ints)
	scale *= m.scaleOf(0)
	b.rowsOf(dst.Rows, dst.Cols, func(r int) {
		out, i := row(dst, r), max(0, int(id[r]))
		var data []byte
		if m.woven == nil {
			data = m.data[i*rb:][:rb]
		} else { // also the output matrix: reading the file would bring its pages back into memory
			var room [4096]byte
			data = append(room[:0], make([]byte, rb)...)
			q := m.matrix(0)
			q.WovenRow(data, i)
			runtime.KeepAlive(m) // with it goes the memory of its copy
		}
		// The type was checked when the weight was bound.
		_ = vec.DequantRow(out, m.typ, data)
		if scale != 1 {
			vec.Scale(out, out, scale)
		}
	})
}

// AddBias adds a vector to every row.
func (b *Backend) AddBias(x backend.Tensor, bias backend.Vector) {
	v := values(bias)
	b.rowsOf(x.Rows, x.Cols, func(r int) { vec.Add(row(x, r), row(x, r), v) })
}

// RMSNorm normalises every row.
func (b *Backend) RMSNorm(dst, x backend.Tensor, w backend.Vector, eps float32) {
	v := values(w)
	b.rowsOf(x.Rows, x.Cols, func(r int) { vec.RMSNorm(row(dst, r), row(x, r), v, eps) })
}

// LayerNorm normalises every row to mean 0 and variance 1, then scales and shifts it.
func (b *Backend) LayerNorm(dst, x backend.Tensor, w, bias backend.Vector, eps float32) {
	v, s := values(w), values(bias)
	b.rowsOf(x.Rows, x.Cols, func(r int) { vec.LayerNorm(row(dst, r), row(x, r), v, s, eps) })
}

// Add adds row by row.
func (b *Backend) Add(dst, x, y backend.Tensor) {
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { vec.Add(row(dst, r), row(x, r), row(y, r)) })
}

// Scale multiplies every value by s.
func (b *Backend) Scale(dst, x backend.Tensor, s float32) {
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { vec.Scale(row(dst, r), row(x, r), s) })
}

// Copy copies row by row.
func (b *Backend) Copy(dst, src backend.Tensor) {
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { copy(row(dst, r), row(src, r)) })
}

// Gather copies the rows of src that rows names.
func (b *Backend) Gather(dst, src backend.Tensor, rows backend.Ints) {
	idx := rows.(ints)
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { copy(row(dst, r), row(src, int(idx[r]))) })
}

// Activate computes act(x).
func (b *Backend) Activate(dst, x backend.Tensor, act backend.Activation) {
	f := [...]func(dst, x []float32){vec.Silu, vec.Gelu, vec.GeluErf, vec.QuickGelu}[act]
	b.rowsOf(dst.Rows, 8*dst.Cols, func(r int) { f(row(dst, r), row(x, r)) })
}

// Gated computes act(gate) * up.
func (b *Backend) Gated(dst, gate, up backend.Tensor, act backend.Activation) {
	f := [...]func(dst, gate, up []float32){vec.SiluMul, vec.GeluMul, vec.GeluErfMul, vec.QuickGeluMul,
		vec.ClampedSwiGLU}[act]
	b.rowsOf(dst.Rows, 8*dst.Cols, func(r int) { f(row(dst, r), row(gate, r), row(up, r)) })
}

// SigmoidGate computes x * sigmoid(gate).
func (b *Backend) SigmoidGate(dst, x, gate backend.Tensor) {
	b.rowsOf(dst.Rows, 8*dst.Cols, func(r int) { vec.SigmoidMul(row(dst, r), row(x, r), row(gate, r)) })
}

// AddGated adds x scaled by the sigmoid of one gate value per row.
func (b *Backend) AddGated(dst, x, gate backend.Tensor) {
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { vec.AddGated(row(dst, r), row(gate, r)[0], row(x, r)) })
}

// Softcap bounds values smoothly to (-c, c).
func (b *Backend) Softcap(x backend.Tensor, c float32) {
	// Split long rows: one row of logits is as much work as many rows of activations.
	const part = 1 << 13
	parts := (x.Cols + part - 1) / part
	b.rowsOf(x.Rows*parts, part, func(i int) {
		v := row(x, i/parts)
		from := i % parts * part
		v = v[from:min(from+part, len(v))]
		vec.Softcap(v, v, c)
	})
}

// Clamp bounds values to [least, most].
func (b *Backend) Clamp(dst, x backend.Tensor, least, most float32) {
	b.rowsOf(dst.Rows, dst.Cols, func(r int) { vec.Clamp(row(dst, r), row(x, r), least, most) })
}

// Angles computes the cosines and sines of rotary embedding for every position.
func (b *Backend) Angles(cos, sin backend.Tensor, pos backend.Ints, inv backend.Vector, mscale float32) {
	p, f := pos.(ints), values(inv)
	b.rowsOf(cos.Rows, 32*cos.Cols, func(r int) {
		c, s := row(cos, r), row(sin, r)
		for i := range c {
			// In float64: at position 200,000 a float32 angle is off by a hundredth.
			sn, cs := math.Sincos(float64(p[r]) * float64(f[i]))
			c[i], s[i] = float32(cs)*mscale, float32(sn)*mscale
		}
	})
}

// RoPE rotates pairs (i, i+n) of every head.
func (b *Backend) RoPE(x backend.Tensor, heads int, cos, sin backend.Tensor) {
	b.rowsOf(x.Rows, x.Cols, func(r int) {
		vec.RoPE(row(x, r), x.Cols, 2*cos.Cols, row(cos, r/heads), row(sin, r/heads))
	})
}

// ArgMax finds the largest value of every row.
func (b *Backend) ArgMax(ids backend.Ints, x backend.Tensor) {
	id := ids.(ints)
	b.rowsOf(x.Rows, x.Cols, func(r int) { id[r] = int32(vec.ArgMax(row(x, r))) })
}

// TopK finds the k largest values of every row and their log-softmax.
func (b *Backend) TopK(ids backend.Ints, logp backend.Tensor, x backend.Tensor, k int) {
	id := ids.(ints)
	b.rowsOf(x.Rows, 4*x.Cols, func(r int) {
		v := row(x, r)
		top, val := id[r*k:][:k], row(logp, r)[:k]
		topK(top, val, v)
		lse := vec.LogSumExp(v)
		for i := range val {
			val[i] -= lse
		}
	})
}

// topK fills ids and vals with the largest values of v, descending, lowest id first among
// equals. NaN does not count; missing entries get id -1. A scan per value is faster than one
// scan that keeps a sorted list: it runs in vector registers.
func topK(ids []int32, vals, v []float32) {
	none := float32(math.Inf(-1))
	found := 0
	for ; found < len(ids); found++ {
		at := vec.ArgMax(v)
		if at < 0 || v[at] == none {
			break
		}
		ids[found], vals[found], v[at] = int32(at), v[at], none
	}
	// Only values of -Inf are left; those that were found look like them.
	at := 0
	for i := found; i < len(ids); i++ {
		for at < len(v) && (v[at] != none || slices.Contains(ids[:found], int32(at))) {
			at++
		}
		if ids[i], vals[i] = -1, none; at < len(v) {
			ids[i] = int32(at)
			at++
		}
	}
	for i, at := range ids[:found] {
		v[at] = vals[i]
	}
}
