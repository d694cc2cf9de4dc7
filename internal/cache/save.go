package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"math"
)

// The stored form of a sequence, little endian:
//
//	magic, version       "SSEQ", 2
//	fingerprint          of the Spec and the page size; memory of another shape is refused
//	n                    tokens
//	per group: first     the first page stored; all pages from there to the end follow
//	checksum             of the above
//	pages                group by group, in order, each with its checksum
//	recurrent layers     device by device: state with convolution inputs, each with its checksum
//	carried row          if there is one, with its checksum
//
// Pages and states are stored as the backend keeps them, so a reader must know that the writer's backend was
// of the same kind. Rows of the last page past the end are stored too; nothing can see them.
const (
	saveMagic   = "SSEQ"
	saveVersion = 2
	maxSaved    = 1 << 30 // tokens
)

// ErrCorrupt marks stored data that cannot be what was written.
var ErrCorrupt = errors.New("stored sequence is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Fingerprint identifies the shape of the memory. Stored sequences fit memories with the same one.
func (m *Memory) Fingerprint() uint64 {
	// Names rather than numbers of types: numbers mean different things in different programs.
	h := fnv.New64a()
	fmt.Fprintf(h, "page %d delta %v %+v", PageTokens, m.spec.Recurrent, m.spec.Delta)
	for _, l := range m.spec.Layers {
		fmt.Fprintf(h, " layer %d %d %d %s %s %d %d", l.Heads, l.KeyDim, l.ValueDim, l.Key, l.Value, l.Window, l.Device)
	}
	if m.spec.Carry > 0 {
		fmt.Fprintf(h, " carry %d", m.spec.Carry)
	}
	return h.Sum64()
}

// SavedBytes is the size of the stored form.
func (s *Seq) SavedBytes() int64 {
	n := int64(len(saveMagic) + 4 + 8 + 8 + 8*len(s.m.groups) + 4)
	for _, g := range s.m.groups {
		n += int64(s.pages()-g.firstPage(s.n)) * int64(g.pool.PageBytes()+4)
	}
	if s.m.spec.Carry > 0 {
		n += 4
	}
	return n + int64(s.m.stateBytes()+4*len(s.m.spec.Recurrent))
}

func (s *Seq) pages() int { return (s.n + PageTokens - 1) / PageTokens }

// WriteTo writes the stored form. The sequence must not be in the middle of a pass.
func (s *Seq) WriteTo(w io.Writer) (int64, error) {
	if s.broken || s.closed {
		return 0, fmt.Errorf("save: sequence is closed or broken by an earlier error")
	}
	if err := s.take(); err != nil {
		return 0, err
	}
	s.Settle()
	b := []byte(saveMagic)
	b = binary.LittleEndian.AppendUint32(b, saveVersion)
	b = binary.LittleEndian.AppendUint64(b, s.m.Fingerprint())
	b = binary.LittleEndian.AppendUint64(b, uint64(s.n))
	for _, g := range s.m.groups {
		b = binary.LittleEndian.AppendUint64(b, uint64(g.firstPage(s.n)))
	}
	out := sealed{m: s.m, w: w}
	out.write(b)
	for gi, g := range s.m.groups {
		page := make([]byte, g.pool.PageBytes(), g.pool.PageBytes()+4)
		for _, p := range s.tables[gi][g.firstPage(s.n):s.pages()] {
			if out.err == nil {
				g.pool.ReadPage(p, page)
				out.write(page)
			}
		}
	}
	floats := func(v []float32) {
		b = b[:0]
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		out.write(b)
	}
	for i, y := range s.m.states {
		for layer := range y.layers {
			floats(y.pool.Read(s.slots[i], layer))
		}
	}
	if s.carry.Buf != nil {
		floats(s.m.devices[0].Read(s.carry))
	}
	return out.n, out.err
}

// sealed writes parts, each followed by its checksum. What was read from a device that failed is not what it had, so
// nothing is sealed before the devices say that they are well.
type sealed struct {
	m   *Memory
	w   io.Writer
	n   int64
	err error
}

func (s *sealed) write(b []byte) {
	if s.err == nil {
		s.err = s.m.Sync()
	}
	if s.err != nil {
		return
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	n, err := s.w.Write(b)
	s.n += int64(n)
	s.err = err
}

// Loader brings a stored sequence back, a piece at a time, so that a long one does not hold up
// other work. It ends with Seq or Close.
type Loader struct {
	r     io.Reader
	s     *Seq
	first []int
	gi    int // group and page to come
	page  int
	dev   int // recurrent state to come: device and layer
	layer int
	carry bool // the carried row is still to come
	buf   []byte
	err   error
}

// Load starts reading a stored sequence. Data of another shape or version, or damaged data, is
// ErrCorrupt.
func (m *Memory) Load(r io.Reader) (*Loader, error) {
	l := &Loader{r: r, carry: m.spec.Carry > 0}
	head := len(saveMagic) + 4 + 8 + 8 + 8*len(m.groups)
	if err := l.read(head); err != nil {
		return nil, err
	}
	b := l.buf
	if string(b[:4]) != saveMagic {
		return nil, fmt.Errorf("%w: it begins with %q", ErrCorrupt, b[:4])
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != saveVersion {
		return nil, fmt.Errorf("%w: version %d, want %d", ErrCorrupt, v, saveVersion)
	}
	if f := binary.LittleEndian.Uint64(b[8:]); f != m.Fingerprint() {
		return nil, fmt.Errorf("%w: it was made by a model or cache of another shape", ErrCorrupt)
	}
	n := binary.LittleEndian.Uint64(b[16:])
	if n > maxSaved {
		return nil, fmt.Errorf("%w: %d tokens", ErrCorrupt, n)
	}
	s := m.NewSeq()
	if err := s.take(); err != nil {
		s.Close()
		return nil, err
	}
	s.n = int(n)
	for gi, g := range m.groups {
		first := binary.LittleEndian.Uint64(b[24+8*gi:])
		if first != uint64(g.firstPage(s.n)) {
			s.Close()
			return nil, fmt.Errorf("%w: %d tokens start at page %d", ErrCorrupt, n, first)
		}
		l.first = append(l.first, int(first))
	}
	l.s = s
	return l, nil
}

// read reads a part of n bytes into the buffer and checks it.
func (l *Loader) read(n int) error {
	if cap(l.buf) < n+4 {
		l.buf = make([]byte, n+4)
	}
	b := l.buf[:n+4]
	if _, err := io.ReadFull(l.r, b); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return fmt.Errorf("%w: it ends early", ErrCorrupt)
		}
		return err
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return fmt.Errorf("%w: checksum differs", ErrCorrupt)
	}
	l.buf = b[:n]
	return nil
}

// More reads on for about the given number of bytes and reports whether the sequence is complete, also on its devices.
// After an error the loader is closed.
func (l *Loader) More(bytes int) (done bool, err error) {
	for l.err == nil {
		if bytes <= 0 {
			return false, nil
		}
		n, end := l.part()
		if end {
			if l.err = l.s.m.Sync(); l.err == nil {
				return true, nil
			}
		}
		bytes -= n
	}
	l.Close()
	return false, l.err
}

// part reads the next page or state and returns its size.
func (l *Loader) part() (n int, end bool) {
	s := l.s
	for l.gi < len(s.m.groups) {
		g, at := s.m.groups[l.gi], l.first[l.gi]+l.page
		if at >= s.pages() {
			l.gi, l.page = l.gi+1, 0
			continue
		}
		if l.err = l.read(g.pool.PageBytes()); l.err != nil {
			return 0, false
		}
		t := s.tables[l.gi]
		for len(t) < at {
			t = append(t, -1)
		}
		page, err := g.alloc()
		if err != nil {
			l.err = err
			return 0, false
		}
		g.pool.WritePage(page, l.buf)
		s.tables[l.gi] = append(t, page)
		l.page++
		return len(l.buf), false
	}
	switch {
	case l.dev < len(s.m.states):
		y := s.m.states[l.dev]
		v := l.floats(s.m.spec.Delta.StateValues())
		if l.err != nil {
			return 0, false
		}
		y.pool.Write(s.slots[l.dev], l.layer, v)
		if l.layer++; l.layer == y.layers {
			l.dev, l.layer = l.dev+1, 0
		}
	case l.carry:
		v := l.floats(s.m.spec.Carry)
		if l.err != nil {
			return 0, false
		}
		s.m.devices[0].Write(s.carry, v)
		l.carry = false
	default:
		return 0, true
	}
	return len(l.buf), false
}

// floats reads a part of n values.
func (l *Loader) floats(n int) []float32 {
	if l.err = l.read(4 * n); l.err != nil {
		return nil
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(l.buf[4*i:]))
	}
	return v
}

// Seq returns the sequence once More has reported it complete. It belongs to the caller.
func (l *Loader) Seq() *Seq {
	s := l.s
	l.s = nil
	return s
}

// Close gives up what was read so far. After Seq it does nothing.
func (l *Loader) Close() {
	if l.s != nil {
		l.s.Close()
		l.s = nil
	}
}

// ReadSeq reads a stored sequence in one go.
func (m *Memory) ReadSeq(r io.Reader) (*Seq, error) {
	l, err := m.Load(r)
	if err != nil {
		return nil, err
	}
	if _, err := l.More(math.MaxInt); err != nil {
		return nil, err
	}
	return l.Seq(), nil
}
