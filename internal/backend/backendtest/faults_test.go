package backendtest

import (
	"math"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/quant"
)

type (
	device = backend.Backend
	states = backend.StatePool
	pages  = backend.KVPool
)

// fault is a device that breaks one promise.
type fault struct {
	what  string
	topic string // cases that must notice
	make  func(b device) device
}

var faults = []fault{
	{"a window begins a token too early", "Attention", func(b device) device {
		return planned{b, eachRow(func(p *backend.KVPlan, r int) {
			if p.Hi[r] > p.Lo[r] {
				p.Lo[r] = max(0, p.Lo[r]-1)
			}
		})}
	}},
	{"a parked weight comes back as zeros", "parked weights", func(b device) device {
		return &parking{device: b, values: func(m backend.Matrix) []byte { return make([]byte, len(m.Data)) }}
	}},
	{"a row sees the token behind it", "Attention", func(b device) device {
		return planned{b, eachRow(func(p *backend.KVPlan, r int) {
			if h := p.Hi[r] + 1; p.Extra == nil && h > 1 && int(h) <= len(p.Tables[p.Seg[r]])*pageTokens {
				p.Hi[r] = h
			}
		})}
	}},
	{"a row of a tree does not see its root", "Attention", func(b device) device {
		return planned{b, eachRow(func(p *backend.KVPlan, r int) {
			if p.Extra != nil && len(p.Extra[r]) > 2 {
				p.Extra[r] = p.Extra[r][1:]
			}
		})}
	}},
	{"sparse attention sees a block too many", "SparseAttention", func(b device) device {
		return &sparser{b, func(s *backend.Sparse) { s.Window++ }}
	}},
	{"sparse attention sees lighter blocks", "SparseAttention", func(b device) device {
		return &sparser{b, func(s *backend.Sparse) {
			if s.Alpha < 1 {
				s.Alpha /= 4
			}
		}}
	}},
	{"a later plan of a step is taken for the first one", "steps that follow each other", func(b device) device {
		return planned{b, func(p *backend.Plan) {
			for i := range p.KV {
				if n := len(p.KV[i].Seg); n <= len(p.KV[0].Seg) {
					p.KV[i].Lo, p.KV[i].Hi = p.KV[0].Lo[:n], p.KV[0].Hi[:n]
				}
			}
		}}
	}},
	{"the tape is not applied", "GatedDelta", func(b device) device {
		return planned{b, func(p *backend.Plan) {
			for i := range p.Delta {
				p.Delta[i].Pending = 0
			}
		}}
	}},
	{"all but the last row of the tape are applied", "StatePool in pieces", func(b device) device {
		return planned{b, func(p *backend.Plan) {
			for i := range p.Delta {
				p.Delta[i].Pending = max(0, p.Delta[i].Pending-1)
			}
		}}
	}},
	{"a replayed step keeps its old plan", "steps of a model", func(b device) device {
		old := map[int]backend.Plan{}
		return planned{b, func(p *backend.Plan) {
			if len(p.KV) == 0 {
				return
			}
			n := len(p.KV[0].Slot)
			if was, ok := old[n]; ok && len(was.KV[0].Tables) == len(p.KV[0].Tables) {
				for r := range n {
					p.KV[0].Hi[r] = min(p.KV[0].Hi[r], was.KV[0].Hi[r])
				}
			} else {
				old[n] = *p
			}
		}}
	}},
	{"a replayed step keeps its old tree", "steps of a model", func(b device) device {
		var old []int32
		return planned{b, func(p *backend.Plan) {
			for i := range p.Delta {
				if d := &p.Delta[i]; d.Parents == nil {
					continue
				} else if old == nil {
					old = slices.Clone(d.Parents)
				} else {
					d.Parents = old
				}
			}
		}}
	}},
	{"a replayed step keeps its old integers", "steps", func(b device) device {
		return &oldInts{Backend: b, seen: map[*int32]int{}}
	}},
	{"a product depends on the size of the batch", "MatMul F32", func(b device) device { return bigBatch{b} }},
	{"a product uses up its input", "MatMul F32", func(b device) device { return usesInput{b} }},
	{"a format is off by a tenth", "MatMul Q4_K", func(b device) device { return offByTenth{b} }},
	{"the scale of weights is ignored", "MatMul of several", func(b device) device { return unscaled{b} }},
	{"a row too many is written", "Add", func(b device) device { return oneMore{b} }},
	{"memory between rows is written", "Scale", func(b device) device { return wider{b} }},
	{"NaN leaks into the next row", "RMSNorm", func(b device) device { return leaky{b} }},
	{"a result is cleared before its inputs are read", "Gated SiLU", func(b device) device { return clearsFirst{b} }},
	{"ties go to the higher id", "ArgMax", func(b device) device { return higherID{b} }},
	{"TopK repeats what it found", "TopK", func(b device) device { return repeats{b} }},
	{"angles are computed in float32", "Angles", func(b device) device { return shortAngles{b} }},
	{"a negative id is the last row", "Embed F32", func(b device) device { return lastRow{b} }},
	{"a block sees the one before it", "BlockConv", func(b device) device { return openBlocks{b} }},
	{"the last row gets another expert", "ExpertMatMul F32", func(b device) device { return wrongExpert{b} }},
	{"weights of experts are not scaled", "Route", func(b device) device { return routeUnscaled{b} }},
	{"memory is not zeroed", "Alloc is zeroed", func(b device) device { return dirty{b} }},
	{"Keep goes backwards", "StatePool trees", withStates(fakeStates{keep: func(p states, slot int32, path []int32) {
		for i, from := range slices.Backward(path) {
			one := make([]int32, i+1)
			for j := range one {
				one[j] = int32(j)
			}
			one[i] = from
			p.Keep(slot, one)
		}
	}})},
	{"Reserve loses the tape", "StatePool Reserve", withStates(fakeStates{
		reserve: func(p states, slot int32, rows int) error {
			if rows > 8 {
				p.Release(slot)
			}
			return p.Reserve(slot, rows)
		}})},
	{"Settle does nothing", "StatePool Settle", withStates(fakeStates{settle: func(states, int32, int) {}})},
	{"a copy leaves out a layer", "StatePool Settle", withStates(fakeStates{
		copy: func(p states, dst, src int32) {
			old := slices.Clone(p.Read(dst, 1))
			p.Copy(dst, src)
			p.Write(dst, 1, old)
		}})},
	{"Write goes to the first layer", "StatePool Read", withStates(fakeStates{
		write: func(p states, slot int32, _ int, v []float32) { p.Write(slot, 0, v) },
	})},
	{"Clear does nothing", "StatePool Clear", withStates(fakeStates{clear: func(states, int32) {}})},
	{"rows move in another order", "KVPool Move", withPages(fakePages{move: func(p pages, rows []backend.RowMove) {
		rows = slices.Clone(rows)
		slices.Reverse(rows)
		p.Move(rows)
	}})},
	{"half of a page comes back", "KVPool ReadPage", withPages(fakePages{
		write: func(p pages, page int32, src []byte) {
			old := make([]byte, len(src))
			p.ReadPage(page, old)
			p.WritePage(page, append(slices.Clone(src[:len(src)/2]), old[len(src)/2:]...))
		}})},
}

