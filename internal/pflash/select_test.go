package pflash

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSelectText: what is kept of a text that goes on is never more than asked for: its end, then what is around words
// of the end, most of them first, then by scores, and its first chunk last of all.
func TestSelectText(t *testing.T) {
	rule := DefaultRule()
	text := func(chunks int, put map[int][]int32) []int32 {
		ids := make([]int32, chunks*rule.Chunk)
		for i := range ids {
			ids[i] = int32(1000 + i)
		}
		for at, v := range put {
			copy(ids[at:], v)
		}
		return ids
	}
	rising := func(chunks int) []float64 {
		c := make([]float64, chunks)
		for i := range c {
			c[i] = float64(i)
		}
		c[0] = 1e6 // what the first tokens get in any case
		return c
	}
	words, more := []int32{1, 2, 3, 4}, []int32{5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		what   string
		chunks int
		put    map[int][]int32
		ratio  float64
		want   Selection
	}{
		{"by scores alone", 12, nil, 0.5, Selection{Keep: 6, Tail: 4, Ends: []int{8, 9, 10, 11}, Filled: []int{7, 6}}},
		{"a long end", 120, nil, 0.3, Selection{Keep: 36, Tail: 24, Ends: upTo(96, 120),
			Filled: []int{95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 85, 84}}},
		{"one chunk", 12, nil, 0.01, Selection{Keep: 1, Tail: 1, Ends: []int{11}}},
		{"everything", 4, nil, 1, Selection{Keep: 4, Tail: 2, Ends: []int{2, 3}, Filled: []int{1, 0}}},
		{"words of the end", 20, map[int][]int32{20*32 - 40: words, 5 * 32: words}, 0.5,
			Selection{Keep: 10, Tail: 6, Ends: upTo(14, 20), Anchors: []int{5, 6, 4, 7}}},
		{"most words first", 20, map[int][]int32{20*32 - 40: words, 20*32 - 60: more, 5 * 32: words, 10 * 32: more}, 0.5,
			Selection{Keep: 10, Tail: 6, Ends: upTo(14, 20), Anchors: []int{10, 11, 9, 12}}},
		{"words at the beginning", 20, map[int][]int32{20*32 - 40: words, 0: words}, 0.5,
			Selection{Keep: 10, Tail: 6, Ends: upTo(14, 20), Anchors: []int{0, 1, 2}, Filled: []int{13}}},
	} {
		got := SelectText(text(c.chunks, c.put), rising(c.chunks), c.ratio, rule)
		kept := slices.Concat(got.Ends, got.Anchors, got.Filled)
		slices.Sort(kept)
		if !slices.Equal(kept, got.Chunks) || len(kept) > got.Keep || got.Tokens() != len(kept)*rule.Chunk {
			t.Errorf("%s: chunks %v, %d tokens, of %v", c.what, got.Chunks, got.Tokens(), kept)
		}
		got.Chunks, got.Spans = nil, nil
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.what, d)
		}
	}
	if got := SelectText(make([]int32, lookahead), nil, 0.5, rule); !got.Unchanged || got.Tokens() != lookahead {
		t.Errorf("a text too short to be scored: %+v", got)
	}
}

func upTo(from, to int) (v []int) {
	for ; from < to; from++ {
		v = append(v, from)
	}
	return v
}
