package engine

import (
	"slices"
)

// Where the memory of a prompt is kept.
//
// Memory that can be cut anywhere needs one copy, at the end of the prompt: it serves everybody who
// comes while the generation runs. Other memory is only good at the lengths where it was kept,
// so the loop guesses which ones a later request will ask for:
//
//   - the lengths the request names: boundaries between messages
//   - a little before the end of the prompt: the next turn of a chat often repeats the prompt
//     but not the answer as it was generated (reasoning is left out), and templates end a prompt with an
//     opening that later turns lack
//   - where this prompt leaves an earlier one: others may leave it there as well
//   - now and then in a long prompt, where a step ends anyway
//   - the end of the generation, which costs nothing to keep
//   - of a prompt that does not fit into the cache, the longest part that does
const (
	markGap   = 16   // closer to each other checkpoints are not worth a pass
	tailGap   = 4    // tokens from the last checkpoint to the end of the prompt
	namedMax  = 3    // lengths a request names, the last ones
	spacing   = 2048 // least distance of checkpoints inside a long prompt
	perPrompt = 8    // most such checkpoints
)

// mark chooses the lengths at which the job's prompt is kept.
func (l *loop) mark(j *job) {
	if l.cache == nil || j.g.req.NoCache {
		return
	}
	j.hard = !l.cache.cuttable(len(j.g.req.Tokens))
	if !j.hard {
		return
	}
	req := &j.g.req
	end := len(req.Tokens)
	var named []int
	for _, n := range req.Checkpoints {
		if n > j.kept && n < end {
			named = append(named, n)
		}
	}
	slices.Sort(named)
	named = named[max(0, len(named)-namedMax):]
	marks := named
	if n := len(named); n == 0 || end-named[n-1] > markGap {
		marks = append(marks, end-tailGap)
	}
	marks = append(marks, l.cache.longest(j.g.text()))
	if most := l.cache.keeps(end); most < end {
		marks = append(slices.DeleteFunc(marks, func(m int) bool { return m > most }), most)
	}
	for i, m := range marks {
		marks[i] = beforeImage(req.Tokens, m)
	}
	slices.Sort(marks)
	// Walking back from the end keeps the later one of two that are close.
	next := end + markGap
	for _, m := range slices.Backward(marks) {
		if m-j.kept >= markGap && m < end && next-m >= markGap {
			j.marks = append(j.marks, m)
			next = m
		}
	}
	slices.Reverse(j.marks)
}

// checkpoint keeps the memory of a job's prompt where that is due.
func (l *loop) checkpoint(j *job) {
	if l.cache == nil || j.g.req.NoCache || j.stream.Err() != nil {
		return
	}
	at, end := j.seq.Len(), len(j.g.req.Tokens)
	due := !j.hard && at == end && len(j.tokens) > 0
	for len(j.marks) > 0 && j.marks[0] <= at {
		j.marks = j.marks[1:]
		due = true
	}
	if j.hard && at < end && at-j.kept >= max(spacing, end/perPrompt) {
		due = true
	}
	if j.hard && at > l.cache.keeps(end) {
		return
	}
	// At its end the whole sequence is kept, without a copy.
	if !due || at == j.kept || at > end || j.last && j.stream.Done() || insideImage(j.g.req.Tokens, at) {
		return
	}
	_ = l.r.Sync(j.stream) // an error leaves a drafter behind; its memory is not kept then
	e := &entry{text: text{j.g.salt, slices.Clone(j.g.req.Tokens[:at])}}
	var err error
	if e.seq, err = j.seq.Fork(); err != nil {
		return
	}
	if e.drafts, err = j.drafts.cut(at, j.drafts.at(at)); err != nil {
		e.seq.Close()
		return
	}
	l.cache.add(e, end)
	j.kept = at
	// Memory that cannot be cut is good for nothing but this length: what the end of the request leaves behind
	// cannot replace it. So it does not wait for a quiet moment, which may never come.
	if l.disk != nil && j.hard && len(j.marks) == 0 {
		l.soon = append(l.soon, e)
	}
}

// keepWhole moves the memory of a job that ends into the cache.
func (l *loop) keepWhole(j *job) {
	if l.cache == nil || j.g.req.NoCache || j.seq == nil || !j.consistent() {
		return
	}
	n := j.seq.Len()
	if n < minReuse || n == j.kept {
		return
	}
	if j.stream != nil {
		_ = l.r.Sync(j.stream) // as at a checkpoint
	}
	if insideImage(j.g.req.Tokens, n) { // of no use to any text
		return
	}
	tokens := slices.Concat(j.g.req.Tokens, j.tokens)[:n]
	e := &entry{text: text{j.g.salt, tokens}, seq: j.seq, drafts: j.drafts.take(n)}
	j.seq = nil
	l.cache.add(e, n)
}

// follows reports whether a queued request should wait, although there is a slot, for a running prompt
// that begins alike: it finds the common beginning in the cache then instead of computing it once
// more beside the other. It waits for nothing that it would not have to compute itself.
func (l *loop) follows(g *Generation) bool {
	if l.cache == nil || g.req.NoCache || g.ctx.Err() != nil {
		return false
	}
	need := l.needs(g.req.Spec)
	have := -1
	for _, j := range l.jobs {
		if j.g.req.NoCache || !j.running() || !j.prefilling() || !j.drafts.sources().all(need) {
			continue
		}
		n := min(j.g.text().common(g.text()), len(g.req.Tokens)-1, l.cache.keeps(len(j.g.req.Tokens)))
		if n = beforeImage(g.req.Tokens, n); n < markGap {
			continue
		}
		if have < 0 {
			_, have = l.cache.find(g.text(), need)
		}
		if n >= have+markGap && l.point(j, n) >= have+markGap {
			return true
		}
	}
	return false
}

// point makes sure that a prompt in progress is kept so that another can start with its first n
// tokens, and returns how many of them it will get.
func (l *loop) point(j *job, n int) int {
	if !j.hard {
		if n < len(j.g.req.Tokens)-1 {
			j.addMark(n)
		}
		return n
	}
	best := 0
	for _, m := range j.marks {
		if m <= n {
			best = m
		}
	}
	if n-max(best, j.seq.Len()) < markGap {
		return best
	}
	past := len(j.marks) == 0 || j.marks[0] > n // the leg in progress goes past it
	j.addMark(n)
	if past {
		if err := j.next(l.r, l.e.cfg.Context); err != nil {
			j.g.cancel(err) // the job ends before the next step
		}
	}
	return n
}

func (j *job) addMark(n int) {
	if i, found := slices.BinarySearch(j.marks, n); !found {
		j.marks = slices.Insert(j.marks, i, n)
	}
}
