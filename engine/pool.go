package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// PoolConfig says which models a Pool offers.
type PoolConfig struct {
	Dir    string   // folder whose GGUF files are offered; "" for none
	Files  []string // further model files
	Load   Options  // how every model is loaded
	Engine Config   // how every engine runs; a CacheDir is shared, entries are told apart by model
	// MemoryBytes limits the weights of all resident models together; 0 means no limit. A single
	// model that is larger is still loaded, alone.
	MemoryBytes int64
	// Wait is how long a request waits for room while every resident model is busy; 0 means a
	// minute. Loading itself is not limited by it.
	Wait time.Duration
	Log  *slog.Logger // nil discards
}

// ModelState is where a model of a Pool stands.
type ModelState string

// The states.
const (
	StateUnloaded ModelState = "unloaded"
	StateLoading  ModelState = "loading"
	StateLoaded   ModelState = "loaded"
	StateFailed   ModelState = "failed" // the last load failed; the next request tries again
)

// ModelInfo describes a model of a Pool.
type ModelInfo struct {
	Name     string // what requests say
	Path     string
	Drafter  string // file name of the drafter, "" for none or unknown while unloaded
	Arch     string
	Size     int64 // bytes of the files
	Context  int   // of a sequence in the engine; the trained context while unloaded
	State    ModelState
	Err      error     // of the last failed load
	LastUsed time.Time // zero if never
	Users    int       // leases held now
	Modified time.Time // of the file
}

// Any is the reserved name that stands for the most recently used resident model.
const Any = "any"

// Errors of Acquire that callers tell apart.
var (
	ErrNoModelName  = errors.New("the model's name is missing")
	ErrNoneResident = errors.New(`model "any": no model is loaded; name one`)
	ErrNoRoom       = errors.New("no memory for another model: all loaded ones are busy; try again later")
)

// UnknownModelError reports a name the pool does not offer.
type UnknownModelError struct{ Name string }

func (e *UnknownModelError) Error() string { return fmt.Sprintf("unknown model %q", e.Name) }

// LoadError reports a model that could not be loaded. Every request that waited for the load gets it.
type LoadError struct {
	Name string
	Err  error
}

func (e *LoadError) Error() string { return fmt.Sprintf("load model %q: %v", e.Name, e.Err) }
func (e *LoadError) Unwrap() error { return e.Err }

// Lease keeps a model resident while it is used.
type Lease struct {
	Name   string // resolved, never Any
	Engine *Engine
	pool   *Pool
	model  *resident
}

// Pool offers several models and keeps those in memory that fit. Its methods may be called from any
// goroutine.
type Pool struct{}

type resident struct{}

// NewPool returns a pool. Nothing is loaded before the first Acquire.
func NewPool(cfg PoolConfig) (*Pool, error) { return nil, ErrUnsupported }

// Models lists what the pool offers, by name.
func (p *Pool) Models() []ModelInfo { return nil }

// Resident returns the engines of the loaded models, by name, for metrics.
func (p *Pool) Resident() map[string]*Engine { return nil }

// Acquire returns the engine of a model, loading it when needed, and keeps it resident until
// Release. ctx ends the wait of this caller only. Errors: ErrNoModelName, *UnknownModelError,
// ErrNoneResident, *LoadError, ErrNoRoom, ErrClosed, or that of ctx.
func (p *Pool) Acquire(ctx context.Context, name string) (*Lease, error) { return nil, ErrUnsupported }

// Release gives the lease back. It may be called more than once.
func (l *Lease) Release() {}

// Close refuses further leases and closes every engine as Engine.Close does.
func (p *Pool) Close(ctx context.Context) error { return nil }