// TestFaultsAreFound: the suite notices every fault, and nothing where there is none.
func TestFaultsAreFound(t *testing.T) {
	o := Options{Weights: []quant.Type{quant.F32, quant.Q8_0, quant.Q4_K}, KV: []quant.Type{quant.F32, quant.F16},
		Heads: []int{32, 64}, BigRow: 6000,
		Product: func(t quant.Type, cols int) float64 {
			if t.Quantized() && cols >= 512 {
				return 5e-2
			}
			return ExactProduct(t, cols)
		}}
	o.Delta = o.withDefaults().Delta[1:2]
	honest := func() backend.Backend { return cpu.New(cpu.Options{Threads: 2}) }
	for _, r := range record(t, "", honest, o) {
		t.Errorf("without a fault: %s", r)
	}
	parks := func() device {
		return &parking{device: honest(), values: func(m backend.Matrix) []byte { return m.Data }}
	}
	for _, r := range record(t, "parked weights", parks, o) {
		t.Errorf("a device that parks weights as it should: %s", r)
	}
	one := stays{honest()}
	defer one.device.Close()
	for _, r := range record(t, "", func() device { return one }, o) {
		t.Errorf("one device for all cases: %s", r)
	}
	for _, f := range faults {
		t.Run(f.what, func(t *testing.T) {
			reports := record(t, f.topic, func() backend.Backend { return f.make(honest()) }, o)
			if len(reports) == 0 {
				t.Fatal("was not noticed")
			}
			t.Logf("%d reports, the first: %s", len(reports), reports[0])
		})
	}
}

