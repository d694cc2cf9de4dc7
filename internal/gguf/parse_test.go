package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"strobe/internal/quant"
)

// raw builds files byte by byte, without the writer and without its checks.
type raw []byte

func (r *raw) u32(v uint32) *raw { *r = binary.LittleEndian.AppendUint32(*r, v); return r }
func (r *raw) u64(v uint64) *raw { *r = binary.LittleEndian.AppendUint64(*r, v); return r }
func (r *raw) str(s string) *raw { r.u64(uint64(len(s))); *r = append(*r, s...); return r }
func (r *raw) bytes(b ...byte) *raw {
	*r = append(*r, b...)
	return r
}

func head(nTensors, nKV uint64) *raw {
	r := raw("GGUF")
	return r.u32(3).u64(nTensors).u64(nKV)
}

func (r *raw) key(key string, t ValueType) *raw { return r.str(key).u32(uint32(t)) }

func (r *raw) array(key string, elem ValueType, n uint64) *raw {
	return r.key(key, ArrayOf).u32(uint32(elem)).u64(n)
}

func (r *raw) tensor(name string, typ uint32, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(typ).u64(offset)
}

func (r *raw) pad(align int) *raw {
	for len(*r)%align != 0 {
		*r = append(*r, 0)
	}
	return r
}

// every is a valid file with a value of every type and two tensors.
func every() []byte {
	r := head(2, 19)
	r.key("u8", Uint8).bytes(200)
	r.key("i8", Int8).bytes(0xfe)
	r.key("u16", Uint16).bytes(0x34, 0x12)
	r.key("i16", Int16).bytes(0xff, 0xff)
	r.key("u32", Uint32).u32(1 << 31)
	r.key("i32", Int32).u32(math.MaxUint32)
	r.key("f32", Float32).u32(math.Float32bits(0.5))
	r.key("bool", Bool).bytes(1)
	r.key("string", String).str("grüße")
	r.key("u64", Uint64).u64(math.MaxUint64)
	r.key("i64", Int64).u64(math.MaxUint64)
	r.key("f64", Float64).u64(math.Float64bits(-2.5))
	r.array("strings", String, 3).str("a").str("").str("日本")
	r.array("bools", Bool, 2).bytes(0, 1)
	r.array("ints", Int32, 2).u32(7).u32(math.MaxUint32)
	r.array("floats", Float32, 1).u32(math.Float32bits(1.5))
	r.array("none", Uint64, 0)
	r.array("nested", ArrayOf, 2)
	r.u32(uint32(Uint8)).u64(2).bytes(5, 6)
	r.u32(uint32(ArrayOf)).u64(1).u32(uint32(String)).u64(1).str("deep")
	r.key("general.alignment", Uint32).u32(64)
	r.tensor("a", uint32(quant.F32), 0, 3)
	r.tensor("b.weight", uint32(quant.Q8_0), 64, 32, 2)
	r.pad(64)
	r.bytes(make([]byte, 64)...).bytes(make([]byte, 128)...)
	return *r
}

