//go:build !noasm

package qmat

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// needAMX chooses tiles for any number of columns.
func needAMX(t *testing.T) {
	if kernel.Best() < kernel.AMX {
		t.Skipf("needs a CPU with AMX (int8 tiles) and Linux's permission to use it; this one has %v", kernel.Best())
	}
	old := amxFrom
	amxFrom = 1
	restore := kernel.Set(kernel.AMX)
	t.Cleanup(func() {
		amxFrom = old
		restore()
	})
}

// TestAMX: tiles give the bits of plain Go for any number of columns, also where the columns need several tiles and go
// through the matrix in several groups, with rows and with woven weights.
func TestAMX(t *testing.T) {
	needAMX(t)
	const columns, k = 130, 768
	rng := rand.New(rand.NewPCG(3, 4))
	x := gauss(columns*k, rng)
	for typ := range amxKernels {
		for _, rows := range []int{1, 16, 61} {
			m := newMatrix(typ, rows, k, rng)
			w := *m
			if amxWoven[typ] != nil {
				w.Woven = make([]byte, m.WovenBytes())
				m.Weave(w.Woven, 0, m.panels())
			}
			want := make([]float32, columns*rows)
			m.mulGeneric(formatOf(typ), want, rows, pack(x, columns, k), 0, rows)
			s := NewScratch()
			for _, n := range []int{1, 2, 7, 8, 15, 16, 17, 33, 96, 97, columns} {
				a := pack(x[:n*k], n, k)
				for name, m := range map[string]*Matrix{"rows": m, "woven": &w} {
					y := make([]float32, n*rows)
					if !m.mulAMX(formatOf(typ), y, rows, a, 0, rows, rows, s) {
						t.Fatalf("%v: no product with tiles", typ)
					}
					equal(t, fmt.Sprintf("%s of %v, %d rows, %d columns", name, typ, rows, n), y, want[:n*rows])
				}
			}
		}
	}
}

// TestAMXLevel: columns that were packed at a lower level have no tiles, and those packed with tiles serve a lower
// level. Memory that a larger product left behind does not show.
func TestAMXLevel(t *testing.T) {
	needAMX(t)
	const rows, k, n = 48, 512, 20
	rng := rand.New(rand.NewPCG(5, 6))
	m := newMatrix(quant.Q4_K, rows, k, rng)
	x := gauss(n*k, rng)
	want := make([]float32, n*rows)
	m.mulGeneric(formatOf(m.Type), want, rows, pack(x, n, k), 0, rows)
	var a Acts
	var q Rows
	q.Reset(n, k)
	q.Quantize(x, k, 0, n)
	for _, c := range []struct {
		pack, mul kernel.Level
		n         int
	}{
		{kernel.AMX, kernel.AMX, 3}, {kernel.AVX512, kernel.AMX, n}, {kernel.AMX, kernel.AVX512, n},
		{kernel.AMX, kernel.AMX, n}, {kernel.AMX, kernel.AMX, 3}, {kernel.AVX512, kernel.AMX, 2},
		{kernel.AMX, kernel.AMX, 17},
	} {
		restore := kernel.Set(c.pack)
		cols := make([]int32, c.n)
		for i := range cols {
			cols[i] = int32(i)
		}
		a.Reset(c.n, k)
		for b := range a.Blocks() {
			a.Pack(&q, cols, b, b+1)
		}
		restore()
		restore = kernel.Set(c.mul)
		y := make([]float32, c.n*rows)
		m.Mul(y, rows, &a, 0, rows, rows, NewScratch())
		restore()
		equal(t, fmt.Sprint(c), y, want[:c.n*rows])
	}
}

// TestAMXPreempted: tiles survive signals, garbage collections and other threads that use tiles, as Linux promises.
// Collections interrupt every running goroutine with a signal.
func TestAMXPreempted(t *testing.T) {
	needAMX(t)
	const rows, k, n, workers = 64, 2560, 33, 4
	rng := rand.New(rand.NewPCG(7, 8))
	m := newMatrix(quant.Q8_0, rows, k, rng)
	a := pack(gauss(n*k, rng), n, k)
	want := make([]float32, n*rows)
	m.Mul(want, rows, a, 0, rows, rows, NewScratch())
	done := make(chan struct{})
	var collector, wg sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	})
	for range workers {
		wg.Go(func() {
			s, y := NewScratch(), make([]float32, n*rows)
			for range 300 {
				m.Mul(y, rows, a, 0, rows, rows, s)
				for i := range y {
					if y[i] != want[i] {
						t.Errorf("y[%d] is %g, want %g", i, y[i], want[i])
						return
					}
				}
				clear(y)
			}
		})
	}
	wg.Wait()
	close(done)
	collector.Wait()
}

// TestAMXLayout holds the job to the offsets that _asm/amx.go has as constants.
func TestAMXLayout(t *testing.T) {
	var j amxJob
	for i, at := range []uintptr{
		unsafe.Offsetof(j.w), unsafe.Offsetof(j.stride), unsafe.Offsetof(j.step), unsafe.Offsetof(j.pair),
		unsafe.Offsetof(j.blocks), unsafe.Offsetof(j.x), unsafe.Offsetof(j.skip), unsafe.Offsetof(j.n),
		unsafe.Offsetof(j.tile), unsafe.Offsetof(j.quarter), unsafe.Offsetof(j.acc), unsafe.Offsetof(j.buf),
		unsafe.Offsetof(j.pf), unsafe.Offsetof(j.pfDecode), unsafe.Offsetof(j.pfTile),
	} {
		if at != uintptr(8*i) {
			t.Errorf("field %d of the job is at %d, kernels expect %d", i, at, 8*i)
		}
	}
	if size := unsafe.Sizeof(j); size != 29*8 {
		t.Errorf("the job has %d bytes, kernels expect %d", size, 29*8)
	}
}
