package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"time"

	"strobe/internal/engine"
)

// record gathers what the log line of a request says. Handlers add to it from the request's
// goroutine only.
type record struct {
	attrs   []slog.Attr
	choices int // generations
	err     *apiError
}

type recordKey struct{}

// logOf returns the record of a request; handlers called without the middleware get a throw-away.
func logOf(r *http.Request) *record {
	if rec, ok := r.Context().Value(recordKey{}).(*record); ok {
		return rec
	}
	return &record{}
}

func (l *record) add(attrs ...slog.Attr) { l.attrs = append(l.attrs, attrs...) }

func (l *record) fail(e *apiError) { l.err = e }

// generation adds a generation to the request's log line, which has room for the first one.
func (l *record) generation(model string, res *engine.Result) {
	if l.choices++; l.choices > 1 {
		return
	}
	t := timings(res)
	l.add(slog.String("model", model), slog.String("end", res.Reason.String()),
		slog.Int("prompt", res.Prompt), slog.Int("cached", res.Cached), slog.Int("tokens", res.Generated),
		slog.Float64("queued_ms", round(t.QueuedMS)), slog.Float64("prompt_ms", round(t.PromptMS)),
		slog.Float64("first_ms", round(t.FirstMS)),
		slog.Float64("decode_ms", round(t.PredictedMS)), slog.Float64("tokens_per_second", round(t.PredictedPerSecond)))
	if res.Forgotten > 0 {
		l.add(slog.Int("forgotten", res.Forgotten))
	}
	if t.DraftN != nil {
		l.add(slog.Int("draft_n", *t.DraftN), slog.Int("draft_n_accepted", *t.DraftNAccepted),
			slog.Float64("accept_len_mean", round(t.AcceptLenMean)))
	}
	if err := res.Stats.DraftErr; err != nil {
		l.add(slog.String("draft_error", err.Error()))
	}
}

func round(x float64) float64 { return math.Round(x*100) / 100 }

// newID returns a prefix with 24 random hexadecimal digits.
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

type ownerKey struct{}

// ownerOf stands for the client of a request: the hash of its key, "" on a server without keys. What belongs to one
// owner no other one gets to see.
func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// requestID is the one a proxy gave the request, if it is harmless to print, or a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	ok := id != "" && len(id) <= 64
	for _, c := range id {
		ok = ok && (c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if ok {
		return id
	}
	return newID("req_")
}

// open are the paths that need neither a model nor a key.
func open(r *http.Request) bool {
	p := r.URL.Path
	return p == "/" || strings.HasPrefix(p, "/ui/")
}

func isHealth(r *http.Request) bool { return r.URL.Path == "/health" || r.URL.Path == "/v1/health" }

func clientIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
