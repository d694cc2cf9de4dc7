package dflash

import (
	"testing"

	"strobe/internal/draft"
)

// TestTrialFindsTheRule: drafts use both rules by turns, and the tokens that follow them decide which one stays. Here
// they are those that one of the rules guesses.
func TestTrialFindsTheRule(t *testing.T) {
	m := openTarget(t, "qwen35")
	for want := range 2 {
		d := golden(t, "qwen35").open(t, m, Options{})
		began := d.rule.sliding
		h := newHistory(d, 4, 400)
		seq := h.fresh(t, d, 30)
		used := [2]int{}
		for drafts := 0; d.trial.open; drafts++ {
			if drafts > 3*trialDrafts {
				t.Fatalf("no verdict after %d drafts: %+v", drafts, d.trial)
			}
			last := int32(drafts)
			// What the right rule guesses is what follows. The drafter itself is asked afterwards.
			judge := golden(t, "qwen35").open(t, m, Options{Causal: CausalOff})
			judge.rule.sliding = began == (want == 0)
			from := seq.Len()
			text := propose(t, judge, 1, draft.Request{Seq: h.fresh(t, judge, from), Last: last, N: 3})[0].Chain([]int32{last})
			used[d.trial.rule()]++
			propose(t, d, 2, draft.Request{Seq: seq, Last: last, N: 3})
			v := h.rows(from, from+4)
			err := d.Extend(upload(d.b, v, 4, h.width), []draft.Rows{{Seq: seq, Tokens: text, Rows: []int32{0, 1, 2, 3}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := d.rule.sliding != began; got != (want == 1) {
			t.Errorf("text of rule %d: the other rule won: %v", want, got)
		}
		if used != [2]int{trialDrafts, trialDrafts} {
			t.Errorf("drafts by rule: %v", used)
		}
	}
}

// TestTrialIgnoresOtherWays: a draft is not judged by tokens that do not follow it, and drafts of sequences that end
// are forgotten with the trial.
func TestTrialIgnoresOtherWays(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	h := newHistory(d, 4, 40)
	seq := h.fresh(t, d, 10)
	propose(t, d, 1, draft.Request{Seq: seq, Last: 3, N: 2})
	v := h.rows(10, 11)
	for _, tokens := range [][]int32{{4}, nil} {
		if err := d.Extend(upload(d.b, v, 1, h.width),
			[]draft.Rows{{Seq: seq, Tokens: tokens, Rows: []int32{0}}}); err != nil {
			t.Fatal(err)
		}
	}
	if d.trial.drafts != [2]int{} || len(d.trial.waiting) != 0 {
		t.Errorf("judged a draft by other tokens: %+v", d.trial)
	}
}

// TestTrialForgetsClosedSequences: sequences that end before their tokens come do not gather.
func TestTrialForgetsClosedSequences(t *testing.T) {
	m := openTarget(t, "qwen35")
	d := golden(t, "qwen35").open(t, m, Options{})
	h := newHistory(d, 4, 40)
	for range 3 {
		seq := h.fresh(t, d, 10)
		propose(t, d, 1, draft.Request{Seq: seq, Last: 3, N: 2})
		seq.Close()
	}
	if n := len(d.trial.waiting); n != 1 {
		t.Errorf("%d drafts wait; want that of the last sequence", n)
	}
}
