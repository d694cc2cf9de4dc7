package engine

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"strobe/internal/cache"
	"strobe/internal/platform"
)

// A stored prefix is a file DIR/MODEL/NAME.prefix, where MODEL is the fingerprint of the model and NAME
// a hash of the tokens and their salt. Little endian:
//
//	magic, version      "STRBPFX\n", 4
//	model               32 characters
//	salt                16 bytes
//	sizes               of the target's part and of the drafters' together, 8 bytes each
//	sources             a bit for each that has a part, 8 bytes
//	tokens              count, then 4 bytes each
//	checksum            of the above
//	parts               as package cache stores sequences, with checksums of their own
//
// A file is written under a temporary name, synced and renamed, so that whatever has the right name is
// complete unless the disk damaged it. Damage is found by size when the folder is read, and
// by checksum when an entry is used.
const (
	prefixMagic   = "STRBPFX\n"
	prefixVersion = 4
	prefixExt     = ".prefix"
	tempPrefix    = ".strobe-"
	tempExt       = ".tmp"
	// Temporary files older than this are left over from a process that was killed.
	tempAge = 10 * time.Minute
	// More tokens than any context has: it bounds what the header of a file makes a reader allocate.
	maxTokens = 1 << 24
)

var errDamaged = errors.New("damaged")

// disk is the folder of stored prefixes of one model. Its index belongs to the loop's goroutine.
type disk struct {
	root, dir string
	model     string
	limit     int64
	sources   set              // that may have parts
	cuttable  func(n int) bool // a file of n tokens serves any beginning of them
	log       *slog.Logger
	files     []*diskFile
	stats     *CacheStats

	quit    atomic.Bool    // the engine closes
	wg      sync.WaitGroup // files being finished or read ahead
	mu      sync.Mutex
	written []*diskFile // finished since the last look
	removed []string    // deleted since then
	wake    func()
}

// diskFile is an indexed file.
type diskFile struct {
	path string
	text
	drafts set
	head   int64 // length of the header
	size   int64
}

// openDisk reads the index of a folder, making the folder when it is missing. Files that cannot be
// entries are deleted.
func openDisk(d *disk) (*disk, error) {
	d.dir = filepath.Join(d.root, d.model)
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range names {
		path := filepath.Join(d.dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case tempExt:
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > tempAge {
				os.Remove(path)
			}
		case prefixExt:
			f, err := d.readHeader(path)
			if err != nil {
				d.discard(&diskFile{path: path}, err)
				continue
			}
			d.files = append(d.files, f)
		}
	}
	d.prune()
	d.collect()
	return d, nil
}

// discard deletes a file that cannot be used.
func (d *disk) discard(f *diskFile, err error) {
	d.files = slices.DeleteFunc(d.files, func(x *diskFile) bool { return x == f })
	if errors.Is(err, fs.ErrNotExist) {
		return // another process made room
	}
	d.stats.DiskCorrupted++
	d.log.Warn("prefix cache: file dropped", "file", f.path, "error", err)
	os.Remove(f.path)
}

// fileName is where an entry is stored.
func (d *disk) fileName(t text, drafts set) string {
	h := sha256.New()
	fmt.Fprintln(h, drafts)
	h.Write(t.salt[:])
	binary.Write(h, binary.LittleEndian, t.tokens)
	return filepath.Join(d.dir, hex.EncodeToString(h.Sum(nil)[:16])+prefixExt)
}

// header is the beginning of an entry's file.
func (d *disk) header(t text, target, drafters int64, of set) []byte {
	var b bytes.Buffer
	b.WriteString(prefixMagic)
	le := binary.LittleEndian
	binary.Write(&b, le, uint32(prefixVersion))
	b.WriteString(d.model)
	b.Write(t.salt[:])
	binary.Write(&b, le, [3]int64{target, drafters, int64(of)})
	binary.Write(&b, le, uint32(len(t.tokens)))
	binary.Write(&b, le, t.tokens)
	return le.AppendUint32(b.Bytes(), crc32.ChecksumIEEE(b.Bytes()))
}

