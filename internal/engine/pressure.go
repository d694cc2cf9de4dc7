package engine

import (
	"errors"
	"fmt"
	"slices"

	"strobe/internal/backend"
	"strobe/internal/speculate"
)

// What happens when memory runs out.
//
// The prefix cache gives up its entries, drafters their weights, and then the generations that began last are paused:
// they give their memory back and begin anew, with what they generated as a part of the prompt, when there is room. The
// text stays the same. The oldest one always goes on, so all of them end. A generation that does not fit although it
// runs alone ends with a MemoryError.

// ErrNoMemory is in the errors of requests that memory is too short for.
var ErrNoMemory = backend.ErrNoMemory

// MemoryError reports a request that does not fit into memory, although nothing else ran.
type MemoryError struct {
	Tokens int   // of the prompt, and of the answer so far
	Bytes  int64 // that they take in the caches of target and drafters
	Err    error
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("too little memory for this request: %d tokens take %s besides the model; send a shorter prompt, or "+
		"serve with a smaller type of cache (--kv): %v", e.Tokens, Bytes(int(e.Bytes)), e.Err)
}

func (e *MemoryError) Unwrap() error { return e.Err }

// recover finds out whose fault a failed step was. Memory may be short: the cache gives up what it
// can. Then each stream that is still sound tries alone, the oldest first, and only those that fail again end or wait.
// A pass that ended half-way leaves none of its streams sound.
func (l *loop) recover(live []*job, err error) error {
	l.e.cfg.Log.Warn("step failed, trying each stream alone", "streams", len(live), "error", err)
	if end := l.ending(err); end != nil {
		return end
	}
	if l.cache != nil && !errors.Is(err, ErrNoMemory) {
		l.cache.shrink(0) // the device may not say what it lacks
	}
	for _, j := range slices.Clone(l.jobs) {
		if !slices.Contains(live, j) || j.paused {
			continue
		}
		fault := err
		if j.consistent() {
			if j.stream.Done() {
				continue
			}
			if fault = l.retry(j); fault == nil {
				continue
			}
			if l.fatal(fault) {
				return fault
			}
		}
		if !l.restart(j, fault) {
			if errors.Is(fault, ErrNoMemory) {
				n := len(j.all())
				fault = &MemoryError{n, l.size(n), fault}
			}
			l.end(j, ReasonError, fault)
		}
	}
	return nil
}

// retry runs a step of one job, making room for it as long as it is refused memory. It returns nil for one that is
// paused in the end.
func (l *loop) retry(j *job) error {
	parked := false
	for {
		fault := l.advance([]*speculate.Stream{j.stream})
		if fault == nil || errors.Is(fault, errDefect) || !j.consistent() {
			return fault
		}
		full := errors.Is(fault, ErrNoMemory)
		switch {
		case full && l.halve():
		case !parked && l.parkDrafters():
			parked = true
			l.m.hold(true)
		case full && l.pauseYoungest():
			if j.paused {
				return nil
			}
		default:
			return fault
		}
	}
}

// halve gives up half of the prefix cache and reports whether there was anything.
func (l *loop) halve() bool {
	if l.cache == nil || len(l.cache.entries) == 0 {
		return false
	}
	l.cache.shrink(l.cache.bytes() / 2)
	return true
}

// pauseYoungest pauses the job that began last, if it is not the only one.
func (l *loop) pauseYoungest() bool {
	if l.running() < 2 {
		return false
	}
	for _, j := range slices.Backward(l.jobs) {
		if l.pausable(j) {
			l.pause(j)
			return true
		}
	}
	return false
}

// restart pauses a job whose pass ended half-way for want of memory, unless it had all there is.
func (l *loop) restart(j *job, fault error) bool {
	if !errors.Is(fault, ErrNoMemory) || j.consistent() || !l.pausable(j) || l.running() < 2 && !l.halve() {
		return false
	}
	l.pause(j)
	return true
}

// running is the number of jobs that have memory.
func (l *loop) running() (n int) {
	for _, j := range l.jobs {
		if j.running() {
			n++
		}
	}
	return n
}

// pausable reports whether a job can begin anew with the same text: nothing of a failed pass is in it,
// and generated tokens are remembered as those of a prompt are.
func (l *loop) pausable(j *job) bool {
	return j.running() && !j.stream.Done() && j.stream.Err() == nil && (j.consistent() || len(j.out) == 0) &&
		(len(j.tokens) == 0 || !l.m.lossyDecoding())
}

// pause takes a job's memory.
func (l *loop) pause(j *job) {
	l.full = l.used()
	l.e.cfg.Log.Info("generation waits for memory", "slot", j.slot, "tokens", len(j.all()), "bytes", l.full)
	j.g.emit(j.out)
	j.out = j.out[:0]
	j.endLeg()
	j.seq.Close()
	j.drafts.close()
	j.seq, j.drafts, j.marks = nil, nil, nil
	j.paused, j.again = true, true
	j.g.update(func(s *State) { s.Phase, s.Processed = PhaseQueued, 0 })
	l.e.mu.Lock()
	l.e.snap.Paused++
	l.e.mu.Unlock()
}

// resume lets paused jobs go on, the oldest first, where what was too much before leaves room for them.
func (l *loop) resume() {
	for _, j := range slices.Clone(l.jobs) {
		if !j.paused {
			continue
		}
		sum := l.size(len(j.all()))
		for _, x := range l.jobs {
			if x.running() {
				sum += l.size(len(x.all()))
			}
		}
		if sum >= l.full && l.running() > 0 {
			return
		}
		j.paused = false
		l.begin(j)
	}
}

// size is what the sequences of a job of n tokens take.
func (l *loop) size(n int) int64 { return sizeOf(l.m.Target.Memory(), l.drafters, n) }

// used is what all sequences take.
func (l *loop) used() int64 {
	n := l.m.Target.Memory().UsedBytes()
	for _, m := range l.drafters {
		if m != nil {
			n += m.UsedBytes()
		}
	}
	return int64(n)
}
