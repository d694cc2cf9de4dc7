package gpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// recurrence is a model's recurrent layers on a device, with the weights of one layer for all.
type recurrence struct {
	*rig
	dims   backend.DeltaDims
	pool   *gpu.States
	layers int
	w      []float32 // [channels][taps]
	a, dt  []float32
	dw     gpu.Addr
	da, dd gpu.Addr
}

func newRecurrence(g *rig, dims backend.DeltaDims, layers int) *recurrence {
	g.t.Helper()
	pool, err := gpu.NewStates(g.d, dims, layers)
	g.must(err)
	r := &recurrence{rig: g, dims: dims, pool: pool, layers: layers, w: g.normal(dims.ConvDim()*dims.Kernel, 0.5),
		a: g.normal(dims.VHeads, 1), dt: g.normal(dims.VHeads, 1)}
	for i := range r.a {
		r.a[i] = -float32(math.Abs(float64(r.a[i])))
	}
	r.dw, r.da, r.dd = g.floats(r.w), g.floats(r.a), g.floats(r.dt)
	return r
}

// tokens are the inputs of rows, for every layer the same.
type tokens struct{ u, alpha, beta []float32 }

func (r *recurrence) tokens(n int) tokens {
	return tokens{r.normal(n*r.dims.ConvDim(), 1), r.normal(n*r.dims.VHeads, 2), r.normal(n*r.dims.VHeads, 1)}
}

// pick returns some rows of x.
func (r *recurrence) pick(x tokens, rows ...int) tokens {
	var y tokens
	for _, i := range rows {
		y.u = append(y.u, x.u[i*r.dims.ConvDim():][:r.dims.ConvDim()]...)
		y.alpha = append(y.alpha, x.alpha[i*r.dims.VHeads:][:r.dims.VHeads]...)
		y.beta = append(y.beta, x.beta[i*r.dims.VHeads:][:r.dims.VHeads]...)
	}
	return y
}

func span(from, to int) []int {
	v := []int{}
	for i := from; i < to; i++ {
		v = append(v, i)
	}
	return v
}

// pass runs a step over all layers and returns the outputs of the last one. How it is cut into kernels is a choice that
// must not matter.
func (r *recurrence) pass(how string, x tokens, segs ...backend.DeltaSeg) []float32 {
	r.t.Helper()
	n, chans := len(x.u)/r.dims.ConvDim(), r.dims.ConvDim()
	for i := range segs {
		if !segs[i].Prompt {
			r.must(r.pool.Reserve(segs[i].Slot, segs[i].N))
		}
		if i > 0 {
			segs[i].Row = segs[i-1].Row + segs[i-1].N
		}
	}
	tables, err := r.pool.Tables(segs, 0)
	r.must(err)
	room := tables.Room()
	b := make([]byte, room.Bytes())
	tables.Put(b, room)
	table, err := r.d.Alloc(len(b))
	r.must(err)
	r.d.Upload(table, b)
	out := gpu.Out{P: r.alloc(n * (r.dims.VHeads*r.dims.VDim + 4)), Stride: r.dims.VHeads*r.dims.VDim + 4}
	u := gpu.Rows(r.floats(x.u), chans)
	switch how {
	case "pieces":
		u = r.asPieces(x.u, n, chans)
	case "odd": // one value from where it could be read by fours
		u = gpu.Rows(r.floats(append([]float32{0}, x.u...))+4, chans)
	}
	for l := range r.layers {
		c := gpu.DeltaCall{Table: table, Segs: room.Segs, Rows: n, Layer: l, U: u, W: r.dw,
			QKV:   gpu.Out{P: r.alloc(n * chans), Stride: chans},
			Alpha: gpu.Rows(r.floats(x.alpha), r.dims.VHeads), Beta: gpu.Rows(r.floats(x.beta), r.dims.VHeads),
			A: r.da, DT: r.dd, Out: out,
			Scratch: r.alloc(r.pool.ScratchBytes(n) / 4)}
		if how == "apart" {
			r.run(r.pool.ShortConv(nil, c))
			r.run(r.pool.GatedDelta(nil, c))
		} else {
			r.run(r.pool.Both(nil, c))
		}
	}
	got := r.readFloats(out.P, n*out.Stride)
	var v []float32
	for i := range n {
		v = append(v, got[i*out.Stride:][:out.Stride-4]...)
	}
	return v
}

