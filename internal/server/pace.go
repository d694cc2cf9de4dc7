package server

import (
	"sync"
	"time"
)

// pace measures how fast the generations of a model end, for clients that have to come again. Its methods may be called
// from any goroutine.
type pace struct {
	mu   sync.Mutex
	ends [paceEnds]time.Time // when the last ones ended, in a ring
	n    int                 // how many ended in all
}

// paceEnds is over how many generations the pace is measured: a few times those that run at once by default, because
// these end in bursts.
const paceEnds = 16

// shortestRetry and longestRetry are what clients are asked to wait. Those of OpenAI and Anthropic ignore more than a
// minute.
const shortestRetry, longestRetry = time.Second, time.Minute

// ended notes that a generation ended.
func (p *pace) ended(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[p.n%paceEnds] = now
	p.n++
}

// wait is how long it takes until as many generations have ended as wait now, if all goes on as before.
func (p *pace) wait(queued int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := min(p.n, paceEnds)
	if known < 2 {
		return shortestRetry
	}
	last, first := p.ends[(p.n-1)%paceEnds], p.ends[(p.n-known)%paceEnds]
	each := last.Sub(first) / time.Duration(known-1)
	if each > longestRetry/time.Duration(max(queued, 1)) {
		return longestRetry
	}
	return max(each*time.Duration(queued), shortestRetry)
}
