package cache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// shapes are memories of every kind: plain, windowed, recurrent, mixed, empty.
var shapes = map[string]cache.Spec{
	"attention": {Layers: []cache.Layer{{KVDims: kv(2, 8, 8, quant.F16)}}},
	"windows": {Layers: []cache.Layer{{KVDims: kv(1, 32, 32, quant.Q8_0), Window: 100},
		{KVDims: kv(1, 32, 32, quant.Q8_0)}}},
	"recurrent": {Layers: []cache.Layer{{KVDims: kv(1, 8, 4, quant.F16)}},
		Delta: backend.DeltaDims{KHeads: 1, VHeads: 2, KDim: 4, VDim: 4, Kernel: 4}, Recurrent: []int{0, 0}},
	"carrying": {Layers: []cache.Layer{{KVDims: kv(1, 8, 4, quant.F16)}}, Carry: 5},
	"nothing":  {},
}

func kv(heads, key, value int, t quant.Type) backend.KVDims {
	return backend.KVDims{Heads: heads, KeyDim: key, ValueDim: value, Key: t, Value: t}
}

func memory(t *testing.T, b backend.Backend, spec cache.Spec) *cache.Memory {
	t.Helper()
	m, err := cache.New([]backend.Backend{b}, spec)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// filled returns a sequence of n tokens with random content.
func filled(t *testing.T, m *cache.Memory, n int, r *rand.Rand) *cache.Seq {
	t.Helper()
	s := m.NewSeq()
	for s.Len() < n {
		k := min(n-s.Len(), 1+r.IntN(90))
		b, err := m.Begin([]cache.Segment{{Seq: s, Rows: k, Prompt: true}})
		if err != nil {
			t.Fatal(err)
		}
		for gi := range m.Groups() {
			page := make([]byte, m.Pool(gi).PageBytes())
			for _, p := range b.Plans[0].KV[gi].Tables[0] {
				if p >= 0 {
					for i := range page {
						page[i] = byte(r.Uint32())
					}
					m.Pool(gi).WritePage(p, page)
				}
			}
		}
		b.Done()
		if row := s.Carry(); row.Buf != nil {
			v := make([]float32, row.Cols)
			for i := range v {
				v[i] = r.Float32()
			}
			b := cpu.New(cpu.Options{Threads: 1}) // memory of the CPU is any of its devices'
			b.Write(row, v)
			b.Close()
		}
		if err := s.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func save(t *testing.T, s *cache.Seq) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) || n != s.SavedBytes() {
		t.Errorf("wrote %d bytes, reported %d, announced %d", b.Len(), n, s.SavedBytes())
	}
	return b.Bytes()
}

func TestSaveRoundTrip(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(1, 1))
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		for _, n := range []int{0, 1, 63, 64, 65, 99, 100, 101, 128, 300} {
			s := filled(t, m, n, r)
			want := save(t, s)
			back, err := m.ReadSeq(bytes.NewReader(want))
			if err != nil {
				t.Fatalf("%s, %d tokens: %v", name, n, err)
			}
			if got := save(t, back); !bytes.Equal(got, want) || back.Len() != n {
				t.Errorf("%s, %d tokens: differs after a round trip", name, n)
			}
			// It goes on like the original.
			for _, x := range []*cache.Seq{s, back} {
				b, err := m.Begin([]cache.Segment{{Seq: x, Rows: 70, Prompt: true}})
				if err != nil {
					t.Fatal(err)
				}
				b.Done()
				if err := x.CommitAll(); err != nil {
					t.Fatal(err)
				}
			}
			// In small pieces.
			l, err := m.Load(bytes.NewReader(want))
			if err != nil {
				t.Fatal(err)
			}
			for done := false; !done; {
				if done, err = l.More(1); err != nil {
					t.Fatal(err)
				}
			}
			p := l.Seq()
			l.Close()
			if !bytes.Equal(save(t, p), want) {
				t.Errorf("%s, %d tokens: differs when loaded in pieces", name, n)
			}
			for _, x := range []*cache.Seq{s, back, p} {
				x.Close()
			}
			if used := m.UsedBytes(); used != 0 {
				t.Errorf("%s: %d bytes left", name, used)
			}
		}
	}
}

