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
)

// Server answers HTTP requests. Its methods may be called from any goroutine.
type Server struct {
	*core
	keys    [][sha256.Size]byte
	mux     *http.ServeMux
	handler http.Handler
	held    atomic.Int64          // bytes of requests being handled
	conns   atomic.Pointer[conns] // of Serve, for tests
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{core: newCore(cfg), mux: http.NewServeMux()}
	for _, k := range s.cfg.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	if cfg.Models != nil {
		s.SetModels(cfg.Models)
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

// routes adds the endpoints of all protocols, and those of none.
func (s *Server) routes() {
	for _, endpoints := range []map[string]endpoint{
		(&openAI{s.core}).endpoints(), (&anthropic{s.core}).endpoints(), (&ollama{core: s.core}).endpoints(),
		(&llamaCPP{s.core}).endpoints(),
	} {
		for pattern, e := range endpoints {
			s.mux.Handle(pattern, e)
		}
	}
	s.mux.Handle("POST /mcp/{name}", endpoint(s.mcp))
	s.mux.Handle("DELETE /mcp/{name}", endpoint(s.mcp))
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
	defer s.stopJobs()
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

// stopJobs ends what goes on without clients: when all requests have ended, no other one can ask for it. It waits as
// long as requests have for their last words.
func (s *Server) stopJobs() {
	s.endJobs()
	ended := make(chan struct{})
	go func() {
		s.jobs.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lastWords):
		s.cfg.Log.Warn("requests in the background do not end; leaving them behind")
	}
}

// SetPull lets clients have models downloaded.
func (s *Server) SetPull(fn PullFunc) { s.pull.Store(&fn) }