// asPieces lays rows out as the two pieces of a product: all of a value in the first, zeros in the second.
func (r *recurrence) asPieces(v []float32, n, cols int) gpu.In {
	groups := (cols + 255) / 256
	in := gpu.In{Groups: int32(groups), KB: 2, Grid: int32(2 * groups), N: int32(n)}
	mem := make([]float32, in.Pieces()*n*groups*256)
	for t := range n {
		copy(mem[t*groups*256:], v[t*cols:][:cols])
	}
	in.P = r.floats(mem)
	return in
}

// history is the reference: all tokens of a sequence from its beginning, in float64.
type history struct {
	r     *recurrence
	u     [][]float32
	state []float64 // [vheads][vdim][kdim]
}

func (r *recurrence) history() *history {
	return &history{r: r, state: make([]float64, r.dims.VHeads*r.dims.VDim*r.dims.KDim)}
}

func (h *history) clone() *history {
	return &history{h.r, slices.Clone(h.u), slices.Clone(h.state)}
}

// add applies row i of x and returns its output.
func (h *history) add(x tokens, i int) []float64 {
	d := h.r.dims
	chans := d.ConvDim()
	h.u = append(h.u, x.u[i*chans:][:chans])
	c := make([]float64, chans)
	for ch := range c {
		for j := range d.Kernel {
			if t := len(h.u) - d.Kernel + j; t >= 0 {
				c[ch] += float64(h.r.w[ch*d.Kernel+j]) * float64(h.u[t][ch])
			}
		}
		c[ch] *= sigmoid64(c[ch])
	}
	unit := func(v []float64) []float64 {
		s := float64(d.Eps)
		for _, x := range v {
			s += x * x
		}
		out := make([]float64, len(v))
		for i, x := range v {
			out[i] = x / math.Sqrt(s)
		}
		return out
	}
	out := make([]float64, d.VHeads*d.VDim)
	for vh := range d.VHeads {
		kh := vh % d.KHeads
		if d.Grouped {
			kh = vh / (d.VHeads / d.KHeads)
		}
		q, k := unit(c[kh*d.KDim:][:d.KDim]), unit(c[(d.KHeads+kh)*d.KDim:][:d.KDim])
		g := math.Exp(float64(h.r.a[vh]) * math.Log1p(math.Exp(float64(x.alpha[i*d.VHeads+vh])+float64(h.r.dt[vh]))))
		beta := sigmoid64(float64(x.beta[i*d.VHeads+vh]))
		for v := range d.VDim {
			s := h.state[(vh*d.VDim+v)*d.KDim:][:d.KDim]
			dot := 0.
			for j := range s {
				s[j] *= g
				dot += s[j] * k[j]
			}
			u := beta * (c[2*d.KHeads*d.KDim+vh*d.VDim+v] - dot)
			o := 0.
			for j := range s {
				s[j] += u * k[j]
				o += s[j] * q[j]
			}
			out[vh*d.VDim+v] = o / math.Sqrt(float64(d.KDim))
		}
	}
	return out
}

var deltaShapes = []backend.DeltaDims{
	{KHeads: 1, VHeads: 2, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6},
	{KHeads: 2, VHeads: 4, KDim: 16, VDim: 16, Kernel: 4, Grouped: true, Eps: 1e-6},
	{KHeads: 2, VHeads: 2, KDim: 24, VDim: 40, Kernel: 2, Eps: 1e-5},
	{KHeads: 2, VHeads: 6, KDim: 64, VDim: 32, Kernel: 3, Grouped: true, Eps: 1e-6},
	{KHeads: 1, VHeads: 1, KDim: 256, VDim: 33, Kernel: 8, Eps: 1e-6},
	{KHeads: 1, VHeads: 2, KDim: 256, VDim: 128, Kernel: 4, Grouped: true, Eps: 1e-6},
	{KHeads: 1, VHeads: 1, KDim: 128, VDim: 64, Kernel: 5, Eps: 1e-6},
}

