package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Model is a model that lives elsewhere.
type Model struct {
	Name  string   // what clients of this server call it
	URLs  []string // where it lives; several are replicas
	Key   string   // sent as a bearer token; empty sends none
	Alias string   // what the upstream calls it; empty is Name if it has that, else its only model
}

// ParseModel reads NAME=URL or NAME=URL#MODEL, where MODEL is the upstream's name for it.
func ParseModel(s string) (Model, error) {
	name, rest, ok := strings.Cut(s, "=")
	if !ok || name == "" || rest == "" {
		return Model{}, fmt.Errorf("upstream %q: want NAME=URL", s)
	}
	base, alias, _ := strings.Cut(rest, "#")
	m := Model{Name: name, URLs: []string{base}, Alias: alias}
	_, err := baseURL(base)
	return m, err
}

// baseURL is where an upstream's paths begin, with or without the /v1 that people add.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("upstream %q: want an address like http://host:8000", s)
	}
	if u.User != nil || u.RawQuery != "" {
		return "", fmt.Errorf("upstream %q: an address has neither a user nor a query; give keys apart", u.Redacted())
	}
	return strings.TrimSuffix(strings.TrimRight(u.Scheme+"://"+u.Host+u.Path, "/"), "/v1"), nil
}

// Options are how a fleet behaves. The zero value works.
type Options struct {
	Policy   Policy
	Interval time.Duration // between questions for a replica's health; 0 means 2 s
	Timeout  time.Duration // for their answers, and for connecting; 0 means 3 s
	// Begin is how long a replica has for the first byte of a streamed answer when another one could give it; 0 means a
	// minute. A whole answer comes when it is complete and may take ten times as long.
	Begin time.Duration
	Log   *slog.Logger // nil discards
}

