package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"strobe/internal/cache"
)

// TestSlotFiles: what a slot remembers is in its file after a restart, for its owner only, and gives the same text.
func TestSlotFiles(t *testing.T) {
	for _, name := range []string{"qwen3", "qwen35"} { // memory that can be cut, and that cannot
		dir := t.TempDir()
		cfg := Config{Parallel: 2, Context: 256, SlotDir: dir}
		e := start(t, name, cfg)
		ctx, one := t.Context(), 1
		if _, _, err := e.SaveSlot(ctx, 1, "me", "a"); !errors.Is(err, ErrSlotEmpty) {
			t.Errorf("an empty slot: %v", err)
		}
		first := Request{Tokens: randomPrompt(1, 40), Slot: &one, MaxTokens: 8, IgnoreEOG: true, Salt: "me", Spec: fixed}
		ev := generate(t, e, first)
		n, size, err := e.SaveSlot(ctx, 1, "me", "a")
		if st, e := os.Stat(filepath.Join(dir, "a")); err != nil || e != nil || n != 47 || st.Size() != size {
			t.Fatalf("%s: saved %d tokens, %d bytes, %v, %v", name, n, size, err, e)
		}
		if _, _, err := e.SaveSlot(ctx, 1, "you", "b"); !errors.Is(err, ErrSlotEmpty) {
			t.Errorf("the text of another client is saved: %v", err)
		}
		second := Request{Tokens: slices.Concat(first.Tokens, ids(ev.Tokens), randomPrompt(2, 5)), MaxTokens: 12,
			IgnoreEOG: true, Salt: "me", Spec: fixed}
		want := ids(generate(t, e, second).Tokens)
		if n, err := e.EraseSlot(ctx, 1); err != nil || n == 0 {
			t.Errorf("erased %d tokens, %v", n, err)
		}
		stop(t, e)

		e = start(t, name, cfg)
		if _, _, err := e.RestoreSlot(ctx, 0, "you", "a"); !errors.Is(err, ErrNotSaved) {
			t.Errorf("the file of another client: %v", err)
		}
		for range 2 { // from the file, then from memory
			if k, read, err := e.RestoreSlot(ctx, 0, "me", "a"); err != nil || k != n || read != size {
				t.Errorf("%s: restored %d tokens, %d bytes, %v; want %d, %d", name, k, read, err, n, size)
			}
		}
		if got := generate(t, e, second); got.Result.Cached != n || !slices.Equal(ids(got.Tokens), want) {
			t.Errorf("%s: %d tokens cached after a restart, want %d; %v, want %v", name, got.Result.Cached, n,
				ids(got.Tokens), want)
		}
		// A text that was restored is what the slot remembers.
		if k, _, err := e.RestoreSlot(ctx, 1, "me", "a"); err != nil || k != n {
			t.Errorf("restored %d tokens, %v", k, err)
		}
		if k, err := e.EraseSlot(ctx, 1); err != nil || k != n {
			t.Errorf("erased %d tokens, %v; want %d", k, err, n)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%v are in the folder", left)
		}
		stop(t, e)
	}
}

