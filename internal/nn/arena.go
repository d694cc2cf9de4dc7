package nn

import (
	"strobe/internal/backend"
)

// Arena is the memory of passes on one device. A pass takes what it needs in order and gives all of it back at its
// end, so the same sequence of requests gets the same addresses: a device can replay what it recorded.
type Arena struct {
	b       backend.Backend
	chunks  []backend.Tensor // one row each; more than one only until the next pass
	at, pos int              // chunk in use, and its first free value
	used    int              // values taken in this pass
	perRow  int              // most values a row of a pass has needed so far
	rows    int              // of this pass
	results int              // values of this pass that do not grow with its rows
	ints    []backend.Ints   // in order of request
	nextInt int
	exact   bool // passes are not padded

	// Reused by every pass, so that the host allocates nothing after the first one.
	views    []backend.Tensor
	products []backend.Product
	padded   []int32
}

// NewArena returns an empty arena on b.
func NewArena(b backend.Backend) *Arena { return &Arena{b: b} }

// Exact makes passes have as many rows as there are tokens.
func (a *Arena) Exact() { a.exact = true }

// Pad is the number of rows of a pass over n tokens.
func (a *Arena) Pad(n int) int {
	if a.exact {
		return n
	}
	return backend.Pad(a.b, n)
}

// lineValues is a cache line: tensors start on one.
const lineValues = 16

// leastChunk keeps the first passes from allocating piece by piece.
const leastChunk = 1 << 16

// Begin starts a pass over so many tokens. It makes room for what such a pass is known to need, so that one that does
// not fit is refused before it has begun. results is how many values the pass takes at its end that do not grow with
// its tokens: the logits of one row of a prompt are larger than everything else that a row needs.
func (a *Arena) Begin(tokens, results int) error {
	a.note(a.results)
	rows := a.Pad(tokens)
	a.rows, a.results, a.at, a.pos, a.used, a.nextInt = max(1, rows), results, 0, 0, 0, 0
	a.views = a.views[:0]
	have := 0
	for _, c := range a.chunks {
		have += c.Cols
	}
	if need := a.perRow*a.rows + results; len(a.chunks) > 1 || need > have {
		// What lies in pieces, or is too small, is replaced as a whole.
		a.free()
		return a.grow(max(need, have))
	}
	return nil
}

// note records how much the rows of the pass need, of what is in use now: all but its results.
func (a *Arena) note(results int) {
	if a.rows > 0 {
		a.perRow = max(a.perRow, (a.used-results+a.rows-1)/a.rows)
	}
}

func (a *Arena) free() {
	for _, c := range a.chunks {
		a.b.Free(c)
	}
	a.chunks = nil
}

func (a *Arena) grow(values int) error {
	t, err := a.b.Alloc(1, max(values, leastChunk))
	if err == nil {
		a.chunks = append(a.chunks, t)
	}
	return err
}

// givenUp is the panic of a pass that runs out of memory, or that the device cannot begin; Catch turns it into an
// error.
type givenUp struct{ err error }

// Catch is deferred by functions that run a pass: it turns a pass that was given up into an error.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case givenUp:
		*err = r.err
	default:
		panic(r)
	}
}

// New returns a tensor of rows x cols whose contents are undefined.
func (a *Arena) New(rows, cols int) backend.Tensor {
	n := (rows*cols + lineValues - 1) / lineValues * lineValues
	a.used += n
	for {
		if a.at == len(a.chunks) {
			if err := a.grow(n); err != nil {
				panic(givenUp{err})
			}
		}
		c := a.chunks[a.at]
		if a.pos+n <= c.Cols {
			t := backend.Tensor{Buf: c.Buf, Off: c.Off + a.pos, Rows: rows, Cols: cols, Stride: cols}
			a.pos += n
			return t
		}
		a.at, a.pos = a.at+1, 0
	}
}

// Ints returns room for n integers.
func (a *Arena) Ints(n int) backend.Ints {
	i := a.nextInt
	a.nextInt++
	if i < len(a.ints) && a.ints[i].Len() >= n {
		return a.ints[i]
	}
	size := 16
	for size < n {
		size *= 2
	}
	v, err := a.b.AllocInts(size)
	if err != nil {
		panic(givenUp{err})
	}
	if i == len(a.ints) {
		a.ints = append(a.ints, nil)
	}
	a.ints[i] = v
	return v
}

// Mark is a state of the arena.
type Mark struct{ at, pos, used, nextInt int }

// Mark returns the state to go back to when what is taken from now on is no longer needed.
func (a *Arena) Mark() Mark { return Mark{a.at, a.pos, a.used, a.nextInt} }

// Release gives back what was taken since the mark.
func (a *Arena) Release(m Mark) {
	// The most that was in use at a time counts, not the sum. Results come after all that is given back.
	a.note(0)
	a.at, a.pos, a.used, a.nextInt = m.at, m.pos, m.used, m.nextInt
}

// Poison fills the arena with a value, so that tests see what a pass reads before it has written it.
func (a *Arena) Poison(value float32) {
	for _, c := range a.chunks {
		v := make([]float32, c.Cols)
		for i := range v {
			v[i] = value
		}
		a.b.Write(c, v)
	}
}
