package gpu

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/quant"
)

// packed are sums over what Pack makes of random weights, byte by byte. They were written down when every code was
// taken apart and put in its place one at a time.
var packed = map[quant.Type]string{
	quant.Q4_0:    "cbdaedb209685602",
	quant.Q4_1:    "7467b16a5509dc5a",
	quant.Q5_0:    "71e8d062cfca0d6d",
	quant.Q5_1:    "d0eaee5907b46387",
	quant.Q8_0:    "d98b0dcc58d3cee3",
	quant.Q2_K:    "65285a748d7b0e6d",
	quant.Q3_K:    "3b200493c87f59ed",
	quant.Q4_K:    "2393a5492d345b15",
	quant.Q5_K:    "5db8826e7d52b7fa",
	quant.Q6_K:    "37aa13a19650b533",
	quant.IQ4_NL:  "57414ecad3973d04",
	quant.IQ4_XS:  "7186032300b8ddf5",
	quant.TQ1_0:   "d3c8be2f5b53eca7",
	quant.TQ2_0:   "13f3d9b6822645d1",
	quant.MXFP4:   "be4d4b56bca3958e",
	quant.NVFP4:   "7531f8b658146f74",
	quant.Q1_0:    "73d8689a44ad9d7a",
	quant.Q2_0:    "22335815e12b2c79",
	quant.IQ1_S:   "6991d8b0bcb1d79c",
	quant.IQ1_M:   "e315882ee204fad8",
	quant.IQ2_XXS: "92721a7892f3f651",
	quant.IQ2_XS:  "bb9c35d69081773a",
	quant.IQ2_S:   "1fac0915f7632d74",
	quant.IQ3_XXS: "d0acaa478c8dc9eb",
	quant.IQ3_S:   "d6b31608de225c60",
}

// TestPackBytes: repacked weights are the same bytes as ever, also those of rows and columns that a matrix lacks, and
// whatever was in the memory they are written to.
func TestPackBytes(t *testing.T) {
	for _, typ := range slices.Concat(blockTypes, gridTypes) {
		sum := sha256.New()
		r := rand.New(rand.NewPCG(uint64(typ), 7))
		for _, shape := range [][3]int{{1, 512, 1}, {40, 768, 2}, {264, 1280, 1}, {17, 640, 3}, {512, 512, 1}, {9, 256, 2}} {
			rows, cols, experts := shape[0], shape[1], shape[2]
			if cols%typ.BlockLen() != 0 {
				continue
			}
			src := randomBlocks(r, typ, rows*cols*experts)
			l, err := LayoutOf(typ, rows, cols, experts, len(src))
			if err != nil {
				t.Fatal(err)
			}
			dst := bytes.Repeat([]byte{0xa5}, l.Bytes())
			l.repack(dst, src, 0, l.units())
			sum.Write(dst)
		}
		if got := fmt.Sprintf("%x", sum.Sum(nil)[:8]); got != packed[typ] {
			t.Errorf("quant.%v: %q,", typ, got)
		}
	}
}

// TestUploadReuses: matrices pass through the same memory, one after the other. New memory for each is a page fault for
// every 4 kB, which took longer than repacking.
func TestUploadReuses(t *testing.T) {
	const rows, cols, times = 2048, 5120, 8
	src := make([]byte, quant.Q8_0.RowBytes(rows*cols))
	l, err := LayoutOf(quant.Q8_0, rows, cols, 1, len(src))
	if err != nil {
		t.Fatal(err)
	}
	u := &uploads{mem: make([]byte, l.Bytes())}
	l.Upload(u, 0, src)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		l.Upload(u, 0, src)
	}
	runtime.ReadMemStats(&after)
	if n := int(after.TotalAlloc - before.TotalAlloc); n > times*l.Bytes()/3 {
		t.Errorf("%d uploads of %d bytes allocate %d", times, l.Bytes(), n)
	}
	// A part that is larger than what was kept gets its own memory.
	wide := randomBlocks(rand.New(rand.NewPCG(6, 6)), quant.Q8_0, 256*20480)
	if l, err = LayoutOf(quant.Q8_0, 256, 20480, 1, len(wide)); err != nil {
		t.Fatal(err)
	}
	u.mem = make([]byte, l.Bytes())
	if l.Upload(u, 0, wide); l.Bytes() <= uploadChunk || !bytes.Equal(u.mem, l.Pack(wide)) {
		t.Errorf("a part of %d bytes is not what it was", l.Bytes())
	}
}

// TestEach: every number once, also where there are fewer or more of them than cores.
func TestEach(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	for n := range 9 {
		count := make([]atomic.Int32, n+1)
		each(n, func(i int) { count[i].Add(1) })
		for i := range n {
			if count[i].Load() != 1 {
				t.Errorf("%d of %d: %d times", i, n, count[i].Load())
			}
		}
	}
}

// BenchmarkPack is the speed of one core, in bytes of the file.
func BenchmarkPack(b *testing.B) {
	for _, typ := range quant.BlockTypes() {
		const rows, cols = 256, 5120
		src := randomBlocks(rand.New(rand.NewPCG(1, 1)), typ, rows*cols)
		l, err := LayoutOf(typ, rows, cols, 1, len(src))
		if err != nil {
			b.Fatal(err)
		}
		dst := make([]byte, l.Bytes())
		b.Run(typ.String(), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				l.repack(dst, src, 0, 1)
			}
		})
	}
}

// slow is a driver that takes its time and looks whether the bytes stay what they are meanwhile.
type slow struct {
	uploads
	changed int
}

func (s *slow) Upload(dst Addr, src []byte) {
	before := bytes.Clone(src)
	time.Sleep(2 * time.Millisecond) // enough for the next parts
	if !bytes.Equal(before, src) {
		s.changed++
	}
	s.uploads.Upload(dst, src)
}

// TestUploadHolds: memory is not used again before its bytes were copied.
func TestUploadHolds(t *testing.T) {
	const rows, cols = 4096, 512
	src := randomBlocks(rand.New(rand.NewPCG(5, 5)), quant.Q4_K, rows*cols)
	l, err := LayoutOf(quant.Q4_K, rows, cols, 1, len(src))
	if err != nil {
		t.Fatal(err)
	}
	s := &slow{uploads: uploads{mem: make([]byte, l.Bytes())}}
	l.uploadIn(s, 0, src, 1)
	if s.changed > 0 || !bytes.Equal(s.mem, l.Pack(src)) {
		t.Errorf("%d of %d parts changed while they were copied", s.changed, l.units())
	}
}
