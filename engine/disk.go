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
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A stored prefix is a file DIR/MODEL/NAME.prefix, where MODEL is the fingerprint of the model and NAME
// a hash of the tokens. Little endian:
//
//	magic, version      "STRBPFX\n", 1
//	model               32 characters
//	sizes               of the target's and the drafter's part, 8 bytes each; 0 for no drafter
//	tokens              count, then 4 bytes each
//	checksum            of the above
//	parts               as package cache stores sequences, with checksums of their own
//
// A file is written under a temporary name, synced and renamed, so that whatever has the right name is
// complete unless the disk damaged it. Damage is found by size when the folder is read, and
// by checksum when an entry is used.
const (
	prefixMagic   = "STRBPFX\n"
	prefixVersion = 1
	prefixExt     = ".prefix"
	tempExt       = ".tmp"
	// Temporary files older than this are left over from a process that was killed.
	tempAge = 10 * time.Minute
)

var errDamaged = errors.New("damaged")

// disk is the folder of stored prefixes of one model. Its index belongs to the loop's goroutine.
type disk struct {
	root, dir string
	model     string
	limit     int64
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
	path   string
	tokens []int32
	draft  bool
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
func (d *disk) fileName(tokens []int32, draft bool) string {
	h := sha256.New()
	fmt.Fprintln(h, draft)
	binary.Write(h, binary.LittleEndian, tokens)
	return filepath.Join(d.dir, hex.EncodeToString(h.Sum(nil)[:16])+prefixExt)
}

// header is the beginning of an entry's file.
func (d *disk) header(tokens []int32, target, drafter int64) []byte {
	var b bytes.Buffer
	b.WriteString(prefixMagic)
	le := binary.LittleEndian
	binary.Write(&b, le, uint32(prefixVersion))
	b.WriteString(d.model)
	binary.Write(&b, le, [2]int64{target, drafter})
	binary.Write(&b, le, uint32(len(tokens)))
	binary.Write(&b, le, tokens)
	return le.AppendUint32(b.Bytes(), crc32.ChecksumIEEE(b.Bytes()))
}

// readHeader checks the beginning and the size of a file.
func (d *disk) readHeader(path string) (*diskFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	fixed := len(prefixMagic) + 4 + len(d.model) + 16 + 4
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
	target, drafter, n := int64(le.Uint64(b[at:])), int64(le.Uint64(b[at+8:])), int64(le.Uint32(b[at+16:]))
	head := int64(fixed) + 4*n + 4
	if target < 0 || drafter < 0 || target > info.Size() || drafter > info.Size() || head+target+drafter != info.Size() || n == 0 {
		return nil, fmt.Errorf("%w: %d bytes do not hold what the header says", errDamaged, info.Size())
	}
	b = append(b, make([]byte, 4*n+4)...)
	if _, err := io.ReadFull(f, b[fixed:]); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b[:head-4]) != le.Uint32(b[head-4:]) {
		return nil, fmt.Errorf("%w: checksum of the header differs", errDamaged)
	}
	out := &diskFile{path: path, draft: drafter > 0, head: head, size: info.Size(), tokens: make([]int32, n)}
	for i := range out.tokens {
		out.tokens[i] = int32(le.Uint32(b[fixed+4*i:]))
	}
	return out, nil
}

// find returns the file that gives the most tokens of a prompt, and how many. A file is used whole
// unless memory can be cut.
func (d *disk) find(prompt []int32, draft bool) (best *diskFile, n int) {
	for _, f := range d.files {
		if draft && !f.draft {
			continue
		}
		k := min(common(f.tokens, prompt), len(prompt)-1)
		if k > n && (k == len(f.tokens) || d.cuttable(len(f.tokens))) {
			best, n = f, k
		}
	}
	return best, n
}

// has reports whether a file serves everything an entry does.
func (d *disk) has(e *entry) bool {
	return slices.ContainsFunc(d.files, func(f *diskFile) bool {
		n := common(f.tokens, e.tokens)
		return n == len(e.tokens) && (n == len(f.tokens) || d.cuttable(len(f.tokens))) && (f.draft || e.draft == nil)
	})
}

// errBusy interrupts the writing of a file because there is better to do.
var errBusy = errors.New("interrupted by work")

// save writes an entry. It runs on the loop's goroutine, page by page, and gives up when busy
// reports true; syncing and renaming happen in the background.
func (d *disk) save(e *entry, busy func() bool) error {
	target, drafter := e.seq.SavedBytes(), int64(0)
	if e.draft != nil {
		drafter = e.draft.SavedBytes()
	}
	head := d.header(e.tokens, target, drafter)
	out := &diskFile{
		path: d.fileName(e.tokens, e.draft != nil), tokens: e.tokens, draft: e.draft != nil,
		head: int64(len(head)), size: int64(len(head)) + target + drafter,
	}
	if out.size > d.limit {
		return nil
	}
	f, err := os.CreateTemp(d.dir, "*"+tempExt)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(&polite{f, busy}, 1<<20)
	_, err = w.Write(head)
	if err == nil {
		_, err = e.seq.WriteTo(w)
	}
	if err == nil && e.draft != nil {
		_, err = e.draft.WriteTo(w)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return err
	}
	d.wg.Go(func() { d.finish(f, out) })
	return nil
}

// polite is a writer that stops when there is work.
type polite struct {
	w    io.Writer
	busy func() bool
}

func (p *polite) Write(b []byte) (int, error) {
	if p.busy() {
		return 0, errBusy
	}
	return p.w.Write(b)
}

// finish makes a written file permanent.
func (d *disk) finish(f *os.File, out *diskFile) {
	err := f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), out.path)
	}
	if err != nil {
		d.log.Warn("prefix cache: file not written", "file", out.path, "error", err)
		os.Remove(f.Name())
		return
	}
	// So that the name survives a power failure; not every system can sync a folder.
	if dir, err := os.Open(d.dir); err == nil {
		dir.Sync()
		dir.Close()
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
			old := d.cuttable(len(f.tokens)) && common(x.tokens, f.tokens) == len(x.tokens) && (f.draft || !x.draft)
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
