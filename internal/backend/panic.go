package backend

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Panic is the panic of a worker goroutine, raised again by the goroutine that waits for it. It is an error that
// unwraps to the original one.
type Panic struct {
	value any
	stack []byte
}

func (p *Panic) Error() string { return fmt.Sprint(p.value) }

func (p *Panic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// Stack is the stack of the worker at the panic.
func (p *Panic) Stack() []byte { return p.stack }

// KeepPanic is deferred by workers. It stores the first panic of them, which the goroutine that waits for them raises
// again: there it can be recovered, in a worker it would end the process.
func KeepPanic(first *atomic.Pointer[Panic]) {
	switch v := recover().(type) {
	case nil:
	case *Panic: // of a worker of this worker
		first.CompareAndSwap(nil, v)
	default:
		first.CompareAndSwap(nil, &Panic{v, debug.Stack()})
	}
}
