package dflash

import (
	"strobe/internal/cache"
	"strobe/internal/draft"
)

// trial finds out which rule of attention inside a block a drafter was trained with, or whether it should look no
// farther back than a window, where its file leaves that open: drafts use both by turns, and the tokens that follow
// show which one guesses better.
type trial struct {
	open    bool
	from    int    // of a window: its length, beyond which it makes a difference
	drafts  [2]int // judged drafts, with the rule of the run-time and with the other one
	right   [2]int // guesses of them that were right
	waiting map[*cache.Seq]guessed
}

// guessed is a draft whose tokens have yet to come.
type guessed struct {
	at    int     // tokens in the sequence then
	rule  int     // 0, or 1 for the other rule
	chain []int32 // the last token and the best guesses after it
}

// trialDrafts is how many drafts of each rule are compared: enough for a rule that was never trained to show.
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
		if seq.Closed() { // its tokens will not come
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

// judge compares the draft after a sequence with the tokens that came, and reports that the other rule has won.
func (t *trial) judge(seq *cache.Seq, tokens []int32) (other bool) {
	g, ok := t.waiting[seq]
	if !ok {
		return false
	}
	delete(t.waiting, seq)
	if g.at != seq.Len() || len(tokens) == 0 || tokens[0] != g.chain[0] {
		return false // the sequence went another way
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
