package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/upstream"
)

// Config says what a server offers and what it allows. The zero value works.
type Config struct {
	Models Models // nil answers "not ready" until SetModels is called
	// Upstreams are models of other servers, offered beside those of this one; nil has none. They stay the caller's.
	Upstreams *upstream.Fleet
	Version   string       // of the program, for /props and the Server header
	Log       *slog.Logger // nil discards
	// Traces gets a span for every request, with its phases and rounds. nil costs nothing.
	Traces trace.TracerProvider
	TLS    *tls.Config // nil serves plain HTTP

	Params    sample.Params     // for what requests leave out; zero is greedy
	Spec      speculate.Options // likewise
	MaxTokens int               // likewise; 0 means until the context is full
	Seed      *uint64           // likewise; nil takes a new one for each request

	Chat ChatDefaults // likewise, for conversations
	// Sampling is what was asked for on purpose: it comes before what a model's makers recommend, which comes before
	// Params.
	Sampling sample.Defaults
	PerModel map[string]ModelDefaults // by name; comes before all of these
	// ChangeProps lets POST /props change Sampling.
	ChangeProps bool

	Keys []string // any of them opens the server; none leaves it open
	// CORS lists the origins whose pages may use the server; "*" means any. Pages of other origins get no
	// answer to read, and their POST requests are refused.
	CORS []string
	// LocalOrigins lets programs of this machine in as well: editors, desktop applications, and pages it serves.
	LocalOrigins bool
	// Hosts are the names this server goes by. A request with another Host header is refused, which keeps
	// web pages from reaching a local server through a name of their own. nil allows any.
	Hosts []string

	MaxBody  int64 // bytes of a request; 0 means 16 MiB
	MaxHeld  int64 // bytes of all requests being handled; 0 means 64 MiB
	MaxConns int   // connections at a time; 0 means 1024. When there is no other, an idle one makes room
	// MaxPerAddress is how many of them one address may have. 0 means three quarters, so that none can lock the others
	// out, and no limit for this machine itself; less than 0 means no limit at all. Behind a proxy all clients have one
	// address.
	MaxPerAddress int

	// MaxStored bounds the memory of responses that later requests may refer to; 0 means 64 MiB, less keeps none.
	MaxStored int64
	StoredAge time.Duration // for how long they are kept after their last use; 0 means a day

	HeaderTimeout time.Duration // for the headers of a request; 0 means 10 s
	BodyTimeout   time.Duration // for the body; 0 means a minute
	WriteTimeout  time.Duration // for a client to take what one write sends; 0 means 30 s
	IdleTimeout   time.Duration // of a connection between requests; 0 means 2 minutes
	Ping          time.Duration // silence after which a stream sends a comment; 0 means 10 s
	Drain         time.Duration // for running requests after the context of Serve ended; 0 means 10 s
}

// ChatDefaults is what conversations have that say nothing else.
type ChatDefaults struct {
	System   string         // for those without a message of the system
	Thinking *bool          // nil leaves it to the template
	Kwargs   map[string]any // variables of the template
}

// ModelDefaults is what requests to one model have that say nothing else.
type ModelDefaults struct {
	Sampling  sample.Defaults
	MaxTokens int           // 0 leaves it as it is for all models
	Chat      *ChatDefaults // nil likewise
}

