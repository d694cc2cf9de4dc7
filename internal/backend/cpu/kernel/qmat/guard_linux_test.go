package qmat

import (
	"math/rand/v2"
	"syscall"
	"testing"
)

// TestGuard puts read-only weights between pages that may not be touched, against either
// end: a kernel that reads a byte too many dies.
func TestGuard(t *testing.T) {
	const page = 4096
	rng := rand.New(rand.NewPCG(15, 16))
	for _, typ := range types() {
		for _, shape := range [][2]int{{16, 256}, {33, 512}, {3, 256}} {
			rows, k := shape[0], shape[1]
			size := rows * typ.RowBytes(k)
			room := (size + page - 1) / page * page
			mem, err := syscall.Mmap(-1, 0, room+2*page, syscall.PROT_READ|syscall.PROT_WRITE,
				syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range []int{page, page + room - size} {
				if err := syscall.Mprotect(mem, syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
					t.Fatal(err)
				}
				m := Matrix{Type: typ, Rows: rows, K: k, Data: mem[at:][:size:size]}
				fill(typ, m.Data, rng)
				for _, p := range []struct{ at, n, prot int }{
					{0, page, syscall.PROT_NONE}, {page, room, syscall.PROT_READ}, {page + room, page, syscall.PROT_NONE},
				} {
					if err := syscall.Mprotect(mem[p.at:][:p.n], p.prot); err != nil {
						t.Fatal(err)
					}
				}
				for _, n := range []int{1, 2, 3, 4, 6, 9, 17} {
					x := gauss(n*k, rng)
					want := make([]float32, n*rows)
					m.mulGeneric(formatOf(typ), want, rows, pack(x, n, k), 0, rows)
					eachLevel(t, func(t *testing.T) {
						y := make([]float32, n*rows)
						m.Mul(y, rows, pack(x, n, k), 0, rows, rows, NewScratch())
						equal(t, typ.String(), y, want)
					})
				}
			}
			if err := syscall.Munmap(mem); err != nil {
				t.Fatal(err)
			}
		}
	}
}
