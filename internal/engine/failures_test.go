package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// Each test of this file proves a property that failed in other servers; numbers such as F9 count those failures.
// More of them stand beside what they concern, in chat_test.go, disk_test.go, pool_test.go and scheduler_test.go.

var tiny = []string{"qwen3", "qwen35", "gemma4"}

// TestLongPromptsReachTheDrafterWhole (failures F1, F31, F58): prompts around one and several chunks give the drafter
// every feature row, whatever the chunk.
func TestLongPromptsReachTheDrafterWhole(t *testing.T) {
	for _, name := range tiny {
		want := make(map[int][]string)
		for _, chunk := range []int{512, 16} {
			e, r := startRecorded(t, name, Config{Parallel: 1, Chunk: chunk, CacheBytes: -1})
			for _, n := range []int{15, 16, 17, 3*16 + 7} {
				got := r.guesses(t, e, Request{Tokens: randomPrompt(1, n), MaxTokens: 20, IgnoreEOG: true})
				if want[n] == nil {
					want[n] = got
				}
				if !slices.Equal(got, want[n]) {
					t.Errorf("%s: prompt of %d in chunks of %d: the drafter guesses differently", name, n, chunk)
				}
			}
		}
	}
}

// TestShorterAfterLonger (failure F9): a slot that ran a long request runs a shorter one as if it were new.
func TestShorterAfterLonger(t *testing.T) {
	for _, name := range tiny {
		e, r := startRecorded(t, name, Config{Parallel: 1})
		short := Request{Tokens: randomPrompt(2, 12), MaxTokens: 25, IgnoreEOG: true}
		want := r.guesses(t, e, short)
		r.guesses(t, e, Request{Tokens: randomPrompt(1, 170), MaxTokens: 60, IgnoreEOG: true})
		if !slices.Equal(r.guesses(t, e, short), want) {
			t.Errorf("%s: a short request after a long one is drafted for differently", name)
		}
	}
}

// TestManySlotsDraftAsEachAlone (failures F10, F3, F11, F114 to F117): four slots that prefill and decode at
// different times are drafted for exactly as each would be alone.
func TestManySlotsDraftAsEachAlone(t *testing.T) {
	for _, name := range tiny {
		e, r := startRecorded(t, name, Config{Parallel: 4, Chunk: 24, CacheBytes: -1})
		var reqs []Request
		var want []string
		for i := range 4 {
			req := Request{Tokens: randomPrompt(uint64(i), 10+45*i), MaxTokens: 40, IgnoreEOG: true,
				Spec: speculate.Options{Fixed: true, Tree: speculate.TreeOff, Draft: "dflash"}}
			reqs = append(reqs, req)
			want = append(want, r.guesses(t, e, req)...)
		}
		r.log = nil
		together(t, e, reqs, reqs[0].Spec, func(i int, ev Event) {
			if ev.Result.Stats.Guessed == 0 {
				t.Errorf("%s: slot %d was not drafted for", name, i)
			}
		})
		got := r.log
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: together the drafter made %d guesses, alone %d, or others", name, len(got), len(want))
		}
	}
}

// TestDrafterBesideItsTargetDrafts (failures F25 and F111): a drafter that lies beside its target in a pool's folder
// drafts, and the text is that without it, with several sequences at once.
func TestDrafterBesideItsTargetDrafts(t *testing.T) {
	dir := modelDir(t, "m=qwen35", "m-dflash=dflash-qwen35")
	p := newPool(t, PoolConfig{Dir: dir})
	l := acquire(t, p, "m")
	defer l.Release()
	r := generate(t, l.Engine, Request{Tokens: randomPrompt(1, 20), MaxTokens: 50, IgnoreEOG: true, Spec: fixed}).Result
	if r.Stats.Guessed == 0 || r.Stats.Drafts == 0 {
		t.Errorf("%d drafts, %d guesses", r.Stats.Drafts, r.Stats.Guessed)
	}
	var reqs []Request
	for i := range 4 {
		reqs = append(reqs, Request{Tokens: randomPrompt(uint64(i), 20), MaxTokens: 50, IgnoreEOG: true})
	}
	together(t, l.Engine, reqs, fixed, func(i int, ev Event) {
		if !slices.Equal(ids(ev.Tokens), plain(t, "qwen35", reqs[i])) {
			t.Errorf("request %d differs from plain decoding", i)
		}
	})
}

