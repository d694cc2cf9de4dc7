package gpu

import (
	"fmt"
	"time"

	"strobe/internal/backend"
	"strobe/internal/quant"
	softmax "strobe/internal/weight"
)

// Backend runs models on a device. Operations append to a list; EndStep turns the list into kernel launches, or replays
// those it recorded for an equal list.
type Backend struct {
	d             Driver
	props         Props
	handles       map[Kernel]Handle // of kernels that the driver has found
	products      *Products
	small         *Small
	floats        *Floats
	attn          map[attentionKey]*Attention
	err           error // first failure of the host's side since the last Sync
	step          step
	lists         []*list
	names         int // of lists so far
	turn          int // counts steps, to forget the recordings used least recently
	spare         scratch
	counter       Addr                   // zero between launches
	weightTable   Addr                   // weight.Table
	blockAddr     Addr                   // what changes from step to step, on the device
	blockHost     []byte                 // and here
	tables        []*KVTables            // of the step in progress
	unpacked      Addr                   // pages of one layer as halves,
	unpackedBytes int                    // their size,
	refused       int                    // and one that there was no memory for; 0: none
	profile       map[string]*KernelTime // of steps that are being profiled; nil otherwise
	rehearses     bool                   // steps do not run;
	rehearsed     []Call                 // what they would have launched
	loading       LoadTimes              // of all weights so far
}

var (
	_ backend.Backend  = (*Backend)(nil)
	_ backend.Parker   = (*Backend)(nil)
	_ backend.Compiler = (*Backend)(nil)
	_ backend.Replayer = (*Backend)(nil)
	_ backend.Counted  = (*Backend)(nil)
)

