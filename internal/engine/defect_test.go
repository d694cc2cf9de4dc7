package engine

import (
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/draft/dflash"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// defective is a device that panics when it is told to, as a defect in a kernel does: in the middle of a pass.
type defective struct {
	backend.Backend
	// the steps that panic: "draft" and "extend" for those of the drafter, "target" for those of the target; all by
	// default
	in      string
	first   backend.KVPool // the target's: it is loaded first
	drafter bool           // the current step is the drafter's
	after   int            // operations of such steps that go well
	panics  int            // how often to panic yet
}

func (b *defective) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p, err := b.Backend.NewKVPool(l)
	if b.first == nil {
		b.first = p
	}
	return p, err
}

func (b *defective) BeginStep(p *backend.Plan) {
	b.drafter = p != nil && p.KV[0].Pool != b.first
	b.Backend.BeginStep(p)
}

func (b *defective) strike(here bool) {
	if b.panics > 0 && here {
		if b.after--; b.after < 0 {
			b.panics--
			panic("a defect in a kernel")
		}
	}
}

func (b *defective) KVWrite(group, layer int, k, v backend.Tensor) {
	b.strike(b.in == "" || b.in == "extend" && b.drafter || b.in == "target" && !b.drafter)
	b.Backend.KVWrite(group, layer, k, v)
}

func (b *defective) Attention(dst, q backend.Tensor, group, layer int, p backend.AttnParams) {
	b.strike(b.in == "draft" && b.drafter)
	b.Backend.Attention(dst, q, group, layer, p)
}

// loadOn loads a golden model with its drafter on a device.
func loadOn(t *testing.T, name string, b backend.Backend) *Model {
	t.Helper()
	return loadPair(t, testkit.Golden(t, name+"/model.gguf"), testkit.Golden(t, "dflash-"+name+"/model.gguf"), b)
}

func loadPair(t *testing.T, target, drafter string, b backend.Backend) *Model {
	t.Helper()
	open := func(path string) *gguf.File {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	m := &Model{backends: []backend.Backend{b}, files: []*gguf.File{open(target), open(drafter)}, Path: target}
	var err error
	if m.Target, err = model.Open(m.files[0], b, model.Options{}); err != nil {
		t.Fatal(err)
	}
	if m.Drafter, err = dflash.Open(m.files[1], m.Target, dflash.Options{}); err != nil {
		t.Fatal(err)
	}
	if m.Tokenizer, err = tokenizer.FromGGUF(m.files[0]); err != nil {
		t.Fatal(err)
	}
	if m.Runner, err = speculate.NewRunner(m.Target, m.Drafter); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDefectInStep: a panic in the middle of a pass ends the generations of that pass with an error and
// nothing else: those that wait run, and say what they say alone.
func TestDefectInStep(t *testing.T) {
	for _, name := range tiny {
		dev := &defective{Backend: cpu.New(cpu.Options{Threads: 2})}
		e := startModel(t, loadOn(t, name, dev), Config{Parallel: 2, Chunk: 32})
		reqs := make([]Request, 4)
		want := make([][]int32, len(reqs))
		for i := range reqs {
			reqs[i] = Request{Tokens: randomPrompt(uint64(i), 40), MaxTokens: 40, IgnoreEOG: true, Spec: fixed}
			want[i] = plain(t, name, reqs[i])
		}
		generate(t, e, reqs[0]) // something for the cache
		for round := range 6 {
			// Two run, two wait. The first token arms the device, on the engine's own goroutine.
			var gs []*Generation
			armed := false
			for i, req := range reqs {
				if i < 2 {
					req.Constraint = watch(func() {
						if !armed {
							armed = true
							dev.in, dev.after, dev.panics = "target", round, 1
						}
					})
				}
				gs = append(gs, submit(t, e, req))
			}
			ended := 0
			for i, g := range gs {
				switch ev := wait(t, g); {
				case ev.Result.Err != nil:
					ended++
					if i >= 2 {
						t.Errorf("%s: a request that was not in the pass: %v", name, ev.Result.Err)
					}
					if !strings.Contains(ev.Result.Err.Error(), "a defect in a kernel") || ev.Result.Reason != ReasonError {
						t.Errorf("%s: %v, error %v", name, ev.Result.Reason, ev.Result.Err)
					}
				case !slices.Equal(ids(ev.Tokens), want[i]):
					t.Errorf("%s, round %d: request %d differs after a defect", name, round, i)
				}
			}
			if ended == 0 || e.Err() != nil {
				t.Fatalf("%s: %d generations ended, engine error %v", name, ended, e.Err())
			}
		}
	}
}

// TestDefectInDrafter: a panic while the drafter guesses costs nothing but guesses. While it takes in what
// was verified, it may end generations of that step, whose tokens are not all committed.
func TestDefectInDrafter(t *testing.T) {
	for _, in := range []string{"draft", "extend"} {
		dev := &defective{Backend: cpu.New(cpu.Options{Threads: 2})}
		e := startModel(t, loadOn(t, "qwen35", dev), Config{Parallel: 2})
		req := Request{Tokens: randomPrompt(1, 40), MaxTokens: 60, IgnoreEOG: true, Spec: fixed}
		want := plain(t, "qwen35", req)
		bad := req
		bad.Constraint = watch(func() {
			if dev.in == "" {
				dev.in, dev.after, dev.panics = in, 1, 1
			}
		})
		g := []*Generation{submit(t, e, bad), submit(t, e, req)}
		for i := range g {
			ev := wait(t, g[i])
			if ev.Result.Err != nil && in == "extend/" {
				continue
			}
			if ev.Result.Err != nil || !slices.Equal(ids(ev.Tokens), want) {
				t.Errorf("%s: request %d differs, or failed: %v", in, i, ev.Result.Err)
			}
		}
		if dev.panics != 0 || e.Err() != nil {
			t.Errorf("%s: %d panics left, engine error %v", in, dev.panics, e.Err())
		}
		if ev := generate(t, e, req); !slices.Equal(ids(ev.Tokens), want) || ev.Result.Stats.Guessed == 0 {
			t.Errorf("%s: the next request differs, or was not drafted for", in)
		}
	}
}

// TestDefectThatStays: an engine whose every step panics ends itself, so that a pool loads the model anew.
func TestDefectThatStays(t *testing.T) {
	dev := &defective{Backend: cpu.New(cpu.Options{Threads: 2}), panics: 1 << 30}
	e := New(loadOn(t, "qwen3", dev), Config{})
	defer e.Close(t.Context())
	for range 2 {
		if r := wait(t, submit(t, e, Request{Tokens: randomPrompt(1, 10)})).Result; r.Reason != ReasonError {
			t.Errorf("%v, error %v", r.Reason, r.Err)
		}
	}
	<-e.done
	if e.Err() == nil {
		t.Error("the engine is alive")
	}
}

// TestDefectInEmbedding: it ends that embedding alone.
func TestDefectInEmbedding(t *testing.T) {
	dev := &defective{Backend: cpu.New(cpu.Options{Threads: 2})}
	e := startModel(t, loadOn(t, "qwen35", dev), Config{})
	want, err := e.Embed(t.Context(), randomPrompt(1, 10))
	if err != nil {
		t.Fatal(err)
	}
	dev.panics = 1
	if _, err := e.Embed(t.Context(), randomPrompt(1, 10)); err == nil || !strings.Contains(err.Error(), "defect") {
		t.Errorf("error %v", err)
	}
	if got, err := e.Embed(t.Context(), randomPrompt(1, 10)); err != nil || !slices.Equal(got, want) {
		t.Errorf("after it: error %v, or another value", err)
	}
}
