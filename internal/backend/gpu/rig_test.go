package gpu_test

import (
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"unsafe"

	"strobe/internal/backend/cuda/emulate"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
)

// rig is a device with what tests of kernels do to it.
type rig struct {
	t testing.TB
	d gpu.Driver
	r *rand.Rand
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return &rig{t, openDevice(t), rand.New(rand.NewPCG(7, 9))}
}

// openDevice opens the device that kernels are tested on: an emulated one, or a real one if $STROBE_CUDA is "cuda", or
// the first that Vulkan has if $STROBE_GPU is "vulkan".
func openDevice(t testing.TB) gpu.Driver {
	t.Helper()
	if os.Getenv("STROBE_GPU") != "vulkan" {
		return emulate.Open(t)
	}
	d, err := software()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openPlain is openDevice for tests of kernels that CUDA does not have.
func openPlain(t testing.TB) gpu.Driver {
	t.Helper()
	if os.Getenv("STROBE_GPU") != "vulkan" {
		t.Skip("needs a device with the kernels of notensorcores.go: set STROBE_GPU=vulkan")
	}
	return openDevice(t)
}

// software is one device for all tests: compiling kernels for the processor takes longer than running them.
var software = sync.OnceValues(func() (gpu.Driver, error) { return vulkan.Open(0, vulkan.Options{}) })

func (g *rig) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// alloc returns memory for n values, full of NaN.
func (g *rig) alloc(n int) gpu.Addr {
	g.t.Helper()
	a, err := g.d.Alloc(4 * n)
	g.must(err)
	g.d.Fill(a, 0xff, 4*n)
	return a
}

func rawBytes[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T))))
}

func (g *rig) floats(v []float32) gpu.Addr {
	g.t.Helper()
	a := g.alloc(max(1, len(v)))
	g.d.Upload(a, rawBytes(v))
	return a
}

func (g *rig) ints(v []int32) gpu.Addr {
	g.t.Helper()
	a := g.alloc(max(1, len(v)))
	g.d.Upload(a, rawBytes(v))
	return a
}

func (g *rig) readFloats(a gpu.Addr, n int) []float32 {
	g.t.Helper()
	v := make([]float32, n)
	g.must(g.d.Download(rawBytes(v), a))
	return v
}

func (g *rig) readInts(a gpu.Addr, n int) []int32 {
	g.t.Helper()
	v := make([]int32, n)
	g.must(g.d.Download(rawBytes(v), a))
	return v
}

func (g *rig) run(calls []gpu.Call) {
	g.t.Helper()
	for _, l := range emitted(g.t, g.d, calls) {
		g.d.Launch(&l)
	}
	g.must(g.d.Wait())
}

// normal returns n values of a normal distribution.
func (g *rig) normal(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(g.r.NormFloat64() * scale)
	}
	return v
}

// matrix is rows of values on the host, and how a kernel is told to read them.
type matrix struct {
	rows, cols int
	v          []float32 // what a reader gets
	in         gpu.In
}

func (m *matrix) at(r, c int) float64 { return float64(m.v[r*m.cols+c]) }

// row returns a matrix of one row in the same memory: that token alone.
func (m *matrix) row(r int) *matrix {
	in := m.in
	if in.Groups > 0 {
		in.P += gpu.Addr(4 * r * int(in.Groups) * 256) // the other pieces are still N tokens apart
	} else {
		in.P += gpu.Addr(4 * r * int(in.Stride))
	}
	return &matrix{1, m.cols, m.v[r*m.cols:][:m.cols], in}
}

// plain uploads random rows that lie stride values apart, odd values from the start of an allocation.
func (g *rig) plain(rows, cols, stride, odd int, scale float64) *matrix {
	g.t.Helper()
	mem := make([]float32, odd+rows*stride)
	for i := range mem {
		mem[i] = float32(math.NaN())
	}
	m := &matrix{rows: rows, cols: cols, v: g.normal(rows*cols, scale)}
	for r := range rows {
		copy(mem[odd+r*stride:], m.v[r*cols:][:cols])
	}
	m.in = gpu.Rows(g.floats(mem)+gpu.Addr(4*odd), stride)
	return m
}

// pieces uploads random results of a product, of which the rows from first on are wanted.
func (g *rig) pieces(rows, cols, first, kb, grid int, scale float64) *matrix {
	g.t.Helper()
	groups := (first + cols + 255) / 256
	m := &matrix{rows: rows, cols: cols, v: make([]float32, rows*cols)}
	m.in = gpu.In{Groups: int32(groups), KB: int32(kb), Grid: int32(grid), N: int32(rows), First: int32(first)}
	mem := g.normal(m.in.Pieces()*rows*groups*256, scale)
	for r := range rows {
		for c := range cols {
			at := first + c
			for p := range m.in.PieceCount(at / 256) {
				x := mem[(p*rows+r)*groups*256+at]
				if p == 0 {
					m.v[r*cols+c] = x
				} else {
					m.v[r*cols+c] += x
				}
			}
		}
	}
	m.in.P = g.floats(mem)
	return m
}

// inputs are the same shape in all the ways a kernel may find it.
func (g *rig) inputs(rows, cols int, scale float64) map[string]*matrix {
	g.t.Helper()
	return map[string]*matrix{
		"rows":        g.plain(rows, cols, cols, 0, scale),
		"apart":       g.plain(rows, cols, cols+12, 0, scale),
		"odd":         g.plain(rows, cols, cols+3, 1, scale),
		"pieces":      g.pieces(rows, cols, 0, 5, 4, scale),
		"pieces at 4": g.pieces(rows, cols, 260, 3, 7, scale),
		"pieces at 3": g.pieces(rows, cols, 3, 4, 3, scale),
	}
}

// close compares with a reference: |got-want| <= tolerance*(|want|+floor).
func (g *rig) close(what string, got []float32, want func(i int) float64, tolerance, floor float64) {
	g.t.Helper()
	for i, x := range got {
		w := want(i)
		if e := math.Abs(float64(x) - w); !(e <= tolerance*(math.Abs(w)+floor)) {
			g.t.Fatalf("%s: value %d is %v, want %v", what, i, x, w)
		}
	}
}

// same compares the bits of what both have.
func (g *rig) same(what string, got, want []float32) {
	g.t.Helper()
	for i := range min(len(got), len(want)) {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			g.t.Fatalf("%s: value %d is %v, want the bits of %v", what, i, got[i], want[i])
		}
	}
}
