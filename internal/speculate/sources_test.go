package speculate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
	"strobe/internal/model"
)

// TestSeveralSources: sources with contexts of their own follow the same streams, each with the layers it asked for,
// and a stream that names one is drafted for by that one alone.
func TestSeveralSources(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(30)
	want := plain(t, m, greedy{}, in, 60)
	a := record(t, m, along(in, want.out, func(i int) bool { return i%4 == 3 }))
	b := record(t, m, along(in, want.out, func(i int) bool { return i%3 == 2 }))
	a.name, a.layers = "first", []int{0, m.Layers - 1}
	b.name, b.layers = "second", []int{m.Layers - 2}
	r, err := NewRunner(m, a, ngram.Source{}, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Auto, "first", "second", "ngram", Off} {
		a.n, b.n = 0, 0
		opt := Options{Draft: name, Fixed: true, Tree: TreeOff}
		var fs []*flow
		for range 3 {
			fs = append(fs, start(t, r, opt, greedy{}, in, 60))
			step(t, r, 13, fs...)
		}
		finish(t, r, 13, fs...)
		for i, f := range fs {
			what := fmt.Sprintf("%q, stream %d", name, i)
			sameLogits(t, what, f, want)
			for _, x := range []struct {
				d   *recorder
				ctx draft.Context
			}{{a, f.Contexts[0]}, {b, f.Contexts[2]}} {
				if used := name == Auto || name == x.d.name; used != (x.d.n > 0) {
					t.Errorf("%s: %s was asked %d times", what, x.d.name, x.d.n)
				} else if used {
					x.d.check(t, x.ctx.(*cache.Seq), f.text(), what+", "+x.d.name)
				}
			}
			if st := f.Stats(); name == Auto && (st.BySource["first"].Rounds == 0 || st.BySource["second"].Rounds == 0) {
				t.Errorf("%s: rounds by source %v: both should have been better at times", what, st.BySource)
			}
			sumsUp(t, what, f.Stats())
		}
		if err := r.Capture(); err != nil { // looking at features changed it
			t.Fatal(err)
		}
	}
}

// TestOneSourceFails: the others go on.
func TestOneSourceFails(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 40)
	a := script(t, m, along(in, want.out, nil))
	b := script(t, m, along(in, want.out, nil))
	a.name, b.name = "first", "second"
	a.err = errors.New("device lost")
	r, err := NewRunner(m, a, b)
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, r, Options{Fixed: true, Tree: TreeOff}, greedy{}, in, 40)
	for !f.Done() {
		step(t, r, 16, f)
	}
	sameLogits(t, "with a failed source", f, want)
	st := f.Stats()
	if a.n != 1 || b.n < 3 || st.DraftErr == nil || st.DraftErr.Error() != "first: device lost" ||
		st.BySource["second"].Rounds == 0 {
		t.Errorf("asked %d and %d times, error %v, rounds by source %v", a.n, b.n, st.DraftErr, st.BySource)
	}
}

// TestUnknownSource: a stream can only be drafted for by what is loaded.
func TestUnknownSource(t *testing.T) {
	m := target(t, "qwen35")
	r := runner(t, m, nil)
	for name, ok := range map[string]bool{Auto: true, Off: true, "ngram": true, "dflash": false, "auto": false} {
		_, err := r.NewStream(Config{Options: Options{Draft: name}, Seq: m.NewSeq(), Prompt: prompt(3)})
		if (err == nil) != ok || !ok && !errors.Is(err, ErrNoSource) {
			t.Errorf("%q: error %v", name, err)
		}
	}
	if err := r.Check("mtp"); err == nil || err.Error() != `draft source "mtp" is not loaded: want auto, off or ngram` {
		t.Errorf("error %v", err)
	}
}

// moves counts how often anything is moved by steps that are no passes.
type moves struct {
	backend.Backend
	pass bool
	n    int
}

func (m *moves) BeginStep(p *backend.Plan) { m.pass = p != nil; m.Backend.BeginStep(p) }
func (m *moves) EndStep() (int, error)     { m.pass = false; return m.Backend.EndStep() }

func (m *moves) Gather(dst, src backend.Tensor, rows backend.Ints) {
	if !m.pass {
		m.n++
	}
	m.Backend.Gather(dst, src, rows)
}

func (m *moves) Copy(dst, src backend.Tensor) {
	if !m.pass {
		m.n++
	}
	m.Backend.Copy(dst, src)
}