func mustParse(t testing.TB, data []byte) *File {
	t.Helper()
	f, err := Parse("x.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestValues(t *testing.T) {
	f := mustParse(t, every())
	want := map[string]string{
		"u8": "200", "i8": "-2", "u16": "4660", "i16": "-1", "u32": "2147483648", "i32": "-1", "f32": "0.5",
		"bool": "true", "string": "grüße", "u64": "18446744073709551615", "i64": "-1", "f64": "-2.5",
		"strings": "{string [a  日本]}", "bools": "{bool [false true]}", "ints": "{int32 [7 -1]}",
		"floats": "{float32 [1.5]}", "none": "{uint64 []}",
		"nested": "{array [{uint8 [5 6]} {array [{string [deep]}]}]}", "general.alignment": "64",
	}
	if len(f.Keys()) != len(want) {
		t.Errorf("got %d keys, want %d", len(f.Keys()), len(want))
	}
	for _, key := range f.Keys() {
		v, ok, err := f.Value(key)
		if got := fmt.Sprint(v); !ok || err != nil || got != want[key] {
			t.Errorf("%s: got %s, ok %v, error %v; want %s", key, got, ok, err, want[key])
		}
	}
	if k, _ := f.Kind("strings"); k.String() != "[3]string" {
		t.Errorf("kind of strings: got %s", k)
	}
	if f.Alignment() != 64 || f.Version() != 3 || f.Path() != "x.gguf" || f.Parts() != 1 {
		t.Errorf("got alignment %d, version %d, path %s, parts %d", f.Alignment(), f.Version(), f.Path(), f.Parts())
	}
	b := f.Tensor("b.weight")
	if b == nil || b.Elems() != 64 || b.Rows() != 2 || len(b.Data) != 68 || f.Tensor("c") != nil {
		t.Errorf("tensor b.weight: got %+v", b)
	}
}

func TestGetters(t *testing.T) {
	f := mustParse(t, every())
	// One line per getter and key: what it gives, or the error's last part.
	show := func(v any, ok bool, err error) string {
		var e *Error
		switch {
		case errors.As(err, &e):
			return "error: " + e.Err.Error()
		case !ok:
			return "missing"
		}
		return fmt.Sprint(v)
	}
	for _, c := range []struct{ got, want string }{
		{show(f.Uint("u8")), "200"},
		{show(f.Uint("i8")), "error: -2 is negative"},
		{show(f.Uint("u64")), "18446744073709551615"},
		{show(f.Uint("f32")), "error: wrong type: is float32, expected an integer"},
		{show(f.Uint("ints")), "error: wrong type: is [2]int32, expected an integer"},
		{show(f.Uint("absent")), "missing"},
		{show(f.Int("i32")), "-1"},
		{show(f.Int("u32")), "2147483648"},
		{show(f.Int("u64")), "error: 18446744073709551615 is too large"},
		{show(f.Int("bool")), "error: wrong type: is bool, expected an integer"},
		{show(f.Float("f64")), "-2.5"},
		{show(f.Float("i16")), "-1"},
		{show(f.Float("u32")), "2.147483648e+09"},
		{show(f.Float("string")), "error: wrong type: is string, expected a number"},
		{show(f.Bool("bool")), "true"},
		{show(f.Bool("u8")), "error: wrong type: is uint8, expected a bool"},
		{show(f.String("string")), "grüße"},
		{show(f.String("strings")), "error: wrong type: is [3]string, expected a string"},
		{show(f.Ints("ints")), "[7 -1]"},
		{show(f.Ints("bools")), "[0 1]"},
		{show(f.Ints("none")), "[]"},
		{show(f.Ints("u32")), "error: wrong type: is uint32, expected an array of integers"},
		{show(f.Ints("floats")), "error: wrong type: is [1]float32, expected an array of integers"},
		{show(f.Floats("floats")), "[1.5]"},
		{show(f.Floats("ints")), "[7 -1]"},
		{show(f.Floats("strings")), "error: wrong type: is [3]string, expected an array of numbers"},
		{show(f.Bools("bools")), "[false true]"},
		{show(f.Bools("ints")), "error: element 0: 7 is not a bool"},
		{show(f.Bools("nested")), "error: wrong type: is [2]array, expected an array of bools"},
		{show(f.Strings("strings")), "[a  日本]"},
		{show(f.Strings("string")), "error: wrong type: is string, expected an array of strings"},
		{show(f.Strings("absent")), "missing"},
		{show(f.Value("absent")), "missing"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if _, _, err := f.Uint("f32"); !errors.Is(err, ErrType) ||
		err.Error() != "x.gguf: f32: wrong type: is float32, expected an integer" {
		t.Errorf("got error %v", err)
	}
}

// TestTruncation cuts a file at every byte: each piece must be refused with one
// line that names the file, and the whole must be accepted.
func TestTruncation(t *testing.T) {
	data := every()
	// The padding after the last tensor may be missing; other readers agree.
	need := len(data) - 60
	for n := range need {
		_, err := Parse("x.gguf", data[:n])
		checkError(t, fmt.Sprintf("%d of %d bytes", n, len(data)), err)
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("%d of %d bytes: error %q does not say that the file is truncated", n, len(data), err)
		}
	}
	for n := need; n <= len(data); n++ {
		if _, err := Parse("x.gguf", data[:n]); err != nil {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
		}
	}
}

func checkError(t *testing.T, what string, err error) {
	t.Helper()
	var e *Error
	switch {
	case err == nil:
		t.Errorf("%s: accepted", what)
	case !errors.As(err, &e):
		t.Errorf("%s: error of type %T: %v", what, err, err)
	case e.Path != "x.gguf" || e.Field == "" || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300:
		t.Errorf("%s: not one clear line: %q", what, err)
	}
}

func TestBadFiles(t *testing.T) {
	f32, q4 := uint32(quant.F32), uint32(quant.Q4_K)
	kvOnly := func(build func(r *raw)) []byte {
		r := head(0, 1)
		build(r)
		return *r.bytes(make([]byte, 64)...)
	}
	tensors := func(n int, build func(r *raw)) []byte {
		r := head(uint64(n), 0)
		build(r)
		return *r.pad(32).bytes(make([]byte, 256)...)
	}
	version := func(v uint32) []byte {
		b := every()
		binary.LittleEndian.PutUint32(b[4:], v)
		return b
	}
	const huge = math.MaxUint64
	for _, c := range []struct {
		name string
		data []byte
		want string // part of the message
	}{
		{"empty", nil, "magic: file is truncated"},
		{"another format", []byte("PK\x03\x04 and then some"), "not a GGUF file"},
		{"pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0"), "git lfs pull"},
		{"web page", []byte("<!DOCTYPE html>"), "a web page"},
		{"safetensors", []byte("\x10\x00\x00\x00\x00\x00\x00\x00{\"a\":"), "strobe convert"},
		{"version 1", version(1), "version: version 1"},
		{"version 4", version(4), "version: version 4"},
		{"big endian", version(3 << 24), "big-endian"},
		{"tensor count", *head(huge, 0), "tensor count: file is truncated: 18446744073709551615 tensors"},
		{"key count", *head(0, huge), "key count: file is truncated"},
		{"key length", kvOnly(func(r *raw) { r.u64(huge) }), "key 1 of 1: length 18446744073709551615"},
		{"key empty", kvOnly(func(r *raw) { r.key("", Uint8) }), "key 1 of 1: is empty"},
		{"key not UTF-8", kvOnly(func(r *raw) { r.key("a\xff", Uint8) }), `key 1 of 1: "a\xff" is not valid UTF-8`},
		{"key twice", *head(0, 2).key("k", Uint8).bytes(1).key("k", Uint8).bytes(2), "k: the key is there twice"},
		{"value type", kvOnly(func(r *raw) { r.key("k", 13) }), "k: unknown value type 13"},
		{"value type huge", kvOnly(func(r *raw) { r.key("k", math.MaxUint32) }), "k: unknown value type 4294967295"},
		{"string length", kvOnly(func(r *raw) { r.key("k", String).u64(huge) }),
			"k: file is truncated: a string of 18446744073709551615"},
		{"string length just over", kvOnly(func(r *raw) { r.key("k", String).u64(65) }),
			"k: file is truncated: a string of 65"},
		{"array type", kvOnly(func(r *raw) { r.array("k", 99, 1) }), "k: unknown value type 99"},
		{"array count", kvOnly(func(r *raw) { r.array("k", Uint32, huge) }), "k: file is truncated"},
		{"array count overflows", kvOnly(func(r *raw) { r.array("k", Uint64, 1<<61) }), "k: file is truncated"},
		{"array of strings count", kvOnly(func(r *raw) { r.array("k", String, 1<<60) }), "k: file is truncated"},
		{"array of strings length", kvOnly(func(r *raw) { r.array("k", String, 2).str("a").u64(1 << 62) }),
			"k: file is truncated"},
		{"array of arrays count", kvOnly(func(r *raw) { r.array("k", ArrayOf, 1<<60) }), "k: file is truncated"},
		{"array of arrays of nothing", kvOnly(func(r *raw) { r.array("k", ArrayOf, 1).u32(77).u64(0) }),
			"k: unknown value type 77"},
		{"nested too deep", kvOnly(func(r *raw) {
			r.array("k", ArrayOf, 1)
			for range 1000 {
				r.u32(uint32(ArrayOf)).u64(1)
			}
		}), "k: arrays are nested more than 8 deep"},
		{"alignment 0", kvOnly(func(r *raw) { r.key("general.alignment", Uint32).u32(0) }),
			"general.alignment: 0 is not a power of two"},
		{"alignment 48", kvOnly(func(r *raw) { r.key("general.alignment", Uint32).u32(48) }), "general.alignment: 48"},
		{"alignment huge", kvOnly(func(r *raw) { r.key("general.alignment", Uint32).u32(1 << 31) }),
			"general.alignment: 2147483648"},
		{"alignment string", kvOnly(func(r *raw) { r.key("general.alignment", String).str("32") }),
			"general.alignment: wrong type"},
		{"tensor name empty", tensors(1, func(r *raw) { r.tensor("", f32, 0, 1) }), "name of tensor 1 of 1: is empty"},
		{"tensor name long", tensors(1, func(r *raw) { r.tensor(strings.Repeat("n", 64), f32, 0, 1) }),
			"length 64 is over the limit"},
		{"tensor name not UTF-8", tensors(1, func(r *raw) { r.tensor("\xc3", f32, 0, 1) }), "not valid UTF-8"},
		{"tensor name twice", tensors(2, func(r *raw) { r.tensor("a", f32, 0, 8).tensor("a", f32, 32, 8) }),
			`tensor "a": the name is there twice`},
		{"dimensions", tensors(1, func(r *raw) { r.tensor("a", f32, 0, 1, 1, 1, 1, 1) }), `tensor "a": 5 dimensions`},
		{"dimension 0", tensors(1, func(r *raw) { r.tensor("a", f32, 0, 4, 0) }), `tensor "a": dimension 1 is 0`},
		{"dimension negative", tensors(1, func(r *raw) { r.tensor("a", f32, 0, huge) }), `tensor "a": dimension 0 is -1`},
		{"shape overflows", tensors(1, func(r *raw) { r.tensor("a", f32, 0, 1<<31, 1<<31, 1<<31) }), `tensor "a": shape`},
		{"shape overflows to 0", tensors(1, func(r *raw) { r.tensor("a", f32, 0, 1<<32, 1<<32) }), `tensor "a": shape`},
		{"shape too large", tensors(1, func(r *raw) { r.tensor("a", f32, 0, 1<<40) }), `tensor "a": file is truncated`},
		{"retired type", tensors(1, func(r *raw) { r.tensor("a", 4, 0, 32) }), `tensor "a": unknown type 4`},
		{"repacked type", tensors(1, func(r *raw) { r.tensor("a", 33, 0, 32) }),
			`tensor "a": type 33, Q4_0 in the order of some processors, is retired; get a file in Q4_0`},
		{"unknown type", tensors(1, func(r *raw) { r.tensor("a", 1000, 0, 32) }), `tensor "a": unknown type 1000`},
		{"half a block", tensors(1, func(r *raw) { r.tensor("a", q4, 0, 128, 2) }),
			`tensor "a": rows of 128 values are not a multiple of Q4_K's block of 256`},
		{"offset not aligned", tensors(1, func(r *raw) { r.tensor("a", f32, 4, 1) }),
			`tensor "a": offset 4 is not a multiple of the alignment 32`},
		{"overlap", tensors(2, func(r *raw) { r.tensor("a", f32, 0, 16).tensor("b", f32, 32, 1) }),
			`tensor "b": offset 32 overlaps`},
		{"same place", tensors(2, func(r *raw) { r.tensor("a", f32, 0, 1).tensor("b", f32, 0, 1) }),
			`tensor "b": offset 0 overlaps`},
		{"out of order", tensors(2, func(r *raw) { r.tensor("a", f32, 32, 1).tensor("b", f32, 0, 1) }),
			`tensor "a": offset 32 leaves a gap`},
		{"gap", tensors(2, func(r *raw) { r.tensor("a", f32, 0, 1).tensor("b", f32, 64, 1) }),
			`tensor "b": offset 64 leaves a gap`},
		{"offset huge", tensors(1, func(r *raw) { r.tensor("a", f32, huge-31, 1) }),
			`tensor "a": offset 18446744073709551584 leaves a gap`},
		{"sizes overflow", tensors(4, func(r *raw) {
			const n, f64 = 1 << 58, uint32(quant.F64)
			r.tensor("a", f64, 0, n).tensor("b", f64, 8*n, n).tensor("c", f64, 16*n, n).tensor("d", f64, 24*n, n)
		}), `tensor "d": size 2305843009213693952 is too large`},
		{"data cut", tensors(2, func(r *raw) { r.tensor("a", f32, 0, 8).tensor("b", f32, 32, 64) }),
			`tensor "b": file is truncated: its data ends at byte`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse("x.gguf", c.data)
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

// TestBadValues opens files whose header is sound but whose values are not.
func TestBadValues(t *testing.T) {
	r := head(0, 5)
	r.key("text", String).str("a\xffb")
	r.array("texts", String, 2).str("ok").str("\xf0\x28")
	r.key("flag", Bool).bytes(2)
	r.array("flags", Bool, 2).bytes(1, 3)
	r.array("nested", ArrayOf, 1).u32(uint32(Bool)).u64(1).bytes(9)
	f := mustParse(t, *r)
	for _, c := range []struct {
		key, want string
		get       func() error
	}{
		{"text", `x.gguf: text: "a\xffb" is not valid UTF-8`, func() error { _, _, err := f.String("text"); return err }},
		{"texts", `x.gguf: texts: element 1: "\xf0(" is not valid UTF-8`,
			func() error { _, _, err := f.Strings("texts"); return err }},
		{"flag", `x.gguf: flag: 2 is not a bool`, func() error { _, _, err := f.Bool("flag"); return err }},
		{"flags", `x.gguf: flags: element 1: 3 is not a bool`, func() error { _, _, err := f.Bools("flags"); return err }},
		{"nested", `x.gguf: nested: element 0: element 0: 9 is not a bool`,
			func() error { _, _, err := f.Value("nested"); return err }},
	} {
		if err := c.get(); err == nil || err.Error() != c.want {
			t.Errorf("%s: got error %v, want %s", c.key, err, c.want)
		}
		if _, _, err := f.Value(c.key); err == nil {
			t.Errorf("%s: Value accepts it", c.key)
		}
	}
	if _, err := f.KVs(); err == nil {
		t.Error("KVs accepts bad values")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(every())
	f.Add([]byte(*head(0, 0)))
	f.Add([]byte(*head(1, 1).array("tokenizer.ggml.tokens", String, 2).str("a").str("b").tensor("t", 0, 0,
		1).pad(32).u32(1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("x.gguf", data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
			return
		}
		for _, key := range file.Keys() {
			file.Uint(key)
			file.Int(key)
			file.Float(key)
			file.Bool(key)
			file.String(key)
			file.Ints(key)
			file.Floats(key)
			file.Bools(key)
			file.Strings(key)
		}
		for _, tn := range file.Tensors() {
			if want := tn.Elems() / tn.Type.BlockLen() * tn.Type.BlockBytes(); len(tn.Data) != want {
				t.Errorf("tensor %q has %d bytes, want %d", tn.Name, len(tn.Data), want)
			}
		}
		kvs, err := file.KVs()
		if err != nil {
			return
		}
		// What was read encodes to the bytes it was read from.
		w := &Writer{path: "y.gguf"}
		if err := w.checkTensors(file.Specs()); err != nil {
			t.Fatalf("the writer refuses what was read: %v", err)
		}
		layout(w.specs, 0, file.Alignment())
		again, err := w.header(file.Version(), kvs, w.specs)
		if err != nil {
			t.Fatalf("the writer refuses what was read: %v", err)
		}
		if got, want := string(again), string(data[:file.parts[0].headerEnd]); got != want {
			t.Errorf("header changed:\n got %q\nwant %q", got, want)
		}
	})
}
