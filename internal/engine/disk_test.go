package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"strobe/internal/cache"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

// stop closes an engine before the end of the test.
func stop(t *testing.T, e *Engine) {
	t.Helper()
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func prefixFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Ext(f) != prefixExt {
			t.Errorf("%s is left in the cache folder", filepath.Base(f))
		}
	}
	return files
}

var fixed = speculate.Options{Fixed: true, Tree: speculate.TreeOff}

// TestRestart (failure F169): what one engine saved, the next one uses, with the same text and the same
// guesses as without a cache.
func TestRestart(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35", "gemma4"} {
		dir := t.TempDir()
		first := Request{Tokens: randomPrompt(1, 150), MaxTokens: 30, IgnoreEOG: true, Spec: fixed}
		e := start(t, name, Config{CacheDir: dir})
		ev := generate(t, e, first)
		stop(t, e)
		if len(prefixFiles(t, dir)) == 0 {
			t.Fatalf("%s: nothing was saved", name)
		}
		second := Request{Tokens: slices.Concat(first.Tokens, ids(ev.Tokens), randomPrompt(2, 20)), MaxTokens: 40,
			IgnoreEOG: true, Spec: fixed}
		cold := second
		cold.NoCache = true
		e, r := startRecorded(t, name, Config{CacheDir: dir})
		want := r.guesses(t, e, cold)
		if got := r.guesses(t, e, second); !slices.Equal(got, want) {
			t.Errorf("%s: the drafter guesses differently after a restart", name)
		}
		s := e.Snapshot()
		if s.Cache.DiskHits != 1 || s.Stats.Cached != 150+30-1 {
			t.Errorf("%s: %d hits on disk, %d tokens cached; want 1 and %d", name, s.Cache.DiskHits, s.Stats.Cached, 179)
		}
		// The regenerated first answer starts from the checkpoint in its prompt.
		if got := generate(t, e, first); !slices.Equal(ids(got.Tokens), ids(ev.Tokens)) || got.Result.Cached < 150-tailGap {
			t.Errorf("%s: repeated after a restart: %d tokens cached, same text %v", name, got.Result.Cached,
				slices.Equal(ids(got.Tokens), ids(ev.Tokens)))
		}
		stop(t, e)
	}
}

// TestRestoredOnce: requests that need the same file at the same time share one load of it, and one that
// is cancelled meanwhile harms nobody.
func TestRestoredOnce(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		dir := t.TempDir()
		e := start(t, name, Config{CacheDir: dir})
		generate(t, e, Request{Tokens: randomPrompt(1, 300), PromptOnly: true})
		stop(t, e)
		e = start(t, name, Config{CacheDir: dir, Parallel: 4})
		var gs []*Generation
		for i := range 4 {
			req := Request{Tokens: slices.Concat(randomPrompt(1, 300), randomPrompt(uint64(i+5), 10)), MaxTokens: 5,
				IgnoreEOG: true}
			gs = append(gs, submit(t, e, req))
		}
		gs[0].Cancel()
		for i, g := range gs {
			if r := wait(t, g).Result; i > 0 && (r.Reason != ReasonLength || r.Cached < 300-tailGap) {
				t.Errorf("%s, request %d: %v, %d tokens cached", name, i, r.Reason, r.Cached)
			}
		}
		if s := e.Snapshot(); s.Cache.DiskHits != 1 {
			t.Errorf("%s: %d hits on disk", name, s.Cache.DiskHits)
		}
	}
}

