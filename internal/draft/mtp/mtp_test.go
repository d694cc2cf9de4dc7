package mtp

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"strobe/internal/cache"
	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// kinds are the pairs that every rule of contexts is tested with.
var kinds = map[string]func(t testing.TB) (*model.Model, *Drafter){
	"nextn": func(t testing.TB) (*model.Model, *Drafter) { return openQwen(t, "qwen35") },
	"assistant": func(t testing.TB) (*model.Model, *Drafter) {
		m := openTarget(t, testkit.Golden(t, "gemma4/model.gguf"))
		return m, openDrafter(t, openFile(t, testkit.Golden(t, "gemma4-assistant/model.gguf")), m)
	},
}

func each(t *testing.T, test func(t *testing.T, m *model.Model, d *Drafter)) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			m, d := open(t)
			test(t, m, d)
		})
	}
}

// text is n tokens.
func text(seed, n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32((i*i*7 + seed*31 + i*seed) % 500)
	}
	return v
}

// trace shows a draft of four tokens.
func (s *stream) trace(t testing.TB, last int32) *Trace {
	t.Helper()
	tr, err := s.d.Trace(s.request(last, 4))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func equal(t *testing.T, what string, a, b *Trace) {
	t.Helper()
	if !slices.Equal(a.In, b.In) || !slices.Equal(a.Out, b.Out) || !slices.Equal(a.Logits, b.Logits) ||
		!slices.Equal(a.Best, b.Best) {
		t.Errorf("%s: drafts %v, want %v; their numbers differ", what, a.Best, b.Best)
	}
}

// TestSamePromptTwice: nothing of an earlier prompt is left in a sequence that starts anew.
func TestSamePromptTwice(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s := newStream(m, d)
		s.pass(t, text(1, 9), 9)
		want := s.trace(t, 5)
		s.pass(t, text(2, 4), 2)
		for _, q := range []*cache.Seq{s.seq, s.ctx} {
			if err := q.Truncate(0); err != nil {
				t.Fatal(err)
			}
		}
		s.pass(t, text(1, 9), 9)
		equal(t, "second time", s.trace(t, 5), want)
	})
}

// TestDraftLeavesNothing: a draft does not change the next one, nor what tokens told later make of the context.
func TestDraftLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s, quiet := newStream(m, d), newStream(m, d)
		s.pass(t, text(1, 9), 9)
		quiet.pass(t, text(1, 9), 9)
		first := s.trace(t, 5)
		s.trace(t, 6)
		equal(t, "again", s.trace(t, 5), first)
		s.pass(t, text(2, 5), 3)
		quiet.pass(t, text(2, 5), 3)
		equal(t, "after more tokens", s.trace(t, 7), quiet.trace(t, 7))
	})
}

// TestForkAndSave: a copy goes on as the original would, whatever becomes of the original, and so does one that was
// stored.
func TestForkAndSave(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s := newStream(m, d)
		s.pass(t, text(1, 70), 70)
		var stored bytes.Buffer
		if n, err := s.ctx.WriteTo(&stored); err != nil || n != s.ctx.SavedBytes() {
			t.Fatalf("%d bytes written, %d announced, error %v", n, s.ctx.SavedBytes(), err)
		}
		fork := func(ctx *cache.Seq) *stream {
			seq, err := s.seq.Fork()
			if err != nil {
				t.Fatal(err)
			}
			return &stream{m, d, seq, ctx}
		}
		ctx, err := s.ctx.Fork()
		if err != nil {
			t.Fatal(err)
		}
		copied := fork(ctx)
		if ctx, err = d.mem.ReadSeq(&stored); err != nil {
			t.Fatal(err)
		}
		loaded := fork(ctx)
		want := s.trace(t, 5)
		s.pass(t, text(3, 8), 8)
		for what, c := range map[string]*stream{"copy": copied, "stored": loaded} {
			equal(t, what, c.trace(t, 5), want)
			c.pass(t, text(3, 8), 8)
			equal(t, what+", later", c.trace(t, 5), s.trace(t, 5))
		}
	})
}

// TestCut: the state at an earlier token is gone, so a context is whole or empty.
func TestCut(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s := newStream(m, d)
		s.pass(t, text(1, 9), 9)
		if err := s.ctx.Truncate(5); !errors.Is(err, cache.ErrRewind) || s.ctx.CanCut(5) || d.mem.Cuttable(5) {
			t.Errorf("cut to 5 of 9 tokens: error %v, CanCut %v, Cuttable %v", err, s.ctx.CanCut(5), d.mem.Cuttable(5))
		}
		if err := s.ctx.Truncate(0); err != nil {
			t.Error(err)
		}
		if v := d.b.Read(s.ctx.Carry()); slices.ContainsFunc(v, func(x float32) bool { return x != 0 }) {
			t.Error("an empty sequence carries something")
		}
	})
}

