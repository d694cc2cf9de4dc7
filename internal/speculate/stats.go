package speculate

import (
	"fmt"
	"strings"
	"time"
)

// Stats is what a stream did and where its time went.
type Stats struct {
	Prompt  int // prompt tokens run
	Cached  int // prompt tokens found in the cache
	Tokens  int // generated
	Rounds  int // target passes that generated
	Drafts  int // drafter passes
	Guessed int // tokens the target verified
	// Accepted counts verified guesses that were right.
	Accepted  int
	BadDrafts int  // drafts without a usable token
	Cold      bool // a drafter was not given a context
	DraftErr  error

	Reached  [64]int // by position: rounds in which a guess there could have been accepted
	Hit      [64]int // by position: rounds in which it was
	ByLength [65]int // rounds by tokens they yielded
	BySource map[string]SourceStats

	PromptTime, DecodeTime              time.Duration
	Draft, Verify, Sample, Commit, Rest time.Duration // of all steps
	PlainCost                           time.Duration // of one token without drafting, as measured; 0 if never
}

// SourceStats is what one source did. One that guesses nothing useful shows here although others hide it.
type SourceStats struct {
	Drafts   int // times that it was asked for guesses
	Bad      int // of them, those without a usable token: not a number, or outside the vocabulary
	Right    int // of them, those whose first guess was right, verified or not
	Failed   int // streams that go on without it, because of an error or of bad drafts in a row
	Rounds   int // target passes that verified its guesses
	Tails    int // target passes in which its guesses continued those of another source
	Guessed  int // its guesses that were verified
	Accepted int // of them, those that were right

	Draft time.Duration // of its drafts
	// Of the rounds that verified its guesses: the target's pass, sampling and commit, and everything else.
	Verify, Accept, Host time.Duration
}

func (s *SourceStats) add(o SourceStats) {
	s.Drafts += o.Drafts
	s.Bad += o.Bad
	s.Right += o.Right
	s.Failed += o.Failed
	s.Rounds += o.Rounds
	s.Tails += o.Tails
	s.Guessed += o.Guessed
	s.Accepted += o.Accepted
	s.Draft += o.Draft
	s.Verify += o.Verify
	s.Accept += o.Accept
	s.Host += o.Host
}

// source adds to what a source did.
func (s *Stats) source(name string, did SourceStats) {
	if s.BySource == nil {
		s.BySource = make(map[string]SourceStats)
	}
	sum := s.BySource[name]
	sum.add(did)
	s.BySource[name] = sum
}

// learn counts the guesses of a round.
func (s *Stats) learn(guessed, accepted int) {
	s.Guessed += guessed
	s.Accepted += accepted
	s.ByLength[min(accepted+1, len(s.ByLength)-1)]++
	for d := range min(guessed, len(s.Reached)) {
		if d > accepted {
			break
		}
		s.Reached[d]++
		if d < accepted {
			s.Hit[d]++
		}
	}
}

// Mean is the number of tokens per target pass.
func (s *Stats) Mean() float64 {
	if s.Rounds == 0 {
		return 0
	}
	n := 0
	for l, c := range s.ByLength {
		n += l * c
	}
	return float64(n) / float64(s.Rounds)
}

// Speed is generated tokens per second, without the first token, which the prompt yields.
func (s *Stats) Speed() float64 {
	if s.DecodeTime <= 0 || s.Tokens < 2 {
		return 0
	}
	return float64(s.Tokens-1) / s.DecodeTime.Seconds()
}

// Limits of SpeedUp. A few rounds are luck: their text and other programs weigh more than drafting. The controller's
// ledger bounds the loss of drafting to a few percent, so a ratio far below one means a disturbed machine. So does one
// above the tokens of a round, since no round is cheaper than a plain one.
const (
	speedUpTokens = 32
	speedUpRounds = 8
	speedUpLeast  = 0.8
)

// SpeedUp estimates how much faster the stream was than plain decoding on the same machine at the time; 0 if it was
// too short, drafted too little or was disturbed too much to say.
func (s *Stats) SpeedUp() float64 {
	if s.Guessed == 0 || s.Tokens < speedUpTokens || s.Rounds < speedUpRounds || s.Paused() {
		return 0
	}
	up := s.Speed() * s.PlainCost.Seconds()
	if up < speedUpLeast || up*float64(s.Rounds) > float64(s.Tokens) {
		return 0
	}
	return up
}

// Drafted is the number of rounds with guesses.
func (s *Stats) Drafted() (n int) {
	for _, x := range s.BySource {
		n += x.Rounds
	}
	return n
}

// Paused reports whether the stream went on without drafts for the most part: trials alone are less than a tenth of
// the rounds.
func (s *Stats) Paused() bool { return s.Rounds >= 2*speedUpRounds && s.Drafted()*10 < s.Rounds }

// PromptSpeed is prompt tokens per second.
func (s *Stats) PromptSpeed() float64 {
	if s.PromptTime <= 0 {
		return 0
	}
	return float64(s.Prompt) / s.PromptTime.Seconds()
}

// Bars draws acceptance by position as a row of small bars.
func (s *Stats) Bars() string {
	var b strings.Builder
	for d, n := range s.Reached {
		if n == 0 {
			break
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[min(7, s.Hit[d]*8/n)])
	}
	return b.String()
}

// Add sums the counts and times of several streams.
func (s *Stats) Add(o Stats) {
	s.Prompt += o.Prompt
	s.Cached += o.Cached
	s.Tokens += o.Tokens
	s.Rounds += o.Rounds
	s.Drafts += o.Drafts
	s.Guessed += o.Guessed
	s.Accepted += o.Accepted
	s.BadDrafts += o.BadDrafts
	for i := range s.Reached {
		s.Reached[i] += o.Reached[i]
		s.Hit[i] += o.Hit[i]
	}
	for i := range s.ByLength {
		s.ByLength[i] += o.ByLength[i]
	}
	for name, did := range o.BySource {
		s.source(name, did)
	}
	s.PromptTime += o.PromptTime
	s.DecodeTime += o.DecodeTime
	s.Draft += o.Draft
	s.Verify += o.Verify
	s.Sample += o.Sample
	s.Commit += o.Commit
	s.Rest += o.Rest
	if o.PlainCost > 0 {
		s.PlainCost = o.PlainCost
	}
}

// String is a summary in one line.
func (s *Stats) String() string {
	return fmt.Sprintf("%d tokens, %.1f tokens/s, %.2f tokens per pass, %d of %d guesses accepted %s",
		s.Tokens, s.Speed(), s.Mean(), s.Accepted, s.Guessed, s.Bars())
}