// TestDamagedFiles: a file cut anywhere or with any bit changed costs its entry and a line in the log,
// never a request or its text.
func TestDamagedFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for _, name := range []string{"qwen3", "qwen35"} {
		dir := t.TempDir()
		req := Request{Tokens: randomPrompt(1, 100), MaxTokens: 10, IgnoreEOG: true, Spec: fixed}
		e := start(t, name, Config{CacheDir: dir})
		want := generate(t, e, req)
		stop(t, e)
		files := prefixFiles(t, dir)
		good := make(map[string][]byte)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			good[f] = b
		}
		for try := range 24 {
			for f, b := range good {
				bad := slices.Clone(b)
				if try%2 == 0 {
					bad = bad[:r.IntN(len(bad))]
				} else {
					bit := r.IntN(8 * len(bad))
					if try%4 == 1 {
						bit = r.IntN(8 * 200) // in the header
					}
					bad[bit/8] ^= 1 << (bit % 8)
				}
				if err := os.WriteFile(f, bad, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			e := start(t, name, Config{CacheDir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
			got := generate(t, e, req)
			stop(t, e)
			if !slices.Equal(ids(got.Tokens), ids(want.Tokens)) {
				t.Errorf("%s, try %d: the text differs", name, try)
			}
			if s := e.Snapshot(); s.Cache.DiskHits > 0 || s.Cache.DiskCorrupted == 0 ||
				!strings.Contains(log.String(), "file dropped") {
				t.Errorf("%s, try %d: %d hits, %d dropped; log %s", name, try, s.Cache.DiskHits, s.Cache.DiskCorrupted, &log)
			}
		}
	}
}

// TestForeignModel: a model with the same shapes and other weights does not see the files.
func TestForeignModel(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(testkit.Golden(t, "qwen3/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	req := Request{Tokens: randomPrompt(1, 100), MaxTokens: 10, IgnoreEOG: true}
	e := startModel(t, loadGolden(t, "qwen3", false), Config{CacheDir: dir})
	generate(t, e, req)
	stop(t, e)
	n := len(data)
	for i := n - n/4; i < n; i += 4 {
		data[i] ^= 1 // a fine-tune: low bits of the last tensors
	}
	path := filepath.Join(t.TempDir(), "tuned.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Load(path, Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	// Not even one that somebody puts into its folder.
	theirs := prefixFiles(t, dir)[0]
	ours := filepath.Join(dir, m.Fingerprint(), filepath.Base(theirs))
	if err := os.Mkdir(filepath.Dir(ours), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ours, must(os.ReadFile(theirs)), 0o600); err != nil {
		t.Fatal(err)
	}
	e = startModel(t, m, Config{CacheDir: dir})
	if r := generate(t, e, req).Result; r.Cached != 0 {
		t.Errorf("another model restored %d tokens", r.Cached)
	}
	if n := e.Snapshot().Cache.DiskCorrupted; n != 1 {
		t.Errorf("%d files were dropped, want the one of another model", n)
	}
	stop(t, e)
	if n := len(prefixFiles(t, dir)); n != 2 {
		t.Errorf("%d files, want one of each model", n)
	}
}

// TestDiskLimit: the folder stays within its limit; the least recently used file goes first.
func TestDiskLimit(t *testing.T) {
	dir := t.TempDir()
	run := func(limit int64, seeds ...uint64) (size int64, cached []int) {
		e := startModel(t, loadGolden(t, "qwen3", false), Config{CacheDir: dir, CacheDiskBytes: limit, Parallel: 1})
		for _, s := range seeds {
			r := generate(t, e, Request{Tokens: randomPrompt(s, 100), MaxTokens: 2, IgnoreEOG: true}).Result
			cached = append(cached, r.Cached)
		}
		stop(t, e)
		for _, f := range prefixFiles(t, dir) {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			size += info.Size()
		}
		return size, cached
	}
	one, _ := run(1<<30, 1)
	old := time.Now().Add(-time.Hour)
	for _, f := range prefixFiles(t, dir) {
		os.Chtimes(f, old, old)
	}
	limit := 2*one + one/2
	if size, _ := run(limit, 2, 3); size > limit {
		t.Errorf("%d bytes on disk, limit %d", size, limit)
	}
	if _, cached := run(limit, 3); cached[0] != 99 {
		t.Errorf("the newest prompt has %d tokens cached", cached[0])
	}
	if _, cached := run(limit, 1); cached[0] != 0 {
		t.Errorf("the oldest prompt still has %d tokens cached", cached[0])
	}
	if n := len(prefixFiles(t, dir)); n > 2 {
		t.Errorf("%d files", n)
	}
	if size, _ := run(1, 9); size != 0 {
		t.Errorf("%d bytes on disk, limit 1", size)
	}
}

// TestSavedWhileIdle: an idle engine saves without being closed; work interrupts it and no half
// file stays.
func TestSavedWhileIdle(t *testing.T) {
	dir := t.TempDir()
	m := loadGolden(t, "qwen35", true)
	e := &Engine{model: m, cfg: Config{CacheDir: dir}.withDefaults(m), work: make(chan struct{}, 1),
		done: make(chan struct{})}
	e.start()
	t.Cleanup(func() { e.Close(context.Background()) })
	for i := range 5 {
		generate(t, e, Request{Tokens: randomPrompt(uint64(i), 90), MaxTokens: 3, IgnoreEOG: true})
	}
	for i := 0; e.Snapshot().Cache.DiskWritten < 10; i++ {
		if i == 20000 {
			t.Fatalf("%d files written, want 10", e.Snapshot().Cache.DiskWritten)
		}
		time.Sleep(time.Millisecond)
	}
	if n := len(prefixFiles(t, dir)); n != 10 {
		t.Errorf("%d files, want 10", n)
	}
}

// TestInterruptedSave: a save that is given up leaves nothing and can be done again.
func TestInterruptedSave(t *testing.T) {
	dir := t.TempDir()
	m := loadGolden(t, "qwen3", false)
	defer m.Close()
	d, err := openDisk(&disk{root: dir, model: m.Fingerprint(), limit: 1 << 30, log: slog.New(slog.DiscardHandler),
		stats: &CacheStats{}, wake: func() {}, cuttable: func(int) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	seq := m.Target.NewSeq()
	defer seq.Close()
	s, err := m.Runner.NewStream(speculate.Config{Seq: seq, Prompt: randomPrompt(1, 300), Sampler: nothing{},
		Emit: func(speculate.Token) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	for !s.Done() {
		if err := m.Runner.Step([]*speculate.Stream{s}, 64); err != nil {
			t.Fatal(err)
		}
	}
	e := &entry{text: text{tokens: randomPrompt(1, 300)}, seq: seq}
	if err := d.save(e, func() bool { return true }); err != errBusy {
		t.Fatalf("error %v, want %v", err, errBusy)
	}
	if n := len(prefixFiles(t, dir)); n != 0 {
		t.Errorf("%d files", n)
	}
	if err := d.save(e, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	d.close()
	if n := len(prefixFiles(t, dir)); n != 1 || d.stats.DiskEntries != 1 {
		t.Errorf("%d files, %d entries", n, d.stats.DiskEntries)
	}
}

// TestLeftovers: temporary files of a killed process go when they are old, those of a living one stay.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	m := loadGolden(t, "qwen3", false)
	sub := filepath.Join(dir, m.Fingerprint())
	os.MkdirAll(sub, 0o700)
	for _, f := range []string{"old.tmp", "new.tmp", "note.txt"} {
		os.WriteFile(filepath.Join(sub, f), []byte("x"), 0o600)
	}
	old := time.Now().Add(-2 * tempAge)
	os.Chtimes(filepath.Join(sub, "old.tmp"), old, old)
	stop(t, startModel(t, m, Config{CacheDir: dir}))
	for f, want := range map[string]bool{"old.tmp": false, "new.tmp": true, "note.txt": true} {
		if _, err := os.Stat(filepath.Join(sub, f)); (err == nil) != want {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// TestKilledWhileWriting: a process that dies by SIGKILL while it saves loses at most the entry it
// was writing.
func TestKilledWhileWriting(t *testing.T) {
	if dir := os.Getenv("STROBE_TEST_CACHE"); dir != "" {
		saveForever(t, dir)
		return
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWhileWriting$")
		cmd.Env = append(os.Environ(), "STROBE_TEST_CACHE="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It says so when it has begun to save.
		buf := make([]byte, 16)
		out.Read(buf)
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*"+prefixExt))
	if len(files) == 0 {
		t.Fatal("nothing was saved before the process died")
	}
	e := start(t, "qwen35", Config{CacheDir: dir, CacheDiskBytes: 1 << 40})
	s := e.Snapshot()
	for i := range 6 {
		r := generate(t, e, Request{Tokens: randomPrompt(uint64(i), 400), MaxTokens: 2, IgnoreEOG: true}).Result
		if i == 0 && r.Cached == 0 {
			t.Error("the first entry is lost")
		}
	}
	if s = e.Snapshot(); s.Cache.DiskCorrupted > 0 || s.Cache.DiskHits == 0 {
		t.Errorf("%d files damaged, %d hits", s.Cache.DiskCorrupted, s.Cache.DiskHits)
	}
}

func saveForever(t *testing.T, dir string) {
	for round := 0; ; round++ {
		e := start(t, "qwen35", Config{CacheDir: dir, CacheDiskBytes: 1 << 40})
		for i := range 4 {
			generate(t, e, Request{Tokens: randomPrompt(uint64(i+4*round), 400), MaxTokens: 2, IgnoreEOG: true})
		}
		stop(t, e)
		fmt.Println("saved")
	}
}

// TestTwoPruners: two who prune the same folder at the same time (two saves of one server, or two servers) delete
// no more than one would. A file that the other one has deleted used to count as not deleted.
func TestTwoPruners(t *testing.T) {
	const files, size, limit = 40, 1000, 25 * 1000
	for round := range 60 {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "model"), 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			path := filepath.Join(root, "model", fmt.Sprintf("%02d%s", i, prefixExt))
			if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			used := time.Now().Add(time.Duration(i-files) * time.Minute)
			if err := os.Chtimes(path, used, used); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 3 {
			d := &disk{root: root, limit: limit}
			wg.Go(func() {
				<-begin
				d.prune()
			})
		}
		close(begin)
		wg.Wait()
		left := prefixFiles(t, root)
		if len(left) != limit/size {
			t.Fatalf("round %d: %d files are left, want %d", round, len(left), limit/size)
		}
		if name := filepath.Base(left[0]); name != fmt.Sprintf("%02d%s", files-limit/size, prefixExt) {
			t.Fatalf("round %d: the oldest one left is %s", round, name)
		}
	}
}

// TestCheckpointOnDisk: the checkpoint of a hybrid model's prompt is on disk while the answer is still being
// generated, so that a server that is killed then does not run the prompt again.
func TestCheckpointOnDisk(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{CacheDir: dir, Parallel: 2}
	e := start(t, "qwen35", cfg)
	req := Request{Tokens: randomPrompt(1, 200), MaxTokens: 40, IgnoreEOG: true}
	want := plain(t, "qwen35", req)
	hold := newGate(5)
	bad := req
	bad.Constraint = hold
	g := submit(t, e, bad)
	<-hold.ready
	files := func() []string {
		files, err := filepath.Glob(filepath.Join(dir, "*", "*"+prefixExt))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	for i := 0; len(files()) == 0; i++ {
		if i == 20000 {
			t.Fatal("nothing is on disk while the answer is generated")
		}
		time.Sleep(time.Millisecond)
	}
	// What a killed process leaves behind is what lies there now.
	copied := t.TempDir()
	for _, f := range files() {
		to := filepath.Join(copied, filepath.Base(filepath.Dir(f)), filepath.Base(f))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, must(os.ReadFile(f)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	close(hold.open)
	wait(t, g)
	cfg.CacheDir = copied
	ev := generate(t, start(t, "qwen35", cfg), req)
	if ev.Result.Cached < 180 || !slices.Equal(ids(ev.Tokens), want) {
		t.Errorf("after the restart %d of 200 tokens are cached, or the text differs", ev.Result.Cached)
	}
}

// TestStoredLengthDiffers: a file whose tokens are more or fewer than its sequence remembers, of the target or of a
// drafter, is damaged, however well its checksums fit.
func TestStoredLengthDiffers(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		for _, c := range []struct{ tokens, target, drafter int }{{99, 100, 99}, {101, 100, 101}, {100, 100, 99},
			{100, 100, 0}, {100, 100, 100}} {
			dir := t.TempDir()
			m := loadGolden(t, name, true)
			d, err := openDisk(&disk{root: dir, model: m.Fingerprint(), limit: 1 << 30, log: slog.New(slog.DiscardHandler),
				stats: &CacheStats{}, wake: func() {}, cuttable: func(int) bool { return true },
				sources: wanted(m.Runner, speculate.Options{})})
			if err != nil {
				t.Fatal(err)
			}
			e := &entry{text: text{tokens: randomPrompt(1, c.tokens)}, seq: remembers(t, m.Target.Memory(), c.target),
				drafts: make(contexts, len(m.Runner.Sources))}
			e.drafts[0] = remembers(t, m.Drafter.Memory(), c.drafter)
			if err := d.save(e, func() bool { return false }); err != nil {
				t.Fatal(err)
			}
			d.close()
			e.close()
			eng := startModel(t, m, Config{CacheDir: dir})
			r := generate(t, eng, Request{Tokens: randomPrompt(1, 120), MaxTokens: 2, IgnoreEOG: true, Spec: fixed}).Result
			good := c.tokens == c.target && c.tokens == c.drafter
			if s := eng.Snapshot().Cache; (r.Cached > 0) != good || (s.DiskHits == 1) != good || (s.DiskCorrupted == 0) != good {
				t.Errorf("%s, %+v: %d tokens cached, %d hits, %d files dropped", name, c, r.Cached, s.DiskHits, s.DiskCorrupted)
			}
			stop(t, eng)
		}
	}
}

// remembers returns a sequence of n tokens, of whatever content.
func remembers(t *testing.T, m *cache.Memory, n int) *cache.Seq {
	t.Helper()
	s := m.NewSeq()
	if n == 0 {
		return s
	}
	b, err := m.Begin([]cache.Segment{{Seq: s, Rows: n, Prompt: true}})
	if err != nil {
		t.Fatal(err)
	}
	b.Done()
	if err := s.CommitAll(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBrokenPassIsNotKept: what a sequence remembers after a pass that ended half-way, or was not committed, does not
// become a prefix, whatever the reason for which its generation ends.
func TestBrokenPassIsNotKept(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} {
		for _, broken := range []string{"", "half", "open"} {
			m := loadGolden(t, name, true)
			e := &Engine{model: m, cfg: Config{}.withDefaults(m), work: make(chan struct{}, 1), done: make(chan struct{})}
			for i := range e.cfg.Parallel {
				e.snap.Slots = append(e.snap.Slots, Slot{ID: i})
			}
			l := newLoop(e)
			l.prepare()
			g := newGeneration(t.Context(), Request{Tokens: randomPrompt(1, 60), MaxTokens: 50, IgnoreEOG: true})
			g.stop = func() bool { return true }
			l.start(g, 0)
			j := l.jobs[0]
			for len(j.tokens) < 3 {
				if _, err := l.step(); err != nil {
					t.Fatal(err)
				}
			}
			l.cache.shrink(0) // checkpoints of the prompt
			if broken != "" {
				b, err := m.Target.Memory().Begin([]cache.Segment{{Seq: j.seq, Rows: 3}})
				if err != nil {
					t.Fatal(err)
				}
				if broken == "open" {
					b.Done()
				}
			}
			l.end(j, ReasonCancelled, context.Canceled)
			if n := len(l.cache.entries); n > 0 != (broken == "") {
				t.Errorf("%s, %q: %d entries of its memory are kept", name, broken, n)
			}
			l.cache.shrink(0)
			if n := m.Target.Memory().UsedBytes(); n != 0 {
				t.Errorf("%s, %q: %d bytes are in use", name, broken, n)
			}
			m.Close()
		}
	}
}
