// Package modeltest checks that a device runs models as they are meant: the logits of the golden files, the same bits
// whatever the batch, and the same text whatever drafts.
package modeltest

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
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
	"strobe/internal/synth"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
)

// Plain are architectures without a golden file: made-up models of these shapes are compared with Reference.
var Plain = []string{"tiny-llama", "tiny-qwen2", "tiny-qwen3moe", "tiny-gpt-oss"}

// Targets are the golden models, one per architecture.
var Targets = []string{"qwen3", "qwen35", "qwen35moe", "qwen3next", "gemma4", "gemma4moe", "gemma4e"}

// Suite is a device under test, and how much of each test there is time for.
type Suite struct {
	Backend backend.Backend
	Few     int // tokens that are read where the device is an emulation; 0 on a device
	Written int // tokens that are written there
}

// few is the length of a text that would have n tokens on a device.
func (s Suite) few(n int) int {
	if s.Few > 0 {
		return min(n, s.Few)
	}
	return n
}

// File opens a file for the time of the test.
func File(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Path is the file of a model: a golden one, or one of Plain with weights of a type.
func Path(t testing.TB, name, mix string) string {
	t.Helper()
	if !slices.Contains(Plain, strings.TrimSuffix(name, "-dflash")) {
		return testkit.Golden(t, name+"/model.gguf")
	}
	path := filepath.Join(t.TempDir(), name+".gguf")
	if err := synth.Write(t.Context(), path, name, mix, 11, synth.Options{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// Target opens a model.
func Target(t testing.TB, b backend.Backend, name string, opt model.Options) *model.Model {
	t.Helper()
	m, err := model.Open(File(t, Path(t, name, "q8_0")), b, opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// expected are tokens and their logits: those of a golden file, or those that Reference computes.
func expected(t testing.TB, name string, f *gguf.File) (tokens []int32, logits []float32) {
	t.Helper()
	if slices.Contains(Plain, name) {
		tokens = []int32{3, 500, 120, 77, 9, 1400, 3, 8}
		return tokens, Reference(t, f, tokens)
	}
	x, err := safetensors.Open(testkit.Golden(t, name+"/expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if logits, err = x.Tensor("logits").Float32s(); err != nil {
		t.Fatal(err)
	}
	return Tokens(t, x), logits
}

// Forward runs a pass and waits for it.
func Forward(t testing.TB, m *model.Model, segs ...model.Segment) *model.Output {
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

// Golden: logits of the reference models, whole and token by token.
func (s Suite) Golden(t *testing.T, names ...string) {
	b := s.Backend
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			f := File(t, Path(t, name, "f32"))
			tokens, want := expected(t, name, f)
			m, err := model.Open(f, b, model.Options{KV: cache.Uniform(quant.F32)})
			if err != nil {
				t.Fatal(err)
			}
			tokens = tokens[:s.few(len(tokens))]
			want = want[:len(tokens)*m.Vocab]
			out := Forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: tokens, Logits: model.LogitsAll})
			if e := testkit.RelL2(b.Read(out.Logits), want); !(e <= 1e-4) {
				t.Errorf("whole: relative error %.2e", e)
			}
			seq := m.NewSeq()
			var got []float32
			for i := range tokens {
				out := Forward(t, m, model.Segment{Seq: seq, Tokens: tokens[i : i+1], Logits: model.LogitsAll})
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

// Tokens are the tokens of the golden logits.
func Tokens(t testing.TB, f *safetensors.File) (ids []int32) {
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

// SameBits compares values by their bits.
func SameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// Identity: the logits of a token have the same bits alone, in batches, beside other sequences, as a prompt and in a
// tree.
func (s Suite) Identity(t *testing.T, names ...string) {
	b := s.Backend
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m := Target(t, b, name, model.Options{})
			tokens := make([]int32, s.few(40))
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
					out := Forward(t, m, segs...)
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
					if !SameBits(pieces(n, prompt), want) {
						t.Errorf("pieces of %d (prompt: %t): other bits than one by one", n, prompt)
					}
				}
			}
			// A tree whose second branch is the text: its rows must have the text's bits.
			seq := m.NewSeq()
			Forward(t, m, model.Segment{Seq: seq, Tokens: tokens[:2], Prompt: true})
			if err := seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
			tree := model.Segment{Seq: seq, Tokens: []int32{tokens[2], 7, tokens[3], 9, tokens[4]}, Parents: []int32{-1, 0, 0, 1,
				2}, Logits: model.LogitsAll}
			v := b.Read(Forward(t, m, tree).Logits)
			for row, at := range map[int]int{0: 2, 2: 3, 4: 4} {
				if !SameBits(v[row*m.Vocab:][:m.Vocab], want[at*m.Vocab:][:m.Vocab]) {
					t.Errorf("row %d of a tree: other bits than in a chain", row)
				}
			}
			if err := seq.Commit([]int32{0, 2, 4}); err != nil {
				t.Fatal(err)
			}
			v = b.Read(Forward(t, m, model.Segment{Seq: seq, Tokens: tokens[5:6], Logits: model.LogitsAll}).Logits)
			if !SameBits(v, want[5*m.Vocab:][:m.Vocab]) {
				t.Error("after the path of a tree was kept: other bits than in a chain")
			}
		})
	}
}

// Prompts: a prompt of as many tokens as a pass takes leaves the bits that it leaves in parts: logits of its last
// token, and of one after it.
func (s Suite) Prompts(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m := Target(t, s.Backend, name, model.Options{})
			tokens, parts := make([]int32, model.MaxRows), []int{25, model.MaxRows / 2, 400}
			if s.Few > 0 { // from 64 rows on prompts have their own kernels
				tokens, parts = tokens[:66], parts[:1]
			}
			for i := range tokens {
				tokens[i] = int32(i*i*7+i*37+11) % 500
			}
			logits := func(part int) (all []float32) {
				seq := m.NewSeq()
				defer seq.Close()
				pass := func(tokens []int32, prompt bool) {
					seg := model.Segment{Seq: seq, Tokens: tokens, Prompt: prompt, Logits: model.LogitsLast}
					all = s.Backend.Read(Forward(t, m, seg).Logits)
					if err := seq.CommitAll(); err != nil {
						t.Fatal(err)
					}
				}
				for part := range slices.Chunk(tokens, part) {
					pass(part, true)
				}
				last := all
				pass(tokens[:1], false)
				return append(last, all...)
			}
			want := logits(len(tokens))
			if len(want) != 2*m.Vocab {
				t.Fatalf("%d logits, want those of two tokens", len(want))
			}
			for _, part := range parts {
				if !SameBits(logits(part), want) {
					t.Errorf("%d tokens in parts of %d: other bits than as a whole", len(tokens), part)
				}
			}
		})
	}
}

// exact is a device that pads nothing and goes through every pass.
type exact struct{ backend.Backend }

// Padding: passes that are padded, and run again by their name with other rows, streams, pages and trees, have the
// bits of passes that are gone through row by row; nothing that later passes see is lost to padding.
func (s Suite) Padding(t *testing.T, names ...string) {
	b := s.Backend
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			run := func(b backend.Backend) (all []float32) {
				m := Target(t, b, name, model.Options{})
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
					out := Forward(t, m, segs...)
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
			if !SameBits(run(b), run(exact{b})) {
				t.Error("padding changes bits")
			}
		})
	}
}

