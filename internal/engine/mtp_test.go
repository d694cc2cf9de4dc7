package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/speculate"
	"strobe/internal/synth"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// mtpPairs are models that are drafted for by multi-token prediction: of every architecture, by a block in the
// model's file, a block in a file of its own and an assistant; and one that has a DFlash drafter as well.
var mtpPairs = map[string]func(t testing.TB) (target, drafter string){
	"qwen35":    func(t testing.TB) (string, string) { return edit.MTP(t, "qwen35").Write(t), "" },
	"qwen35moe": func(t testing.TB) (string, string) { return edit.MTP(t, "qwen35moe").Write(t), "" },
	"qwen3next": func(t testing.TB) (string, string) { return edit.MTP(t, "qwen3next").Write(t), "" },
	"alone": func(t testing.TB) (string, string) {
		return testkit.Golden(t, "qwen35/model.gguf"), testkit.Golden(t, "mtp-qwen35/block.gguf")
	},
	"gemma4":    assisted("gemma4"),
	"gemma4moe": assisted("gemma4moe"),
	"gemma4e":   assisted("gemma4e"), // whose last layers have no keys of their own
	"both": func(t testing.TB) (string, string) {
		return synthetic(t, "tiny-qwen35-mtp"), synthetic(t, "tiny-qwen35-dflash")
	},
}

func assisted(name string) func(t testing.TB) (string, string) {
	return func(t testing.TB) (string, string) {
		return testkit.Golden(t, name+"/model.gguf"), testkit.Golden(t, "gemma4-assistant/model.gguf")
	}
}

func synthetic(t testing.TB, shape string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), shape+".gguf")
	if err := synth.Write(t.Context(), path, shape, "q4_k_m", 1, synth.Options{}); err != nil {
		t.Fatal(err)
	}
	return path
}

func loadMTP(t testing.TB, target, drafter string) *Model {
	t.Helper()
	m, err := Load(target, Options{Threads: 1, Drafter: drafter, MTP: true})
	if err != nil {
		t.Fatal(err)
	}
	if m.MTP == nil {
		t.Fatal("no drafter for multi-token prediction")
	}
	return m
}

// TestMTPSameText: whatever drafts, a request says what it says without drafts, byte for byte.
func TestMTPSameText(t *testing.T) {
	for name, files := range mtpPairs {
		t.Run(name, func(t *testing.T) {
			target, drafter := files(t)
			e := startModel(t, loadMTP(t, target, drafter), Config{Parallel: 4, Chunk: 32})
			var reqs []Request
			var want []Event
			for i := range 4 {
				req := Request{Tokens: randomPrompt(uint64(i%3), 12+45*i), MaxTokens: 24, IgnoreEOG: true,
					Params: greedy}
				if i%2 == 1 {
					req.Params = seeded
				}
				reqs = append(reqs, req)
				req.NoCache, req.Spec = true, speculate.Options{Draft: speculate.Off}
				want = append(want, generate(t, e, req))
			}
			for _, opt := range []speculate.Options{
				{Draft: "mtp"}, {Draft: "mtp", Fixed: true, Tree: speculate.TreeOff, Max: 4}, {Draft: "mtp",
					Fixed: true, Tree: 12}, {},
				{Draft: "mtp", Fixed: true, Tree: speculate.TreeOff},
			} {
				check := func(i int, ev Event) {
					if !slices.Equal(ids(ev.Tokens), ids(want[i].Tokens)) || string(ev.Text) != string(want[i].Text) {
						t.Errorf("%+v: request %d says\n%v, without drafts\n%v", opt, i, ids(ev.Tokens),
							ids(want[i].Tokens))
					}
					st := ev.Result.Stats
					if st.Cold || st.DraftErr != nil || st.BadDrafts > 0 {
						t.Errorf("%+v: request %d: cold %v, error %v, %d bad drafts", opt, i, st.Cold, st.DraftErr,
							st.BadDrafts)
					}
					if opt.Fixed && st.Guessed == 0 {
						t.Errorf("%+v: request %d was not drafted for", opt, i)
					}
				}
				together(t, e, reqs, opt, check)
			}
		})
	}
}

