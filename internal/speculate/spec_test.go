package speculate

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/testkit"
)

var architectures = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe", "gemma4e"}

func open(t testing.TB, rel string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, rel))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func target(t testing.TB, name string) *model.Model {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	t.Cleanup(func() { b.Close() })
	m, err := model.Open(open(t, name+"/model.gguf"), testkit.NewDevice(t, b), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func dflashFor(t testing.TB, m *model.Model, name string) draft.Source {
	t.Helper()
	// no trial: guesses depend on the text alone
	d, err := dflash.Open(open(t, "dflash-"+name+"/model.gguf"), m, dflash.Options{Causal: dflash.CausalOff})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// drafter is the name of the drafters in these tests.
const drafter = "dflash"

func contexts(d draft.Source) []draft.Context { return []draft.Context{d.NewContext()} }

// greedy is the plainest sampler: the largest logit.
type greedy struct{}

func (greedy) Sample(l []float32) int32 {
	best := int32(-1)
	for i, v := range l {
		if v == v && (best < 0 || v > l[best]) {
			best = int32(i)
		}
	}
	return best
}
func (greedy) Accept(int32) {}

// seeded samples from the whole distribution with one draw per token.
type seeded struct{ r *rand.Rand }

func newSeeded(seed uint64) seeded { return seeded{rand.New(rand.NewPCG(seed, 1))} }

func (s seeded) Sample(l []float32) int32 {
	m := slices.Max(l)
	sum := 0.0
	for _, v := range l {
		sum += math.Exp(float64(v - m))
	}
	u := s.r.Float64() * sum
	for i, v := range l {
		if u -= math.Exp(float64(v - m)); u < 0 {
			return int32(i)
		}
	}
	return int32(len(l) - 1)
}
func (seeded) Accept(int32) {}

// scripted is a drafter that needs no model. It checks the loop's side of the contract: that it is
// told of every committed token once, in order.
type scripted struct {
	m     *model.Model
	mem   *cache.Memory
	guess func(pos int, last int32, n int) [][]draft.Candidate
	name  string
	err   error
	n     int
}

func script(t testing.TB, m *model.Model, guess func(pos int, last int32, n int) [][]draft.Candidate) *scripted {
	t.Helper()
	mem, err := cache.New([]backend.Backend{m.Backend()}, cache.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return &scripted{m: m, mem: mem, guess: guess, name: drafter}
}

func (s *scripted) Capture() []int            { return []int{0} }
func (s *scripted) Max() int                  { return 15 }
func (s *scripted) Name() string              { return s.name }
func (s *scripted) NewContext() draft.Context { return s.mem.NewSeq() }
func (s *scripted) Extend(_ backend.Tensor, items []draft.Rows) error {
	for _, it := range items {
		seq := it.Seq.(*cache.Seq)
		if len(it.Tokens) != len(it.Rows) {
			return fmt.Errorf("%d tokens for %d rows", len(it.Tokens), len(it.Rows))
		}
		b, err := s.mem.Begin([]cache.Segment{{Seq: seq, Rows: len(it.Rows), Prompt: true}})
		if err != nil {
			return err
		}
		b.Done()
		if err := seq.CommitAll(); err != nil {
			return err
		}
	}
	return nil
}
func (s *scripted) Draft(reqs []draft.Request, _ int) ([]draft.Proposal, error) {
	s.n++
	if s.err != nil {
		return nil, s.err
	}
	out := make([]draft.Proposal, len(reqs))
	for i, r := range reqs {
		out[i].At = s.guess(r.Seq.Len(), r.Last, r.N)
	}
	return out, nil
}

func sure(ids ...int32) (at [][]draft.Candidate) {
	for _, id := range ids {
		at = append(at, []draft.Candidate{{ID: id, LogP: -0.05}})
	}
	return at
}

// run generates n tokens.
func run(t testing.TB, m *model.Model, d draft.Source, opt Options, s Sampler, prompt []int32, n int) ([]int32, Stats) {
	t.Helper()
	return runWith(t, runner(t, m, d), opt, s, prompt, n)
}

func runWith(t testing.TB, r *Runner, opt Options, s Sampler, prompt []int32, n int) ([]int32, Stats) {
	t.Helper()
	c := Config{Options: opt, Seq: r.Target.NewSeq(), Prompt: prompt, Sampler: s, Max: n}
	defer c.Seq.Close()
	c.Contexts = r.NewContexts()
	defer CloseContexts(c.Contexts)
	var got []int32
	c.Emit = func(tok Token) bool { got = append(got, tok.ID); return true }
	st, err := r.NewStream(c)
	if err != nil {
		t.Fatal(err)
	}
	for !st.Done() {
		if err := r.Step([]*Stream{st}, 16); err != nil {
			t.Fatal(err)
		}
	}
	if st.Err() != nil {
		t.Fatal(st.Err())
	}
	defer st.Close()
	// Everything but the newest token is in the caches.
	if want := len(prompt) + len(got) - 1; c.Seq.Len() != want {
		t.Errorf("target cache holds %d tokens, want %d", c.Seq.Len(), want)
	}
	if st.follows(0) {
		if err := r.Sync(st); err != nil {
			t.Fatal(err)
		}
		if n := c.Contexts[0].Len(); n != c.Seq.Len() {
			t.Errorf("drafter cache holds %d tokens, the target's %d", n, c.Seq.Len())
		}
	}
	return got, st.Stats()
}

func prompt(n int) []int32 {
	r := rand.New(rand.NewPCG(7, 7))
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(r.IntN(500))
	}
	return p
}

func same(t *testing.T, got, want []int32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("tokens differ\n got %v\nwant %v", got, want)
	}
}

// TestLossless: whatever the drafter says and however it is verified, the tokens are those of
// plain decoding, greedy and with a seed.
func TestLossless(t *testing.T) {
	const n = 60
	in := prompt(21)
	for _, name := range architectures {
		t.Run(name, func(t *testing.T) {
			m := target(t, name)
			for _, sampling := range []string{"greedy", "seeded"} {
				sampler := func() Sampler {
					if sampling == "greedy" {
						return greedy{}
					}
					return newSeeded(3)
				}
				want, _ := run(t, m, nil, Options{Draft: Off}, sampler(), in, n)
				rnd := rand.New(rand.NewPCG(1, 2))
				right := func(pos int, k int) []int32 {
					at := pos - len(in) + 1 // index in want of the first guess
					return want[min(at, n):min(at+k, n)]
				}
				drafters := map[string]func(pos int, last int32, k int) [][]draft.Candidate{
					"right": func(pos int, _ int32, k int) [][]draft.Candidate { return sure(right(pos, k)...) },
					"wrong": func(pos int, _ int32, k int) [][]draft.Candidate {
						w := slices.Clone(right(pos, k))
						for i := range w {
							w[i] = (w[i] + 1) % 500
						}
						return sure(w...)
					},
					"wrong at 3": func(pos int, _ int32, k int) [][]draft.Candidate {
						w := slices.Clone(right(pos, k))
						if len(w) > 3 {
							w[3] = (w[3] + 1) % 500
						}
						return sure(w...)
					},
					"random": func(pos int, _ int32, k int) (at [][]draft.Candidate) {
						for _, id := range right(pos, k) {
							var c []draft.Candidate
							for range 4 {
								v := id
								if rnd.IntN(3) > 0 {
									v = int32(rnd.IntN(500))
								}
								c = append(c, draft.Candidate{ID: v, LogP: -1})
							}
							at = append(at, c)
						}
						return at
					},
					"nan": func(_ int, _ int32, k int) [][]draft.Candidate {
						return [][]draft.Candidate{{{ID: 1, LogP: float32(math.NaN())}}}
					},
					"out of range": func(_ int, _ int32, k int) [][]draft.Candidate { return sure(5, 1<<30, -7) },
					"empty":        func(_ int, _ int32, k int) [][]draft.Candidate { return nil },
				}
				for dn, guess := range drafters {
					for mode, opt := range map[string]Options{
						"auto": {}, "chain": {Fixed: true}, "chain of 4": {Fixed: true, Max: 4},
						"tree": {Fixed: true, Tree: 24}, "ngram": {Draft: "ngram"},
					} {
						got, _ := run(t, m, script(t, m, guess), opt, sampler(), in, n)
						if !slices.Equal(got, want) {
							t.Errorf("%s, %s drafter, %s:\n got %v\nwant %v", sampling, dn, mode, got, want)
						}
					}
				}
			}
		})
	}
}

// TestGoldenDrafters: the real drafter maths in the loop changes no token either.
func TestGoldenDrafters(t *testing.T) {
	in := prompt(33)
	for _, name := range architectures[:6] {
		t.Run(name, func(t *testing.T) {
			m := target(t, name)
			want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, 80)
			for _, opt := range []Options{{}, {Fixed: true, Tree: TreeOff}, {Fixed: true, Tree: 16}} {
				got, _ := run(t, m, dflashFor(t, m, name), opt, greedy{}, in, 80)
				same(t, got, want)
			}
		})
	}
}

// TestPerfectDrafter: the target's own continuation is accepted in full every round.
func TestPerfectDrafter(t *testing.T) {
	const n = 65
	in := prompt(10)
	for _, name := range architectures {
		m := target(t, name)
		want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, n)
		d := script(t, m, func(pos int, _ int32, k int) [][]draft.Candidate {
			at := pos - len(in) + 1
			return sure(want[at:min(at+k, n)]...)
		})
		_, st := run(t, m, d, Options{Fixed: true, Tree: TreeOff}, greedy{}, in, n)
		if st.Rounds != 4 || st.Accepted != st.Guessed {
			t.Errorf("%s: %d rounds, %d of %d guesses accepted; want 4 rounds of 16 tokens and all accepted", name, st.Rounds,
				st.Accepted, st.Guessed)
		}
	}
}

