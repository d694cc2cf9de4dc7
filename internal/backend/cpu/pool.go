package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"strobe/internal/backend"
)

// pool runs one function on several workers at once, round after round. The caller is worker 0; the
// others are goroutines that wait for the next round. Between the operations of a step they
// spin, because waking a sleeping thread costs as much as a small operation; after
// spinTime without work they sleep, so an idle engine uses no CPU.
//
// When other programs use the cores, a worker may be suspended for milliseconds. Therefore a round does not wait for
// workers that have not started: the workers that run take all the work, and then the round is closed.
//
// A panic in any worker ends the round and is raised again in the caller, after all workers have left the round: the
// caller may recover and use the pool again.
type pool struct {
	n       int
	fn      func(worker int)
	state   atomic.Uint64 // round, closed bit, and how many workers other than the caller are in the round
	stop    atomic.Bool
	gates   []gate // of workers 1..n-1
	spans   []span // of the current split
	waiting atomic.Bool
	last    chan struct{}                 // tells the waiting caller that the round is empty
	panic   atomic.Pointer[backend.Panic] // the first of the round
	done    sync.WaitGroup
}

const (
	roundShift = 32
	closedBit  = 1 << 31
	inRound    = closedBit - 1
)

func (p *pool) round() uint32 { return uint32(p.state.Load() >> roundShift) }

// span is a range of items that a worker still has to do, as two 32-bit halves. Its owner takes from
// the front, others from the back.
type span struct {
	v atomic.Uint64
	_ [56]byte // one span per cache line
}

func (s *span) set(lo, hi int) { s.v.Store(uint64(lo)<<32 | uint64(hi)) }

// take removes a part of the range: a quarter from the front, or half from the back. end is where the
// owner's range ends now.
func (s *span) take(front bool) (lo, hi, end int) {
	for {
		v := s.v.Load()
		lo, hi := int(v>>32), int(v&0xffffffff)
		n := hi - lo
		if n <= 0 {
			return 0, 0, 0
		}
		if front {
			n = (n + 3) / 4
			if s.v.CompareAndSwap(v, uint64(lo+n)<<32|uint64(hi)) {
				return lo, lo + n, hi
			}
			continue
		}
		n = (n + 1) / 2
		if s.v.CompareAndSwap(v, uint64(lo)<<32|uint64(hi-n)) {
			return hi - n, hi, hi
		}
	}
}

// gate is where one worker waits.
type gate struct {
	asleep atomic.Bool
	wake   chan struct{}
	_      [40]byte // one gate per cache line
}

const spinTime = 150 * time.Microsecond

func newPool(n int) *pool {
	p := &pool{n: n, gates: make([]gate, n), spans: make([]span, n), last: make(chan struct{}, 1)}
	for w := 1; w < n; w++ {
		p.gates[w].wake = make(chan struct{}, 1)
		p.done.Go(func() { p.work(w) })
	}
	return p
}

func (p *pool) work(w int) {
	// Weights are read from mapped files. One that another program cut short is a fault, which would end
	// the process; as a panic it ends the step.
	debug.SetPanicOnFault(true)
	g := &p.gates[w]
	for seen := uint32(0); p.await(g, seen); {
		v := p.state.Load()
		for seen = uint32(v >> roundShift); v&closedBit == 0 && uint32(v>>roundShift) == seen; v = p.state.Load() {
			if !p.state.CompareAndSwap(v, v+1) {
				continue
			}
			p.call(p.fn, w)
			if p.state.Add(^uint64(0))&(closedBit|inRound) == closedBit && p.waiting.CompareAndSwap(true, false) {
				p.last <- struct{}{}
			}
			break
		}
	}
}

// call runs a worker's part of a round and keeps the round's first panic.
func (p *pool) call(fn func(worker int), w int) {
	defer backend.KeepPanic(&p.panic)
	fn(w)
}

