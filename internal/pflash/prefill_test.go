package pflash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestText: a text keeps its end and some of the rest, in order; a short one is left alone, and so is one that
// cannot be scored.
func TestText(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var said []string
	open := func(opt Options) *Prefill {
		opt.Threads, opt.Log = 2, func(s string) { said = append(said, s) }
		p, err := Open(f, opt)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "Größe %d ist %d.\n", i, i*i%97)
	}
	text := b.String()
	ctx := context.Background()

	p := open(Options{Mode: Always, Keep: 0.25})
	short, r, err := p.Text(ctx, text, 0)
	if err != nil || !r.Changed() || len(short) >= len(text)/2 || r.Kept > r.Seen/4 || r.Score == 0 {
		t.Errorf("%d of %d bytes, %+v, %v", len(short), len(text), r, err)
	}
	if !strings.HasSuffix(text, short[len(short)-400:]) {
		t.Errorf("the end is gone: %q", short)
	}
	limited, r, err := p.Text(ctx, text, 300)
	if err != nil || r.Kept > 300 || limited == "" {
		t.Errorf("%d tokens kept, the limit is 300: %v", r.Kept, err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := p.Text(done, text, 0); err == nil {
		t.Error("the text was shortened although its request was cancelled")
	}
	p.Close()
	said = nil
	if whole, r, err := p.Text(ctx, text, 0); whole != text || r.Changed() || err != nil || len(said) != 1 ||
		!strings.Contains(said[0], "the whole prompt is used") {
		t.Errorf("a scorer that is gone: %+v, %v, %q", r, err, said)
	}

	p = open(Options{Mode: Auto, Keep: 0.25})
	defer p.Close()
	if whole, r, err := p.Text(ctx, text, 0); whole != text || r.Changed() || err != nil {
		t.Errorf("a text that is short enough: %+v, %v", r, err)
	}
	if _, r, err := p.Text(ctx, text, 300); r.Kept > 300 || err != nil {
		t.Errorf("a text that exceeds the context: %+v, %v", r, err)
	}
}

// tinyFile is a scorer's file.
func tinyFile(t *testing.T, name string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func numbers(from, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "Line %d is about %d.\n", from+i, (from+i)*7919%997)
	}
	return b.String()
}

// TestMessages: a conversation keeps its system message and its question, and loses parts of what is long; a short one
// loses nothing unless it exceeds the limit.
func TestMessages(t *testing.T) {
	f := tinyFile(t, "qwen3/model.gguf")
	talk := func() []Message {
		return []Message{{Role: "system", Text: numbers(0, 40)}, {Role: "user", Text: numbers(100, 60)},
			{Role: "assistant", Text: numbers(300, 60)}, {Role: "tool", Text: "short"},
			{Role: "user", Text: "What is line 120 about?"}}
	}
	ctx := t.Context()
	for _, c := range []struct {
		name      string
		opt       Options
		limit     int
		shortened []int
	}{
		{"always", Options{Mode: Always, Keep: 0.25}, 0, []int{1, 2}},
		{"long enough", Options{Mode: Auto, From: 1000, Keep: 0.25}, 0, []int{1, 2}},
		{"too short", Options{Mode: Auto, Keep: 0.25}, 0, nil},
		{"within the limit", Options{Mode: Auto, Keep: 0.25}, 10_000, nil},
		{"above the limit", Options{Mode: Auto, Keep: 0.25}, 1700, []int{1, 2}},
	} {
		c.opt.Threads = 2
		p, err := Open(f, c.opt)
		if err != nil {
			t.Fatal(err)
		}
		msgs := talk()
		turn, r, err := p.Messages(ctx, msgs, c.limit)
		var shortened []int
		for i, m := range talk() {
			if turn.Texts[i] != m.Text {
				shortened = append(shortened, i)
			}
		}
		if err != nil || !slices.Equal(shortened, c.shortened) || r.Changed() != (len(c.shortened) > 0) ||
			turn.TooLong || (r.Score > 0) != r.Changed() {
			t.Errorf("%s: messages %v are shortened, want %v; %+v, error %v", c.name, shortened, c.shortened, r, err)
		}
		if len(c.shortened) > 0 {
			if !strings.Contains(turn.Texts[1], "Line 120 is about") {
				t.Errorf("%s: the answer is gone: %q", c.name, turn.Texts[1])
			}
			again, r2, err := p.Messages(ctx, talk(), c.limit)
			if err != nil || !slices.Equal(again.Texts, turn.Texts) || r2.Score > 0 {
				t.Errorf("%s: the same again is not known: %+v, error %v", c.name, r2, err)
			}
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if _, _, err := p.Messages(gone, talk(), c.limit); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: error %v", c.name, err)
		}
		p.Close()
		if c.opt.Mode == Always {
			other := talk()
			other[1].Text += "more"
			turn, r, err := p.Messages(ctx, other, 0)
			if err != nil || r.Changed() || turn.Texts[1] != other[1].Text {
				t.Errorf("a scorer that is gone: %+v, error %v", r, err)
			}
		}
	}
}