// Text: what is generated with a drafter, in any mode, greedy or drawn, is what plain decoding says. The drafter
// guesses what it does on the processor.
func (s Suite) Text(t *testing.T, names ...string) {
	c := cpu.New(cpu.Options{})
	defer c.Close()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			prompt := []int32{1, 5, 9, 13}
			m := Target(t, s.Backend, name, model.Options{})
			if name == "gemma4e" || s.Few > 0 && slices.Contains(Plain, name) { // it has no drafter, or a large one
				s.Same(t, m, nil, prompt, 24)
				return
			}
			drafter := "dflash-" + name
			if slices.Contains(Plain, name) {
				drafter = name + "-dflash"
			}
			file := File(t, Path(t, drafter, "q8_0"))
			var all []draft.Proposal
			for _, m := range []*model.Model{m, Target(t, c, name, model.Options{})} {
				d, err := dflash.Open(file, m, dflash.Options{Causal: dflash.CausalOff})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, alone(t, m, d, []int32{1, 5, 9, 13, 2, 8, 7}, d.Max(), 1))
			}
			for i, c := range all[0].At {
				if x, y := c[0], all[1].At[i][0]; !(math.Abs(float64(x.LogP-y.LogP)) <= 0.1) {
					t.Errorf("guess %d is %v, on the processor %v", i, x, y)
				}
			}
			d, err := dflash.Open(file, m, dflash.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.Same(t, m, d, prompt, 24)
		})
	}
}

// alone drafts after a text: its last token is the newest, and the others are told at once.
func alone(t *testing.T, m *model.Model, s draft.Source, text []int32, n, top int) draft.Proposal {
	t.Helper()
	if err := m.Capture(s.Capture()); err != nil {
		t.Fatal(err)
	}
	seq, ctx := m.NewSeq(), s.NewContext()
	defer seq.Close()
	defer ctx.Close()
	known := text[:len(text)-1]
	rows := draft.Rows{Seq: ctx, Tokens: known}
	if len(known) > 0 {
		out := Forward(t, m, model.Segment{Seq: seq, Tokens: known, Prompt: true})
		for i := range known {
			rows.Rows = append(rows.Rows, int32(out.FeatureRow(0, i)))
		}
		if err := seq.CommitAll(); err != nil {
			t.Fatal(err)
		}
		if err := s.Extend(out.Features, []draft.Rows{rows}); err != nil {
			t.Fatal(err)
		}
	}
	ps, err := s.Draft([]draft.Request{{Seq: ctx, Target: seq, Last: text[len(text)-1], N: n, Tree: n%2 == 0}}, top)
	if err != nil {
		t.Fatal(err)
	}
	return ps[0]
}

