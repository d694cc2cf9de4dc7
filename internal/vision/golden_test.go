package vision

import (
	"compress/gzip"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// openEncoder opens an mmproj file on a CPU that knows the rules of steps.
func openEncoder(t testing.TB, path string, like Like) *Encoder {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	t.Cleanup(func() { b.Close() })
	return openOn(t, path, testkit.NewDevice(t, b), like)
}

func openOn(t testing.TB, path string, b backend.Backend, like Like) *Encoder {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	e, err := Open(f, b, like)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// unpacked returns the path of a file of testdata, unpacked.
func unpacked(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// golden is an image with what llama.cpp made of it.
type golden struct {
	pixels       Pixels
	gridW, gridH int // 0: not in the case
	rows         []int
	want         []float32 // [rows, out]
	exact        []float32 // of a float64 implementation on dequantised weights, for files that are not F32
	sum          []float64 // of each column over all rows
}

// readGolden reads the images of a case. Those of which the case has no pixels are left out.
func readGolden(t testing.TB, path string) (list []golden) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	floats := func(name string) (v []float32) {
		if x := f.Tensor(name); x != nil {
			for i := range x.Elems() {
				v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:])))
			}
		}
		return v
	}
	for _, suffix := range []string{"", ".0", ".1"} {
		x := f.Tensor("resized" + suffix)
		if x == nil {
			continue
		}
		g := golden{pixels: Pixels{Width: x.Shape[1], Height: x.Shape[0], Pix: append([]byte(nil), x.Data...)},
			want: floats("embeddings" + suffix), exact: floats("embeddings_dequant" + suffix)}
		if strings.HasPrefix(filepath.Base(path), "qwen") { // for others they say n, 1
			info := f.Tensor("info" + suffix)
			g.gridW, g.gridH = int(binary.LittleEndian.Uint32(info.Data[16:])), int(binary.LittleEndian.Uint32(info.Data[20:]))
		}
		if x := f.Tensor("embedding_rows" + suffix); x != nil {
			for i := range x.Elems() {
				g.rows = append(g.rows, int(int32(binary.LittleEndian.Uint32(x.Data[4*i:]))))
			}
		}
		sums := f.Tensor("embeddings_sum" + suffix)
		for i := range sums.Elems() {
			g.sum = append(g.sum, math.Float64frombits(binary.LittleEndian.Uint64(sums.Data[8*i:])))
		}
		list = append(list, g)
	}
	return list
}

// check encodes the image and compares its rows. bound is for float activations.
func (g *golden) check(t *testing.T, e *Encoder, bound float64) {
	t.Helper()
	rows, w, h, err := e.Encode(t.Context(), g.pixels, nil)
	if err != nil {
		t.Fatal(err)
	}
	if g.gridW > 0 && (w != g.gridW || h != g.gridH) || len(rows) != w*h*e.Out {
		t.Fatalf("%d values of %d x %d rows, want %d x %d", len(rows), w, h, g.gridW, g.gridH)
	}
	some := rows
	if g.rows != nil {
		some = nil
		for _, r := range g.rows {
			some = append(some, rows[r*e.Out:][:e.Out]...)
		}
	}
	want := g.want
	if g.exact != nil {
		want = g.exact
	}
	if d := testkit.RelL2(some, want); !(d <= bound) {
		t.Errorf("rows are off by %.2g, want at most %.2g", d, bound)
	} else {
		t.Logf("rows are off by %.2g", d)
	}
	if g.exact != nil {
		return // the sums are of llama.cpp, which rounds activations
	}
	sums := make([]float32, e.Out)
	wide := make([]float32, e.Out)
	for i := range sums {
		sum := 0.0
		for r := range w * h {
			sum += float64(rows[r*e.Out+i])
		}
		sums[i], wide[i] = float32(sum), float32(g.sum[i])
	}
	if d := testkit.RelL2(sums, wide); !(d <= 2*bound) {
		t.Errorf("the sums of all rows are off by %.2g, want at most %.2g", d, 2*bound)
	}
}

// exactBound is what the golden files allow for float32 arithmetic.
const exactBound = 2e-5

// TestGolden: rows are those of llama.cpp, for files in float32, and for quantised files those of a float64
// implementation.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.safetensors.gz")
	if err != nil || len(cases) != 4 {
		t.Fatalf("golden cases %v, %v", cases, err)
	}
	for _, path := range cases {
		name := strings.TrimSuffix(filepath.Base(path), ".gz")
		t.Run(name, func(t *testing.T) {
			mmproj, _, _ := strings.Cut(name, "__")
			e := openEncoder(t, unpacked(t, "mmproj-"+mmproj+".gguf"), LlamaCpp)
			for _, g := range readGolden(t, unpacked(t, name)) {
				g.check(t, e, exactBound)
			}
		})
	}
}

// TestGoldenShared: the same with larger files, which are not in the repository.
func TestGoldenShared(t *testing.T) {
	folder := testkit.Shared(t, "golden/vision")
	cases, err := filepath.Glob(filepath.Join(folder, "cases", "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cases {
		name := filepath.Base(path)
		mmproj, _, _ := strings.Cut(name, "__")
		list := readGolden(t, path)
		if len(list) == 0 {
			continue // package picture, which makes the pixels, checks the others
		}
		t.Run(name, func(t *testing.T) {
			e := openEncoder(t, filepath.Join(folder, "models", "mmproj-"+mmproj+".gguf"), LlamaCpp)
			for _, g := range list {
				g.check(t, e, exactBound)
			}
		})
	}
}
