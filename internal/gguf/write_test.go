package gguf_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// fill is recognisable data for tensor i.
func fill(i, n int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, n) }

// five are specs whose data is 4, 34, 64, 4 and 4 bytes.
func five() []gguf.TensorSpec {
	return []gguf.TensorSpec{
		{Name: "a", Type: quant.F32, Shape: []int{1}},
		{Name: "b", Type: quant.Q8_0, Shape: []int{32}},
		{Name: "c", Type: quant.F16, Shape: []int{8, 2, 2}},
		{Name: "d", Type: quant.F32, Shape: []int{1, 1, 1, 1}},
		{Name: "scalar", Type: quant.F32},
	}
}

var fiveSizes = []int{4, 34, 64, 4, 4}

func create(t *testing.T, path string, kvs []gguf.KV, opt gguf.WriteOptions) *gguf.Writer {
	t.Helper()
	w, err := gguf.Create(path, kvs, five(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func writeFive(t *testing.T, w *gguf.Writer) {
	t.Helper()
	for i, s := range five() {
		if err := w.WriteTensor(s.Name, fill(i, fiveSizes[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func checkFive(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if len(f.Tensors()) != 5 {
		t.Fatalf("got %d tensors, want 5", len(f.Tensors()))
	}
	for i, s := range five() {
		tn := f.Tensors()[i]
		if tn.Name != s.Name || tn.Type != s.Type || fmt.Sprint(tn.Shape) != fmt.Sprint(s.Shape) {
			t.Errorf("tensor %d: got %s %s %v, want %+v", i, tn.Name, tn.Type, tn.Shape, s)
		}
		if !bytes.Equal(tn.Data, fill(i, fiveSizes[i])) {
			t.Errorf("tensor %s: data differs", s.Name)
		}
	}
	return f
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWriteEveryKind(t *testing.T) {
	kvs := []gguf.KV{
		{"u8", uint8(1)}, {"i8", int8(-1)}, {"u16", uint16(2)}, {"i16", int16(-2)}, {"u32", uint32(3)}, {"i32", int32(-3)},
		{"u64", uint64(4)}, {"i64", int64(-4)}, {"f32", float32(0.25)}, {"f64", 0.125}, {"bool", true}, {"string", "ä"},
		{"[]u8", []uint8{1}}, {"[]i8", []int8{-1}}, {"[]u16", []uint16{2}}, {"[]i16", []int16{-2}}, {"[]u32", []uint32{3}},
		{"[]i32", []int32{-3}}, {"[]u64", []uint64{4}}, {"[]i64", []int64{-4}}, {"[]f32", []float32{0.25}},
		{"[]f64", []float64{0.125}},
		{"[]bool", []bool{true, false}}, {"[]string", []string{"", "x"}}, {"[]empty", []string{}},
		{"nested", gguf.Array{Elem: gguf.ArrayOf, Values: []gguf.Array{{Elem: gguf.Int8, Values: []int8{1, 2}},
			{Elem: gguf.String, Values: []string{"s"}}}}},
	}
	path := filepath.Join(t.TempDir(), "x.gguf")
	writeFive(t, create(t, path, kvs, gguf.WriteOptions{Version: 2}))
	f := checkFive(t, path)
	if f.Version() != 2 {
		t.Errorf("got version %d, want 2", f.Version())
	}
	for i, key := range f.Keys() {
		v, _, err := f.Value(key)
		if err != nil {
			t.Error(err)
		}
		if a, ok := v.(gguf.Array); ok && key != "nested" {
			v = a.Values
		}
		if key != kvs[i].Key || fmt.Sprintf("%#v", v) != fmt.Sprintf("%#v", kvs[i].Value) {
			t.Errorf("key %d: got %s = %#v, want %s = %#v", i, key, v, kvs[i].Key, kvs[i].Value)
		}
	}
	again := filepath.Join(t.TempDir(), "y.gguf")
	rewrite(t, path, again)
	sameBytes(t, again, path)
}

func TestAlignment(t *testing.T) {
	for _, align := range []uint32{1, 8, 32, 4096} {
		path := filepath.Join(t.TempDir(), "x.gguf")
		writeFive(t, create(t, path, []gguf.KV{{"general.alignment", align}}, gguf.WriteOptions{}))
		f := checkFive(t, path)
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.Alignment() != int(align) || st.Size()%int64(align) != 0 || f.Size() != st.Size() {
			t.Errorf("alignment %d: read %d, file of %d bytes, Size %d", align, f.Alignment(), st.Size(), f.Size())
		}
		again := filepath.Join(t.TempDir(), "y.gguf")
		rewrite(t, path, again)
		sameBytes(t, again, path)
	}
}

// TestLayoutVariants rewrites files of writers that pad differently.
func TestLayoutVariants(t *testing.T) {
	for _, opt := range []gguf.WriteOptions{{}, {NoEndPad: true}, {PadEmpty: true}} {
		for _, tensors := range [][]gguf.TensorSpec{five()[:1], nil} {
			path := filepath.Join(t.TempDir(), "x.gguf")
			w, err := gguf.Create(path, []gguf.KV{{"k", uint8(1)}}, tensors, opt)
			if err != nil {
				t.Fatal(err)
			}
			for range tensors {
				if err := w.WriteTensor("a", fill(0, 4)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			again := filepath.Join(t.TempDir(), "y.gguf")
			rewrite(t, path, again)
			sameBytes(t, again, path)
		}
	}
}

func TestStreaming(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	w := create(t, path, nil, gguf.WriteOptions{})
	for i, s := range five() {
		data := fill(i, fiveSizes[i])
		for len(data) > 0 {
			n := min(3, len(data))
			if err := w.WriteTensor(s.Name, data[:n]); err != nil {
				t.Fatal(err)
			}
			data = data[n:]
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	checkFive(t, path)
}

func TestSplit(t *testing.T) {
	kvs := []gguf.KV{{"general.architecture", "qwen3"}, {"general.alignment", uint32(64)}}
	for _, c := range []struct {
		name  string
		opt   gguf.WriteOptions
		parts int
	}{
		{"one part", gguf.WriteOptions{SplitTensors: 5}, 1},
		{"two tensors each", gguf.WriteOptions{SplitTensors: 2}, 3},
		{"by bytes", gguf.WriteOptions{SplitBytes: 128}, 3},
		{"one tensor is over the limit", gguf.WriteOptions{SplitBytes: 1}, 5},
		{"no tensors in the first", gguf.WriteOptions{PartTensors: []int{0, 4, 1}, PadEmpty: true}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.gguf")
			w := create(t, path, kvs, c.opt)
			writeFive(t, w)
			paths := w.Paths()
			if len(paths) != c.parts || len(files(t, dir)) != c.parts {
				t.Fatalf("got files %v, want %d", files(t, dir), c.parts)
			}
			if c.parts > 1 && filepath.Base(paths[0]) != fmt.Sprintf("x-00001-of-%05d.gguf", c.parts) {
				t.Errorf("first part is named %s", paths[0])
			}
			f := checkFive(t, paths[0])
			if f.Parts() != c.parts || f.Arch() != "qwen3" {
				t.Errorf("got %d parts of %q, want %d", f.Parts(), f.Arch(), c.parts)
			}
			again := rewrite(t, paths[0], filepath.Join(t.TempDir(), "x.gguf"))
			for i := range paths {
				sameBytes(t, again[i], paths[i])
			}
			if c.parts == 1 {
				return
			}
			// Merging forgets the split.
			merged := filepath.Join(t.TempDir(), "merged.gguf")
			m, err := f.KVs()
			if err != nil {
				t.Fatal(err)
			}
			writeFive(t, create(t, merged, m, gguf.WriteOptions{}))
			if g := checkFive(t, merged); g.Has("split.count") || g.Parts() != 1 {
				t.Errorf("merged file has %d parts, split.count %v", g.Parts(), g.Has("split.count"))
			}
			if _, err := gguf.Open(paths[1]); err == nil ||
				!strings.Contains(err.Error(), "open the first one, "+filepath.Base(paths[0])) {
				t.Errorf("opening the second part: got error %v", err)
			}
			if err := os.Remove(paths[len(paths)-1]); err != nil {
				t.Fatal(err)
			}
			if _, err := gguf.Open(paths[0]); !errors.Is(err, os.ErrNotExist) ||
				!strings.Contains(err.Error(), filepath.Base(paths[len(paths)-1])) {
				t.Errorf("last part missing: got error %v", err)
			}
		})
	}
}

// TestSplitRefuses opens parts that do not belong together.
func TestSplitRefuses(t *testing.T) {
	part := func(no, count uint16, total int32, tensor string) []gguf.KV {
		return []gguf.KV{{"split.no", no}, {"split.count", count}, {"split.tensors.count", total}, {"name", tensor}}
	}
	for _, c := range []struct {
		name, file    string
		first, second []gguf.KV
		want          string
	}{
		{"name", "plain.gguf", part(0, 2, 2, "a"), nil, "split.count: the file is one of 2 parts but is not named"},
		{"count in name", "x-00001-of-00003.gguf", part(0, 2, 2, "a"), nil,
			"split.count: is 2, but the file name says 3 parts"},
		{"number in first", "x-00001-of-00002.gguf", part(1, 2, 2, "a"), nil, "split.no: is 1 in the first part"},
		{"number in second", "x-00001-of-00002.gguf", part(0, 2, 2, "a"), part(0, 2, 2, "b"), "split.no: is 0, expected 1"},
		{"count in second", "x-00001-of-00002.gguf", part(0, 2, 2, "a"), part(1, 3, 2, "b"), "split.count: is 3, expected 2"},
		{"no keys in second", "x-00001-of-00002.gguf", part(0, 2, 2, "a"), []gguf.KV{{"name", "b"}},
			"the key is missing in part 2"},
		{"tensor count", "x-00001-of-00002.gguf", part(0, 2, 3, "a"), part(1, 2, 3, "b"),
			"split.tensors.count: is 3, but the parts hold 2"},
		{"tensor twice", "x-00001-of-00002.gguf", part(0, 2, 2, "a"), part(1, 2, 2, "a"),
			`tensor "a": the name is already in an earlier part`},
		{"count is text", "x-00001-of-00002.gguf", []gguf.KV{{"split.count", "two"}, {"name", "a"}}, nil,
			"split.count: wrong type"},
		{"count is absurd", "x-00001-of-00002.gguf", []gguf.KV{{"split.count", uint64(1 << 60)}, {"name", "a"}}, nil,
			"split.count: 1152921504606846976 is over the limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, kvs := range map[string][]gguf.KV{c.file: c.first, "x-00002-of-00002.gguf": c.second} {
				if kvs == nil {
					continue
				}
				// The writer would put other split keys, so they are patched in.
				spec := gguf.TensorSpec{Name: kvs[len(kvs)-1].Value.(string), Type: quant.I8, Shape: []int{1}}
				masked := append([]gguf.KV(nil), kvs...)
				for i := range masked {
					masked[i].Key = strings.ReplaceAll(masked[i].Key, "split.", "SPLIT.")
				}
				w, err := gguf.Create(filepath.Join(dir, name), masked, []gguf.TensorSpec{spec}, gguf.WriteOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(w.WriteTensor(spec.Name, []byte{1}), w.Close()); err != nil {
					t.Fatal(err)
				}
				b, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), bytes.ReplaceAll(b, []byte("SPLIT."), []byte("split.")),
					0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err := gguf.Open(filepath.Join(dir, c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want it to contain %q", err, c.want)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	long := strings.Repeat("x", 64)
	ok := []gguf.TensorSpec{{Name: "a", Type: quant.F32, Shape: []int{1}}}
	deep := gguf.Array{Elem: gguf.Uint8, Values: []uint8{1}}
	for range 20 {
		deep = gguf.Array{Elem: gguf.ArrayOf, Values: []gguf.Array{deep}}
	}
	spec := func(name string, typ quant.Type, shape ...int) []gguf.TensorSpec {
		return []gguf.TensorSpec{{Name: name, Type: typ, Shape: shape}}
	}
	for _, c := range []struct {
		name    string
		kvs     []gguf.KV
		tensors []gguf.TensorSpec
		opt     gguf.WriteOptions
		want    string
	}{
		{"version", nil, ok, gguf.WriteOptions{Version: 1}, "version: 1 cannot be written"},
		{"key empty", []gguf.KV{{"", uint8(1)}}, ok, gguf.WriteOptions{}, `"": the key is empty`},
		{"key twice", []gguf.KV{{"k", uint8(1)}, {"k", uint8(1)}}, ok, gguf.WriteOptions{}, "k: the key is there twice"},
		{"key not UTF-8", []gguf.KV{{"\xff", uint8(1)}}, ok, gguf.WriteOptions{}, "not valid UTF-8"},
		{"value", []gguf.KV{{"k", 1}}, ok, gguf.WriteOptions{}, "k: a value of Go type int cannot be stored"},
		{"nil", []gguf.KV{{"k", nil}}, ok, gguf.WriteOptions{}, "k: a value of Go type <nil>"},
		{"string not UTF-8", []gguf.KV{{"k", "\xff"}}, ok, gguf.WriteOptions{}, "k: "},
		{"strings not UTF-8", []gguf.KV{{"k", []string{"a", "\xff"}}}, ok, gguf.WriteOptions{}, "k: element 1: "},
		{"array lies", []gguf.KV{{"k", gguf.Array{Elem: gguf.Int8, Values: []uint8{1}}}}, ok, gguf.WriteOptions{},
			"k: an array of int8 cannot hold a Go []uint8"},
		{"array too deep", []gguf.KV{{"k", deep}}, ok, gguf.WriteOptions{}, "nested more than 8 deep"},
		{"alignment", []gguf.KV{{"general.alignment", uint32(3)}}, ok, gguf.WriteOptions{},
			"general.alignment: 3 is not a power of two"},
		{"tensor empty", nil, spec("", quant.F32, 1), gguf.WriteOptions{}, "the name is empty"},
		{"tensor long", nil, spec(long, quant.F32, 1), gguf.WriteOptions{}, "longer than 63 bytes"},
		{"tensor twice", nil, append(ok[:1:1], ok...), gguf.WriteOptions{}, `tensor "a": the name is there twice`},
		{"dims", nil, spec("a", quant.F32, 1, 1, 1, 1, 1), gguf.WriteOptions{}, `tensor "a": 5 dimensions`},
		{"dim 0", nil, spec("a", quant.F32, 0), gguf.WriteOptions{}, `tensor "a": dimension 0 is 0`},
		{"overflow", nil, spec("a", quant.F32, 1<<40, 1<<40), gguf.WriteOptions{}, `tensor "a": shape`},
		{"type", nil, spec("a", 999, 1), gguf.WriteOptions{}, `tensor "a": unknown type 999`},
		{"block", nil, spec("a", quant.Q8_0, 31), gguf.WriteOptions{}, `tensor "a": rows of 31 values`},
		{"parts", nil, ok, gguf.WriteOptions{PartTensors: []int{1, 1}}, "split: the parts hold 2 tensors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := gguf.Create(filepath.Join(dir, "x.gguf"), c.kvs, c.tensors, c.opt)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want it to contain %q", err, c.want)
			}
			if left := files(t, dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	if _, err := gguf.Create(filepath.Join(t.TempDir(), "no", "such", "x.gguf"), nil, nil,
		gguf.WriteOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such folder: got error %v", err)
	}
}

// TestNothingLeft breaks off in every way there is: what stood at the path
// before must still be there, and nothing else.
func TestNothingLeft(t *testing.T) {
	type step func(w *gguf.Writer) error
	write := func(name string, n int) step {
		return func(w *gguf.Writer) error { return w.WriteTensor(name, make([]byte, n)) }
	}
	for _, c := range []struct {
		name  string
		steps []step
		abort bool
		want  string
	}{
		{"nothing written", nil, false, `tensor "a": 4 bytes of data are missing`},
		{"some missing", []step{write("a", 4), write("b", 30)}, false, `tensor "b": 4 bytes of data are missing`},
		{"too much", []step{write("a", 5)}, false, `tensor "a": 5 bytes of data, expected 4`},
		{"out of order", []step{write("b", 34)}, false, `tensor "b": written out of order, expected tensor "a"`},
		{"next before complete", []step{write("a", 2), write("b", 34)}, false, `expected tensor "a" with 2 more bytes`},
		{"unknown", []step{write("a", 4), write("z", 1)}, false, `tensor "z": written out of order`},
		{"one too many", []step{write("a", 4), write("b", 34), write("c", 64), write("d", 4), write("scalar", 4),
			write("e", 1)}, false, "all 5 tensors are already written"},
		{"abort", []step{write("a", 4)}, true, ""},
		{"abort when complete", []step{write("a", 4), write("b", 34), write("c", 64), write("d", 4), write("scalar", 4)},
			true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, opt := range []gguf.WriteOptions{{}, {SplitTensors: 2}} {
				dir := t.TempDir()
				path := filepath.Join(dir, "x.gguf")
				if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
					t.Fatal(err)
				}
				w := create(t, path, nil, opt)
				var err error
				for _, s := range c.steps {
					if err = s(w); err != nil {
						break
					}
				}
				if c.abort {
					w.Abort()
				} else if cerr := w.Close(); err == nil {
					err = cerr
				} else if cerr == nil {
					t.Error("Close forgets the error")
				}
				if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got error %v, want it to contain %q", err, c.want)
				}
				if err := w.WriteTensor("a", []byte{1}); err == nil {
					t.Error("writing goes on after the end")
				}
				if left := files(t, dir); len(left) != 1 {
					t.Errorf("files after: %v", left)
				}
				if b, _ := os.ReadFile(path); string(b) != "old" {
					t.Errorf("the old file changed to %q", b)
				}
			}
		})
	}
}

// TestStaleFiles: temporary files of a process that was killed are removed by the next one that writes the same file;
// those of one that still writes it stay, and so does everything else.
func TestStaleFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	tensors := []gguf.TensorSpec{{"t", quant.F32, []int{1}}}
	alive, err := gguf.Create(path, nil, tensors, gguf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	writing, _ := filepath.Glob(path + ".tmp-*")
	stay := append(writing, path+".tmp-folder", path+".tmp-0123456", path+".tmp-0123456x", path+".tmp-012345678",
		filepath.Join(dir, "n.gguf.tmp-01234567"), filepath.Join(dir, "am.gguf.tmp-01234567"))
	for _, p := range stay[1:] {
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(path+".tmp-aaaaaaaa", 0o777); err != nil {
		t.Fatal(err)
	}
	stay = append(stay, path+".tmp-aaaaaaaa")
	for _, name := range []string{"01234567", "89abcdef"} {
		if err := os.WriteFile(path+".tmp-"+name, []byte("half a model"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	second, err := gguf.Create(path, nil, tensors, gguf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*gguf.Writer{second, alive} {
		if err := errors.Join(w.WriteTensor("t", make([]byte, 4)), w.Close()); err != nil {
			t.Errorf("two writers of one file: %v", err)
		}
	}
	got, _ := filepath.Glob(filepath.Join(dir, "*"))
	want := append(stay[1:], path)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("files are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRenameFails(t *testing.T) {
	dir := t.TempDir()
	opt := gguf.WriteOptions{SplitTensors: 2}
	w := create(t, filepath.Join(dir, "x.gguf"), nil, opt)
	// A folder comes to stand where the second part must go.
	if err := os.MkdirAll(filepath.Join(dir, "x-00002-of-00003.gguf", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, s := range five() {
		if err := w.WriteTensor(s.Name, fill(i, fiveSizes[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err == nil {
		t.Error("Close succeeds")
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := gguf.Create(filepath.Join(dir, "x.gguf"), nil, five(), opt); err == nil ||
		!strings.Contains(err.Error(), "is a folder") {
		t.Errorf("a folder that was there before: %v", err)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestModeFollowsUmask(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	writeFive(t, create(t, filepath.Join(dir, "x.gguf"), nil, gguf.WriteOptions{}))
	a, err := os.Stat(plain)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(filepath.Join(dir, "x.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if a.Mode() != b.Mode() {
		t.Errorf("mode is %v, other new files have %v", b.Mode(), a.Mode())
	}
}

// TestOpenIsLazy: opening must not decode the vocabulary, so the number of
// allocations does not depend on its size.
func TestOpenIsLazy(t *testing.T) {
	open := func(n int) float64 {
		words := make([]string, n)
		for i := range words {
			words[i] = fmt.Sprintf("word%d", i)
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		w, err := gguf.Create(path, []gguf.KV{{"words", words}}, nil, gguf.WriteOptions{})
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return testing.AllocsPerRun(5, func() {
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		})
	}
	if few, many := open(10), open(100_000); many > few+2 {
		t.Errorf("%v allocations for 10 words, %v for 100000", few, many)
	}
}

// TestStringsOutliveFile reads strings after the mapping is gone.
func TestStringsOutliveFile(t *testing.T) {
	f, err := gguf.Open(testkit.Golden(t, "qwen35/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	tokens, ok, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil || !ok || len(tokens) == 0 {
		t.Fatalf("%d tokens, ok %v, error %v", len(tokens), ok, err)
	}
	f.Close()
	f.Close()
	if n := len(strings.Join(tokens, "")); n == 0 {
		t.Error("all tokens are empty")
	}
	if _, _, err := f.String("general.architecture"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reading a value after Close: got error %v", err)
	}
}

func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(testkit.Shared(b, "vocab"), "ggml-vocab-qwen35.gguf")
	for b.Loop() {
		f, err := gguf.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func BenchmarkStrings(b *testing.B) {
	f, err := gguf.Open(filepath.Join(testkit.Shared(b, "vocab"), "ggml-vocab-qwen35.gguf"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		if _, _, err := f.Strings("tokenizer.ggml.tokens"); err != nil {
			b.Fatal(err)
		}
	}
}
