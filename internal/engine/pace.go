package engine

import "time"

// pace chooses how many prompt tokens a step may have while other requests generate, so that their text does not stand
// still for long: it aims at steps of stepTime. Prompts far into a context and large models get fewer tokens.
type pace struct {
	chunk int // tokens
	most  int
}

const (
	// stepTime is the time of a step to aim at, and stepMost what no step should take: from there on a pause is seen.
	stepTime = 45 * time.Millisecond
	stepMost = 60 * time.Millisecond
	// leastChunk is where a prompt's tokens cost little more than those of the streams beside it.
	leastChunk = 64
	// firstChunk takes 27 ms on an H200 with a model of 27B parameters, where 512 tokens take 85.
	firstChunk = 2 * leastChunk
)

// newPace begins with few tokens: how long a step takes is not known before the first.
func newPace(most int) pace { return pace{min(firstChunk, most), most} }

// learn takes note of a step that had so many prompt tokens.
func (p *pace) learn(tokens int, took time.Duration) {
	var aim time.Duration
	switch {
	case took > stepTime:
		aim = stepTime
	case took < stepTime*7/8 && tokens >= p.chunk: // fewer are the end of a prompt, which says nothing about more
		aim = stepMost // if all of the time was that of the prompt; a part of it was not
	default:
		return
	}
	fits := min(int(int64(tokens)*int64(aim)/max(1, int64(took))), 2*p.chunk)
	// Whole multiples: for every number of rows a GPU has to prepare its launches once.
	p.chunk = min(max(fits/leastChunk*leastChunk, leastChunk), p.most)
}
