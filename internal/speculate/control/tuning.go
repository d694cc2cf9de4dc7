package control

import "time"

// tune is every number that decisions depend on, besides the sizes below.
//
// The values were found with the simulations of this package, which compare speed with the best fixed choice in
// hindsight. The test in brackets fails when the number is halved or doubled. The first command checks that for all
// numbers, in three minutes; the second tries one of them:
//
//	go test ./internal/speculate/control -run TestEveryNumberMatters -numbers
//	STROBE_TUNING=maxOverrun=1.5 go test ./internal/speculate/control
var tune = tuning{
	// Costs (costs.go).

	// Two times within this factor are the same time with noise. Beyond it plain passes do not agree yet, a machine or
	// the cost of a size has changed, and a pass was disturbed and is charged no more than this. [TestHardCases]
	sameFactor: 1.5,
	// Samples in agreement that are no accident. [TestStreamsLeave]
	enough: 3,
	// Plain passes longer than this many times the shortest were disturbed. A plain pass that seems too long makes all
	// others seem cheap and a useless drafter free. [TestHardCases]
	plainFactor: 2,
	// Plain passes that are remembered: noise hides in their median, and a machine that has become slower shows after
	// half as many. [TestPlainFollowsTheMachine]
	plainWindow: 32,
	// Plain passes older than this are not compared with: other programs come and go. [TestPlainAge]
	plainAge: time.Minute,
	// Passes that must have changed together before the machine has. [TestSlowerMachine]
	driftWindow: 9,
	// A size that costs more than this many times its estimate is doubted at first: one disturbed pass would close all
	// larger sizes for good. [TestSharedPasses]
	doubtFactor: 1.3,
	// After the first samples the median moves by this share of the way to a new one, [TestTwoDrafters]
	medianStep: 1.0 / 16,
	// as if none was farther away than this share: a disturbed pass counts little. [TestBothSources]
	medianReach: 0.1,
	// A plain pass costs as much as this many rows before anything else was measured. [TestTwoDrafters]
	rowsOfPlain: 6,
	// Rounds with drafts are compared with their promise up to this many times their expected time: some rounds take
	// long now and then, but the first ones of a size only once. [TestTails]
	maxOverrun: 3,
	// Passes between two measurements of plain decoding: at least and at most, [TestSharedPasses, TestPlainPaceIsMeasured]
	minRefresh: 4, maxRefresh: 512,
	// and in between this many times the square of the gain, [TestMeasuresPlainByGain]
	refreshPerGain: 800,
	// once the plain samples, times that square, are more than this: their error is small beside the gain.
	// [TestMeasuresPlainByGain]
	refreshAfter: 0.5,
	// A pass may be this many times as large as the largest so far. Larger ones are too uncertain. [TestSharedPasses]
	growth: 2,

	// Acceptance (acceptance.go).

	// A success rate remembers about this many samples: above, each new one fades the others. [TestCollapse,
	// TestTwoDrafters]
	rateMemory: 60, rateFade: 0.97,
	// Samples after which a prior counts half. [TestSharedPasses]
	priorHalfLife: 20,
	// The weight, in samples, of what the drafter claims, [TestBothSources]
	claimWeight: 3,
	// of the position before, [TestSharedPasses]
	positionWeight: 2,
	// and of whole blocks for shorter ones. [TestHardCases]
	blockWeight: 8,
	// How good the guesses of an unknown drafter are taken to be: good enough to be tried. [TestHardCases]
	firstGuess: 0.8,
	// How positions after a wrong guess fade, [TestBothSources]
	missFade: 0.9,
	// and sources and block sizes that are not used, so that they are tried again. [TestHardCases]
	unusedFade: 0.99,
	// A drafter has changed when its guesses are this many standard deviations better or worse than expected. The
	// variance is at least changeNoise, and older drafts fade by changeFade. [TestBothSources]
	changeSigma: 3, changeNoise: 0.5, changeFade: 0.87,

	// The ledger (ledger.go).

	// Plain tokens that drafting may lose at first: 1.2 % of 512. With the trials, what a boasting drafter costs until it
	// is known, and what noise hides, a useless drafter costs less than 3 %. [TestGainsAreForgotten, TestSharedPasses]
	startCredit: 6,
	// The most that gains are remembered, in starting credits. [TestGainsAreForgotten]
	maxCredits: 2,
	// What is left of the starting credit when a drafter has changed. [TestCollapse]
	changedCredits: 1.0 / 3,
	// Plain tokens that trials may lose at once. [TestTrialsAreBounded]
	maxTrials: 1,
	// The share of all tokens that may be lost, forever. [TestUselessEverySeed]
	lossShare: 0.01,
	// The share of an expected gain that may be lost: bad luck does not stop a good drafter for long. [TestCollapse]
	gainShare: 0.1,
	// The weight of a round in what drafts for several streams yielded: luck is over after some thirty. [TestSharedPasses]
	deliveryStep: 0.03,
	// The weight of a round in the pace of a stream. [TestBothSources]
	paceStep: 0.05,

	// Rounds (round.go).

	// Drafts that cost less than this share of a plain pass are made without a decision. [TestFreeSource]
	freeShare: 0.02,
	// Every so many trials are of the whole block, and whole blocks are tried again from so many drafts on.
	// [TestTwoDrafters]
	wholeBlockEvery: 4,
	// Guesses less probable than this are not worth a row of any pass. [TestTrees]
	minProbability: 0.01,
	// What a tree has to yield more than a chain, in tokens of a stream: the host takes longer for it. [TestTrees]
	treeMargin: 0.02,
	// How many times faster a chain with a tail has to seem than without: the best of many continuations is often one
	// whose probability is overestimated, and it takes the place of a tree. [TestContinued, TestShippedPairPays]
	tailMargin: 1.2,
}

type tuning struct {
	sameFactor                             float64
	enough                                 int
	plainFactor                            float64
	plainWindow                            int
	plainAge                               time.Duration
	driftWindow                            int
	doubtFactor, medianStep, medianReach   float64
	rowsOfPlain                            int
	maxOverrun                             float64
	minRefresh, maxRefresh, refreshPerGain float64
	refreshAfter                           float64
	growth                                 int

	rateMemory, rateFade, priorHalfLife      float64
	claimWeight, positionWeight, blockWeight float64
	firstGuess, missFade, unusedFade         float64
	changeSigma, changeNoise, changeFade     float64

	startCredit, maxCredits, changedCredits, maxTrials float64
	lossShare, gainShare, deliveryStep, paceStep       float64

	freeShare                  float64
	wholeBlockEvery            int
	minProbability, treeMargin float64
	tailMargin                 float64
}

// Sizes of tables: they bound memory, time and resolution.
const (
	// BlockSizes is the number of block sizes a stream tries: whole, half, a third, a quarter. A shorter block is cheaper
	// to draft; whether its guesses are worse depends on how the drafter was trained.
	BlockSizes    = 4
	maxChain      = 64 // guesses of a chain; no source makes more
	maxTree       = 63 // guesses of a tree
	depthClasses  = 3  // of guesses: the first, the next three, later ones
	claimClasses  = 16 // of claimed probabilities
	firstSamples  = 5  // of a size, whose median is exact
	streamClasses = 12 // of streams in a round, by powers of two
)
