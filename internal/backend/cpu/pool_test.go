package cpu

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"strobe/internal/backend"
)

// TestPoolCoversEverything: every item is done exactly once, whatever the sizes, also after
// the workers have gone to sleep.
func TestPoolCoversEverything(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 7} {
		p := newPool(workers)
		for round := range 50 {
			if round%10 == 9 {
				time.Sleep(2 * spinTime) // let them fall asleep
			}
			for _, n := range []int{1, 2, 3, 16, 97, 1000} {
				done := make([]atomic.Int32, n)
				p.split(n, func(_, from, to, ahead int) {
					if ahead < to || ahead > n {
						t.Errorf("range up to %d goes on to %d of %d", to, ahead, n)
					}
					for i := from; i < to; i++ {
						done[i].Add(1)
					}
				})
				p.each(n, func(w, i int) {
					if w < 0 || w >= workers {
						t.Errorf("worker %d of %d", w, workers)
					}
					done[i].Add(1)
				})
				for i := range done {
					if c := done[i].Load(); c != 2 {
						t.Fatalf("%d workers, %d items: item %d done %d times, want 2", workers, n, i, c)
					}
				}
			}
		}
		p.close()
		p.close()
	}
}

// TestPoolPanic: a panic in any worker reaches the caller with its value and the worker's stack, when no worker
// works on the round any more, and the pool goes on working. In a worker it would end the process.
func TestPoolPanic(t *testing.T) {
	for _, workers := range []int{2, 3, 5} {
		p := newPool(workers)
		for bad := range workers {
			for round := range 20 {
				var inside atomic.Int32
				begun := make(chan struct{})
				boom := fmt.Errorf("boom %d", round)
				got := func() (v any) {
					defer func() { v = recover() }()
					p.run(func(w int) {
						inside.Add(1)
						defer inside.Add(-1)
						if w == bad {
							defer close(begun)
							panicIn(boom)
						}
						if w == 0 {
							<-begun // a round does not wait for a worker that has not begun
						}
					})
					return nil
				}()
				w, ok := got.(*backend.Panic)
				if !ok || !errors.Is(w, boom) || w.Error() != boom.Error() || !strings.Contains(string(w.Stack()), "panicIn") {
					t.Fatalf("worker %d of %d: recovered %v", bad, workers, got)
				}
				if n := inside.Load(); n != 0 {
					t.Fatalf("%d workers are still in the round", n)
				}
				done := make([]atomic.Int32, 100)
				p.each(100, func(_, i int) { done[i].Add(1) })
				p.split(100, func(_, from, to, _ int) {
					for i := from; i < to; i++ {
						done[i].Add(1)
					}
				})
				for i := range done {
					if done[i].Load() != 2 {
						t.Fatalf("after a panic item %d is done %d times, want 2", i, done[i].Load())
					}
				}
			}
		}
		p.close()
	}
}

func panicIn(err error) { panic(err) }

// TestPoolClose: a worker that comes so late that it takes the round in which the pool is closed for one that is over
// must end, too, instead of waiting for the next.
func TestPoolClose(t *testing.T) {
	p := &pool{n: 2, gates: make([]gate, 2)}
	g := &p.gates[1]
	g.wake = make(chan struct{}, 1)
	p.stop.Store(true)
	p.begin(closedBit)
	goes := make(chan bool, 1)
	go func() { goes <- p.await(g, p.round()) }()
	select {
	case on := <-goes:
		if on {
			t.Error("the worker goes on")
		}
	case <-time.After(10 * time.Second):
		t.Error("the worker waits for a round that never comes")
	}
}
