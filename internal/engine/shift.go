package engine

import "slices"

// Shift says what a generation forgets when its context is full, as llama.cpp's context shift does: the beginning
// stays, and a part of what follows is dropped. The rest is read again as a new prompt, so the text goes on exactly as
// that of a request with the shortened text would. What penalties and constraints remember stays whole.
type Shift struct {
	Keep    int // tokens of the beginning that stay, besides one that begins every text; negative keeps the prompt
	Discard int // tokens dropped after them; 0 or less drops half
}

// shiftRoom is how many tokens of a context Keep leaves free at least, as in llama.cpp.
const shiftRoom = 4

// most is how many tokens a request may generate; 0 is what the context holds. Forgetting would let it go on for ever,
// so without a limit it ends after as many tokens as the model was trained for.
func (m *Model) most(req *Request) int {
	if req.Shift != nil && req.MaxTokens == 0 {
		return m.Target.Context
	}
	return req.MaxTokens
}

// shift drops a part of a job's text and lets it begin anew with the rest, if its request allows that. It reports false
// for a job that has to end: it has all its tokens, or it has images, whose places would move.
func (l *loop) shift(j *job) bool {
	req := &j.g.req
	if req.Shift == nil || len(req.Images) > 0 || j.generated() >= l.m.most(req) {
		return false
	}
	all, limit := j.all(), l.e.cfg.Context
	keep := req.Shift.Keep
	if keep < 0 {
		keep = j.g.State().Prompt
	}
	if bos, _ := l.m.Tokenizer.BOS(); l.m.Tokenizer.AddBOS() && all[0] == bos {
		keep++
	}
	keep = min(keep, limit-shiftRoom, len(all)-2)
	left := len(all) - keep
	drop := req.Shift.Discard
	if drop <= 0 {
		drop = left / 2
	}
	drop = min(drop, left-1) // the last token has not been read yet
	l.keepWhole(j)
	j.endLeg()
	if j.seq != nil {
		j.seq.Close()
	}
	j.drafts.close()
	j.seq, j.drafts, j.marks = nil, nil, nil
	j.before, j.forgot, j.again = j.generated(), j.forgot+drop, true
	req.Tokens, j.tokens = slices.Concat(all[:keep], all[keep+drop:]), nil
	req.Checkpoints = slices.DeleteFunc(slices.Clone(req.Checkpoints), func(n int) bool { return n > keep })
	l.e.cfg.Log.Info("context shift", "slot", j.slot, "kept", keep, "forgotten", drop, "tokens", len(req.Tokens))
	l.begin(j)
	return true
}