// MTP: the same with guesses of a block for multi-token prediction, of Qwen's kind and of Gemma's.
func (s Suite) MTP(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m, d := chained(t, s.Backend, name)
			s.Same(t, m, d, []int32{1, 5, 9, 13}, 24)
		})
	}
}

// Same compares modes of drafting with plain decoding: by d, if there is one, and by a source of which much is
// accepted. It returns how much was accepted of the chains of d in a greedy text.
func (s Suite) Same(t *testing.T, m *model.Model, d draft.Source, prompt []int32, n int) (accepted int) {
	t.Helper()
	modes := []speculate.Options{{Draft: speculate.Off}, {}}
	if s.Few > 0 {
		n = min(n, s.Written)
	}
	knows := &prophet{vocab: m.Vocab}
	sources := []draft.Source{knows}
	if d != nil {
		sources = append(sources, d)
	}
	for _, x := range sources {
		modes = append(modes, speculate.Options{Draft: x.Name(), Fixed: true, Max: 5, Tree: speculate.TreeOff},
			speculate.Options{Draft: x.Name(), Fixed: true, Tree: 12})
	}
	for _, p := range []sample.Params{{}, {Temp: 0.8, Seed: 3}} {
		var want []int32
		for i, o := range modes {
			r, err := speculate.NewRunner(m, sources...)
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			seq, ctxs := m.NewSeq(), r.NewContexts()
			stream, err := r.NewStream(speculate.Config{Options: o, Seq: seq, Contexts: ctxs, Prompt: prompt,
				Sampler: sample.New(p, m.Vocab), Max: n,
				Emit: func(t speculate.Token) bool { got = append(got, t.ID); return true }})
			if err != nil {
				t.Fatal(err)
			}
			for !stream.Done() {
				if err := r.Step([]*speculate.Stream{stream}, 64); err != nil {
					t.Fatal(err)
				}
			}
			st := stream.Stats()
			if st.DraftErr != nil {
				t.Fatal(st.DraftErr)
			}
			stream.Close()
			seq.Close()
			speculate.CloseContexts(ctxs)
			if i == 0 {
				want = got
				knows.texts = [][]int32{slices.Concat(prompt, want)}
			} else if !slices.Equal(got, want) {
				t.Errorf("temperature %g, %+v: %v, want %v", p.Temp, o, got, want)
			}
			switch {
			case o.Draft == knows.Name() && (st.Accepted == 0 || st.Accepted == st.Guessed):
				t.Errorf("temperature %g, %+v: %d of %d guesses accepted", p.Temp, o, st.Accepted, st.Guessed)
			case d != nil && o.Draft == d.Name() && o.Tree == speculate.TreeOff && p.Temp == 0:
				accepted = st.Accepted
			}
		}
	}
	return accepted
}

// Pair: a target with its drafter says the same in every mode, and computes and accepts nearly what it does on the
// processor.
func (s Suite) Pair(t *testing.T, tf, df *gguf.File, n int) {
	words, err := tokenizer.FromGGUF(tf)
	if err != nil {
		t.Fatal(err)
	}
	prompt := words.Encode("package main\n\nimport (\n\t\"fmt\"\n", tokenizer.EncodeOptions{})
	c := cpu.New(cpu.Options{})
	defer c.Close()
	var logits [2][]float32
	var accepted [2]int
	for i, b := range []backend.Backend{s.Backend, c} {
		m, err := model.Open(tf, b, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := dflash.Open(df, m, dflash.Options{})
		if err != nil {
			t.Fatal(err)
		}
		accepted[i] = s.Same(t, m, d, prompt, n)
		logits[i] = b.Read(Forward(t, m, model.Segment{Seq: m.NewSeq(), Tokens: prompt, Logits: model.LogitsAll}).Logits)
	}
	t.Logf("accepted %d, on the processor %d", accepted[0], accepted[1])
	if accepted[0] < (accepted[1]+1)/2 || accepted[1] == 0 {
		t.Errorf("accepted %d, on the processor %d", accepted[0], accepted[1])
	}
	e := testkit.RelL2(logits[0], logits[1])
	if t.Logf("logits differ from the processor's by %.1e", e); !(e <= 0.03) {
		t.Errorf("logits differ from the processor's by %.1e", e)
	}
}
