// Package nn holds what the model definitions of targets and drafters share: reading hyper-parameters and binding
// tensors (Loader), rotary embeddings, feed-forward layers, and the pass in progress (Step) with its memory (Arena).
package nn

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// Loader reads the metadata and binds the tensors of one file. It keeps the first problem in Err, so that a model's
// definition reads as a list; check Err before using the values.
type Loader struct {
	File    *gguf.File
	Devices []backend.Backend
	Arch    string // prefix of the keys
	Err     error
	Bytes   int      // of the bound weights
	Halves  bool     // products may round activations to halves, see backend.Matrix
	Weights *Weights // if set, gets the bound matrices, so that they can be parked
	// Bound, if set, is called with the size of every weight that was bound to a device.
	Bound func(bytes int)

	device  int      // to bind tensors to
	experts int      // to bind expert matrices to
	Arenas  []*Arena // per device; needed where experts are on another device than their layer

	// What the model stores per sequence, as its layers announce it.
	KV        cache.Types
	OneCache  bool // equal attention layers share one cache
	Layer     int  // number of the layer to bind
	Delta     backend.DeltaDims
	recurrent []int // device of each recurrent layer
	layers    []cache.Layer
}

// On chooses the device that gets what is bound from now on, and the one that gets experts.
func (l *Loader) On(device, experts int) { l.device, l.experts = device, experts }

// Fail keeps the first problem found.
func (l *Loader) Fail(format string, args ...any) {
	if l.Err == nil {
		l.Err = fmt.Errorf("%s: %s", l.File.Path(), fmt.Sprintf(format, args...))
	}
}

// Keep keeps err if it is the first problem found.
func (l *Loader) Keep(err error) {
	if l.Err == nil {
		l.Err = err
	}
}

// Key returns the full name of a key.
func (l *Loader) Key(name string) string { return l.Arch + "." + name }

// Need reads a positive integer that the file must have.
func (l *Loader) Need(name string) int {
	v, ok, err := l.File.Uint(l.Key(name))
	l.Keep(err)
	if !ok && err == nil {
		l.Fail("missing key %s", l.Key(name))
	}
	return clampInt(v)
}

// Int reads an integer, or def when the file has none.
func (l *Loader) Int(name string, def int) int {
	v, ok, err := l.File.Uint(l.Key(name))
	l.Keep(err)
	if !ok || err != nil {
		return def
	}
	return clampInt(v)
}

// clampInt keeps absurd values representable; Check rejects them.
func clampInt(v uint64) int { return int(min(v, 1<<40)) }

// Float reads a number, or def when the file has none.
func (l *Loader) Float(name string, def float32) float32 {
	v, ok, err := l.File.Float(l.Key(name))
	l.Keep(err)
	if !ok || err != nil {
		return def
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		l.Fail("key %s is %v", l.Key(name), v)
	}
	return float32(v)
}

// PerLayer reads a key that is one value for all layers or an array with one per layer.
func (l *Loader) PerLayer(name string, layers, def int) []int {
	out := make([]int, layers)
	k, ok := l.File.Kind(l.Key(name))
	if ok && k.IsArray() {
		v, _, err := l.File.Ints(l.Key(name))
		l.Keep(err)
		if len(v) < layers {
			if err == nil {
				l.Fail("key %s has %d entries for %d layers", l.Key(name), len(v), layers)
			}
			return out
		}
		for i := range out {
			out[i] = clampInt(uint64(max(v[i], 0)))
		}
		return out
	}
	v := l.Int(name, def)
	for i := range out {
		out[i] = v
	}
	return out
}

// Slides reads which layers have a window: listed one by one, or all but every n-th one. def is n where the file does
// not say.
func (l *Loader) Slides(layers, def int) []bool {
	const name = "attention.sliding_window_pattern"
	if k, ok := l.File.Kind(l.Key(name)); ok && k.IsArray() {
		slides, _, err := l.File.Bools(l.Key(name))
		l.Keep(err)
		if err == nil && len(slides) < layers {
			l.Fail("key %s has %d entries for %d layers", l.Key(name), len(slides), layers)
		}
		return slides[:min(len(slides), layers)]
	}
	n := l.Int(name, def)
	slides := make([]bool, layers)
	for i := range slides {
		slides[i] = n == 0 || i%n < n-1
	}
	return slides
}

// Dim is a hyper-parameter and the range it must be in.
type Dim struct {
	name           string
	v, least, most int
}

// Range says that key name has value v and must be between least and most.
func Range(name string, v, least, most int) Dim { return Dim{name, v, least, most} }

// Check fails on the first hyper-parameter out of range, before it can size anything.
func (l *Loader) Check(ds ...Dim) error {
	for _, d := range ds {
		if d.v < d.least || d.v > d.most {
			l.Fail("key %s is %d; want %d to %d", l.Key(d.name), d.v, d.least, d.most)
		}
	}
	return l.Err
}

