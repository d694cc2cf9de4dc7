package picture

import (
	"math/rand/v2"
	"testing"
)

func TestSize(t *testing.T) {
	for _, x := range []struct {
		w, h, f, min, max int
		rule              Sizing
		wantW, wantH      int
	}{
		{1920, 1080, 32, 8, 4096, SizeLlamaCpp, 1920, 1088},
		{640, 480, 32, 8, 4096, SizeLlamaCpp, 640, 480},
		{4000, 3000, 32, 8, 4096, SizeLlamaCpp, 2336, 1760},
		{224, 224, 32, 8, 4096, SizeLlamaCpp, 224, 224},
		{32, 32, 32, 8, 4096, SizeLlamaCpp, 96, 96},
		{1000, 50, 32, 8, 4096, SizeLlamaCpp, 992, 64},
		{80, 80, 32, 1, 4096, SizeLlamaCpp, 96, 96}, // two and a half tokens are three
		{1920, 1080, 48, 70, 1120, SizeLlamaCpp, 1920, 1104},
		{640, 480, 48, 70, 1120, SizeLlamaCpp, 624, 480},
		{4000, 3000, 48, 70, 1120, SizeLlamaCpp, 1824, 1344},
		{224, 224, 48, 70, 1120, SizeLlamaCpp, 432, 432},
		{1000, 50, 48, 70, 1120, SizeLlamaCpp, 1824, 96},

		{1920, 1080, 32, 64, 16384, SizeQwen, 1920, 1088},
		{80, 80, 32, 1, 16384, SizeQwen, 64, 64}, // two and a half tokens are two
		{112, 112, 32, 1, 16384, SizeQwen, 128, 128},
		{4000, 3000, 32, 64, 4096, SizeQwen, 2336, 1760},
		{32, 32, 32, 64, 16384, SizeQwen, 256, 256},
		{1000, 10, 32, 64, 16384, SizeQwen, 2560, 32}, // 0 tokens high are below the smallest number
		{6000, 30, 32, 1, 70, SizeQwen, 3776, 32},

		{1920, 1080, 48, 0, 280, SizeGemma, 1056, 576},
		{224, 224, 48, 0, 280, SizeGemma, 768, 768},
		{1, 1, 48, 0, 70, SizeGemma, 384, 384},
		{2000, 10, 48, 0, 70, SizeGemma, 3360, 48}, // 200 tokens in a row, cut to 70
		{10, 2000, 48, 0, 1120, SizeGemma, 96, 22704},
		{10, 2000, 48, 0, 70, SizeGemma, 48, 3360},
	} {
		if w, h := Size(x.w, x.h, x.f, x.min, x.max, x.rule); w != x.wantW || h != x.wantH {
			t.Errorf("%dx%d, tokens of %d, %d to %d, rule %d: %dx%d, want %dx%d",
				x.w, x.h, x.f, x.min, x.max, x.rule, w, h, x.wantW, x.wantH)
		}
	}
}

// TestSizeRandom: sides are whole tokens, at least one, and budgets hold for shapes that are not thin.
func TestSizeRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		w, h := 1+random.IntN(5000), 1+random.IntN(5000)
		f, most := 16*(1+random.IntN(3)), 16<<random.IntN(8)
		for _, rule := range []Sizing{SizeQwen, SizeGemma, SizeLlamaCpp} {
			W, H := Size(w, h, f, 8, most, rule)
			if W < f || H < f || W%f != 0 || H%f != 0 {
				t.Fatalf("%dx%d, tokens of %d, up to %d, rule %d: %dx%d", w, h, f, most, rule, W, H)
			}
			if thin := max(w, h) > most*min(w, h); !thin && W/f*(H/f) > most {
				t.Fatalf("%dx%d, tokens of %d, up to %d, rule %d: %dx%d is %d tokens", w, h, f, most, rule, W, H, W/f*(H/f))
			}
		}
	}
}

// TestResizeSlow compares with the definition, tap by tap in int64, for random sizes.
func TestResizeSlow(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		m := New(1+random.IntN(40), 1+random.IntN(40))
		for i := range m.Pix {
			m.Pix[i] = byte(random.Uint32())
			if random.IntN(3) == 0 {
				m.Pix[i] = byte(255 * random.IntN(2)) // sums beyond both ends
			}
		}
		w, h := 1+random.IntN(60), 1+random.IntN(60)
		across := New(w, m.Height)
		f := newFilter(m.Width, w)
		for y := range m.Height {
			for x := range 3 * w {
				sum := int64(1 << 21)
				for i, tap := range f.taps[x/3] {
					sum += int64(tap) * int64(m.Pix[3*(y*m.Width+f.first[x/3]+i)+x%3])
				}
				across.Pix[3*y*w+x] = byte(min(max(sum>>22, 0), 255))
			}
		}
		want := New(w, h)
		f = newFilter(m.Height, h)
		for y := range h {
			for x := range 3 * w {
				sum := int64(1 << 21)
				for i, tap := range f.taps[y] {
					sum += int64(tap) * int64(across.Pix[3*(f.first[y]+i)*w+x])
				}
				want.Pix[3*y*w+x] = byte(min(max(sum>>22, 0), 255))
			}
		}
		got := Resize(m, w, h, Stretch)
		if got.Width != w || got.Height != h || sum(got) != sum(want) {
			t.Fatalf("%dx%d to %dx%d differs", m.Width, m.Height, w, h)
		}
	}
}

// TestResizeSame: an image that fits is not touched, and the filter of the same size changes nothing.
func TestResizeSame(t *testing.T) {
	m := decodeFile(t, "noise17x31.png", Reference)
	if Resize(m, 17, 31, Stretch) != m || Resize(m, 17, 31, Letterbox) != m {
		t.Error("an image of the right size was copied")
	}
	f := newFilter(5, 5)
	for i, taps := range f.taps {
		for j, w := range taps {
			if (f.first[i]+j == i) != (w == 1<<weightBits) || w != 0 && w != 1<<weightBits {
				t.Errorf("output %d: weights %v from %d on", i, taps, f.first[i])
			}
		}
	}
}
