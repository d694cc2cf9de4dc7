package model

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/gguf"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

// imageCase is a prompt with images and what another engine computed for it.
type imageCase struct {
	text   string
	tokens []int32 // below 0 for rows
	images []Image
	pos    [][3][]int32 // of the rows of each image
	after  []int32      // position after each image
	logits []float32    // of the last rows
}

func readCase(t *testing.T, path string) (c imageCase, whole bool) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ints := func(name string) (v []int32) {
		d := f.Tensor(name).Data
		for i := 0; i < len(d); i += 4 {
			v = append(v, int32(binary.LittleEndian.Uint32(d[i:])))
		}
		return v
	}
	switch name := filepath.Base(path); {
	case strings.HasPrefix(name, "qwen"):
		c.text = "text-qwen35.gguf"
	case strings.HasPrefix(name, "gemma4v-clip"):
		c.text = "text-gemma4e.gguf"
	default:
		c.text = "text-gemma4.gguf"
	}
	names := []string{""}
	if f.Tensor("info") == nil {
		names = []string{".0", ".1"}
		c.tokens = ints("tokens.0")
	} else {
		c.tokens = ints("tokens_before")
	}
	for i, n := range names {
		if f.Tensor("embedding_rows"+n) != nil {
			return c, false // only some rows are kept
		}
		rows, err := f.Tensor("embeddings" + n).Float32s()
		if err != nil {
			t.Fatal(err)
		}
		info := ints("info" + n)
		m := Image{At: len(c.tokens), W: int(info[4]), H: int(info[5]), Rows: rows}
		for range m.Len() {
			c.tokens = append(c.tokens, -2)
		}
		c.images = append(c.images, m)
		if n == "" {
			c.tokens = append(c.tokens, ints("tokens_after")...)
		} else {
			c.tokens = append(c.tokens, ints(fmt.Sprintf("tokens.%d", i+1))...)
		}
		p := ints("positions" + n)
		k := len(p) / 3
		c.pos = append(c.pos, [3][]int32{p[:k], p[k : 2*k], p[2*k:]})
		c.after = append(c.after, ints("position_after"+n)...)
	}
	if c.logits, err = f.Tensor("logits").Float32s(); err != nil {
		t.Fatal(err)
	}
	return c, true
}

// runImages runs a prompt with images in passes of at most batch rows, which do not cut images if mutual is set, and
// returns the logits of the last rows.
func runImages(t *testing.T, m *Model, seq *cache.Seq, tokens []int32, images []Image, batch, last int) (
	logits []float32) {
	t.Helper()
	for from := seq.Len(); from < len(tokens); from = seq.Len() {
		to := min(from+batch, len(tokens))
		if m.Mutual {
			for i := range images {
				if at, end := images[i].At, images[i].At+images[i].Len(); to > at && to < end {
					to = end
				}
			}
		}
		out, err := m.Forward([]Segment{{Seq: seq, Tokens: tokens[from:to], Images: images, Logits: LogitsAll}})
		if err != nil {
			t.Fatal(err)
		}
		for r := from; r < to; r++ {
			if r >= len(tokens)-last {
				logits = append(logits, out.Row(0, r-from)...)
			}
		}
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
	}
	return logits
}

// TestGoldenImages feeds the rows that llama.cpp's encoder made into the text models that it fed them into, and
// compares positions and logits.
func TestGoldenImages(t *testing.T) {
	folder := testkit.Shared(t, "golden/vision")
	paths, err := filepath.Glob(filepath.Join(folder, "cases", "*.safetensors"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	models := map[string]*Model{}
	run := 0
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".safetensors")
		c, whole := readCase(t, path)
		if !whole {
			continue
		}
		run++
		m := models[c.text]
		if m == nil {
			f, err := gguf.Open(filepath.Join(folder, "models", c.text))
			if err != nil {
				t.Fatal(err)
			}
			b := cpu.New(cpu.Options{Threads: 2})
			t.Cleanup(func() { b.Close(); f.Close() })
			if m, err = Open(f, testkit.NewDevice(t, b), Options{KV: cache.Uniform(quant.F32)}); err != nil {
				t.Fatal(err)
			}
			models[c.text] = m
		}
		bound := 2e-4
		if strings.HasPrefix(name, "gemma") {
			bound = 1e-3
		}
		if m.Axes {
			for i, image := range c.images {
				for r := range image.Len() {
					want := [3]int32{c.pos[i][0][r], c.pos[i][1][r], c.pos[i][2][r]}
					if got := Positions(c.images, image.At+r); got != want {
						t.Fatalf("%s: row %d of image %d at %v, want %v", name, r, i, got, want)
					}
				}
				if got := Positions(c.images, image.At+image.Len()); got[0] != c.after[i] {
					t.Errorf("%s: position %d after image %d, want %d", name, got[0], i, c.after[i])
				}
			}
		}
		var first []float32
		for _, batch := range []int{MaxRows, 7} {
			got := runImages(t, m, m.NewSeq(), c.tokens, c.images, batch, len(c.logits)/m.Vocab)
			if e := testkit.RelL2(got, c.logits); !(e <= bound) {
				t.Errorf("%s: logits differ by %.2e, want at most %.0e", name, e, bound)
			}
			if first == nil {
				first = got
			} else if !sameBits(got, first) {
				t.Errorf("%s: other bits in passes of %d rows", name, batch)
			}
		}
	}
	if run < 8 {
		t.Errorf("%d cases have all their rows", run)
	}
}