// TestFeaturesMoveAtOnce: the features of all accepted rows of a step are put aside in one operation, however many
// streams share it.
func TestFeaturesMoveAtOnce(t *testing.T) {
	b := &moves{Backend: cpu.New(cpu.Options{Threads: 1})}
	defer b.Close()
	m, err := model.Open(open(t, "qwen3/model.gguf"), b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	d := record(t, m, along(in, want.out, nil))
	r := runner(t, m, d)
	var fs []*flow
	for range 4 {
		fs = append(fs, start(t, r, chain, greedy{}, in, 30))
	}
	step(t, r, 64, fs...)
	b.n = 0
	step(t, r, 64, fs...)
	if b.n != 1 || r.used != 4*16 {
		t.Errorf("%d rows moved in %d operations; want a whole block and the last token of each of 4 streams in one", r.used,
			b.n)
	}
	finish(t, r, 64, fs...)
	for i, f := range fs {
		d.check(t, f.draftSeq, f.text(), fmt.Sprintf("stream %d", i))
	}
}

// refusing is a device that cannot begin some steps.
type refusing struct {
	backend.Backend
	refuse func(p *backend.Plan) bool
	plan   *backend.Plan
	times  int
}

func (d *refusing) BeginStep(p *backend.Plan) { d.plan = p; d.Backend.BeginStep(p) }

func (d *refusing) EndStep() (int, error) {
	name, err := d.Backend.EndStep()
	if err == nil && d.refuse != nil && d.refuse(d.plan) {
		d.times++
		return 0, errors.New("no room for this step")
	}
	return name, err
}

// TestDraftersStepFails: a step of a drafter that cannot begin, or one that puts features aside for it, costs the
// stream its drafts and nothing else.
func TestDraftersStepFails(t *testing.T) {
	for _, what := range []string{"extend", "draft", "features"} {
		d := &refusing{Backend: cpu.New(cpu.Options{Threads: 1})}
		defer d.Close()
		m, err := model.Open(open(t, "qwen35/model.gguf"), d, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		want, _ := runWith(t, runner(t, m, nil), Options{Draft: Off}, greedy{}, prompt(5), 24)
		r := runner(t, m, dflashFor(t, m, "qwen35"))
		steps := 0
		d.refuse = func(p *backend.Plan) bool {
			if p == nil {
				return what == "features"
			}
			if what == "features" || p.State != nil /* the target's */ {
				return false
			}
			steps++
			return what == "extend" || steps > 1
		}
		got, st := runWith(t, r, Options{Fixed: true, Max: 3}, greedy{}, prompt(5), 24)
		if d.times == 0 || st.DraftErr == nil || !strings.Contains(st.DraftErr.Error(), "no room for this step") {
			t.Errorf("%s: refused %d steps, error %v", what, d.times, st.DraftErr)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the text is %v, want %v", what, got, want)
		}
	}
}

// telling counts what a drafter is told.
type telling struct {
	*recorder
	times, rows int
}

func (d *telling) Extend(features backend.Tensor, items []draft.Rows) error {
	d.times++
	for _, it := range items {
		d.rows += len(it.Rows)
	}
	return d.recorder.Extend(features, items)
}

// TestFeaturesWait: features wait until a draft is wanted, those of prompts too, and go to the drafter together, as far
// as their streams go on. More than there is room for are told without a draft.
func TestFeaturesWait(t *testing.T) {
	m := target(t, "qwen3")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	d := &telling{recorder: record(t, m, along(in, want.out, nil))}
	r := runner(t, m, d)
	for range 2 { // two plain passes, as long as plain decoding is not known
		short := []*flow{start(t, r, Options{}, greedy{}, in, 2), start(t, r, Options{}, greedy{}, in, 2)}
		for !short[0].Done() {
			step(t, r, 64, short...)
		}
		for _, f := range short {
			f.Close()
		}
	}
	if d.times > 0 || d.n > 0 {
		t.Fatalf("%d drafts and %d rows in %d portions for streams that ended before the first draft", d.n, d.rows, d.times)
	}
	fs := []*flow{start(t, r, chain, greedy{}, in, 30), start(t, r, chain, greedy{}, in, 30)}
	step(t, r, 64, fs...)
	if d.times > 0 {
		t.Errorf("a prompt was told before a draft was wanted")
	}
	step(t, r, 64, fs...)
	if d.times != 1 || d.rows != 2*9 {
		t.Errorf("before the first draft for two streams: %d rows in %d portions, want those of the prompts in one", d.rows,
			d.times)
	}
	finish(t, r, 64, fs...)
	long := start(t, r, Options{Draft: drafter}, greedy{}, prompt(model.MaxRows+100), 1)
	d.times, d.rows = 0, 0
	for range 2 {
		step(t, r, model.MaxRows, long)
	}
	if d.times != 1 || d.rows != model.MaxRows {
		t.Errorf("%d rows in %d portions of a prompt that does not fit; want %d at once", d.rows, d.times, model.MaxRows)
	}
	finish(t, r, 64, long)
	for i, f := range append(fs, long) {
		d.check(t, f.draftSeq, f.text(), fmt.Sprintf("stream %d", i))
	}
}

// pondering is a drafter whose second guesses take time to find.
type pondering struct {
	*scripted
	ponder func()
}

func (d *pondering) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	ps, err := d.scripted.Draft(reqs, top)
	for i := range ps {
		at := ps[i].At
		for k := range at {
			at[k] = append(at[k], draft.Candidate{ID: (at[k][0].ID + 1) % 500, LogP: -0.06})
		}
		ps[i].Next = func(i int, _ int32) []draft.Candidate {
			d.ponder()
			return at[i]
		}
	}
	return ps, err
}

// TestTreesTakeTime: looking for the guesses of a tree counts as drafting, and several streams go without.
func TestTreesTakeTime(t *testing.T) {
	m := target(t, "qwen3")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	var pondered, rest time.Duration
	d := &pondering{script(t, m, along(in, want.out, nil)), func() { pondered += time.Millisecond }}
	r := runner(t, m, d)
	r.clock = func() time.Time {
		rest += time.Microsecond
		return time.Unix(0, 0).Add(pondered + rest)
	}
	f := start(t, r, Options{Fixed: true, Draft: drafter, Tree: 20}, greedy{}, in, 30)
	finish(t, r, 64, f)
	if got := f.Stats().Draft; pondered == 0 || got < pondered {
		t.Errorf("drafts took %v, trees alone %v", got, pondered)
	}
	pondered, d.n = 0, 0
	auto := Options{Draft: drafter}
	fs := []*flow{start(t, r, auto, greedy{}, in, 30), start(t, r, auto, greedy{}, in, 30)}
	finish(t, r, 64, fs...)
	if pondered > 0 || d.n == 0 {
		t.Errorf("%v went into trees of %d drafts for two streams", pondered, d.n)
	}
}

// sumsUp checks that what single sources did adds up to what the stream did.
func sumsUp(t *testing.T, what string, st Stats) {
	t.Helper()
	var sum SourceStats
	for _, x := range st.BySource {
		sum.add(x)
	}
	if sum.Guessed != st.Guessed || sum.Accepted != st.Accepted || sum.Rounds > st.Rounds || sum.Draft > st.Draft ||
		sum.Right > sum.Drafts-sum.Bad || sum.Accepted > 0 && sum.Right == 0 ||
		sum.Verify > st.Verify || sum.Bad != st.BadDrafts || (sum.Rounds > 0) != (sum.Verify > 0 && sum.Accept > 0) {
		t.Errorf("%s: sources together %+v, the stream %v", what, sum, &st)
	}
}

// TestTimesOfAStep: the parts of a step are timed one after the other and add up to its time. The clock moves at every
// look at it: once at the end of each part, and once more during every draft.
func TestTimesOfAStep(t *testing.T) {
	m := target(t, "qwen3")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	r := runner(t, m, script(t, m, along(in, want.out, nil)))
	var looks time.Duration
	r.clock = func() time.Time {
		looks++
		return time.Unix(0, 0).Add(looks * time.Microsecond)
	}
	f := start(t, r, Options{Fixed: true, Draft: drafter}, greedy{}, in, 30)
	finish(t, r, 64, f)
	s := f.Stats()
	steps := time.Duration(s.Rounds+1) * time.Microsecond // the prompt is one step
	drafts := time.Duration(s.Drafts) * time.Microsecond
	if s.Verify != steps || s.Sample != steps || s.Commit != steps || s.Draft != 2*drafts || s.Rest != steps+drafts {
		t.Errorf("%v of steps, %v of drafts: verify %v, sample %v, commit %v, draft %v, rest %v", steps, drafts, s.Verify,
			s.Sample, s.Commit, s.Draft, s.Rest)
	}
	sumsUp(t, "a chain in every round", s)
	if x := s.BySource[drafter]; x.Drafts != s.Drafts || x.Draft != s.Draft || x.Verify != time.Duration(x.Rounds)*
		time.Microsecond || x.Accept != 2*x.Verify || x.Host != 2*x.Verify {
		t.Errorf("the drafter's part is %+v of %+v", x, s)
	}
	if all := s.Draft + s.Verify + s.Sample + s.Commit + s.Rest; all != s.PromptTime+s.DecodeTime {
		t.Errorf("parts add up to %v, steps took %v and %v", all, s.PromptTime, s.DecodeTime)
	}
}

// TestFirstGuesses: a draft is right if its first guess is the token that follows, whether it is verified or not. The
// guess of a round before does not count: every other draft is empty, and those between guess the token after the next.
func TestFirstGuesses(t *testing.T) {
	m := target(t, "qwen3")
	in := prompt(9)
	want := plain(t, m, greedy{}, in, 30)
	for _, ahead := range []int{0, 1} {
		right, n := 0, 0
		d := script(t, m, func(pos int, _ int32, _ int) [][]draft.Candidate {
			at := pos - len(in) + 1
			if n++; n%2 == 0 || at+ahead >= len(want.out) {
				return nil
			}
			if want.out[at+ahead] == want.out[at] {
				right++
			}
			return sure(want.out[at+ahead])
		})
		f := start(t, runner(t, m, d), chain, greedy{}, in, 30)
		finish(t, f.runner, 16, f)
		if got := f.Stats().BySource[drafter]; got.Right != right || ahead == 0 && right < 5 || got.Drafts != n {
			t.Errorf("guesses %d tokens ahead: %+v, want %d right of %d", ahead, got, right, n)
		}
	}
}
