package gpu_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// upload puts bytes into memory of their own.
func (w *world) upload(b []byte) gpu.Addr {
	a, err := w.d.Alloc(len(b))
	w.must(err)
	w.d.Upload(a, b)
	return a
}

// addRow adds a row to a plan that sees all slots up to its own.
func addRow(p *backend.KVPlan, seg, slot int) {
	p.Seg, p.Slot = append(p.Seg, int32(seg)), append(p.Slot, int32(slot))
	p.Lo, p.Hi = append(p.Lo, 0), append(p.Hi, int32(slot+1))
}

// tables puts the tables of a plan on the device.
func (w *world) tables(p *backend.KVPlan) gpu.KVAddrs {
	return w.put(w.tablesOf(p, w.at.Tiling(len(p.Slot))))
}

func (w *world) put(k *gpu.KVTables) gpu.KVAddrs {
	room := k.Room()
	b := make([]byte, room.Bytes())
	k.Put(b, room)
	return room.At(w.upload(b))
}

// inputs offers rows to a kernel in all ways it may get them: as plain rows that are aligned or not, and as the
// pieces of a product.
func (w *world) inputs(x [][]float32) map[string]gpu.In {
	cols := len(x[0])
	in := map[string]gpu.In{}
	for name, stride := range map[string]int{"aligned": (cols + 11) / 4 * 4, "unaligned": cols + 3} {
		b := make([]byte, (len(x)*stride+1)*4)
		skip := stride % 4 & 1
		for r, v := range x {
			copy(b[(r*stride+skip)*4:], rawBytes(v))
		}
		in[name] = gpu.Rows(w.upload(b)+gpu.Addr(4*skip), stride)
	}
	// 3 stages of each group over 5 blocks; the rows of interest begin behind the first 40.
	p := gpu.In{Groups: int32(40+cols+255) / 256, KB: 3, Grid: 5, N: int32(len(x)), First: 40}
	width := int(p.Groups) * 256
	v := make([]float32, p.Pieces()*len(x)*width)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	for r := range x {
		for c := range cols {
			rest := x[r][c]
			n := p.PieceCount((40 + c) / 256)
			for k := range n {
				part := rest // the pieces' sum in order has the bits of x
				if k < n-1 {
					part = float32(math.Trunc(float64(rest)))
				}
				v[(k*len(x)+r)*width+40+c] = part
				rest -= part
			}
		}
	}
	p.P = w.upload(rawBytes(v))
	in["pieces"] = p
	return in
}

