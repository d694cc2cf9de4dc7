package backend

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Panic is what a goroutine that works for another panicked with. As a value of panic it is an error that unwraps to
// the original one.
type Panic struct {
	value any
	stack []byte
}

func (p *Panic) Error() string { return fmt.Sprint(p.value) }

func (p *Panic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// Stack is where the goroutine was, which the stack of whoever waits for it does not show.
func (p *Panic) Stack() []byte { return p.stack }

// KeepPanic is deferred by goroutines that work for another. It keeps the first panic of them, which whoever waits for
// them raises again: there it can be recovered, here it would end the process.
func KeepPanic(first *atomic.Pointer[Panic]) {
	switch v := recover().(type) {
	case nil:
	case *Panic: // of a goroutine that worked for this one
		first.CompareAndSwap(nil, v)
	default:
		first.CompareAndSwap(nil, &Panic{v, debug.Stack()})
	}
}