// Heads reads the number of attention heads, how many of keys and values they share, and the size of a head.
func (l *Loader) Heads(hidden int) (heads, kv, dim int) {
	heads = l.Need("attention.head_count")
	kv = l.Int("attention.head_count_kv", heads)
	dim = l.Int("attention.key_length", hidden/max(1, heads))
	if l.Check(Range("attention.head_count", heads, 1, 1<<12), Range("attention.head_count_kv", kv, 1, heads),
		Range("attention.key_length", dim, 2, 1<<14)) == nil && heads%kv != 0 {
		l.Fail("%d heads cannot share %d key/value heads", heads, kv)
	}
	return heads, kv, dim
}

// Has reports whether the file has a tensor.
func (l *Loader) Has(name string) bool { return l.File.Tensor(name) != nil }

// Lacks fails if the file has one of these tensors, which the model would ignore.
func (l *Loader) Lacks(names ...string) {
	for _, n := range names {
		if l.Has(n) {
			l.Fail("tensor %q: %s models with such a tensor are not supported", n, l.Arch)
		}
	}
}

// Tensor finds a tensor and checks its shape; a zero in want stands for any size.
func (l *Loader) Tensor(name string, want ...int) *gguf.Tensor {
	t := l.File.Tensor(name)
	if t == nil {
		l.Fail("missing tensor %q", name)
		return nil
	}
	if !sameShape(t.Shape, want) {
		l.Fail("tensor %q has shape %v; want %v", name, t.Shape, want)
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

// Matrix binds a weight of the given inputs and outputs (0 = any).
func (l *Loader) Matrix(name string, in, out int) backend.Weight {
	return l.Bind(l.Tensor(name, in, out))
}

// Experts binds a stack of matrices to the device of the experts.
func (l *Loader) Experts(name string, in, out, n int) backend.Weight {
	defer l.On(l.device, l.experts)
	l.device = l.experts
	return l.Bind(l.Tensor(name, in, out, n))
}

// PerExpert binds values for each expert, if the file has them, to the device of the experts.
func (l *Loader) PerExpert(name string, shape ...int) backend.Vector {
	defer l.On(l.device, l.experts)
	l.device = l.experts
	return l.Optional(name, shape...)
}

// Bind gives a tensor to the backend, with the scale that may accompany it.
func (l *Loader) Bind(t *gguf.Tensor) backend.Weight {
	if t == nil || l.Err != nil {
		return nil
	}
	var scale *gguf.Tensor
	if base, ok := strings.CutSuffix(t.Name, ".weight"); ok && t.Type == quant.NVFP4 {
		scale = l.File.Tensor(base + ".scale")
	}
	return l.BindScaled(t, scale)
}

// BindScaled gives a tensor to the backend; scale, if not nil, multiplies its products.
func (l *Loader) BindScaled(t, scale *gguf.Tensor) backend.Weight {
	m := backend.Matrix{Name: t.Name, Type: t.Type, Data: t.Data, Cols: t.Shape[0], Rows: 1, Experts: 1, Halves: l.Halves,
		Forget: t.Forget}
	for i, n := range t.Shape[1:] {
		switch {
		case i == 0:
			m.Rows = n
		case i == 1:
			m.Experts = n
		case n != 1:
			l.Fail("tensor %q: %d dimensions, want at most 3", t.Name, len(t.Shape))
		}
	}
	if scale != nil {
		m.Scale = l.finite(scale)
		if len(m.Scale) != 1 && len(m.Scale) != m.Experts {
			l.Fail("tensor %q: %d scales for %d experts", scale.Name, len(m.Scale), m.Experts)
		}
	}
	if l.Err != nil {
		return nil
	}
	w, err := l.Devices[l.device].Weight(m)
	if err != nil {
		l.Fail("%v", err)
		return nil
	}
	l.Bytes += len(t.Data)
	if l.Weights != nil {
		l.Weights.add(l.Devices[l.device], w, m)
	}
	if l.Bound != nil {
		l.Bound(len(t.Data))
	}
	return w
}

// finite reads the values of a tensor. All must be numbers.
func (l *Loader) finite(t *gguf.Tensor) []float32 {
	v := make([]float32, t.Elems())
	if err := quant.Dequantize(t.Type, v, t.Data); err != nil {
		l.Fail("tensor %q: %v", t.Name, err)
		return nil
	}
	for i, x := range v {
		if x-x != 0 {
			l.Fail("tensor %q: value %d is %v", t.Name, i, x)
			return nil
		}
	}
	return v
}

// rowsOf views rows [from, from+n) of a matrix as a tensor of its own. It keeps the name, by which Bind finds its
// scale.
func rowsOf(t *gguf.Tensor, from, n int) *gguf.Tensor {
	rb := t.Type.RowBytes(t.Shape[0])
	return &gguf.Tensor{Name: t.Name, Type: t.Type, Shape: []int{t.Shape[0], n}, Data: t.Data[from*rb:][:n*rb]}
}

// PickRows copies rows of a matrix into a tensor of its own, in the given order and under the same name.
func PickRows[I int | int32](t *gguf.Tensor, rows []I) *gguf.Tensor {
	rb := t.Type.RowBytes(t.Shape[0])
	data := make([]byte, 0, len(rows)*rb)
	for _, r := range rows {
		data = append(data, t.Data[int(r)*rb:][:rb]...)
	}
	return &gguf.Tensor{Name: t.Name, Type: t.Type, Shape: []int{t.Shape[0], len(rows)}, Data: data}
}

// Vector binds a parameter vector of the given shape (0 = any).
func (l *Loader) Vector(name string, shape ...int) backend.Vector {
	return l.VectorOf(l.Floats(name, shape...))
}

// VectorOf binds values made by the model.
func (l *Loader) VectorOf(v []float32) backend.Vector {
	if l.Err != nil {
		return nil
	}
	w, err := l.Devices[l.device].Vector(v)
	if err != nil {
		l.Fail("%v", err)
		return nil
	}
	return w
}

// Floats reads a small tensor that the model itself needs.
func (l *Loader) Floats(name string, shape ...int) []float32 {
	t := l.Tensor(name, shape...)
	if t == nil || l.Err != nil {
		return nil
	}
	return l.finite(t)
}

// Scalar reads a tensor of one value.
func (l *Loader) Scalar(name string) float32 {
	v := l.Floats(name, 1)
	if len(v) != 1 {
		return 1
	}
	return v[0]
}

// Optional binds a vector that may be missing.
func (l *Loader) Optional(name string, shape ...int) backend.Vector {
	if !l.Has(name) {
		return nil
	}
	return l.Vector(name, shape...)
}

// Attention adds a layer with keys and values to the cache and returns its number there.
func (l *Loader) Attention(heads, dim, window int) int {
	key, value := l.KV.Of(l.Layer)
	y := cache.Layer{
		KVDims: backend.KVDims{Heads: heads, KeyDim: dim, ValueDim: dim, Key: key, Value: value}, Window: window,
		Device: l.device,
	}
	if i := slices.Index(l.layers, y); l.OneCache && i >= 0 {
		return i
	}
	l.layers = append(l.layers, y)
	return len(l.layers) - 1
}

// Recurrent adds a recurrent layer and returns its number among those of its device.
func (l *Loader) Recurrent() int {
	n := 0
	for _, d := range l.recurrent {
		if d == l.device {
			n++
		}
	}
	l.recurrent = append(l.recurrent, l.device)
	return n
}

// Spec returns the memory that the layers announced.
func (l *Loader) Spec() cache.Spec {
	return cache.Spec{Layers: l.layers, Delta: l.Delta, Recurrent: l.recurrent}
}

// QKV binds the three projections, which a file may hold as one.
func (l *Loader) QKV(p string, hidden, q, kv int) (wq, wk, wv backend.Weight) {
	if !l.Has(p+"attn_qkv.weight") || l.Has(p+"attn_q.weight") {
		return l.Matrix(p+"attn_q.weight", hidden, q), l.Matrix(p+"attn_k.weight", hidden, kv),
			l.Matrix(p+"attn_v.weight", hidden, kv)
	}
	t := l.Tensor(p+"attn_qkv.weight", hidden, q+2*kv)
	if t == nil {
		return nil, nil, nil
	}
	return l.Bind(rowsOf(t, 0, q)), l.Bind(rowsOf(t, q, kv)), l.Bind(rowsOf(t, q+kv, kv))
}

// Pairs binds a projection of a Llama file, with its bias if it has one. Its heads hold the two values that are rotated
// together side by side; Rotate expects the first values of all pairs, then the second ones. So rows are reordered
// inside each head, for queries and keys alike, which does not change their products.
func (l *Loader) Pairs(name string, in, heads, dim, rot int) (w backend.Weight, bias backend.Vector) {
	from := make([]int, heads*dim)
	for i := range from {
		at := i % dim
		if at < rot {
			at = at%(rot/2)*2 + at/(rot/2)
		}
		from[i] = i/dim*dim + at
	}
	t := l.Tensor(name+".weight", in, heads*dim)
	if t == nil || l.Err != nil {
		return nil, nil
	}
	w = l.Bind(PickRows(t, from))
	t.Forget()
	if l.Has(name + ".bias") {
		v := l.Floats(name+".bias", heads*dim)
		if l.Err == nil {
			sorted := make([]float32, len(v))
			for i, at := range from {
				sorted[i] = v[at]
			}
			bias = l.VectorOf(sorted)
		}
	}
	return w, bias
}