// TestSaveDamage: cut anywhere or with any bit changed, a stored sequence is refused and leaves no
// memory behind.
func TestSaveDamage(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(2, 2))
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		s := filled(t, m, 130, r)
		good := save(t, s)
		used := m.UsedBytes()
		for range 300 {
			cut := r.IntN(len(good))
			if _, err := m.ReadSeq(bytes.NewReader(good[:cut])); !errors.Is(err, cache.ErrCorrupt) {
				t.Errorf("%s cut to %d of %d bytes: error %v", name, cut, len(good), err)
			}
			bad := slices.Clone(good)
			bit := r.IntN(8 * len(bad))
			bad[bit/8] ^= 1 << (bit % 8)
			if _, err := m.ReadSeq(bytes.NewReader(bad)); !errors.Is(err, cache.ErrCorrupt) {
				t.Errorf("%s with bit %d changed: error %v", name, bit, err)
			}
			if m.UsedBytes() != used {
				t.Fatalf("%s: a refused sequence left memory behind", name)
			}
		}
		s.Close()
	}
}

// TestFirstPageIsChecked: a stored sequence that begins at another page than one of its length does is refused, however
// well its checksum fits, and before anything is allocated by what it claims.
func TestFirstPageIsChecked(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(7, 7))
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		for _, n := range []int{0, 1, 64, 163, 164, 165, 300} {
			s := filled(t, m, n, r)
			good := save(t, s)
			used := m.UsedBytes()
			for gi := range m.Groups() {
				at := 24 + 8*gi
				first := binary.LittleEndian.Uint64(good[at:])
				for _, wrong := range []uint64{first + 1, first - 1, first + 1000, 1 << 40, 1 << 63} {
					bad := slices.Clone(good)
					binary.LittleEndian.PutUint64(bad[at:], wrong)
					head := 24 + 8*m.Groups()
					binary.LittleEndian.PutUint32(bad[head:],
						crc32.Checksum(bad[:head], crc32.MakeTable(crc32.Castagnoli)))
					if _, err := m.ReadSeq(bytes.NewReader(bad)); !errors.Is(err, cache.ErrCorrupt) ||
						!strings.Contains(err.Error(), "start at page") {
						t.Errorf("%s, %d tokens, group %d begins at page %d instead of %d: error %v", name, n, gi, wrong, first, err)
					}
					if m.UsedBytes() != used {
						t.Fatalf("%s: a refused sequence left memory behind", name)
					}
				}
			}
			s.Close()
		}
	}
}

// TestSaveLostDevice: whichever device of a memory is lost, and whenever, a sequence is neither stored nor brought back
// without an error.
func TestSaveLostDevice(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	gone := errors.New("gone")
	specs := map[string]cache.Spec{
		"pages": {Layers: []cache.Layer{{KVDims: kv(1, 8, 4, quant.F16)}, {KVDims: kv(1, 8, 4, quant.F16), Device: 1}}},
		"state": {Delta: shapes["recurrent"].Delta, Recurrent: []int{0, 1}},
		"row":   {Layers: []cache.Layer{{KVDims: kv(1, 8, 4, quant.F16), Device: 1}}, Carry: 5},
	}
	// try stores a sequence or brings it back while a device is lost after so many waits, and reports whether it was.
	try := func(name string, lost, waits int, restore bool) bool {
		what := fmt.Sprintf("%s, restored %v, device %d lost after %d waits", name, restore, lost, waits)
		left := 1 << 30
		devices := []backend.Backend{dev, dev}
		failing := testkit.NewDevice(t, dev)
		failing.Lost = func() error {
			if left--; left < 0 {
				return gone
			}
			return nil
		}
		devices[lost] = failing
		m, err := cache.New(devices, specs[name])
		if err != nil {
			t.Fatal(err)
		}
		s := m.NewSeq()
		b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 130, Prompt: true}})
		if err != nil {
			t.Fatal(err)
		}
		b.Done()
		if err := s.CommitAll(); err != nil {
			t.Fatal(err)
		}
		data, used := save(t, s), m.UsedBytes()
		if left = waits; restore {
			var back *cache.Seq
			if back, err = m.ReadSeq(bytes.NewReader(data)); err == nil {
				back.Close()
			}
		} else {
			_, err = s.WriteTo(io.Discard)
		}
		if left < 0 != errors.Is(err, gone) || m.UsedBytes() != used {
			t.Errorf("%s: error %v; %d bytes are in use, want %d", what, err, m.UsedBytes(), used)
		}
		return left < 0
	}
	for name := range specs {
		for lost := range 2 {
			for _, restore := range []bool{false, true} {
				waits := 0
				for try(name, lost, waits, restore) {
					waits++
				}
				if waits == 0 {
					t.Errorf("%s, device %d, restored %v: nobody waits for the device", name, lost, restore)
				}
			}
		}
	}
}

