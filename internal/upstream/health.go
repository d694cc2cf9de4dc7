package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// errUnasked is the state of a replica before its first answer.
var errUnasked = errors.New("it was not reached yet")

// watch asks a replica for its health until ctx ends.
func (f *Fleet) watch(ctx context.Context, g *group, r *replica) {
	tick := time.NewTicker(f.opt.Interval)
	defer tick.Stop()
	for {
		model, err := f.ask(ctx, g, r)
		if ctx.Err() != nil {
			return
		}
		f.note(g, r, model, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// note stores what is known of a replica now, and says when that changes.
func (f *Fleet) note(g *group, r *replica, model string, err error) {
	r.mu.Lock()
	was := r.err
	r.err = err
	if err == nil {
		r.model = model
	}
	r.mu.Unlock()
	r.ill.Store(err != nil)
	switch {
	case err == nil && was != nil:
		f.opt.Log.Info("upstream is ready", "model", g.Name, "replica", r.base, "name", model)
	case err != nil && (was == nil || was == errUnasked):
		f.opt.Log.Warn("upstream is out", "model", g.Name, "replica", r.base, "error", detail(err))
	}
	if err != nil {
		g.lacks.Clear() // what comes back may be another version
	}
}

// fail takes a replica out until it is found well.
func (r *replica) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// ask finds out whether a replica is well and what it calls the model. Its list of models says both; /health
// is asked as well, since servers that are loading have a list already.
func (f *Fleet) ask(ctx context.Context, g *group, r *replica) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opt.Timeout)
	defer cancel()
	status, _, err := f.get(ctx, g, r.base+"/health")
	if err != nil {
		return "", err
	}
	if status >= 500 {
		return "", fmt.Errorf("its health is %d", status)
	}
	status, body, err := f.get(ctx, g, r.base+"/v1/models")
	switch {
	case err != nil:
		return "", err
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "", errors.New("it refuses the key")
	case status != http.StatusOK:
		return "", fmt.Errorf("its list of models is %d", status)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return "", errors.New("its list of models is not one of OpenAI's")
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list.Data, func(m struct {
			ID string `json:"id"`
		}) bool {
			return m.ID == name
		})
	}
	switch {
	case g.Alias != "" && has(g.Alias):
		return g.Alias, nil
	case g.Alias != "":
		return "", fmt.Errorf("it has no model %q", g.Alias)
	case has(g.Name):
		return g.Name, nil
	case len(list.Data) == 1:
		return list.Data[0].ID, nil
	}
	return "", fmt.Errorf("it has %d models and none is called %s; name one with URL#MODEL", len(list.Data), g.Name)
}

// get reads a small answer.
func (f *Fleet) get(ctx context.Context, g *group, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	g.sign(req)
	res, err := f.client.Do(req)
	if err != nil {
		return 0, nil, plain(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, body, plain(err)
}