// New returns a backend on a device, which it closes at the end.
func New(d Driver) (*Backend, error) {
	b := &Backend{d: d, props: d.Props(), handles: map[Kernel]Handle{}, attn: map[attentionKey]*Attention{}}
	b.spare.b = b
	b.products, b.small, b.floats = NewProducts(b.props), NewSmall(b.props), NewFloats(b.props)
	var err error
	if b.counter, err = d.Alloc(4 * RouterCounters); err == nil {
		b.weightTable, err = d.Alloc(4 * len(softmax.Table))
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	d.Fill(b.counter, 0, 4*RouterCounters)
	d.Upload(b.weightTable, bytesOf(softmax.Table[:]))
	return b, nil
}

// Name describes the device.
func (b *Backend) Name() string { return b.props.Name }

// Memory is how much of the device's memory is free, and how much there is.
func (b *Backend) Memory() (free, total int) { return b.d.Free() }

// Close gives the device back.
func (b *Backend) Close() error {
	b.drop(func(*recorded) bool { return true })
	return b.d.Close()
}

// fail keeps the first failure; Sync reports it. What the device itself could not do is remembered by its driver.
func (b *Backend) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Sync waits for the device.
func (b *Backend) Sync() error {
	err := b.err
	b.err = nil
	if lost := b.d.Wait(); lost != nil {
		return lost
	}
	return err
}

// Compiling is how long kernels were compiled. Drivers keep what they compiled, so it is little from the
// second start of the program on.
func (b *Backend) Compiling() time.Duration { return b.d.Compiling() }

// emit makes launches whose kernels are compiled.
func (b *Backend) emit(calls []Call) ([]Launch, error) {
	ls, err := emit(b.d, b.handles, calls)
	if p, ok := b.d.(Preparer); ok && err == nil {
		err = p.Prepare(ls)
	}
	return ls, err
}

// launch launches calls outside of steps.
func (b *Backend) launch(calls ...Call) {
	ls, err := b.emit(calls)
	if err != nil {
		b.fail(err)
		return
	}
	for i := range ls {
		b.d.Launch(&ls[i])
	}
}

// Rehearse calls passes, whose steps do not run, and compiles the kernels that they need, all at once.
func (b *Backend) Rehearse(passes func() error) error {
	b.rehearses = true
	defer func() { b.rehearses, b.rehearsed = false, nil }()
	if err := passes(); err != nil {
		return err
	}
	_, err := b.emit(b.rehearsed)
	return err
}

type buffer struct {
	addr Addr
	n    int
}

func (m *buffer) Len() int { return m.n }

type ints struct {
	addr Addr
	n    int
	host []int32 // what Ints has read
}

func (v *ints) Len() int { return v.n }

func (v *ints) First(n int) backend.Ints {
	if v.host == nil {
		v.host = make([]int32, v.n)
	}
	return &ints{addr: v.addr, n: n, host: v.host[:n]}
}

type vector struct {
	addr Addr
	n    int
}

func (v *vector) Len() int { return v.n }

// Alloc returns zeroed memory.
func (b *Backend) Alloc(rows, cols int) (backend.Tensor, error) {
	n := rows * cols
	a, err := b.d.Alloc(max(4, 4*n))
	if err != nil {
		return backend.Tensor{}, err
	}
	b.d.Fill(a, 0, 4*n)
	return backend.Tensor{Buf: &buffer{a, n}, Rows: rows, Cols: cols, Stride: cols}, nil
}

// Free gives memory back. Recordings that use it are forgotten: its addresses may come back for something else.
func (b *Backend) Free(t backend.Tensor) {
	if m, ok := t.Buf.(*buffer); ok {
		b.forget(span{m.addr, 4 * m.n})
		b.d.Release(m.addr)
	}
}

// AllocInts returns n zeroed integers.
func (b *Backend) AllocInts(n int) (backend.Ints, error) {
	a, err := b.d.Alloc(max(4, 4*n))
	if err != nil {
		return nil, err
	}
	b.d.Fill(a, 0, 4*n)
	return &ints{addr: a, n: n}, nil
}

// SetInts copies v to the start of dst; inside a step it does so when the step runs.
func (b *Backend) SetInts(dst backend.Ints, v []int32) {
	if len(v) == 0 {
		return
	}
	if d := dst.(*ints); b.step.open {
		b.step.set(d.addr, v)
	} else {
		b.d.Upload(d.addr, bytesOf(v))
	}
}

// Ints returns the values of v.
func (b *Backend) Ints(v backend.Ints) []int32 {
	m := v.(*ints)
	if m.host == nil {
		m.host = make([]int32, m.n)
	}
	if err := b.d.Download(bytesOf(m.host), m.addr); err != nil {
		b.fail(err)
	}
	return m.host
}

// Vector binds a parameter vector.
func (b *Backend) Vector(v []float32) (backend.Vector, error) {
	a, err := b.d.Alloc(max(4, 4*len(v)))
	if err != nil {
		return nil, err
	}
	b.d.Upload(a, bytesOf(v))
	return &vector{a, len(v)}, nil
}

// weight is a matrix in device memory.
type weight struct {
	WeightLayout
	name   string
	addr   Addr    // 0 while parked
	scale  float32 // of all products
	scales Addr    // of the products with each expert; 0 for none
	blocks int     // how many blocks a product is cut over; fixed at the first use
	halves bool    // tensor cores multiply it with halves
}

func (w *weight) Rows() int        { return w.WeightLayout.Rows }
func (w *weight) Cols() int        { return w.WeightLayout.Cols }
func (w *weight) Experts() int     { return w.WeightLayout.Experts }
func (w *weight) Type() quant.Type { return w.WeightLayout.Type }
func (w *weight) Bytes() int       { return w.WeightLayout.Bytes() }

// floats is the matrix for products with floats.
func (w *weight) floats() FloatMatrix {
	t := map[Format]quant.Type{KeepF32: quant.F32, KeepF16: quant.F16, KeepBF16: quant.BF16}[w.Format]
	return FloatMatrix{Type: t, W: w.addr, Rows: w.Rows(), Cols: w.Cols(), Scale: w.scale, Scales: w.scales}
}

// layoutOf chooses the layout of a matrix, and whether tensor cores multiply it with halves.
func (b *Backend) layoutOf(m backend.Matrix) (l WeightLayout, halves bool, err error) {
	l, err = LayoutOf(m.Type, m.Rows, m.Cols, m.Experts, len(m.Data))
	if halves = m.Halves && !b.props.NoTensorCores && m.Experts == 1 && m.Cols%8 == 0 &&
		(l.Format == KeepF16 || l.Format == KeepBF16); halves {
		l.Format = KeepF16 // has the digits of BF16, and the exponents of all weights that matter
	}
	return l, halves, err
}

// WeightBytes is the memory a matrix takes on the device.
func (b *Backend) WeightBytes(m backend.Matrix) int {
	l, _, err := b.layoutOf(m)
	if err != nil {
		return 0
	}
	return l.Bytes()
}

// Weight copies a matrix to the device, in the order its kernels like.
func (b *Backend) Weight(m backend.Matrix) (backend.Weight, error) {
	l, halves, err := b.layoutOf(m)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", m.Name, err)
	}
	w := &weight{WeightLayout: l, name: m.Name, scale: 1, halves: halves}
	if len(m.Scale) == 1 {
		w.scale = m.Scale[0]
	} else if len(m.Scale) > 1 {
		v, err := b.Vector(m.Scale)
		if err != nil {
			return nil, err
		}
		w.scales = v.(*vector).addr
	}
	if err := b.Unpark(w, m); err != nil {
		return nil, err
	}
	return w, nil
}

