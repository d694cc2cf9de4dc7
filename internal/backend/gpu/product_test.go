package gpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"strobe/internal/backend/gpu"
	"strobe/internal/quant"
)

// half is the error of a product that rounds activations to 11 bits (and for Q6_K, weights): 2^-12 for each value and
// more, averaged over the columns.
const half = 4e-4

// TestProducts: every type, many numbers of rows, against float64; each row has the bits it has alone.
func TestProducts(t *testing.T) {
	r := newProductRig(t)
	for i, typ := range gpu.BlockTypes {
		t.Run(typ.String(), func(t *testing.T) {
			r.t = t
			rnd := rand.New(rand.NewPCG(uint64(typ), 1))
			rows, cols := 40+30*i, 512+256*(i%4)
			if typ.BlockLen() < 256 {
				cols += 128
			}
			m := r.productMatrix(rnd, typ, rows, cols, 1)
			ms, cut := []*productMatrix{m}, r.p.Cut(m.WeightLayout)
			const most = 130
			x := randomRows(rnd, most*cols)
			all := r.product(x, most, ms, cut, 1)[0]
			want := plain(m.values, rows, cols, x)
			if e := apart(all, want); !(e < half) {
				t.Errorf("%d rows: relative error %.2e", most, e)
			}
			for _, n := range []int{1, 2, 3, 8, 9, 17, 33, 64, 65} {
				if n > 9 && i%3 != 0 {
					continue // the kernels are the same
				}
				from := most - n // another place of the batch
				got := r.product(x[from*cols:], n, ms, cut, 1)[0]
				if !sameBits(got, all[from*rows:]) {
					t.Errorf("%d rows differ from the same among %d: relative %.2e", n, most, apart(got, want[from*rows:]))
				}
			}
		})
	}
}

// TestProductsTogether: matrices of all formats in one launch, with the norm's factor and a scale, have the bits they
// have alone.
func TestProductsTogether(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(5, 5))
	const cols, n = 768, 11
	var ms []*productMatrix
	var ws []gpu.WeightLayout
	for i, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0, quant.Q5_K, quant.Q4_1, quant.Q2_K, quant.MXFP4,
		quant.NVFP4} {
		m := r.productMatrix(rnd, typ, 1+70*i, cols, 1)
		ms, ws = append(ms, m), append(ws, m.WeightLayout)
	}
	cut := r.p.Cut(ws...)
	x := randomRows(rnd, n*cols)
	together := r.product(x, n, ms, cut, 0.5)
	for i, m := range ms {
		alone := r.product(x, n, []*productMatrix{m}, cut[i:i+1], 0.5)[0]
		if !sameBits(alone, together[i]) {
			t.Errorf("%v: not the same alone", m.Type)
		}
		want := plain(m.values, m.Rows, cols, x)
		for j := range want {
			want[j] *= 0.5
		}
		if e := apart(together[i], want); !(e < half) {
			t.Errorf("%v: relative error %.2e", m.Type, e)
		}
	}
}

// TestCut: the blocks that matrices of a launch get are all there are and suit every productMatrix.
func TestCut(t *testing.T) {
	p := gpu.NewProducts(gpu.Props{Units: 132, SharedBlock: 232448, Major: 9})
	of := func(typ quant.Type, rows, cols int) gpu.WeightLayout {
		l, err := gpu.LayoutOf(typ, rows, cols, 1, typ.RowBytes(rows*cols))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, c := range []struct {
		ws   []gpu.WeightLayout
		want []int
	}{
		{[]gpu.WeightLayout{of(quant.Q4_K, 34816, 5120)}, []int{132}},
		{[]gpu.WeightLayout{of(quant.Q4_K, 100, 512)}, []int{2}},
		{[]gpu.WeightLayout{of(quant.Q4_K, 100, 5120)}, []int{10}},
		{[]gpu.WeightLayout{of(quant.Q4_K, 10240, 5120), of(quant.Q4_K, 6144, 5120)}, []int{83, 49}},
		{[]gpu.WeightLayout{of(quant.Q4_K, 10240, 5120), of(quant.Q4_K, 48, 5120), of(quant.Q4_K, 48, 5120)},
			[]int{126, 3, 3}},
	} {
		if got := p.Cut(c.ws...); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("cut of %v: %v, want %v", c.ws, got, c.want)
		}
	}
	var many []gpu.WeightLayout
	for range 200 {
		many = append(many, of(quant.Q8_0, 300, 1024))
	}
	for i, n := range p.Cut(many...) {
		if n < 1 {
			t.Errorf("productMatrix %d of 200 gets %d blocks", i, n)
		}
	}
}

