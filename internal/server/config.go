package server

import (
	"crypto/tls"
	"log/slog"
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
	Shift     *engine.Shift     // likewise: what is forgotten when the context is full; nil ends answers then

	Chat ChatDefaults // likewise, for conversations
	// Sampling is what was asked for on purpose: it comes before what a model's makers recommend, which comes before
	// Params.
	Sampling sample.Defaults
	PerModel map[string]ModelDefaults // by name; comes before all of these
	// NoFill are models that were not trained to fill in the middle, though their vocabulary has the tokens for it.
	NoFill []string
	// ChangeProps lets POST /props change Sampling.
	ChangeProps bool

	FetchImages bool   // images at http and https URLs are fetched, from public addresses
	MediaPath   string // images at file URLs are read below this folder; "" reads none

	MCP []MCPServer // whose tools the page may use; none by default

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