// sparser is a device that chooses other blocks.
type sparser struct {
	device
	change func(s *backend.Sparse)
}

func (d *sparser) SparseAttention(dst, q backend.Tensor, group, layer int, p backend.AttnParams,
	s *backend.Sparse) bool {
	own := *s
	d.change(&own)
	return d.device.SparseAttention(dst, q, group, layer, p, &own)
}

// parking is a processor that parks weights; they come back with the values it makes of theirs.
type parking struct {
	device
	values func(m backend.Matrix) []byte
	now    map[backend.Weight]backend.Weight // what weights that came back are
}

func (p *parking) Park(...backend.Weight) {}

func (p *parking) Unpark(w backend.Weight, m backend.Matrix) (err error) {
	if p.now == nil {
		p.now = map[backend.Weight]backend.Weight{}
	}
	m.Data = p.values(m)
	p.now[w], err = p.device.Weight(m)
	return err
}

func (p *parking) MatMul(x backend.Tensor, ps ...backend.Product) {
	for i := range ps {
		if w := p.now[ps[i].W]; w != nil {
			ps[i].W = w
		}
	}
	p.device.MatMul(x, ps...)
}

// stays is a device that stays open.
type stays struct{ device }

func (stays) Close() error { return nil }

// planned changes the plans of steps.
type planned struct {
	backend.Backend
	change func(p *backend.Plan)
}

func (d planned) BeginStep(p *backend.Plan) {
	if p != nil {
		own := *p
		own.Delta = slices.Clone(p.Delta)
		own.KV = slices.Clone(p.KV)
		for i := range own.KV {
			k := &own.KV[i]
			k.Lo, k.Hi, k.Extra = slices.Clone(k.Lo), slices.Clone(k.Hi), slices.Clone(k.Extra)
		}
		d.change(&own)
		p = &own
	}
	d.Backend.BeginStep(p)
}

func eachRow(f func(p *backend.KVPlan, r int)) func(p *backend.Plan) {
	return func(p *backend.Plan) {
		for i := range p.KV {
			for r := range p.KV[i].Slot {
				f(&p.KV[i], r)
			}
		}
	}
}

// edit changes the values of a tensor behind an operation.
func edit(b backend.Backend, t backend.Tensor, f func(v []float32)) {
	v := slices.Clone(b.Read(t))
	f(v)
	b.Write(t, v)
}

type oldInts struct {
	backend.Backend
	inside bool
	seen   map[*int32]int // by where the integers are
}

func (d *oldInts) BeginStep(p *backend.Plan) { d.inside = true; d.Backend.BeginStep(p) }
func (d *oldInts) EndStep() (int, error)     { d.inside = false; return d.Backend.EndStep() }

func (d *oldInts) SetInts(dst backend.Ints, v []int32) {
	where := &d.Backend.Ints(dst)[0]
	if d.inside {
		d.seen[where]++
	}
	if !d.inside || d.seen[where] < 4 {
		d.Backend.SetInts(dst, v)
	}
}

type bigBatch struct{ backend.Backend }

func (d bigBatch) MatMul(x backend.Tensor, ps ...backend.Product) {
	d.Backend.MatMul(x, ps...)
	if x.Rows >= 16 {
		edit(d, ps[0].Y, func(v []float32) { v[0] = math.Nextafter32(v[0], 9) })
	}
}

type usesInput struct{ backend.Backend }

func (d usesInput) MatMul(x backend.Tensor, ps ...backend.Product) {
	d.Backend.MatMul(x, ps...)
	d.Backend.Scale(x, x, 0.5)
}

type offByTenth struct{ backend.Backend }

func (d offByTenth) MatMul(x backend.Tensor, ps ...backend.Product) {
	d.Backend.MatMul(x, ps...)
	d.Backend.Scale(ps[0].Y, ps[0].Y, 1.1)
}

type unscaled struct{ backend.Backend }

func (d unscaled) Weight(m backend.Matrix) (backend.Weight, error) {
	m.Scale = nil
	return d.Backend.Weight(m)
}

type oneMore struct{ backend.Backend }

func (d oneMore) Add(dst, a, b backend.Tensor) {
	d.Backend.Add(dst, a, b)
	edit(d, dst.Slice(dst.Rows, 1), func(v []float32) { v[0] = 0 })
}

