package gpu

import (
	"testing"

	"strobe/internal/backend"
	"strobe/internal/quant"
)

// TestPaddedAttention: only heads that are said to be padded get the kernel that computes a part of them, whatever was
// asked for before; types and sizes that it does not have get the usual one.
func TestPaddedAttention(t *testing.T) {
	b := &Backend{props: Props{Major: 9, Units: 132, SharedBlock: 227 << 10}, attn: map[attentionKey]*Attention{}}
	f16 := backend.KVDims{Heads: 16, KeyDim: 128, ValueDim: 128, Key: quant.F16, Value: quant.F16}
	packed, large := f16, f16
	packed.Key, packed.Value = quant.Q8_0, quant.Q8_0
	large.KeyDim, large.ValueDim = 256, 256
	for i, c := range []struct {
		dims       backend.KVDims
		used, rows int
		want       string
	}{
		{f16, 0, 500, "flash128x2"}, {f16, 72, 500, "flash128x3_80"}, {f16, 0, 500, "flash128x2"},
		{f16, 80, 129, "flash128x3_80"},
		{f16, 81, 500, "flash128x2"}, {f16, 72, 128, "flash128x2"}, {f16, 72, 64, "flash128x1"},
		{packed, 72, 500, "packed128x2"}, {large, 72, 500, "flash256x2"},
	} {
		a, err := b.attentionOf(16, c.dims, c.used)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.form(c.rows).kernel.Name(); got != c.want {
			t.Errorf("case %d: %s, want %s", i, got, c.want)
		}
	}
}
