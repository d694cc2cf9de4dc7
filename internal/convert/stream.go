package convert

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// chunkBytes is about how much output one worker makes at a time: large enough
// that hand-over costs nothing, small enough that a handful of chunks in flight
// is no memory to speak of.
const chunkBytes = 4 << 20

// RowEncoder writes rows from up to to of a tensor into dst, which has exactly
// their size.
type RowEncoder func(dst []byte, from, to int) error

// chunk is one piece of a tensor on its way to the file.
type chunk struct {
	from, to int
	data     []byte
	err      error
	done     chan struct{}
}

// WriteRows makes a tensor's rows on all cores and writes them in order. rowBytes
// is the size of one row in the file; newEncoder is called once per worker.
// Memory use is a few megabytes per core whatever the tensor's size.
func WriteRows(ctx context.Context, w *gguf.Writer, name string, rows, rowBytes int, newEncoder func() RowEncoder,
	progress func(int64)) error {
	per := min(rows, max(1, chunkBytes/max(1, rowBytes)))
	workers := min(runtime.GOMAXPROCS(0), (rows+per-1)/max(1, per))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// Chunks wait in line to be written in order; the length of the line bounds
	// the memory in flight. Buffers go round.
	line := make(chan *chunk, workers)
	jobs := make(chan *chunk)
	free := make(chan []byte, 2*workers+1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range workers {
		encode := newEncoder()
		wg.Go(func() {
			for c := range jobs {
				n := (c.to - c.from) * rowBytes
				select {
				case c.data = <-free:
				default:
					c.data = make([]byte, per*rowBytes)
				}
				c.data = c.data[:n]
				if c.err = ctx.Err(); c.err == nil { // else what waits in line is not wanted any more
					c.err = encode(c.data, c.from, c.to)
				}
				close(c.done)
			}
		})
	}
	wg.Go(func() {
		defer close(line)
		defer close(jobs)
		for from := 0; from < rows && ctx.Err() == nil; from += per {
			c := &chunk{from: from, to: min(rows, from+per), done: make(chan struct{})}
			line <- c
			jobs <- c
		}
	})
	var err error
	for c := range line {
		<-c.done
		if err != nil {
			continue // emptying the line after an error
		}
		if err = c.err; err == nil {
			err = w.WriteTensor(name, c.data)
		}
		if err != nil {
			cancel()
			continue
		}
		if progress != nil {
			progress(int64(len(c.data)))
		}
		select {
		case free <- c.data[:per*rowBytes]:
		default:
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// writeSource writes one converted tensor of a checkpoint.
func writeSource(ctx context.Context, w *gguf.Writer, t *outTensor, typ quant.Type, progress func(int64)) error {
	if t.ids != nil {
		b := make([]byte, 0, 8*len(t.ids))
		for _, id := range t.ids {
			b = binary.LittleEndian.AppendUint64(b, uint64(id))
		}
		return w.WriteTensor(t.name, b)
	}
	width := t.src.width()
	enc := func() RowEncoder {
		scratch := make([]float32, width)
		return func(dst []byte, from, to int) error { return t.src.encode(typ, dst, from, to, scratch) }
	}
	return WriteRows(ctx, w, t.name, t.src.rows(), typ.RowBytes(width), enc, progress)
}
