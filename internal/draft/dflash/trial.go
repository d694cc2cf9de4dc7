package dflash

import (
	"strobe/internal/cache"
	"strobe/internal/draft"
)

// trial finds out what a drafter's file does not say: whether attention inside a block is causal, or whether drafts
// should see a window only. Drafts use both rules by turns, and the tokens that follow show which one guesses better.
type trial struct {
	open    bool
	from    int    // length of the window on trial; 0 for a trial of causality
	drafts  [2]int // judged drafts: with the default rule and with the other one
	right   [2]int // correct guesses of them
	waiting map[*cache.Seq]guessed
}

// guessed is a draft that waits for the tokens that follow.
type guessed struct {
	at    int     // length of the sequence at the draft
	rule  int     // 0, or 1 for the other rule
	chain []int32 // the last token and the best guesses after it
}

// trialDrafts is how many drafts of each rule are compared: enough to recognise a rule that was never trained.
const trialDrafts = 16

// rule is the one to draft with now.
func (t *trial) rule() int {
	if t.open && t.drafts[1] < t.drafts[0] {
		return 1
	}
	return 0
}

// guess notes drafts.
func (t *trial) guess(reqs []draft.Request, ps []draft.Proposal, rule int) {
	if !t.open {
		return
	}
	if t.waiting == nil {
		t.waiting = make(map[*cache.Seq]guessed)
	}
	for seq := range t.waiting {
		if seq.Closed() { // no tokens will follow
			delete(t.waiting, seq)
		}
	}
	for i, r := range reqs {
		seq := r.Seq.(*cache.Seq)
		if t.from > 0 && seq.Len() <= t.from {
			continue
		}
		t.waiting[seq] = guessed{seq.Len(), rule, ps[i].Chain([]int32{r.Last})}
	}
}

// judge compares the draft after a sequence with the tokens that followed. It reports whether the other rule has won.
func (t *trial) judge(seq *cache.Seq, tokens []int32) (other bool) {
	g, ok := t.waiting[seq]
	if !ok {
		return false
	}
	delete(t.waiting, seq)
	if g.at != seq.Len() || len(tokens) == 0 || tokens[0] != g.chain[0] {
		return false // the sequence was cut or continued differently
	}
	t.drafts[g.rule]++
	for i := 1; i < min(len(tokens), len(g.chain)) && tokens[i] == g.chain[i]; i++ {
		t.right[g.rule]++
	}
	if min(t.drafts[0], t.drafts[1]) < trialDrafts {
		return false
	}
	other = t.right[1]*t.drafts[0] > t.right[0]*t.drafts[1]
	*t = trial{}
	return other
}
