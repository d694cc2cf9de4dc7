package dflash

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
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
	"strobe/internal/testkit/edit"
)

// drafterFile is the file of a drafter that a test changes before it is opened.
type drafterFile struct {
	*edit.File
	decoded map[*gguf.Tensor][]float64
}

// golden starts from a golden drafter. It has no vocabulary but the mask: drafters use their target's.
func golden(t testing.TB, name string) *drafterFile {
	t.Helper()
	e := &drafterFile{File: edit.Golden(t, "dflash-"+name)}
	e.KVs = slices.DeleteFunc(e.KVs, func(kv gguf.KV) bool {
		return strings.HasPrefix(kv.Key, "tokenizer.") && kv.Key != "tokenizer.ggml.mask_token_id"
	})
	return e
}

func (e *drafterFile) get(key string) any {
	for _, kv := range e.KVs {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}

// Those of edit.File, to go on with what follows.

func (e *drafterFile) set(key string, v any) *drafterFile {
	e.Set(key, v)
	return e
}

func (e *drafterFile) del(key string) *drafterFile { return e.set(key, nil) }

func (e *drafterFile) drop(name string) *drafterFile {
	e.Drop(name)
	return e
}

func (e *drafterFile) rename(from, to string) *drafterFile {
	e.Rename(from, to)
	return e
}

func (e *drafterFile) put(name string, v []float32, shape ...int) *drafterFile {
	e.Put(name, v, shape...)
	return e
}

// random adds a tensor of normal values.
func (e *drafterFile) random(name string, mean, dev float64, shape ...int) *drafterFile {
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
func (e *drafterFile) putD2T(ids []int64) *drafterFile {
	e.drop("d2t")
	var data []byte
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint64(data, uint64(id))
	}
	e.Tensors = append(e.Tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{len(ids)}, Data: data})
	return e
}

func (e *drafterFile) values(name string) []float64 {
	x := e.Tensor(name)
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
func (e *drafterFile) write(t testing.TB) *gguf.File {
	t.Helper()
	f, err := gguf.Open(e.Write(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// open loads the edited drafter for a target.
func (e *drafterFile) open(t testing.TB, m *model.Model, opt Options) *Drafter {
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
