package qmat

import (
	"fmt"
	"math"

	"strobe/internal/backend/cpu/kernel"
)

// blockLen is the number of values along K that kernels handle together. K need not
// be a multiple of it; the rest of the last block is zero.
const blockLen = 256

// record is one block of one column. The kernels know its layout by offsets (_asm), so
// a test compares the two.
type record struct {
	q      [256]int8   // values / xs
	xs     [8]float32  // scale of 32 values
	init32 [8]int32    // magic - 128 * sum of 32 q
	ms32   [8]float32  // xs * sum of 32 q
	init16 [16]int32   // magic - 32 * sum of 16 q
	ms16   [16]float32 // xs * sum of 16 q
}

// magic is the bit pattern of 1.5 * 2^23. An integer accumulator that starts there is,
// read as float32, 1.5 * 2^23 plus the sum: subtracting the constant inside the multiply-add
// that applies the weight scale replaces a conversion.
const magic = 0x4b400000

// tiny is the bit pattern of 2^-100. Smaller groups count as zero: their inverse scale
// would overflow.
const tiny = 0x0d800000

// infBits is the bit pattern of +Inf; magnitudes from there on are not finite.
const infBits = 0x7f800000

// Rows holds the activations of n tokens rounded to int8. The zero value is empty.
type Rows struct {
	n, k, blocks int
	data         []record // [n][blocks]
}

// Reset makes room for n tokens of k values. What was there is lost.
func (q *Rows) Reset(n, k int) {
	q.n, q.k, q.blocks = n, k, (k+blockLen-1)/blockLen
	q.data = grow(q.data, n*q.blocks)
}

// N returns the number of tokens.
func (q *Rows) N() int { return q.n }

// K returns the number of values per token.
func (q *Rows) K() int { return q.k }

// Quantize rounds tokens [c0, c1), token c being x[c*stride:][:k]. Disjoint ranges may
// run at the same time.
func (q *Rows) Quantize(x []float32, stride, c0, c1 int) {
	if q.k == 0 {
		return
	}
	asm := kernel.Current() != kernel.Generic
	for c := c0; c < c1; c++ {
		v := x[c*stride:][:q.k]
		out := q.data[c*q.blocks:][:q.blocks]
		full := q.k / blockLen
		if asm && full > 0 {
			quantizeBlocks(out[:full], v)
		} else {
			for b := range full {
				quantizeBlock(&out[b], (*[blockLen]float32)(v[b*blockLen:]))
			}
		}
		if rest := v[full*blockLen:]; len(rest) > 0 {
			var pad [blockLen]float32
			copy(pad[:], rest)
			if asm {
				quantizeBlocks(out[full:], pad[:])
			} else {
				quantizeBlock(&out[full], &pad)
			}
		}
	}
}

// quantizeBlock is the definition of the rounding. Assembly gives the same bits.
func quantizeBlock(out *record, v *[blockLen]float32) {
	for j := range 8 {
		g := v[32*j:][:32]
		top := uint32(0) // largest magnitude, compared as bits: NaN is the largest of all
		for _, e := range g {
			top = max(top, math.Float32bits(e)&^(1<<31))
		}
		q := out.q[32*j:][:32]
		var scale float32
		var s [2]int32
		switch {
		case top >= infBits:
			scale = float32(math.NaN())
			clear(q)
		case top < tiny:
			clear(q)
		default:
			m := math.Float32frombits(top)
			inv := 127 / m
			scale = m / 127
			for i, e := range g {
				// float32(...) keeps compilers from fusing; |e*inv| is below 127.5.
				r := int32(math.RoundToEven(float64(float32(e * inv))))
				q[i] = int8(r)
				s[i/16] += r
			}
		}
		out.xs[j] = scale
		out.init32[j] = magic - 128*(s[0]+s[1])
		out.ms32[j] = scale * float32(s[0]+s[1])
		for h := range 2 {
			out.init16[2*j+h] = magic - 32*s[h]
			out.ms16[2*j+h] = scale * float32(s[h])
		}
	}
}

// Acts is a set of columns in the order the kernels read them: block after block, and
// column after column inside a block. The zero value is empty.
type Acts struct {
	n, k, blocks int
	data         []record  // [blocks][n]
	tiled        tiledActs // the same as AMX or SMMLA read them, where products will use that
}

// Reset makes room for n columns of k values. What was there is lost.
func (a *Acts) Reset(n, k int) {
	a.n, a.k, a.blocks = n, k, (k+blockLen-1)/blockLen
	a.data = grow(a.data, n*a.blocks)
	a.resetTiles()
}

// N returns the number of columns.
func (a *Acts) N() int { return a.n }

// Blocks returns the number of blocks that Pack fills.
func (a *Acts) Blocks() int { return a.blocks }

// Pack copies blocks [b0, b1) of the chosen tokens of q; nil means all of them in order.
// len(cols) (or q's tokens) and q's k must be what Reset was given. Disjoint ranges may
// run at the same time.
func (a *Acts) Pack(q *Rows, cols []int32, b0, b1 int) {
	n := q.n
	if cols != nil {
		n = len(cols)
	}
	if n != a.n || q.k != a.k {
		panic(fmt.Sprintf("qmat: Pack of %d x %d into %d x %d", n, q.k, a.n, a.k))
	}
	for c := range n {
		t := c
		if cols != nil {
			t = int(cols[c])
		}
		src := q.data[t*q.blocks:][:q.blocks]
		for b := b0; b < b1; b++ {
			a.data[b*n+c] = src[b]
		}
	}
	for b := b0; b < b1; b++ {
		a.packTiles(b)
	}
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n+n/4)
	}
	return s[:n]
}
