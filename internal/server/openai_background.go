package server

import (
	"net/http"
	"strconv"
)

// respondLater makes a response that goes on when the client leaves. The client gets it as it is queued, or its events
// if it asked for a stream.
func (s *openAI) respondLater(w http.ResponseWriter, r *http.Request, q *responsesRequest,
	c *conversation) (any, error) {
	if !q.stores() || s.memory.limit <= 0 {
		return nil, invalid("background", "needs a response that is kept; see store and --responses-memory")
	}
	c.stream = true
	var queued turn
	j, err := s.begin(r, q.Stream, func(j *job, r *http.Request) error {
		var a *responseAnswer
		c.accepted = func() (err error) {
			if queued, err = a.base.turn(q.items); err != nil {
				return err
			}
			queued.job, j.key = j, ownedID{a.owner, a.base.ID}
			if !s.memory.put(a.owner, queued) {
				return tooLarge(s.memory)
			}
			a.start()
			if err := a.st.flush(); err != nil {
				return err
			}
			j.accept(nil)
			return nil
		}
		_, err := s.converse(j, r, c, func(x *exchange) answer {
			a = s.newResponseAnswer(r, q, x)
			a.base.Status, a.job, x.st.idle = "queued", j, nil
			return a
		})
		if err != nil {
			return err
		}
		if a.base.Status == "in_progress" { // it was cancelled
			return a.cancelled()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if q.Stream {
		return nil, j.follow(w, r, 0, s.cfg.Ping)
	}
	return queued.body, nil
}

// cancelled ends a response with what there is of it.
func (a *responseAnswer) cancelled() error {
	a.end("incomplete")
	a.base.Status = "cancelled"
	if err := a.keep(); err != nil {
		return err
	}
	a.event("response.cancelled", map[string]any{"response": &a.base})
	return a.st.flush()
}

// resume sends the events of a response that is made in the background, from the one after a number.
func (s *openAI) resume(w http.ResponseWriter, r *http.Request, x *stored, after string) error {
	if x.job == nil || !x.job.resumable {
		return invalid("stream", "only responses that were asked for with background and stream are streamed again")
	}
	n := 0
	if after != "" {
		last, err := strconv.Atoi(after)
		if err != nil || last < 0 {
			return invalid("starting_after", "%q is not the number of an event", after)
		}
		n = last + 1
	}
	return x.job.follow(w, r, n, s.cfg.Ping)
}

// cancelResponse ends a response that is made in the background. One that has ended stays as it is.
func (s *openAI) cancelResponse(w http.ResponseWriter, r *http.Request) (any, error) {
	x, err := s.storedResponse(r)
	if err != nil {
		return nil, err
	}
	if x.job == nil {
		return nil, invalid("", "response %q was not asked for with background: true; it ends with its request", x.key.id)
	}
	x.job.cancel(errClient)
	select {
	case <-x.job.done:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return s.getResponse(w, r)
}
