package pflash

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/safetensors"
	"strobe/internal/testkit"
)

func golden(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(testkit.Shared(t, "golden/pflash/"+name))
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// scorerOf opens a tiny model with exact keys and values.
func scorerOf(t *testing.T, arch string) *Scorer {
	t.Helper()
	f, err := gguf.Open(testkit.Golden(t, arch+"/model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	b := cpu.New(cpu.Options{Threads: 2})
	s, err := NewScorer(f, b, quant.F32)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); f.Close() })
	s.Sparse.Alpha = 0
	return s
}

type reference struct {
	t *testing.T
	f *safetensors.File
}

func references(t *testing.T, name string) reference {
	t.Helper()
	f, err := safetensors.Open(testkit.Shared(t, "golden/pflash/"+name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return reference{t, f}
}

func (r reference) floats(name string) []float32 {
	r.t.Helper()
	x := r.f.Tensor(name)
	if x == nil {
		r.t.Fatalf("no tensor %s", name)
	}
	v, err := x.Float32s()
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r reference) ints(name string) []int32 {
	r.t.Helper()
	x := r.f.Tensor(name)
	if x == nil {
		r.t.Fatalf("no tensor %s", name)
	}
	v := make([]int32, x.Elems())
	for i := range v {
		d := x.Data[4*i:]
		v[i] = int32(uint32(d[0]) | uint32(d[1])<<8 | uint32(d[2])<<16 | uint32(d[3])<<24)
	}
	return v
}

// near fails when values differ by more than a share of the largest.
func (r reference) near(name string, got []float32) {
	r.t.Helper()
	want := r.floats(name)
	if len(got) != len(want) {
		r.t.Errorf("%s: %d values, want %d", name, len(got), len(want))
		return
	}
	top := 0.0
	for _, w := range want {
		top = max(top, math.Abs(float64(w)))
	}
	for i := range want {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= 1e-4*top) {
			r.t.Errorf("%s: value %d is %g, want %g", name, i, got[i], want[i])
			return
		}
	}
}

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// TestScores compares queries, keys, weights, scores and selections of tiny models with an independent implementation.
func TestScores(t *testing.T) {
	var selections map[string]map[string]wantSelection
	golden(t, "select_model.json", &selections)
	for _, arch := range []string{"qwen3", "qwen35"} {
		t.Run(arch, func(t *testing.T) {
			r := references(t, "score_"+arch+".safetensors")
			s := scorerOf(t, arch)
			compared := 0
			for _, p := range []string{"n300.", "n1100."} {
				ids := r.ints(p + "ids")
				chunks := map[string][]float64{}
				for _, kind := range []string{"nope", "rope"} {
					s.Rotated = kind == "rope"
					chunks[p+"specprefill.c_"+kind] = compareKept(t, r, s, p, kind, ids)
					a, err := s.Attention(context.Background(), ids, lookahead)
					if err != nil {
						t.Fatal(err)
					}
					var flat []float32
					for _, row := range a {
						flat = append(flat, row...)
					}
					r.near(p+"A_"+kind, flat)
					for _, width := range []int{13, 5} {
						s.Pool = width
						x, err := s.Score(context.Background(), ids)
						if err != nil {
							t.Fatal(err)
						}
						r.near(p+"s_"+kind, narrow(x.Tokens))
						r.near(fmt.Sprintf("%spool%d.s_%s", p, width, kind), narrow(x.Pooled))
						name := fmt.Sprintf("%spool%d.c_%s", p, width, kind)
						r.near(name, narrow(x.Chunks))
						chunks[name] = x.Chunks
					}
				}
				s.Rotated = false
				early, err := s.Tokens(context.Background(), ids[:len(ids)-40])
				if err != nil {
					t.Fatal(err)
				}
				early = append(early, make([]float64, 40)...)
				r.near(p+"end_minus_40.s_nope", narrow(early))
				r.near(p+"end_minus_40.pool13.c_nope", narrow(means(pool(early, 13), 32)))
				for name, want := range selections[arch] {
					scores, rest, _ := strings.Cut(name, " ")
					c := chunks[scores]
					if c == nil {
						continue // of another prompt
					}
					compared++
					rule := DefaultRule()
					rule.Repeats = strings.Contains(scores, "pool5")
					var keep float64
					if _, err := fmt.Sscanf(rest, "keep=%g", &keep); err == nil { // no rule, and rounded up
						best := byScore(c)[:max(1, int(math.Ceil(float64(len(c))*keep-1e-9)))]
						if slices.Sort(best); !slices.Equal(best, want.Selected) {
							t.Errorf("%s: %v, want %v", name, best, want.Selected)
						}
						continue
					}
					if _, err := fmt.Sscanf(rest, "ends=%d,%d keep=%g", &rule.Head, &rule.Tail, &keep); err != nil {
						t.Fatal(name, err)
					}
					want.compare(t, name, Select(ids, c, keep, rule))
				}
			}
			if compared != 70 {
				t.Errorf("%d selections compared, want 70", compared)
			}
			compareMessages(t, r, s)
		})
	}
}

// compareKept compares what the model keeps of each layer, and the scores in SpecPrefill's order that follow from it,
// which it returns by chunk.
func compareKept(t *testing.T, r reference, s *Scorer, p, kind string, ids []int32) []float64 {
	t.Helper()
	rows := r.ints(p + "k_rows")
	var qs, ks []float32
	n := len(ids)
	spec := make([]float64, lookahead*n) // [query][token]: pooled for each head, then the largest
	b := s.model.Backend()
	err := s.model.Sweep(context.Background(), model.Sweep{Tokens: ids, Queries: lookahead, Rotated: s.Rotated,
		Layer: func(q, k backend.Tensor, ap backend.AttnParams) error {
			qv, kv := b.Read(q), b.Read(k)
			qs = append(qs, qv...)
			for _, i := range rows {
				ks = append(ks, kv[int(i)*k.Cols:][:k.Cols]...)
			}
			dim := q.Cols / ap.Heads
			for h := range ap.Heads {
				for i := range lookahead {
					w, sum := make([]float64, n), 0.0
					for j := range n - lookahead + i + 1 {
						dot := 0.0
						for c := range dim {
							dot += float64(qv[i*q.Cols+h*dim+c]) * float64(kv[j*k.Cols+h/(ap.Heads/ap.KVHeads)*dim+c])
						}
						w[j] = math.Exp(dot * float64(ap.Scale))
						sum += w[j]
					}
					for j := range n {
						mean := 0.0
						for d := max(0, j-6); d <= min(n-1, j+6); d++ {
							mean += w[d] / sum / 13
						}
						spec[i*n+j] = max(spec[i*n+j], mean)
					}
				}
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	r.near(p+"q_"+kind, qs)
	r.near(p+"k_"+kind, ks)
	mean := make([]float64, n)
	for i, x := range spec {
		mean[i%n] += x / lookahead
	}
	r.near(p+"specprefill.s_"+kind, narrow(mean))
	r.near(p+"specprefill.c_"+kind, narrow(means(mean, 32)))
	return means(mean, 32)
}

// compareMessages: scores by a question that was said before, pooled inside of messages.
func compareMessages(t *testing.T, r reference, s *Scorer) {
	t.Helper()
	s.Rotated = false
	ids := r.ints("messages.ids")
	x, err := s.Tokens(context.Background(), append(ids[:len(ids):len(ids)], r.ints("messages.suffix")...))
	if err != nil {
		t.Fatal(err)
	}
	r.near("messages.s", narrow(x[:len(ids)]))
	ranges := r.ints("messages.ranges")
	for i := range len(ranges) / 2 {
		r.near(fmt.Sprintf("messages.c%d", i), narrow(means(pool(x[ranges[2*i]:ranges[2*i+1]], 13), 32)))
	}
}

// wantSelection is a selection as the files have it.
type wantSelection struct {
	Unchanged                                 bool
	N                                         int `json:"n_keep"`
	Head, Tail                                int
	Ends, Anchors, Repeated, Filled, Selected []int
	Spans                                     [][2]int
}

func (w wantSelection) compare(t *testing.T, name string, s Selection) {
	t.Helper()
	got := wantSelection{s.Unchanged, s.Keep, s.Head, s.Tail, s.Ends, s.Anchors, s.Repeated, s.Filled, s.Chunks, s.Spans}
	if s.Unchanged {
		got.Head, got.Tail = 0, 0
	}
	for _, p := range []*[]int{&w.Ends, &w.Anchors, &w.Repeated, &w.Filled, &w.Selected} {
		if len(*p) == 0 {
			*p = nil
		}
	}
	if d := cmp.Diff(w, got); d != "" {
		t.Errorf("%s:\n%s", name, d)
	}
}

func TestSelect(t *testing.T) {
	var cases []struct {
		Name   string
		N      int
		Put    [][2]json.RawMessage
		C      []float64
		Ratio  float64
		Params struct {
			Head, Tail, Radius *int
			Repeats            bool
		}
		Expect wantSelection
	}
	golden(t, "select.json", &cases)
	for _, c := range cases {
		ids := make([]int32, c.N)
		for i := range ids {
			ids[i] = int32(1000000 + i)
		}
		for _, p := range c.Put {
			var at int
			var v []int32
			if json.Unmarshal(p[0], &at) != nil || json.Unmarshal(p[1], &v) != nil {
				t.Fatalf("%s: put %s", c.Name, p)
			}
			copy(ids[at:], v)
		}
		rule := DefaultRule()
		rule.Repeats = c.Params.Repeats
		for from, to := range map[*int]*int{
			c.Params.Head: &rule.Head, c.Params.Tail: &rule.Tail, c.Params.Radius: &rule.Radius,
		} {
			if from != nil {
				*to = *from
			}
		}
		c.Expect.compare(t, c.Name, Select(ids, c.C, c.Ratio, rule))
	}
}

// TestSparseForward: a scorer that reads with block-sparse attention in every layer.
func TestSparseForward(t *testing.T) {
	var meta map[string]json.RawMessage
	golden(t, "flashprefill.json", &meta)
	var want struct {
		Block int
		Alpha float32
		C     []float64
	}
	if err := json.Unmarshal(meta["sparse_forward"], &want); err != nil {
		t.Fatal(err)
	}
	s := scorerOf(t, "qwen3")
	s.Sparse.Block, s.Sparse.Alpha = want.Block, want.Alpha
	x, err := s.Score(context.Background(), references(t, "score_qwen3.safetensors").ints("n300.ids"))
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Chunks) != len(want.C) {
		t.Fatalf("%d chunks, want %d", len(x.Chunks), len(want.C))
	}
	for i, c := range want.C {
		if math.Abs(x.Chunks[i]-c) > 1e-4*c {
			t.Errorf("chunk %d: %g, want %g", i, x.Chunks[i], c)
		}
	}
}

// TestConversations plays conversations whose scores are given, and compares every turn.
func TestConversations(t *testing.T) {
	var file struct {
		Messages []struct {
			Role, Text string
			Tokens     int
			Chunks     [][4]float64
			Hits       []int
		}
		Conversations []struct {
			Name   string
			Params struct {
				Trigger, Chunk, Recent, Snap, Limit int
				Keep, Growth                        float64
				Min                                 int `json:"min_tokens"`
				LastMax                             int `json:"last_user_max"`
				LastTail                            int `json:"last_user_tail"`
				MinGap                              int `json:"min_gap"`
			}
			Turns []struct {
				Messages []int
				Expect   struct {
					Now     []int `json:"compressed_now"`
					Before  int   `json:"total_before"`
					After   int   `json:"total_after"`
					Floor   int
					TooLong bool `json:"too_long"`
					Forms   [][]int
					Texts   []*string
					Same    *int `json:"same_leading_messages"`
				}
			}
		}
	}
	golden(t, "messages.json", &file)
	for _, c := range file.Conversations {
		p := DefaultParams()
		q := c.Params
		p.Trigger, p.Chunk, p.Recent, p.Snap, p.Limit, p.Keep = q.Trigger, q.Chunk, q.Recent, q.Snap, q.Limit, q.Keep
		p.Min, p.LastMax, p.LastTail, p.MinGap = q.Min, q.LastMax, q.LastTail, q.MinGap
		if q.Growth > 0 {
			p.Growth = q.Growth
		}
		var comp Compressor
		var before []string
		for n, turn := range c.Turns {
			at := fmt.Sprintf("%s, turn %d", c.Name, n)
			var msgs []Message
			for _, i := range turn.Messages {
				m := file.Messages[i]
				x := Message{Role: m.Role, Text: m.Text, Tokens: m.Tokens, Hits: m.Hits}
				for _, ch := range m.Chunks {
					x.Chunks = append(x.Chunks, Chunk{int(ch[0]), int(ch[1]), int(ch[2]), ch[3]})
				}
				msgs = append(msgs, x)
			}
			got, err := comp.Turn(msgs, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			e := turn.Expect
			if fmt.Sprint(got.compressed, got.known, got.After, got.floor, got.TooLong) !=
				fmt.Sprint(e.Now, e.Before, e.After, e.Floor, e.TooLong) {
				t.Errorf("%s: compressed %v, %d to %d tokens, floor %d, too long %v; want %+v", at, got.compressed, got.known,
					got.After, got.floor, got.TooLong, e)
			}
			for i := range msgs {
				if !cmp.Equal(e.Forms[i], got.forms[i].chunks) {
					t.Errorf("%s: form %d is %v, want %v", at, i, got.forms[i].chunks, e.Forms[i])
				}
				want := msgs[i].Text
				if e.Texts[i] != nil {
					want = *e.Texts[i]
				}
				if got.Texts[i] != want {
					t.Errorf("%s: text %d:\n%s", at, i, cmp.Diff(want, got.Texts[i]))
				}
			}
			same := 0
			for same < min(len(before), len(got.Texts)) && before[same] == got.Texts[same] {
				same++
			}
			if e.Same != nil && same != *e.Same {
				t.Errorf("%s: %d leading messages as before, want %d", at, same, *e.Same)
			}
			before = got.Texts
		}
	}
}