// readHeader checks the beginning and the size of a file.
func (d *disk) readHeader(path string) (*diskFile, error) {
	f, err := platform.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	fixed := len(prefixMagic) + 4 + len(d.model) + len(salt{}) + 24 + 4
	b := make([]byte, fixed)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("%w: %d bytes", errDamaged, info.Size())
	}
	le := binary.LittleEndian
	at := len(prefixMagic)
	if string(b[:at]) != prefixMagic || le.Uint32(b[at:]) != prefixVersion {
		return nil, fmt.Errorf("%w: not a prefix of version %d", errDamaged, prefixVersion)
	}
	at += 4
	if string(b[at:at+len(d.model)]) != d.model {
		return nil, fmt.Errorf("%w: made by another model", errDamaged)
	}
	at += len(d.model)
	owner := salt(b[at : at+len(salt{})])
	at += len(owner)
	target, drafters := int64(le.Uint64(b[at:])), int64(le.Uint64(b[at+8:]))
	of, n := set(le.Uint64(b[at+16:])), int64(le.Uint32(b[at+24:]))
	head := int64(fixed) + 4*n + 4
	if target < 0 || drafters < 0 || target > info.Size() || drafters > info.Size() ||
		head+target+drafters != info.Size() ||
		n == 0 || n > maxTokens || !d.sources.all(of) {
		return nil, fmt.Errorf("%w: %d bytes do not hold what the header says", errDamaged, info.Size())
	}
	b = append(b, make([]byte, 4*n+4)...)
	if _, err := io.ReadFull(f, b[fixed:]); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b[:head-4]) != le.Uint32(b[head-4:]) {
		return nil, fmt.Errorf("%w: checksum of the header differs", errDamaged)
	}
	out := &diskFile{path: path, drafts: of, head: head, size: info.Size(), text: text{owner, make([]int32, n)}}
	for i := range out.tokens {
		out.tokens[i] = int32(le.Uint32(b[fixed+4*i:]))
	}
	return out, nil
}

// find returns the file that saves the most of a prompt that wants contexts, and how many of its tokens it gives. A
// file is used whole unless memory can be cut.
func (d *disk) find(prompt text, want set) (best *diskFile, n int) {
	most := 0
	for _, f := range d.files {
		k := beforeImage(prompt.tokens, min(f.common(prompt), len(prompt.tokens)-1))
		if saves := f.drafts.worth(k, want); saves > most && (k == len(f.tokens) || d.cuttable(len(f.tokens))) {
			best, n, most = f, k, saves
		}
	}
	return best, n
}

// has reports whether a file serves everything an entry does.
func (d *disk) has(e *entry) bool {
	return slices.ContainsFunc(d.files, func(f *diskFile) bool {
		n := f.common(e.text)
		return n == len(e.tokens) && (n == len(f.tokens) || d.cuttable(len(f.tokens))) &&
			f.drafts.all(e.drafts.sources())
	})
}

// errBusy interrupts the writing of a file because there is better to do.
var errBusy = errors.New("interrupted by work")

// pieceBytes is how much of a file is written at a time.
const pieceBytes = 1 << 20

// save writes an entry. It runs on the loop's goroutine, piece by piece, and gives up when busy
// reports true.
func (d *disk) save(e *entry, busy func() bool) error {
	w, err := d.begin(e)
	if w == nil || err != nil {
		return err
	}
	for {
		if busy() {
			w.abort()
			return errBusy
		}
		if done, err := w.more(pieceBytes); done {
			return err
		}
	}
}

// write is a file being written, between the steps of the loop. Only one of the loop's goroutine and of the one that
// reads the entry runs at a time, so both may use the device.
type write struct {
	f    *os.File
	out  *diskFile
	next func() ([]byte, bool)
	stop func()
	err  error  // of reading the entry
	end  func() // what happens when all is written
}

