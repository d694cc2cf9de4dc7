package floor

import (
	"sync"
	"time"

	"strobe/internal/backend/cpu/kernel"
)

//go:generate sh -c "cd _asm && go run . -out ../floor_amd64.s -stubs ../stubs_amd64.go -pkg floor"

// turn is the unit of the read loops.
const turn = 512

// Reader reads a buffer over and over.
type Reader struct {
	buf []byte
	at  int
}

// NewReader returns a reader of a buffer of n bytes (rounded up), every page of which is in memory.
func NewReader(n int) *Reader {
	n = max(turn, (n+turn-1)/turn*turn)
	r := &Reader{buf: make([]byte, n)}
	for i := 0; i < n; i += 4096 {
		r.buf[i] = 1 // a page that was never written is shared, and read from the cache
	}
	return r
}

// Size is the number of bytes in the buffer.
func (r *Reader) Size() int { return len(r.buf) }

// Read reads about n bytes with the given number of threads, from where the last call ended, and
// returns how many it read and how long that took. Asked for more than the buffer has, every thread
// reads its own part of it again and again.
func (r *Reader) Read(threads, n int) (int, time.Duration) {
	threads = max(1, threads)
	laps := max(1, n/len(r.buf))
	part := max(turn, min(n, len(r.buf))/threads/turn*turn)
	pieces := make([][]byte, threads)
	total := 0
	for t := range pieces {
		if r.at+part > len(r.buf) {
			r.at = 0
		}
		end := min(len(r.buf), r.at+part)
		pieces[t] = r.buf[r.at:end]
		total += laps * (end - r.at)
		r.at = end % len(r.buf)
	}
	return total, together(threads, func(t int) {
		for range laps {
			read(pieces[t])
		}
	})
}

// Dot multiplies with the given number of threads for about the given time and returns the
// number of products and how long they took.
func Dot(threads int, d time.Duration) (products int, took time.Duration) {
	threads = max(1, threads)
	level := kernel.Current()
	// Find the number of turns once; the measurement itself must not look at the clock.
	turns := 256
	for {
		start := time.Now()
		dot(level, turns)
		if t := time.Since(start); t > d/8 || t > 2*time.Millisecond {
			turns = max(1, int(float64(turns)*float64(d)/float64(t)))
			break
		}
		turns *= 2
	}
	took = together(threads, func(int) { dot(level, turns) })
	return threads * turns * perTurn(level), took
}

// together runs fn on all threads and returns the time until the last has ended.
func together(threads int, fn func(thread int)) time.Duration {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	ready := make(chan struct{}, threads)
	for t := 1; t < threads; t++ {
		wg.Go(func() {
			ready <- struct{}{}
			<-begin
			fn(t)
		})
	}
	for range threads - 1 {
		<-ready
	}
	start := time.Now()
	close(begin)
	fn(0)
	wg.Wait()
	return time.Since(start)
}