// dependent adds to a scripted drafter what follows other tokens than its best ones.
type dependent struct {
	*scripted
	next func(pos, i int, before int32) []draft.Candidate
}

func (d dependent) Draft(reqs []draft.Request, top int) ([]draft.Proposal, error) {
	ps, err := d.scripted.Draft(reqs, top)
	for i := range ps {
		pos := reqs[i].Seq.Len()
		ps[i].Next = func(k int, before int32) []draft.Candidate { return d.next(pos, k, before) }
	}
	return ps, err
}

// TestDependentGuesses: a tree grows by what the drafter says after each token, not only after its best ones.
func TestDependentGuesses(t *testing.T) {
	const n = 64
	in := prompt(10)
	m := target(t, "qwen35")
	want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, n)
	right := func(pos, i int) int32 { return want[min(pos-len(in)+1+i, n-1)] }
	wrong := func(pos, i int) int32 { return (right(pos, i) + 1) % 500 }
	s := script(t, m, func(pos int, _ int32, k int) (at [][]draft.Candidate) {
		for i := range k {
			at = append(at, []draft.Candidate{{ID: wrong(pos, i), LogP: -0.6}})
		}
		at[0] = append(at[0], draft.Candidate{ID: right(pos, 0), LogP: -0.9})
		return at
	})
	d := dependent{s, func(pos, i int, before int32) []draft.Candidate {
		if before != right(pos, i-1) {
			return nil
		}
		return []draft.Candidate{{ID: right(pos, i), LogP: -0.1}, {ID: 1 << 30, LogP: -3}}
	}}
	for _, opt := range []Options{{Fixed: true, Tree: 12}, {}, {Fixed: true}} {
		got, st := run(t, m, d, opt, greedy{}, in, n)
		same(t, got, want)
		if opt.Tree > 0 && st.Mean() < 4 {
			t.Errorf("%.2f tokens per pass: the right branch was not followed", st.Mean())
		}
	}
}

