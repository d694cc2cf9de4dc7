package cache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/quant"
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
		if one := m.Held([]*cache.Seq{full}); one != full.Bytes() || both < one || both > 2*one {
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

// TestCutForgetsRows: rows of a pass that were not committed cannot be after a cut, whether it removes tokens or not.
func TestCutForgetsRows(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	m := memory(t, dev, shapes["attention"])
	for _, n := range []int{70, 64, 10, 0} {
		s := remember(t, m, 70)
		if !s.CanCut(n) {
			t.Errorf("70 tokens cannot be cut to %d", n)
		}
		b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 3}})
		if err != nil {
			t.Fatal(err)
		}
		b.Done()
		if err := s.Truncate(n); err != nil || s.Len() != n || s.Open() != 0 {
			t.Errorf("cut to %d: %v, %d tokens, %d open", n, err, s.Len(), s.Open())
		}
		if err := s.CommitFirst(1); err == nil || s.Len() != n {
			t.Errorf("cut to %d: a row of the pass before the cut was committed, %d tokens", n, s.Len())
		}
		s.Close()
	}
	if m.UsedBytes() != 0 {
		t.Errorf("%d bytes are in use", m.UsedBytes())
	}
}

// TestLayersOfAGroup: layers share pages if they are on one device and have the same window, and only then.
func TestLayersOfAGroup(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	dims := kv(1, 8, 8, quant.F16)
	spec := cache.Spec{Layers: []cache.Layer{{KVDims: dims, Window: 100}, {KVDims: dims}, {KVDims: dims, Window: 128},
		{KVDims: dims, Device: 1}, {KVDims: dims, Window: 100, Device: 1}, {KVDims: dims, Window: 100}, {KVDims: dims}}}
	m, err := cache.New([]backend.Backend{dev, dev}, spec)
	if err != nil {
		t.Fatal(err)
	}
	of := map[[2]int]int{} // the groups of devices 0 and 1, by their places there
	next := [2]int{}
	for g := range m.Groups() {
		of[[2]int{m.Device(g), next[m.Device(g)]}] = g
		next[m.Device(g)]++
	}
	for i, l := range spec.Layers {
		place := m.Place(i)
		if g, ok := of[[2]int{l.Device, place.Group}]; !ok || m.Window(g) != l.Window {
			t.Errorf("layer %d with window %d is in a group with window %d", i, l.Window, m.Window(g))
		}
		for k := range i {
			other := spec.Layers[k]
			share := m.Place(k).Group == place.Group && other.Device == l.Device
			if share != (other.Device == l.Device && other.Window == l.Window) {
				t.Errorf("layers %d and %d share pages: %t", k, i, share)
			}
			if share && m.Place(k).Index == place.Index {
				t.Errorf("layers %d and %d are in one place", k, i)
			}
		}
	}
	if m.Groups() != 5 {
		t.Errorf("%d groups, want 5", m.Groups())
	}
}

// TestSpread: every row gets two more positions, once, and changing one leaves the others.
func TestSpread(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	m := memory(t, dev, shapes["attention"])
	s := m.NewSeq()
	defer s.Close()
	b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 3, Prompt: true}})
	if err != nil {
		t.Fatal(err)
	}
	b.Spread()
	b.Spread()
	if len(b.More) != 2 {
		t.Fatalf("%d more positions of a row, want 2", len(b.More))
	}
	b.More[0][1], b.More[1][1] = 7, 8
	if !slices.Equal(b.Pos, []int32{0, 1, 2}) || !slices.Equal(b.More[0], []int32{0, 7, 2}) ||
		!slices.Equal(b.More[1], []int32{0, 8, 2}) {
		t.Errorf("positions %v and %v", b.Pos, b.More)
	}
	b.Done()
}

// TestSentencesOfRefusals: what cannot be done says so with its numbers, and nothing has changed then.
func TestSentencesOfRefusals(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	m := memory(t, dev, shapes["attention"])
	s := m.NewSeq()
	b, err := m.Begin([]cache.Segment{{Seq: s, Rows: 5, Prompt: true}})
	if err != nil {
		t.Fatal(err)
	}
	b.Done()
	if err := s.CommitFirst(3); err == nil || !strings.Contains(err.Error(), "3 of 5 prompt rows") || s.Open() != 5 {
		t.Errorf("a part of a prompt: %v, %d open", err, s.Open())
	}
	if err := s.CommitAll(); err != nil {
		t.Fatal(err)
	}
	if err := s.Truncate(6); err == nil || !strings.Contains(err.Error(), "6 of 5") {
		t.Errorf("cut to more than there is: %v", err)
	}
	var out bytes.Buffer
	if _, err := s.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	head := bytes.Clone(out.Bytes()[:32])
	copy(head, "GGUF")
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := m.Load(bytes.NewReader(head)); !errors.Is(err, cache.ErrCorrupt) ||
		!strings.Contains(err.Error(), `begins with "GGUF"`) {
		t.Errorf("another kind of file: %v", err)
	}
	// No bytes are no part: a caller without time left reads nothing.
	r := bytes.NewReader(out.Bytes())
	l, err := m.Load(r)
	if err != nil {
		t.Fatal(err)
	}
	left := r.Len()
	if done, err := l.More(0); done || err != nil || r.Len() != left {
		t.Errorf("no bytes wanted, %d of %d read: %t, %v", left-r.Len(), left, done, err)
	}
	l.Close()
	s.Close()
	if _, err := m.BeginSteps([]cache.Segment{{Seq: s, Rows: 1}}); err == nil {
		t.Error("steps of a closed sequence")
	}
	if _, err := m.Look([]cache.Segment{{Seq: s, Rows: 1}}, 0); err == nil {
		t.Error("a look at a closed sequence")
	}
	if m.UsedBytes() != 0 {
		t.Errorf("%d bytes are in use", m.UsedBytes())
	}
}