// deltaTolerance leaves room for a device's approximate exponentials, which add up over tokens.
const deltaTolerance = 1e-5

// size is the root mean square of values.
func size(v []float64) float64 {
	sum := 0.
	for _, x := range v {
		sum += x * x
	}
	return math.Sqrt(sum / float64(len(v)))
}

// TestDeltaLife: a sequence's whole life (prompts in two parts, single tokens, chains, trees of which a path is kept,
// settling) against float64, in all shapes and all ways to launch it.
func TestDeltaLife(t *testing.T) {
	g := newRig(t)
	for _, dims := range deltaShapes {
		for _, how := range []string{"both", "apart", "pieces", "odd"} {
			what := fmt.Sprintf("%+v, %s", dims, how)
			r := newRecurrence(g, dims, 2)
			slot, err := r.pool.Alloc()
			g.must(err)
			ref := r.history()
			width := dims.VHeads * dims.VDim
			check := func(stage string, got []float32, want func(row int) []float64) {
				t.Helper()
				for i := range len(got) / width {
					w := want(i)
					g.close(fmt.Sprintf("%s: %s, row %d", what, stage, i), got[i*width:][:width],
						func(j int) float64 { return w[j] }, deltaTolerance, size(w))
				}
			}
			chain := func(stage string, n, pending int, prompt bool) {
				t.Helper()
				x := r.tokens(n)
				check(stage, r.pass(how, x, backend.DeltaSeg{N: n, Slot: slot, Prompt: prompt, Pending: pending}),
					func(row int) []float64 { return ref.add(x, row) })
			}
			chain("first part of a prompt", 21, 0, true)
			chain("second part", 2, 0, true)
			chain("one token", 1, 0, false)
			chain("a token after it", 1, 1, false)
			// Five tokens of which two are kept.
			x := r.tokens(5)
			h := ref.clone()
			check("five tokens", r.pass(how, x, backend.DeltaSeg{N: 5, Slot: slot, Pending: 1}),
				func(row int) []float64 { return h.add(x, row) })
			ref.add(x, 0)
			ref.add(x, 1)
			// A tree; rows 1, 4 and 6 are kept.
			x = r.tokens(8)
			parents := []int32{-1, -1, 0, 0, 1, 4, 4, 3}
			node := make([]*history, len(parents))
			check("a tree", r.pass(how, x, backend.DeltaSeg{N: 8, Slot: slot, Pending: 2, Parents: parents}),
				func(row int) []float64 {
					node[row] = ref.clone()
					if p := parents[row]; p >= 0 {
						node[row] = node[p].clone()
					}
					return node[row].add(x, row)
				})
			ref = node[6]
			r.pool.Keep(slot, []int32{1, 4, 6})
			r.pool.Keep(slot, []int32{0, 1, 2})
			chain("a token after three kept rows", 1, 3, false)
			r.pool.Settle(slot, 1)
			chain("a prompt after settling", 3, 0, true)
			for l := range r.layers {
				v := r.pool.Read(slot, l)
				n := dims.VHeads * dims.VDim * dims.KDim
				g.close(what+": the state", v[:n], func(i int) float64 { return ref.state[i] }, deltaTolerance,
					size(ref.state))
				for j := range dims.Kernel - 1 {
					g.same(what+": the newest inputs", v[n+j*dims.ConvDim():][:dims.ConvDim()],
						ref.u[len(ref.u)-dims.Kernel+1+j])
				}
			}
			r.pool.Close()
		}
	}
}

