package cpu

import (
	"sync/atomic"
	"testing"
	"time"
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
