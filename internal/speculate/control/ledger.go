package control

// ledger bounds what drafting can cost the streams of a controller. It counts, in plain passes, what rounds with
// guesses yielded beyond their cost. When too much is lost it stops them, whatever they promise. Rounds that are not
// expected to pay are trials and have an account of their own. Streams share the ledger because they share passes: a
// draft for one makes all wait, and a new stream has no more to lose than the others have left (TestColdPasses).
//
// Drafts that cost something have another ledger than free ones: what repetitions of the text gain must not pay for a
// drafter that loses (TestBetterSourceAlone).
type ledger struct {
	credit float64 // what may be lost
	trials float64 // what trials may be expected to lose
}

// ledger is the one of rounds with paid drafts, or of those without.
func (c *Controller) ledger(paid bool) *ledger {
	if paid {
		return &c.paid
	}
	return &c.free
}

// newLedger is what streams begin with.
func newLedger() ledger { return ledger{credit: tune.startCredit, trials: tune.maxTrials} }

// earn counts tokens of a round of so many streams, and its time in plain tokens. A share of them may be lost later,
// more if drafting should gain much; by trials a share of the time, which is less where guesses are often right. A
// trial drafts for every stream and says as much as a trial of each, so more streams need fewer trials.
func (l *ledger) earn(tokens, took, gain float64, streams int) {
	share := max(tune.lossShare, tune.gainShare*(gain-1))
	l.credit = max(l.credit, min(l.credit+share*tokens, tune.startCredit))
	l.trials = max(l.trials, min(l.trials+tune.lossShare*took/float64(streams), tune.maxTrials))
}

// settle books a round with guesses: its tokens, its cost in plain tokens, and what it was expected to lose if it was a
// trial. A trial is charged that and not its outcome, which is mostly luck.
func (l *ledger) settle(tokens, cost, risk float64) {
	l.credit = min(l.credit+tokens-cost, tune.maxCredits*tune.startCredit)
	l.trials -= risk
}

// distrust lowers the credit when a drafter has changed: what it gained before says nothing now.
func (l *ledger) distrust() { l.credit = min(l.credit, tune.startCredit*tune.changedCredits) }

// delivery compares what drafts for several streams yielded with what was promised, in the time they really took. Such
// passes and drafts have many sizes, each of them rare, so promises are rough; and they leave out what takes long now
// and then (TestTails).
type delivery struct{ tokens, promised float64 }

// learn adds a round: its tokens, and those that were promised for the time it took.
func (d *delivery) learn(tokens, promised float64) {
	d.tokens += tune.deliveryStep * (tokens - d.tokens)
	d.promised += tune.deliveryStep * (promised - d.promised)
}

// ratio is the share of a promise to expect: all of it until some rounds say otherwise.
func (d *delivery) ratio() float64 { return min(1, (d.tokens+1)/(d.promised+1)) }
