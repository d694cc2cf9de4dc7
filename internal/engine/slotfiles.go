package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"strobe/internal/cache"
	"strobe/internal/platform"
)

// A slot file is a stored prefix (see disk.go) under a name that a client chose, in Config.SlotDir. It belongs to the
// client whose salt it has: no other one restores it or saves over it. It is never deleted here; when the folder has
// Config.CacheDiskBytes, nothing more is saved.

// SlotFileError reports a name that cannot be used, or a file that cannot.
type SlotFileError struct{ Name, Reason string }

func (e *SlotFileError) Error() string { return fmt.Sprintf("slot file %q: %s", e.Name, e.Reason) }

// slotFile returns where a slot file lies, how it is written and read, and the size of the prefix cache. Names with a
// dot in front are those of temporary files.
func (e *Engine) slotFile(ctx context.Context, slot int, name string) (path string, d *disk, limit int64, err error) {
	if e.cfg.SlotDir == "" {
		return "", nil, 0, fmt.Errorf("%w: there is no folder for slot files", ErrUnsupported)
	}
	odd := func(r rune) bool { return r < ' ' || strings.ContainsRune(`/\:*?"<>|`, r) }
	if !filepath.IsLocal(name) || strings.ContainsFunc(name, odd) || name[0] == '.' || len(name) > 255 {
		return "", nil, 0, &SlotFileError{name, "the name must be that of a file, without a folder or a dot in front"}
	}
	err = e.do(ctx, slot, func(l *loop) error {
		d, limit = l.slotAt, l.cache.limit
		return nil
	})
	return filepath.Join(e.cfg.SlotDir, name), d, limit, err
}

// SaveSlot writes what a slot remembers to a file and returns how many tokens and bytes that are. It is written a piece
// at a time, between the steps of the loop.
func (e *Engine) SaveSlot(ctx context.Context, slot int, owner, name string) (tokens int, bytes int64, err error) {
	// Every task is waited for, so that this goroutine and the loop's never have x at the same time. If the engine ends
	// meanwhile, the loop closes x.
	wait := context.WithoutCancel(ctx)
	path, d, _, err := e.slotFile(wait, slot, name)
	if err != nil {
		return 0, 0, err
	}
	used, err := d.slotRoom(path, name, saltOf(owner))
	if err != nil {
		return 0, 0, err
	}
	var x *entry // a copy: the cache may drop its own
	var w *write
	err = e.do(wait, slot, func(l *loop) error {
		t := l.texts[slot]
		found, n := l.remembered(t)
		if found == nil || t.salt != saltOf(owner) {
			return ErrSlotEmpty
		}
		seq, drafts, err := l.cache.take(found, n, found.drafts.sources())
		if err != nil {
			return err
		}
		x = &entry{text: text{t.salt, t.tokens[:n]}, seq: seq, drafts: drafts}
		if w, err = d.begin(x); err == nil && (w == nil || used+w.out.size > d.limit) {
			err = &SlotFileError{name, fmt.Sprintf("the folder may have %d bytes (--cache-disk)", d.limit)}
		}
		if x.writing = w; err != nil {
			x.close()
			return err
		}
		w.end = func() {}
		l.copies = append(l.copies, x)
		return nil
	})
	for done := false; err == nil && !done; {
		err = e.do(wait, slot, func(l *loop) (err error) {
			if done, err = w.more(saveBytes); err == nil && !done {
				err = ctx.Err()
			}
			if done && err == nil {
				x.writing = nil // complete
			}
			if done || err != nil {
				l.copies = slices.DeleteFunc(l.copies, func(y *entry) bool { return y == x })
				x.close()
			}
			return err
		})
	}
	if err != nil {
		return 0, 0, err
	}
	return len(x.tokens), w.out.size, place(w.f, path)
}

// slotRoom returns how much the other files in the folder take, if a client may write to path.
func (d *disk) slotRoom(path, name string, owner salt) (used int64, err error) {
	switch old, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	case !old.Mode().IsRegular():
		return 0, &SlotFileError{name, "there is something of this name that is not a file"}
	default:
		f, err := platform.OpenRegular(path)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		head := make([]byte, len(prefixMagic)+4+len(d.model)+len(owner))
		io.ReadFull(f, head) // a short file has no magic, or the zeros of a client without a key
		if string(head[:len(prefixMagic)]) != prefixMagic {
			return 0, &SlotFileError{name, "there is a file of this name that is not one of a slot"}
		}
		if salt(head[len(head)-len(owner):]) != owner {
			return 0, &SlotFileError{name, "there is a file of this name already"}
		}
	}
	files, err := os.ReadDir(d.dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		at := filepath.Join(d.dir, f.Name())
		info, err := f.Info()
		switch {
		case err != nil || at == path || !info.Mode().IsRegular():
		case strings.HasPrefix(f.Name(), tempPrefix) && filepath.Ext(at) == tempExt && time.Since(info.ModTime()) > tempAge:
			os.Remove(at) // others' files stay: the folder may be any
		default:
			used += info.Size()
		}
	}
	return used, nil
}

// RestoreSlot brings what was saved under a name into the prefix cache, and returns how many tokens of it a request
// will find and how many bytes the file has.
func (e *Engine) RestoreSlot(ctx context.Context, slot int, owner, name string) (tokens int, bytes int64, err error) {
	wait := context.WithoutCancel(ctx)
	path, d, limit, err := e.slotFile(wait, slot, name)
	if err != nil {
		return 0, 0, err
	}
	file, err := d.readHeader(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && file.salt != saltOf(owner):
		return 0, 0, ErrNotSaved
	case errors.Is(err, errDamaged):
		return 0, 0, &SlotFileError{name, err.Error()}
	case err != nil: // it names the folder, which is no business of a client
		d.log.Warn("slot file not read", "file", path, "error", err)
		return 0, 0, &SlotFileError{name, "it cannot be read as a file"}
	}
	if file.size > limit {
		return 0, 0, &SlotFileError{name, fmt.Sprintf("it has %d bytes; the prefix cache may have %d (--cache-ram)",
			file.size, limit)}
	}
	loaded, out := make(chan error, 1), make(chan int, 1)
	r := &restore{file: file}
	d.readAhead(r)
	err = e.do(wait, slot, func(l *loop) error {
		r.done = func(err error) {
			if err == nil {
				x, n := l.remembered(file.text)
				if x != nil {
					l.cache.touch(x)
				}
				l.texts[slot] = text{file.salt, file.tokens[:n]}
				out <- n
			}
			loaded <- err
		}
		if _, n := l.remembered(file.text); n == len(file.tokens) {
			l.drop(r)
			r.done(nil) // nothing is missing
			return nil
		}
		l.restores = append(l.restores, r) // the loop loads it, a piece at a time
		return nil
	})
	if err != nil {
		if r.f != nil {
			r.f.Close()
		}
		return 0, 0, err
	}
	select {
	case err = <-loaded:
	case <-ctx.Done():
		err = ctx.Err()
	case <-e.done:
		err = ErrClosed
	}
	if errors.Is(err, cache.ErrCorrupt) {
		err = &SlotFileError{name, err.Error()}
	}
	if err != nil {
		return 0, 0, err
	}
	return <-out, file.size, nil
}