// TestDeltaBits: a row has the same bits whatever comes with it, however it came, and whether it was applied from a
// tape or at once.
func TestDeltaBits(t *testing.T) {
	g := newRig(t)
	for _, dims := range deltaShapes[:3] {
		r := newRecurrence(g, dims, 1)
		slot := func(n int, x tokens) int32 { // a sequence of n tokens
			s, err := r.pool.Alloc()
			g.must(err)
			if n > 0 {
				r.pass("both", r.pick(x, span(0, n)...), backend.DeltaSeg{N: n, Slot: s, Prompt: true})
			}
			return s
		}
		width := dims.VHeads * dims.VDim
		x := r.tokens(40)
		start := func() int32 { return slot(5, x) }
		all := r.pass("both", r.pick(x, span(5, 40)...), backend.DeltaSeg{N: 35, Slot: start(), Prompt: true})
		a := start()
		g.same("a chain instead of a prompt", r.pass("both", r.pick(x, span(5, 40)...), backend.DeltaSeg{N: 35,
			Slot: a}), all)
		r.pool.Settle(a, 35)
		b := slot(40, x)
		g.same("the state after settling", r.pool.Read(a, 0), r.pool.Read(b, 0))
		// Token by token, each applied by the next pass.
		c := start()
		for i := range 8 {
			got := r.pass([]string{"apart", "odd", "pieces"}[i%3], r.pick(x, 5+i), backend.DeltaSeg{N: 1, Slot: c,
				Pending: min(i, 1)})
			g.same(fmt.Sprintf("token %d by itself", i), got, all[i*width:])
		}
		// Several sequences and kinds in one batch.
		d, e, f := start(), start(), start()
		y := r.tokens(4)
		batch := r.pick(x, append(append([]int{5, 6, 7}, 5, 5, 6, 6, 7), span(5, 25)...)...)
		batch = tokens{slices.Concat(batch.u, y.u), slices.Concat(batch.alpha, y.alpha), slices.Concat(batch.beta,
			y.beta)}
		got := r.pass("both", batch, backend.DeltaSeg{N: 3, Slot: d}, backend.DeltaSeg{N: 5, Slot: e,
			Parents: []int32{-1, -1, 0, 1, 3}},
			backend.DeltaSeg{N: 20, Slot: f, Prompt: true}, backend.DeltaSeg{N: 4, Slot: slot(0, x)})
		g.same("a chain in a batch", got[:3*width], all)
		for i, row := range []int{0, 0, 1, 1, 2} {
			g.same(fmt.Sprintf("row %d of a tree in a batch", i), got[(3+i)*width:][:width], all[row*width:])
		}
		g.same("a prompt in a batch", got[8*width:][:20*width], all)
		alone := r.pass("both", y, backend.DeltaSeg{N: 4, Slot: slot(0, x)})
		g.same("a sequence that begins", got[28*width:], alone)
		// What was copied goes on alike.
		n, err := r.pool.Alloc()
		g.must(err)
		r.pool.Copy(n, f)
		g.same("a copy", r.pass("both", r.pick(x, 25), backend.DeltaSeg{N: 1, Slot: n}), all[20*width:])
		r.pool.Clear(n)
		g.same("a cleared slot", r.pass("both", y, backend.DeltaSeg{N: 4, Slot: n}), alone)
		saved := r.pool.Read(f, 0)
		r.pool.Write(n, 0, saved)
		g.same("a restored state", r.pass("both", r.pick(x, 25), backend.DeltaSeg{N: 1, Slot: n}), all[20*width:])
	}
}

