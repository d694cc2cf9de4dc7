package gpu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"strobe/internal/backend"
	"strobe/internal/platform"
	"strobe/internal/quant"
)

// Format is how a device keeps the values of a matrix. The tiled formats are what the products read; formats.h in
// backend/cuda/kernel describes their bits.
type Format int32

// The formats. Names are those of formats.h.
const (
	TileQ4K Format = iota // nibbles, 6-bit scales and mins of 32 columns, two halves for 256
	TileQ5K               // the same with a fifth bit
	TileQ6K               // 6 bits, scales of 16 columns
	TileQ2K               // nibbles, 4-bit scales and mins of 16 columns
	TileQ3K               // nibbles, 6-bit scales of 16 columns
	TileQ8                // bytes, a half as the scale of 32 columns
	TileQ8M               // the same with a min
	TileN4                // nibbles that index a table, a float32 as the scale of 32 columns
	TileNV4               // nibbles that index the table of FP4, a half as the scale of 16 columns
	tileFormats
)

// Plain rows.
const (
	KeepF32 Format = 100 + iota
	KeepF16
	KeepBF16
)

// Tiled reports whether matrices of the format consist of tiles.
func (f Format) Tiled() bool { return f < tileFormats }

// A tile is 16 rows x 256 columns, in two halves of 128 columns; a stage is what a block of a kernel reads at a time.
const (
	tileRows  = 16
	stageRows = 256
	stageCols = 256
	strips    = stageRows / tileRows // tiles of a stage
)

// tileHalves are the bytes of the two halves of a tile.
var tileHalves = [tileFormats][2]int{
	TileQ4K: {1088, 1280},
	TileQ5K: {1344, 1536},
	TileQ6K: {1664, 1696},
	TileQ2K: {1344, 1344},
	TileQ3K: {1152, 1184},
	TileQ8:  {2176, 2176},
	TileQ8M: {2176, 2432},
	TileN4:  {1280, 1280},
	TileNV4: {1280, 1280},
}

// stageBytes is the size of a stage.
func (f Format) stageBytes() int { return strips * (tileHalves[f][0] + tileHalves[f][1]) }

// The tables of TileN4, in the order of its kernels.
const (
	tableLinear8 = iota // code - 8
	tableIQ4
	tableFP4
	tableLinear1 // code - 1
	tableSign    // 2*code - 1
)

// exactCols is the row length below which quantised weights are multiplied in float32, as on the CPU.
const exactCols = 512

// WeightLayout says how a matrix, or a stack of them, lies in device memory.
type WeightLayout struct {
	Format     Format
	Table      int // of TileN4
	Type       quant.Type
	Rows, Cols int // of one matrix
	Experts    int
}

// LayoutOf chooses the layout of a stored matrix. Its bytes must be exactly those of so many rows.
func LayoutOf(typ quant.Type, rows, cols, experts, bytes int) (WeightLayout, error) {
	l := WeightLayout{Type: typ, Rows: rows, Cols: cols, Experts: experts}
	if !typ.Dequantizable() {
		return l, fmt.Errorf("weights of type %s are not supported", typ)
	}
	if rows < 1 || cols < 1 || experts < 1 || cols%typ.BlockLen() != 0 {
		return l, fmt.Errorf("%d matrices of %d x %d %s: rows are not whole blocks of %d values",
			experts, rows, cols, typ, typ.BlockLen())
	}
	row := typ.RowBytes(cols)
	if rows > bytes/row || experts > bytes/row/rows || rows*experts*row != bytes {
		return l, fmt.Errorf("%d matrices of %d x %d %s: %d bytes, want %d rows of %d",
			experts, rows, cols, typ, bytes, rows*experts, row)
	}
	switch typ {
	case quant.F32:
		l.Format = KeepF32
	case quant.F16:
		l.Format = KeepF16
	case quant.BF16:
		l.Format = KeepBF16
	default:
		to, ok := deviceFormats[typ]
		if !ok {
			return l, fmt.Errorf("weights of type %s have no format on a GPU; run them on the CPU", typ)
		}
		l.Format, l.Table = to.format, to.table
		if cols < exactCols {
			l.Format, l.Table = KeepF32, 0
		} else if l.Format.Tiled() && l.Groups()*l.Stages() > maxStages {
			return l, fmt.Errorf("a matrix of %d x %d is too large", rows, cols)
		}
	}
	return l, nil
}

// maxStages bounds the stages of a matrix so that stages times blocks of a grid fit 32 bits in the kernels.
const maxStages = 1 << 22

