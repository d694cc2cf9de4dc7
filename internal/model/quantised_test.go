package model

import (
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/backend/cpu/kernel"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// rewritten is a golden model with its matrices in another type; with values set, the matrices hold the
// values of that type in float32 instead.
func rewritten(t *testing.T, name string, typ quant.Type, values bool) *gguf.File {
	t.Helper()
	e := edit.Golden(t, name)
	for _, x := range e.Tensors {
		matrix := len(x.Shape) > 1 && strings.HasSuffix(x.Name, ".weight") && x.Shape[0]%typ.BlockLen() == 0 &&
			!strings.Contains(x.Name, "norm") && !strings.Contains(x.Name, "conv1d") && !strings.Contains(x.Name, "gate_inp")
		if !matrix {
			continue
		}
		as := func(to quant.Type) {
			v := e.Values(t, x.Name)
			x.Type, x.Data = to, make([]byte, x.Rows()*to.RowBytes(x.Shape[0]))
			if err := quant.Quantize(to, x.Data, v); err != nil {
				t.Fatal(err)
			}
		}
		if x.Type != typ {
			as(typ)
		}
		if values {
			as(quant.F32)
		}
	}
	f, err := gguf.Open(e.Write(t))
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
	check := func(name string, typ quant.Type) {
		want := logitsOf(t, rewritten(t, name, typ, true), in)
		q := rewritten(t, name, typ, false)
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
		for _, typ := range []quant.Type{quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1, quant.IQ4_NL} {
			check(name, typ)
		}
	}
}
