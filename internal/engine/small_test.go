package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/gguf"
	"strobe/internal/sample"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

func openGolden(t *testing.T, name string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestRecommendedSampling: what a file and generation_config.json beside it recommend, the latter on purpose; what
// makes no sense is an error that names its place.
func TestRecommendedSampling(t *testing.T) {
	show := func(d sample.Defaults) string {
		var p sample.Params
		d.Apply(&p)
		return fmt.Sprint(p.Temp, p.TopP, p.MinP, p.TypicalP, p.RepeatPenalty, p.TopK, p.RepeatLastN)
	}
	keys := func(kv ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			m["general.sampling."+kv[i].(string)] = kv[i+1]
		}
		return m
	}
	all := keys("temp", float32(0.5), "top_p", float32(0.25), "min_p", float32(0.125), "penalty_repeat", float32(1.5),
		"top_k", int32(7), "penalty_last_n", int32(9))
	for name, c := range map[string]struct {
		keys map[string]any
		json string
		want string // or what the error says
	}{
		"nothing":  {nil, "", "0 0 0 0 0 0 0"},
		"the file": {all, "", "0.5 0.25 0.125 0 1.5 7 9"},
		"least":    {keys("top_k", int32(-5)), "", "0 0 0 0 0 -1 0"},
		"most":     {keys("top_k", int64(1)<<40), "", "0 0 0 0 0 2147483647 0"},
		"beside it": {nil, `{"temperature":1,"top_p":0.5,"min_p":0.25,"typical_p":0.75,"repetition_penalty":2,"top_k":3}`,
			"1 0.5 0.25 0.75 2 3 0"},
		"both":               {all, `{"temperature":1}`, "1 0.25 0.125 0 1.5 7 9"},
		"greedy":             {all, `{"do_sample":false,"temperature":1}`, "0 0.25 0.125 0 1.5 7 9"},
		"sampled":            {nil, `{"do_sample":true,"temperature":1}`, "1 0 0 0 0 0 0"},
		"another type":       {keys("temp", "hot"), "", "general.sampling.temp"},
		"another type, too":  {keys("top_k", "many"), "", "general.sampling.top_k"},
		"no sense":           {keys("top_p", float32(2)), "", "general.sampling: "},
		"no JSON":            {nil, `{`, "generation_config.json: "},
		"no sense beside it": {nil, `{"top_p":2}`, "generation_config.json: "},
	} {
		e := edit.Golden(t, "qwen3")
		for k, v := range c.keys {
			e.Set(k, v)
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		e.WriteTo(t, path)
		if c.json != "" {
			beside := filepath.Join(filepath.Dir(path), "generation_config.json")
			if err := os.WriteFile(beside, []byte(c.json), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := modelSampling(f, path)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && show(d) != c.want {
			t.Errorf("%s: %s, error %v, want %s", name, show(d), err, c.want)
		}
		// A model that is a part of the program has no folder.
		d, err = modelSampling(f, filepath.Join(t.TempDir(), "none"))
		if c.keys == nil && (err != nil || show(d) != "0 0 0 0 0 0 0") {
			t.Errorf("%s: without a folder %s, %v", name, show(d), err)
		}
		f.Close()
	}
}

// TestFilesThatDoNotLoad: Check and CheckDrafter say what loading would.
func TestFilesThatDoNotLoad(t *testing.T) {
	target, other := openGolden(t, "qwen35"), openGolden(t, "gemma4")
	drafter := openGolden(t, "dflash-qwen35")
	if err := errors.Join(Check(target), Check(other), CheckDrafter(drafter, target)); err != nil {
		t.Errorf("files that load: %v", err)
	}
	mtp, err := gguf.Open(edit.MTP(t, "qwen35").Write(t))
	if err != nil {
		t.Fatal(err)
	}
	defer mtp.Close()
	if err := Check(mtp); err != nil {
		t.Errorf("a target with a block for multi-token prediction: %v", err)
	}
	if err := CheckDrafter(target, target); err == nil {
		t.Error("a target is a drafter")
	}
	if err := Check(drafter); err == nil {
		t.Error("a drafter is a target")
	}
	broken, err := gguf.Open(edit.Golden(t, "qwen35").Set("tokenizer.ggml.model", "nonsense").Write(t))
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	if err := Check(broken); err == nil {
		t.Error("a target without a tokenizer is fine")
	}
	// A drafter with a vocabulary speaks the target's or none of it.
	tokens, _, err := target.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]string{"same": tokens, "other": append(slices.Clone(tokens[1:]), "x")} {
		d, err := gguf.Open(edit.Golden(t, "dflash-qwen35").Set("tokenizer.ggml.tokens", list).Write(t))
		if err != nil {
			t.Fatal(err)
		}
		err = CheckDrafter(d, target)
		if (err == nil) != (name == "same") || err != nil && !strings.HasPrefix(err.Error(), d.Path()+": its vocabulary") {
			t.Errorf("a drafter with the %s vocabulary: %v", name, err)
		}
		d.Close()
	}
}

// TestPoolNamesAndFiles: the first file's other name, files that are added, and models that are not there.
func TestPoolNamesAndFiles(t *testing.T) {
	named := filepath.Join(t.TempDir(), Any+".gguf") // whose name is taken
	raw, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err == nil {
		err = os.WriteFile(named, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPool(PoolConfig{Files: []string{testkit.Golden(t, "qwen3/model.gguf"), named}, Alias: "mine",
		Load: Options{Threads: 1, Drafter: "none"}, Engine: Config{Context: 32}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	names := func() (out []string) {
		for _, m := range p.Models() {
			out = append(out, m.Name)
			if m.Context != 32 {
				t.Errorf("%s has a context of %d", m.Name, m.Context)
			}
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{"any.gguf", "mine"}) {
		t.Errorf("models %q", got)
	}
	if err := p.Add(t.Context(), "added", testkit.Golden(t, "qwen35/model.gguf")); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(t.Context(), "again", testkit.Golden(t, "qwen35moe/model.gguf")); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"added", "again", "any.gguf", "mine"}) {
		t.Errorf("models %q", got)
	}
	var unknown *UnknownModelError
	if err := p.Unload(t.Context(), "nosuch"); !errors.As(err, &unknown) || unknown.Name != "nosuch" {
		t.Errorf("unloading what is not there: %v", err)
	}
	if err := p.Unload(t.Context(), ""); !errors.Is(err, ErrNoModelName) {
		t.Errorf("unloading without a name: %v", err)
	}
	if err := p.Unload(t.Context(), "mine"); err != nil {
		t.Errorf("unloading what is not loaded: %v", err)
	}
	l, err := p.Acquire(t.Context(), "added")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Unload(t.Context(), "added"); !errors.Is(err, ErrInUse) {
		t.Errorf("unloading what is used: %v", err)
	}
	l.Release()
	l.Release() // without effect
	if err := p.Unload(t.Context(), "added"); err != nil || len(p.Resident()) != 0 {
		t.Errorf("unloading: %v, %d are loaded", err, len(p.Resident()))
	}
	unsupported := edit.Golden(t, "qwen3").Set("general.architecture", "nonsense").Write(t)
	if err := p.Add(t.Context(), "odd", unsupported); err != nil {
		t.Fatal(err)
	}
	for _, m := range p.Models() {
		if m.Name == "odd" && (m.State != StateFailed || m.Err == nil) {
			t.Errorf("a file of another kind is %v, %v", m.State, m.Err)
		}
	}
}

// TestFinite: one value that is no number is found wherever it is, and what lies behind the vocabulary is not looked
// at.
func TestFinite(t *testing.T) {
	for n := range 20 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i)*1e30 - 1e31
		}
		if !finite(x) {
			t.Errorf("%d numbers are none", n)
		}
		for i := range x {
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				was := x[i]
				if x[i] = float32(bad); finite(x) {
					t.Errorf("%v at %d of %d is a number", bad, i, n)
				}
				x[i] = was
			}
		}
	}
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	s := m.newSampler(&Request{Tokens: []int32{1}})
	row := make([]float32, m.Target.Vocab+3)
	row[len(row)-1] = float32(math.NaN())
	row[5] = 1
	if id := s.Sample(row); id != 5 || s.err != nil {
		t.Errorf("token %d, %v", id, s.err)
	}
	row[m.Target.Vocab-1] = float32(math.NaN())
	if id := s.Sample(row); id != -1 || !errors.Is(s.err, ErrNotFinite) {
		t.Errorf("with a value that is none: token %d, %v", id, s.err)
	}
}

// panicking is a constraint that panics where it is told to.
type panicking struct{ mask, accept, prepare bool }

func (f panicking) Mask([]float32) {
	if f.mask {
		panic("mask")
	}
}
func (f panicking) Accept(int32) {
	if f.accept {
		panic("accept")
	}
}
func (f panicking) Prepare(context.Context, bool) bool {
	if f.prepare {
		panic("prepare")
	}
	return true
}
func (f panicking) Err() error { return nil }

// TestPanickingConstraint: a panic of a constraint is the error of its request, wherever it is.
func TestPanickingConstraint(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	row := make([]float32, m.Target.Vocab)
	for want, c := range map[string]panicking{"mask": {mask: true}, "accept": {accept: true}, "prepare": {prepare: true},
		"": {}} {
		s := m.newSampler(&Request{Tokens: []int32{1}, Constraint: c})
		if !s.Ready() {
			t.Errorf("%s: not ready", want)
		}
		if s.err == nil {
			if id := s.Sample(row); s.err == nil {
				s.Accept(id)
			}
		}
		if got := fmt.Sprint(s.err); want != "" && got != "constraint: "+want || want == "" && s.err != nil {
			t.Errorf("%q: %v", want, s.err)
		}
	}
}

// TestWordsForReasons: reasons and phases have their words, and what is none says so.
func TestWordsForReasons(t *testing.T) {
	for r, want := range map[Reason]string{ReasonEOG: "eog", ReasonError: "error", 0: "", -1: "reason -1", 6: "reason 6"} {
		if got := r.String(); got != want {
			t.Errorf("%d is %q", int(r), got)
		}
	}
	if PhaseDone.String() != "done" || PhaseQueued.String() != "queued" {
		t.Errorf("phases %v and %v", PhaseQueued, PhaseDone)
	}
	for n, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 2} {
		ev := Event{Text: []byte("ab"), Tokens: []Token{{Text: make([]byte, n)}}}
		if got := len(ev.Rest()); got != 2-want {
			t.Errorf("%d bytes of tokens leave %d of 2", n, got)
		}
	}
}

