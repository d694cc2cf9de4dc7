//go:build !noasm

package qmat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/quant"
)

var gridTypes = []quant.Type{quant.IQ1_S, quant.IQ1_M, quant.IQ2_XXS, quant.IQ2_XS, quant.IQ2_S, quant.IQ3_XXS,
	quant.IQ3_S}

// setHalf gives a block of such a type its scale.
func setHalf(t quant.Type, b []byte, h uint16) {
	if t != quant.IQ1_M {
		binary.LittleEndian.PutUint16(b, h)
		return
	}
	for i := range 4 {
		b[49+2*i] = b[49+2*i]&15 | byte(h>>(4*i))<<4
	}
}

// TestGridPanels compares the panels of the decoders with those made in Go, bit by bit: constant blocks with every kind
// of finite scale, then random ones, 25 times as many points as the largest grid has.
func TestGridPanels(t *testing.T) {
	if kernel.Best() < kernel.AVX512 {
		t.Logf("this CPU has %v and not more", kernel.Best())
	}
	for _, typ := range gridTypes {
		f, bb := formatOf(typ), typ.BlockBytes()
		const rest = 3 // bytes behind the block
		stride := bb + rest
		w := make([]byte, Panel*stride+1)[1:]
		rng := rand.New(rand.NewPCG(1, 2))
		halves := []uint16{0, 0x8000, 1, 0x83ff, 0x0400, 0x3c00, 0xb555, 0x7bff, 0xfbff}
		fills := []func() byte{
			func() byte { return 0 }, func() byte { return 0xff }, func() byte { return 0x55 }, func() byte { return 0xaa },
			func() byte { return 0x80 }, func() byte { return 0x7f },
		}
		for range 100 {
			fills = append(fills, func() byte { return byte(rng.Uint32()) })
		}
		for i, next := range fills {
			for r := range Panel {
				row := w[r*stride:][:stride]
				for b := range row {
					row[b] = next()
				}
				setHalf(typ, row, halves[(i+r)%len(halves)])
			}
			for _, k := range []struct {
				level  kernel.Level
				decode decodeFunc
				off    byte
			}{
				{kernel.AVX512, kernels512[typ].decode, f.kind.offset()},
				{kernel.AVX2, kernelsAVX2[typ].decode, f.kind.offset2()},
			} {
				if k.level > kernel.Best() {
					continue
				}
				got, want := make([]byte, panelSize), make([]byte, panelSize)
				for i := range got {
					got[i] = 0xa5
				}
				k.decode(&got[0], &w[0], stride, 1, 0, 0)
				f.panel(want, &w[0], stride, blockLen, k.off)
				used := panelScale + 4*Panel*blockLen/f.kind.sub()
				parts := [][2]int{{0, panelScale}, {panelScale, used}}
				if f.kind == min16 {
					parts = append(parts, [2]int{panelMin, panelMin - panelScale + used})
				}
				for _, p := range parts {
					if g, w := got[p[0]:p[1]], want[p[0]:p[1]]; !bytes.Equal(g, w) {
						at := 0
						for g[at] == w[at] {
							at++
						}
						t.Fatalf("%v %s, filling %d: byte %d of the panel is %#x, want %#x", typ, k.level, i, p[0]+at, g[at], w[at])
					}
				}
			}
		}
	}
}

// BenchmarkGrids compares types with a grid to Q4_K, weights in the cache, one thread: the fastest of many rounds, each
// with all types. "go" decodes in Go.
func BenchmarkGrids(b *testing.B) {
	const rows, k, rounds = 512, 512, 300
	rng := rand.New(rand.NewPCG(1, 2))
	y := make([]float32, 512*rows)
	s := NewScratch()
	for _, l := range kernel.Available()[1:] {
		for _, n := range []int{1, 4, 16, 512} {
			var names []string
			var muls []func()
			x := pack(gauss(n*k, rng), n, k)
			for _, typ := range append([]quant.Type{quant.Q4_K, quant.Q2_K, quant.IQ4_XS}, gridTypes...) {
				m := newMatrix(typ, rows, k, rng)
				names = append(names, typ.String())
				muls = append(muls, func() { m.Mul(y, rows, x, 0, rows, rows, s) })
			}
			m := newMatrix(quant.IQ3_S, rows, k, rng)
			names = append(names, "IQ3_S/go")
			muls = append(muls, func() {
				k5, k2 := &kernels512[quant.IQ3_S], &kernelsAVX2[quant.IQ3_S]
				old, decode := *k5, k2.decode
				*k5, k2.decode = kernels{}, nil
				m.Mul(y, rows, x, 0, rows, rows, s)
				*k5, k2.decode = old, decode
			})
			best := make([]time.Duration, len(muls))
			restore := kernel.Set(l)
			for range rounds {
				for i, mul := range muls {
					at := time.Now()
					mul()
					if d := time.Since(at); best[i] == 0 || d < best[i] {
						best[i] = d
					}
				}
			}
			restore()
			for i, name := range names {
				b.Run(fmt.Sprintf("%v/n=%d/%s", l, n, name), func(b *testing.B) {
					b.ReportMetric(float64(best[i].Nanoseconds())/1e3, "us")
					b.ReportMetric(float64(best[i])/float64(best[0]), "xQ4_K")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
