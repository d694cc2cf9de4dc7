package picture

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// Fit is what happens to the aspect ratio.
type Fit int

const (
	Stretch   Fit = iota // to the new width and height, as the references do
	Letterbox            // the aspect ratio stays, and black bars fill the rest: as llama.cpp does
)

// Resize returns the image with a new size. The bytes are those of Pillow's Image.resize with BICUBIC. An image that
// has the size already is returned as it is.
func Resize(m *Image, width, height int, fit Fit) *Image {
	if m.Width == width && m.Height == height {
		return m
	}
	if fit == Stretch {
		return resample(m, width, height)
	}
	// llama.cpp computes in float32; the conversions keep compilers from computing more precisely.
	scale := min(float32(width)/float32(m.Width), float32(height)/float32(m.Height))
	inner := func(side, limit int) int { return min(int(math.Ceil(float64(float32(float32(side)*scale)))), limit) }
	small := resample(m, inner(m.Width, width), inner(m.Height, height))
	out := New(width, height)
	left, top := (width-small.Width)/2, (height-small.Height)/2
	for y := range small.Height {
		copy(out.row(top + y)[3*left:], small.row(y))
	}
	return out
}

// resample is a separable filter: across first, then down, with 8 bits in between. A direction whose size stays is left
// out.
func resample(m *Image, width, height int) *Image {
	if m.Width != width {
		m = resampleAcross(m, newFilter(m.Width, width))
	}
	if m.Height != height {
		m = resampleDown(m, newFilter(m.Height, height))
	}
	return m
}

// filter holds the weights of one direction: output i is the sum of taps[i] times the inputs from first[i] on.
type filter struct {
	first []int
	taps  [][]int32
}

// Weights are integers with this many bits after the point, so 255 times the sum of their sizes fits 32 bits: negative
// weights add less than a third.
const weightBits = 22

// newFilter computes the weights of Keys' cubic convolution (a = -0.5), widened when the image shrinks. Conversions to
// float64 keep compilers from fusing products with sums, which would change bits.
func newFilter(in, out int) filter {
	f := filter{first: make([]int, out), taps: make([][]int32, out)}
	scale := float64(in) / float64(out)
	widen := max(1, scale)
	support := 2 * widen
	inverse := 1 / widen
	weights := make([]float64, 0, int(2*support)+2)
	for i := range out {
		centre := float64((float64(i) + 0.5) * scale)
		low := max(0, int(float64(centre-support)+0.5))
		high := min(in, int(float64(centre+support)+0.5))
		weights = weights[:0]
		sum := 0.0
		for x := low; x < high; x++ {
			w := cubic(float64(float64(float64(x)-centre)+0.5) * inverse)
			weights = append(weights, w)
			sum += w
		}
		taps := make([]int32, len(weights))
		for x, w := range weights {
			if sum != 0 {
				w /= sum
			}
			w = float64(w * (1 << weightBits))
			taps[x] = int32(w + math.Copysign(0.5, w)) // the conversion cuts off
		}
		f.first[i], f.taps[i] = low, taps
	}
	return f
}

func cubic(x float64) float64 {
	const a = -0.5
	x = math.Abs(x)
	switch {
	case x < 1:
		return float64(float64(float64(float64((a+2)*x)-(a+3))*x)*x) + 1
	case x < 2:
		return float64(float64(float64(float64(float64(x-5)*x)+8)*x)-4) * a
	}
	return 0
}

const rounding = 1 << (weightBits - 1)

func resampleAcross(m *Image, f filter) *Image {
	out := New(len(f.taps), m.Height)
	parallel(m.Height, 0, func(y int, _ []int32) {
		in, row := m.row(y), out.row(y)
		for i, taps := range f.taps {
			r, g, b := int32(rounding), int32(rounding), int32(rounding)
			pixels := in[3*f.first[i]:][:3*len(taps)]
			for _, w := range taps {
				r += w * int32(pixels[0])
				g += w * int32(pixels[1])
				b += w * int32(pixels[2])
				pixels = pixels[3:]
			}
			row[3*i], row[3*i+1], row[3*i+2] = clamp(r>>weightBits), clamp(g>>weightBits), clamp(b>>weightBits)
		}
	})
	return out
}

func resampleDown(m *Image, f filter) *Image {
	out := New(m.Width, len(f.taps))
	parallel(out.Height, 3*m.Width, func(y int, sums []int32) {
		for x := range sums {
			sums[x] = rounding
		}
		for i, w := range f.taps[y] {
			in := m.row(f.first[y] + i)
			for x, v := range in[:len(sums)] {
				sums[x] += w * int32(v)
			}
		}
		row := out.row(y)
		for x, sum := range sums {
			row[x] = clamp(sum >> weightBits)
		}
	})
	return out
}

// parallel calls do for every row, on all processors. Each of them has scratch numbers to work with.
func parallel(rows, scratch int, do func(y int, scratch []int32)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), rows) {
		all.Go(func() {
			room := make([]int32, scratch)
			for y := int(next.Add(1)) - 1; y < rows; y = int(next.Add(1)) - 1 {
				do(y, room)
			}
		})
	}
	all.Wait()
}