// TestSlotFileRefusals: names that are not those of files in the folder, files that are not of slots, and a folder that
// is full. Nothing is written, deleted or left behind.
func TestSlotFileRefusals(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slots")
	e := start(t, "qwen3", Config{Parallel: 2, Context: 256, SlotDir: dir, CacheDiskBytes: 2 << 20})
	zero := 0
	put := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	generate(t, e, Request{Tokens: randomPrompt(1, 40), Slot: &zero, PromptOnly: true})
	save := func(name string) (int64, error) {
		_, size, err := e.SaveSlot(t.Context(), 0, "", name)
		return size, err
	}
	restore := func(name string) error {
		_, _, err := e.RestoreSlot(t.Context(), 0, "", name)
		return err
	}
	refused := func(what string, err error) {
		t.Helper()
		if bad := (*SlotFileError)(nil); !errors.As(err, &bad) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../a", "a/b", `a\b`, "/a", "a:b", "a\x00", ".a",
		strings.Repeat("a", 256)} {
		_, err := save(name)
		refused("save "+name, err)
		refused("restore "+name, restore(name))
	}
	var wrong *SlotError
	if _, _, err := e.SaveSlot(t.Context(), 2, "", "a"); !errors.As(err, &wrong) {
		t.Errorf("a slot that is not there: %v", err)
	}
	if err := restore("a"); !errors.Is(err, ErrNotSaved) {
		t.Errorf("a file that is not there: %v", err)
	}
	size, err := save("good")
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "good"))
	if err != nil {
		t.Fatal(err)
	}

	// What is damaged is refused and stays.
	e.EraseSlot(t.Context(), 0)
	other := slices.Clone(good)
	other[12] ^= 1 // the fingerprint
	last := slices.Clone(good)
	last[len(last)-1] ^= 1
	for what, b := range map[string][]byte{"model": other, "pages": last, "short": good[:len(good)-1], "head": good[:20],
		"empty": nil} {
		put(what, b)
		refused(what, restore(what))
		if left, err := os.ReadFile(filepath.Join(dir, what)); err != nil || len(left) != len(b) {
			t.Errorf("%s: the file changed: %v", what, err)
		}
		os.Remove(filepath.Join(dir, what))
	}
	if err := restore("good"); err != nil {
		t.Fatal(err)
	}

	// What is not of a slot, or another client's, is not written over.
	put("notes", []byte("my notes"))
	put("short", []byte("x"))
	theirs := slices.Clone(good)
	theirs[12+32] ^= 1
	put("theirs", theirs)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"notes", "short", "theirs", "folder"} {
		_, err := save(name)
		refused(name, err)
		if err := restore(name); err == nil {
			t.Errorf("%s is restored", name)
		}
	}

	// What is left of a process that was killed goes; what is being written stays, and so does what others wrote; the
	// rest counts.
	const old, young, foreign = tempPrefix + "old" + tempExt, tempPrefix + "new" + tempExt, ".other" + tempExt
	long := time.Now().Add(-2 * tempAge)
	for _, name := range []string{old, young, foreign} {
		put(name, nil)
		if err := os.Chtimes(filepath.Join(dir, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	put(young, nil)
	rest := 2<<20 - 2*size - int64(len("my notes")+len("x"))
	put("filler", make([]byte, rest))
	if _, err := save("good"); err != nil {
		t.Errorf("a folder that is just full: %v", err)
	}
	put("filler", make([]byte, rest+1))
	_, err = save("good")
	refused("a full folder", err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	os.Remove(filepath.Join(dir, "filler"))
	if _, _, err := e.SaveSlot(ended, 0, "", "left"); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left: %v", err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, f := range names {
		if strings.HasSuffix(f.Name(), tempExt) {
			left = append(left, f.Name())
		}
	}
	if !slices.Equal(left, []string{foreign, young}) {
		t.Errorf("temporary files %q are left, want those of others and the young one", left)
	}
	e.EraseSlot(t.Context(), 0)
	if used := usedBytes(e); used != 0 {
		t.Errorf("%d bytes are used when all is erased", used)
	}
	stop(t, e)
	if _, err := save("a"); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed engine: %v", err)
	}
	for _, cfg := range []Config{{CacheBytes: -1, SlotDir: dir, Context: 64}, {Context: 64}} {
		if _, _, err := start(t, "qwen3", cfg).SaveSlot(t.Context(), 0, "", "a"); !errors.Is(err, ErrUnsupported) {
			t.Errorf("without a cache or a folder: %v", err)
		}
	}
}

// usedBytes is what the sequences of an engine take, seen by its own goroutine.
func usedBytes(e *Engine) (n int) {
	e.do(context.Background(), 0, func(l *loop) error {
		for _, m := range append([]*cache.Memory{l.cache.target}, l.drafters...) {
			if m != nil {
				n += m.UsedBytes()
			}
		}
		return nil
	})
	return n
}
