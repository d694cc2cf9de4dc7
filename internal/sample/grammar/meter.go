package grammar

import (
	"context"
	"errors"
)

// ErrWork ends an answer whose grammar needs too much work to find the tokens that may come next.
var ErrWork = errors.New("the grammar or schema is too complex: finding the tokens that may come next takes too much work; " +
	"use fewer alternatives that begin alike")

// errLater stops an attempt that was to be quick.
var errLater = errors.New("takes longer")

// Work is counted, not timed, so that a grammar is taken or refused on every machine alike. A unit is a node of the
// vocabulary, a state or a head that is looked at, about 10 ns. What takes memory costs a unit for every four bytes.
const (
	costFrame  = 32
	costConfig = 32
	costHead   = 4 // of a configuration that is new
	costTable  = 256

	// maskWork is what one token may cost: some tenths of a second. The costly masks of real schemas over
	// 250,000 tokens, several expressions at once or thousands of optional properties, take a tenth of it.
	maskWork = 1 << 25
	// maxClosure is how many states one byte may lead to; they are in memory at once.
	maxClosure = 1 << 18
	// maskMemory is the part of it that may take memory: 64 MB.
	maskMemory = 1 << 24
	// quickWork is what may be done while others wait: a few milliseconds.
	quickWork = 1 << 18
	// maxGrown is the part of the work that took memory after which the tables are renewed.
	maxGrown = 1 << 22
	// lookEvery is how much is done before the context is looked at: a millisecond.
	lookEvery = 1 << 16
)

// meter counts the work of one token. The sum does not depend on what others had found before, and hardly on how often
// finding it was tried: what a table keeps is counted once, and what comes out of a cache costs as if it had not.
type meter struct {
	saved   int  // in tables: a second attempt finds it there
	attempt int  // of this attempt, to be done again by another one
	grown   int  // memory since the tables were renewed
	now     int  // really done in this attempt
	limit   int  // of now; 0 for none
	free    bool // nothing counts
	ctx     context.Context
	looked  int   // now, when the context was last looked at
	stopped error // why the attempt ended: errLater, ErrWork or that of the context
}

func (w *meter) total() int { return w.saved + w.attempt }

// begin starts an attempt.
func (w *meter) begin(ctx context.Context, limit int) {
	w.ctx, w.limit, w.attempt, w.now, w.looked = ctx, limit, 0, 0, 0
	if w.stopped != ErrWork {
		w.stopped = nil
	}
}

// charge counts work and reports whether to go on.
func (w *meter) charge(n int) bool {
	w.attempt += n
	return w.spend(n)
}

// keep counts work that no attempt does again.
func (w *meter) keep(n int) {
	w.saved += n
	w.grown += n
	w.spend(n)
}

// remember turns what was counted since before into work that no attempt does again.
func (w *meter) remember(before int) {
	w.saved += w.attempt - before
	w.attempt = before
}

// cached counts work whose result another request may have left in the cache.
func (w *meter) cached(n int) bool {
	w.attempt += n
	return w.spend(0)
}

// spend decides before the work is done.
func (w *meter) spend(n int) bool {
	switch {
	case w.free || w.stopped != nil:
	case w.total() > maskWork, w.grown > maskMemory:
		w.stopped = ErrWork
	case w.limit > 0 && w.now+n > w.limit:
		w.stopped = errLater
	case w.ctx != nil && w.now+n-w.looked > lookEvery:
		w.looked = w.now + n
		w.stopped = w.ctx.Err()
	}
	if w.stopped == nil {
		w.now += n
	}
	return w.stopped == nil
}
