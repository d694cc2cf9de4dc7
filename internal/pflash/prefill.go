package pflash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"strobe/internal/backend"
	"strobe/internal/device"
	"strobe/internal/gguf"
	"strobe/internal/platform"
	"strobe/internal/quant"
	"strobe/internal/tokenizer"
)

// Mode says which prompts are shortened.
type Mode int

// The modes.
const (
	Off    Mode = iota
	Auto        // long ones
	Always      // all that are long enough to have something to leave out
)

// ParseMode reads a mode.
func ParseMode(s string) (Mode, error) {
	for i, name := range []string{"off", "auto", "always"} {
		if s == name {
			return Mode(i), nil
		}
	}
	return Off, fmt.Errorf("prefill mode %q: want off, auto or always", s)
}

// Options says how to shorten prompts. The zero value does not.
type Options struct {
	Mode    Mode
	From    int     // tokens from which on Auto shortens prompts; 0 means 32000
	Keep    float64 // share of tokens to keep; 0 chooses by the length (KeepRatio)
	Alpha   float32 // of the scorer's attention (backend.Sparse); negative is full attention, 0 the default
	Device  string  // that runs the scorer: cpu, cuda:0, ...; "" is the processor
	Threads int
	NoPark  bool           // keep the scorer's weights on its device
	Log     func(s string) // gets a line for everything that takes time; may be nil
}

// maxTokens is the longest prompt that is scored. Its residual stream is all in memory.
const maxTokens = 1 << 20

// Report says what happened to a prompt.
type Report struct {
	Seen, Kept int           // tokens, as the scorer counts them
	Score      time.Duration // what scoring took; 0 for a prompt that needed none
	Load       time.Duration // part of Score: loading the scorer's weights
}

// Changed reports whether anything was left out.
func (r Report) Changed() bool { return r.Kept < r.Seen }

// Prefill shortens prompts with a scorer's file. It may be used by any goroutine; prompts are scored one after the
// other.
type Prefill struct {
	opt   Options
	file  *gguf.File
	tok   *tokenizer.Tokenizer
	rule  Rule
	comp  Compressor
	mu    sync.Mutex // held while scoring
	b     backend.Backend
	s     *Scorer // nil while parked
	gone  bool
	known string // the attention that the scorer has on its device
}

// Open makes a Prefill of the scorer's file, which must stay open while it is used. A scorer that was parked is loaded
// again when it is needed.
func Open(f *gguf.File, opt Options) (*Prefill, error) {
	p := &Prefill{opt: opt, file: f}
	if p.opt.From == 0 {
		p.opt.From = DefaultParams().Trigger
	}
	var err error
	if p.tok, err = tokenizer.FromGGUF(f); err == nil {
		_, err = p.load() // so that errors of the file are reported now
	}
	if err != nil {
		return nil, err
	}
	p.park()
	return p, nil
}

// Scorer is the name of the scorer's file and the attention it has on its device.
func (p *Prefill) Scorer() (file, attention string) { return p.file.Path(), p.known }

// Active reports whether prompts are shortened.
func (p *Prefill) Active() bool { return p != nil && p.opt.Mode != Off }

// Close gives the scorer's device back. It waits for a prompt that is being scored.
func (p *Prefill) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	p.unload()
}

// load gets the scorer ready.
func (p *Prefill) load() (took time.Duration, err error) {
	if p.gone {
		return 0, os.ErrClosed
	}
	if p.s != nil {
		return 0, nil
	}
	defer func() {
		if p.s == nil { // also after a panic
			p.unload()
		}
	}()
	began := time.Now()
	name := p.opt.Device
	if name == "" {
		name = "cpu"
	}
	if p.b, err = device.Open(name, device.Options{Threads: p.opt.Threads}); err != nil {
		return 0, err
	}
	s, err := NewScorer(p.file, p.b, quant.F16)
	if err != nil {
		return 0, err
	}
	switch {
	case p.opt.Alpha < 0:
		s.Sparse.Alpha = 0
	case p.opt.Alpha > 0:
		s.Sparse.Alpha = p.opt.Alpha
	}
	p.s = s
	p.rule, p.known = p.s.Rule, p.s.Kernel()
	return time.Since(began), nil
}