// TestTogether: several sequences in one pass get what each gets alone, to the bit, also when their drafts have
// different lengths.
func TestTogether(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		const streams = 3
		alone, all := make([]*stream, streams), make([]*stream, streams)
		var segs []model.Segment
		var items []draft.Rows
		rows := int32(0)
		for i := range all {
			tokens := text(i+1, 6+7*i)
			alone[i], all[i] = newStream(m, d), newStream(m, d)
			alone[i].pass(t, tokens, len(tokens))
			segs = append(segs, model.Segment{Seq: all[i].seq, Tokens: tokens})
			it := draft.Rows{Seq: all[i].ctx, Tokens: tokens}
			for range tokens {
				it.Rows = append(it.Rows, rows)
				rows++
			}
			items = append(items, it)
		}
		out, err := m.Forward(segs)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if err := s.seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Extend(out.Features, items); err != nil {
			t.Fatal(err)
		}
		lengths := []int{2, 8, 5}
		var reqs []draft.Request
		for i, s := range all {
			reqs = append(reqs, s.request(int32(i+3), lengths[i]))
		}
		got, err := d.Draft(reqs, 4)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range alone {
			want, err := d.Draft([]draft.Request{s.request(int32(i+3), lengths[i])}, 4)
			if err != nil {
				t.Fatal(err)
			}
			if got[i].Len() != lengths[i] || !slices.EqualFunc(got[i].At, want[0].At, slices.Equal) {
				t.Errorf("stream %d: %v, alone %v", i, got[i].At, want[0].At)
			}
		}
	})
}

// TestLate: being told of the tokens of several rounds at once is the same as being told each time.
func TestLate(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s := newStream(m, d)
		tokens := text(1, 12)
		out := s.pass(t, tokens, 12)
		features := slices.Clone(m.Backend().Read(out.Features))
		late := d.NewSeq()
		for _, part := range [][2]int32{{0, 1}, {1, 5}, {5, 12}} {
			f, err := m.Backend().Alloc(12, m.Hidden)
			if err != nil {
				t.Fatal(err)
			}
			m.Backend().Write(f, features)
			it := draft.Rows{Seq: late}
			for i := part[0]; i < part[1]; i++ {
				it.Tokens, it.Rows = append(it.Tokens, tokens[i]), append(it.Rows, i)
			}
			if err := d.Extend(f, []draft.Rows{it}); err != nil {
				t.Fatal(err)
			}
		}
		equal(t, "in parts", (&stream{m, d, s.seq, late}).trace(t, 5), s.trace(t, 5))
	})
}

// TestPoison: nothing is read before it was written.
func TestPoison(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		s := newStream(m, d)
		s.pass(t, text(1, 9), 9)
		want := s.trace(t, 5)
		d.arena.Poison(float32(math.NaN()))
		equal(t, "poisoned", s.trace(t, 5), want)
		d.arena.Poison(float32(math.NaN()))
		s.pass(t, text(2, 5), 5)
		if tr := s.trace(t, 5); slices.Contains(tr.Best, -1) || tr.Out[0] != tr.Out[0] {
			t.Error("a poisoned pass left a mark in the context")
		}
	})
}

// TestNoKeys: an assistant with nothing to look at has no guess, and that is no error.
func TestNoKeys(t *testing.T) {
	m, d := kinds["assistant"](t)
	s := newStream(m, d)
	ps, err := d.Draft([]draft.Request{s.request(5, 4)}, 2)
	if err != nil || len(ps) != 1 || ps[0].Len() != 0 {
		t.Errorf("proposals %v, error %v", ps, err)
	}
}

