package gpu

import (
	"fmt"

	"strobe/internal/backend"
)

// Delta chooses the kernels of delta.cu: Gated DeltaNet with the sizes of one model. Its methods append calls to
// a list.
type Delta struct {
	dims          backend.DeltaDims
	shape         deltaShape
	units         int
	exact         bool // there is a kernel for these sizes, if addresses are aligned
	keys          int  // of a head, with padding
	shared        int  // bytes of shared memory a block may have
	noTensorCores bool // see notensorcores.go
	whole         bool // a kernel can have a layer, see Whole
}

type deltaShape struct {
	kHeads, vHeads, kDim, vDim, taps, grouped, values, tapeRow int32
}

// The largest sizes that the kernels have registers for.
const (
	maxDeltaDim  = 256
	maxDeltaTaps = 8
)

// NewDelta returns the choices for a model's sizes.
func NewDelta(p Props, dims backend.DeltaDims) (*Delta, error) {
	switch {
	case dims.KDim < 1 || dims.KDim > maxDeltaDim || dims.VDim < 1 || dims.VDim > maxDeltaDim:
		return nil, fmt.Errorf("recurrent heads of %d keys and %d values: want 1 to %d", dims.KDim, dims.VDim,
			maxDeltaDim)
	case dims.Kernel < 1 || dims.Kernel > maxDeltaTaps:
		return nil, fmt.Errorf("short convolution over %d tokens: want 1 to %d", dims.Kernel, maxDeltaTaps)
	case dims.KHeads < 1 || dims.VHeads < 1 || dims.Grouped && dims.VHeads%dims.KHeads != 0:
		return nil, fmt.Errorf("%d recurrent value heads for %d key heads", dims.VHeads, dims.KHeads)
	}
	t := &Delta{dims: dims, units: p.Units, keys: 32, shared: p.SharedBlock, noTensorCores: p.NoTensorCores}
	for t.keys < dims.KDim {
		t.keys *= 2
	}
	t.exact = dims.KDim == 128 && dims.VDim%32 == 0
	t.shape = deltaShape{int32(dims.KHeads), int32(dims.VHeads), int32(dims.KDim), int32(dims.VDim),
		int32(dims.Kernel), asInt(dims.Grouped), int32(dims.StateValues()), int32(DeltaTapeRow(dims))}
	t.whole = t.noTensorCores && p.Threads >= wholeThreads && p.SharedBlock >= wholeShared && t.wide() &&
		dims.KDim == 128 && dims.VDim == 128 && dims.VHeads%2 == 0
	return t, nil
}

// DeltaTapeRow is the number of values that a tape has for a row and a layer: the input of the convolution, normalised
// keys, updates, decays.
func DeltaTapeRow(d backend.DeltaDims) int {
	return (d.ConvDim() + d.KHeads*d.KDim + d.VHeads*d.VDim + d.VHeads + 3) / 4 * 4
}

// DeltaCall is a recurrent layer of a step.
type DeltaCall struct {
	Table Addr // where the step's DeltaTables are
	Segs  int  // of DeltaRoom
	Rows  int  // of the batch
	Layer int  // of the recurrent ones

	U           In   // inputs of the convolution
	W           Addr // its weights, [channels][taps]
	QKV         Out  // its results
	Alpha, Beta In
	A, DT       Addr
	Out         Out
	Scratch     Addr // ScratchBytes
	Chains      bool // of DeltaRoom
}

// aligned reports whether the convolution can be read and written by fours.
func (c *DeltaCall) aligned() bool { return c.U.aligned() && c.QKV.aligned() && c.W%16 == 0 }

// ScratchBytes is the memory that a layer needs between its kernels.
func (t *Delta) ScratchBytes(rows int) int {
	return 4 * rows * (2*t.dims.VHeads + 2*t.dims.KHeads*t.dims.KDim)
}

// gates is where decays and betas lie in the scratch memory, behind queries and keys.
func (t *Delta) gates(c *DeltaCall) Addr {
	return c.Scratch + Addr(4*c.Rows*2*t.dims.KHeads*t.dims.KDim)
}

type convArgs struct {
	dst, gates, w, a, dt, table Addr
	u, alpha, beta              In
	rows, layer, ds, ready, run int32
	d                           deltaShape
	eps                         float32
}

type ruleArgs struct {
	out, qk, v, gates, table Addr
	u                        In
	rows, layer, os, qs, vs  int32
	tile, shifts             int32
	d                        deltaShape
}

func (t *Delta) conv(c *DeltaCall) convArgs {
	return convArgs{dst: c.QKV.P, gates: t.gates(c), w: c.W, a: c.A, dt: c.DT, table: c.Table, u: c.U, alpha: c.Alpha,
		beta: c.Beta,
		rows: int32(c.Rows), layer: int32(c.Layer), ds: int32(c.QKV.Stride), run: 1, d: t.shape, eps: t.dims.Eps}
}

// promptRows is the number of rows from which a warp of the convolution has several rows of a head, which reads inputs
// once and not once for every tap. With fewer rows all multiprocessors are wanted at once.
const promptRows = 64

