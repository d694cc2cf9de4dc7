package quant

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// Options control the functions that work on several cores. The zero value is
// ready to use.
type Options struct {
	// Workers is the number of goroutines, by default GOMAXPROCS.
	Workers int
	// Progress, if set, is told how many values were finished since its last
	// call. Calls never overlap, but come from other goroutines.
	Progress func(values int)
}

// chunkLen is how many values a worker takes at a time: a multiple of every
// block length, small enough that its float32 buffer stays in cache.
const chunkLen = 16 << 10

// Convert turns a tensor's bytes from one type into another, on several cores
// and with little extra memory. Both rows and blocks must line up: the number of
// values is given by src and must be a multiple of both block lengths, as must
// the tensor's rows. dst must have exactly the right size.
//
// The result does not depend on the number of workers. If several values cannot
// be quantised, the [*ValueError] returned is for one of them, with its position
// in the whole tensor.
func Convert(ctx context.Context, to Type, dst []byte, from Type, src []byte, opt Options) error {
	n, err := convertLen(to, from, src)
	if err != nil {
		return err
	}
	if want := to.RowBytes(n); len(dst) != want {
		return fmt.Errorf("convert %v to %v: %d values need %d bytes, have %d", from, to, n, want, len(dst))
	}
	if from == to {
		copy(dst, src)
		if opt.Progress != nil {
			opt.Progress(n)
		}
		return ctx.Err()
	}
	return opt.run(ctx, n, func(lo, hi int, buf []float32) error {
		buf = buf[:hi-lo]
		if err := Dequantize(from, buf, src[from.RowBytes(lo):from.RowBytes(hi)]); err != nil {
			return err
		}
		return Quantize(to, dst[to.RowBytes(lo):to.RowBytes(hi)], buf)
	})
}

// convertLen checks a conversion and returns the number of values in src.
func convertLen(to, from Type, src []byte) (int, error) {
	if from != to && (!from.Dequantizable() || !to.Quantizable()) || !from.Known() {
		return 0, fmt.Errorf("convert %v to %v: not supported", from, to)
	}
	if len(src)%from.BlockBytes() != 0 {
		return 0, fmt.Errorf("convert %v to %v: %d bytes are not whole blocks of %d", from, to, len(src), from.BlockBytes())
	}
	n := len(src) / from.BlockBytes() * from.BlockLen()
	if n%to.BlockLen() != 0 {
		return 0, fmt.Errorf("convert %v to %v: %d values are not a multiple of the block length %d", from, to, n, to.BlockLen())
	}
	return n, nil
}

// QuantizeAll is [Quantize] on several cores.
func QuantizeAll(ctx context.Context, t Type, dst []byte, src []float32, opt Options) error {
	if err := checkQuantize(t, dst, src); err != nil {
		return err
	}
	return opt.run(ctx, len(src), func(lo, hi int, _ []float32) error {
		return Quantize(t, dst[t.RowBytes(lo):t.RowBytes(hi)], src[lo:hi])
	})
}

// run calls work for consecutive ranges of [0, n) until all are done, one fails
// or ctx ends. Each worker has a buffer of chunkLen values.
func (o Options) run(ctx context.Context, n int, work func(lo, hi int, buf []float32) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var mu sync.Mutex // guards next and calls of Progress
	next := 0
	take := func() (lo, hi int) {
		mu.Lock()
		defer mu.Unlock()
		lo = next
		next = min(n, lo+chunkLen)
		return lo, next
	}

	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = max(1, min(workers, (n+chunkLen-1)/chunkLen))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			buf := make([]float32, min(n, chunkLen))
			for ctx.Err() == nil {
				lo, hi := take()
				if lo == hi {
					return
				}
				if err := work(lo, hi, buf); err != nil {
					if v, ok := err.(*ValueError); ok {
						v.Index += lo
					}
					cancel(err)
					return
				}
				if o.Progress != nil {
					mu.Lock()
					o.Progress(hi - lo)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// NewReader converts a tensor like [Convert], but as it is read, so that a
// tensor larger than memory can be written to a file. Read works on several
// cores and returns the errors of Convert.
func NewReader(ctx context.Context, to, from Type, src []byte, opt Options) (io.Reader, error) {
	if _, err := convertLen(to, from, src); err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, to: to, from: from, src: src, opt: opt}, nil
}

type reader struct {
	ctx      context.Context
	to, from Type
	src      []byte // not yet converted
	done     int    // values converted
	ready    []byte // converted, not yet read
	buf      []byte
	opt      Options
}

func (r *reader) Read(p []byte) (int, error) {
	const window = 256 * chunkLen // values per refill
	if len(r.ready) == 0 {
		if len(r.src) == 0 {
			return 0, io.EOF
		}
		part := r.src[:min(len(r.src), r.from.RowBytes(window))]
		n := len(part) / r.from.BlockBytes() * r.from.BlockLen()
		size := r.to.RowBytes(n)
		if r.buf == nil {
			r.buf = make([]byte, size) // the first window is the largest
		}
		if err := Convert(r.ctx, r.to, r.buf[:size], r.from, part, r.opt); err != nil {
			if v, ok := err.(*ValueError); ok {
				v.Index += r.done
			}
			return 0, err
		}
		r.ready, r.src = r.buf[:size], r.src[len(part):]
		r.done += n
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}
