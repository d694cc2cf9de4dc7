package engine

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"strobe/internal/cache"
	"strobe/internal/platform"
)

// restoreBytes is how much of a stored prefix is loaded between two steps, so that a long one does not
// hold up other streams.
const restoreBytes = 32 << 20

// diskGain is how many more tokens than memory a file must give to be worth loading.
const diskGain = 32

// restore is a stored prefix on its way into memory. Jobs that need it wait for it.
type restore struct {
	file  *diskFile
	f     *os.File
	err   error
	ready bool // read ahead; guarded by disk.mu until set

	done func(error) // of the file of a slot: what happens when it is loaded, or cannot be

	in     *bufio.Reader
	loader *cache.Loader // of the part being loaded
	seq    *cache.Seq    // the target's part
	drafts contexts      // the drafters' parts so far
	part   int           // source whose part is being loaded; -1 for the target
}

// wanted returns the restore a job should wait for, nil if memory serves it as well.
func (l *loop) wanted(j *job) *restore {
	req := &j.g.req
	if l.disk == nil || req.NoCache {
		return nil
	}
	need := l.needs(req.Spec)
	f, n := l.disk.find(j.g.text(), need)
	if f == nil || f.size > l.cache.limit {
		return nil
	}
	if _, have := l.cache.find(j.g.text(), need); n < have+diskGain {
		return nil
	}
	for _, r := range l.restores {
		if r.file == f {
			return r
		}
	}
	r := &restore{file: f}
	l.restores = append(l.restores, r)
	l.disk.wg.Go(func() { l.disk.readAhead(r) })
	return r
}

// readAhead brings a file into the system's cache, so that the loop does not wait for the disk.
func (d *disk) readAhead(r *restore) {
	f, err := platform.OpenRegular(r.file.path)
	if err == nil {
		buf := make([]byte, 1<<20)
		for err == nil && !d.quit.Load() {
			_, err = f.Read(buf)
		}
		if err == io.EOF {
			_, err = f.Seek(r.file.head, io.SeekStart)
		}
		// The time of last use is what prune goes by.
		now := time.Now()
		os.Chtimes(r.file.path, now, now)
	}
	d.mu.Lock()
	r.f, r.err, r.ready = f, err, true
	d.mu.Unlock()
	d.wake()
}

func (d *disk) isAhead(r *restore) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.ready
}

// restoreStep loads a piece of every prefix that is ready and lets those go on that waited for a
// complete one. It reports whether it did anything.
func (l *loop) restoreStep() bool {
	busy := false
	for _, r := range slices.Clone(l.restores) {
		if r.done == nil && !l.disk.isAhead(r) {
			continue
		}
		busy = true
		done, err := l.load(r)
		if !done && err == nil {
			continue
		}
		l.drop(r)
		switch {
		case r.done != nil:
			r.done(err)
		case err == nil:
			l.cache.stats.DiskHits++
		case errors.Is(err, cache.ErrCorrupt):
			l.disk.discard(r.file, err)
		default:
			l.disk.files = slices.DeleteFunc(l.disk.files, func(f *diskFile) bool { return f == r.file })
			if !os.IsNotExist(err) {
				l.e.cfg.Log.Warn("prefix cache: file not read", "file", r.file.path, "error", err)
			}
		}
		for _, j := range slices.Clone(l.jobs) {
			if j.loading == r {
				j.loading = nil
				l.begin(j)
			}
		}
	}
	return busy
}

// load reads a piece of a prefix; when it is complete, it becomes an entry of the cache.
func (l *loop) load(r *restore) (done bool, err error) {
	if r.err != nil {
		return false, r.err
	}
	if r.in == nil {
		r.in, r.part, r.drafts = bufio.NewReaderSize(r.f, 1<<20), -1, make(contexts, len(l.drafters))
		if r.loader, err = l.cache.target.Load(r.in); err != nil {
			return false, err
		}
	}
	if done, err = r.loader.More(restoreBytes); !done || err != nil {
		return false, err
	}
	s := r.loader.Seq()
	if s.Len() != len(r.file.tokens) {
		s.Close()
		return false, cache.ErrCorrupt
	}
	if r.part < 0 {
		r.seq = s
	} else {
		r.drafts[r.part] = s
	}
	for r.part++; r.part < len(l.drafters); r.part++ {
		if r.file.drafts.has(r.part) {
			r.loader, err = l.drafters[r.part].Load(r.in)
			return false, err
		}
	}
	l.cache.add(&entry{text: r.file.text, seq: r.seq, drafts: r.drafts, saved: true}, 0)
	r.seq, r.drafts = nil, nil
	return true, nil
}

// drop forgets a restore and what it holds.
func (l *loop) drop(r *restore) {
	l.restores = slices.DeleteFunc(l.restores, func(x *restore) bool { return x == r })
	if r.loader != nil {
		r.loader.Close()
	}
	if r.seq != nil {
		r.seq.Close()
	}
	r.drafts.close()
	if r.f != nil {
		r.f.Close()
	}
}

// unsaved returns the newest entry that is worth a file and has none.
func (l *loop) unsaved() *entry {
	if l.disk == nil {
		return nil
	}
	l.disk.collect()
	for _, e := range slices.Backward(l.cache.entries) {
		if !l.stored(e) {
			return e
		}
	}
	return nil
}

// stored reports whether an entry needs no file: it has one, or is not worth one.
func (l *loop) stored(e *entry) bool {
	e.saved = e.saved || len(e.tokens) < l.e.cfg.CacheMinTokens || l.disk.has(e)
	return e.saved
}

// saveBytes is how much of an entry is written between two steps, so that a long one does not hold up streams.
const saveBytes = 16 << 20

// saveStep writes a piece of the entries that are to be on disk soon. It reports whether there was any.
func (l *loop) saveStep() bool {
	for len(l.soon) > 0 {
		e := l.soon[0]
		if e.writing == nil {
			var err error
			if slices.Contains(l.cache.entries, e) && !l.stored(e) {
				e.writing, err = l.disk.begin(e)
			}
			if e.writing == nil {
				l.soon = l.soon[1:]
				l.wrote(e, err)
				continue
			}
		}
		if done, err := e.writing.more(saveBytes); done {
			e.writing, l.soon = nil, l.soon[1:]
			l.wrote(e, err)
		}
		return true
	}
	return false
}

// wrote notes that an entry has a file now, or will not get one.
func (l *loop) wrote(e *entry, err error) {
	e.saved = true
	if err != nil {
		l.e.cfg.Log.Warn("prefix cache: entry not saved", "tokens", len(e.tokens), "error", err)
	}
}

// save writes an entry unless busy.
func (l *loop) save(e *entry, busy func() bool) {
	err := l.disk.save(e, busy)
	if err == errBusy {
		return
	}
	l.wrote(e, err)
}

// saveAll writes what has no file yet, until the deadline of Close.
func (l *loop) saveAll() {
	aborted := func() bool {
		l.e.mu.Lock()
		defer l.e.mu.Unlock()
		return l.e.abort
	}
	for !aborted() && l.saveStep() {
	}
	for e := l.unsaved(); e != nil && !aborted(); e = l.unsaved() {
		l.save(e, aborted)
	}
}
