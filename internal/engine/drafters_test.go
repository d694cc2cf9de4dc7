package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/draft/dflash"
	"strobe/internal/gguf"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
	"strobe/internal/testkit/modeltest"
)

// drafterKit is a target with one drafter of each kind; that of DFlash is called blocks.
func drafterKit(t *testing.T) (target, blocks, eagle, mtp string) {
	t.Helper()
	target = testkit.Golden(t, "qwen35/model.gguf")
	eagle = modeltest.Eagle3For(t, modeltest.File(t, target)).Write(t)
	return target, testkit.Golden(t, "dflash-qwen35/model.gguf"), eagle, testkit.Golden(t, "mtp-qwen35/block.gguf")
}

// TestDraftersTogether: with drafters of three kinds at once, texts are those without drafts in every way of drafting,
// alone and beside others. Each drafter is asked, counted under its own name, and known by its file.
func TestDraftersTogether(t *testing.T) {
	target, blocks, eagle, mtp := drafterKit(t)
	m, err := Load(target, Options{Threads: 1, Drafter: eagle, MoreDrafters: []string{mtp, blocks}})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, d := range m.Drafters() {
		files[d.Name()] = m.DrafterFile(d)
		if s := m.Summary(); !strings.Contains(s, "drafter "+d.Name()+" "+Bytes(d.WeightBytes())) {
			t.Errorf("the summary does not say what %s takes: %s", d.Name(), s)
		}
	}
	if len(files) != 3 || files["dflash"] != blocks || files["eagle3"] != eagle || files["mtp"] != mtp ||
		m.DrafterPath != eagle || !slices.Equal(m.MoreDrafterPaths, []string{mtp, blocks}) || len(m.files) != 4 {
		t.Errorf("drafters %v, paths %s and %v, %d files", files, m.DrafterPath, m.MoreDrafterPaths, len(m.files))
	}
	e := startModel(t, m, Config{Parallel: 3, Chunk: 32})
	var reqs []Request
	var want []Event
	for i := range 3 {
		req := Request{Tokens: randomPrompt(uint64(i%2), 12+45*i), MaxTokens: 24, IgnoreEOG: true, Params: greedy}
		if i == 1 {
			req.Params = seeded
		}
		reqs = append(reqs, req)
		req.NoCache, req.Spec = true, speculate.Options{Draft: speculate.Off}
		want = append(want, generate(t, e, req))
	}
	options := []speculate.Options{{}, {Fixed: true, Tree: speculate.TreeOff}, {Fixed: true, Tree: 12}}
	for name := range files {
		options = append(options, speculate.Options{Draft: name, Fixed: true, Tree: 12})
	}
	for _, opt := range options {
		together(t, e, reqs, opt, func(i int, ev Event) {
			if !slices.Equal(ids(ev.Tokens), ids(want[i].Tokens)) {
				t.Errorf("%+v: request %d says\n%v, without drafts\n%v", opt, i, ids(ev.Tokens), ids(want[i].Tokens))
			}
			st := ev.Result.Stats
			if st.Cold || st.DraftErr != nil || st.BadDrafts > 0 {
				t.Errorf("%+v: request %d: cold %v, error %v, %d bad drafts", opt, i, st.Cold, st.DraftErr, st.BadDrafts)
			}
			for name := range files {
				if asked := st.BySource[name].Drafts > 0; opt.Fixed && asked != (opt.Draft == "" || opt.Draft == name) {
					t.Errorf("%+v: request %d: %s was asked: %v", opt, i, name, asked)
				}
			}
		})
	}
	if s := e.Snapshot(); s.DrafterBytes == 0 {
		t.Error("the memory of the drafters is not counted")
	}
}

