package fleet

import (
	"context"
	"reflect"
	"testing"
	"time"

	"strobe/internal/engine"
	"strobe/internal/testkit"
	"strobe/internal/upstream"
)

var quick = Service{Prompt: time.Millisecond, CacheTokens: 20000,
	Tokens: []TokenTime{{1, 20 * time.Millisecond}, {4, 40 * time.Millisecond}}}

func settings() Settings {
	return Settings{Replicas: 4, Parallel: 4, Chunk: 256, Agents: 40, Projects: 10, Turns: 6, System: 500, User: 200,
		Answer: 50, Think: time.Second, Seed: 1}
}

// TestPolicies: the same traffic gives the same numbers every time, and what is sticky finds more prefixes than what
// goes round, although that finds the system prompts, too. (Without those it is more than twice as many.)
func TestPolicies(t *testing.T) {
	got := map[upstream.Policy]Outcome{}
	for _, p := range []upstream.Policy{upstream.RoundRobin, upstream.LeastLoaded, upstream.Sticky} {
		got[p] = Simulate(settings(), quick, p)
		if again := Simulate(settings(), quick, p); !reflect.DeepEqual(again, got[p]) {
			t.Errorf("%v: %+v, and then %+v", p, got[p], again)
		}
		if got[p].Requests != 40*6 {
			t.Errorf("%v: %d requests were answered", p, got[p].Requests)
		}
		t.Logf("%+v", got[p])
	}
	rr, sticky := got[upstream.RoundRobin], got[upstream.Sticky]
	if sticky.HitRate < 1.5*rr.HitRate || sticky.Speed <= rr.Speed || sticky.First.Mean >= rr.First.Mean {
		t.Errorf("sticky %+v, round robin %+v", sticky, rr)
	}
	if ll := got[upstream.LeastLoaded]; ll.Queue.Mean > rr.Queue.Mean {
		t.Errorf("least loaded waits %.1f ms, round robin %.1f", ll.Queue.Mean, rr.Queue.Mean)
	}
	alone := settings()
	alone.System = 0
	a, b := Simulate(alone, quick, upstream.Sticky), Simulate(alone, quick, upstream.RoundRobin)
	if a.HitRate < 2*b.HitRate {
		t.Errorf("without system prompts sticky hits %.2f, round robin %.2f", a.HitRate, b.HitRate)
	}
	other := settings()
	other.Seed = 2
	if reflect.DeepEqual(Simulate(other, quick, upstream.Sticky), sticky) {
		t.Error("another seed gives the same numbers")
	}
}

// TestOneRequest: a single request takes what can be computed by hand.
func TestOneRequest(t *testing.T) {
	s := settings()
	s.Agents, s.Turns, s.Think, s.Projects = 1, 2, 0, 1
	o := Simulate(s, quick, upstream.Sticky)
	a := newAgent(&s, 0)
	// The first turn runs its whole prompt, the second what was added to the conversation since.
	first := time.Duration(500+a.user[0]) * quick.Prompt
	second := time.Duration(a.user[1]) * quick.Prompt
	token := 20 * time.Millisecond
	total := first + second + time.Duration(a.answer[0]-1+a.answer[1]-1)*token
	if got := time.Duration(o.Seconds * float64(time.Second)).Round(time.Microsecond); got != total {
		t.Errorf("two turns took %v, want %v", got, total)
	}
	known := 500 + a.user[0] + a.answer[0]
	if want := float64(known) / float64(500+a.user[0]+known+a.user[1]); o.HitRate != want {
		t.Errorf("hit rate %v, want %v", o.HitRate, want)
	}
	if o.Queue.P95 != 0 || o.Busiest != 4 {
		t.Errorf("%+v", o)
	}
}

func TestCacheForgets(t *testing.T) {
	p := prefixes{limit: 250}
	a, b, c := &agent{id: 1, length: 150}, &agent{id: 2, length: 150}, &agent{id: 3, project: 1, length: 150}
	p.keep(a, 100)
	p.keep(b, 100) // shares the system prompt: 200 tokens in all
	if p.used != 200 || p.find(a, 100) != 150 || p.find(b, 100) != 150 || p.find(c, 100) != 0 {
		t.Errorf("%+v", p)
	}
	p.keep(c, 100)
	if p.used > 250 || p.find(c, 100) != 150 || p.find(b, 100) != 150 || p.find(a, 100) != 0 {
		t.Errorf("%+v", p)
	}
}

func TestTokenTimes(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 0, 1: 20, 2: 26, 4: 40, 7: 60} {
		if got := quick.token(n) / time.Millisecond; got != want {
			t.Errorf("%d streams: %v ms, want %v", n, got, want)
		}
	}
	for _, s := range []Service{{}, {Prompt: 1}, {Prompt: 1, Tokens: []TokenTime{{2, 1}, {1, 1}}}} {
		if s.Check() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

func TestMeasure(t *testing.T) {
	m, err := engine.Load(testkit.Golden(t, "qwen3/model.gguf"), engine.Options{Threads: 1, Drafter: "none"})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(m, engine.Config{Parallel: 3, CacheBytes: 1 << 20})
	defer e.Close(context.Background())
	s, err := Measure(t.Context(), e, "tiny", MeasureConfig{Prompt: 64, Answer: 8, Repeats: 1})
	if err != nil || len(s.Tokens) != 3 || s.Tokens[2].Streams != 3 || s.CacheTokens == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