func (p *Prefill) unload() {
	if p.b != nil {
		p.b.Close()
	}
	p.s, p.b = nil, nil
}

// park gives the scorer's memory back when little is left on its device: generations need it more.
func (p *Prefill) park() {
	if !p.opt.NoPark && device.Tight(p.b) {
		began := time.Now()
		p.unload()
		p.log("prefill: scorer parked in %v", time.Since(began))
	}
}

func (p *Prefill) log(format string, args ...any) {
	if p.opt.Log != nil {
		for i, a := range args {
			if d, ok := a.(time.Duration); ok {
				args[i] = d.Round(time.Millisecond)
			}
		}
		p.opt.Log(fmt.Sprintf(format, args...))
	}
}

// score runs the scorer over tokens and adds what it took to the report.
func (p *Prefill) score(ctx context.Context, ids []int32, r *Report) (scores []float64, width int, err error) {
	if len(ids) > maxTokens {
		return nil, 0, fmt.Errorf("a prompt of %d tokens is not scored; the limit is %d", len(ids), maxTokens)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	began := time.Now()
	var took time.Duration
	err = platform.Reading(p.file.Path(), func() (err error) {
		if took, err = p.load(); err == nil {
			scores, err = p.s.Tokens(ctx, ids)
		}
		return err
	})
	defer p.park()
	if err != nil {
		if !errors.Is(err, context.Canceled) { // out of memory, perhaps: free what the scorer has
			p.unload()
		}
		return nil, 0, err
	}
	r.Load += took
	r.Score += time.Since(began)
	p.log("prefill: %d tokens scored in %v (%s attention), weights loaded in %v", len(ids), time.Since(began), p.known, took)
	return scores, p.s.Pool, nil
}

// Text shortens a text that is to be continued, if it is long enough or exceeds the limit (0 for none) in tokens. What
// is kept follows each other. If scoring fails the text is returned whole. Its only error is that of the context.
func (p *Prefill) Text(ctx context.Context, text string, limit int) (string, Report, error) {
	ids := p.tok.Encode(text, tokenizer.EncodeOptions{Continue: true, Done: ctx.Done()})
	r := Report{Seen: len(ids), Kept: len(ids)}
	if err := ctx.Err(); err != nil {
		return text, r, err
	}
	if p.opt.Mode == Auto && len(ids) < p.opt.From && (limit == 0 || len(ids) <= limit) || len(ids) <= lookahead {
		return text, r, nil
	}
	at, ok := offsets(p.tok, ids, text)
	if !ok {
		return text, r, p.failed(ctx, errors.New("the scorer's vocabulary changes the text"))
	}
	raw, width, err := p.score(ctx, ids, &r)
	if err != nil {
		return text, r, p.failed(ctx, err)
	}
	ratio := p.opt.Keep
	if ratio == 0 {
		ratio = KeepRatio(len(ids))
	}
	if limit > 0 {
		ratio = min(ratio, float64(limit)/float64(len(ids)))
	}
	s := SelectText(ids, means(pool(raw, width), p.rule.Chunk), ratio, p.rule)
	b := []byte(text)
	var out []byte
	for _, x := range s.Spans {
		k := snapped(b, span{at[x[0]], at[x[1]]}, 0)
		out = append(out, b[k[0]:k[1]]...)
	}
	r.Kept = s.Tokens()
	return string(out), r, nil
}

// failed logs that the whole prompt is used, unless the request was cancelled.
func (p *Prefill) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		p.log("prefill: scoring failed, the whole prompt is used: %v", err)
	}
	return ctx.Err()
}

// offsets returns where each token begins in the text, and its end. It reports false if the tokens are those of
// another text.
func offsets(tok *tokenizer.Tokenizer, ids []int32, text string) ([]int, bool) {
	at := make([]int, len(ids)+1)
	for i, id := range ids {
		piece := tok.Piece(id, true)
		end := at[i] + len(piece)
		if end > len(text) || text[at[i]:end] != string(piece) {
			return nil, false
		}
		at[i+1] = end
	}
	return at, at[len(ids)] == len(text)
}

// manyHits is how many times longer than asked for words of the question may make what is kept: words that are
// everywhere point nowhere.
const manyHits = 1.5