// await returns true when a round after seen has begun, and false when the pool stops.
func (p *pool) await(g *gate, seen uint32) bool {
	var start time.Time
	for i := 0; ; i++ {
		if p.stop.Load() { // in any round: a worker may miss the one that close begins
			return false
		}
		if p.round() != seen {
			return true
		}
		if i&0xff != 0xff {
			continue
		}
		runtime.Gosched()
		if start.IsZero() {
			start = time.Now()
		} else if time.Since(start) > spinTime {
			// Announce sleep, then look once more: begin looks at asleep after it has
			// changed the round, so one of the two sees the other.
			g.asleep.Store(true)
			if p.round() == seen && !p.stop.Load() || !g.asleep.CompareAndSwap(true, false) {
				<-g.wake
			}
			start, i = time.Time{}, 0
		}
	}
}

// run calls fn on the calling worker and on all workers that start before fn(0) has returned, and waits for them. fn(0)
// must do all the work that the others have not taken. A panic of any of them is raised in the caller.
func (p *pool) run(fn func(worker int)) {
	if p.n == 1 {
		fn(0)
		return
	}
	p.fn = fn // no worker reads it: the round before is closed and empty
	p.begin(0)
	p.call(fn, 0)
	p.finish()
	if v := p.panic.Load(); v != nil {
		p.panic.Store(nil)
		panic(v)
	}
}

// finish closes the round and waits until it is empty.
func (p *pool) finish() {
	if p.state.Or(closedBit)&inRound == 0 {
		return
	}
	start := time.Now()
	for i := 0; p.state.Load()&inRound != 0; i++ {
		if i&0x3ff != 0x3ff {
			continue
		}
		runtime.Gosched()
		if time.Since(start) > spinTime {
			p.stall()
			return
		}
	}
}

// stall waits for workers that take much longer than they should: their threads are not running. Sleeping
// is the best way to wait, since the system moves them to the core that becomes free.
func (p *pool) stall() {
	p.waiting.Store(true)
	if p.state.Load()&inRound != 0 || !p.waiting.CompareAndSwap(true, false) {
		<-p.last
	}
}

// begin starts a round with the given bits set.
func (p *pool) begin(bits uint64) {
	p.state.Store(uint64(p.round()+1)<<roundShift | bits)
	for w := 1; w < p.n; w++ {
		g := &p.gates[w]
		if g.asleep.Load() && g.asleep.CompareAndSwap(true, false) {
			g.wake <- struct{}{}
		}
	}
}

// each shares tasks [0, n) among the workers as they become free.
func (p *pool) each(n int, fn func(worker, task int)) {
	if n == 1 || p.n == 1 {
		for t := range n {
			fn(0, t)
		}
		return
	}
	var next atomic.Int32
	p.run(func(w int) {
		for {
			t := int(next.Add(1)) - 1
			if t >= n {
				return
			}
			fn(w, t)
		}
	})
}

// split shares items [0, n) so that each worker goes through one range in order, which keeps the
// processor's prefetching useful. Whoever finishes early takes from the end of another's range. The
// worker will probably go on from item to to item ahead.
func (p *pool) split(n int, fn func(worker, from, to, ahead int)) {
	if p.n == 1 || n == 1 {
		fn(0, 0, n, n)
		return
	}
	for w := range p.n {
		p.spans[w].set(n*w/p.n, n*(w+1)/p.n)
	}
	p.run(func(w int) {
		for lo, hi, end := p.spans[w].take(true); lo < hi; lo, hi, end = p.spans[w].take(true) {
			fn(w, lo, hi, end)
		}
		for i := 1; i < p.n; i++ {
			v := &p.spans[(w+i)%p.n]
			for lo, hi, end := v.take(false); lo < hi; lo, hi, end = v.take(false) {
				fn(w, lo, hi, end)
			}
		}
	})
}

func (p *pool) close() {
	if p.n == 1 || p.stop.Swap(true) {
		return
	}
	p.begin(closedBit)
	p.done.Wait()
}