func (c Config) withDefaults() Config {
	set := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&c.HeaderTimeout, 10*time.Second)
	set(&c.BodyTimeout, time.Minute)
	set(&c.WriteTimeout, 30*time.Second)
	set(&c.IdleTimeout, 2*time.Minute)
	set(&c.Ping, 10*time.Second)
	set(&c.Drain, 10*time.Second)
	set(&c.StoredAge, 24*time.Hour)
	if c.MaxStored == 0 {
		c.MaxStored = 64 << 20
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 16 << 20
	}
	if c.MaxHeld <= 0 {
		c.MaxHeld = 64 << 20
	}
	c.MaxHeld = max(c.MaxHeld, c.MaxBody)
	if c.MaxConns <= 0 {
		c.MaxConns = 1024
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server answers HTTP requests. Its methods may be called from any goroutine.
type Server struct {
	cfg     Config
	keys    [][sha256.Size]byte
	mux     *http.ServeMux
	handler http.Handler
	metrics *meter
	tracer  trace.Tracer // nil traces nothing
	started time.Time
	held    atomic.Int64 // bytes of requests being handled
	memory  *memory      // of responses

	stopping context.Context // ends when Serve is told to stop
	stop     context.CancelFunc

	offer   atomic.Pointer[Models]          // nil while loading
	changed atomic.Pointer[sample.Defaults] // by POST /props
	pull    atomic.Pointer[PullFunc]        // nil downloads nothing
	mu      sync.Mutex
	views   map[*engine.Engine]*view

	conns atomic.Pointer[conns] // of Serve, for tests
	// tweak changes requests on their way to the engine, in tests.
	tweak func(*engine.Request, *view)
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg.withDefaults(), mux: http.NewServeMux(), started: time.Now(), views: map[*engine.Engine]*view{}}
	s.stopping, s.stop = context.WithCancel(context.Background())
	for _, k := range s.cfg.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	s.memory = newMemory(s.cfg.MaxStored, s.cfg.StoredAge)
	if cfg.Models != nil {
		s.SetModels(cfg.Models)
	}
	s.metrics = newMeter(s)
	if cfg.Traces != nil {
		s.tracer = cfg.Traces.Tracer("strobe")
	}
	s.routes()
	s.handler = s.middleware(s.mux)
	return s
}

// Handler returns the server as a handler, with everything but the limits on connections.
func (s *Server) Handler() http.Handler { return s.handler }

// SetModels gives the server its models. Until then it answers everything but the page with "not
// ready".
func (s *Server) SetModels(m Models) { s.offer.Store(&m) }

// models returns what the server offers. Behind the middleware there always is something.
func (s *Server) models() Models {
	if m := s.offer.Load(); m != nil {
		return *m
	}
	return nil
}