// Fleet is a set of models on other servers.
type Fleet struct {
	opt    Options
	client *http.Client
	groups map[string]*group
	names  []string // as given
	turn   atomic.Uint64
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// group is a model with its replicas.
type group struct {
	Model
	replicas []*replica
	// lacks are the paths that the upstream does not have.
	lacks sync.Map
}

// replica is one server of a model.
type replica struct {
	base  string
	load  atomic.Int64
	usage usage
	sent  atomic.Int64
	fails atomic.Int64
	ill   atomic.Bool // the last question for its health failed
	mu    sync.Mutex
	err   error  // why it is out; nil is in
	model string // its name for the model
}

// state is what the replica is now; nil is fine.
func (r *replica) state() (error, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err, r.model
}

// New returns a fleet and begins to ask its replicas for their health. Models of the same name become replicas of one.
func New(models []Model, opt Options) (*Fleet, error) {
	opt.Interval = cmp.Or(opt.Interval, 2*time.Second)
	opt.Timeout = cmp.Or(opt.Timeout, 3*time.Second)
	opt.Begin = cmp.Or(opt.Begin, time.Minute)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{opt: opt, groups: map[string]*group{}}
	f.client = &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: opt.Timeout}).DialContext,
			TLSHandshakeTimeout: opt.Timeout,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true, // streams are passed on as they come
		},
		// A redirect would carry a request, and its key, to a place that is not in the settings.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, m := range models {
		g := f.groups[m.Name]
		if g == nil {
			g = &group{Model: m}
			f.groups[m.Name] = g
			f.names = append(f.names, m.Name)
		} else if m.Key != g.Key || m.Alias != g.Alias {
			return nil, fmt.Errorf("upstream %s: its replicas must have the same key and model", m.Name)
		}
		for _, u := range m.URLs {
			base, err := baseURL(u)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(g.replicas, func(r *replica) bool { return r.base == base }) {
				return nil, fmt.Errorf("upstream %s: %s is named twice", m.Name, base)
			}
			g.replicas = append(g.replicas, &replica{base: base, model: cmp.Or(m.Alias, m.Name), err: errUnasked})
		}
		if len(g.replicas) == 0 {
			return nil, fmt.Errorf("upstream %s: it has no address", m.Name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	for _, g := range f.groups {
		for _, r := range g.replicas {
			f.done.Go(func() { f.watch(ctx, g, r) })
		}
	}
	return f, nil
}

// Close ends the questions for health. Requests go on.
func (f *Fleet) Close() {
	f.stop()
	f.done.Wait()
	f.client.CloseIdleConnections()
}

// Has reports whether a model lives elsewhere.
func (f *Fleet) Has(name string) bool { return f != nil && f.groups[name] != nil }

// State describes a model.
type State struct {
	Name     string
	Replicas []ReplicaState
}

// ReplicaState describes a replica.
type ReplicaState struct {
	URL   string
	Model string // its own name for the model
	Load  int    // requests of this server it works on
	Err   error  // why it gets none, without its address; nil if it does

	Sent, Failed int64 // requests it got; of them, those that had no answer
	Usage        Usage
}

// Ready reports whether any replica takes requests.
func (s *State) Ready() bool {
	return slices.ContainsFunc(s.Replicas, func(r ReplicaState) bool { return r.Err == nil })
}

// States describes all models, in the order they were given.
func (f *Fleet) States() []State {
	if f == nil {
		return nil
	}
	var out []State
	for _, name := range f.names {
		s := State{Name: name}
		for _, r := range f.groups[name].replicas {
			err, model := r.state()
			s.Replicas = append(s.Replicas, ReplicaState{
				r.base, model, int(r.load.Load()), err, r.sent.Load(), r.fails.Load(), r.usage.sum(),
			})
		}
		out = append(out, s)
	}
	return out
}

// ErrDown is why a request for a model fails when none of its replicas answers.
var ErrDown = errors.New("no replica answers")

// Why a request is tried on another replica.
var (
	errEmpty = errors.New("its answer is empty")
	errLate  = errors.New("it did not answer in time")
)

// Request is what goes to a model.
type Request struct {
	Model string
	Path  string      // "/v1/chat/completions"
	Body  []byte      // JSON; the name of the model in it is replaced by the upstream's
	Head  http.Header // what of the client's headers may go along; see Forwarded
	Key   uint64      // stands for its beginning; see Key
}

// forwarded are the headers of clients that upstreams get. Nothing else does: other headers say who the client is.
var forwarded = []string{"Accept", "Anthropic-Version", "Anthropic-Beta", "Traceparent", "Tracestate", "X-Request-Id"}

// Forwarded picks the headers of a client that may go to an upstream.
func Forwarded(h http.Header) http.Header {
	out := http.Header{}
	for _, k := range forwarded {
		if v := h.Values(k); len(v) > 0 {
			out[k] = slices.Clone(v)
		}
	}
	return out
}

// Response is an answer that has begun. Its reader must be closed.
type Response struct {
	Status  int
	Head    http.Header // what clients may see
	Body    io.ReadCloser
	Replica string
}

// Lacks reports whether a model's upstream is known not to have a path.
func (f *Fleet) Lacks(model, path string) bool {
	g := f.groups[model]
	if g == nil {
		return false
	}
	_, lacks := g.lacks.Load(path)
	return lacks
}

// Send sends a request to a replica of its model and returns when the answer begins. A replica that fails before that,
// or takes too long, is left for another one and gets no more requests until it is well again.
func (f *Fleet) Send(ctx context.Context, q Request) (*Response, error) {
	g := f.groups[q.Model]
	if g == nil {
		return nil, fmt.Errorf("there is no upstream named %q", q.Model)
	}
	var last *Response // of a replica that is too busy or not ready
	var why error
	list := f.order(g, q.Key)
	for i, r := range list {
		resp, err := f.try(ctx, g, r, q, i+1 < len(list))
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			f.opt.Log.Warn("upstream fails", "model", g.Name, "replica", r.base, "error", detail(err))
			r.fails.Add(1)
			r.fail(err)
			why = err
			continue
		}
		switch resp.Status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
			if last != nil {
				_ = last.Body.Close()
			}
			last = resp
			continue
		}
		if last != nil {
			_ = last.Body.Close()
		}
		if resp.Status == http.StatusNotFound || resp.Status == http.StatusMethodNotAllowed {
			f.noteLack(g, q.Path, resp)
		}
		return resp, nil
	}
	if last != nil {
		return last, nil
	}
	return nil, fmt.Errorf("upstream %s: %w: %v", g.Name, ErrDown, why)
}

// noteLack remembers that an upstream has no such path. An answer that speaks of the model does not mean that.
func (f *Fleet) noteLack(g *group, path string, resp *Response) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if !bytes.Contains(bytes.ToLower(body), []byte("model")) {
		g.lacks.Store(path, true)
	}
}

// order lists the replicas to try. Those that are out come last, in case nothing else is left: they may be back
// already.
func (f *Fleet) order(g *group, key uint64) []*replica {
	var in, out []*replica
	for _, r := range g.replicas {
		if err, _ := r.state(); err != nil {
			out = append(out, r)
		} else {
			in = append(in, r)
		}
	}
	nodes := make([]Node, len(in))
	for i, r := range in {
		nodes[i] = Node{r.base, int(r.load.Load())}
	}
	var list []*replica
	for _, i := range f.opt.Policy.Order(nodes, key, f.turn.Add(1)) {
		list = append(list, in[i])
	}
	return append(list, out...)
}

// maxError bounds what is read of an error.
const maxError = 64 << 10

