package cache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/testkit"
)

// TestUntouched: a sequence that ran nothing takes no memory, and neither do its copies; one that is closed holds none.
func TestUntouched(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	for name, spec := range shapes {
		d := testkit.NewDevice(t, dev)
		m := memory(t, d, spec)
		s := m.NewSeq()
		f, err := s.Fork()
		if err != nil || d.Live() != 0 {
			t.Errorf("%s: a copy of nothing takes %d: %v", name, d.Live(), err)
		}
		full := remember(t, m, 70)
		other, err := full.Fork()
		if err != nil {
			t.Fatal(err)
		}
		both := m.Held([]*cache.Seq{full, other})
		if one := m.Held([]*cache.Seq{full}); both < one || both > 2*one {
			t.Errorf("%s: one sequence holds %d, two that share it %d", name, one, both)
		}
		other.Close()
		if n := m.Held([]*cache.Seq{other, full, other}); n != m.Held([]*cache.Seq{full}) ||
			m.Held([]*cache.Seq{other}) != 0 {
			t.Errorf("%s: a closed sequence holds something: %d", name, n)
		}
		// Without memory a sequence cannot be stored, and what is missing comes first.
		d.Fail = func() error { return errors.New("full") }
		var out bytes.Buffer
		_, err = s.WriteTo(&out)
		if needs := len(spec.Recurrent) > 0 || spec.Carry > 0; (err != nil) != needs || needs && out.Len() > 0 {
			t.Errorf("%s: stored without memory: %v, %d bytes", name, err, out.Len())
		}
		out.Reset()
		_, err = m.Begin([]cache.Segment{{Seq: s, Rows: 1}})
		if needs := len(spec.Layers) > 0 || len(spec.Recurrent) > 0; needs && (!errors.Is(err, backend.ErrNoMemory) ||
			!strings.HasPrefix(err.Error(), backend.ErrNoMemory.Error()) || !strings.HasSuffix(err.Error(), "full")) {
			t.Errorf("%s: error %v", name, err)
		}
		// Copies and what is loaded leave nothing behind when there is no memory for them.
		d.Fail = nil
		if _, err := full.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		used, live := m.UsedBytes(), d.Live()
		d.Fail = func() error { return errors.New("full") }
		needs := len(spec.Recurrent) > 0 || spec.Carry > 0
		if x, err := full.Fork(); (err != nil) != needs {
			t.Errorf("%s: a copy without memory: %v", name, err)
		} else if x != nil {
			x.Close()
		}
		if needs {
			if _, err := m.Load(bytes.NewReader(out.Bytes())); err == nil {
				t.Errorf("%s: loaded without memory", name)
			}
		}
		if m.UsedBytes() != used || d.Live() != live {
			t.Errorf("%s: %d bytes were in use, now %d; %d values, now %d", name, used, m.UsedBytes(), live, d.Live())
		}
		d.Fail = nil
		s.Close()
		f.Close()
		full.Close()
	}
}

// remember is a sequence of n tokens, of whatever content.
func remember(t *testing.T, m *cache.Memory, n int) *cache.Seq {
	t.Helper()
	s := m.NewSeq()
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

// TestMostTokens: a stored sequence may say that it has 2^30 tokens, and no more.
func TestMostTokens(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	m := memory(t, dev, shapes["attention"])
	s := m.NewSeq()
	defer s.Close()
	var out bytes.Buffer
	if _, err := s.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	b := out.Bytes()
	head := b[:len(b)-4]
	for n, ok := range map[uint64]bool{0: true, 1 << 30: true, 1<<30 + 1: false, 1 << 63: false} {
		binary.LittleEndian.PutUint64(head[16:], n)
		binary.LittleEndian.PutUint32(b[len(head):], crc32.Checksum(head, crc32.MakeTable(crc32.Castagnoli)))
		l, err := m.Load(bytes.NewReader(b))
		if ok != (err == nil) || err != nil && !errors.Is(err, cache.ErrCorrupt) {
			t.Errorf("%d tokens: %v", n, err)
		}
		if l != nil {
			if done, err := l.More(1 << 20); done != (n == 0) || n > 0 && !errors.Is(err, cache.ErrCorrupt) {
				t.Errorf("%d tokens of no pages: %t, %v", n, done, err)
			}
			l.Close()
		}
	}
	if m.UsedBytes() != 0 {
		t.Errorf("%d bytes are in use", m.UsedBytes())
	}
}

// TestEmptyLayers: nothing between two commas is no layer.
func TestEmptyLayers(t *testing.T) {
	types, err := cache.ParseTypes("q8_0", "", "", " 0=f16, ,2=f32,")
	if err != nil {
		t.Fatal(err)
	}
	for layer, want := range []string{"F16", "Q8_0", "F32"} {
		if k, v := types.Of(layer); k.String() != want || v.String() != want {
			t.Errorf("layer %d keeps %v and %v, want %s", layer, k, v, want)
		}
	}
	if types.Check(3) != nil || types.Check(2) == nil {
		t.Error("the last layer that is named is 2")
	}
}

// TestNoPathOfTheTree: rows that do not follow each other cannot be kept together, and the pass is still there then.
func TestNoPathOfTheTree(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	m := memory(t, dev, shapes["attention"])
	s := m.NewSeq()
	defer s.Close()
	b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 4, Parents: []int32{-1, 0, 0, 2}}})
	if err != nil {
		t.Fatal(err)
	}
	b.Done()
	for _, path := range [][]int32{{1}, {0, 3}, {0, 1, 2}, {0, 1, 3}, {2, 3}, {0, 4}, {-1}} {
		if err := s.Commit(path); err == nil || s.Len() != 0 || s.Open() != 4 {
			t.Errorf("path %v: %v, %d tokens, %d open", path, err, s.Len(), s.Open())
		}
	}
	if err := s.Commit([]int32{0, 2, 3}); err != nil || s.Len() != 3 {
		t.Errorf("%v, %d tokens", err, s.Len())
	}
}