// TestMemory: what a sequence takes is given back.
func TestMemory(t *testing.T) {
	each(t, func(t *testing.T, m *model.Model, d *Drafter) {
		warm := newStream(m, d)
		warm.pass(t, text(1, 9), 9)
		warm.trace(t, 5)
		warm.seq.Close()
		warm.ctx.Close()
		device := d.b.(*testkit.Device)
		before, used := device.Live(), d.mem.UsedBytes()
		s := newStream(m, d)
		s.pass(t, text(1, 9), 9)
		s.trace(t, 5)
		fork, err := s.ctx.Fork()
		if err != nil {
			t.Fatal(err)
		}
		if device.Live() <= before || d.mem.UsedBytes() <= used {
			t.Error("a sequence takes no memory")
		}
		for _, q := range []*cache.Seq{s.seq, s.ctx, fork} {
			q.Close()
		}
		if device.Live() != before || d.mem.UsedBytes() != used {
			t.Errorf("%d values in use after, %d before", device.Live(), before)
		}
		device.Fail = func() error { return errors.New("no room") }
		q := d.NewSeq()
		if err := d.Extend(m.Backend().(*testkit.Device).Tensor(t, 1, m.Hidden), []draft.Rows{{Seq: q,
			Tokens: []int32{1}, Rows: []int32{0}}}); err == nil {
			t.Error("a sequence without room for its row was extended")
		}
	})
}

// TestOptionalParts: a block may bring its own embedding, head and last norm, and must use them.
func TestOptionalParts(t *testing.T) {
	plain := edit.MTP(t, "qwen35")
	draftOf := func(e *edit.File) *Trace {
		m := openTarget(t, e.Write(t))
		s := newStream(m, openDrafter(t, m.File(), m))
		s.pass(t, text(1, 9), 9)
		return s.trace(t, 5)
	}
	want := draftOf(plain)
	scaled := func(from string, by float32) []float32 {
		v := plain.Values(t, from)
		for i := range v {
			v[i] *= by
		}
		return v
	}
	own := func(name string, v []float32, shape ...int) *Trace {
		return draftOf(edit.MTP(t, "qwen35").Put("blk.2.nextn."+name+".weight", v, shape...))
	}
	equal(t, "own embedding, a copy", own("embed_tokens", scaled("token_embd.weight", 1), 64, 512), want)
	equal(t, "own head, a copy", own("shared_head_head", scaled("output.weight", 1), 64, 512), want)
	if tr := own("shared_head_head", scaled("output.weight", -2), 64, 512); tr.Logits[3] != -2*want.Logits[3] {
		t.Errorf("logit %v with a head of -2 times the weights, %v with the model's", tr.Logits[3], want.Logits[3])
	}
	flipped := scaled("token_embd.weight", 1)
	slices.Reverse(flipped)
	if tr := own("embed_tokens", flipped, 64, 512); slices.Equal(tr.Logits, want.Logits) {
		t.Error("the block's own embedding is not used")
	}
	norm := edit.MTP(t, "qwen35").Drop("blk.2.nextn.shared_head_norm")
	copied := edit.MTP(t, "qwen35").Put("blk.2.nextn.shared_head_norm.weight", plain.Values(t, "output_norm.weight"),
		64)
	equal(t, "without a norm of its own", draftOf(norm), draftOf(copied))
}

// TestStandAlone: a file with nothing but the block drafts for the whole model as the block inside does, also for a
// model that was converted without.
func TestStandAlone(t *testing.T) {
	for _, arch := range qwens {
		t.Run(arch, func(t *testing.T) {
			path := edit.Block(t, arch).Write(t)
			bare := testkit.Golden(t, "mtp-"+arch+"/block.gguf") // uses the target's vocabulary
			whole := edit.MTP(t, arch).Write(t)
			without := edit.MTP(t, arch).Drop("blk.2.").Set(arch+".block_count",
				uint32(2)).Set(arch+".nextn_predict_layers", nil)
			m, d := openQwen(t, arch)
			s := newStream(m, d)
			s.pass(t, text(1, 9), 9)
			want := s.trace(t, 5)
			for _, pair := range [][2]string{{whole, path}, {without.Write(t), path}, {whole, bare}} {
				m := openTarget(t, pair[0])
				f := openFile(t, pair[1])
				if !Supported(f) || InModel(f) || Supported(m.File()) {
					t.Fatal("a block alone is not told from a model")
				}
				s := newStream(m, openDrafter(t, f, m))
				s.pass(t, text(1, 9), 9)
				equal(t, "a block alone", s.trace(t, 5), want)
			}
			if InModel(openFile(t, whole)) != true {
				t.Error("the block in the model is not found")
			}
			_, err := model.Open(openFile(t, path), m.Backend(), model.Options{})
			if err == nil || !strings.Contains(err.Error(), "-d") || strings.Contains(err.Error(), "\n") {
				t.Errorf("opened as a target: %v", err)
			}
		})
	}
}

