package eagle3

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit/edit"
)

// TestNodes: a tree has the best path and those that leave it once, in the order that the cache wants.
func TestNodes(t *testing.T) {
	if got := nodes(3, 1); !slices.Equal(got, []node{{-1, 0, 0}, {0, 0, 1}, {1, 0, 2}}) {
		t.Errorf("a chain is %v", got)
	}
	want := []node{{-1, 0, 0}, {0, 0, 1}, {0, 1, 1}, {1, 0, 2}, {2, 0, 2}, {1, 1, 2}, {3, 0, 3}, {4, 0, 3}, {5, 0, 3}}
	if got := nodes(4, 3); !slices.Equal(got, want) {
		t.Errorf("a tree is %v, want %v", got, want)
	}
}

// TestPropose: alternatives have candidates of their own. Of two places with the same token the more probable one
// counts, and a token that was not followed has none.
func TestPropose(t *testing.T) {
	tree := nodes(3, 3)
	all := [][]draft.Candidate{
		{{ID: 1, LogP: -1}, {ID: 2, LogP: -2}},
		{{ID: 3, LogP: -1}, {ID: 4, LogP: -3}}, // after 1
		{{ID: 4, LogP: -1}, {ID: 6, LogP: -2}}, // after 2
		{{ID: 7}, {ID: 8}},                     // after 1 3
		{{ID: 9}, {ID: 8}},                     // after 2 4: -3
		{{ID: 5}, {ID: 8}},                     // after 1 4: -4
	}
	p := propose(tree, func(n int) []draft.Candidate { return all[n] })
	for _, x := range []struct {
		i      int
		before int32
		want   []draft.Candidate
	}{{0, 0, all[0]}, {1, 1, all[1]}, {1, 2, all[2]}, {1, 99, nil}, {2, 3, all[3]}, {2, 4, all[4]}, {2, 6, nil}} {
		if got := p.After(x.i, x.before); !slices.Equal(got, x.want) {
			t.Errorf("place %d after %d: %v, want %v", x.i, x.before, got, x.want)
		}
	}
	if p := propose(nodes(3, 1), func(n int) []draft.Candidate { return all[0] }); p.Next != nil || p.Len() != 3 {
		t.Error("a chain has alternatives that go on")
	}
}

