package control

// ledger bounds what drafting can cost a stream. It counts in plain tokens what rounds with guesses yielded
// beyond their cost, and stops them when too much is lost, whatever their promise. Rounds that
// promise nothing have an account of their own, for trials.
type ledger struct {
	credit float64 // what may be lost
	start  float64 // what it was at first
	won    float64 // what rounds with guesses have gained
	trials float64 // what trials may be expected to lose
	since  int     // rounds since the last draft
}

const (
	startCredit = 6.0
	maxBank     = 24.0 // what streams leave to later ones, of which a quarter may be lost
	maxTrials   = 1.0
	lossShare   = 0.01 // of all tokens, that may be lost forever
)

// reset opens the ledger of a stream after others have gained bank tokens. A stream's luck says little, and text on which
// drafting pays begins with a few bad rounds, too; what was gained before allows to wait for longer.
func (l *ledger) reset(bank float64) {
	start := startCredit + bank/4
	*l = ledger{credit: start, start: start, trials: maxTrials}
}

// earn counts a round's tokens, of which a share may be lost later: more if drafting should gain much.
func (l *ledger) earn(tokens, gain float64) {
	l.credit = max(l.credit, min(l.credit+max(lossShare, 0.1*(gain-1))*tokens, l.start))
	l.trials = max(l.trials, min(l.trials+lossShare*tokens, maxTrials))
	l.since++
}

// settle books a round with guesses that yielded tokens and took as long as cost plain tokens. A trial is
// charged what it should lose, not what it did: its luck says little.
func (l *ledger) settle(tokens, cost, risk float64) {
	l.credit = min(l.credit+tokens-cost, 2*l.start) // however much was gained
	l.won += tokens - cost
	l.trials -= risk
	l.since = 0
}
