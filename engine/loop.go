package engine

// loop is the state of an engine's goroutine.
type loop struct{ e *Engine }

// call is work for the loop that is not a generation.
type call struct{}

func newLoop(e *Engine) *loop { return &loop{e: e} }

func (l *loop) run() { close(l.e.done) }