// TestDeltaOne: a row by itself, whose convolution the delta rule makes, leaves the outputs and the memory that the
// kernels for more rows leave.
func TestDeltaOne(t *testing.T) {
	g := newRig(t)
	for _, dims := range []backend.DeltaDims{{KHeads: 2, VHeads: 4, KDim: 128, VDim: 128},
		{KHeads: 2, VHeads: 2, KDim: 128, VDim: 256}, {KHeads: 2, VHeads: 4, KDim: 128, VDim: 128, Grouped: true}} {
		dims.Kernel, dims.Eps = 4, 1e-6
		r := newRecurrence(g, dims, 2)
		if c := (gpu.DeltaCall{Rows: 1, Segs: 1}); len(r.pool.Both(nil, c)) != 1 {
			t.Fatalf("%+v: a row is %d launches", dims, len(r.pool.Both(nil, c)))
		}
		one, err := r.pool.Alloc()
		g.must(err)
		other, err := r.pool.Alloc()
		g.must(err)
		for i, p := range []struct { // rows, pending ones before them, those of them that are kept
			n, pending int
			prompt     bool
			keep       []int32
		}{{1, 0, true, nil}, {1, 0, false, nil}, {1, 1, false, nil}, {1, 1, true, nil}, {6, 0, false, []int32{0, 2, 3, 5}},
			{1, 4, false, nil}, {1, 0, false, nil}, {1, 1, false, nil}} {
			x := r.tokens(p.n)
			seg := backend.DeltaSeg{N: p.n, Slot: one, Pending: p.pending, Prompt: p.prompt}
			got := r.pass([]string{"both", "pieces"}[i%2], x, seg)
			seg.Slot = other
			g.same(fmt.Sprintf("%+v: pass %d", dims, i), got, r.pass("apart", x, seg))
			if p.keep != nil {
				r.pool.Keep(one, p.keep)
				r.pool.Keep(other, p.keep)
			}
		}
		for _, settled := range []bool{false, true} {
			if settled {
				r.pool.Settle(one, 1)
				r.pool.Settle(other, 1)
			}
			for l := range r.layers {
				g.same(fmt.Sprintf("%+v: state and inputs, settled: %t", dims, settled), r.pool.Read(one, l), r.pool.Read(other, l))
			}
		}
		r.pool.Close()
	}
}

// TestDeltaLongPrompt: so many rows that warps of the convolution have several of them have the bits of fewer rows,
// also where another sequence begins in the middle of such a run; and so they have alone, where blocks of the delta
// rule have more values if there would be more of them than multiprocessors.
func TestDeltaLongPrompt(t *testing.T) {
	g := newRig(t)
	many := deltaShapes[0]
	many.VHeads = 3
	for _, dims := range []backend.DeltaDims{deltaShapes[0], deltaShapes[5], many} {
		r := newRecurrence(g, dims, 1)
		slot := func() int32 {
			s, err := r.pool.Alloc()
			g.must(err)
			return s
		}
		const n, other = 69, 3
		width := dims.VHeads * dims.VDim
		x := r.tokens(n + other)
		got := r.pass("pieces", x, backend.DeltaSeg{N: other, Slot: slot()},
			backend.DeltaSeg{N: n, Slot: slot(), Prompt: true})
		s := slot()
		for from := other; from < n+other; {
			to := min(from+30, n+other)
			part := r.pass("both", r.pick(x, span(from, to)...), backend.DeltaSeg{N: to - from, Slot: s, Prompt: true})
			g.same(fmt.Sprintf("%d keys: rows %d to %d", dims.KDim, from, to), got[from*width:to*width], part)
			from = to
		}
		before := r.pass("both", r.pick(x, span(0, other)...), backend.DeltaSeg{N: other, Slot: slot()})
		g.same("the sequence before", got[:other*width], before)
		x, state := r.pick(x, span(other, n+other)...), r.pool.Read(s, 0)
		for _, prompt := range []bool{true, false} {
			s := slot()
			alone := r.pass("both", x, backend.DeltaSeg{N: n, Slot: s, Prompt: prompt})
			g.same(fmt.Sprintf("%d heads alone", dims.VHeads), alone, got[other*width:])
			if !prompt {
				r.pool.Settle(s, n)
			}
			g.same("the state", r.pool.Read(s, 0), state)
		}
	}
}

// TestDeltaLargeTree: more rows, with replays, than fit into shared memory at once.
func TestDeltaLargeTree(t *testing.T) {
	g := newRig(t)
	r := newRecurrence(g, deltaShapes[0], 1)
	slot, err := r.pool.Alloc()
	g.must(err)
	const n = 40
	x := r.tokens(n)
	parents := make([]int32, n)
	for i := range parents {
		parents[i] = int32(g.r.IntN(i+1)) - 1
		if i > 0 && g.r.IntN(2) == 0 {
			parents[i] = int32(i - 1)
		}
	}
	got := r.pass("both", x, backend.DeltaSeg{N: n, Slot: slot, Parents: parents})
	width := r.dims.VHeads * r.dims.VDim
	for _, row := range []int{n - 1, n - 2, n / 2} {
		path := []int{}
		for i := row; i >= 0; i = int(parents[i]) {
			path = append(path, i)
		}
		slices.Reverse(path)
		s, err := r.pool.Alloc()
		g.must(err)
		chain := r.pass("both", r.pick(x, path...), backend.DeltaSeg{N: len(path), Slot: s})
		for i, p := range path {
			g.same(fmt.Sprintf("row %d and its ancestors as a chain", p), got[p*width:][:width], chain[i*width:])
		}
	}
}

