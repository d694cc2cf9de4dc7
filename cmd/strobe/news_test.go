package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/testkit"
)

// safeBuffer is a buffer that goroutines share.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestNews: what takes long is said in a line that goes away, or in lines of a log; what is short, and what has nothing
// to say, is silent.
func TestNews(t *testing.T) {
	start := func(draws bool, first time.Duration, text func() string) (*news, *safeBuffer) {
		n, out := &news{over: make(chan struct{})}, &safeBuffer{}
		n.wait.Go(func() { n.run(out, draws, text, first, time.Millisecond, time.Hour) })
		return n, out
	}
	until := func(out *safeBuffer, want string) {
		t.Helper()
		for range 5000 {
			if strings.Contains(out.String(), want) {
				return
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatalf("it never says %q: %q", want, out.String())
	}
	here := func() string { return "here" }

	n, out := start(true, 0, here)
	until(out, "\r\x1b[Khere\r\x1b[Khere")
	n.end()
	n.end() // twice is once
	if s := out.String(); !strings.HasSuffix(s, "here\r\x1b[K") || strings.Contains(s, "\n") {
		t.Errorf("on a terminal: %q", s)
	}
	n, out = start(false, 0, here)
	until(out, "here\n")
	n.end()
	if s := out.String(); s != "here\n" {
		t.Errorf("in a log: %q", s)
	}
	for _, draws := range []bool{true, false} {
		n, out = start(draws, time.Hour, here)
		n.end()
		if s := out.String(); s != "" {
			t.Errorf("before its time: %q", s)
		}
		calls := make(chan struct{}, 1000)
		n, out = start(draws, 0, func() string { calls <- struct{}{}; return "" })
		<-calls
		<-calls
		n.end()
		if s := out.String(); s != "" {
			t.Errorf("with nothing to say: %q", s)
		}
	}
	(*news)(nil).end()
	for in, want := range map[[2]int]string{
		{0, 2412}: "reading the prompt: 0 of 2,412 tokens", {999, 1000}: "reading the prompt: 999 of 1,000 tokens",
		{1000, 1000}: "", {1, 1234567}: "reading the prompt: 1 of 1,234,567 tokens",
	} {
		if got := reading(in[0], in[1]); got != want {
			t.Errorf("%v: %q, want %q", in, got, want)
		}
	}
}

// TestRunWithoutTemplate: a model that cannot chat says so and does not write for ever, unless it is asked to.
func TestRunWithoutTemplate(t *testing.T) {
	model := testkit.Golden(t, "qwen3/model.gguf")
	const note = "it continues the text"
	for _, c := range []struct {
		args   []string
		tokens string
		noted  bool
	}{
		{[]string{"--ignore-eos"}, "generated 256 tokens", true},
		{[]string{"--ignore-eos", "-n", "3"}, "generated 3 tokens", true},
		{[]string{"--ignore-eos", "-n", "0", "--ctx", "300"}, "cut: the context of 300 tokens is full", true},
		{[]string{"--raw", "-n", "3"}, "generated", false},
	} {
		code, _, stderr := command(t, append([]string{"run", "-m", model, "-p", "a b", "--temp", "0"}, c.args...)...)
		if code != exitOK || !strings.Contains(stderr, c.tokens) || strings.Contains(stderr, note) != c.noted {
			t.Errorf("%v: code %d, %s", c.args, code, stderr)
		}
	}
}

// TestChatModel: another model goes on with the conversation, and one that cannot be loaded leaves the old one.
func TestChatModel(t *testing.T) {
	tk := newTestTalk(t, withTemplate(t, "qwen35"))
	u, err := tk.say(t.Context(), "hello")
	all(t, u, err)
	before := tk.Model
	if out, _, _, err := tk.command("/model"); err != nil || !strings.Contains(out, " on cpu") {
		t.Errorf("/model: %q, %v", out, err)
	}
	if _, _, _, err := tk.command("/model /no/such.gguf"); err == nil || tk.Model != before {
		t.Errorf("a missing file: %v", err)
	}
	u, err = tk.say(t.Context(), "still there?")
	all(t, u, err)
	out, _, _, err := tk.command("/model " + testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil || tk.Model == before {
		t.Fatalf("%q, %v", out, err)
	}
	t.Cleanup(func() { tk.Close() })
	if !strings.Contains(out, "continues what you write") || len(tk.messages) != 4 {
		t.Errorf("%q, %d messages", out, len(tk.messages))
	}
	u, err = tk.say(t.Context(), "go on")
	all(t, u, err)
	if n := len(tk.messages); n != 6 {
		t.Errorf("%d messages", n)
	}
	for typed, want := range map[string]string{
		"/modle": "did you mean /model?", "/sav x": "did you mean /save?", "/hlep": "did you mean /help?",
		"/frobnicate": "there is no command /frobnicate; /help",
	} {
		if _, _, _, err := tk.command(typed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", typed, err, want)
		}
	}
}

// TestScreenReads: a prompt that takes long shows how far it is, and what belongs to an earlier answer is dropped.
func TestScreenReads(t *testing.T) {
	tk := newTestTalk(t, withTemplate(t, "qwen35"))
	s := &screen{talk: tk, look: newPaint(false), width: 60, height: 20, ctx: t.Context()}
	u, err := tk.say(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	s.turn, s.slow = u, reading(812, 2412)
	if v := s.View().Content; !strings.Contains(v, "reading the prompt: 812 of 2,412 tokens, Ctrl-C stops it") {
		t.Errorf("the screen says %q", v)
	}
	s.Update(tickMsg{&turn{}})
	if s.slow == "" {
		t.Error("a tick of another answer counts")
	}
	all(t, u, nil)
	if _, next := s.Update(tickMsg{u}); s.slow != "" || next != nil {
		t.Errorf("after the prompt was read it says %q", s.slow)
	}
}