// begin starts to write an entry. It returns nil for one that is too large for the folder.
func (d *disk) begin(e *entry) (*write, error) {
	target, drafters, of := e.seq.SavedBytes(), e.drafts.savedBytes(), e.drafts.sources()
	head := d.header(e.text, target, drafters, of)
	out := &diskFile{
		path: d.fileName(e.text, of), text: e.text, drafts: of,
		head: int64(len(head)), size: int64(len(head)) + target + drafters,
	}
	if out.size > d.limit {
		return nil, nil
	}
	f, err := os.CreateTemp(d.dir, tempPrefix+"*"+tempExt)
	if err != nil {
		return nil, err
	}
	w := &write{f: f, out: out, end: func() { d.wg.Go(func() { d.finish(f, out) }) }}
	w.next, w.stop = iter.Pull(func(yield func([]byte) bool) {
		b := bufio.NewWriterSize(yielder(yield), pieceBytes)
		_, w.err = b.Write(head)
		if w.err == nil {
			_, w.err = e.seq.WriteTo(b)
		}
		e.drafts.each(func(s *cache.Seq) {
			if w.err == nil {
				_, w.err = s.WriteTo(b)
			}
		})
		if w.err == nil {
			w.err = b.Flush()
		}
	})
	return w, nil
}

// yielder hands on what is written to it.
type yielder func([]byte) bool

func (y yielder) Write(b []byte) (int, error) {
	if !y(b) {
		return 0, errBusy
	}
	return len(b), nil
}

// more writes about n bytes and reports whether that was the end. Syncing and renaming happen in the background.
func (w *write) more(n int) (done bool, err error) {
	for written := 0; written < n; {
		b, ok := w.next()
		if !ok {
			if w.err != nil {
				w.abort()
				return true, w.err
			}
			w.end()
			return true, nil
		}
		if _, err := w.f.Write(b); err != nil {
			w.abort()
			return true, err
		}
		written += len(b)
	}
	return false, nil
}

// abort gives the file up.
func (w *write) abort() {
	w.stop()
	w.f.Close()
	os.Remove(w.f.Name())
}

// place makes a written file permanent under its name.
func place(f *os.File, path string) error {
	err := f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	// So that the name survives a power failure; not every system can sync a folder.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		dir.Sync()
		dir.Close()
	}
	return nil
}

// finish makes a written file an entry of the folder.
func (d *disk) finish(f *os.File, out *diskFile) {
	if err := place(f, out.path); err != nil {
		d.log.Warn("prefix cache: file not written", "file", out.path, "error", err)
		return
	}
	d.mu.Lock()
	d.written = append(d.written, out)
	d.mu.Unlock()
	d.prune()
	d.wake()
}

// prune deletes the files that were not used for the longest time, of all models, until the limit
// is met.
func (d *disk) prune() {
	type file struct {
		path string
		size int64
		used time.Time
	}
	var all []file
	total := int64(0)
	filepath.WalkDir(d.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.HasSuffix(path, prefixExt) {
			return nil
		}
		if info, err := e.Info(); err == nil {
			all = append(all, file{path, info.Size(), info.ModTime()})
			total += info.Size()
		}
		return nil
	})
	slices.SortFunc(all, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range all {
		if total <= d.limit {
			break
		}
		// One that is gone already makes room, too: others prune the same folder.
		if err := os.Remove(f.path); err == nil || errors.Is(err, fs.ErrNotExist) {
			total -= f.size
			d.mu.Lock()
			d.removed = append(d.removed, f.path)
			d.mu.Unlock()
		}
	}
}

// collect updates the index with what happened in the background.
func (d *disk) collect() {
	d.mu.Lock()
	written, removed := d.written, d.removed
	d.written, d.removed = nil, nil
	d.mu.Unlock()
	for _, f := range written {
		d.files = slices.DeleteFunc(d.files, func(x *diskFile) bool {
			if x.path == f.path {
				return true
			}
			old := d.cuttable(len(f.tokens)) && x.common(f.text) == len(x.tokens) && f.drafts.all(x.drafts)
			if old {
				os.Remove(x.path)
			}
			return old
		})
		d.files = append(d.files, f)
		d.stats.DiskWritten++
	}
	d.files = slices.DeleteFunc(d.files, func(f *diskFile) bool { return slices.Contains(removed, f.path) })
	d.stats.DiskEntries, d.stats.DiskBytes = len(d.files), 0
	for _, f := range d.files {
		d.stats.DiskBytes += f.size
	}
}

// close waits for the background work.
func (d *disk) close() {
	d.quit.Store(true)
	d.wg.Wait()
	d.collect()
}
