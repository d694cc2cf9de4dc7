package control

// ledger bounds what drafting can cost the streams of a controller. It counts in plain passes what rounds with guesses
// yielded beyond their cost, and stops them when too much is lost, whatever their promise. Rounds that promise nothing
// have an account of their own, for trials. Streams share it, since they share passes: a draft for one makes all wait,
// and a stream that begins after others has no more to lose than they have left (TestColdPasses).
type ledger struct {
	credit float64 // what may be lost
	trials float64 // what trials may be expected to lose
}

const (
	// startCredit tokens are 1.2 % of 512: with the trials, what follows a drafter that boasts until it is known, and
	// what noise hides, that keeps a useless drafter under 3 %.
	startCredit = 6.0
	maxTrials   = 1.0
	lossShare   = 0.01 // of all tokens, that may be lost forever
)

// earn counts tokens of a round of so many streams, of which a share may be lost later: more if drafting should gain
// much, so that bad luck does not end it for long (TestSharedPasses, experts). A trial makes a draft for each stream
// and says as much as a trial of each: the more streams, the fewer trials.
func (l *ledger) earn(tokens, gain float64, streams int) {
	l.credit = max(l.credit, min(l.credit+max(lossShare, 0.1*(gain-1))*tokens, startCredit))
	l.trials = max(l.trials, min(l.trials+lossShare*tokens/float64(streams), maxTrials))
}

// settle books a round with guesses that yielded tokens and took as long as cost plain tokens. A trial is
// charged what it should lose, not what it did: its luck says little.
func (l *ledger) settle(tokens, cost, risk float64) {
	l.credit = min(l.credit+tokens-cost, 2*startCredit) // however much was gained
	l.trials -= risk
}

// promises compares what drafts for several streams yielded with what they promised, in the time that they really
// took. Such passes and drafts have many sizes, of which each comes rarely, so promises are rough; and they leave out
// what takes long now and then (TestTails).
type promises struct{ got, should float64 }

// learn adds the tokens of a round and what they should have been in its time. Luck is over after some thirty rounds.
func (p *promises) learn(tokens, should float64) {
	p.got += 0.03 * (tokens - p.got)
	p.should += 0.03 * (should - p.should)
}

// kept is the share of a promise that will be kept: all of it, until some rounds say otherwise.
func (p *promises) kept() float64 { return min(1, (p.got+1)/(p.should+1)) }
