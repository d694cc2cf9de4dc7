package model

import (
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
)

// rewritten copies a file with its matrices in another type; with values set, the matrices hold the
// values of that type in float32 instead.
func rewritten(t *testing.T, src *gguf.File, typ quant.Type, values bool) *gguf.File {
	t.Helper()
	specs := src.Specs()
	var data [][]byte
	for i, tn := range src.Tensors() {
		d := tn.Data
		matrix := len(tn.Shape) > 1 && strings.HasSuffix(tn.Name, ".weight") && tn.Shape[0]%typ.BlockLen() == 0 &&
			!strings.Contains(tn.Name, "norm") && !strings.Contains(tn.Name, "conv1d") && !strings.Contains(tn.Name, "gate_inp")
		if matrix {
			v := make([]float32, tn.Elems())
			if err := quant.Dequantize(tn.Type, v, tn.Data); err != nil {
				t.Fatal(err)
			}
			q := make([]byte, tn.Rows()*typ.RowBytes(tn.Shape[0]))
			if tn.Type == typ {
				q = tn.Data
			} else if err := quant.Quantize(typ, q, v); err != nil {
				t.Fatal(err)
			}
			specs[i].Type, d = typ, q
			if values {
				if err := quant.Dequantize(typ, v, q); err != nil {
					t.Fatal(err)
				}
				specs[i].Type, d = quant.F32, make([]byte, 4*len(v))
				if err := quant.Quantize(quant.F32, d, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		data = append(data, d)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	kvs, err := src.KVs()
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.Create(path, kvs, specs, gguf.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		if err := w.WriteTensor(s.Name, data[i]); err != nil {
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

func logitsOf(t *testing.T, f *gguf.File, in []int32) []float32 {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	defer b.Close()
	m, err := Open(f, b, Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := run(t, m, m.NewSeq(), in, len(in), false)
	return got
}

// TestQuantised: quantised weights, multiplied with rounded activations, give logits within 2 % of a
// float32 computation with the values of those weights.
func TestQuantised(t *testing.T) {
	const bound = 0.02
	in := tokens(3, 24)
	check := func(t *testing.T, name string, src *gguf.File, typ quant.Type) {
		t.Helper()
		want := logitsOf(t, rewritten(t, src, typ, true), in)
		q := rewritten(t, src, typ, false)
		for _, level := range kernel.Available() {
			restore := kernel.Set(level)
			if e := testkit.RelL2(logitsOf(t, q, in), want); !(e <= bound) {
				t.Errorf("%s in %s on %s: logits differ by %.4f, want at most %v", name, typ, level, e, bound)
			} else if testing.Verbose() {
				t.Logf("%s in %s on %s: %.4f", name, typ, level, e)
			}
			restore()
		}
	}
	for _, name := range targets {
		src := open(t, name, 1, Options{}).File()
		for _, typ := range []quant.Type{quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1, quant.IQ4_NL} {
			check(t, name, src, typ)
		}
	}
}
