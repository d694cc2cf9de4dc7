package model

import (
	"fmt"
	"math"

	"strobe/backend"
	"strobe/cache"
	"strobe/gguf"
	"strobe/quant"
)

// loader reads metadata and binds tensors of one file. The first problem is kept in err, so that
// a model's definition reads as a list; whoever uses the values checks err before.
type loader struct {
	f     *gguf.File
	b     backend.Backend
	arch  string
	err   error
	bytes int

	kv          quant.Type
	layers      []cache.Layer
	delta       backend.DeltaDims
	deltaLayers int
}

func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("%s: %s", l.f.Path(), fmt.Sprintf(format, args...))
	}
}

func (l *loader) keep(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *loader) key(name string) string { return l.arch + "." + name }

// need reads a positive integer that the file must have.
func (l *loader) need(name string) int {
	v, ok, err := l.f.Uint(l.key(name))
	l.keep(err)
	if !ok && err == nil {
		l.fail("missing key %s", l.key(name))
	}
	return clampInt(v)
}

func (l *loader) int(name string, def int) int {
	v, ok, err := l.f.Uint(l.key(name))
	l.keep(err)
	if !ok || err != nil {
		return def
	}
	return clampInt(v)
}

// clampInt keeps absurd values representable; check rejects them.
func clampInt(v uint64) int { return int(min(v, 1<<40)) }

func (l *loader) float(name string, def float32) float32 {
	v, ok, err := l.f.Float(l.key(name))
	l.keep(err)
	if !ok || err != nil {
		return def
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		l.fail("key %s is %v", l.key(name), v)
	}
	return float32(v)
}

// perLayer reads a key that is one value for all layers or an array with one per layer.
func (l *loader) perLayer(name string, layers, def int) []int {
	out := make([]int, layers)
	k, ok := l.f.Kind(l.key(name))
	if ok && k.IsArray() {
		v, _, err := l.f.Ints(l.key(name))
		l.keep(err)
		if len(v) < layers {
			if err == nil {
				l.fail("key %s has %d entries for %d layers", l.key(name), len(v), layers)
			}
			return out
		}
		for i := range out {
			out[i] = clampInt(uint64(max(v[i], 0)))
		}
		return out
	}
	v := l.int(name, def)
	for i := range out {
		out[i] = v
	}
	return out
}

// dim is a hyper-parameter and the range it must be in.
type dim struct {
	name        string
	v, min, max int
}

func (l *loader) check(ds ...dim) error {
	for _, d := range ds {
		if d.v < d.min || d.v > d.max {
			l.fail("key %s is %d; want %d to %d", l.key(d.name), d.v, d.min, d.max)
		}
	}
	return l.err
}

func (l *loader) has(name string) bool { return l.f.Tensor(name) != nil }

// tensor finds a tensor and checks its shape; a zero in want stands for any size.
func (l *loader) tensor(name string, want ...int) *gguf.Tensor {
	t := l.f.Tensor(name)
	if t == nil {
		l.fail("missing tensor %q", name)
		return nil
	}
	if !sameShape(t.Shape, want) {
		l.fail("tensor %q has shape %v; want %v", name, t.Shape, want)
		return nil
	}
	return t
}

// sameShape compares shapes, ignoring trailing dimensions of 1.
func sameShape(got, want []int) bool {
	for i := range max(len(got), len(want)) {
		g, w := 1, 1
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w && !(w == 0 && g > 0) {
			return false
		}
	}
	return true
}

// matrix binds a weight of the given inputs and outputs (0 = any).
func (l *loader) matrix(name string, in, out int) backend.Weight {
	return l.bind(l.tensor(name, in, out))
}

// experts binds a stack of matrices.
func (l *loader) experts(name string, in, out, n int) backend.Weight {
	return l.bind(l.tensor(name, in, out, n))
}

// bind gives a tensor to the backend, with the scale that may accompany it.
func (l *loader) bind(t *gguf.Tensor) backend.Weight {
	if t == nil || l.err != nil {
		return nil
	}
	var scale *gguf.Tensor
	if base, ok := trimWeight(t.Name); ok && t.Type == quant.NVFP4 {
		scale = l.f.Tensor(base + ".scale")
	}
	w, err := l.b.Weight(t, scale)
	if err != nil {
		l.fail("%v", err)
		return nil
	}
	l.bytes += len(t.Data)
	return w
}

func trimWeight(name string) (string, bool) {
	const suffix = ".weight"
	if n := len(name) - len(suffix); n > 0 && name[n:] == suffix {
		return name[:n], true
	}
	return name, false
}

// rowsOf views rows [from, from+n) of a matrix as a tensor of its own.
func rowsOf(t *gguf.Tensor, name string, from, n int) *gguf.Tensor {
	rb := t.Type.RowBytes(t.Shape[0])
	return &gguf.Tensor{Name: name, Type: t.Type, Shape: []int{t.Shape[0], n}, Data: t.Data[from*rb:][:n*rb]}
}

// pickRows copies the named rows of a matrix into a tensor of its own.
func pickRows(t *gguf.Tensor, name string, rows []int) *gguf.Tensor {
	rb := t.Type.RowBytes(t.Shape[0])
	data := make([]byte, 0, len(rows)*rb)
	for _, r := range rows {
		data = append(data, t.Data[r*rb:][:rb]...)
	}
	return &gguf.Tensor{Name: name, Type: t.Type, Shape: []int{t.Shape[0], len(rows)}, Data: data}
}

// vector binds a parameter vector of n values (0 = any).
func (l *loader) vector(name string, n ...int) backend.Vector {
	t := l.tensor(name, n...)
	if t == nil || l.err != nil {
		return nil
	}
	v, err := l.b.Vector(t)
	if err != nil {
		l.fail("%v", err)
		return nil
	}
	return v
}

// floats reads a small tensor that the model itself needs.
func (l *loader) floats(name string, n ...int) []float32 {
	t := l.tensor(name, n...)
	if t == nil || l.err != nil {
		return nil
	}
	v := make([]float32, t.Elems())
	if err := quant.Dequantize(t.Type, v, t.Data); err != nil {
		l.fail("tensor %q: %v", name, err)
		return nil
	}
	return v
}

// scalar reads a tensor of one value.
func (l *loader) scalar(name string) float32 {
	v := l.floats(name, 1)
	if len(v) != 1 {
		return 1
	}
	return v[0]
}

// optional binds a vector that may be missing.
func (l *loader) optional(name string, n ...int) backend.Vector {
	if !l.has(name) {
		return nil
	}
	return l.vector(name, n...)
}

// attn adds a layer with keys and values to the cache and returns its number there.
func (l *loader) attn(heads, dim, window int) int {
	l.layers = append(l.layers, cache.Layer{
		KVDims: backend.KVDims{Heads: heads, KeyDim: dim, ValueDim: dim}, Window: window,
	})
	return len(l.layers) - 1
}

func (l *loader) spec() cache.Spec {
	return cache.Spec{Type: l.kv, Layers: l.layers, Delta: l.delta, DeltaLayers: l.deltaLayers}
}
