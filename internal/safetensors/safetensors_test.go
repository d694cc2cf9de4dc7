package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// file puts a header of any text before n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func checkError(t *testing.T, what string, err error) {
	t.Helper()
	var e *safetensors.Error
	switch {
	case err == nil:
		t.Errorf("%s: accepted", what)
	case !errors.As(err, &e):
		t.Errorf("%s: error of type %T: %v", what, err, err)
	case e.Path == "" || e.Field == "" || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400:
		t.Errorf("%s: not one clear line: %q", what, err)
	}
}

const sound = `{"__metadata__":{"format":"pt"},"a":{"dtype":"F32",` +
	`"shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}`

func TestParse(t *testing.T) {
	f, err := safetensors.Parse("x.safetensors", file(sound, 10))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.Names(), f.Metadata(), f.Tensor("a").Shape, f.Tensor("b").Elems(), len(f.Tensor("b").Data),
		f.Tensor("c") == nil); got != "[a b] map[format:pt] [2 1] 1 2 true" {
		t.Errorf("got %s", got)
	}
	// Empty tensors share a place with their neighbours.
	if _, err := safetensors.Parse("x",
		file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,`+
			`4]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"z":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}`,
			4)); err != nil {
		t.Error(err)
	}
}

func TestTruncation(t *testing.T) {
	data := file(sound, 10)
	for n := range data {
		_, err := safetensors.Parse("x.safetensors", data[:n])
		checkError(t, fmt.Sprintf("%d of %d bytes", n, len(data)), err)
		if !errors.Is(err, safetensors.ErrTruncated) {
			t.Errorf("%d of %d bytes: error %q does not say that the file is truncated", n, len(data), err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	one := func(entry string) []byte { return file(`{"a":`+entry+`}`, 64) }
	length := func(n uint64) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), sound...)
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "header length: file is truncated"},
		{"length absurd", length(math.MaxUint64), "header length: 18446744073709551615 is over the limit"},
		{"pointer", []byte("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"},
		{"length too long", length(10_000), "header length: file is truncated: a header of 10000 bytes"},
		{"length too short", length(10), "header: not valid"},
		{"no JSON", file("hello", 0), "header: not valid"},
		{"a list", file("[]", 0), "header: is not a JSON object"},
		{"not UTF-8", file("{\"a\xff\":1}", 0), "header: is not valid UTF-8"},
		{"text after", file(`{} {}`, 0), "header: has text after"},
		{"name twice", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,`+
			`1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `tensor "a": the name is there twice`},
		{"metadata not text", file(`{"__metadata__":{"a":1}}`, 0), "__metadata__: not valid"},
		{"entry not an object", one(`7`), `tensor "a": not valid: unexpected JSON number`},
		{"entry null", one(`null`), `tensor "a": dtype is missing`},
		{"no dtype", one(`{"shape":[1],"data_offsets":[0,1]}`), `tensor "a": dtype is missing`},
		{"no shape", one(`{"dtype":"U8","data_offsets":[0,1]}`), `tensor "a": shape is missing`},
		{"no offsets", one(`{"dtype":"U8","shape":[1]}`), `tensor "a": data_offsets has 0 numbers`},
		{"three offsets", one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}`), `tensor "a": data_offsets has 3 numbers`},
		{"dtype unknown", one(`{"dtype":"Q9","shape":[1],"data_offsets":[0,1]}`), `tensor "a": unknown dtype "Q9"`},
		{"dtype not text", one(`{"dtype":3,"shape":[1],"data_offsets":[0,1]}`),
			`tensor "a": not valid: dtype: unexpected JSON number`},
		{"dimension negative", one(`{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}`), `tensor "a": dimension 0 is -1`},
		{"dimension not whole", one(`{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}`), `tensor "a": not valid: shape`},
		{"dimension overflows", one(`{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}`),
			`tensor "a": not valid`},
		{"shape overflows", one(`{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}`),
			`tensor "a": its shape is too large`},
		{"offset negative", one(`{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}`), `tensor "a": not valid: data_offsets`},
		{"offsets backwards", one(`{"dtype":"U8","shape":[1],"data_offsets":[2,1]}`),
			`tensor "a": data_offsets 2 to 1 go backwards`},
		{"size too small", one(`{"dtype":"F32","shape":[2],"data_offsets":[0,7]}`),
			`tensor "a": data_offsets hold 7 bytes, F32 of shape [2] needs 8`},
		{"size too large", one(`{"dtype":"F32","shape":[2],"data_offsets":[0,9]}`), `tensor "a": data_offsets hold 9 bytes`},
		{"half bytes", one(`{"dtype":"F4","shape":[3],"data_offsets":[0,1]}`),
			`tensor "a": 3 values of F4 do not fill whole bytes`},
		{"out of range", one(`{"dtype":"U8","shape":[65],"data_offsets":[0,65]}`),
			`tensor "a": file is truncated: its data ends at byte 65 of 64`},
		{"far out of range", one(`{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}`),
			`tensor "a": file is truncated`},
		{"overlap", file(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,`+
			`4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}`, 8), `tensor "b": its data overlaps that of tensor "a"`},
		{"same place", file(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,`+
			`4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 8), `overlaps`},
		{"inside another", file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,`+
			`8]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"c":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}`, 8),
			`overlaps`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := safetensors.Parse("x.safetensors", c.data)
			runtime.ReadMemStats(&after)
			checkError(t, c.name, err)
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %q, want it to contain %q", err, c.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("allocated %d bytes for a file of %d", n, len(c.data))
			}
		})
	}
}

