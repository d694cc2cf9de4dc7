package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// job is a request that goes on without its client: its answer is written to the job, which keeps it for clients that
// come later. It lives as long as the memory keeps its turn, and counts there.
type job struct {
	memory    *memory
	key       ownedID // of its turn
	resumable bool    // its events are kept
	cancel    context.CancelCauseFunc
	ready     chan error    // gets nil when the request was accepted, or why it was not
	done      chan struct{} // closed at its end
	header    http.Header

	mu   sync.Mutex
	log  []byte        // all events
	ends []int         // of each event in log
	more chan struct{} // closed and replaced when there is more
}

// begin runs fn with a request that its client cannot end, and returns when fn has called accept or failed. What fn
// writes are events; it has to cope with an error after it called accept itself. The client may leave after that.
func (s *core) begin(r *http.Request, resumable bool, fn func(j *job, r *http.Request) error) (*job, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	rec := &record{}
	ctx = context.WithValue(ctx, recordKey{}, rec)
	j := &job{memory: s.memory, resumable: resumable, cancel: cancel, ready: make(chan error, 1),
		done: make(chan struct{}), more: make(chan struct{}), header: http.Header{}}
	stays := context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })
	ended := context.AfterFunc(s.jobsEnd, func() { cancel(errShutdown) })
	s.jobs.Go(func() {
		start := time.Now()
		defer cancel(nil)
		defer ended()
		defer j.finish()
		defer func() {
			if p := recover(); p != nil {
				s.cfg.Log.Error("job stopped by a defect", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				j.accept(fmt.Errorf("the server has a defect; its log says more"))
			}
		}()
		err := fn(j, r.WithContext(ctx))
		j.accept(err)
		if err == nil {
			attrs := append([]slog.Attr{slog.String("id", j.key.id), slog.Float64("ms", ms(time.Since(start)))}, rec.attrs...)
			if rec.err != nil {
				attrs = append(attrs, slog.String("error", rec.err.logged()))
			}
			s.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "request in the background", attrs...)
		}
	})
	err := <-j.ready
	stays()
	return j, err
}

// accept lets the client go, with an error or with what it needs to come back.
func (j *job) accept(err error) {
	select {
	case j.ready <- err:
	default: // it is gone
	}
}

func (j *job) finish() {
	close(j.done)
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.more)
	j.more = nil
}

// Header, WriteHeader, Write and Flush make a job the place where a stream goes.
func (j *job) Header() http.Header { return j.header }

// WriteHeader does nothing: errors are events.
func (j *job) WriteHeader(int) {}

// Flush does nothing: what is written can be read.
func (j *job) Flush() {}

// Write takes whole events.
func (j *job) Write(p []byte) (int, error) {
	if !j.resumable {
		return len(p), nil
	}
	j.mu.Lock()
	for at := 0; ; {
		n := bytes.Index(p[at:], []byte("\n\n"))
		if n < 0 {
			break
		}
		at += n + 2
		j.ends = append(j.ends, len(j.log)+at)
	}
	j.log = append(j.log, p...)
	close(j.more)
	j.more = make(chan struct{})
	j.mu.Unlock()
	j.memory.grow(j.key, len(p)) // not under the lock: the memory asks for the size under its own
	return len(p), nil
}

// size is how many bytes the events take.
func (j *job) size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return int64(len(j.log))
}

// follow sends the events after the first n, and those to come until the job's end.
func (j *job) follow(w http.ResponseWriter, r *http.Request, n int, ping time.Duration) error {
	j.mu.Lock()
	at, known := 0, len(j.ends)
	if n > 0 && n <= known {
		at = j.ends[n-1]
	}
	j.mu.Unlock()
	if n > known {
		return invalid("starting_after", "there is no event %d yet; the last one is %d", n-1, known-1)
	}
	st := newStream(w)
	tick := time.NewTicker(ping)
	defer tick.Stop()
	for {
		j.mu.Lock()
		news, more := j.log[at:], j.more
		j.mu.Unlock()
		if len(news) > 0 {
			at += len(news)
			st.buf.Write(news)
			if st.flush() != nil {
				return nil
			}
			tick.Reset(ping)
			continue
		}
		if more == nil {
			return nil
		}
		select {
		case <-more:
		case <-tick.C:
			if st.ping() != nil {
				return nil
			}
		case <-r.Context().Done():
			st.fail(r, context.Cause(r.Context()))
			return nil
		}
	}
}