// mute is a drafter that now and then gives nothing, too little, or fails.
type mute struct {
	draft.Source
	calls, failed int
}

var errMute = errors.New("no output")

func (m *mute) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	ps, err := m.Source.Draft(reqs, top)
	switch m.calls++; {
	case err != nil || m.calls < 5:
	case m.calls%3 == 0:
		m.failed++
		return make([]draft.Proposal, len(reqs)), nil
	case m.calls > 20:
		m.failed++
		return nil, errMute
	}
	return ps, err
}

// TestMissingDraftIsAPlainStep (failures F163 and F41): where a drafter's output is missing the step is a plain one.
// Nothing ends, and the text is the same.
func TestMissingDraftIsAPlainStep(t *testing.T) {
	for _, name := range tiny {
		m := loadGolden(t, name, true)
		d := &mute{Source: m.Runner.Sources[0]}
		m.Runner.Sources[0] = d
		e := startModel(t, m, Config{Parallel: 3})
		var reqs []Request
		for i := range 3 {
			reqs = append(reqs, Request{Tokens: randomPrompt(uint64(i), 20), MaxTokens: 60, IgnoreEOG: true})
		}
		together(t, e, reqs, fixed, func(i int, ev Event) {
			if !slices.Equal(ids(ev.Tokens), plain(t, name, reqs[i])) {
				t.Errorf("%s: request %d differs from plain decoding", name, i)
			}
		})
		if d.failed == 0 {
			t.Errorf("%s: the drafter never failed in %d calls", name, d.calls)
		}
	}
}

// TestEveryCacheTypeEnds (failure F129): a thousand rounds of several streams with drafts end with every type of
// cache, and give what one stream alone gives. On a device with queues of its own this is where a circular wait
// shows.
func TestEveryCacheTypeEnds(t *testing.T) {
	for _, kv := range []string{"f16", "f32", "q8_0"} {
		opt := Options{Threads: 2, KV: kv, Drafter: testkit.Golden(t, "dflash-qwen35/model.gguf")}
		m, err := Load(testkit.Golden(t, "qwen35/model.gguf"), opt)
		if err != nil {
			t.Fatal(err)
		}
		e := startModel(t, m, Config{Parallel: 4, CacheBytes: -1})
		var reqs []Request
		var want [][]int32
		for i := range 4 {
			req := Request{Tokens: randomPrompt(uint64(i), 10), MaxTokens: 90, IgnoreEOG: true}
			req.Spec.Draft = speculate.Off
			want = append(want, ids(generate(t, e, req).Tokens))
			reqs = append(reqs, req)
		}
		together(t, e, reqs, fixed, func(i int, ev Event) {
			if !slices.Equal(ids(ev.Tokens), want[i]) {
				t.Errorf("%s: request %d differs", kv, i)
			}
		})
	}
}

// TestPenaltiesSeeThePrompt: also the part of it that comes from the cache.
func TestPenaltiesSeeThePrompt(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 1})
	prompt := randomPrompt(3, 120)
	said := func(p sample.Params) (n int) {
		ev := generate(t, e, Request{Tokens: prompt, MaxTokens: 30, IgnoreEOG: true, Params: p})
		for _, id := range ids(ev.Tokens) {
			if slices.Contains(prompt, id) {
				n++
			}
		}
		return n
	}
	if said(sample.Params{}) == 0 {
		t.Fatal("nothing of the prompt is repeated anyway: the test shows nothing")
	}
	for _, p := range []sample.Params{
		{PresencePenalty: 100, RepeatLastN: -1}, {FrequencyPenalty: 100, RepeatLastN: -1},
		{RepeatPenalty: 1e6, RepeatLastN: -1},
	} {
		if n := said(p); n > 0 { // from the cache
			t.Errorf("%+v: %d tokens of the prompt are repeated", p, n)
		}
	}
}

// TestMissingDrafterIsAnError (failure F81): a drafter that was named and is not there is an error, not another file.
func TestMissingDrafterIsAnError(t *testing.T) {
	dir := modelDir(t, "m=qwen35", "m-dflash=dflash-qwen35")
	if _, err := Load(filepath.Join(dir, "m.gguf"),
		Options{Drafter: filepath.Join(dir, "m-dflsh.gguf")}); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("error %v", err)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil || os.IsNotExist(err) {
			return err
		}
		err = u.Unwrap()
	}
}