// convLaunch launches the convolution; heads is how many parts a row's work has. The bits do not depend on the run.
func (t *Delta) convLaunch(ls []Call, kernel Kernel, a convArgs, heads int) []Call {
	const warps = 2 // of a block
	blocks := 6     // that fit a multiprocessor
	if kernel == kernelConv4 && a.rows >= promptRows {
		if t.noTensorCores {
			a.run = 8
		} else if t.dims.KDim == 128 && t.dims.VDim == 128 {
			kernel, a.run, blocks = kernelConvRuns, 4, 8
		}
	}
	jobs := int(a.rows+a.run-1) / int(a.run) * heads
	grid := min((jobs+warps-1)/warps, blocks*t.units)
	if t.noTensorCores && kernel == kernelConv4 { // a block has a head
		grid = min(jobs, maxGroups)
	}
	return append(ls, Call{kernel, &a, Config{Grid: [3]int{max(1, grid), 1, 1}, Threads: 32 * warps, Early: true}})
}

// wide reports whether lanes have four channels side by side, which is another order of sums.
func (t *Delta) wide() bool {
	return t.dims.KDim%128 == 0 && t.dims.VDim%128 == 0 && t.dims.Kernel == 4
}

// warps is for work that warps take one after the other.
func (t *Delta) warps(jobs int) Config {
	s := Small{units: t.units}
	return Config{Grid: s.flat(jobs*32, 128), Threads: 128, Early: true}
}

// ShortConv makes QKV of U, which is silu of the convolution, tapes the inputs and moves the newest ones up. It needs
// nothing of the call behind QKV.
func (t *Delta) ShortConv(ls []Call, c DeltaCall) []Call {
	kernel := kernelConv
	if t.wide() && c.aligned() { // the order does not matter yet: no sums
		kernel = kernelConv4
	}
	ls = t.convLaunch(ls, kernel, t.conv(&c), 2*t.dims.KHeads+t.dims.VHeads)
	return t.Shift(ls, c)
}

// GatedDelta makes Out of QKV as ShortConv left it.
func (t *Delta) GatedDelta(ls []Call, c DeltaCall) []Call {
	keys := Out{c.Scratch, 2 * t.dims.KHeads * t.dims.KDim}
	a := t.conv(&c)
	a.u, a.dst, a.ds = Rows(c.QKV.P, c.QKV.Stride), keys.P, int32(keys.Stride)
	kernel := kernelPrepare
	if t.wide() {
		kernel = kernelPrepare4
	}
	ls = append(ls, Call{kernel, &a, t.warps(c.Rows * (2*t.dims.KHeads + (t.dims.VHeads+31)/32))})
	kernelRule, rule := t.recur(&c, keys, false)
	return t.ruleLaunch(ls, kernelRule, rule, c.Segs, 1)
}

// Both is ShortConv and GatedDelta with one kernel less, and the same bits. Afterwards the queries and keys in QKV are
// normalised.
func (t *Delta) Both(ls []Call, c DeltaCall) []Call {
	kernel := kernelConv
	if t.wide() {
		if !c.aligned() {
			return t.GatedDelta(t.ShortConv(ls, c), c)
		}
		kernel = kernelConv4
	}
	a := t.conv(&c)
	a.ready = 1
	kernelRule, rule := t.recur(&c, c.QKV, true)
	if t.one(&c) {
		return append(ls, Call{kernelOne128, &oneArgs{a, rule}, t.ruleConfig(rule, 1, 1, 32)})
	}
	ls = t.convLaunch(ls, kernel, a, 2*t.dims.KHeads+t.dims.VHeads+(t.dims.VHeads+31)/32)
	return t.ruleLaunch(ls, kernelRule, rule, c.Segs, 1)
}

type oneArgs struct {
	conv convArgs
	rule ruleArgs
}

// one reports whether the delta rule makes the convolution of a single row itself.
func (t *Delta) one(c *DeltaCall) bool {
	return c.Rows == 1 && c.Segs == 1 && t.exact && t.wide() && !t.noTensorCores && t.dims.VHeads%t.dims.KHeads == 0
}

// The kernel delta_whole, for devices without tensor cores: its threads, room for its shared memory, and the most rows
// that it takes.
const (
	wholeThreads = 1024
	wholeShared  = 32 << 10
	wholeRows    = 4
)

type wholeArgs struct {
	act                   actArgs
	u, alpha, beta, gate  In
	w, a, dt, table, norm Addr
	rows, layer, behind   int32
	eps, normEps          float32
	d                     deltaShape
	_                     int32
}

// CanWhole reports whether Whole takes a layer.
func (t *Delta) CanWhole(c *DeltaCall) bool {
	return t.whole && c.Chains && c.Rows <= wholeRows && c.W%16 == 0
}

// HeadGate is what comes after the delta rule: the RMSNorm of every head, times W and silu(Gate), packed.
type HeadGate struct {
	To   Packed
	Gate In
	W    Addr
	Eps  float32
}