type wider struct{ backend.Backend }

func (d wider) Scale(dst, a backend.Tensor, s float32) {
	d.Backend.Scale(dst, a, s)
	if dst.Stride > dst.Cols {
		edit(d, dst.Slice(dst.Rows-1, 1).Columns(dst.Cols, 1), func(v []float32) { v[0] = 0 })
	}
}

type leaky struct{ backend.Backend }

func (d leaky) RMSNorm(dst, x backend.Tensor, w backend.Vector, eps float32) {
	d.Backend.RMSNorm(dst, x, w, eps)
	edit(d, dst, func(v []float32) {
		for r := range dst.Rows - 1 {
			if c := v[r*dst.Cols]; c != c {
				v[(r+1)*dst.Cols] = c
				return
			}
		}
	})
}

type clearsFirst struct{ backend.Backend }

func (d clearsFirst) Gated(dst, gate, up backend.Tensor, act backend.Activation) {
	d.Backend.Write(dst, make([]float32, dst.Rows*dst.Cols))
	d.Backend.Gated(dst, gate, up, act)
}

type higherID struct{ backend.Backend }

func (d higherID) ArgMax(ids backend.Ints, x backend.Tensor) {
	d.Backend.ArgMax(ids, x)
	best, v := slices.Clone(d.Ints(ids)), d.Read(x)
	for r := range x.Rows {
		for c := range x.Cols {
			if best[r] >= 0 && v[r*x.Cols+c] == v[r*x.Cols+int(best[r])] {
				best[r] = int32(c)
			}
		}
	}
	d.SetInts(ids, best)
}

type repeats struct{ backend.Backend }

func (d repeats) TopK(ids backend.Ints, logp, x backend.Tensor, k int) {
	d.Backend.TopK(ids, logp, x, k)
	got := slices.Clone(d.Ints(ids))
	for i := 1; i < x.Rows*k; i++ {
		if got[i] == -1 && i%k > 0 {
			got[i] = got[i-1]
		}
	}
	d.SetInts(ids, got)
}

type shortAngles struct{ backend.Backend }

func (d shortAngles) Angles(cos, sin backend.Tensor, pos backend.Ints, inv backend.Vector, mscale float32) {
	d.Backend.Angles(cos, sin, pos, inv, mscale)
	at, f := d.Ints(pos), frequencies(cos.Cols)
	edit(d, cos, func(v []float32) {
		for i := range v {
			v[i] = mscale * float32(math.Cos(float64(float32(at[i/cos.Cols])*f[i%cos.Cols])))
		}
	})
}

type lastRow struct{ backend.Backend }

func (d lastRow) Embed(dst backend.Tensor, w backend.Weight, ids backend.Ints, scale float32) {
	v := slices.Clone(d.Ints(ids))
	for i := range v {
		if v[i] < 0 {
			v[i] = int32(w.Rows() - 1)
		}
	}
	d.SetInts(ids, v)
	d.Backend.Embed(dst, w, ids, scale)
}

type openBlocks struct{ backend.Backend }

func (d openBlocks) BlockConv(dst, x, dyn backend.Tensor, base backend.Vector, index backend.Ints) {
	v := slices.Clone(d.Ints(index))
	for i := 1; i < len(v); i++ {
		v[i]++
	}
	d.SetInts(index, v)
	d.Backend.BlockConv(dst, x, dyn, base, index)
}

type wrongExpert struct{ backend.Backend }

func (d wrongExpert) ExpertMatMul(x backend.Tensor, ids backend.Ints, used int, ps ...backend.Product) {
	v := slices.Clone(d.Ints(ids))
	last := ps[0].Y.Rows - 1
	v[last] = (v[last] + 1) % experts
	d.SetInts(ids, v)
	d.Backend.ExpertMatMul(x, ids, used, ps...)
}

type routeUnscaled struct{ backend.Backend }

func (d routeUnscaled) Route(ids backend.Ints, weights, logits backend.Tensor, used int, _ float32) {
	d.Backend.Route(ids, weights, logits, used, 1)
}

type dirty struct{ backend.Backend }

func (d dirty) Alloc(rows, cols int) (backend.Tensor, error) {
	t, err := d.Backend.Alloc(rows, cols)
	if err == nil && rows > 60 {
		edit(d, t.Slice(rows-1, 1), func(v []float32) { v[cols-1] = 1 })
	}
	return t, err
}
