package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// middleware puts the checks in front of the endpoints, outermost first: log and recover, host, CORS,
// readiness, key, size.
func (s *Server) middleware(next http.Handler) http.Handler {
	next = s.limitHeld(next)
	next = s.checkKey(next)
	next = s.checkReady(next)
	next = s.cors(next)
	next = s.checkHost(next)
	return tidyPath(s.observe(next))
}

// tidyPath forgives what people write into the settings of clients: a slash at the end, and a base URL with /v1 for a
// client that adds it.
func tidyPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		for strings.HasPrefix(path, "/v1/v1/") {
			path = path[len("/v1"):]
		}
		if len(path) > 1 && !open(r) {
			path = "/" + strings.Trim(path, "/")
		}
		if path != r.URL.Path {
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = path, ""
		}
		next.ServeHTTP(w, r)
	})
}

// response counts what is written and gives every write its own deadline: a client may be slow for
// as long as it takes something.
type response struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	body    *watchedBody // of the request
	status  int
	bytes   int64
}

// watchedBody knows how far it was read.
type watchedBody struct {
	io.ReadCloser
	begun, ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.begun, b.ended = true, b.ended || err == io.EOF
	return n, err
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	if status == statusClientGone {
		status = http.StatusBadRequest // 499 is not a status of HTTP, and the client is gone
	}
	if status >= 400 && !w.body.ended {
		// Refused before all of it came: say so now, not after the rest.
		_ = w.rc.EnableFullDuplex()
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	written := 0
	for {
		_ = w.rc.SetWriteDeadline(time.Now().Add(w.timeout))
		n, err := w.ResponseWriter.Write(p[written:min(written+writePiece, len(p))])
		w.bytes += int64(n)
		if written += n; err != nil || written == len(p) {
			return written, err
		}
	}
}

// writePiece is how much of an answer a client has to take in time: little enough for a slow line.
const writePiece = 64 << 10

// lingerTime is how long the rest of a refused request is read.
const lingerTime = 5 * time.Second

// linger reads what is left of a request that was refused early. Many clients read the answer only when they have
// sent everything; closing the connection before that takes it away from them.
func (w *response) linger(r *http.Request) {
	waits := strings.EqualFold(r.Header.Get("Expect"), "100-continue") && !w.body.begun
	if w.status < 400 || w.status == http.StatusRequestTimeout || w.body.ended || waits {
		return
	}
	if w.rc.Flush() == nil && w.rc.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, w.body)
	}
}

// observe gives a request its id and its log line, and turns a panic into an error.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &record{}
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
		id := requestID(r)
		r, traced := s.tracer.request(r)
		h := w.Header()
		h.Set("X-Request-Id", id)
		if speaksAnthropic(r) {
			h.Set("Request-Id", id) // what its clients look for
		}
		h.Set("Server", "strobe")
		h.Set("X-Content-Type-Options", "nosniff")
		rw := &response{ResponseWriter: w, rc: http.NewResponseController(w), timeout: s.cfg.WriteTimeout}
		rw.body = &watchedBody{ReadCloser: r.Body, ended: r.ContentLength == 0}
		r.Body = rw.body
		// The connection may still have the deadline of the response before.
		_ = rw.rc.SetWriteDeadline(time.Time{})
		if r.ContentLength != 0 {
			// Also for bodies that no handler reads: the server would wait for the rest of them.
			_ = rw.rc.SetReadDeadline(start.Add(s.cfg.BodyTimeout))
		}
		defer func() {
			p := recover()
			if p == http.ErrAbortHandler { // the answer broke off; the connection has to, too
				s.logLine(r, rw, rec, id, time.Since(start), traced)
				panic(p)
			}
			if p != nil {
				s.cfg.Log.Error("handler stopped by a defect", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				if rw.status == 0 {
					fail(rw, r, fmt.Errorf("the server has a defect; its log says more"))
				}
			}
			s.logLine(r, rw, rec, id, time.Since(start), traced)
			rw.linger(r)
		}()
		next.ServeHTTP(rw, r)
	})
}

