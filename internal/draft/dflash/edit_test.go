package dflash

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// edit is a drafter file that a test changes before it is opened.
type edit struct {
	kvs     []gguf.KV
	tensors []*gguf.Tensor
	decoded map[*gguf.Tensor][]float64
}

// golden starts from a golden drafter.
func golden(t testing.TB, name string) *edit {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, "dflash-"+name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := &edit{}
	for _, k := range f.Keys() {
		if strings.HasPrefix(k, "tokenizer.") && k != "tokenizer.ggml.mask_token_id" {
			continue
		}
		v, _, err := f.Value(k)
		if err != nil {
			t.Fatal(err)
		}
		e.kvs = append(e.kvs, gguf.KV{Key: strings.Clone(k), Value: v})
	}
	for _, x := range f.Tensors() {
		e.tensors = append(e.tensors, &gguf.Tensor{Name: strings.Clone(x.Name), Type: x.Type, Shape: slices.Clone(x.Shape), Data: slices.Clone(x.Data)})
	}
	return e
}

func (e *edit) set(key string, v any) *edit {
	e.del(key)
	e.kvs = append(e.kvs, gguf.KV{Key: key, Value: v})
	return e
}

func (e *edit) get(key string) any {
	for _, kv := range e.kvs {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}

func (e *edit) del(key string) *edit {
	e.kvs = slices.DeleteFunc(e.kvs, func(kv gguf.KV) bool { return kv.Key == key })
	return e
}

func (e *edit) tensor(name string) *gguf.Tensor {
	for _, x := range e.tensors {
		if x.Name == name {
			return x
		}
	}
	return nil
}

func (e *edit) drop(name string) *edit {
	e.tensors = slices.DeleteFunc(e.tensors, func(x *gguf.Tensor) bool { return x.Name == name })
	return e
}

func (e *edit) rename(from, to string) *edit {
	e.tensor(from).Name = to
	return e
}

// put adds a float32 tensor.
func (e *edit) put(name string, v []float32, shape ...int) *edit {
	e.drop(name)
	data := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x))
	}
	e.tensors = append(e.tensors, &gguf.Tensor{Name: name, Type: quant.F32, Shape: shape, Data: data})
	return e
}

// random adds a tensor of normal values.
func (e *edit) random(name string, mean, dev float64, shape ...int) *edit {
	n, seed := 1, uint64(0)
	for _, s := range shape {
		n *= s
	}
	for _, c := range name {
		seed = seed*31 + uint64(c)
	}
	return e.put(name, normal(seed, n, mean, dev), shape...)
}

func normal(seed uint64, n int, mean, dev float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 9))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(mean + dev*r.NormFloat64())
	}
	return v
}

// putD2T adds a table of target ids.
func (e *edit) putD2T(ids []int64) *edit {
	e.drop("d2t")
	var data []byte
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint64(data, uint64(id))
	}
	e.tensors = append(e.tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{len(ids)}, Data: data})
	return e
}

func (e *edit) values(name string) []float64 {
	x := e.tensor(name)
	if v := e.decoded[x]; v != nil {
		return v
	}
	v := make([]float32, x.Elems())
	if err := quant.Dequantize(x.Type, v, x.Data); err != nil {
		panic(err)
	}
	if e.decoded == nil {
		e.decoded = make(map[*gguf.Tensor][]float64)
	}
	e.decoded[x] = wide(v)
	return e.decoded[x]
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// write puts the file in a folder of the test.
func (e *edit) write(t testing.TB) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drafter.gguf")
	var specs []gguf.TensorSpec
	for _, x := range e.tensors {
		specs = append(specs, gguf.TensorSpec{Name: x.Name, Type: x.Type, Shape: x.Shape})
	}
	w, err := gguf.Create(path, e.kvs, specs, gguf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range e.tensors {
		if err := w.WriteTensor(x.Name, x.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// open loads the edited drafter for a target.
func (e *edit) open(t testing.TB, m *model.Model, opt Options) *Drafter {
	t.Helper()
	if k, _ := opt.KV.Of(0); k == quant.F16 { // nothing was asked for
		opt.KV = cache.Uniform(quant.F32)
	}
	d, err := Open(e.write(t), m, opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openTarget loads a golden target.
func openTarget(t testing.TB, name string) *model.Model {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	t.Cleanup(func() { b.Close() })
	f, err := gguf.Open(testkit.Golden(t, name+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m, err := model.Open(f, testkit.NewDevice(t, b), model.Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// context is random features of n tokens, and a drafter's sequence that has seen them.
func context(t testing.TB, d *Drafter, seed uint64, n int) (*cache.Seq, []float32) {
	t.Helper()
	width := len(d.Capture()) * d.target.Hidden
	v := normal(seed, n*width, 0, 1)
	seq := d.NewSeq()
	feed(t, d, seq, v)
	return seq, v
}

// feed extends a sequence by feature rows.
func feed(t testing.TB, d *Drafter, seq *cache.Seq, v []float32) {
	t.Helper()
	width := len(d.Capture()) * d.target.Hidden
	n := len(v) / width
	if n == 0 {
		return
	}
	x := upload(d.b, v, n, width)
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	if err := d.Extend(x, []draft.Rows{{Seq: seq, Rows: rows}}); err != nil {
		t.Fatal(err)
	}
}

func upload(b backend.Backend, v []float32, rows, cols int) backend.Tensor {
	x, err := b.Alloc(rows, cols)
	if err != nil {
		panic(err)
	}
	b.Write(x, v)
	return x
}

func blockLogits(t testing.TB, d *Drafter, seq *cache.Seq, last int32) []float32 {
	t.Helper()
	v, err := d.BlockLogits(seq, last)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(v)
}

func propose(t testing.TB, d *Drafter, top int, reqs ...draft.Request) []draft.Proposal {
	t.Helper()
	p, err := d.Draft(reqs, top)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}