// TestMTPRemembers: what a drafter guesses after a cache hit, and after one on the disk, is exactly what it guesses
// on a cold run: the state that waits for the next token is kept with the rest.
func TestMTPRemembers(t *testing.T) {
	for name, files := range mtpPairs {
		t.Run(name, func(t *testing.T) {
			target, drafter := files(t)
			dir := t.TempDir()
			e, r := recorded(t, loadMTP(t, target, drafter), "mtp", Config{Parallel: 1, CacheDir: dir})
			first := generate(t, e, Request{Tokens: randomPrompt(3, 100), MaxTokens: 40, IgnoreEOG: true})
			second := Request{Tokens: slices.Concat(randomPrompt(3, 100), ids(first.Tokens), randomPrompt(4, 20)),
				MaxTokens: 60, IgnoreEOG: true}
			cold := second
			cold.NoCache = true
			want := r.guesses(t, e, cold)
			if again := r.guesses(t, e, cold); !slices.Equal(again, want) {
				t.Error("the same prompt in the same slot is drafted for differently")
			}
			hits := e.Snapshot().Cache.Hits
			if got := r.guesses(t, e, second); !slices.Equal(got, want) || e.Snapshot().Cache.Hits != hits+1 {
				t.Errorf("same guesses with a cached beginning: %v; hits %d, before %d", slices.Equal(got, want),
					e.Snapshot().Cache.Hits, hits)
			}
			stop(t, e)
			if len(prefixFiles(t, dir)) == 0 {
				t.Fatal("nothing was saved")
			}
			e, r = recorded(t, loadMTP(t, target, drafter), "mtp", Config{Parallel: 1, CacheDir: dir})
			if got := r.guesses(t, e, second); !slices.Equal(got, want) || e.Snapshot().Cache.DiskHits != 1 {
				t.Errorf("same guesses after a restart: %v; %d hits on the disk", slices.Equal(got, want),
					e.Snapshot().Cache.DiskHits)
			}
		})
	}
}

// rightModel is a file whose block is right: the trunk's only layer that does anything is its last, a copy of it is
// the block, and embeddings are of one size, so that the norm in front of the block does not change them. The block
// then computes from its own cache what the target computes.
func rightModel(t testing.TB) string {
	const hidden, vocab = 64, 512
	e := edit.MTP(t, "qwen35")
	e.Put("blk.0.ssm_out.weight", make([]float32, 128*hidden), 128, hidden)
	e.Put("blk.0.ffn_down.weight", make([]float32, 128*hidden), 128, hidden)
	embed := e.Values(t, "token_embd.weight")
	for row := range vocab {
		v, sum := embed[row*hidden:][:hidden], 0.0
		for _, x := range v {
			sum += float64(x * x)
		}
		for i := range v {
			v[i] /= float32(math.Sqrt(sum / hidden))
		}
	}
	e.Put("token_embd.weight", embed, hidden, vocab)
	for _, x := range slices.Clone(e.Tensors) {
		if rest, ok := strings.CutPrefix(x.Name, "blk.1."); ok {
			copied := *x
			copied.Name = "blk.2." + rest
			e.Drop(copied.Name)
			e.Tensors = append(e.Tensors, &copied)
		}
	}
	project, ones := make([]float32, 2*hidden*hidden), make([]float32, hidden)
	for i := range hidden {
		project[i*2*hidden+i], ones[i] = 1, 1
	}
	e.Put("blk.2.nextn.eh_proj.weight", project, 2*hidden, hidden)
	e.Put("blk.2.nextn.enorm.weight", ones, hidden)
	e.Put("blk.2.nextn.shared_head_norm.weight", e.Values(t, "output_norm.weight"), hidden)
	return e.Write(t)
}

// stray is a constraint that forbids the best token now and then, so that guesses are rejected half-way.
type stray struct {
	every, n int
	odd      map[int]bool // tokens that are not what the model would have said
}

func (s *stray) Mask(logits []float32) {
	if s.every > 0 && s.n%s.every == s.every-1 {
		best := 0
		for i, v := range logits {
			if v > logits[best] {
				best = i
			}
		}
		logits[best] = float32(math.Inf(-1))
		s.odd[s.n] = true
	}
}

func (s *stray) Accept(int32) { s.n++ }

// allRight checks that every guess was accepted but those after a token that the model would not have said.
func allRight(t *testing.T, what string, ev Event, s *stray, chain int) {
	t.Helper()
	run := 0
	for i, tok := range ev.Tokens {
		switch {
		case tok.Drafted:
			run++
			continue
		case i > 0 && run != chain && !s.odd[i] && i < len(ev.Tokens)-chain-1: // near the end there is no use for more
			t.Errorf("%s: token %d came after %d guesses that were right; want %d", what, i, run, chain)
			return
		}
		run = 0
	}
}