// TestDraftersRemembered: what drafters that are used together know of a text is stored and found again, and is left
// alone by a process that has other drafters.
func TestDraftersRemembered(t *testing.T) {
	target, blocks, eagle, mtp := drafterKit(t)
	dir := t.TempDir()
	start := func(first string, more ...string) *Model {
		// A rule that is found by trial would change the guesses from one request to the next.
		m, err := Load(target, Options{Threads: 1, Drafter: first, MoreDrafters: more, Causal: dflash.CausalOff,
			DraftWindow: dflash.WindowOff})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	req := Request{Tokens: randomPrompt(3, 100), MaxTokens: 20, IgnoreEOG: true}
	var again Request
	for _, source := range []string{"dflash", "eagle3", "mtp"} {
		e, _ := recorded(t, start(blocks, eagle, mtp), source, Config{Parallel: 1, CacheDir: dir})
		first := generate(t, e, req)
		stop(t, e)
		again = Request{Tokens: slices.Concat(req.Tokens, ids(first.Tokens), randomPrompt(4, 20)), MaxTokens: 30,
			IgnoreEOG: true}
		cold := again
		cold.NoCache = true
		e, r := recorded(t, start(blocks, eagle, mtp), source, Config{Parallel: 1, CacheDir: dir})
		if got, want := r.guesses(t, e, again), r.guesses(t, e, cold); !slices.Equal(got, want) ||
			e.Snapshot().Cache.DiskHits != 1 {
			t.Errorf("%s: same guesses after a restart: %v; %d hits on the disk", source, slices.Equal(got, want),
				e.Snapshot().Cache.DiskHits)
		}
		stop(t, e)
	}
	for _, m := range []*Model{start(blocks), start(eagle, mtp)} {
		e := startModel(t, m, Config{Parallel: 1, CacheDir: dir})
		if generate(t, e, again); e.Snapshot().Cache.DiskHits != 0 {
			t.Errorf("with %s alone: %d hits on what all knew", m.DrafterPath, e.Snapshot().Cache.DiskHits)
		}
	}
}

// TestDraftersRefused: an error names the drafter at fault, and no file stays open.
func TestDraftersRefused(t *testing.T) {
	target, blocks, eagle, mtp := drafterKit(t)
	golden := testkit.Golden(t, "dflash-gemma4/model.gguf")
	missing := filepath.Join(t.TempDir(), "missing.gguf")
	broken := filepath.Join(t.TempDir(), "broken.gguf")
	if err := os.WriteFile(broken, []byte("GGUF and nothing else"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := synthetic(t, "tiny-llama-eagle3")
	for _, c := range []struct {
		drafters []string
		want     []string
	}{
		{[]string{blocks, eagle, blocks}, []string{blocks + ": " + blocks, "of the same kind (dflash)"}},
		{[]string{blocks, golden}, []string{golden + ": " + blocks, "of the same kind (dflash)"}},
		{[]string{eagle, missing}, []string{missing}}, {[]string{missing, eagle}, []string{missing}},
		{[]string{eagle, mtp, broken}, []string{broken}}, {[]string{blocks, other}, []string{other}},
		{[]string{blocks, target}, []string{target}},
	} {
		m, err := Load(target, Options{Threads: 1, Drafter: c.drafters[0], MoreDrafters: c.drafters[1:]})
		if err == nil {
			m.Close()
			t.Errorf("%v: loaded", c.drafters)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %q does not say %q", c.drafters, err, want)
			}
		}
		if strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%v: %q", c.drafters, err)
		}
	}
	// "none" has no others.
	m, err := Load(target, Options{Threads: 1, Drafter: "none", MoreDrafters: []string{blocks}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(m.Drafters()) != 0 {
		t.Errorf("%d drafters", len(m.Drafters()))
	}
}

// TestDraftersCounted: what is announced for a model counts the files of all its drafters, on the device they lie on
// and in the list of a pool.
func TestDraftersCounted(t *testing.T) {
	target, blocks, eagle, mtp := drafterKit(t)
	opt := Options{Threads: 1, Drafter: blocks, MoreDrafters: []string{eagle, mtp}}
	src, err := open(target, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	sum := 0
	for _, path := range []string{blocks, eagle, mtp} {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range f.Tensors() {
			sum += len(x.Data)
		}
		f.Close()
	}
	if with, without := needs(weighing{}, src, true).rest, needs(weighing{}, src, false).rest; with-without != sum {
		t.Errorf("drafters count %d bytes of %d", with-without, sum)
	}
	p, err := NewPool(PoolConfig{Files: []string{target}, Load: opt})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	bytes := int64(0)
	for _, path := range []string{target, blocks, eagle, mtp} {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		bytes += st.Size()
	}
	if x := p.Models()[0]; x.Size != bytes || x.Drafter != blocks || !slices.Equal(x.MoreDrafters, opt.MoreDrafters) {
		t.Errorf("%d bytes with %s and %v, the files have %d", x.Size, x.Drafter, x.MoreDrafters, bytes)
	}
}