// TestRefused: what cannot be run is refused in one line that names the reason.
func TestRefused(t *testing.T) {
	qwen := func() *edit.File { return edit.MTP(t, "qwen35") }
	gemma := func() *edit.File { return edit.Golden(t, "gemma4-assistant") }
	block := func() *edit.File { return edit.Block(t, "qwen35") }
	target := openTarget(t, qwen().Write(t))
	gemmaTarget := openTarget(t, testkit.Golden(t, "gemma4/model.gguf"))
	for name, c := range map[string]struct {
		e      *edit.File
		target *model.Model
		want   string
	}{
		"none":    {qwen().Drop("blk.2.nextn."), target, "no block for multi-token prediction"},
		"no norm": {block().Drop("blk.2.nextn.enorm"), target, `missing tensor "blk.2.nextn.enorm.weight"`},
		"eh_proj": {block().Put("blk.2.nextn.eh_proj.weight", make([]float32, 64*64), 64, 64), target,
			"nextn.eh_proj.weight"},
		"other arch": {edit.MTP(t, "qwen3next"), target, `cannot draft for "qwen35"`},
		"for gemma":  {block(), gemmaTarget, `cannot draft for "gemma4"`},
		"for qwen":   {gemma(), target, `cannot draft for architecture "qwen35"`},
		"vocabulary": {block().Put("output.weight", make([]float32, 64*500), 64, 500), target, "output.weight"},
		"width": {gemma().Set("gemma4-assistant.embedding_length_out", uint32(96)), gemmaTarget,
			"a target of width 96"},
		"old": {gemma().Set("general.architecture", "gemma4_assistant"), gemmaTarget, "gemma4_assistant"},
		"centroids": {gemma().Rename("token_embd.weight", "masked_embd_centroids.weight"), gemmaTarget,
			"masked_embd_centroids"},
		"no head": {gemma().Drop("token_embd"), gemmaTarget, "token_embd.weight"},
		"head size": {gemma().Set("gemma4-assistant.attention.key_length_swa",
			uint32(16)).Set("gemma4-assistant.rope.dimension_count_swa", uint32(16)), gemmaTarget, "attn_q"},
		"window":       {gemma().Set("gemma4-assistant.attention.sliding_window", uint32(7)), gemmaTarget, "window"},
		"no layers":    {gemma().Set("gemma4-assistant.block_count", uint32(0)), gemmaTarget, "block_count"},
		"many layers":  {gemma().Set("gemma4-assistant.block_count", uint32(1<<31)), gemmaTarget, "block_count"},
		"projection":   {gemma().Drop("nextn.pre"), gemmaTarget, "nextn.pre_projection.weight"},
		"heads":        {gemma().Set("gemma4-assistant.attention.head_count", uint32(3)), gemmaTarget, "heads"},
		"block number": {block().Set("qwen35.block_count", uint32(1)), target, "no block for multi-token prediction"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(openFile(t, c.e.Write(t)), c.target, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v; want one that has %q", err, c.want)
			}
		})
	}
}

// TestTwoBlocks: of several blocks the first one drafts.
func TestTwoBlocks(t *testing.T) {
	m, d := openQwen(t, "qwen35")
	s := newStream(m, d)
	s.pass(t, text(1, 9), 9)
	want := s.trace(t, 5)
	e := edit.MTP(t, "qwen35").Set("qwen35.block_count", uint32(4)).Set("qwen35.nextn_predict_layers", uint32(2)).
		Set("qwen35.attention.recurrent_layers", []bool{true, false, false, false})
	m = openTarget(t, e.Write(t))
	s = newStream(m, openDrafter(t, m.File(), m))
	s.pass(t, text(1, 9), 9)
	equal(t, "two blocks", s.trace(t, 5), want)
}

func TestBadRequests(t *testing.T) {
	m, d := kinds["nextn"](t)
	s := newStream(m, d)
	s.pass(t, text(1, 9), 9)
	for _, r := range []draft.Request{s.request(5, 0), s.request(5, d.Max()+1), s.request(-1, 2), s.request(512, 2)} {
		if _, err := d.Draft([]draft.Request{r}, 1); err == nil {
			t.Errorf("token %d, %d guesses: no error", r.Last, r.N)
		}
	}
	err := d.Extend(m.Backend().(*testkit.Device).Tensor(t, 2, m.Hidden), []draft.Rows{{Seq: s.ctx, Rows: []int32{0,
		1}}})
	if err == nil {
		t.Error("rows without tokens: no error")
	}
	_, a := kinds["assistant"](t)
	if _, err := a.Draft([]draft.Request{{Seq: a.NewSeq(), Last: 1, N: 1}}, 1); err == nil {
		t.Error("an assistant without the target's sequence: no error")
	}
}
