package bench

import (
	"encoding/json"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"strobe/internal/engine"
	"strobe/internal/speculate"
)

// Schema names the form of a Report. Fields are only ever added to it.
const Schema = "strobe-bench/1"

// Report is the result of a measurement. The README beside this file describes its JSON form.
type Report struct {
	Schema    string         `json:"schema"`
	System    System         `json:"system"`
	Model     ModelInfo      `json:"model"`
	Drafter   *DrafterInfo   `json:"drafter"`
	MTP       *DrafterInfo   `json:"mtp,omitempty"`            // beside another one
	Others    []*DrafterInfo `json:"other_drafters,omitempty"` // all beside the first, MTP among them
	Settings  Settings       `json:"settings"`
	Modes     []ModeReport   `json:"modes"`
	LeftOut   []string       `json:"left_out,omitempty"` // modes that this pair of a sweep cannot run, and why
	Prompts   []PromptReport `json:"prompts"`
	Identical Identical      `json:"identical"`
	Memory    Memory         `json:"memory"`
	Machine   *Machine       `json:"machine"`
}

// System is where the measurement ran.
type System struct {
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Go      string `json:"go"`
	Device  string `json:"device"`
	Threads int    `json:"threads"`
}

// ModelInfo describes the target.
type ModelInfo struct {
	Path          string `json:"path"`
	Name          string `json:"name"`
	Arch          string `json:"architecture"`
	WeightBytes   int    `json:"weight_bytes"`
	BytesPerToken int    `json:"bytes_per_token"` // of the weights that one token needs
	MACsPerToken  int    `json:"macs_per_token"`
	TokenBytes    int    `json:"cache_bytes_per_token"`
	SeqBytes      int    `json:"cache_bytes_per_sequence"`
	KV            string `json:"cache_types"`
}

// DrafterInfo describes the drafter.
type DrafterInfo struct {
	Path        string `json:"path"`
	Name        string `json:"name"`
	Block       int    `json:"block"` // tokens of a draft and the one before
	WeightBytes int    `json:"weight_bytes"`
	TokenBytes  int    `json:"cache_bytes_per_token"`
	SeqBytes    int    `json:"cache_bytes_per_sequence"`
	KV          string `json:"cache_types"`
}

// Settings is what was asked for.
type Settings struct {
	Source          string  `json:"source"` // the suite or file of the prompts
	Prompts         int     `json:"prompts"`
	PromptTokens    int     `json:"prompt_tokens"` // of all prompts
	Tokens          int     `json:"tokens"`        // limit per prompt
	Repeats         int     `json:"repeats"`
	Temperature     float64 `json:"temperature"`
	SyntheticAccept float64 `json:"synthetic_accept"` // 0: tokens were verified
	IgnoreEnd       bool    `json:"ignore_end"`
}

// ModeReport is what one mode did, over all prompts and repeats.
type ModeReport struct {
	Name                  string         `json:"name"`
	TokensPerSecond       Spread         `json:"tokens_per_second"` // after the first token
	SpeedUp               Spread         `json:"speedup"`           // against plain, inside a repeat
	Against               Comparison     `json:"against_plain"`
	BreakEven             float64        `json:"break_even_tokens_per_pass"` // at which it is as fast as plain
	PromptTokensPerSecond Spread         `json:"prompt_tokens_per_second"`
	FirstToken            Spread         `json:"first_token_milliseconds"` // mean over the prompts
	Tokens                int            `json:"tokens"`
	Passes                int            `json:"passes"` // of the target, after the prompt
	Drafts                int            `json:"drafts"` // passes of the drafter
	TokensPerPass         float64        `json:"tokens_per_pass"`
	Guessed               int            `json:"guessed"`
	Accepted              int            `json:"accepted"`
	Lengths               []int          `json:"length_histogram"`       // passes that yielded 1, 2, ... tokens
	ByPosition            []float64      `json:"acceptance_by_position"` // given that all guesses before were right
	Sources               map[string]int `json:"rounds_by_source"`
	Time                  Split          `json:"milliseconds_per_token"`
	BySource              []SourceReport `json:"by_source,omitempty"` // sorted by name
}

// SourceReport is what one source did in a mode and where the time of its rounds went.
type SourceReport struct {
	Name     string `json:"name"`
	Drafts   int    `json:"drafts"`   // times it was asked for guesses
	Right    int    `json:"right"`    // of them, those whose first guess was right, verified or not
	Rounds   int    `json:"rounds"`   // passes that verified its guesses
	Tails    int    `json:"tails"`    // passes in which its guesses continued those of another source
	Guessed  int    `json:"guessed"`  // its guesses that were verified
	Accepted int    `json:"accepted"` // of them, those that were right
	// Milliseconds: of a draft; of the target's pass, of sampling and commit, and of the rest in a round that verified its
	// guesses.
	Draft  float64 `json:"draft_milliseconds"`
	Verify float64 `json:"verify_milliseconds"`
	Accept float64 `json:"accept_milliseconds"`
	Host   float64 `json:"host_milliseconds"`
}