// deviceFormats says how the device keeps each quantised type. The formats hold values exactly, but for three grids:
// scales of IQ2_XXS are rounded to halves, and IQ2_XS and IQ2_S become halves value by value.
var deviceFormats = map[quant.Type]struct {
	format Format
	table  int // of TileN4
	div    int // of TileQ6K: codes of grids are divided by it
}{
	quant.Q4_0:    {TileN4, tableLinear8, 0},
	quant.Q4_1:    {TileQ8M, 0, 0},
	quant.Q5_0:    {TileQ8, 0, 0},
	quant.Q5_1:    {TileQ8M, 0, 0},
	quant.Q8_0:    {TileQ8, 0, 0},
	quant.Q2_K:    {TileQ2K, 0, 0},
	quant.Q3_K:    {TileQ3K, 0, 0},
	quant.Q4_K:    {TileQ4K, 0, 0},
	quant.Q5_K:    {TileQ5K, 0, 0},
	quant.Q6_K:    {TileQ6K, 0, 1},
	quant.IQ1_S:   {TileQ6K, 0, 1},
	quant.IQ1_M:   {TileQ6K, 0, 1},
	quant.IQ2_XXS: {TileQ8, 0, 0},
	quant.IQ2_XS:  {KeepF16, 0, 0},
	quant.IQ2_S:   {KeepF16, 0, 0},
	quant.IQ3_XXS: {TileQ6K, 0, 2},
	quant.IQ3_S:   {TileQ6K, 0, 1},
	quant.IQ4_NL:  {TileN4, tableIQ4, 0},
	quant.IQ4_XS:  {TileN4, tableIQ4, 0},
	quant.TQ1_0:   {TileN4, tableLinear1, 0},
	quant.TQ2_0:   {TileN4, tableLinear1, 0},
	quant.MXFP4:   {TileN4, tableFP4, 0},
	quant.NVFP4:   {TileNV4, 0, 0},
	quant.Q1_0:    {TileN4, tableSign, 0},
	quant.Q2_0:    {TileN4, tableLinear1, 0},
}

// one is what a one in the device's matrix is worth. Where a scale is a part of the half in the file, the tile has the
// half itself: a part of a small one would lose bits.
func (l WeightLayout) one() float32 {
	if !l.Format.Tiled() {
		return 1
	}
	return float32(max(1, deviceFormats[l.Type].div)) / float32(int(1)<<l.Type.Layout().Shift)
}

// Groups is the number of groups of 256 rows of one matrix in tiles.
func (l WeightLayout) Groups() int { return (l.Rows + stageRows - 1) / stageRows }

// Stages is the number of stages of 256 columns in a row of tiles.
func (l WeightLayout) Stages() int { return (l.Cols + stageCols - 1) / stageCols }

// MatrixBytes is the size of one matrix.
func (l WeightLayout) MatrixBytes() int {
	switch l.Format {
	case KeepF32:
		return l.Rows * l.Cols * 4
	case KeepF16, KeepBF16:
		return l.Rows * l.Cols * 2
	}
	return l.Groups() * l.Stages() * l.Format.stageBytes()
}

// Bytes is the size of all matrices, which lie one after the other.
func (l WeightLayout) Bytes() int { return l.Experts * l.MatrixBytes() }

// units are the pieces in which a matrix is repacked: groups of 256 rows, of all experts.
func (l WeightLayout) units() int { return l.Experts * l.Groups() }

// unit is where unit u lies in the stored bytes and in the device's.
func (l WeightLayout) unit(u int) (src, srcEnd, dst, dstEnd int) {
	e, g := u/l.Groups(), u%l.Groups()
	r0 := g * stageRows
	r1 := min(r0+stageRows, l.Rows)
	row := l.Type.RowBytes(l.Cols)
	src, srcEnd = (e*l.Rows+r0)*row, (e*l.Rows+r1)*row
	if l.Format.Tiled() {
		n := l.Stages() * l.Format.stageBytes()
		return src, srcEnd, u * n, (u + 1) * n
	}
	out := l.MatrixBytes() / l.Rows
	return src, srcEnd, (e*l.Rows + r0) * out, (e*l.Rows + r1) * out
}

