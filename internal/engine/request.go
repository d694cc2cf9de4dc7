package engine

import (
	"errors"
	"fmt"
	"time"

	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// Request asks for a generation. Only Tokens is required.
type Request struct {
	Tokens []int32       // the whole prompt, at least one token; the engine does not change it
	Images []Image       // of the prompt, in order: those whose IDs are among Tokens
	Params sample.Params // zero is greedy; Params.Seed is a seed like any other, also 0
	// Constraint limits the tokens that may come next. It is called on the engine's goroutine, one
	// token after the other, and belongs to this request alone. A panic in it fails the request only.
	Constraint  sample.Constraint
	Spec        speculate.Options // zero lets the controller decide
	MaxTokens   int               // most tokens to generate; 0 means as many as the context holds
	Shift       *Shift            // what to forget when the context is full; nil ends the generation then
	PromptOnly  bool              // run the prompt (into the cache) and generate nothing
	Stops       []string          // the text ends before any of these
	IgnoreEOG   bool              // never end by an end-of-generation token
	KeepSpecial bool              // render control tokens in the text
	// LogProbs asks for the log probability of every token and of the LogProbs most likely ones; 0 is
	// off. WantLogProb asks for the token's own without alternatives.
	LogProbs    int
	WantLogProb bool
	// NoCache neither looks for a cached beginning of the prompt nor keeps anything.
	NoCache bool
	// Salt separates clients in the prefix cache, in memory and on disk: a beginning of a prompt is shared by requests of
	// the same salt only: cached_tokens must not show one client what another asked. "" is a salt like any other.
	Salt string
	// Checkpoints are prompt lengths worth remembering: message boundaries after which a later request
	// may differ, such as the length before the opening of the assistant's turn. Attention-only
	// models need none. Positions outside the prompt are ignored.
	Checkpoints []int
	Slot        *int // where to run; nil takes any
	Seen        int  // tokens of the prompt before it was shortened; 0 for one that was not
	Progress    bool // tell in events how far the prompt is
	// Watch is told of every step the generation took part in, on the engine's goroutine, before the
	// step's tokens can be read. nil costs nothing.
	Watch func(Round)
}

// Round is what one step did for a generation. Its times are those of the whole step, which others may have shared.
type Round struct {
	Start time.Time
	Took  time.Duration

	Prompt   int // tokens of the prompt it ran
	Tokens   int // generated
	Guessed  int // of them and others, drafted and verified
	Accepted int // of the guesses, right

	Draft, Verify time.Duration // drafting; the pass of the target
}

// Token is one generated token.
type Token struct {
	ID      int32
	Drafted bool   // it was guessed and accepted
	Text    []byte // what became certain with this token; may be empty or hold several characters
	// LogProb is the natural logarithm of the token's probability under the model, before penalties and
	// truncation. Valid when log probabilities were asked for.
	LogProb float64
	Top     []sample.LogProb // the most likely tokens, best first; nil unless asked for
}

// Event is what a generation produced since the last one: usually the tokens of one round, more when
// the reader is slow. Exactly one event, the last, has a Result.
type Event struct {
	Text   []byte // complete UTF-8 unless the model itself wrote invalid bytes; never part of a stop string
	Tokens []Token
	Prompt *State // how far the prompt is, when that was asked for; nil when there is no news
	Result *Result
}

// Rest is the end of the text that belongs to no token: what was held back until the generation ended.
func (ev *Event) Rest() []byte {
	n := 0
	for _, t := range ev.Tokens {
		n += len(t.Text)
	}
	return ev.Text[min(n, len(ev.Text)):]
}

// Reason says why a generation ended.
type Reason int

// The reasons.
const (
	ReasonEOG       Reason = iota + 1 // the model ended its turn
	ReasonStop                        // a stop string; see Result.Stop
	ReasonLength                      // MaxTokens, or the context is full
	ReasonCancelled                   // the request's context ended, Cancel was called, or the engine closed
	ReasonError                       // see Result.Err
)

var reasonNames = [...]string{"", "eog", "stop", "length", "cancelled", "error"}

func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasonNames) {
		return fmt.Sprintf("reason %d", int(r))
	}
	return reasonNames[r]
}

// Result sums up a generation that ended.
type Result struct {
	Reason Reason
	Stop   string // the stop string that ended the text
	Err    error  // why it failed or was cancelled; nil otherwise
	Slot   int    // where it ran, -1 if it never did

	Prompt    int // tokens of the prompt
	Seen      int // of them before it was shortened; 0 if it was not
	Cached    int // of them, found in the cache
	Generated int // tokens drawn, an end-of-generation token included
	Forgotten int // tokens of prompt and answer that were dropped when the context was full; see Shift

	Queued time.Duration // from Submit until a slot was free
	First  time.Duration // from Submit until the first token; 0 without one
	Total  time.Duration // from Submit to the end
	// Stats has the counts and times of prompt and rounds: Guessed is draft_n, Accepted draft_n_accepted.
	Stats speculate.Stats
}

// Errors of Submit and Embed that callers tell apart.
var (
	ErrQueueFull   = errors.New("too many requests are waiting; try again later")
	ErrClosed      = errors.New("the engine is closed")
	ErrUnsupported = errors.New("the model does not support this")
	ErrEmptyPrompt = errors.New("the prompt is empty")
	ErrNoVision    = errors.New("this model reads text only: it was loaded without an image encoder (an mmproj file " +
		"beside it, or --mmproj FILE)")
	// ErrNotFinite ends generations: weights are damaged, or a sum was too large for its type.
	ErrNotFinite = errors.New("the model's output is not a finite number; its file may be damaged")
)

// ContextError reports a prompt that does not fit; the answer needs room, too. A prompt that was not counted has 0
// tokens.
type ContextError struct {
	Prompt, Context int // tokens
}

func (e *ContextError) Error() string {
	// Agents know llama.cpp's words and shorten the conversation when they read them.
	if e.Prompt == 0 {
		return fmt.Sprintf("request exceeds the available context size (%d tokens)", e.Context)
	}
	return fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens)", e.Prompt, e.Context)
}
