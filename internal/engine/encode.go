package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"strobe/internal/platform"
)

// Images are encoded between the steps of generations, a block of the encoder at a time where both run on one device:
// a goroutine of its own goes through the encoder, and the loop lets it go on for one block and waits. On a device of
// its own the encoder runs beside the loop. One image is encoded at a time; jobs that need it wait.

// encoding is an image being encoded.
type encoding struct {
	image  *Image
	cancel context.CancelFunc
	turn   chan struct{} // the encoder may go on; closed where it need not wait
	back   chan struct{} // it has done a part, or all
	done   atomic.Bool
	parts  atomic.Int32 // per cent that are done
	rows   []float32
	err    error
}

// encodeStep goes on with an image that a job waits for. It reports whether there was anything to do at once.
func (l *loop) encodeStep() bool {
	if l.encoding == nil {
		for _, j := range l.jobs {
			if j.waits != nil {
				l.encoding, l.m.Vision.busy = l.m.Vision.begin(j.waits, l.e.wake), true
				break
			}
		}
	}
	e := l.encoding
	if e == nil {
		return false
	}
	if !slices.ContainsFunc(l.jobs, func(j *job) bool { return j.waits != nil && j.waits.key == e.image.key }) {
		e.cancel() // nothing needs it any more
	}
	if l.m.Vision.own {
		if !e.done.Load() {
			l.encoded(e)
			return false // it wakes the loop
		}
	} else {
		e.turn <- struct{}{}
		<-e.back
	}
	l.encoded(e)
	return true
}

// encoded tells jobs how far their image is, and lets them go on when it is done.
func (l *loop) encoded(e *encoding) {
	done := e.done.Load()
	if done {
		l.encoding, l.m.Vision.busy = nil, false
		if e.err == nil {
			l.m.Vision.remember(e.image.key, e.rows)
		}
	}
	for _, j := range slices.Clone(l.jobs) {
		if j.waits == nil || j.waits.key != e.image.key {
			continue
		}
		j.g.update(func(s *State) { s.Encoding = int(e.parts.Load()) })
		if j.g.req.Progress {
			j.g.progress()
		}
		switch {
		case !done:
		case e.err == nil:
			if j.rows == nil {
				j.rows = map[[32]byte][]float32{}
			}
			j.rows[e.image.key] = e.rows // others may be forgotten before all of the job's images are there
			l.proceed(j)
		case !errors.Is(e.err, context.Canceled):
			l.end(j, ReasonError, fmt.Errorf("image: %w", e.err))
		}
	}
}

// stopEncoding ends an encoding in progress and waits for it.
func (l *loop) stopEncoding() {
	e := l.encoding
	if e == nil {
		return
	}
	e.cancel()
	for !e.done.Load() {
		if !l.m.Vision.own {
			e.turn <- struct{}{}
		}
		<-e.back
	}
	l.encoding, l.m.Vision.busy = nil, false
}

// begin starts to encode an image.
func (v *Vision) begin(p *Image, wake func()) *encoding {
	ctx, cancel := context.WithCancel(context.Background())
	e := &encoding{image: p, cancel: cancel, turn: make(chan struct{}), back: make(chan struct{}, 1)}
	wait := func() {
		if !v.own {
			<-e.turn
		}
	}
	go func() {
		defer cancel()
		debug.SetPanicOnFault(true)
		wait()
		e.rows, e.err = v.guarded(ctx, p, func(done, total int) {
			e.parts.Store(int32(100 * done / max(1, total)))
			if v.own {
				wake()
				return
			}
			if done < total {
				e.back <- struct{}{}
				wait()
			}
		})
		e.done.Store(true)
		e.back <- struct{}{}
		wake()
	}()
	return e
}

// guarded is encode, whose panics are errors.
func (v *Vision) guarded(ctx context.Context, p *Image, progress func(done, total int)) (rows []float32, err error) {
	defer func() {
		if r := recover(); r != nil {
			if err = fmt.Errorf("the image encoder was stopped by a defect: %v", r); platform.IsFault(r) {
				err = fmt.Errorf("%s: %w", v.Path, ErrFileChanged)
			}
		}
	}()
	return v.encode(ctx, p, progress)
}
