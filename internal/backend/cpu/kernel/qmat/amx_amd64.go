//go:build !noasm

package qmat

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

// amxKernels multiply 32 rows by any number of columns with tiles, for types with sub-blocks of 32. With sub-blocks of
// 16 storing the tiles takes as long as multiplying without them.
var amxKernels = map[quant.Type]func(job *byte){
	quant.Q4_0: amxQ40,
	quant.Q8_0: amxQ80,
	quant.Q4_K: amxQ4K,
	quant.Q5_K: amxQ5K,
}

// amxWoven are those for woven weights.
var amxWoven = map[quant.Type]func(job *byte){quant.Q4_K: amxQ4KWoven}

// amxFrom is the number of columns from which tiles are used. With weights in the cache they are 1.12 to 1.19 times as
// fast as VPDPBUSD with 16 columns and 1.35 times with 32; whole passes of 16 rows, which also read memory, gained
// nothing, those of 64 rows gained 7 to 9 %. Tests lower it.
var amxFrom = 32

// amxJob is what a kernel works on and changes; _asm/amx.go knows the offsets. Addresses are numbers because the kernel
// moves them beyond the ends.
type amxJob struct {
	w                  uintptr
	stride, step, pair int
	blocks             int
	x                  uintptr
	skip               int
	n, tile, quarter   int
	acc, buf, pf       uintptr
	pfDecode, pfTile   int
	_                  [14]uintptr // the kernel's own
}

// Sizes that _asm/amx.go knows, too.
const (
	amxColumns = 16   // of a tile, at most
	amxTile    = 8192 // activations of a tile: 256 values of its columns
	amxXS      = 6144 // their scales
	amxMS      = 6656 // and scales times sums
	amxSums    = 4096 // sums of a tile: 16 columns of 32 rows, and room so that tiles share no place in the first cache
	amxBuf     = 36864
)

// amxScratch is what tiles need of a worker's memory.
type amxScratch struct {
	job amxJob
	buf []byte // configuration, a row of magic numbers, stored tiles, panels
	acc []byte
}

// tiledActs are columns as tiles read them, block by block and tile by tile: [sub-block][column][32]int8, then per
// sub-block the scales of 16 columns, then the scales times sums.
type tiledActs struct {
	tile int // columns of a tile; 0 when there are too few columns
	data []byte
}

// resetTiles makes room for the columns of a, if products with tiles may follow.
func (a *Acts) resetTiles() {
	a.tiled.tile = 0
	if kernel.Current() != kernel.AMX || a.n < amxFrom || a.k%blockLen != 0 {
		return
	}
	tiles := (a.n + amxColumns - 1) / amxColumns
	a.tiled.tile = (a.n + tiles - 1) / tiles
	if size := a.blocks * a.tiles() * amxTile; cap(a.tiled.data) < size {
		a.tiled.data = aligned(size+size/4, 4096)
	}
}

// tiles is the number of tiles.
func (a *Acts) tiles() int { return (a.n + a.tiled.tile - 1) / a.tiled.tile }

// packTiles arranges block b, which is in a.data.
func (a *Acts) packTiles(b int) {
	if a.tiled.tile == 0 {
		return
	}
	tiles := a.tiles()
	for c := range a.n {
		r, i := &a.data[b*a.n+c], c%a.tiled.tile
		out := (*[amxTile]byte)(a.tiled.data[(b*tiles+c/a.tiled.tile)*amxTile:])
		for j := range 8 {
			*(*[32]int8)(unsafe.Pointer(&out[512*j+32*i])) = *(*[32]int8)(r.q[32*j:])
			*(*float32)(unsafe.Pointer(&out[amxXS+64*j+4*i])) = r.xs[j]
			*(*float32)(unsafe.Pointer(&out[amxMS+64*j+4*i])) = r.ms32[j]
		}
	}
}