// TestDrafterFailure: an error of the drafter costs its guesses, not the stream.
func TestDrafterFailure(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(5)
	want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, 30)
	d := script(t, m, nil)
	d.err = errors.New("device lost")
	got, st := run(t, m, d, Options{Fixed: true, Draft: drafter}, greedy{}, in, 30)
	same(t, got, want)
	if st.DraftErr == nil || d.n != 1 {
		t.Errorf("error %v after %d drafts; want it reported and the drafter left alone", st.DraftErr, d.n)
	}
}

// TestPromptLengths: prompts of any length relative to pages, windows, chunks and blocks.
func TestPromptLengths(t *testing.T) {
	for _, name := range []string{"qwen35", "gemma4"} {
		m := target(t, name)
		d := dflashFor(t, m, name)
		for _, n := range []int{1, 2, 3, 11, 12, 13, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200} {
			in := prompt(n)
			want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, 24)
			got, _ := run(t, m, d, Options{Fixed: true, Tree: TreeOff}, greedy{}, in, 24)
			if !slices.Equal(got, want) {
				t.Errorf("%s, prompt of %d: tokens differ", name, n)
			}
		}
	}
}

// TestTogether: four streams in one batch say and accept exactly what each does alone.
func TestTogether(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35moe", "gemma4"} {
		t.Run(name, func(t *testing.T) {
			m := target(t, name)
			d := dflashFor(t, m, name)
			opt := Options{Fixed: true, Tree: TreeOff}
			var want [][]int32
			var alone []Stats
			for i := range 4 {
				got, st := run(t, m, d, opt, newSeeded(uint64(i)), prompt(10+7*i), 40)
				want, alone = append(want, got), append(alone, st)
			}
			r := runner(t, m, d)
			got := make([][]int32, 4)
			var streams []*Stream
			for i := range 4 {
				s, err := r.NewStream(Config{Options: opt, Seq: m.NewSeq(), Contexts: contexts(d), Prompt: prompt(10 + 7*i),
					Sampler: newSeeded(uint64(i)),
					Max:     40, Emit: func(tok Token) bool { got[i] = append(got[i], tok.ID); return true }})
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			for range 200 {
				if err := r.Step(streams, 16); err != nil {
					t.Fatal(err)
				}
			}
			for i, s := range streams {
				same(t, got[i], want[i])
				if st := s.Stats(); st.Accepted != alone[i].Accepted || st.Guessed != alone[i].Guessed {
					t.Errorf("stream %d accepted %d of %d, alone %d of %d", i, st.Accepted, st.Guessed, alone[i].Accepted,
						alone[i].Guessed)
				}
			}
		})
	}
}