// TestLookAhead: a product knows the weights of the next one in its list, if nothing large comes between.
func TestLookAhead(t *testing.T) {
	p := gpu.NewProducts(gpu.Props{Units: 132, SharedBlock: 232448, Major: 9})
	l, err := gpu.LayoutOf(quant.Q4_K, 1024, 1024, 1, quant.Q4_K.RowBytes(1024*1024))
	if err != nil {
		t.Fatal(err)
	}
	list := func(between string) []gpu.Call {
		in := gpu.MatMulInput{ActLayout: p.Acts(1, l), P: 1 << 20}
		ls := p.MatMul(nil, in, gpu.MatMulJob{WeightLayout: l, W: 2 << 20, Blocks: 8, Part: 3 << 20})
		ls = append(ls, gpu.Call{Kernel: kernelNamed(t, between)})
		ls = p.MatMul(ls, in, gpu.MatMulJob{WeightLayout: l, W: 4 << 20, Blocks: 8, Part: 5 << 20})
		p.LookAhead(ls)
		return ls
	}
	knows := func(c gpu.Call, a gpu.Addr) bool {
		l := emitted(t, idleDriver{&idle{}}, []gpu.Call{c})[0]
		for i := 0; i+8 <= len(l.Args); i += 8 {
			if gpu.Addr(binary.LittleEndian.Uint64(l.Args[i:])) == a {
				return true
			}
		}
		return false
	}
	ls := list("gated_pack")
	if !knows(ls[0], 4<<20) || !knows(ls[0], 2<<20) {
		t.Error("a product does not know its weights and the next ones")
	}
	if knows(ls[2], 2<<20) {
		t.Error("the last product knows other weights than its own")
	}
	if knows(list("moe_group")[0], 4<<20) {
		t.Error("a product looks ahead beyond experts")
	}
}

// TestSmallDevices: with little shared memory chunks have fewer rows, and the bits are the same.
func TestSmallDevices(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(8, 8))
	const n, cols = 70, 512
	m := r.productMatrix(rnd, quant.Q8_0, 100, cols, 1)
	cut := r.p.Cut(m.WeightLayout)
	x := randomRows(rnd, n*cols)
	want := r.product(x, n, []*productMatrix{m}, cut, 1)[0]
	if r.p.Bulk {
		t.Skip("needs a GPU below compute capability 9.0, or the emulation of one: the kernels it compares are for those")
	}
	r.p.Shared = 99 << 10
	if lay := r.p.Acts(n, m.WeightLayout); lay.NT != 4 {
		t.Errorf("chunks of %d tiles", lay.NT)
	}
	if got := r.product(x, n, []*productMatrix{m}, cut, 1)[0]; !sameBits(got, want) {
		t.Error("other bits with 99 KiB of shared memory")
	}
}

// TestNaNStays: a NaN or an infinity spoils its own row only, whether in activations or in weights.
func TestNaNStays(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(9, 9))
	const rows, cols, n = 50, 768, 5
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K, quant.Q8_0, quant.IQ4_NL} {
		m := r.productMatrix(rnd, typ, rows, cols, 1)
		cut := r.p.Cut(m.WeightLayout)
		x := randomRows(rnd, n*cols)
		clean := r.product(x, n, []*productMatrix{m}, cut, 1)[0]
		x[1*cols+300] = float32(math.NaN())
		x[3*cols+20] = float32(math.Inf(1))
		got := r.product(x, n, []*productMatrix{m}, cut, 1)[0]
		for tok := range n {
			for row := range rows {
				g, w := got[tok*rows+row], clean[tok*rows+row]
				if spoilt := g-g != 0; spoilt != (tok == 1 || tok == 3) {
					t.Fatalf("%v: row %d of token %d is %v", typ, row, tok, g)
				} else if !spoilt && g != w {
					t.Fatalf("%v: row %d of token %d is %v, was %v", typ, row, tok, g, w)
				}
			}
		}
	}
}

// TestLargeAndSmall: values near the ends of float32 keep their precision.
func TestLargeAndSmall(t *testing.T) {
	r := newProductRig(t)
	rnd := rand.New(rand.NewPCG(10, 9))
	const rows, cols = 20, 512
	m := r.productMatrix(rnd, quant.Q4_0, rows, cols, 1)
	cut := r.p.Cut(m.WeightLayout)
	for _, f := range []float32{1e-30, 1e-12, 1e12, 1e34} {
		x := randomRows(rnd, cols)
		for i := range x {
			x[i] *= f
		}
		if e := apart(r.product(x, 1, []*productMatrix{m}, cut, 1)[0], plain(m.values, rows, cols, x)); !(e < half) {
			t.Errorf("values of %v: relative error %.2e", f, e)
		}
	}
}

// TestEmbed: rows by their number, exactly.
func TestEmbed(t *testing.T) {
	r := newProductRig(t)
	for i, typ := range append([]quant.Type{quant.F32, quant.F16, quant.BF16}, gpu.BlockTypes...) {
		rnd := rand.New(rand.NewPCG(uint64(typ), 2))
		rows, cols := 520-i*20, 768
		if typ == quant.Q8_0 {
			cols = 288 // kept as float32
		}
		if typ.BlockLen() <= 32 {
			cols += 32
		}
		m := r.productMatrix(rnd, typ, rows, cols, 1)
		ids := []int32{0, int32(rows - 1), 17, -1, int32(rows / 2), int32(rows)}
		stride := cols + 3
		dst := r.room(len(ids) * stride * 4)
		r.run(r.p.Embed(nil, dst, stride, m.WeightLayout, m.w, upload(r, ids), len(ids), 1))
		got := r.floats(dst, len(ids)*stride)
		r.run(r.p.Embed(nil, dst, stride, m.WeightLayout, m.w, upload(r, ids), len(ids), 3))
		tripled := r.floats(dst, len(ids)*stride)
		for k, id := range ids {
			for c := range cols {
				want := float32(0)
				if int(id) < rows { // a negative id stands for row 0
					want = m.values[max(0, int(id))*cols+c]
				}
				if g := got[k*stride+c]; g != want || tripled[k*stride+c] != want*3 {
					t.Fatalf("%v: row %d column %d is %v and %v, want %v", typ, id, c, g, tripled[k*stride+c], want)
				}
			}
		}
	}
}