// routes lists every endpoint. Aliases are those of llama.cpp.
func (s *Server) routes() {
	for pattern, e := range map[string]endpoint{
		"POST /v1/chat/completions":          post(s, s.chatCompletions),
		"POST /chat/completions":             post(s, s.chatCompletions),
		"POST /v1/completions":               post(s, s.completions),
		"POST /completions":                  post(s, s.completions),
		"POST /v1/responses":                 post(s, s.responses),
		"POST /responses":                    post(s, s.responses),
		"POST /v1/responses/input_tokens":    post(s, s.inputTokens),
		"GET /v1/responses/{id}":             s.getResponse,
		"GET /v1/responses/{id}/input_items": s.responseInput,
		"DELETE /v1/responses/{id}":          s.deleteResponse,
		"POST /v1/embeddings":                post(s, s.embeddings),
		"POST /embeddings":                   post(s, s.embeddings),
		"GET /v1/models":                     s.listModels,
		"GET /models":                        s.listModels,
		"GET /v1/models/{id...}":             s.getModel,
		"POST /v1/messages":                  post(s, s.messages),
		"POST /v1/messages/count_tokens":     post(s, s.countTokens),
		"GET /api/version":                   s.ollamaVersion,
		"GET /api/tags":                      s.ollamaTags,
		"GET /api/ps":                        s.ollamaLoaded,
		"POST /api/show":                     post(s, s.ollamaShow),
		"POST /api/pull":                     post(s, s.ollamaPull),
		"POST /api/chat":                     post(s, s.ollamaChat),
		"POST /api/generate":                 post(s, s.ollamaGenerate),
		"POST /api/embed":                    post(s, s.ollamaEmbedding),
		"POST /api/embeddings":               post(s, s.ollamaEmbedding),
		"GET /health":                        s.health,
		"GET /v1/health":                     s.health,
		"GET /props":                         s.props,
		"POST /props":                        post(s, s.changeProps),
		"GET /slots":                         s.slots,
		"POST /slots/{id}":                   post(s, s.slotAction),
		"POST /models/load":                  post(s, s.loadModel),
		"POST /models/unload":                post(s, s.unloadModel),
		"POST /v1/rerank":                    post(s, s.rerank),
		"POST /rerank":                       post(s, s.rerank),
		"POST /v1/reranking":                 post(s, s.rerank),
		"POST /reranking":                    post(s, s.rerank),
		"POST /completion":                   post(s, s.completion),
		"POST /infill":                       post(s, s.infill),
		"POST /embedding":                    post(s, s.embedding),
		"POST /tokenize":                     post(s, s.tokenize),
		"POST /detokenize":                   post(s, s.detokenize),
		"POST /apply-template":               post(s, s.applyTemplate),
	} {
		s.mux.Handle(pattern, e)
	}
	s.mux.HandleFunc("GET /metrics", s.metrics.serve)
	s.mux.Handle("GET /{$}", uiHandler())
	s.mux.Handle("GET /ui/", uiHandler())
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// This pattern also takes wrong methods of known paths away from the mux; ask it.
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			probe := r.Clone(r.Context())
			probe.Method = m
			if _, pattern := s.mux.Handler(probe); m != r.Method && pattern != "/" {
				allowed = append(allowed, m)
			}
		}
		if len(allowed) > 0 {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			fail(w, r, &apiError{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error",
				Message: r.URL.Path + " takes " + strings.Join(allowed, " and ") + " requests"})
			return
		}
		fail(w, r, &apiError{Status: http.StatusNotFound, Type: "not_found_error",
			Message: "there is nothing at " + r.URL.Path, Log: "there is nothing at this path"})
	})
}

// lastWords is how long requests have to say that they were cancelled.
const lastWords = time.Second

// Serve answers requests on ln until ctx ends. Then it takes no new ones, refuses those that still wait for a model
// to load and lets the running ones finish for Config.Drain; those still running after that are cancelled and end
// their streams with an error. Serve returns when all handlers have ended, or lastWords later: one that is
// deep in something that cannot be interrupted is left behind. It does not close the models. A server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errShutdown)
	var handlers sync.WaitGroup
	handlers.Add(1) // Serve itself, so that the count cannot reach zero while others may still add
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			s.handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), // broken handshakes and the like
	}
	conns := newConns(ln, s.cfg.MaxConns, s.cfg.MaxPerAddress)
	s.conns.Store(conns)
	srv.ConnState, ln = conns.state, conns
	if s.cfg.TLS != nil {
		ln = tls.NewListener(ln, s.cfg.TLS)
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		cancel(errShutdown)
		_ = srv.Close()
		handlers.Done()
		handlers.Wait()
		return err
	case <-ctx.Done():
	}
	s.stop()
	drain, done := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
	defer done()
	if srv.Shutdown(drain) != nil { // the deadline passed: end what is left
		s.cfg.Log.Warn("requests are still running; cancelling them")
		cancel(errShutdown)
		last, done := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer done()
		if srv.Shutdown(last) != nil {
			s.cfg.Log.Warn("requests do not end; leaving them behind")
			_ = srv.Close()
			<-failed
			handlers.Done()
			return nil
		}
	}
	<-failed
	handlers.Done()
	handlers.Wait()
	return nil
}

// SetPull lets clients have models downloaded.
func (s *Server) SetPull(fn PullFunc) { s.pull.Store(&fn) }

// fingerprint tells builds apart in answers.
func (s *Server) fingerprint() string {
	if s.cfg.Version == "" {
		return "strobe"
	}
	return "strobe-" + s.cfg.Version
}