// TestWaitGivesUp: who stops waiting for a generation ends it.
func TestWaitGivesUp(t *testing.T) {
	e := start(t, "qwen3", Config{Parallel: 1})
	hold := newGate(0)
	g := submit(t, e, Request{Tokens: randomPrompt(1, 10), MaxTokens: 50, Constraint: hold, IgnoreEOG: true})
	<-hold.ready
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(hold.open)
	<-g.Done()
	ev, err := g.Wait(t.Context())
	if err != nil || ev.Result == nil || ev.Result.Reason != ReasonCancelled {
		t.Errorf("result %+v, %v", ev.Result, err)
	}
	if _, err := g.Wait(t.Context()); err != nil {
		t.Errorf("waiting once more: %v", err)
	}
}

// TestSentences: errors name what they are about, each number in its place.
func TestSentences(t *testing.T) {
	for want, err := range map[string]error{
		"request (9 tokens) exceeds the available context size (5 tokens)": &ContextError{Prompt: 9, Context: 5},
		"there is no slot 7; there are 2":                                  &SlotError{7, 2},
		`unknown model "m"`:                                                &UnknownModelError{"m"},
		`load model "m": why`:                                              &LoadError{"m", errors.New("why")},
		"too little memory for this request: 3 tokens take 2.0 kB besides the model; send a shorter prompt, or serve with a " +
			"smaller type of cache (--kv): why": &MemoryError{3, 2048, errors.New("why")},
	} {
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSizesForPeople: the borders between units.
func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 1_000_000: "1.0 MB",
		1_000_000_000: "1.00 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %s, want %s", n, got, want)
		}
	}
}