// TestStopInsideBlock: ending at any token leaves the caches as plain decoding would.
func TestStopInsideBlock(t *testing.T) {
	m := target(t, "qwen35")
	in := prompt(9)
	want, _ := run(t, m, nil, Options{Draft: Off}, greedy{}, in, 40)
	for stop := 1; stop < 20; stop++ {
		d := script(t, m, func(pos int, _ int32, k int) [][]draft.Candidate {
			at := pos - len(in) + 1
			return sure(want[at:min(at+k, len(want))]...)
		})
		r := runner(t, m, d)
		seq, cs := m.NewSeq(), contexts(d)
		var got []int32
		s, err := r.NewStream(Config{Options: Options{Fixed: true}, Seq: seq, Contexts: cs, Prompt: in, Sampler: greedy{},
			Emit: func(tok Token) bool { got = append(got, tok.ID); return len(got) < stop }})
		if err != nil {
			t.Fatal(err)
		}
		for !s.Done() {
			if err := r.Step([]*Stream{s}, 64); err != nil {
				t.Fatal(err)
			}
		}
		same(t, got, want[:stop])
		if seq.Len() != len(in)+stop-1 {
			t.Errorf("stopped after %d tokens: cache holds %d, want %d", stop, seq.Len(), len(in)+stop-1)
		}
	}
}

// TestContextLimit: generation ends where the context is full.
func TestContextLimit(t *testing.T) {
	m := target(t, "qwen3")
	d := dflashFor(t, m, "qwen3")
	for _, limit := range []int{22, 23, 30, 37, 64} {
		r := runner(t, m, d)
		n := 0
		s, err := r.NewStream(Config{Options: Options{Fixed: true}, Seq: m.NewSeq(), Contexts: contexts(d),
			Prompt: prompt(20), Sampler: greedy{}, Context: limit, Emit: func(Token) bool { n++; return true }})
		if err != nil {
			t.Fatal(err)
		}
		for !s.Done() {
			if err := r.Step([]*Stream{s}, 8); err != nil {
				t.Fatal(err)
			}
		}
		if n != limit-20 {
			t.Errorf("context of %d: %d tokens after a prompt of 20", limit, n)
		}
	}
	r := runner(t, m, nil)
	if _, err := r.NewStream(Config{Seq: m.NewSeq(), Prompt: prompt(20), Context: 20}); err == nil {
		t.Error("a prompt that fills the context was accepted")
	}
	if _, err := r.NewStream(Config{Seq: m.NewSeq()}); err == nil {
		t.Error("an empty prompt was accepted")
	}
	if _, err := r.NewStream(Config{Seq: m.NewSeq(), Prompt: []int32{1 << 20}}); err == nil {
		t.Error("an id outside the vocabulary was accepted")
	}
}

var _ = fmt.Sprint
