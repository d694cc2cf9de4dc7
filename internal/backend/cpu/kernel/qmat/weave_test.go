package qmat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// TestWeave: every byte is where the kernels look for it, rows that are missing are zeros, and rows come back.
func TestWeave(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K} {
		for _, rows := range []int{16, 21} {
			const k = 512
			row, block := typ.RowBytes(k), typ.BlockBytes()
			m := Matrix{Type: typ, Rows: rows, K: k, Data: make([]byte, rows*row)}
			fill(typ, m.Data, rng)
			got, want := make([]byte, m.WovenBytes()), make([]byte, m.WovenBytes())
			for r := range rows {
				for i, v := range m.Data[r*row:][:row] {
					at, unit := i%block, 4
					if at >= block/4*4 {
						unit = 2 // what is left over
					}
					want[r/Panel*Panel*row+i/block*block*Panel+at/unit*unit*Panel+r%Panel*unit+at%unit] = v
				}
			}
			m.Weave(got, 0, len(got)/(Panel*row))
			if !slices.Equal(got, want) {
				t.Errorf("%v, %d rows: bytes are in other places", typ, rows)
			}
			w := Matrix{Type: typ, Rows: rows, K: k, Woven: got}
			for r := range rows {
				back := make([]byte, row+1)
				if w.WovenRow(back[:row], r); !slices.Equal(back[:row], m.Data[r*row:][:row]) || back[row] != 0 {
					t.Errorf("%v, %d rows: row %d does not come back", typ, rows, r)
				}
			}
		}
	}
}

// TestWoven: woven weights give the same bits as the rows they were made of, whatever the numbers of rows and
// columns, on every level, and in parts.
func TestWoven(t *testing.T) {
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K} {
		t.Run(typ.String(), func(t *testing.T) { testWoven(t, typ) })
	}
}

func testWoven(t *testing.T, typ quant.Type) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, rows := range []int{1, 15, 16, 17, 48, 61} {
		for _, k := range []int{256, 768} {
			data := make([]byte, rows*typ.RowBytes(k))
			fill(typ, data, rng)
			m := Matrix{Type: typ, Rows: rows, K: k, Data: data}
			w := m
			w.Woven = make([]byte, m.WovenBytes())
			for p := range (rows + Panel - 1) / Panel {
				m.Weave(w.Woven, p, p+1)
			}
			x := gauss(40*k, rng)
			for _, l := range kernel.Available() {
				for n := 1; n <= 40; n++ {
					done := kernel.Set(l)
					a, s := pack(x, n, k), NewScratch()
					want, got := make([]float32, n*rows), make([]float32, n*rows)
					m.Mul(want, rows, a, 0, rows, rows, s)
					cut := rows / 2 &^ (Panel - 1)
					w.Mul(got, rows, a, cut, rows, rows, s)
					w.Mul(got, rows, a, 0, cut, rows, s)
					done()
					if !slices.Equal(got, want) {
						t.Fatalf("%d x %d, %d columns, %v: not the same", rows, k, n, l)
					}
				}
			}
		}
	}
}

// BenchmarkWoven compares both layouts on weights that stay in the cache.
func BenchmarkWoven(b *testing.B) {
	const rows, k = 512, 512
	rng := rand.New(rand.NewPCG(1, 2))
	y := make([]float32, 16*rows)
	for _, typ := range []quant.Type{quant.Q4_K, quant.Q6_K} {
		data := make([]byte, rows*typ.RowBytes(k))
		fill(typ, data, rng)
		m := Matrix{Type: typ, Rows: rows, K: k, Data: data}
		w := m
		w.Woven = make([]byte, m.WovenBytes())
		m.Weave(w.Woven, 0, rows/Panel)
		for _, n := range []int{1, 2, 4, 6, 8, 16} {
			a, s := pack(gauss(n*k, rng), n, k), NewScratch()
			for name, m := range map[string]*Matrix{"rows": &m, "woven": &w} {
				b.Run(fmt.Sprintf("%v/%s/n=%d", typ, name, n), func(b *testing.B) {
					for b.Loop() {
						m.Mul(y, rows, a, 0, rows, rows, s)
					}
				})
			}
		}
	}
}