// bySource reports each source that was asked.
func bySource(st *speculate.Stats) (out []SourceReport) {
	each := func(d time.Duration, n int) float64 { return d.Seconds() * 1e3 / float64(max(1, n)) }
	for _, name := range slices.Sorted(maps.Keys(st.BySource)) {
		x := st.BySource[name]
		out = append(out, SourceReport{Name: name, Drafts: x.Drafts, Right: x.Right, Rounds: x.Rounds, Tails: x.Tails,
			Guessed: x.Guessed, Accepted: x.Accepted, Draft: each(x.Draft, x.Drafts), Verify: each(x.Verify, x.Rounds),
			Accept: each(x.Accept, x.Rounds), Host: each(x.Host, x.Rounds)})
	}
	return out
}

// Split is where the time went, in milliseconds per generated token.
type Split struct {
	Draft    float64 `json:"draft"`
	Verify   float64 `json:"verify"`
	Commit   float64 `json:"commit"`
	Sampling float64 `json:"sampling"`
	Rest     float64 `json:"rest"`
}

// Total is the sum.
func (s Split) Total() float64 { return s.Draft + s.Verify + s.Commit + s.Sampling + s.Rest }

// PromptReport is what happened with one prompt.
type PromptReport struct {
	ID           string                `json:"id"`
	PromptTokens int                   `json:"prompt_tokens"`
	Tokens       int                   `json:"tokens"`
	Modes        map[string]PromptMode `json:"modes"`
}

// PromptMode is one prompt in one mode.
type PromptMode struct {
	TokensPerSecond float64 `json:"tokens_per_second"` // median
	TokensPerPass   float64 `json:"tokens_per_pass"`
}

// Identical says whether all modes generated the same tokens.
type Identical struct {
	Checked     bool         `json:"checked"`
	Same        bool         `json:"same"`
	SHA256      string       `json:"sha256"` // of the first mode's tokens
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is the first token in which a mode differs on a prompt.
type Difference struct {
	Mode   string `json:"mode"`
	Prompt string `json:"prompt"`
	Token  int    `json:"token"`
}

// Memory is what was held, in bytes.
type Memory struct {
	Weights        int `json:"weights"`
	DrafterWeights int `json:"drafter_weights"`
	Cache          int `json:"cache"` // of the longest sequence
	DrafterCache   int `json:"drafter_cache"`
	Resident       int `json:"resident"` // of the process, mapped weights included; 0 if unknown
	PeakResident   int `json:"peak_resident"`
}

func system(m *engine.Model) System {
	return System{OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(), Device: m.Backend().Name(),
		Threads: threadsOf(m)}
}

func describe(m *engine.Model) ModelInfo {
	t := m.Target
	w := weightsOf(t.File(), &t.Config)
	return ModelInfo{Path: m.Path, Name: t.Name, Arch: t.Arch, WeightBytes: t.WeightBytes(),
		BytesPerToken: int(w.bytes(1)), MACsPerToken: int(w.macs()),
		TokenBytes: t.Memory().TokenBytes(), SeqBytes: t.Memory().SeqBytes(),
		KV: strings.Join(t.Memory().Types(), ", ")}
}

func describeDrafter(m *engine.Model, d engine.Drafter) *DrafterInfo {
	info := &DrafterInfo{Path: m.DrafterFile(d), Name: d.Name(), Block: d.Max() + 1, WeightBytes: d.WeightBytes(),
		TokenBytes: d.Memory().TokenBytes(), SeqBytes: d.Memory().SeqBytes(), KV: strings.Join(d.Memory().Types(), ", ")}
	if d == engine.Drafter(m.Drafter) {
		info.Block = m.Drafter.Block()
	}
	return info
}

func memory(m *engine.Model, results [][][]result) Memory {
	mem := Memory{Weights: m.Target.WeightBytes()}
	for _, d := range m.Drafters() {
		mem.DrafterWeights += d.WeightBytes()
	}
	for _, mode := range results {
		for _, c := range mode {
			for _, r := range c {
				mem.Cache = max(mem.Cache, r.cacheBytes)
				mem.DrafterCache = max(mem.DrafterCache, r.draftBytes)
			}
		}
	}
	mem.Resident, mem.PeakResident = resident()
	return mem
}

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