// TestMTPRight: a block that is right is right always: for 500 tokens, after rounds of which a part was accepted,
// from a cached beginning, beside another stream that left the same one, and after a restart.
func TestMTPRight(t *testing.T) {
	path, dir := rightModel(t), t.TempDir()
	const chain = 4
	spec := speculate.Options{Draft: "mtp", Fixed: true, Tree: speculate.TreeOff, Max: chain}
	e := startModel(t, loadMTP(t, path, ""), Config{Parallel: 2, CacheDir: dir, Context: 4096})
	request := func(tokens []int32, n, every int) (Request, *stray) {
		s := &stray{every: every, odd: map[int]bool{}}
		return Request{Tokens: tokens, MaxTokens: n, IgnoreEOG: true, Spec: spec, Constraint: s}, s
	}
	for _, every := range []int{0, 3, 7, 11} {
		req, s := request(randomPrompt(1, 30), 500, every)
		ev := generate(t, e, req)
		if len(ev.Tokens) != 500 {
			t.Fatalf("%d tokens", len(ev.Tokens))
		}
		allRight(t, fmt.Sprintf("every %d", every), ev, s, chain)
		if st := ev.Result.Stats; every == 0 && (st.Accepted != st.Guessed || st.Guessed < 390) {
			t.Errorf("%d of %d guesses accepted", st.Accepted, st.Guessed)
		}
	}
	req, _ := request(randomPrompt(2, 90), 60, 7)
	first := generate(t, e, req)
	longer := slices.Concat(req.Tokens, ids(first.Tokens))
	var gs []*Generation
	var strays []*stray
	for i := range 2 { // both go on from the same end
		req, s := request(slices.Concat(longer, randomPrompt(uint64(5+i), 9)), 60, 5+i)
		gs, strays = append(gs, submit(t, e, req)), append(strays, s)
	}
	for i, g := range gs {
		ev := wait(t, g)
		if ev.Result.Cached < 90 {
			t.Errorf("stream %d: %d tokens cached", i, ev.Result.Cached)
		}
		allRight(t, fmt.Sprintf("fork %d", i), ev, strays[i], chain)
	}
	stop(t, e)
	e = startModel(t, loadMTP(t, path, ""), Config{Parallel: 1, CacheDir: dir, Context: 4096})
	req, s := request(slices.Concat(longer, randomPrompt(9, 9)), 60, 7)
	ev := generate(t, e, req)
	if e.Snapshot().Cache.DiskHits == 0 {
		t.Error("nothing came from the disk")
	}
	allRight(t, "restarted", ev, s, chain)
}

// TestMTPChosen: a model's own block drafts when nobody else does, a file beside the model is found, and what is
// given wins.
func TestMTPChosen(t *testing.T) {
	dir := t.TempDir()
	put := func(from, name string) string {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	names := func(path string, opt Options) (s string) {
		opt.Threads = 1
		m, err := Load(path, opt)
		if err != nil {
			return err.Error()
		}
		defer m.Close()
		for _, src := range m.Runner.Sources {
			s += src.Name() + " "
		}
		return s + filepath.Base(m.DrafterPath)
	}
	whole := put(edit.MTP(t, "qwen35").Write(t), "whole.gguf")
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("the model's own", names(whole, Options{}), "mtp ngram .")
	check("none", names(whole, Options{Drafter: "none"}), "ngram .")
	plain := put(testkit.Golden(t, "qwen35/model.gguf"), "qwen35-x.gguf")
	gemma := put(testkit.Golden(t, "gemma4/model.gguf"), "gemma4-x.gguf")
	check("nothing there", names(plain, Options{}), "ngram .")
	put(testkit.Golden(t, "mtp-qwen35/block.gguf"), "mtp-qwen35-x.gguf")
	put(testkit.Golden(t, "gemma4-assistant/model.gguf"), "gemma4-x-assistant.gguf")
	check("a block beside", names(plain, Options{}), "mtp ngram mtp-qwen35-x.gguf")
	check("an assistant beside", names(gemma, Options{}), "mtp ngram gemma4-x-assistant.gguf")
	check("the model's own before one beside", names(whole, Options{}), "mtp ngram .")
	put(testkit.Golden(t, "dflash-qwen35/model.gguf"), "other-dflash.gguf")
	check("DFlash before a block beside", names(plain, Options{}), "dflash ngram other-dflash.gguf")
	tiny, drafter := mtpPairs["both"](t)
	check("DFlash alone", names(tiny, Options{Drafter: drafter}), "dflash ngram tiny-qwen35-dflash.gguf")
	check("both", names(tiny, Options{Drafter: drafter, MTP: true}), "dflash mtp ngram tiny-qwen35-dflash.gguf")
	if got := names(filepath.Join(dir, "mtp-qwen35-x.gguf"), Options{}); !strings.Contains(got, "give it with -d") {
		t.Errorf("a block as a target: %q", got)
	}
}