// TestPoolTogether: models are added, listed, looked for and unloaded by many at a time. What they share without a lock
// the race detector finds.
func TestPoolTogether(t *testing.T) {
	p, err := NewPool(PoolConfig{Files: []string{testkit.Golden(t, "qwen3/model.gguf")}, Alias: "m",
		Load: Options{Threads: 1, Drafter: "none"}, Engine: Config{Context: 32}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	var all sync.WaitGroup
	for i, fn := range []func(k int) error{
		func(k int) error {
			return p.Add(t.Context(), fmt.Sprint("added", k), testkit.Golden(t, "qwen35/model.gguf"))
		},
		func(int) error { _, err := p.resolve(t.Context(), "m"); return err },
		func(int) error { return p.Unload(t.Context(), "m") },
		func(int) error { p.Models(); p.Resident(); return nil },
	} {
		all.Go(func() {
			for k := range 8 {
				if err := fn(k); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	if n := len(p.Models()); n != 9 {
		t.Errorf("%d models, want 9", n)
	}
}

// TestKeptInSight: of a prompt whose answer sees a window the first message stays in sight, or a few tokens.
func TestKeptInSight(t *testing.T) {
	for _, c := range []struct {
		checkpoints []int
		want        int
	}{{nil, 4}, {[]int{0, 3}, 3}, {[]int{-1, 10}, 4}, {[]int{9, 5}, 9}, {[]int{11, 1}, 1}} {
		j := &job{g: newGeneration(t.Context(), Request{Tokens: make([]int32, 10), Checkpoints: c.checkpoints})}
		if got := j.keeps(); got != c.want {
			t.Errorf("checkpoints %v: %d tokens, want %d", c.checkpoints, got, c.want)
		}
	}
}

// TestCutOfNothing: a copy that cannot be made leaves no memory behind.
func TestCutOfNothing(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	mem := m.Target.Memory()
	s := remembers(t, mem, 100)
	used := mem.UsedBytes()
	if _, err := cut(s, 101); err == nil {
		t.Error("101 of 100 tokens are copied")
	}
	c, err := cut(s, 60)
	if err != nil || c.Len() != 60 || s.Len() != 100 {
		t.Fatalf("60 of 100 tokens: %v", err)
	}
	c.Close()
	cs := contexts{s, nil, remembers(t, mem, 50)}
	more := mem.UsedBytes()
	if out, err := cs.cut(60, 5); err == nil || out != nil { // the third knows fewer
		t.Error("60 of 50 tokens are copied")
	}
	if out, err := cs.cut(60, 3); err != nil || out[0].Len() != 60 || out[1] != nil || out[2] != nil {
		t.Errorf("of the first only: %v", err)
	} else {
		out.close()
	}
	if got := mem.UsedBytes(); got != more {
		t.Errorf("%d bytes are left of copies", got-more)
	}
	cs[2].Close()
	if got := mem.UsedBytes(); got != used {
		t.Errorf("%d bytes are left of a context", got-used)
	}
	s.Close()
	if _, err := cut(s, 1); err == nil || mem.UsedBytes() != 0 {
		t.Errorf("a copy of what is closed: %v, %d bytes", err, mem.UsedBytes())
	}
}

// TestPoolOfDefects: a panic while a model is read is the error of those who wait for it, and the next one tries again.
func TestPoolOfDefects(t *testing.T) {
	p, err := NewPool(PoolConfig{Files: []string{testkit.Golden(t, "qwen3/model.gguf")}, Alias: "m",
		Load: Options{Threads: 1, Drafter: "none"}, Engine: Config{Context: 32}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	read := p.read
	p.read = func(string, Options) (*Model, error) { panic("broken") }
	var load *LoadError
	if _, err := p.Acquire(t.Context(), "m"); !errors.As(err, &load) ||
		!strings.Contains(err.Error(), "a defect in loading: broken") {
		t.Errorf("error %v", err)
	}
	if m := p.Models()[0]; m.State != StateFailed || m.Err == nil {
		t.Errorf("the model is %v, %v", m.State, m.Err)
	}
	p.read = read
	l, err := p.Acquire(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// TestWantedIsNotUnloaded: a model whose idle time is over stays while a request waits for it.
func TestWantedIsNotUnloaded(t *testing.T) {
	p, err := NewPool(PoolConfig{Files: []string{testkit.Golden(t, "qwen3/model.gguf")}, Alias: "m", Idle: 1,
		Load: Options{Threads: 1, Drafter: "none"}, Engine: Config{Context: 32}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	var over func()
	p.after = func(_ time.Duration, f func()) func() { over = f; return func() {} }
	l, err := p.Acquire(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	first := over
	for _, waiters := range []int{1, 0} {
		p.mu.Lock()
		p.models[0].waiters = waiters
		p.mu.Unlock()
		first()
		p.work.Wait()
		if loaded := len(p.Resident()) == 1; loaded != (waiters > 0) {
			t.Errorf("%d requests wait for it: loaded %t", waiters, loaded)
		}
	}
	first() // what is gone already
	p.work.Wait()
}

// TestDrafterBeside: the drafter beside a target is the DFlash file whose name is most like the target's, or else one
// for multi-token prediction; files that are looked at do not stay mapped.
func TestDrafterBeside(t *testing.T) {
	dir := t.TempDir()
	add := func(name, golden string) string {
		path := filepath.Join(dir, name)
		raw, err := os.ReadFile(testkit.Golden(t, golden))
		if err == nil {
			err = os.WriteFile(path, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := add("target-4b.gguf", "qwen35/model.gguf")
	target := openGolden(t, "qwen35")
	find := func(want string) {
		t.Helper()
		if want != "" {
			want = filepath.Join(dir, want)
		}
		if got := FindDrafter(path, target); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
		if maps, err := os.ReadFile("/proc/self/maps"); err == nil && strings.Contains(string(maps), dir) {
			t.Error("a file stays mapped")
		}
	}
	find("")
	add("target-4b-notes.gguf", "dflash-qwen35/model.gguf") // a drafter that does not say so
	if err := os.WriteFile(filepath.Join(dir, "target-4b-draft.gguf"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	add("target-4b-dflash-next.gguf", "qwen3/model.gguf") // no drafter
	find("")
	add("mtp-target-4b.gguf", "mtp-qwen35/block.gguf")
	find("mtp-target-4b.gguf")
	add("a-dflash.gguf", "dflash-qwen35/model.gguf")
	find("a-dflash.gguf")
	add("target-4b-dflash.gguf", "dflash-qwen35/model.gguf")
	add("target-9b-dflash.gguf", "dflash-qwen35/model.gguf")
	find("target-4b-dflash.gguf")
	if got := FindDrafter(filepath.Join(dir, "none", "x.gguf"), target); got != "" {
		t.Errorf("in a folder that is not there: %q", got)
	}
}

// TestKeepsWhatFits: a text that takes exactly what the cache may hold is kept whole, one that takes a byte more only
// in part.
func TestKeepsWhatFits(t *testing.T) {
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	c := &prefixes{target: m.Target.Memory()}
	const n = 1000
	c.limit = c.size(n)
	if got := c.keeps(n); got != n {
		t.Errorf("%d of %d tokens are kept", got, n)
	}
	c.limit--
	if got, half := c.keeps(n), c.part(); got != half || half <= 0 || c.size(half) > c.limit/2 {
		t.Errorf("%d tokens are kept of a text that does not fit, half of the cache holds %d", got, half)
	}
}

// TestDiskFull: a file that cannot be written is given up, with its temporary file.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	h := newByHand(t, "full", loadGolden(t, "qwen3", false), Config{CacheDir: dir, CacheMinTokens: 20})
	e := &entry{text: text{tokens: randomPrompt(1, 200)}, seq: remembers(t, h.l.cache.target, 200)}
	h.l.cache.add(e, 0)
	w, err := h.l.disk.begin(e)
	if err != nil {
		t.Fatal(err)
	}
	w.f.Close() // what is written now fails
	if done, err := w.more(1); !done || err == nil {
		t.Errorf("writing to a closed file: done %t, %v", done, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", "*"+tempExt)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	e.saved = true
	h.end()
}