// checkpoint writes two shards and an index with the given weight map.
func checkpoint(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	for name, tensor := range map[string]string{"one.safetensors": "a", "two.safetensors": "b"} {
		err := safetensors.Write(filepath.Join(dir, name), []safetensors.Tensor{
			{Name: tensor, DType: "U8", Shape: []int{1}, Data: []byte(tensor)},
			{Name: "unlisted." + tensor, DType: "U8", Shape: []int{1}, Data: []byte{0}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestShards(t *testing.T) {
	dir := checkpoint(t, `{"metadata":{"total_size":2},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}`)
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors.index.json")} {
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%v %s %s %v", f.Names(), f.Tensor("a").Data, f.Tensor("b").Data,
			f.Metadata()); got != "[a b] a b map[total_size:2]" {
			t.Errorf("got %s", got)
		}
		f.Close()
	}
}

func TestBadIndex(t *testing.T) {
	for _, c := range []struct{ name, index, want string }{
		{"not JSON", `{`, "index.json: not valid"},
		{"no map", `{}`, "weight_map: is missing or empty"},
		{"map of numbers", `{"weight_map":{"a":1}}`, "weight_map: unexpected JSON number"},
		{"shard missing", `{"weight_map":{"a":"one.safetensors","b":"three.safetensors"}}`,
			`weight_map: shard "three.safetensors" is missing`},
		{"tensor missing", `{"weight_map":{"a":"one.safetensors","c":"two.safetensors"}}`,
			`weight_map: tensor "c" is not in shard "two.safetensors"`},
		{"up", `{"weight_map":{"a":"../one.safetensors"}}`, "not a plain file name"},
		{"up on windows", `{"weight_map":{"a":"..\\one.safetensors"}}`, "not a plain file name"},
		{"absolute", `{"weight_map":{"a":"/etc/passwd"}}`, "not a plain file name"},
		{"drive", `{"weight_map":{"a":"C:one.safetensors"}}`, "not a plain file name"},
		{"dots", `{"weight_map":{"a":".."}}`, "not a plain file name"},
		{"empty", `{"weight_map":{"a":""}}`, "not a plain file name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := checkpoint(t, c.index)
			_, err := safetensors.Open(dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), dir) {
				t.Errorf("got error %v, want it to contain %q", err, c.want)
			}
		})
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	if _, err := safetensors.Open(dir); err == nil || !strings.Contains(err.Error(), "no .safetensors file") {
		t.Errorf("empty folder: got error %v", err)
	}
	if _, err := safetensors.Open(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: got error %v", err)
	}
	put := func(name string) {
		if err := safetensors.Write(filepath.Join(dir, name),
			[]safetensors.Tensor{{Name: name, DType: "U8", Shape: []int{0}}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	open := func(want string) {
		t.Helper()
		f, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := f.Names()[0]; got != want {
			t.Errorf("opened %s, want %s", got, want)
		}
	}
	put("only.safetensors")
	open("only.safetensors")
	put("other.safetensors")
	if _, err := safetensors.Open(dir); err == nil ||
		!strings.Contains(err.Error(), "only.safetensors, other.safetensors") {
		t.Errorf("two files: got error %v", err)
	}
	put("model.safetensors")
	open("model.safetensors")
}

func TestFloat32s(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		dtype string
		data  []byte
		want  []float32
	}{
		{"F32", []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, []float32{1, -2}},
		{"BF16", []byte{0x80, 0x3f, 0x80, 0xff}, []float32{1, -inf}},
		{"F16", []byte{0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x83, 0xff, 0x7b, 0x00, 0x7c, 0x00, 0xfc, 0x00, 0x04, 0x01,
			0x7e}, []float32{1, -2, 0x1p-24, -1023 * 0x1p-24, 65504, inf, -inf, 0x1p-14, nan}},
		{"F64", []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, []float32{1.5}},
		{"I64", []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, []float32{-2}},
		{"U64", []byte{2, 0, 0, 0, 0, 0, 0, 0}, []float32{2}},
		{"I32", []byte{0xff, 0xff, 0xff, 0xff}, []float32{-1}},
		{"U32", []byte{0, 0, 0, 0x80}, []float32{1 << 31}},
		{"I16", []byte{0xff, 0xff}, []float32{-1}},
		{"U16", []byte{0xff, 0xff}, []float32{65535}},
		{"I8", []byte{0x80, 1}, []float32{-128, 1}},
		{"U8", []byte{0x80, 1}, []float32{128, 1}},
		{"BOOL", []byte{1, 0}, []float32{1, 0}},
		{"F8_E4M3", []byte{0x38, 0xb8, 0x01, 0x7e, 0x7f, 0x08, 0x00}, []float32{1, -1, 0x1p-9, 448, nan, 0x1p-6, 0}},
		{"F8_E5M2", []byte{0x3c, 0xbc, 0x01, 0x7b, 0x7c}, []float32{1, -1, 0x1p-16, 57344, inf}},
	} {
		tn := safetensors.Tensor{Name: "t", DType: c.dtype, Shape: []int{len(c.want)}, Data: c.data}
		got, err := tn.Float32s()
		if err != nil || !slices.EqualFunc(got, c.want, func(a, b float32) bool { return a == b || a != a && b != b }) {
			t.Errorf("%s: got %v, error %v; want %v", c.dtype, got, err, c.want)
		}
	}
	tn := safetensors.Tensor{Name: "t", DType: "C64", Shape: []int{1}, Data: make([]byte, 8)}
	if _, err := tn.Float32s(); err == nil || !strings.Contains(err.Error(), `tensor "t": dtype "C64"`) {
		t.Errorf("C64: got error %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	u8 := func(name string, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: "U8", Shape: shape, Data: []byte{1}}
	}
	for _, c := range []struct {
		name    string
		tensors []safetensors.Tensor
		want    string
	}{
		{"twice", []safetensors.Tensor{u8("a", 1), u8("a", 1)}, `tensor "a": the name is there twice`},
		{"reserved", []safetensors.Tensor{u8("__metadata__", 1)}, "reserved"},
		{"not UTF-8", []safetensors.Tensor{u8("\xff", 1)}, "not valid UTF-8"},
		{"size", []safetensors.Tensor{u8("a", 2)}, `tensor "a": 1 bytes of data, U8 of shape [2] needs 2`},
		{"negative", []safetensors.Tensor{u8("a", -1)}, `dimension 0 is -1`},
		{"dtype", []safetensors.Tensor{{Name: "a", DType: "X", Data: []byte{1}}}, `unknown dtype "X"`},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.safetensors")
		err := safetensors.Write(path, c.tensors, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%s: got error %v, want it to contain %q", c.name, err, c.want)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
	}
	// A folder is in the way: the temporary file must go again.
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "x", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(dir, "x"), nil, nil); err == nil {
		t.Error("writing over a folder succeeds")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestGolden(t *testing.T) {
	for _, name := range testkit.GoldenModels(t) {
		for _, rel := range []string{"/expected.safetensors", "/hf"} {
			f, err := safetensors.Open(testkit.Golden(t, name+rel))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var tensors []safetensors.Tensor
			for _, n := range f.Names() {
				tn := f.Tensor(n)
				tensors = append(tensors, *tn)
				if v, err := tn.Float32s(); err != nil || len(v) != tn.Elems() {
					t.Errorf("%s%s: %s: %d values, error %v", name, rel, n, len(v), err)
				}
			}
			to := filepath.Join(t.TempDir(), "x.safetensors")
			meta := maps.Clone(f.Metadata())
			meta["<awkward & key>"] = "\"quoted\" \n é"
			if err := safetensors.Write(to, tensors, meta); err != nil {
				t.Fatal(err)
			}
			g, err := safetensors.Open(to)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if !slices.Equal(g.Names(), f.Names()) || !maps.Equal(g.Metadata(), meta) {
				t.Errorf("%s%s: names or metadata changed", name, rel)
			}
			for _, n := range f.Names() {
				a, b := f.Tensor(n), g.Tensor(n)
				if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) || !bytes.Equal(a.Data, b.Data) {
					t.Errorf("%s%s: %s changed", name, rel, n)
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(sound, 10))
	f.Add(file(`{}`, 0))
	f.Add(file(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := safetensors.Parse("x", data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
			return
		}
		var tensors []safetensors.Tensor
		for _, n := range file.Names() {
			tn := file.Tensor(n)
			if v, err := tn.Float32s(); err == nil && len(v) != tn.Elems() {
				t.Errorf("%q: %d values, want %d", n, len(v), tn.Elems())
			}
			tensors = append(tensors, *tn)
		}
		// What was read can be written and is the same when read again.
		path := filepath.Join(t.TempDir(), "x")
		if err := safetensors.Write(path, tensors, file.Metadata()); err != nil {
			t.Fatalf("the writer refuses what was read: %v", err)
		}
		again, err := safetensors.Open(path)
		if err != nil {
			t.Fatalf("the reader refuses what was written: %v", err)
		}
		defer again.Close()
		if !slices.Equal(again.Names(), file.Names()) || !maps.Equal(again.Metadata(), file.Metadata()) {
			t.Errorf("names or metadata changed")
		}
	})
}