// TestKVWrite: keys and values lie where the description of the layout says, rounded as quant does; everything else
// in the page stays as it was. Numbers that are too large become the largest, so that slots nobody sees do no harm.
func TestKVWrite(t *testing.T) {
	for _, c := range kind {
		t.Run(name(c.heads, c.s), func(t *testing.T) {
			w := newWorld(t, c.heads, c.s)
			s := w.sequence(70, 60)
			const n = 67 // slots 63 to 129
			kd, vd, heads := c.s.KeyDim, c.s.ValueDim, c.s.Heads
			k, v := make([][]float32, n), make([][]float32, n)
			p := &backend.KVPlan{Tables: [][]int32{s.table}}
			for r := range n {
				k[r], v[r] = w.normal(heads*kd, 1), w.normal(heads*vd, 1)
				addRow(p, 0, 63+r)
			}
			at := w.tables(p)
			try := func(how string, ki, vi gpu.In) {
				w.fill(s)
				want := w.read(s)
				place := w.pages.Layout.Places[layer]
				for r := range n {
					slot := 63 + r
					page := want[slot/64]
					for h := range heads {
						head := page[int(place.Off)+h*int(place.Head):]
						w.keys().encode(head, slot%64, bounded(c.s.Key, k[r][h*kd:][:kd]))
						w.values().encode(head[place.Values:], slot%64, bounded(c.s.Value, v[r][h*vd:][:vd]))
					}
				}
				w.run(gpu.KVWrite(nil, ki, vi, n, heads, at, place))
				for i, got := range w.read(s) {
					if j := firstDifference(got, want[i]); j >= 0 {
						t.Fatalf("%s: byte %d of page %d differs", how, j, i)
					}
				}
			}
			ki, vi := w.inputs(k), w.inputs(v)
			for how := range ki {
				try(how, ki[how], vi[how])
			}
			bad := []float32{1e30, float32(math.Inf(-1)), float32(math.NaN()), -70000, 65504}
			copy(k[3], bad)
			copy(v[5], bad)
			try("too large", w.inputs(k)["aligned"], w.inputs(v)["aligned"])
		})
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func bounded(t quant.Type, x []float32) []float32 {
	most := float32(65024)
	if t == quant.F16 {
		most = 65504
	}
	y := make([]float32, len(x))
	for i, v := range x {
		switch {
		case t == quant.F32:
			y[i] = v
		case v != v:
			y[i] = most
		default:
			y[i] = max(-most, min(most, v))
		}
	}
	return y
}

func (w *world) read(s *sequence) [][]byte {
	var pages [][]byte
	for _, id := range s.table {
		b := make([]byte, w.pages.PageBytes())
		w.pages.ReadPage(id, b)
		pages = append(pages, b)
	}
	w.must(w.d.Wait())
	return pages
}

// decode reads a row of one head out of a page.
func (p part) decode(b []byte, slot int) []float32 {
	x := make([]float32, p.dim)
	half := func(at int) float32 { return quant.F16ToF32(uint16(b[at]) | uint16(b[at+1])<<8) }
	for d := range x {
		at, scale := cacheAt(p.t, p.dim, slot, d)
		nibble := int(b[at] >> (d % 2 * 4) & 15)
		switch p.t {
		case quant.F32:
			x[d] = floats(b[at : at+4])[0]
		case quant.F16:
			x[d] = half(at)
		case quant.Q8_0:
			x[d] = half(scale) * float32(int8(b[at]))
		case quant.Q4_0:
			x[d] = half(scale) * float32(nibble-8)
		case quant.Q4_1:
			x[d] = half(scale)*float32(nibble) + half(scale+2)
		case quant.Turbo4:
			x[d] = half(scale) * turbo4[nibble]
		case quant.Turbo3:
			x[d] = half(scale) * turbo3[b[at]>>(d%4*2)&3|b[highBit(p.dim, slot, d)]>>(d%8)&1<<2]
		}
	}
	if p.rotated {
		quant.Unrotate(x)
	}
	return x
}

var (
	turbo3 = [8]float32{-0.190685, -0.117832, -0.065717, -0.021460, 0.021460, 0.065717, 0.117832, 0.190685}
	turbo4 = [16]float32{-0.241556, -0.182907, -0.143047, -0.111065, -0.083317, -0.058069, -0.034311, -0.011353,
		0.011353, 0.034311, 0.058069, 0.083317, 0.111065, 0.143047, 0.182907, 0.241556}
)

// TestQKV: norm of heads, rotation and writing in one launch, from rows whose heads stand apart, against float64.
// Queries have the bits they have step by step: which way a layer takes depends on where it stands in a pass.
func TestQKV(t *testing.T) {
	for _, c := range kind {
		for _, variant := range []string{"all", "no norm", "no rotation"} {
			t.Run(name(c.heads, c.s)+" "+variant, func(t *testing.T) {
				w := newWorld(t, c.heads, c.s)
				const n, eps = 3, 1e-3
				kd, vd, heads := c.s.KeyDim, c.s.ValueDim, c.s.Heads
				half := kd / 4
				s := w.sequence(5, 60)
				p := &backend.KVPlan{Tables: [][]int32{s.table}}
				q, k, v := make([][]float32, n), make([][]float32, n), make([][]float32, n)
				cs, sn := make([][]float32, n), make([][]float32, n)
				for r := range n {
					q[r], k[r], v[r] = w.normal(c.heads*2*kd, 1), w.normal(heads*kd, 2), w.normal(heads*vd, 3)
					addRow(p, 0, 62+r)
					for range half {
						a := w.r.Float64() * 7
						cs[r], sn[r] = append(cs[r], float32(math.Cos(a))), append(sn[r], float32(math.Sin(a)))
					}
				}
				qw, kw := w.normal(kd, 1), w.normal(kd, 1)
				norm, turn := variant != "no norm", variant != "no rotation"
				prepare := func(x, weights []float32, norm, turn bool, r int) []float64 {
					y := make([]float64, len(x))
					ss := 0.0
					for i, v := range x {
						y[i] = float64(v)
						ss += y[i] * y[i]
					}
					for i := range y {
						if norm {
							y[i] /= math.Sqrt(ss/float64(len(x)) + eps)
							if weights != nil {
								y[i] *= float64(weights[i])
							}
						}
					}
					for i := range half {
						if turn {
							a, b, c, s := y[i], y[i+half], float64(cs[r][i]), float64(sn[r][i])
							y[i], y[i+half] = a*c-b*s, a*s+b*c
						}
					}
					return y
				}
				small := gpu.NewSmall(w.d.Props())
				at := w.tables(p)
				qi, ki, vi := w.inputs(q), w.inputs(k), w.inputs(v)
				flat := func(x [][]float32) gpu.Addr {
					var b []byte
					for _, v := range x {
						b = append(b, rawBytes(v)...)
					}
					return w.upload(b)
				}
				call := gpu.QKV{NormValues: norm, Eps: eps, Rows: n, Heads: c.heads, KVHeads: heads,
					OutStride: c.heads*kd + 4, Tables: at, Place: w.pages.Layout.Places[layer]}
				if turn {
					call.Cos, call.Sin, call.Half, call.Turn = flat(cs), flat(sn), half, half
				}
				for how := range qi {
					w.fill(s)
					call.Out = w.upload(bytes.Repeat([]byte{0xff}, n*call.OutStride*4))
					call.Q = gpu.HeadRows{In: qi[how], Step: int32(2 * kd)}
					call.K = gpu.HeadRows{In: ki[how], Step: int32(kd)}
					call.V = gpu.HeadRows{In: vi[how], Step: int32(vd)}
					if norm {
						call.Q.Norm, call.K.Norm = w.upload(rawBytes(qw)), w.upload(rawBytes(kw))
					}
					w.run(call.Write(nil))
					pages := w.read(s)
					steps := gpu.Out{P: w.alloc(n * c.heads * kd), Stride: kd}
					var ls []gpu.Call
					if norm {
						ls = small.RMSNorm(ls, gpu.HeadsOut{P: steps.P, Stride: c.heads * kd, Step: kd},
							gpu.HeadsIn{In: qi[how], Step: 2 * kd}, call.Q.Norm, eps, n, c.heads, kd)
					}
					if turn {
						angles := func(a gpu.Addr) gpu.Out { return gpu.Out{P: a, Stride: half} }
						ls = small.RoPE(ls, steps, angles(call.Cos), angles(call.Sin), n*c.heads, c.heads, half)
					}
					w.run(ls)
					for r := range n {
						out := make([]byte, c.heads*kd*4)
						w.must(w.d.Download(out, call.Out+gpu.Addr(r*call.OutStride*4)))
						if norm {
							w.same(how+": queries step by step", floats(out), w.readFloats(steps.P+gpu.Addr(4*r*c.heads*kd), c.heads*kd))
						}
						for h := range c.heads {
							near(t, fmt.Sprintf("%s: row %d, query head %d", how, r, h), floats(out)[h*kd:][:kd],
								prepare(q[r][h*2*kd:][:kd], qw, norm, turn, r), 1e-6)
						}
						for h := range heads {
							head := pages[(62+r)/64][int(call.Place.Off)+h*int(call.Place.Head):]
							near(t, fmt.Sprintf("%s: row %d, key head %d", how, r, h), w.keys().decode(head, (62+r)%64),
								prepare(k[r][h*kd:][:kd], kw, norm, turn, r), storeError[c.s.Key])
							near(t, fmt.Sprintf("%s: row %d, value head %d", how, r, h),
								w.values().decode(head[call.Place.Values:], (62+r)%64),
								prepare(v[r][h*vd:][:vd], nil, norm, false, r), storeError[c.s.Value])
						}
					}
				}
			})
		}
	}
}

// storeError is how far a row may be off after it was stored.
var storeError = map[quant.Type]float64{
	quant.F32: 1e-6, quant.F16: 4e-4, quant.Q8_0: 1.5e-2, quant.Q4_0: 0.13, quant.Q4_1: 0.13, quant.Turbo4: 0.13,
	quant.Turbo3: 0.25,
}

func near(t *testing.T, what string, got []float32, want []float64, most float64) {
	t.Helper()
	var e, n float64
	for i := range want {
		e += (float64(got[i]) - want[i]) * (float64(got[i]) - want[i])
		n += want[i] * want[i]
	}
	if !(math.Sqrt(e/n) < most) {
		t.Fatalf("%s: off by %.2e", what, math.Sqrt(e/n))
	}
}

// TestMove: slots move in the given order in all layers, also from a slot that an earlier move wrote.
func TestMove(t *testing.T) {
	shapes := []backend.KVDims{{Heads: 2, KeyDim: 128, ValueDim: 64, Key: f16, Value: f16},
		{Heads: 3, KeyDim: 32, ValueDim: 96, Key: q8, Value: q8},
		{Heads: 1, KeyDim: 24, ValueDim: 40, Key: f32, Value: f16},
		{Heads: 2, KeyDim: 128, ValueDim: 256, Key: t3, Value: t4},
		{Heads: 1, KeyDim: 64, ValueDim: 96, Key: q40, Value: q41}}
	w := newWorld(t, 2, shapes[0])
	var err error
	w.pages, err = gpu.NewPages(w.d, backend.KVLayout{Page: 64, Layers: shapes}, nil)
	w.must(err)
	l := w.pages.Layout
	s := &sequence{}
	for range 3 {
		id, err := w.pages.Alloc()
		w.must(err)
		s.table = append(s.table, id)
		w.pages.WritePage(id, w.junk(l.Bytes))
	}
	want := w.read(s)
	moves := []backend.RowMove{{To: 1, Dst: 9, From: 0, Src: 63}, {To: 0, Dst: 63, From: 2, Src: 5},
		{To: 2, Dst: 1, From: 1, Src: 9}, {To: 1, Dst: 9, From: 0, Src: 63}}
	for i := range 600 { // more than one launch makes
		moves = append(moves, backend.RowMove{To: int32(i % 3), Dst: w.r.IntN(64), From: int32(i * 7 % 3), Src: w.r.IntN(64)})
	}
	for _, m := range moves {
		to, from := want[m.To], bytes.Clone(want[m.From])
		for i, sh := range shapes {
			p := l.Places[i]
			for h := range sh.Heads {
				off := int(p.Off) + h*int(p.Head)
				for _, part := range []struct {
					off, dim int
					t        quant.Type
				}{{off, sh.KeyDim, sh.Key}, {off + int(p.Values), sh.ValueDim, sh.Value}} {
					for d := range part.dim {
						size, scale := map[quant.Type]int{f32: 4, f16: 2}[part.t], map[quant.Type]int{f32: 0, f16: 0, q41: 4}
						a, as := cacheAt(part.t, part.dim, m.Dst, d)
						b, bs := cacheAt(part.t, part.dim, m.Src, d)
						copy(to[part.off+a:][:max(1, size)], from[part.off+b:])
						n, ok := scale[part.t]
						if !ok {
							n = 2
						}
						copy(to[part.off+as:][:n], from[part.off+bs:])
						if part.t == t3 {
							to[part.off+highBit(part.dim, m.Dst, d)] = from[part.off+highBit(part.dim, m.Src, d)]
						}
					}
				}
			}
		}
	}
	w.pages.Move(moves[:4])
	w.pages.Move(moves[4:])
	for i, got := range w.read(s) {
		if j := firstDifference(got, want[i]); j >= 0 {
			t.Errorf("byte %d of page %d differs", j, i)
		}
	}
	w.pages.Copy(s.table[2], s.table[0])
	if !bytes.Equal(w.read(s)[2], want[0]) {
		t.Error("Copy: pages differ")
	}
}

// TestPages: memory that pages never had is zero, freed pages come again, and a device without memory is an error.
func TestPages(t *testing.T) {
	w := newWorld(t, 1, backend.KVDims{Heads: 1, KeyDim: 512, ValueDim: 512, Key: f32, Value: f32})
	bytesOf := w.pages.PageBytes()
	seen := map[gpu.Addr]bool{}
	var ids []int32
	for range 300 { // several chunks
		id, err := w.pages.Alloc()
		w.must(err)
		ids = append(ids, id)
		a := w.pages.Addr(id)
		if seen[a] {
			t.Fatalf("page %d lies where another one lies", id)
		}
		seen[a] = true
	}
	b := make([]byte, bytesOf)
	w.pages.ReadPage(ids[299], b)
	if firstDifference(b, make([]byte, bytesOf)) >= 0 {
		t.Error("a new page is not zero")
	}
	w.pages.Free(ids[7])
	if w.pages.Used() != 299 {
		t.Errorf("%d pages in use, want 299", w.pages.Used())
	}
	if id, err := w.pages.Alloc(); err != nil || id != ids[7] {
		t.Errorf("Alloc after Free: %d, %v, want %d", id, err, ids[7])
	}
	w.must(w.d.Wait())
}