// try sends a request to one replica. more says that another one is left if this one does not begin to answer.
func (f *Fleet) try(ctx context.Context, g *group, r *replica, q Request, more bool) (resp *Response, err error) {
	r.sent.Add(1)
	r.load.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	free := sync.OnceFunc(func() {
		r.load.Add(-1)
		cancel(nil)
	})
	begun := f.await(r, q.Body, more, func() { cancel(errLate) })
	defer func() {
		if !begun() {
			if err == nil {
				_ = resp.Body.Close()
			}
			resp, err = nil, errLate
		}
		if err != nil {
			free()
		}
	}()
	_, model := r.state()
	body, err := rename(q.Body, model)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+q.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range q.Head {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "strobe")
	g.sign(req)
	res, err := f.client.Do(req)
	if err != nil {
		return nil, plain(err)
	}
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		_ = res.Body.Close()
		return nil, fmt.Errorf("it redirects (%d), which is not followed", res.StatusCode)
	}
	out := &Response{Status: res.StatusCode, Head: http.Header{}, Replica: r.base}
	for _, k := range []string{"Content-Type", "Retry-After"} {
		if v := res.Header.Get(k); v != "" {
			out.Head.Set(k, v)
		}
	}
	if res.StatusCode >= 400 {
		late := time.AfterFunc(f.opt.Timeout, func() { cancel(errLate) }) // its words may never end
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
		late.Stop()
		_ = res.Body.Close()
		free()
		out.Body = io.NopCloser(bytes.NewReader(g.scrub(text)))
		return out, nil
	}
	// An answer has begun when something of it is here; until then another replica may give it. No request has an empty
	// one.
	br := bufio.NewReaderSize(res.Body, 32<<10)
	if _, err := br.Peek(1); err != nil {
		_ = res.Body.Close()
		if err == io.EOF {
			return nil, errEmpty
		}
		return nil, plain(err)
	}
	out.Body = &rest{Reader: br, c: res.Body, end: func(u Usage) {
		free()
		r.usage.add(u)
	}}
	return out, nil
}

// await calls leave when a replica takes too long to begin an answer, unless begun, which it returns, was called
// before; that reports whether it was, and is called once. A replica that is ill is left at once if another one can be
// tried. The last one has as long as it takes while it is well: it may be busy with a long prompt or a queue.
func (f *Fleet) await(r *replica, body []byte, more bool, leave func()) (begun func() bool) {
	limit := f.opt.Begin
	if !streams(body) {
		limit *= 10
	}
	start := time.Now()
	var over atomic.Bool // it has begun, or was left
	stop := make(chan struct{})
	go func() {
		// Looked at as often as health is asked for: the answer to that is what changes.
		tick := time.NewTicker(f.opt.Interval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			late, ill := time.Since(start) >= limit, r.ill.Load()
			if more && (late || ill) || late && ill {
				if over.CompareAndSwap(false, true) {
					leave()
				}
				return
			}
		}
	}()
	return func() bool {
		close(stop)
		return over.CompareAndSwap(false, true)
	}
}

// streams reports whether a request wants its answer as it is generated.
func streams(body []byte) bool {
	var q struct {
		Stream bool `json:"stream"`
	}
	return json.Unmarshal(body, &q) == nil && q.Stream
}

// rest is the rest of an answer. Closing it makes its replica free; that may happen while another goroutine reads.
type rest struct {
	io.Reader
	c    io.Closer
	mu   sync.Mutex
	tail tail
	once sync.Once
	end  func(Usage)
}

func (b *rest) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.mu.Lock()
	b.tail.add(p[:n])
	b.mu.Unlock()
	if err != io.EOF {
		err = plain(err)
	}
	return n, err
}

func (b *rest) Close() error {
	b.once.Do(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.end(b.tail.usage())
	})
	return b.c.Close()
}

// sign adds the upstream's key.
func (g *group) sign(req *http.Request) {
	if g.Key != "" {
		req.Header.Set("Authorization", "Bearer "+g.Key)
	}
}

// scrub takes the upstream's key out of a text: some servers repeat a wrong one.
func (g *group) scrub(text []byte) []byte {
	if g.Key == "" {
		return text
	}
	return bytes.ReplaceAll(text, []byte(g.Key), []byte("***"))
}

// failure is an error of a connection as clients may see it: it does not say where the upstream is.
type failure struct {
	say   string
	cause error
}

func (e *failure) Error() string { return e.say }
func (e *failure) Unwrap() error { return e.cause }

// plain is what clients may see of a connection's error.
func plain(err error) error {
	var (
		network net.Error
		name    *net.DNSError
		op      *net.OpError
		cert    *tls.CertificateVerificationError
	)
	say := "the connection broke"
	switch {
	case err == nil:
		return nil
	case errors.As(err, &network) && network.Timeout(), errors.Is(err, errLate):
		say = errLate.Error()
	case errors.As(err, &name):
		say = "its name is not known"
	case errors.As(err, &cert):
		say = "its certificate is not trusted"
	case errors.As(err, &op) && op.Op == "dial":
		say = "it cannot be reached"
	}
	return &failure{say, err}
}

// detail is all that is known of an error, for the log.
func detail(err error) error {
	var e *failure
	if errors.As(err, &e) {
		return e.cause
	}
	return err
}

// rename puts the upstream's name for the model into a request and leaves the rest as it is.
func rename(body []byte, model string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	name, err := json.Marshal(model)
	if err != nil {
		return nil, err
	}
	fields["model"] = name
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err = enc.Encode(fields)
	return out.Bytes(), err
}
