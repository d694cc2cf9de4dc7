package sample

import "math"

// history keeps the tokens the penalties look back on and how often each occurs in
// the repetition window, so that a step costs as much as there are distinct tokens.
type history struct {
	penalties bool
	repeatN   int // window of the counts; math.MaxInt = everything
	dryN      int // window of DRY; 0 = off
	keep      int // the larger one: what must be kept

	tokens []int32 // the newest tokens, at least the last keep
	counts []count // distinct tokens of the repetition window, in no order
	slot   []int32 // by token id: index into counts + 1, 0 = absent
}

type count struct {
	id int32
	n  int32
}

func (h *history) init(penalties bool, repeatN int, dry bool, dryN, vocab int) {
	*h = history{penalties: penalties, repeatN: repeatN}
	if dry {
		h.dryN, h.keep = dryN, dryN
	}
	if penalties {
		h.keep = max(h.keep, repeatN)
		h.slot = make([]int32, vocab)
	}
	if h.keep < 1<<16 {
		h.tokens = make([]int32, 0, 2*h.keep+1)
	}
}

func (h *history) addAll(tokens []int32) {
	if len(tokens) > h.keep { // what is before has left every window
		h.reset()
		tokens = tokens[len(tokens)-h.keep:]
	}
	for _, id := range tokens {
		h.add(id)
	}
}

func (h *history) reset() {
	for _, c := range h.counts {
		h.slot[c.id] = 0
	}
	h.counts, h.tokens = h.counts[:0], h.tokens[:0]
}

func (h *history) add(id int32) {
	if h.keep == 0 {
		return
	}
	if h.keep < math.MaxInt/4 && len(h.tokens) >= 2*h.keep+1 {
		// Moving only every keep tokens makes the windows plain slices at no cost.
		n := copy(h.tokens, h.tokens[len(h.tokens)-h.keep:])
		h.tokens = h.tokens[:n]
	}
	h.tokens = append(h.tokens, id)
	if !h.penalties {
		return
	}
	h.change(id, 1)
	if n := len(h.tokens); n > h.repeatN {
		h.change(h.tokens[n-h.repeatN-1], -1)
	}
}

// change adds d to a token's count; a count of zero leaves the list.
func (h *history) change(id, d int32) {
	if id < 0 || int(id) >= len(h.slot) {
		return
	}
	k := h.slot[id]
	if k == 0 {
		if d < 0 {
			return
		}
		h.counts = append(h.counts, count{id: id})
		k = int32(len(h.counts))
		h.slot[id] = k
	}
	c := &h.counts[k-1]
	if c.n += d; c.n > 0 {
		return
	}
	last := h.counts[len(h.counts)-1]
	h.counts[k-1] = last
	h.slot[last.id] = k
	h.slot[id] = 0
	h.counts = h.counts[:len(h.counts)-1]
}

// last returns the newest n tokens, fewer if there are not as many.
func (h *history) last(n int) []int32 {
	if n >= len(h.tokens) {
		return h.tokens
	}
	return h.tokens[len(h.tokens)-n:]
}

func (h *history) copyFrom(src *history) {
	h.reset()
	tokens, counts, slot := h.tokens, h.counts, h.slot
	*h = *src
	// Older tokens than any window are not worth copying.
	h.tokens = append(tokens, src.last(src.keep)...)
	h.counts = append(counts, src.counts...)
	h.slot = slot
	if len(h.slot) != len(src.slot) {
		h.slot = make([]int32, len(src.slot))
	}
	for i, c := range h.counts {
		h.slot[c.id] = int32(i + 1)
	}
}