// TestForeignShapeIsRefused (failures F204 and F143): a sequence stored by a cache of another shape or type is
// refused.
func TestForeignShapeIsRefused(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(3, 3))
	for from, a := range shapes {
		data := save(t, filled(t, memory(t, dev, a), 70, r))
		for to, b := range shapes {
			if _, err := memory(t, dev, b).ReadSeq(bytes.NewReader(data)); (err == nil) != (from == to) {
				t.Errorf("%s read as %s: error %v", from, to, err)
			}
		}
	}
	f16 := shapes["attention"]
	f32 := f16
	f32.Layers = []cache.Layer{{KVDims: kv(2, 8, 8, quant.F32)}}
	data := save(t, filled(t, memory(t, dev, f16), 70, r))
	if _, err := memory(t, dev, f32).ReadSeq(bytes.NewReader(data)); !errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("F16 read as F32: error %v", err)
	}
}

// TestCanCut agrees with Truncate everywhere.
func TestCanCut(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(4, 4))
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		s := filled(t, m, 400, r)
		for n := -1; n <= 401; n++ {
			f, err := s.Fork()
			if err != nil {
				t.Fatal(err)
			}
			can := f.CanCut(n)
			if err := f.Truncate(n); (err == nil) != can {
				t.Fatalf("%s: CanCut(%d) is %v, Truncate says %v", name, n, can, err)
			}
			f.Close()
		}
		s.Close()
		for n := 1; n < 400; n += 7 {
			s := filled(t, m, n, r)
			for k := 1; k < n && m.Cuttable(n); k++ {
				if !s.CanCut(k) {
					t.Errorf("%s: %d tokens are cuttable but not at %d", name, n, k)
				}
			}
			s.Close()
		}
	}
}

// TestCachedBytes: shared pages of the prefix cache count once, until the last sequence that has them is cut or closed.
func TestCachedBytes(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	r := rand.New(rand.NewPCG(5, 5))
	for name, spec := range shapes {
		m := memory(t, dev, spec)
		a := filled(t, m, 200, r)
		a.Pack()
		b, err := a.Fork()
		if err != nil {
			t.Fatal(err)
		}
		c := filled(t, m, 90, r)
		c.Pack()
		check := func(when string, want int) {
			t.Helper()
			if got := m.CachedBytes(); got != want {
				t.Errorf("%s: %d bytes %s, want %d", name, got, when, want)
			}
		}
		check("before any", 0)
		a.Cache()
		a.Cache()
		check("of one sequence", a.Bytes())
		b.Cache()
		c.Cache()
		check("of all", m.UsedBytes())
		f, err := a.Fork() // a copy in use is not one of the cache
		if err != nil {
			t.Fatal(err)
		}
		if b.CanCut(70) {
			if err := b.Truncate(70); err != nil {
				t.Fatal(err)
			}
			check("after one of two that share pages was cut", a.Bytes()+c.Bytes()+m.BytesOf(0))
			if err := a.Truncate(70); err != nil {
				t.Fatal(err)
			}
			check("after both were cut", a.Bytes()+c.Bytes()+m.BytesOf(0))
		}
		b.Close()
		b.Close()
		check("after one was closed", a.Bytes()+c.Bytes())
		a.Close()
		c.Close()
		check("after all were closed", 0)
		f.Close()
		if m.UsedBytes() != 0 {
			t.Errorf("%s: %d bytes left", name, m.UsedBytes())
		}
	}
}

// FuzzLoad: whatever the bytes, loading ends with an error or with a sequence that stores as the same
// bytes, and nothing else stays in memory.
func FuzzLoad(f *testing.F) {
	dev := cpu.New(cpu.Options{Threads: 1})
	f.Cleanup(func() { dev.Close() })
	m, err := cache.New([]backend.Backend{dev}, shapes["recurrent"])
	if err != nil {
		f.Fatal(err)
	}
	for _, n := range []int{0, 1, 65} {
		s := m.NewSeq()
		if n > 0 {
			b, err := m.Begin([]cache.Segment{{Seq: s, Rows: n, Prompt: true}})
			if err != nil {
				f.Fatal(err)
			}
			b.Done()
			if err := s.CommitAll(); err != nil {
				f.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := s.WriteTo(&b); err != nil {
			f.Fatal(err)
		}
		s.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := m.ReadSeq(bytes.NewReader(data))
		if err == nil {
			if got := save(t, s); !bytes.HasPrefix(data, got) {
				t.Error("a sequence stores as other bytes than it was loaded from")
			}
			s.Close()
		}
		if m.UsedBytes() != 0 {
			t.Errorf("%d bytes left", m.UsedBytes())
		}
	})
}