// question is how many tokens of the last user message score the others, and how many are looked for in them.
const question = 64

// Messages shortens a conversation. Of the messages Role, Text, More and Fixed count. Limit is the most tokens there
// may be; 0 means no limit. If scoring fails nothing more is left out. Its only error is that of the context.
func (p *Prefill) Messages(ctx context.Context, msgs []Message, limit int) (Turn, Report, error) {
	var r Report
	texts := make([][]int32, len(msgs))
	for i := range msgs {
		texts[i] = p.tok.Encode(msgs[i].Text, tokenizer.EncodeOptions{Continue: true, Done: ctx.Done()})
		msgs[i].Tokens = len(texts[i])
		r.Seen += len(texts[i])
	}
	par := DefaultParams()
	par.Keep, par.Limit = p.opt.Keep, limit
	if par.Trigger = p.opt.From; p.opt.Mode == Always {
		par.Trigger = 0
	}
	if limit > 0 {
		par.Trigger = min(par.Trigger, limit)
	}
	if err := ctx.Err(); err != nil {
		return Turn{}, r, err
	}
	t, err := p.comp.Turn(msgs, par, func(which []int) error { return p.prepare(ctx, msgs, texts, which, par, &r) })
	if r.Kept = t.After; err != nil {
		err = p.failed(ctx, err)
	}
	return t, r, err
}

// prepare gives messages their chunks, with scores and hits.
func (p *Prefill) prepare(ctx context.Context, msgs []Message, texts [][]int32, which []int, par Params,
	r *Report) error {
	last := lastUser(msgs)
	if last < 0 {
		last = len(msgs) - 1
	}
	if msgs[which[0]].Chunks == nil {
		// The scorer reads the conversation in the form that Qwen models know, without tools, and the question once more:
		// that way the question sees everything.
		var ids []int32
		first := make([]int, len(msgs))
		mark := tokenizer.EncodeOptions{ParseSpecial: true}
		for i, m := range msgs {
			ids = p.tok.AppendEncode(ids, "<|im_start|>"+m.Role+"\n", mark)
			first[i] = len(ids)
			ids = append(ids, texts[i]...)
			ids = p.tok.AppendEncode(ids, "<|im_end|>\n", mark)
		}
		ids = append(ids, texts[last][max(0, len(texts[last])-question):]...)
		raw, width, err := p.score(ctx, ids, r)
		if err != nil {
			return err
		}
		for i := range msgs {
			m := &msgs[i]
			at, ok := offsets(p.tok, texts[i], m.Text)
			scores := means(pool(raw[first[i]:][:len(texts[i])], width), par.Chunk)
			m.Chunks = []Chunk{}
			for b, s := range scores {
				from, to := b*par.Chunk, min((b+1)*par.Chunk, len(texts[i]))
				if !ok { // a vocabulary that changes the text: all of it is one chunk, which is kept
					m.Chunks = []Chunk{{0, len(m.Text), len(texts[i]), 0}}
					break
				}
				m.Chunks = append(m.Chunks, Chunk{at[from], at[to], to - from, s})
			}
		}
	}
	rule := DefaultRule()
	asked := texts[last][max(0, len(texts[last])-rule.Query):]
	var searched [][]int32
	for _, i := range which {
		t := texts[i]
		if i == last {
			t = t[:len(t)-len(asked)]
		}
		searched = append(searched, t)
		msgs[i].Hits = nil
	}
	chunks, found := 0, 0
	for _, i := range which {
		chunks += len(msgs[i].Chunks)
	}
	for _, h := range hits(asked, rule, searched...) {
		m := &msgs[which[h[0]]]
		if b := h[1] / par.Chunk; !slices.Contains(m.Hits, b) && b < len(m.Chunks) {
			m.Hits = append(m.Hits, b)
			found++
		}
	}
	ratio := par.Keep
	if ratio == 0 {
		ratio = KeepRatio(chunks * par.Chunk)
	}
	if float64(found*(2*par.Radius+1)) > manyHits*ratio*float64(chunks) {
		for _, i := range which {
			msgs[i].Hits = nil
		}
	}
	return nil
}
