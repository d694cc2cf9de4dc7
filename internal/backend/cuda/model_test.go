//go:build !nogpu

package cuda_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/testkit"
)

var targets = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe", "gemma4e"}

// onDevice reports whether tests run on a real device.
func onDevice() bool { return os.Getenv("STROBE_CUDA") == "cuda" }

// tried are the architectures that tests try: all of them on a device, and those that differ most on the emulation.
func tried() []string {
	if onDevice() {
		return targets
	}
	return []string{"qwen35moe", "gemma4e"}
}

func file(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func target(t testing.TB, b backend.Backend, name string, opt model.Options) *model.Model {
	t.Helper()
	m, err := model.Open(file(t, testkit.Golden(t, name+"/model.gguf")), b, opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func forward(t testing.TB, m *model.Model, segs ...model.Segment) *model.Output {
	t.Helper()
	out, err := m.Forward(segs)
	if err == nil {
		err = m.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestGolden: logits of the reference models, whole and token by token.
func TestGolden(t *testing.T) {
	b := open(t)
	for _, name := range tried() {
		t.Run(name, func(t *testing.T) {
			f, err := safetensors.Open(testkit.Golden(t, name+"/expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			want, err := f.Tensor("logits").Float32s()
			if err != nil {
				t.Fatal(err)
			}
			m := target(t, b, name, model.Options{KV: cache.Uniform(quant.F32)})
			tokens := goldenTokens(t, f)
			if !onDevice() {
				tokens = tokens[:8]
				want = want[:8*m.Vocab]
			}
			out := forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: tokens, Logits: model.LogitsAll})
			if e := testkit.RelL2(b.Read(out.Logits), want); !(e <= 1e-4) {
				t.Errorf("whole: relative error %.2e", e)
			}
			seq := m.NewSeq()
			var got []float32
			for i := range tokens {
				out := forward(t, m, model.Segment{Seq: seq, Tokens: tokens[i : i+1], Logits: model.LogitsAll})
				got = append(got, b.Read(out.Logits)...)
				if err := seq.CommitAll(); err != nil {
					t.Fatal(err)
				}
			}
			if e := testkit.RelL2(got, want); !(e <= 1e-4) {
				t.Errorf("token by token: relative error %.2e", e)
			}
		})
	}
}

func goldenTokens(t testing.TB, f *safetensors.File) (ids []int32) {
	t.Helper()
	x := f.Tensor("tokens")
	if x == nil {
		x = f.Tensor("input_ids")
	}
	data := x.Data
	size := len(data) / x.Elems()
	for i := range x.Elems() {
		ids = append(ids, int32(uint32(data[i*size])|uint32(data[i*size+1])<<8|uint32(data[i*size+2])<<16))
	}
	return ids
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// TestIdentity: the logits of a token have the same bits alone, in batches, beside other sequences, as a prompt and in a tree.
func TestIdentity(t *testing.T) {
	b := open(t)
	for _, name := range tried() {
		t.Run(name, func(t *testing.T) {
			m := target(t, b, name, model.Options{})
			tokens := make([]int32, 40)
			if !onDevice() {
				tokens = tokens[:6]
			}
			for i := range tokens {
				tokens[i] = int32(i*37+11) % 500
			}
			pieces := func(n int, prompt bool) []float32 {
				seq, beside := m.NewSeq(), m.NewSeq()
				defer seq.Close()
				defer beside.Close()
				var got []float32
				for at := 0; at < len(tokens); {
					k := min(n, len(tokens)-at)
					segs := []model.Segment{{Seq: seq, Tokens: tokens[at : at+k], Logits: model.LogitsAll, Prompt: prompt}}
					if n > 2 {
						segs = append([]model.Segment{{Seq: beside, Tokens: tokens[:3], Logits: model.LogitsAll}}, segs...)
					}
					out := forward(t, m, segs...)
					v := b.Read(out.Logits)
					got = append(got, v[len(v)-k*m.Vocab:]...)
					if err := seq.CommitAll(); err != nil {
						t.Fatal(err)
					}
					if n > 2 {
						if err := beside.CommitFirst(1); err != nil {
							t.Fatal(err)
						}
					}
					at += k
				}
				return got
			}
			want := pieces(1, false)
			for _, n := range []int{2, 3, 17, 40} {
				for _, prompt := range []bool{false, true} {
					if !sameBits(pieces(n, prompt), want) {
						t.Errorf("pieces of %d (prompt: %t): other bits than one by one", n, prompt)
					}
				}
			}
			// A tree whose second branch is the text: its rows must have the text's bits.
			seq := m.NewSeq()
			forward(t, m, model.Segment{Seq: seq, Tokens: tokens[:2], Prompt: true})
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
			tree := model.Segment{Seq: seq, Tokens: []int32{tokens[2], 7, tokens[3], 9, tokens[4]}, Parents: []int32{-1, 0, 0, 1, 2}, Logits: model.LogitsAll}
			v := b.Read(forward(t, m, tree).Logits)
			for row, at := range map[int]int{0: 2, 2: 3, 4: 4} {
				if !sameBits(v[row*m.Vocab:][:m.Vocab], want[at*m.Vocab:][:m.Vocab]) {
					t.Errorf("row %d of a tree: other bits than in a chain", row)
				}
			}
			if err := seq.Commit([]int32{0, 2, 4}); err != nil {
				t.Fatal(err)
			}
			v = b.Read(forward(t, m, model.Segment{Seq: seq, Tokens: tokens[5:6], Logits: model.LogitsAll}).Logits)
			if !sameBits(v, want[5*m.Vocab:][:m.Vocab]) {
				t.Error("after the path of a tree was kept: other bits than in a chain")
			}
		})
	}
}

// exact is a device that pads nothing and goes through every pass.
type exact struct{ backend.Backend }

func (exact) Pad(n int) int                                       { return n }
func (exact) Repeat(int, *backend.Plan, ...[]int32) (bool, error) { return false, nil }

// TestPadding: passes that are padded, and run again by their name with other rows, streams, pages and trees, have the bits of passes that
// are gone through row by row; nothing that later passes see is lost to padding.
func TestPadding(t *testing.T) {
	b := open(t)
	models := []string{"qwen35", "gemma4e"}
	if onDevice() {
		models = targets
	}
	for _, name := range models {
		t.Run(name, func(t *testing.T) {
			run := func(b backend.Backend) (all []float32) {
				m := target(t, b, name, model.Options{})
				seqs := []*cache.Seq{m.NewSeq(), m.NewSeq(), m.NewSeq()}
				token := int32(0)
				pass := func(rows ...int) {
					var segs []model.Segment
					for i, n := range rows {
						s := model.Segment{Seq: seqs[i], Logits: model.LogitsAll}
						for range n {
							token++
							s.Tokens = append(s.Tokens, token*37%500)
						}
						if n == 4 {
							s.Parents = []int32{-1, 0, 0, 2}
						}
						segs = append(segs, s)
					}
					out := forward(t, m, segs...)
					all = append(all, b.Read(out.Logits)...)
					for i, n := range rows {
						path := []int32{0, 2, 3}
						if n < 4 {
							path = path[:1]
						}
						if err := seqs[i].Commit(path); err != nil {
							t.Fatal(err)
						}
					}
				}
				pass(1, 1, 3) // five rows become six,
				pass(2, 1, 2) // once more with other segments,
				pass(4, 1)    // with a tree, and once more with six
				pass(1, 3, 2)
				return all
			}
			if !sameBits(run(b), run(exact{b})) {
				t.Error("padding changes bits")
			}
		})
	}
}

// TestText: what is generated with a drafter, in any mode, greedy or drawn, is what plain decoding says.
func TestText(t *testing.T) {
	b := open(t)
	names := []string{"qwen35"}
	if onDevice() {
		names = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4"}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m := target(t, b, name, model.Options{})
			d, err := dflash.Open(file(t, testkit.Golden(t, "dflash-"+name+"/model.gguf")), m, dflash.Options{})
			if err != nil {
				t.Fatal(err)
			}
			checkText(t, m, d, []int32{1, 5, 9, 13}, 24)
		})
	}
}

// checkText compares modes of drafting with plain decoding.
func checkText(t *testing.T, m *model.Model, d draft.Source, prompt []int32, n int) {
	t.Helper()
	if !onDevice() {
		n = 5
	}
	for _, p := range []sample.Params{{}, {Temp: 0.8, Seed: 3}} {
		var want []int32
		for i, o := range []speculate.Options{
			{Draft: speculate.Off}, {Draft: "dflash", Fixed: true, Max: 5}, {Draft: "dflash", Fixed: true, Tree: 12}, {},
		} {
			r, err := speculate.NewRunner(m, d)
			if err != nil {
				t.Fatal(err)
			}
			if o.Draft == "dflash" && o.Tree == 0 {
				o.Tree = speculate.TreeOff
			}
			var got []int32
			seq, ctxs := m.NewSeq(), r.NewContexts()
			s, err := r.NewStream(speculate.Config{Options: o, Seq: seq, Contexts: ctxs, Prompt: prompt, Sampler: sample.New(p, m.Vocab), Max: n,
				Emit: func(t speculate.Token) bool { got = append(got, t.ID); return true }})
			if err != nil {
				t.Fatal(err)
			}
			for !s.Done() {
				if err := r.Step([]*speculate.Stream{s}, 64); err != nil {
					t.Fatal(err)
				}
			}
			if st := s.Stats(); st.DraftErr != nil {
				t.Fatal(st.DraftErr)
			}
			s.Close()
			seq.Close()
			speculate.CloseContexts(ctxs)
			if i == 0 {
				want = got
			} else if !slices.Equal(got, want) {
				t.Errorf("temperature %g, %+v: %v, want %v", p.Temp, o, got, want)
			}
		}
	}
}

// TestPair: the pair in $STROBE_PAIR (target and drafter, separated by a colon) says the same in every mode, and nearly what the
// processor computes.
func TestPair(t *testing.T) {
	var tp, dp string
	if _, err := fmt.Sscanf(os.Getenv("STROBE_PAIR"), "%s %s", &tp, &dp); err != nil {
		t.Skip("no pair: set STROBE_PAIR to a target and its drafter, with a space between")
	}
	b := open(t)
	m, err := model.Open(file(t, tp), b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dflash.Open(file(t, dp), m, dflash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	checkText(t, m, d, []int32{3, 50, 120, 77, 9, 400, 12, 6}, 200)
	c := cpu.New(cpu.Options{})
	defer c.Close()
	on, err := model.Open(file(t, tp), c, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := []int32{3, 50, 120, 77, 9, 400, 12, 6, 90, 41}
	x := b.Read(forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: tokens, Logits: model.LogitsAll}).Logits)
	y := c.Read(forward(t, on, model.Segment{Seq: on.NewSeq(), Tokens: tokens, Logits: model.LogitsAll}).Logits)
	e := testkit.RelL2(x, y)
	if t.Logf("logits differ from the processor's by %.1e", e); !(e <= 0.03) {
		t.Errorf("logits differ from the processor's by %.1e", e)
	}
}