// repack writes units [u0, u1) of a stored matrix to dst, on all cores. A core takes 16 rows at a time: with whole
// units most of them would wait for the last. It writes all of dst.
func (l WeightLayout) repack(dst, src []byte, u0, u1 int) {
	_, _, base, _ := l.unit(u0)
	parts := 1
	if l.Format.Tiled() {
		parts = strips
	}
	each((u1-u0)*parts, func(i int) {
		s0, s1, d0, d1 := l.unit(u0 + i/parts)
		d, s := dst[d0-base:d1-base], src[s0:s1]
		switch {
		case l.Format.Tiled():
			l.tiles(d, s, i%parts)
		case l.Format == KeepF32 && l.Type != quant.F32:
			v := make([]float32, len(d)/4)
			// The type was checked when the layout was chosen.
			_ = quant.Dequantize(l.Type, v, s)
			copy(d, bytesOf(v))
		case l.Format == KeepF16 && l.Type != quant.F16:
			v := make([]float32, len(d)/2)
			_ = quant.Dequantize(l.Type, v, s)
			_ = quant.Quantize(quant.F16, d, v)
		default:
			copy(d, s)
		}
	})
}

// Pack returns the bytes of a matrix as the device keeps them.
func (l WeightLayout) Pack(src []byte) []byte {
	dst := make([]byte, l.Bytes())
	l.repack(dst, src, 0, l.units())
	return dst
}

// uploadChunk is how much is repacked at a time: enough for all cores, and so little that it is still in their caches
// when it is copied, and that a matrix has several: one is copied while the next is repacked.
const uploadChunk = 4 << 20

// spare is memory that uploads pass through, for the next matrix. With new memory for each, most of the time goes into
// page faults. Three: one is repacked, one copied, one of another device.
var spare = make(chan []byte, 3)

// room returns bytes from the spare memory, whatever is in them.
func room(bytes int) []byte {
	select {
	case b := <-spare:
		if cap(b) >= bytes {
			return b[:bytes]
		}
	default:
	}
	return make([]byte, bytes, max(bytes, uploadChunk))
}

// giveBack keeps memory for the next upload, unless that would be much for what it is good for.
func giveBack(b []byte) {
	if cap(b) > 4*uploadChunk {
		return
	}
	select {
	case spare <- b:
	default:
	}
}

// LoadTimes is where the time of uploads went. Both happen at the same time.
type LoadTimes struct{ Repack, Upload time.Duration }

// Loading is where the time of all uploads of weights went so far.
func (b *Backend) Loading() (repack, upload time.Duration) { return b.loading.Repack, b.loading.Upload }

// Upload brings a stored matrix to the device. While one part is copied the next is repacked.
func (l WeightLayout) Upload(d Driver, dst Addr, src []byte) LoadTimes {
	return l.uploadIn(d, dst, src, uploadChunk)
}

// uploadIn is Upload in parts of about so many bytes.
func (l WeightLayout) uploadIn(d Driver, dst Addr, src []byte, bytes int) (took LoadTimes) {
	_, _, _, one := l.unit(0)
	per := max(1, bytes/one)
	type part struct {
		at   int
		data []byte
	}
	parts := make(chan part)
	var failed atomic.Pointer[backend.Panic]
	go func() {
		defer close(parts)
		defer backend.KeepPanic(&failed)
		debug.SetPanicOnFault(true)
		var ahead sync.WaitGroup
		defer ahead.Wait()
		populate := func(u int) { // while the part before is repacked
			if u < l.units() {
				from, _, _, _ := l.unit(u)
				_, to, _, _ := l.unit(min(u+per, l.units()) - 1)
				ahead.Go(func() { platform.Populate(src[from:to]) })
			}
		}
		populate(0)
		for u := 0; u < l.units(); u += per {
			began := time.Now()
			end := min(u+per, l.units())
			_, _, at, _ := l.unit(u)
			_, _, _, atEnd := l.unit(end - 1)
			ahead.Wait()
			populate(end)
			buf := room(atEnd - at)
			l.repack(buf, src, u, end)
			took.Repack += time.Since(began)
			parts <- part{at, buf}
		}
	}()
	for p := range parts {
		began := time.Now()
		d.Upload(dst+Addr(p.at), p.data)
		took.Upload += time.Since(began)
		giveBack(p.data)
	}
	raise(&failed)
	return took
}

// each calls fn for [0, n) on all cores. Like whatever reads weights it must expect that another program cut their
// mapped file short: that is a fault, which ends the process unless it becomes a panic that the caller recovers.
func each(n int, fn func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers < 2 {
		for i := range n {
			fn(i)
		}
		return
	}
	var wg sync.WaitGroup
	var failed atomic.Pointer[backend.Panic]
	var next atomic.Int64 // the next strip that a free core takes
	for range workers {
		wg.Go(func() {
			defer backend.KeepPanic(&failed)
			debug.SetPanicOnFault(true)
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				fn(i)
			}
		})
	}
	wg.Wait()
	raise(&failed)
}

// raise goes on with the panic of others.
func raise(failed *atomic.Pointer[backend.Panic]) {
	if p := failed.Load(); p != nil {
		panic(p)
	}
}
