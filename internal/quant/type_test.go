package quant

import (
	"strings"
	"testing"
)

func TestTypeNamesRoundTrip(t *testing.T) {
	known := 0
	for id := range Type(64) {
		if !id.Known() {
			if id.BlockLen() != 0 || id.BlockBytes() != 0 || id.RowBytes(256) != 0 {
				t.Errorf("unknown id %d has a geometry", id)
			}
			continue
		}
		known++
		for _, s := range []string{id.String(), strings.ToLower(id.String())} {
			got, err := ParseType(s)
			if err != nil || got != id {
				t.Errorf("ParseType(%q) = %v, %v; want %d", s, got, err, id)
			}
		}
	}
	if known != 35 {
		t.Errorf("%d known types, want 35", known)
	}
	for _, retired := range []Type{4, 5, 31, 32, 33, 36, 37, 38, 43, 1 << 31} {
		if retired.Known() {
			t.Errorf("id %d is retired but known", retired)
		}
	}
	for _, bad := range []string{"", "q4", "type(4)", "Q4_K_M"} {
		if got, err := ParseType(bad); err == nil {
			t.Errorf("ParseType(%q) = %v, want an error", bad, got)
		}
	}
}

func TestRowBytes(t *testing.T) {
	for _, c := range []struct {
		t    Type
		n    int
		want int
	}{{F32, 7, 28}, {BF16, 7, 14}, {Q4_0, 64, 36}, {Q4_K, 512, 288}, {Q6_K, 256, 210}, {NVFP4, 128, 72}, {I64, 3, 24}} {
		if got := c.t.RowBytes(c.n); got != c.want {
			t.Errorf("%v.RowBytes(%d) = %d, want %d", c.t, c.n, got, c.want)
		}
	}
}
