package mtp

import (
	"slices"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/model"
)

// TestImageRows: an image of one row, the embedding of a token, is that token to the target, and to a drafter that
// sees images; to one that does not it is another.
func TestImageRows(t *testing.T) {
	tokens := text(3, 12)
	run := func(sees, images bool, parts int) *Trace {
		m, d := openQwen(t, "qwen35")
		if sees {
			d.SeeImages()
		}
		if err := m.Capture(d.Capture()); err != nil {
			t.Fatal(err)
		}
		embed, _, err := m.Vocabulary(m.Backend())
		if err != nil {
			t.Fatal(err)
		}
		b := m.Backend()
		s := newStream(m, d)
		in := slices.Clone(tokens)
		var list []model.Image
		if images {
			for _, at := range []int{4, 6} {
				ids, _ := b.AllocInts(1)
				row, _ := b.Alloc(1, m.Hidden)
				b.SetInts(ids, in[at:at+1])
				b.Embed(row, embed, ids, m.EmbScale)
				list = append(list, model.Image{At: at, W: 1, H: 1, Rows: slices.Clone(b.Read(row))})
				in[at] = -2 - int32(at)
			}
		}
		for part := range slices.Chunk(in, len(in)/parts) {
			out, err := m.Forward([]model.Segment{{Seq: s.seq, Tokens: part, Images: list, Prompt: true}})
			if err != nil {
				t.Fatal(err)
			}
			rows := make([]int32, len(part))
			for i := range rows {
				rows[i] = int32(i)
			}
			if err := s.seq.CommitAll(); err != nil {
				t.Fatal(err)
			}
			if err := d.Extend(out.Features, []draft.Rows{{Seq: s.ctx, Tokens: part, Rows: rows}}); err != nil {
				t.Fatal(err)
			}
		}
		return s.trace(t, 5)
	}
	want := run(false, false, 1)
	equal(t, "text with a drafter that sees", run(true, false, 1), want)
	equal(t, "images", run(true, true, 1), want)
	equal(t, "images in parts", run(true, true, 4), want)
	if blind := run(false, true, 1); slices.Equal(blind.Logits, want.Logits) {
		t.Error("a drafter that does not see images drafts as if it did")
	}
}