// mulAMX computes a product with tiles, unless the columns are too few or the type has no kernel.
func (m *Matrix) mulAMX(f *format, y []float32, ys int, x *Acts, r0, r1, ahead int, s *Scratch) bool {
	fn := amxKernels[m.Type]
	if m.Woven != nil {
		fn = amxWoven[m.Type]
	}
	if fn == nil || x.tiled.tile == 0 || kernel.Current() != kernel.AMX {
		return false
	}
	tile := x.tiled.tile
	step := max(1, columns(x.n, m.K, 4)/tile) * tile // columns that go through the matrix together
	s.amx.reset(tile, step)
	for c := 0; c < x.n; c += step {
		n := min(step, x.n-c)
		s.strips(x, c, n, y, ys, r0, r1, func(y []float32, ys, r0, r1 int) {
			for r := r0; r < r1; r += pair {
				m.amxPair(f, fn, y[r-r0:], ys, x, c, n, r, min(r1, r+pair), ahead, s)
			}
		})
	}
	return true
}

// reset makes room for the sums of n columns and describes the tiles: 0 to 3 sums, 4 and 5 activations, 6 and 7 codes.
func (a *amxScratch) reset(columns, n int) {
	if a.buf == nil {
		a.buf = aligned(amxBuf, 4096)
		for i := range 16 {
			binary.LittleEndian.PutUint32(a.buf[64+4*i:], magic)
		}
	}
	config := a.buf[:64]
	clear(config)
	config[0] = 1 // the only palette there is
	for t := range 8 {
		rows, bytes := columns, 64
		switch {
		case t >= 6:
			rows = 32 / 4
		case t >= 4:
			bytes = 32
		}
		config[16+2*t], config[48+t] = byte(bytes), byte(rows)
	}
	if size := (n + columns - 1) / columns * amxSums; len(a.acc) < size {
		a.acc = aligned(size, 4096)
	}
}

// amxPair computes rows [r0, r1), at most two panels, for n columns from c0 on, where a tile begins. y starts at column
// c0 and row r0. Of a single panel everything is computed twice.
func (m *Matrix) amxPair(f *format, fn func(*byte), y []float32, ys int, x *Acts, c0, n, r0, r1, ahead int,
	s *Scratch) {
	stride := m.K / f.len * f.bytes
	bb := blockLen / f.len * f.bytes
	step := bb // from block to block
	if m.Woven != nil {
		step *= Panel
	}
	a, tile := &s.amx, x.tiled.tile
	tiles := (n + tile - 1) / tile
	np := (r1 - r0 + Panel - 1) / Panel
	w, next := m.rows(r0, np*Panel, ahead, stride, s)
	// Prefetching is spread over the columns of the four steps; what they do not reach, the decoders fetch in 64 slots
	// each.
	bytes := np * Panel * bb
	pfTile := min(64, bytes/(4*n))
	for t := range tiles {
		clear(a.acc[t*amxSums:][:tile*4*pair])
	}
	a.job = amxJob{w: uintptr(unsafe.Pointer(w)), stride: stride, step: step, pair: (np - 1) * Panel * stride,
		blocks: x.blocks, x: uintptr(unsafe.Pointer(&x.tiled.data[c0/tile*amxTile])), skip: (x.tiles() - tiles) * amxTile,
		n: n, tile: tile, quarter: (tile + 3) / 4, acc: uintptr(unsafe.Pointer(&a.acc[0])),
		buf: uintptr(unsafe.Pointer(&a.buf[0])), pf: next, pfDecode: (bytes - pfTile*4*n) / 128, pfTile: pfTile}
	fn((*byte)(unsafe.Pointer(&a.job)))
	runtime.KeepAlive(w)
	runtime.KeepAlive(x)
	for t := range tiles {
		sums := a.acc[t*amxSums:]
		for c := t * tile; c < min((t+1)*tile, n); c++ {
			from := (*[pair]float32)(unsafe.Pointer(&sums[0]))
			if to := y[c*ys:]; r1-r0 == pair {
				*(*[pair]float32)(to) = *from // short rows have little work per column; a call of copy would show
			} else {
				copy(to[:r1-r0], from[:])
			}
			sums = sums[4*pair:]
		}
	}
}