// TestStatesMemory: slots and tapes are given back, what fails leaves the pool as it was, and mistakes are named.
func TestStatesMemory(t *testing.T) {
	g := newRig(t)
	dims := deltaShapes[1]
	d := emulate.Emulated(t, emulate.Options{})
	p, err := gpu.NewStates(d, dims, 3)
	g.must(err)
	live := d.Live()
	a, err := p.Alloc()
	g.must(err)
	g.must(p.Reserve(a, 5))
	d.FailAlloc = 1
	if _, err := p.Alloc(); err == nil || !strings.Contains(err.Error(), "recurrent memory") {
		t.Errorf("a slot without memory: %v", err)
	}
	d.FailAlloc = 1
	if err := p.Reserve(a, 6); err != nil { // there is room for eight
		t.Error(err)
	}
	if err := p.Reserve(a, 9); err == nil {
		t.Error("a tape without memory")
	}
	d.FailAlloc = 0
	if _, err := p.Tables([]backend.DeltaSeg{{N: 9, Slot: a}}, 0); err == nil || !strings.Contains(err.Error(),
		"room for 8") {
		t.Errorf("more rows than the tape has: %v", err)
	}
	if _, err := p.Tables([]backend.DeltaSeg{{N: 1, Slot: a, Pending: 1}}, 0); err == nil ||
		!strings.Contains(err.Error(), "pending") {
		t.Errorf("pending rows of no tape: %v", err)
	}
	if _, err := p.Tables([]backend.DeltaSeg{{N: 2, Slot: a, Parents: []int32{0, -1}}}, 0); err == nil ||
		!strings.Contains(err.Error(), "parent") {
		t.Errorf("a row that is its own parent: %v", err)
	}
	if _, err := p.Tables([]backend.DeltaSeg{{N: 1, Slot: 7}}, 0); err == nil || !strings.Contains(err.Error(), "slot 7") {
		t.Errorf("a slot nobody has: %v", err)
	}
	p.Free(a)
	allocs := d.Allocs
	b, err := p.Alloc()
	g.must(err)
	g.must(p.Reserve(b, 8))
	if d.Allocs != allocs {
		t.Errorf("%d allocations although memory was given back", d.Allocs-allocs)
	}
	// Spare memory of another size is given up when the device has no more.
	p.Release(b)
	d.FailAlloc = 1
	g.must(p.Reserve(b, 40))
	p.Close()
	if d.Live() != live {
		t.Errorf("%d allocations live after Close, want %d", d.Live(), live)
	}
	g.must(d.Wait())
	for _, bad := range []backend.DeltaDims{{KHeads: 1, VHeads: 1, KDim: 257, VDim: 1, Kernel: 4}, {KHeads: 1,
		VHeads: 1, KDim: 8, VDim: 8, Kernel: 9},
		{KHeads: 2, VHeads: 3, KDim: 8, VDim: 8, Kernel: 4, Grouped: true}} {
		if _, err := gpu.NewDelta(d.Props(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// TestDeltaWhole: the kernel that has all of a layer leaves the bits of those that have a part each, in packed rows,
// states and tapes: a token, chains and several sequences, with rows of the pass before to apply.
func TestDeltaWhole(t *testing.T) {
	openPlain(t)
	g := newRig(t)
	for _, dims := range []backend.DeltaDims{deltaShapes[0],
		{KHeads: 2, VHeads: 6, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6},
		{KHeads: 2, VHeads: 4, KDim: 128, VDim: 128, Kernel: 4, Grouped: true, Eps: 1e-6}} {
		r := newRecurrence(g, dims, 2)
		products, width := gpu.NewProducts(g.d.Props()), dims.VHeads*dims.VDim
		norm := g.floats(g.normal(dims.VDim, 1))
		var slots [2][3]int32 // of the one way, and of the other
		for i := range slots {
			for k := range slots[i] {
				s, err := r.pool.Alloc()
				g.must(err)
				slots[i][k] = s
			}
		}
		for k := range slots[0] {
			x := r.tokens(3 + k)
			for i := range slots {
				r.pass("both", x, backend.DeltaSeg{N: 3 + k, Slot: slots[i][k], Prompt: true})
			}
		}
		pass := func(what string, segs ...backend.DeltaSeg) {
			t.Helper()
			n := 0
			for i := range segs {
				segs[i].Row, n = n, n+segs[i].N
			}
			x := r.tokens(n)
			u, z := r.asPieces(x.u, n, dims.ConvDim()), r.asPieces(g.normal(n*width, 1), n, width)
			var got [2][]float32
			for i := range slots {
				mine := slices.Clone(segs)
				for k := range mine {
					mine[k].Slot = slots[i][segs[k].Slot]
					g.must(r.pool.Reserve(mine[k].Slot, mine[k].N))
				}
				tables, err := r.pool.Tables(mine, 0)
				g.must(err)
				room := tables.Room()
				b := make([]byte, room.Bytes())
				tables.Put(b, room)
				table := g.alloc(len(b) / 4)
				g.d.Upload(table, b)
				c := gpu.DeltaCall{Table: table, Segs: room.Segs, Rows: n, U: u, W: r.dw, Chains: room.Chains,
					QKV:   gpu.Out{P: g.alloc(n * dims.ConvDim()), Stride: dims.ConvDim()},
					Alpha: r.asPieces(x.alpha, n, dims.VHeads), Beta: gpu.Rows(g.floats(x.beta), dims.VHeads),
					A: r.da, DT: r.dd, Out: gpu.Out{P: g.alloc(n * width), Stride: width},
					Scratch: g.alloc(r.pool.ScratchBytes(n) / 4)}
				to := gpu.Packed{ActLayout: products.Acts(n, gpu.WeightLayout{Cols: width})}
				var behind *gpu.DeltaCall
				for c.Layer = range r.layers {
					last := c
					to.P = g.alloc(to.Bytes() / 4)
					switch {
					case i == 0:
						ls := r.pool.Both(nil, c)
						ls = products.HeadPack(ls, to, gpu.Rows(c.Out.P, width), z, norm, dims.VDim, 1e-5)
						g.run(ls)
					case !r.pool.CanWhole(&c):
						t.Fatalf("%s: the kernel does not take them", what)
					default:
						g.run(r.pool.Whole(nil, c, gpu.HeadGate{To: to, Gate: z, W: norm, Eps: 1e-5}, behind))
						behind = &last
					}
					got[i] = append(got[i], g.readFloats(to.P, to.Bytes()/4)...)
				}
				if i == 1 {
					g.run(r.pool.Shift(nil, *behind))
				}
			}
			g.same(fmt.Sprintf("%+v: %s", dims, what), got[1], got[0])
		}
		pass("a token", backend.DeltaSeg{N: 1})
		pass("a token after it", backend.DeltaSeg{N: 1, Pending: 1})
		pass("a chain", backend.DeltaSeg{N: 4, Pending: 1})
		pass("two sequences", backend.DeltaSeg{N: 2, Pending: 3}, backend.DeltaSeg{N: 1, Slot: 1})
		for i := range slots {
			r.pool.Keep(slots[i][0], []int32{1})
		}
		pass("three sequences", backend.DeltaSeg{N: 1, Pending: 1}, backend.DeltaSeg{N: 1, Slot: 1, Pending: 1},
			backend.DeltaSeg{N: 2, Slot: 2})
		for k := range slots[0] {
			for i := range slots {
				r.pool.Settle(slots[i][k], 1)
			}
			for l := range r.layers {
				g.same("the state", r.pool.Read(slots[1][k], l), r.pool.Read(slots[0][k], l))
			}
		}
		r.pool.Close()
	}
}

// TestRecurrentRows: recurrent layers as models write them leave the same bits for tokens one by one and for all of
// them in one pass, and on a plain device one token takes a single launch between two products.
func TestRecurrentRows(t *testing.T) {
	d := &spy{Driver: openDevice(t)}
	dev, err := gpu.New(d)
	g := &rig{t, d, rand.New(rand.NewPCG(6, 6))}
	g.must(err)
	dims := backend.DeltaDims{KHeads: 2, VHeads: 6, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}
	const tokens, hidden, layers = 6, 512, 2
	width := dims.VHeads * dims.VDim
	bind := func(rows, cols int) backend.Weight {
		w, err := dev.Weight(backend.Matrix{Type: quant.Q4_K, Rows: rows, Cols: cols, Experts: 1,
			Data: gpu.RandomBlocks(g.r, quant.Q4_K, rows*cols)})
		g.must(err)
		return w
	}
	vector := func(n int) backend.Vector {
		v, err := dev.Vector(g.normal(n, 1))
		g.must(err)
		return v
	}
	wu, wz, wa, wb, wo := bind(dims.ConvDim(), hidden), bind(width, hidden), bind(dims.VHeads, hidden),
		bind(dims.VHeads, hidden), bind(hidden, width)
	norm, conv, a, dt, byHead := vector(hidden), vector(dims.ConvDim()*dims.Kernel), vector(dims.VHeads),
		vector(dims.VHeads), vector(dims.VDim)
	pool, err := dev.NewStatePool(dims, layers)
	g.must(err)
	input := g.normal(tokens*hidden, 1)
	run := func(each int) (all []float32) {
		slot, err := pool.Alloc()
		g.must(err)
		rows := func(cols int) backend.Tensor {
			x, err := dev.Alloc(each, cols)
			g.must(err)
			return x
		}
		stream, h, y, u, qkv := rows(hidden), rows(hidden), rows(hidden), rows(dims.ConvDim()), rows(dims.ConvDim())
		z, o, alpha, beta := rows(width), rows(width), rows(dims.VHeads), rows(dims.VHeads)
		for from := 0; from < tokens; from += each {
			g.must(pool.Reserve(slot, each))
			dev.Write(stream, input[from*hidden:][:each*hidden])
			if from == 0 {
				d.names = nil
			}
			dev.BeginStep(&backend.Plan{State: pool, Delta: []backend.DeltaSeg{{N: each, Slot: slot, Pending: min(from, each)}}})
			for l := range layers {
				dev.RMSNorm(h, stream, norm, 1e-6)
				dev.MatMul(h, backend.Product{W: wu, Y: u}, backend.Product{W: wz, Y: z}, backend.Product{W: wa, Y: alpha},
					backend.Product{W: wb, Y: beta})
				dev.ShortConv(qkv, u, conv, l)
				dev.GatedDelta(o, qkv, alpha, beta, a, dt, l)
				dev.RMSNorm(o.Split(dims.VHeads), o.Split(dims.VHeads), byHead, 1e-6)
				dev.Gated(o, z, o, backend.SiLU)
				dev.MatMul(o, backend.Product{W: wo, Y: y})
				dev.Add(stream, stream, y)
			}
			dev.Copy(o, z) // what lies between is not wanted any more
			dev.Copy(qkv, u)
			dev.EndStep()
			g.must(dev.Sync())
			all = append(all, dev.Read(stream)[:each*hidden]...)
		}
		return all
	}
	want := run(tokens)
	for _, each := range []int{1, 2, 3} {
		g.same(fmt.Sprintf("%d at a time", each), run(each), want)
	}
	run(1)
	if want := []string{"add_pack", "rows_q4k_1", "delta_whole", "rows_q4k_1"}; d.Props().NoTensorCores &&
		!slices.Equal(d.names[:len(want)], want) {
		t.Errorf("launches %v, want %v", d.names, want)
	}
}