func (s *Server) logLine(r *http.Request, w *response, rec *record, id string, took time.Duration,
	ended func(status int)) {
	status := w.status
	if status == 0 {
		status = http.StatusOK
	}
	s.metrics.request(r, status, took)
	ended(status)
	level := slog.LevelInfo
	switch {
	case isHealth(r) || r.URL.Path == "/metrics" || strings.HasPrefix(r.URL.Path, "/ui/"):
		level = slog.LevelDebug // asked for every few seconds
	case status >= 500 && status != http.StatusServiceUnavailable: // being busy is no error
		level = slog.LevelError
	}
	if !s.cfg.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("id", id), slog.String("client", clientIP(r)), slog.String("method", r.Method),
		slog.String("path", cutText(r.URL.Path, maxLogged)),
		slog.Int("status", status), slog.Float64("ms", ms(took)), slog.Int64("bytes", w.bytes),
	}
	attrs = append(attrs, rec.attrs...)
	if rec.choices > 1 {
		attrs = append(attrs, slog.Int("choices", rec.choices))
	}
	if rec.err != nil {
		attrs = append(attrs, slog.String("error", rec.err.logged()))
	}
	s.cfg.Log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}

// checkHost refuses names the server does not go by. Addresses are always allowed: a page cannot
// make a browser send one it was not loaded from.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if s.cfg.Hosts == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if host != "" && net.ParseIP(host) == nil && !slices.Contains(s.cfg.Hosts, host) {
			fail(w, r, &apiError{Status: http.StatusForbidden, Type: "permission_error",
				Message: fmt.Sprintf("this server does not go by the name %q; see --allow-host", host)})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cors lets pages of the allowed origins read answers, and keeps others from making requests with
// effects.
func (s *Server) cors(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		allowed := origin != "" && (slices.Contains(s.cfg.CORS, "*") || slices.Contains(s.cfg.CORS, origin))
		allowed = allowed || s.cfg.LocalOrigins && isLocal(origin)
		if len(s.cfg.CORS) > 0 || s.cfg.LocalOrigins {
			w.Header().Add("Vary", "Origin")
		}
		if allowed {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
				if want := r.Header.Get("Access-Control-Request-Headers"); want != "" {
					h.Set("Access-Control-Allow-Headers", want)
				}
				h.Set("Access-Control-Max-Age", "600")
			}
		}
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if !allowed {
			if err := guard.Check(r); err != nil {
				fail(w, r, &apiError{Status: http.StatusForbidden, Type: "permission_error",
					Message: "requests of pages from another origin are not allowed; see --cors"})
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLocal reports whether an origin is a program of this machine: a desktop application, a view of an editor, or a page
// that the machine itself serves. No web site can have such an origin.
func isLocal(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	switch u.Scheme {
	case "app", "tauri", "file", "capacitor", "vscode-webview", "vscode-file":
		return true
	case "http", "https":
		ip := net.ParseIP(u.Hostname())
		return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}
	return false
}

func (s *Server) checkReady(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.models() == nil && !open(r) {
			fail(w, r, errLoading)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkKey wants one of the keys, as a bearer token, in X-Api-Key or in Api-Key. Keys are compared by their
// hashes, all of them, in constant time: how long it takes tells nothing.
func (s *Server) checkKey(next http.Handler) http.Handler {
	if len(s.keys) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open(r) || isHealth(r) {
			next.ServeHTTP(w, r)
			return
		}
		key := cmp.Or(r.Header.Get("X-Api-Key"), r.Header.Get("Api-Key"))
		if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
			key = strings.TrimSpace(token)
		}
		sum := sha256.Sum256([]byte(key))
		found := 0
		for _, k := range s.keys {
			found |= subtle.ConstantTimeCompare(sum[:], k[:])
		}
		if found == 0 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, r, &apiError{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key",
				Message: "a valid API key is needed: Authorization: Bearer KEY"})
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownerKey{}, string(sum[:]))))
	})
}

// limitHeld bounds the memory of all request bodies together, as they are read. A body counts until its
// request has been answered.
func (s *Server) limitHeld(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			b := &heldBody{ReadCloser: r.Body, s: s}
			defer func() { s.held.Add(-b.n) }()
			r.Body = b
		}
		next.ServeHTTP(w, r)
	})
}

type heldBody struct {
	io.ReadCloser
	s *Server
	n int64
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if b.s.held.Add(int64(n)) > b.s.cfg.MaxHeld {
		return n, errHeld
	}
	return n, err
}