// TestOpenFails: what cannot be a scorer is refused when it is opened; nothing is left running after an error or Close.
func TestOpenFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, c := range []struct {
		file, device, want string
	}{
		{"qwen3/model.gguf", "nosuch", "nosuch"},
		{"gemma4/model.gguf", "", "cannot score prompts"},
	} {
		if p, err := Open(tinyFile(t, c.file), Options{Mode: Always, Device: c.device, Threads: 2}); err == nil || p != nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %q: error %v, want %q", c.file, c.device, err, c.want)
		}
	}
	dev := cpu.New(cpu.Options{Threads: 2})
	defer dev.Close()
	for want, path := range map[string]string{
		"tokenizer.ggml.model": edit.Golden(t, "qwen3").Set("tokenizer.ggml.model", "nosuch").Write(t),
		"blk.0.attn_q":         edit.Golden(t, "qwen3").Drop("blk.0.attn_q").Write(t),
	} {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewScorer(f, dev, quant.F32); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a scorer without %s: error %v", want, err)
		}
		if p, err := Open(f, Options{Mode: Always, Threads: 2}); err == nil || p != nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("a file without %s is opened: error %v", want, err)
		}
		f.Close()
	}
	p, err := Open(tinyFile(t, "qwen3/model.gguf"), Options{Mode: Always, Threads: 2, NoPark: true})
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := p.score(gone, make([]int32, 64), &r); !errors.Is(err, context.Canceled) || p.s == nil || r.Score > 0 {
		t.Errorf("cancelled: error %v, the scorer is loaded: %t, %+v", err, p.s != nil, r)
	}
	if _, _, err := p.score(t.Context(), make([]int32, maxTokens+1), &r); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("%d tokens is not scored; the limit is %d", maxTokens+1, maxTokens)) {
		t.Errorf("a prompt that is too long: error %v", err)
	}
	p.Close()
	p.Close() // again is allowed
}

// TestOneAfterTheOther: prompts are scored one at a time, and Close waits for the one that is being scored.
func TestOneAfterTheOther(t *testing.T) {
	var p *Prefill
	var inside, closed atomic.Int32
	var wg sync.WaitGroup
	first := make(chan struct{})
	var once sync.Once
	log := func(s string) { // is called while a prompt is being scored
		if inside.Add(1) > 1 {
			t.Error("two prompts are scored at the same time")
		}
		once.Do(func() {
			close(first)
			// Without a lock the others would be through by now.
			for i := 0; i < 50 && inside.Load() == 1 && closed.Load() == 0; i++ {
				time.Sleep(2 * time.Millisecond)
			}
		})
		if closed.Load() > 0 {
			t.Error("it is closed while a prompt is being scored")
		}
		inside.Add(-1)
	}
	p, err := Open(tinyFile(t, "qwen3/model.gguf"), Options{Mode: Always, Keep: 0.25, Threads: 2, NoPark: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	text := numbers(0, 40)
	wg.Go(func() { p.Text(t.Context(), text, 0) })
	<-first
	for range 2 {
		wg.Go(func() { p.score(t.Context(), make([]int32, 64), new(Report)) })
	}
	wg.Go(func() {
		p.Close()
		closed.Add(1)
	})
	wg.Wait()
}

// borrowed is a device that counts the tensors of so many columns that are in use.
type borrowed struct {
	backend.Backend
	cols, live int
}

func (b *borrowed) Alloc(rows, cols int) (backend.Tensor, error) {
	if cols == b.cols {
		b.live++
	}
	return b.Backend.Alloc(rows, cols)
}

func (b *borrowed) Free(x backend.Tensor) {
	if x.Cols == b.cols {
		b.live--
	}
	b.Backend.Free(x)
}

// TestScorerGivesBack: scoring leaves no memory behind on the device, whether it succeeds or not.
func TestScorerGivesBack(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 2})
	defer dev.Close()
	b := &borrowed{Backend: dev, cols: 67}
	s, err := NewScorer(tinyFile(t, "qwen3/model.gguf"), b, quant.F32)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, b.cols)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), gone} {
		if _, err := s.Tokens(ctx, ids); err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		if b.live != 0 {
			t.Errorf("%d tensors of weights are still in use", b.live)
		}
	}
	s.Sparse.Alpha = 0
	if got := s.Kernel(); got != "dense" {
		t.Errorf("full attention is called %s", got)
	}
}