// TestBeginning: without a token there are no features, so there is no draft; later ones are not changed by that.
func TestBeginning(t *testing.T) {
	m := openTarget(t, made(t, "tiny-qwen3"))
	d := openDrafter(t, made(t, "tiny-qwen3-eagle3"), m)
	empty, full := newStream(m, d), newStream(m, d)
	if p := empty.draft(t, 3, 4, 2, true); p.Len() != 0 {
		t.Errorf("%d guesses without a text", p.Len())
	}
	full.pass(t, 3, 500, 120)
	want := full.draft(t, 9, 4, 3, true)
	ps, err := d.Draft([]draft.Request{{Seq: empty.ctx, Last: 1, N: 8}, {Seq: full.ctx, Last: 9, N: 4, Tree: true}}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if ps[0].Len() != 0 || !slices.EqualFunc(ps[1].At, want.At, slices.Equal) {
		t.Errorf("beside an empty text %v, want %v", ps[1].At, want.At)
	}
	if _, err := d.Draft([]draft.Request{{Seq: full.ctx, Last: int32(m.Vocab), N: 1}}, 1); err == nil {
		t.Error("a token outside the vocabulary")
	}
	if _, err := d.Draft([]draft.Request{{Seq: full.ctx, N: longest + 1}}, 1); err == nil {
		t.Error("more guesses than a draft has")
	}
	if n := d.Memory().Pool(0).Used(); n != 1 {
		t.Errorf("%d pages are in use", n)
	}
	full.ctx.Close()
	empty.ctx.Close()
	if n := d.Memory().Pool(0).Used(); n != 0 {
		t.Errorf("%d pages leaked", n)
	}
}

// TestImageRows: an image of one row, the embedding of a token, is that token to a drafter that sees images.
func TestImageRows(t *testing.T) {
	target, file := made(t, "tiny-qwen35"), made(t, "tiny-qwen35-eagle3")
	run := func(sees, image bool) []draft.Candidate {
		m := openTarget(t, target)
		d := openDrafter(t, file, m)
		if sees {
			d.SeeImages()
			if err := m.Capture(d.Capture()); err != nil {
				t.Fatal(err)
			}
		}
		tokens, s := []int32{3, 500, 120, 77, 9}, newStream(m, d)
		var list []model.Image
		if image {
			b := m.Backend()
			embed, _, err := m.Vocabulary(b)
			if err != nil {
				t.Fatal(err)
			}
			ids, _ := b.AllocInts(1)
			row, _ := b.Alloc(1, m.Hidden)
			b.SetInts(ids, tokens[2:3])
			b.Embed(row, embed, ids, m.EmbScale)
			list = []model.Image{{At: 2, W: 1, H: 1, Rows: slices.Clone(b.Read(row))}}
			tokens[2] = -4
		}
		out, err := m.Forward([]model.Segment{{Seq: s.seq, Tokens: tokens, Images: list, Prompt: true}})
		if err == nil {
			err = s.seq.CommitAll()
		}
		if err == nil {
			err = d.Extend(out.Features, []draft.Rows{{Seq: s.ctx, Tokens: tokens, Rows: []int32{0, 1, 2, 3, 4}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return s.draft(t, 8, 1, 6, false).At[0]
	}
	want := run(false, false)
	for name, got := range map[string][]draft.Candidate{"text": run(true, false), "image": run(true, true)} {
		for i, c := range got {
			if c.ID != want[i].ID || math.Abs(float64(c.LogP-want[i].LogP)) > 1e-5 {
				t.Errorf("%s: candidate %d is %v, want %v", name, i, c, want[i])
			}
		}
	}
	if blind := run(false, true); slices.Equal(blind, want) {
		t.Error("a drafter that does not see images drafts as if it did")
	}
}

// edited is a file of a shape that can be changed.
func edited(t *testing.T, shape string) *edit.File {
	t.Helper()
	f := made(t, shape)
	kvs, err := f.KVs()
	if err != nil {
		t.Fatal(err)
	}
	e := &edit.File{KVs: kvs}
	for _, x := range f.Tensors() {
		c := *x
		e.Tensors = append(e.Tensors, &c)
	}
	return e
}

// TestHostile: files that cannot run are refused in one line that names the file and what is wrong.
func TestHostile(t *testing.T) {
	m := openTarget(t, made(t, "tiny-llama"))
	whole := edited(t, "tiny-llama-eagle3")
	ids := func(list ...int64) func(e *edit.File) {
		var data []byte
		for _, id := range list {
			data = binary.LittleEndian.AppendUint64(data, uint64(id))
		}
		return func(e *edit.File) {
			e.Drop("d2t")
			e.Tensors = append(e.Tensors, &gguf.Tensor{Name: "d2t", Type: quant.I64, Shape: []int{len(list)}, Data: data})
		}
	}
	set := func(key string, v any) func(e *edit.File) { return func(e *edit.File) { e.Set("eagle3."+key, v) } }
	drop := func(name string) func(e *edit.File) { return func(e *edit.File) { e.Drop(name) } }
	for name, x := range map[string]struct {
		change func(e *edit.File)
		words  string
	}{
		"no layers":      {set("target_layers", nil), "eagle3.target_layers"},
		"many layers":    {set("target_layers", make([]int32, 99)), "eagle3.target_layers"},
		"layer outside":  {set("target_layers", []int32{0, 1, 4}), "entry 4"},
		"layer below 0":  {set("target_layers", []int32{-1, 1, 2}), "entry -1"},
		"two layers":     {set("target_layers", []int32{0, 1}), "fc.weight"},
		"another target": {set("target_hidden_size", uint32(512)), "width 512"},
		"two blocks":     {set("block_count", uint32(2)), "block_count"},
		"no heads":       {set("attention.head_count", uint32(0)), "head_count"},
		"huge width":     {set("embedding_length", uint64(1)<<40), "embedding_length"},
		"epsilon":        {set("attention.layer_norm_rms_epsilon", float32(2)), "epsilon"},
		"no projection":  {drop("fc.weight"), "fc.weight"},
		"no output":      {drop("output.weight"), "output.weight"},
		"no map":         {drop("d2t"), "output.weight"},
		"short map":      {ids(1, 2, 3), "output.weight"},
		"token outside":  {ids(make([]int64, 511)...), "output.weight"},
		"token below 0":  {ids(append(make([]int64, 511), -1)...), "entry 511 is -1"},
		"token above":    {ids(append(make([]int64, 511), 2048)...), "entry 511 is 2048"},
		"no norm":        {drop("blk.0.attn_norm_2"), "attn_norm_2"},
		"more":           {func(e *edit.File) { e.Put("blk.0.attn_q_norm.weight", make([]float32, 64), 64) }, "attn_q_norm"},
		"unused norm": {func(e *edit.File) { e.Put("enc.output_norm.weight", make([]float32, 768), 768) },
			"enc.output_norm"},
		"missing norm": {set("norm_before_fc", true), "enc.output_norm"},
		"small embedding": {func(e *edit.File) { e.Put("token_embd.weight", make([]float32, 256*3), 256, 3) },
			"3 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			e := whole.Clone()
			x.change(e)
			path := e.Write(t)
			f, err := gguf.Open(path)
			if err == nil {
				defer f.Close()
				_, err = Open(f, m, Options{})
			}
			if err == nil || !strings.Contains(err.Error(), x.words) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one that names the file and %q", err, x.words)
			}
		})
	}
	if _, err := Open(made(t, "tiny-llama"), m, Options{}); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("a target as a drafter: %v", err)
	}
}
