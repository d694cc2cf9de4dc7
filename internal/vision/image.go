package vision

import (
	"math"
	"runtime"
	"sync"
)

// image is the patches of an image in the order in which towers have them: blocks of Merge x Merge patches line by
// line, and inside a block the patches line by line. What becomes one row lies together, so merging and pooling read
// neighbours.
type image struct {
	c    *Config
	pix  Pixels
	w, h int     // patches of a line, and lines
	at   []place // of each patch
}

type place struct{ x, y int }

func newImage(c *Config, p Pixels) *image {
	in := &image{c: c, pix: p, w: p.Width / c.Patch, h: p.Height / c.Patch}
	in.at = make([]place, 0, in.w*in.h)
	for y := 0; y < in.h; y += c.Merge {
		for x := 0; x < in.w; x += c.Merge {
			for i := range c.Merge * c.Merge {
				in.at = append(in.at, place{x + i%c.Merge, y + i/c.Merge})
			}
		}
	}
	return in
}

// patches returns the values of every patch: three planes of colours, each scaled and moved further. Bytes have 256
// values, so each is computed once.
func (in *image) patches(scale, move float32) []float32 {
	var colours [3][256]float32
	for c := range colours {
		for b := range colours[c] {
			colours[c][b] = scale*((float32(b)/255-in.c.Mean[c])/in.c.Std[c]) + move
		}
	}
	side := in.c.Patch
	rows := make([]float32, len(in.at)*3*side*side)
	in.each(func(i int, at place) {
		to := rows[i*3*side*side:]
		for c := range 3 {
			for y := range side {
				from := in.pix.Pix[3*((at.y*side+y)*in.pix.Width+at.x*side)+c:]
				for x := range side {
					to[x] = colours[c][from[3*x]]
				}
				to = to[side:]
			}
		}
	})
	return rows
}

// each calls do for every patch, on all processors: a GPU waits for what the host prepares.
func (in *image) each(do func(i int, at place)) {
	parts := runtime.GOMAXPROCS(0)
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			for i := part * len(in.at) / parts; i < (part+1)*len(in.at)/parts; i++ {
				do(i, in.at[i])
			}
		})
	}
	all.Wait()
}

// rotary returns the angles of patches: those of coordinate a(p) for the first pairs, then of the next.
func (in *image) rotary(pairs int, base float64, coordinates ...func(place) int) angles {
	most := max(in.w, in.h)
	cos, sin := make([]float32, most*pairs), make([]float32, most*pairs) // of each value of a coordinate
	for i := range cos {
		s, c := math.Sincos(float64(i/pairs) * math.Pow(base, -float64(i%pairs)/float64(pairs)))
		cos[i], sin[i] = float32(c), float32(s)
	}
	all := angles{pairs: pairs * len(coordinates)}
	all.cos, all.sin = make([]float32, len(in.at)*all.pairs), make([]float32, len(in.at)*all.pairs)
	in.each(func(i int, at place) {
		for k, coordinate := range coordinates {
			from, to := coordinate(at)*pairs, i*all.pairs+k*pairs
			copy(all.cos[to:], cos[from:][:pairs])
			copy(all.sin[to:], sin[from:][:pairs])
		}
	})
	return all
}

func column(p place) int { return p.x }
func line(p place) int   { return p.y }

// interpolated returns a table of side x side embeddings, stretched over the image so that its corners stay corners.
func (in *image) interpolated(table []float32, side, width int) []float32 {
	columns, lines := stretch(in.w, side), stretch(in.h, side)
	rows := make([]float32, len(in.at)*width)
	in.each(func(i int, at place) {
		x, y := columns[at.x], lines[at.y]
		row := rows[i*width:][:width]
		corner := func(y, x int) []float32 { return table[(y*side+x)*width:][:width] }
		a, b, c, d := corner(y.low, x.low), corner(y.low, x.high), corner(y.high, x.low), corner(y.high, x.high)
		for j := range row {
			top := a[j]*(1-x.part) + b[j]*x.part
			bottom := c[j]*(1-x.part) + d[j]*x.part
			row[j] = top*(1-y.part) + bottom*y.part
		}
	})
	return rows
}

// between is a place between two neighbours of a table.
type between struct {
	low, high int
	part      float32 // of the high one
}

// stretch returns the places of n patches in a line of side entries.
func stretch(n, side int) []between {
	list := make([]between, n)
	for i := range list {
		at := 0.0
		if n > 1 {
			at = float64(i) * float64(side-1) / float64(n-1)
		}
		low := min(int(at), side-1)
		list[i] = between{low, min(low+1, side-1), float32(at - float64(low))}
	}
	return list
}
