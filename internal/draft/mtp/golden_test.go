package mtp

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"strobe/internal/backend/cpu"
	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

var qwens = []string{"qwen35", "qwen35moe", "qwen3next"}

func openFile(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// openTarget loads a model on a device that watches the rules of steps.
func openTarget(t testing.TB, path string) *model.Model {
	t.Helper()
	b := cpu.New(cpu.Options{Threads: 2})
	t.Cleanup(func() { b.Close() })
	m, err := model.Open(openFile(t, path), testkit.NewDevice(t, b), model.Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openDrafter(t testing.TB, f *gguf.File, m *model.Model) *Drafter {
	t.Helper()
	d, err := Open(f, m, Options{KV: cache.Uniform(quant.F32)})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Capture(d.Capture()); err != nil {
		t.Fatal(err)
	}
	return d
}

// openQwen loads a golden model with its block.
func openQwen(t testing.TB, arch string) (*model.Model, *Drafter) {
	t.Helper()
	m := openTarget(t, edit.MTP(t, arch).Write(t))
	return m, openDrafter(t, m.File(), m)
}

// expected is a file of numbers.
type expected struct {
	t testing.TB
	f *safetensors.File
}

func open(t testing.TB, rel string) expected {
	t.Helper()
	return openAt(t, testkit.Golden(t, rel))
}

func openAt(t testing.TB, path string) expected {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return expected{t, f}
}

func (e expected) tensor(name string) *safetensors.Tensor {
	e.t.Helper()
	x := e.f.Tensor(name)
	if x == nil {
		e.t.Fatalf("no tensor %q", name)
	}
	return x
}

func (e expected) ints(name string) (v []int32) {
	e.t.Helper()
	data := e.tensor(name).Data
	for i := 0; i < len(data); i += 4 {
		v = append(v, int32(binary.LittleEndian.Uint32(data[i:])))
	}
	return v
}

func (e expected) floats(name string) []float32 {
	e.t.Helper()
	v, err := e.tensor(name).Float32s()
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

// same compares numbers with those of the reference, or with one row of them.
func (e expected) same(what string, got []float32, name string, row ...int) {
	e.t.Helper()
	want := e.floats(name)
	for _, r := range row {
		want = want[r*len(got):][:len(got)]
	}
	if d := testkit.RelL2(got, want); !(d <= 1e-4) {
		e.t.Errorf("%s: differs from %s by %.2e, want at most 1e-4", what, name, d)
	}
}

// stream is a target's sequence and the drafter's context of it.
type stream struct {
	m   *model.Model
	d   *Drafter
	seq *cache.Seq
	ctx *cache.Seq
}

func newStream(m *model.Model, d *Drafter) *stream {
	return &stream{m, d, m.NewSeq(), d.NewSeq()}
}

// pass runs tokens and commits the first keep of them.
func (s *stream) pass(t testing.TB, tokens []int32, keep int) *model.Output {
	t.Helper()
	out, err := s.m.Forward([]model.Segment{{Seq: s.seq, Tokens: tokens, Logits: model.LogitsAll}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.seq.CommitFirst(keep); err != nil {
		t.Fatal(err)
	}
	rows := make([]int32, keep)
	for i := range rows {
		rows[i] = int32(i)
	}
	if err := s.d.Extend(out.Features, []draft.Rows{{Seq: s.ctx, Tokens: tokens[:keep], Rows: rows}}); err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *stream) request(last int32, n int) draft.Request {
	return draft.Request{Seq: s.ctx, Target: s.seq, Last: last, N: n}
}

// rounds replays the rounds of a reference whose names begin with p. Between the rounds states are our own.
func (s *stream) rounds(t *testing.T, e expected, p string, last int32) {
	t.Helper()
	for r := 0; e.f.Tensor(fmt.Sprintf("%sround%d.start", p, r)) != nil; r++ {
		p := fmt.Sprintf("%sround%d.", p, r)
		k := len(e.ints(p + "draft"))
		if at := int(e.ints(p + "start")[0]); at != s.ctx.Len() || at != s.seq.Len() {
			t.Fatalf("%s starts at %d, the sequences at %d and %d", p, at, s.seq.Len(), s.ctx.Len())
		}
		tr, err := s.d.Trace(s.request(last, k))
		if err != nil {
			t.Fatal(err)
		}
		e.same("states in", tr.In, p+"h_in")
		e.same("states out", tr.Out, p+"h_out")
		e.same("logits", tr.Logits, p+"logits")
		if !slices.Equal(tr.Best, e.ints(p+"draft")) {
			t.Errorf("%s guesses %v, want %v", p, tr.Best, e.ints(p+"draft"))
		}
		ps, err := s.d.Draft([]draft.Request{s.request(last, k)}, 3)
		if err != nil {
			t.Fatal(err)
		}
		if got := ps[0].Chain(nil); !slices.Equal(got, tr.Best) {
			t.Errorf("%s the draft is %v, its trace %v", p, got, tr.Best)
		}
		keep := int(e.ints(p + "accepted")[0])
		out := s.pass(t, e.ints(p+"verify_tokens"), keep+1)
		e.same("target", s.d.b.Read(s.ctx.Carry()), p+"verify_hidden", keep)
		if e.f.Tensor(p+"verify_logits") != nil { // of one model, to save room
			e.same("target", s.m.Backend().Read(out.Logits), p+"verify_logits")
		}
		last = e.ints(p + "next")[0]
	}
}

// TestGolden replays prompts and rounds with 2, 0, 4 and 1 accepted guesses. The reference is a computation in
// float64 that llama.cpp's own graph agrees with.
func TestGolden(t *testing.T) {
	for _, arch := range qwens {
		for _, chunk := range []int{19, 5, 1} {
			t.Run(fmt.Sprintf("%s/chunk=%d", arch, chunk), func(t *testing.T) {
				m, d := openQwen(t, arch)
				e := open(t, "mtp-"+arch+"/expected.safetensors")
				tokens := e.ints("tokens")
				n := len(tokens) - 1
				s := newStream(m, d)
				var out *model.Output
				for part := range slices.Chunk(tokens[:n], chunk) {
					out = s.pass(t, part, len(part))
				}
				e.same("target", out.Row(0, (n-1)%chunk), "prompt.last_logits")
				checkContext(t, e, d, s.ctx)
				s.rounds(t, e, "", tokens[n])
			})
		}
		t.Run(arch+"/short", func(t *testing.T) {
			m, d := openQwen(t, arch)
			e := open(t, "mtp-"+arch+"/expected.safetensors")
			tokens := e.ints("short.tokens")
			s := newStream(m, d)
			s.pass(t, tokens[:1], 1)
			s.rounds(t, e, "short.", tokens[1])
		})
	}
}

// checkContext compares the keys and values of a prompt. The CPU keeps in a page the rows of each head, keys first.
func checkContext(t *testing.T, e expected, d *Drafter, ctx *cache.Seq) {
	t.Helper()
	pool, dims := d.mem.Pool(0), d.mem.Dims(0)
	page := make([]byte, pool.PageBytes())
	pool.ReadPage(0, page)
	rows := func(from int) (v []float32) {
		for token := range ctx.Len() {
			for head := range dims.Heads {
				at := from + (head*cache.PageTokens+token)*dims.KeyDim
				for i := at; i < at+dims.KeyDim; i++ {
					v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(page[4*i:])))
				}
			}
		}
		return v
	}
	e.same("keys", rows(0), "prompt.mtp_k")
	e.same("values", rows(dims.Heads*cache.PageTokens*dims.KeyDim), "prompt.mtp_v")
}

// TestGoldenAssistant replays rounds of an assistant, below and above the window. Feeding each step the state that
// the reference had keeps noise from growing along the chain.
func TestGoldenAssistant(t *testing.T) {
	for c := range 2 {
		t.Run(fmt.Sprintf("case%d", c), func(t *testing.T) {
			m := openTarget(t, testkit.Golden(t, "gemma4/model.gguf"))
			d := openDrafter(t, openFile(t, testkit.Golden(t, "gemma4-assistant/model.gguf")), m)
			e := open(t, "gemma4-assistant/rounds.safetensors")
			p := fmt.Sprintf("case%d.", c)
			tokens := e.ints(p + "tokens")
			n := len(tokens) - 1
			s := newStream(m, d)
			s.pass(t, tokens[:n], n)
			e.same("state", d.b.Read(s.ctx.Carry()), p+"prompt.hidden", n-1)
			rounds := 0
			for p += "upstream."; e.f.Tensor(fmt.Sprintf("%sround%d.start", p, rounds)) != nil; rounds++ {
				p := fmt.Sprintf("%sround%d.", p, rounds)
				if at := int(e.ints(p + "start")[0]); at != s.ctx.Len() || at != s.seq.Len() {
					t.Fatalf("%s starts at %d, the sequences at %d and %d", p, at, s.seq.Len(), s.ctx.Len())
				}
				for step, token := range e.ints(p + "tokens_in") {
					if step > 0 {
						h := e.floats(p + "h_in")
						d.b.Write(s.ctx.Carry(), h[step*m.Hidden:][:m.Hidden])
					}
					tr, err := d.Trace(s.request(token, 1))
					if err != nil {
						t.Fatal(err)
					}
					e.same("state in", tr.In, p+"h_in", step)
					e.same("state out", tr.Out, p+"h_out", step)
					e.same("logits", tr.Logits, p+"logits", step)
				}
				d.b.Write(s.ctx.Carry(), e.floats(p + "h_in")[:m.Hidden])
				ps, err := d.Draft([]draft.Request{s.request(e.ints(p + "tokens_in")[0], 4)}, 2)
				if err != nil {
					t.Fatal(err)
				}
				if got := ps[0].Chain(nil); !slices.Equal(got, e.ints(p+"draft")) {
					t.Errorf("%s the draft is %v, want %v", p, got, e.ints(p+"draft"))
				}
				keep := int(e.ints(p + "accepted")[0])
				s.pass(t, e.ints(p+"verify_tokens"), keep+1)
				e.same("state", d.b.Read(s.ctx.Carry()), p+"verify_hidden", keep)
			}
			if rounds < 4 {
				t.Errorf("%d rounds", rounds)
			}
		})
	}
}

// TestGoldenWhole replays the rounds on the files of the reference converter, whole and with the block in a file of
// its own, with all the numbers there are.
func TestGoldenWhole(t *testing.T) {
	for _, arch := range qwens {
		for _, alone := range []string{"", "golden/mtp/mtp-only/" + arch + ".gguf"} {
			if alone != "" && arch == "qwen35moe" {
				continue // there is no such file
			}
			t.Run(arch+alone, func(t *testing.T) {
				dir := testkit.Shared(t, "golden/mtp/"+arch+"-mtp")
				m := openTarget(t, filepath.Join(dir, "model.gguf"))
				f := m.File()
				if alone != "" {
					f = openFile(t, testkit.Shared(t, alone))
				}
				d, e := openDrafter(t, f, m), openAt(t, filepath.Join(dir, "expected.safetensors"))
				for _, p := range []string{"", "short."} {
					tokens := e.ints(p + "tokens")
					n := len(tokens) - 1
					s := newStream(m, d)
					s.pass(t, tokens[:n], n)
					s.rounds(t, e, p, tokens[n])
				}
			})
		}
	}
}
