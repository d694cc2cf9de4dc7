//go:build unix

package engine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestOddFilesInTheCacheFolder: pipes, devices, folders and links to nowhere that are named like stored prefixes, when
// the folder is read or later, cost a line in the log. Nothing waits for them, and requests get their text.
func TestOddFilesInTheCacheFolder(t *testing.T) {
	req := Request{Tokens: randomPrompt(1, 100), MaxTokens: 5, IgnoreEOG: true}
	for what, put := range map[string]func(path string) error{
		"a pipe":            func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":          func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder":          func(path string) error { return os.MkdirAll(filepath.Join(path, "inside"), 0o700) },
		"a link to nowhere": func(path string) error { return os.Symlink("nowhere", path) },
	} {
		dir := t.TempDir()
		first := newByHand(t, what, loadGolden(t, "qwen3", false), Config{CacheDir: dir})
		s := &sent{g: submit(t, first.e, req), want: plain(t, "qwen3", req)}
		first.sent = []*sent{s}
		first.end()
		stored := prefixFiles(t, dir)
		if len(stored) == 0 {
			t.Fatal("nothing was saved")
		}
		// One beside what is stored, before the folder is read.
		odd := filepath.Join(filepath.Dir(stored[0]), strings.Repeat("0", 32)+prefixExt)
		if err := put(odd); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		h := newByHand(t, what, loadGolden(t, "qwen3", false), Config{CacheDir: dir, Parallel: 1,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		h.past = first.sent
		if n := len(h.l.disk.files); n != len(stored) {
			t.Errorf("%s: %d files are known, want %d", what, n, len(stored))
		}
		if link := what == "a link to nowhere"; !link && !strings.Contains(log.String(), filepath.Base(odd)) {
			t.Errorf("%s: the log does not name it: %s", what, &log)
		}
		// And others in the place of what is stored, after it was read.
		log.Reset()
		for _, f := range stored {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
			if err := put(f); err != nil {
				t.Fatal(err)
			}
		}
		again := &sent{g: submit(t, h.e, req), want: s.want}
		h.sent = []*sent{again}
		h.until("the request ends", func() bool { return again.ended })
		if again.ev.Result.Cached != 0 || !slices.Equal(ids(again.ev.Tokens), s.want) {
			t.Errorf("%s: %d tokens were cached, or another text", what, again.ev.Result.Cached)
		}
		if link := what == "a link to nowhere"; !link && !strings.Contains(log.String(), filepath.Base(stored[0])) {
			t.Errorf("%s in the place of a file: the log does not name it: %s", what, &log)
		}
		// The folder of the cache is one of them: there is a line and no cache on disk.
		log.Reset()
		whole := filepath.Join(t.TempDir(), "cache")
		if err := put(whole); err != nil {
			t.Fatal(err)
		}
		if what == "a folder" {
			os.RemoveAll(odd)
			for _, f := range stored {
				os.RemoveAll(f)
			}
		}
		h.end()
		if what != "a folder" {
			h = newByHand(t, what, loadGolden(t, "qwen3", false), Config{CacheDir: whole,
				Log: slog.New(slog.NewTextHandler(&log, nil))})
			if h.dir = ""; h.l.disk != nil || !strings.Contains(log.String(), whole) {
				t.Errorf("%s as the folder: the log does not name it: %s", what, &log)
			}
			h.end()
		}
	}
}

// TestOddSlotFiles: pipes, devices and links to them are neither restored nor saved over, and nothing waits for them.
func TestOddSlotFiles(t *testing.T) {
	dir := t.TempDir()
	e := start(t, "qwen3", Config{Context: 64, Parallel: 1, SlotDir: dir})
	generate(t, e, Request{Tokens: randomPrompt(1, 20), PromptOnly: true})
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(dir, "device"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "device"} {
		_, _, saved := e.SaveSlot(t.Context(), 0, "", name)
		_, _, restored := e.RestoreSlot(t.Context(), 0, "", name)
		if bad := (*SlotFileError)(nil); !errors.As(saved, &bad) || !errors.As(restored, &bad) {
			t.Errorf("%s: save %v, restore %v", name, saved, restored)
		}
		if st, err := os.Lstat(filepath.Join(dir, name)); err != nil || st.Mode().IsRegular() {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
}
