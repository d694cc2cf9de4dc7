package picture

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden is testdata/golden.json: what llama.cpp v0.5.0 (stb_image and its resampling) made of the images beside it.
type golden struct {
	Decoded []struct {
		Image         string
		Width, Height int
		SHA256        string
	}
	Resized []struct {
		Image            string
		Factor, Min, Max int
		Width, Height    int
		SHA256           string
	}
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	if err := json.Unmarshal(file(t, "golden.json"), &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Decoded) < 9 || len(g.Resized) < 20 {
		t.Fatalf("golden.json has %d images and %d sizes", len(g.Decoded), len(g.Resized))
	}
	return g
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decodeFile(t testing.TB, name string, like Like) *Image {
	t.Helper()
	m, err := like.Decode(file(t, name), Limits{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func sum(m *Image) string {
	s := sha256.Sum256(m.Pix)
	return hex.EncodeToString(s[:])
}

// stbDecoded decodes an image of testdata to the bytes of stb_image: JPEG decoders differ by a little, so their pixels
// are kept as PNG.
func stbDecoded(t testing.TB, name string) *Image {
	return decodeFile(t, strings.Replace(name, ".jpg", ".stb.png", 1), LlamaCpp)
}

func TestGoldenDecode(t *testing.T) {
	for _, x := range readGolden(t).Decoded {
		m := stbDecoded(t, x.Image)
		if m.Width != x.Width || m.Height != x.Height || sum(m) != x.SHA256 {
			t.Errorf("%s: %dx%d with sum %s, want %dx%d with %s",
				x.Image, m.Width, m.Height, sum(m), x.Width, x.Height, x.SHA256)
		}
	}
}

func TestGoldenResize(t *testing.T) {
	decoded := map[string]*Image{} // decoding the largest of them takes as long as all resizing
	for _, x := range readGolden(t).Resized {
		m := decoded[x.Image]
		if m == nil {
			m = stbDecoded(t, x.Image)
			decoded[x.Image] = m
		}
		w, h := Size(m.Width, m.Height, x.Factor, x.Min, x.Max, SizeLlamaCpp)
		if w != x.Width || h != x.Height {
			t.Errorf("%s in tokens of %d, %d to %d: size %dx%d, want %dx%d",
				x.Image, x.Factor, x.Min, x.Max, w, h, x.Width, x.Height)
			continue
		}
		if r := Resize(m, w, h, Letterbox); r.Width != w || r.Height != h || sum(r) != x.SHA256 {
			t.Errorf("%s resized to %dx%d: sum %s, want %s", x.Image, w, h, sum(r), x.SHA256)
		}
	}
}

// TestGoldenJPEG: pixels are those of stb_image but for the rounding of another inverse cosine transform. Repeated
// chroma, as Go's own conversion has it, would differ by up to 84.
func TestGoldenJPEG(t *testing.T) {
	for _, name := range []string{"exif6_64x40.jpg", "gray123x77.jpg"} {
		got, want := decodeFile(t, name, LlamaCpp), stbDecoded(t, name)
		if got.Width != want.Width || got.Height != want.Height {
			t.Fatalf("%s: %dx%d, want %dx%d", name, got.Width, got.Height, want.Width, want.Height)
		}
		if worst, mean := difference(got, want); worst > 3 || mean > 0.3 {
			t.Errorf("%s: differs by up to %d, %.3f on average", name, worst, mean)
		}
	}
}

// TestGoldenUpright: the reference turns a photograph as its EXIF orientation says, llama.cpp does not.
func TestGoldenUpright(t *testing.T) {
	want := decodeFile(t, "exif6_upright40x64.png", Reference)
	got := decodeFile(t, "exif6_64x40.jpg", Reference)
	if got.Width != 40 || got.Height != 64 {
		t.Fatalf("%dx%d, want 40x64", got.Width, got.Height)
	}
	if worst, mean := difference(got, want); worst > 3 || mean > 0.3 {
		t.Errorf("differs by up to %d, %.3f on average", worst, mean)
	}
}

func difference(a, b *Image) (worst int, mean float64) {
	for i := range a.Pix {
		d := int(a.Pix[i]) - int(b.Pix[i])
		worst = max(worst, d, -d)
		mean += float64(max(d, -d))
	}
	return worst, mean / float64(len(a.Pix))
}