// Park gives the memory of weights back. Recordings that use them are forgotten.
func (b *Backend) Park(ws ...backend.Weight) {
	var gone []span
	for _, w := range ws {
		if w := w.(*weight); w.addr != 0 {
			gone = append(gone, span{w.addr, w.Bytes()})
			w.addr = 0
		}
	}
	b.forget(gone...)
	for _, s := range gone {
		b.d.Release(s.at)
	}
}

// Unpark brings the values of a weight to the device. Where products are cut stays as it was, so that they have the
// same bits.
func (b *Backend) Unpark(w backend.Weight, m backend.Matrix) (err error) {
	x := w.(*weight)
	if x.addr, err = b.d.Alloc(x.Bytes()); err != nil {
		return fmt.Errorf("tensor %q: %w", x.name, err)
	}
	if _, counts := b.d.(*Counter); counts {
		return nil // its weights have no values
	}
	took := x.Upload(b.d, x.addr, m.Data)
	b.loading.Repack += took.Repack
	b.loading.Upload += took.Upload
	if m.Forget != nil {
		m.Forget()
	}
	return nil
}

// view is a tensor as launches see it.
type view struct {
	addr               Addr
	rows, cols, stride int32
	_                  int32
}

func viewOf(t backend.Tensor) view {
	m, ok := t.Buf.(*buffer)
	if !ok {
		return view{}
	}
	return view{addr: m.addr + Addr(4*t.Off), rows: int32(t.Rows), cols: int32(t.Cols), stride: int32(t.Stride)}
}

// whole reports whether the rows follow each other without gaps.
func (v view) whole() bool { return v.stride == v.cols || v.rows == 1 }

// bytes is the range of memory from the view's first value to its last.
func (v view) bytes() (from, to Addr) {
	if v.rows == 0 {
		return v.addr, v.addr
	}
	return v.addr, v.addr + 4*Addr((int(v.rows)-1)*int(v.stride)+int(v.cols))
}

func (v view) in() In   { return Rows(v.addr, int(v.stride)) }
func (v view) out() Out { return Out{v.addr, int(v.stride)} }

func (v view) overlaps(o view) bool {
	a0, a1 := v.bytes()
	b0, b1 := o.bytes()
	return a0 < b1 && b0 < a1
}

func vectorOf(v backend.Vector) Addr {
	if m, ok := v.(*vector); ok {
		return m.addr
	}
	return 0
}

// Read returns the values of t.
func (b *Backend) Read(t backend.Tensor) []float32 {
	v := viewOf(t)
	from, to := v.bytes()
	all := make([]float32, (to-from)/4)
	if err := b.d.Download(bytesOf(all), from); err != nil {
		b.fail(err)
	}
	if v.whole() {
		return all
	}
	out := make([]float32, 0, t.Rows*t.Cols)
	for r := range t.Rows {
		out = append(out, all[r*t.Stride:][:t.Cols]...)
	}
	return out
}

// Write copies v to the rows of t.
func (b *Backend) Write(t backend.Tensor, v []float32) {
	d := viewOf(t)
	if t.Stride == t.Cols || t.Rows == 1 {
		b.d.Upload(d.addr, bytesOf(v[:t.Rows*t.Cols]))
		return
	}
	for r := range t.Rows {
		b.d.Upload(d.addr+Addr(4*r*t.Stride), bytesOf(v[r*t.Cols:][:t.Cols]))
	}
}
