package nn

import (
	"math"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/testkit/edit"
)

// loader reads a file without tensors.
func loader(t *testing.T, kvs ...gguf.KV) *Loader {
	t.Helper()
	return loaderOf(t, &edit.File{KVs: append([]gguf.KV{{Key: "general.architecture", Value: "qwen3"}}, kvs...)})
}

func loaderOf(t *testing.T, e *edit.File) *Loader {
	t.Helper()
	f, err := gguf.Open(e.Write(t))
	if err != nil {
		t.Fatal(err)
	}
	b := cpu.New(cpu.Options{Threads: 1})
	t.Cleanup(func() { b.Close(); f.Close() })
	return &Loader{File: f, Devices: []backend.Backend{b}, Arch: "qwen3"}
}

// TestLinear: positions are stretched by rope.scaling.factor, or by the key that older files have for it.
func TestLinear(t *testing.T) {
	for _, c := range []struct {
		kvs  []gguf.KV
		want float64
	}{
		{nil, 1},
		{[]gguf.KV{{Key: "qwen3.rope.scale_linear", Value: float32(4)}}, 4},
		{[]gguf.KV{{Key: "qwen3.rope.scale_linear", Value: float32(4)},
			{Key: "qwen3.rope.scaling.factor", Value: float32(2)}}, 2},
	} {
		l := loader(t, c.kvs...)
		r := l.Rope(8, 10000, nil)
		if l.Err != nil {
			t.Fatal(l.Err)
		}
		b := l.Devices[0]
		ids, err := b.AllocInts(1)
		if err != nil {
			t.Fatal(err)
		}
		b.SetInts(ids, []int32{3})
		cos, _ := b.Alloc(1, 4)
		sin, _ := b.Alloc(1, 4)
		b.BeginStep(nil)
		b.Angles(cos, sin, ids, r.inv[0], r.mscale)
		b.EndStep()
		for i, v := range b.Read(sin) {
			if want := math.Sin(3 / c.want * math.Pow(10000, -float64(i)/4)); math.Abs(float64(v)-want) > 1e-6 {
				t.Errorf("%v: sine %d is %g, want %g", c.kvs, i, v, want)
			}
		}
	}
}

// TestScalingWithoutFactor: a file may make rotations larger without stretching positions, and may name a kind of
// scaling that needs no factor; one that is not known must not run as if it were none.
func TestScalingWithoutFactor(t *testing.T) {
	l := loader(t, gguf.KV{Key: "qwen3.rope.scaling.attn_factor", Value: float32(1.25)})
	if r := l.Rope(8, 10000, nil); l.Err != nil || r.mscale != 1.25 {
		t.Errorf("attn_factor alone: %v, rotations %v times as large, want 1.25", l.Err, r.mscale)
	}
	l = loader(t, gguf.KV{Key: "qwen3.rope.scaling.type", Value: "longrope"})
	if l.Rope(8, 10000, nil); l.Err == nil || !strings.Contains(l.Err.Error(), "qwen3.rope.scaling.type") {
		t.Errorf("scaling of an unknown kind: %v", l.Err)
	}
}

// TestYaRN: frequencies and the size of rotations are those of the formula (Peng et al. 2023, section 3): dimensions
// that turn often in the original context stay, those that turn less than once are stretched, and a ramp is between.
func TestYaRN(t *testing.T) {
	const dims, base, factor, original = 64, 1e6, 4, 32768
	l := loader(t, gguf.KV{Key: "qwen3.context_length", Value: uint32(131072)},
		gguf.KV{Key: "qwen3.rope.scaling.type", Value: "yarn"},
		gguf.KV{Key: "qwen3.rope.scaling.factor", Value: float32(factor)},
		gguf.KV{Key: "qwen3.rope.scaling.original_context_length", Value: uint32(original)})
	b := l.Devices[0]
	r := l.Rope(dims, base, nil)
	if l.Err != nil {
		t.Fatal(l.Err)
	}
	const pos = 100_000
	ids, err := b.AllocInts(1)
	if err != nil {
		t.Fatal(err)
	}
	b.SetInts(ids, []int32{pos})
	cos, _ := b.Alloc(1, dims/2)
	sin, _ := b.Alloc(1, dims/2)
	b.BeginStep(nil)
	b.Angles(cos, sin, ids, r.inv[0], r.mscale)
	b.EndStep()
	size := 1 + 0.1*math.Log(factor)
	kept, stretched := 0, 0
	for i := range dims / 2 {
		freq := math.Pow(base, -2*float64(i)/dims)
		turns := original * freq / (2 * math.Pi)
		// The ramp is linear in the dimension, from the one that turns 32 times to the one that turns once.
		at := func(turns float64) float64 { return dims * math.Log(original/(turns*2*math.Pi)) / (2 * math.Log(base)) }
		low, high := math.Floor(at(32)), math.Ceil(at(1))
		keep := 1 - min(1, max(0, (float64(i)-low)/(high-low)))
		want := freq/factor*(1-keep) + freq*keep
		if keep == 1 {
			kept++
		}
		if keep == 0 {
			stretched++
			if turns > 1 {
				t.Errorf("dimension %d turns %g times and is stretched", i, turns)
			}
		}
		c, s := float64(b.Read(cos)[i]), float64(b.Read(sin)[i])
		if math.Abs(math.Hypot(c, s)-size) > 1e-5 {
			t.Errorf("dimension %d: size %g, want %g", i, math.Hypot(c, s), size)
		}
		// float32 keeps an angle of many turns to a few thousandths.
		if d := math.Abs(math.Remainder(math.Atan2(s, c)-pos*want, 2*math.Pi)); d > 1e-6*pos*want+1e-5 {
			t.Errorf("dimension %d: the angle is off by %g", i, d)
		}
	}
	if kept == 0 || stretched == 0 {
		t.Errorf("%d dimensions kept, %d stretched", kept, stretched)
	}
}