// Whole is Both with what comes after it, in one kernel and with the same bits; there are no other results. The newest
// inputs of the convolution stay where they are, since the kernel reads them, until Shift moves them up. It does that
// for the layer behind, if there is one.
func (t *Delta) Whole(ls []Call, c DeltaCall, g HeadGate, behind *DeltaCall) []Call {
	a := &wholeArgs{act: g.To.args(), u: c.U, alpha: c.Alpha, beta: c.Beta, gate: g.Gate, w: c.W, a: c.A, dt: c.DT,
		table: c.Table, norm: g.W, rows: int32(c.Rows), layer: int32(c.Layer), eps: t.dims.Eps, normEps: g.Eps,
		d: t.shape}
	grid := t.dims.VHeads / 2
	if behind != nil {
		a.behind = int32(behind.Layer)
		grid += (t.dims.ConvDim() + wholeThreads - 1) / wholeThreads
	}
	return append(ls, Call{kernelWhole, a, Config{Grid: [3]int{grid, c.Segs, 1}, Threads: wholeThreads, Early: true}})
}

// Shift moves the newest inputs of a layer's convolution up.
func (t *Delta) Shift(ls []Call, c DeltaCall) []Call {
	a := t.conv(&c)
	return append(ls, Call{kernelShift, &a, Config{Grid: [3]int{min(t.units, (t.dims.ConvDim()+127)/128), c.Segs, 1},
		Threads: 128, Early: true}})
}

// deltaTile is the number of rows in shared memory at a time: with two of them four blocks fit on a multiprocessor. A
// block that has one to itself takes promptTile.
const (
	deltaTile  = 16
	promptTile = 32
	manyBlocks = 4 // blocks of delta_rule_128_many that share a multiprocessor
)

// recur is the kernel of the delta rule and its arguments.
func (t *Delta) recur(c *DeltaCall, keys Out, shifts bool) (Kernel, ruleArgs) {
	values := Out{c.QKV.P + Addr(8*t.dims.KHeads*t.dims.KDim), c.QKV.Stride}
	a := ruleArgs{out: c.Out.P, qk: keys.P, v: values.P, gates: t.gates(c), table: c.Table, u: c.U,
		rows: int32(c.Rows), layer: int32(c.Layer), os: int32(c.Out.Stride),
		qs: int32(keys.Stride), vs: int32(values.Stride), tile: int32(min(max(c.Rows, 1), deltaTile)),
		shifts: asInt(shifts), d: t.shape}
	if t.exact && keys.aligned() && values.aligned() {
		return kernelRule128, a
	}
	return deltaRule{t.keys}, a
}

// ruleLaunch runs the delta rule. In a prompt one row waits for the other, and blocks that share a multiprocessor for
// each other. So there are fewer of them, with twice the values in each, if there would be more than multiprocessors.
func (t *Delta) ruleLaunch(ls []Call, kernel Kernel, a ruleArgs, segs, layers int) []Call {
	rows := 32 // of the state in a block
	if t.prompt(&a, segs) && kernel == kernelRule128 && t.ruleBlocks(rows) > t.units && t.dims.VDim%64 == 0 {
		kernel, rows, a.tile = kernelRule128x4, 64, promptTile
	}
	// Many sequences: states come and go faster if blocks wait for nothing but them.
	if !t.noTensorCores && kernel == kernelRule128 && segs*layers*t.ruleBlocks(rows) > manyBlocks*t.units {
		kernel, a.tile = kernelRuleMany, int32(min(deltaTile, max(1, (int(a.rows)+segs-1)/segs)))
	}
	return append(ls, Call{kernel, &a, t.ruleConfig(a, segs, layers, rows)})
}

func (t *Delta) prompt(a *ruleArgs, segs int) bool {
	return a.rows >= promptRows && segs == 1 && !t.noTensorCores
}

// ruleBlocks is the number of blocks that have so many rows of a state.
func (t *Delta) ruleBlocks(rows int) int { return t.dims.VHeads * ((t.dims.VDim + rows - 1) / rows) }

func (t *Delta) ruleConfig(a ruleArgs, segs, layers, rows int) Config {
	shared := 8 * int(a.tile) * (2*t.keys + rows + 4)
	if t.prompt(&a, segs) && t.ruleBlocks(rows) <= t.units {
		// They start where blocks of the convolution end. Some of those end early: not two in one place.
		shared = max(shared, t.shared/2+1024)
	}
	return Config{Grid: [3]int{t.ruleBlocks(rows), segs, layers}, Threads: 128, Shared: shared, Early: true}
}

// Settle applies the pending rows of the segments, which have no others, in all layers.
func (t *Delta) Settle(ls []Call, table Addr, segs, layers int) []Call {
	var kernel Kernel = deltaRule{t.keys}
	if t.exact {
		kernel = kernelRule128
	}
	ls = t.ruleLaunch(ls, kernel, ruleArgs{table: table, tile: 1, shifts: 1, d: t.shape}, segs, layers)
	ls[len(ls)-1].Early = false // it is not part of a step, so nothing says what comes before it
	return ls
}