// TestFailedLoadLeavesNothing (failure F82): loading fails at any step without leaving goroutines or open files (the
// test's leak check sees them).
func TestFailedLoadLeavesNothing(t *testing.T) {
	for _, c := range []struct{ target, drafter, kv string }{
		{"dflash-qwen35", "", ""}, {"gemma4-assistant", "", ""}, {"qwen35", "", "q3"}, {"qwen35", "qwen35", ""},
	} {
		opt := Options{KV: c.kv, Drafter: "none", Threads: 2}
		if c.drafter != "" {
			opt.Drafter = testkit.Golden(t, c.drafter+"/model.gguf")
		}
		if m, err := Load(testkit.Golden(t, c.target+"/model.gguf"), opt); err == nil {
			m.Close()
			t.Errorf("%+v loaded", c)
		}
	}
}

// TestSplitPromptsDraftAsWhole (failure F105): wherever a prompt is split to keep a checkpoint, text and guesses are
// those of a prompt that was not.
func TestSplitPromptsDraftAsWhole(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen35moe"} {
		// Checkpoints are made, and no prompt finds the one before: each has a salt of its own.
		e, r := startRecorded(t, name, Config{Parallel: 1, Chunk: 32})
		req := Request{Tokens: randomPrompt(1, 60), MaxTokens: 12, IgnoreEOG: true, NoCache: true}
		want := r.guesses(t, e, req)
		text := generate(t, e, req)
		for at := range 60 {
			split := req
			split.NoCache, split.Checkpoints, split.Salt = false, []int{at, at + 20}, fmt.Sprint("first ", at)
			if !slices.Equal(r.guesses(t, e, split), want) {
				t.Errorf("%s, split at %d: the drafter guesses differently", name, at)
			}
			split.Salt = fmt.Sprint("second ", at)
			if got := generate(t, e, split); !slices.Equal(ids(got.Tokens), ids(text.Tokens)) || got.Result.Cached != 0 {
				t.Errorf("%s, split at %d: the text differs, or %d tokens were cached", name, at, got.Result.Cached)
			}
		}
		if n := e.Snapshot().Cache.Entries; n < 3*60 {
			t.Errorf("%s: only %d checkpoints were made", name, n)
		}
	}
}

// TestLaterTurnsDraftAsAColdRun (failure F164): over many turns the drafter's memory is the same as that of a cold
// run.
func TestLaterTurnsDraftAsAColdRun(t *testing.T) {
	for _, name := range tiny {
		e, r := startRecorded(t, name, Config{Parallel: 2})
		prompt := randomPrompt(1, 40)
		for turn := range 6 {
			req := Request{Tokens: prompt, MaxTokens: 15, IgnoreEOG: true}
			cold := req
			cold.NoCache = true
			want := r.guesses(t, e, cold)
			if !slices.Equal(r.guesses(t, e, req), want) {
				t.Errorf("%s, turn %d: the drafter guesses differently", name, turn)
			}
			ev := generate(t, e, req)
			prompt = slices.Concat(prompt, ids(ev.Tokens), randomPrompt(uint64(turn+10), 10))
		}
	}
}

// TestCountsAddUp (failure F178): accepted guesses are at most the verified ones, and rounds add up to the tokens.
func TestCountsAddUp(t *testing.T) {
	for _, name := range tiny {
		e := start(t, name, Config{})
		for i, opt := range []speculate.Options{{}, fixed, {Fixed: true, Tree: 20}, {Draft: "ngram"},
			{Draft: speculate.Off}} {
			r := generate(t, e, Request{Tokens: randomPrompt(uint64(i), 50), MaxTokens: 60, IgnoreEOG: true, Spec: opt,
				Checkpoints: []int{20}}).Result
			st := r.Stats
			if st.Accepted > st.Guessed || st.Tokens != 60 || r.Generated != 60 || st.Prompt+st.Cached != 50 ||
				st.Rounds+st.Accepted < 59 {
				t.Errorf("%s, %s: %+v", name, fmt.Sprint(opt), st)
			}
		}
	}
}
