package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"strobe/internal/speculate"
)

// What a slot remembers lies in the prefix cache, which all slots share: to save it is to give the text of the slot's
// last generation a name, and to restore it is to look whether the cache, in memory or on disk, still has what was
// computed for that text. Names last as long as the engine.

// maxSaved is how many names there may be.
const maxSaved = 256

// Errors of slots that callers tell apart.
var (
	ErrSlotEmpty = errors.New("there is nothing of this slot in the prefix cache")
	ErrNotSaved  = errors.New("nothing was saved under this name")
)

// SlotError reports a slot that does not exist.
type SlotError struct{ Slot, Slots int }

func (e *SlotError) Error() string {
	return fmt.Sprintf("there is no slot %d; there are %d", e.Slot, e.Slots)
}

// do runs fn on the engine's goroutine, between steps.
func (e *Engine) do(ctx context.Context, slot int, fn func(l *loop) error) error {
	if slot < 0 || slot >= e.cfg.Parallel {
		return &SlotError{slot, e.cfg.Parallel}
	}
	result := make(chan error, 1)
	e.mu.Lock()
	err := e.failed
	if err == nil && e.closing {
		err = ErrClosed
	}
	if err == nil {
		e.tasks = append(e.tasks, func(l *loop) {
			if l.cache == nil {
				result <- fmt.Errorf("%w: the prefix cache is off", ErrUnsupported)
				return
			}
			result <- fn(l)
		})
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	e.wake()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return ErrClosed
	}
}

// runTasks does what was asked for since the last time.
func (l *loop) runTasks() {
	l.e.mu.Lock()
	tasks := l.e.tasks
	l.e.tasks = nil
	l.e.mu.Unlock()
	for _, fn := range tasks {
		fn(l)
	}
}

// SaveSlot gives what a slot remembers a name and returns how many tokens that are, and how many bytes. With a folder
// for the cache it is written there.
func (e *Engine) SaveSlot(ctx context.Context, slot int, name string) (tokens int, bytes int64, err error) {
	type saved struct {
		n     int
		bytes int64
	}
	out := make(chan saved, 1)
	err = e.do(ctx, slot, func(l *loop) error {
		x, n := l.remembered(l.texts[slot])
		if x == nil {
			return ErrSlotEmpty
		}
		if _, ok := l.saved[name]; !ok && len(l.saved) >= maxSaved {
			return fmt.Errorf("%d names are saved already", maxSaved)
		}
		if l.saved == nil {
			l.saved = map[string]text{}
		}
		l.saved[name] = text{l.texts[slot].salt, slices.Clone(l.texts[slot].tokens[:n])}
		if l.disk != nil && !l.stored(x) {
			l.soon = append(l.soon, x)
		}
		out <- saved{n, int64(x.seq.Bytes())}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	s := <-out
	return s.n, s.bytes, nil
}

// RestoreSlot looks for what was saved under a name and returns how many tokens of it a request will find.
func (e *Engine) RestoreSlot(ctx context.Context, slot int, name string) (tokens int, err error) {
	out := make(chan int, 1)
	err = e.do(ctx, slot, func(l *loop) error {
		t, ok := l.saved[name]
		if !ok {
			return ErrNotSaved
		}
		x, n := l.remembered(t)
		if x != nil {
			l.cache.touch(x)
		}
		if l.disk != nil {
			if _, k := l.disk.find(t.longer(), l.needs(speculate.Options{})); k > n {
				n = k
			}
		}
		if n == 0 {
			return fmt.Errorf("%w any more: the prefix cache needed the room", ErrNotSaved)
		}
		l.texts[slot] = text{t.salt, t.tokens[:n]}
		out <- n
		return nil
	})
	if err != nil {
		return 0, err
	}
	return <-out, nil
}

// EraseSlot forgets what a slot remembers, in memory and on disk, and returns how many tokens that were.
func (e *Engine) EraseSlot(ctx context.Context, slot int) (tokens int, err error) {
	out := make(chan int, 1)
	err = e.do(ctx, slot, func(l *loop) error {
		was := l.texts[slot]
		inside := func(t text) bool { return t.salt == was.salt && common(t.tokens, was.tokens) == len(t.tokens) }
		for _, x := range slices.Clone(l.cache.entries) {
			if inside(x.text) {
				l.soon = slices.DeleteFunc(l.soon, func(y *entry) bool { return y == x })
				l.cache.drop(x)
			}
		}
		if l.disk != nil {
			l.disk.files = slices.DeleteFunc(l.disk.files, func(f *diskFile) bool {
				return inside(f.text) && os.Remove(f.path) == nil
			})
		}
		l.texts[slot] = text{}
		out <- len(was.tokens)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return <-out, nil
}

// remembered is the entry that has most of a text, and how much.
func (l *loop) remembered(t text) (*entry, int) {
	return l.cache.find(t.longer(), l.needs(speculate.Options{}))
}

// longer is a prompt that has all of the text: the last token of a prompt is never looked for.
func (t text) longer() text { return text{t.salt, append(slices.Clone(t.tokens), -1)} }
