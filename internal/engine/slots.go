package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"strobe/internal/speculate"
)

// What a slot remembers lies in the prefix cache, which all slots share. slotfiles.go saves it under a name.

// Errors of slots that callers tell apart.
var (
	ErrSlotEmpty = errors.New("there is nothing of this slot in the prefix cache")
	ErrNotSaved  = errors.New("there is no slot file of this name")
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

// EraseSlot forgets what a slot remembers, in memory and in the folder of the cache, and returns how many tokens that
// were. Files of SaveSlot stay.
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
