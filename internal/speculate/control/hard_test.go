package control

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"
)

// The tests of this file are harder worlds for the controller: more machines, noise, drafters that change or lie, and
// several streams that share passes.

// through is a cost curve through points.
func through(points ...[2]float64) func(n int) float64 {
	return func(n int) float64 {
		i, x := 1, float64(n)
		for i < len(points)-1 && x > points[i][0] {
			i++
		}
		a, b := points[i-1], points[i]
		return a[1] + (b[1]-a[1])*(x-a[0])/(b[0]-a[0])
	}
}

var hardMachines = []struct {
	name          string
	verify, draft func(n int) float64
}{
	{"gpu", through([2]float64{1, 1}, [2]float64{16, 1.25}, [2]float64{64, 2}), linear(0.2, 0)},
	{"amx", through([2]float64{1, 1}, [2]float64{16, 1.5}, [2]float64{64, 4}), linear(0.15, 0.01)},
	{"memory-bound", through([2]float64{1, 1}, [2]float64{4, 1.2}, [2]float64{16, 2.4}, [2]float64{64, 8}),
		linear(0.15, 0.02)},
	{"small", through([2]float64{1, 1}, [2]float64{4, 1.6}, [2]float64{16, 5}, [2]float64{64, 18}), linear(0.3, 0.03)},
	{"experts", func(n int) float64 { return 1 + 5*(1-math.Exp(-float64(n-1)/6)) + 0.02*float64(n-1) }, linear(0.2, 0)},
}

var noises = []struct {
	name string
	noise
}{{"quiet", noise{}}, {"jitter", jitter}, {"shared", shared}}

// goodP accepts 5.9 of 16 tokens on average with whole blocks, mediocreP 2.5.
const goodP, mediocreP = 0.865, 0.605

// drafters by name.
var drafters = []struct {
	name  string
	right func(at, d int) float64
	short float64
	claim func(p float64) float64
}{
	{"perfect", fixed(0.995), 0, nil},
	{"good", fixed(goodP), 0, nil},
	{"good, over-confident", fixed(goodP), 0, func(p float64) float64 { return 1 - (1-p)/6 }},
	{"good, under-confident", fixed(goodP), 0, func(p float64) float64 { return p * p * p }},
	{"mediocre", fixed(mediocreP), 0, nil},
	{"mediocre, over-confident", fixed(mediocreP), 0, func(p float64) float64 { return 1 - (1-p)/6 }},
	{"useless", fixed(0), 0, nil},
	{"useless, sure", fixed(0), 0, claims["boasting"]},
	{"collapses", collapsing(500, 1<<30), 0, claims["boasting"]},
	{"recovers", collapsing(0, 500), 0, claims["boasting"]},
	{"half better", fixed(0.75), 1.17, claims["boasting"]},
	{"short worse", fixed(goodP), 0.6, claims["boasting"]},
	{"bursts", func(at, _ int) float64 {
		if at/40%2 == 0 {
			return 0.93
		}
		return 0.3
	}, 0, nil},
}

// hindsight is the gain of the best choice that could be made knowing the drafter: length and size of blocks, fixed
// for each phase of 500 tokens.
func (w world) hindsight(tokens int) float64 {
	time := 0.0
	for at := 0; at < tokens; at += 500 {
		best := 1.0
		for z := range 4 {
			size := 16/(z+1) - 1
			for k := 1; k <= size; k++ {
				// Over the phase, tokens per round differ by position in it: sum times of stretches of 20 tokens.
				t, n := 0.0, 0.0
				for a := at; a < min(at+500, tokens); a += 20 {
					e, p := 1.0, 1.0
					for d := range k {
						q := w.right(a, d)
						if z > 0 && w.short > 0 {
							q *= w.short
						}
						p *= q
						e += p
					}
					t += 20 * (w.draft(size) + w.verify(1+k)) / w.verify(1) / e
					n += 20
				}
				best = max(best, n/t)
			}
		}
		time += float64(min(500, tokens-at)) / best
	}
	return float64(tokens) / time
}

// env is a number that the environment may set, for runs by hand with more seeds.
func env(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// least is what the mean speed of a case has to reach of the best fixed choice in hindsight, with room for the luck of
// twelve seeds. Over 1,000 tokens it takes 5 % to measure the machine and get to know the drafter; more on a shared
// machine, where costs are harder to see, and with drafters that change, or whose shorter blocks guess better or worse,
// while their claims do not say so.
func least(drafter, noise string) float64 {
	switch {
	case drafter == "half better" || drafter == "short worse" || drafter == "recovers":
		return 0.78
	case noise == "shared" || drafter == "collapses":
		return 0.88
	}
	return 0.9
}

// firstSeed moves all seeds, for runs by hand.
func firstSeed() uint64 { return uint64(env("STROBE_FIRST_SEED", 0)) }

// TestHardCases: over 1,000 tokens the speed is within 5 % of the best fixed choice in hindsight in the mean of all
// cases, and no case is far from it.
func TestHardCases(t *testing.T) {
	seeds := env("STROBE_SEEDS", 12)
	all, cases := 0.0, 0
	for _, m := range hardMachines {
		for _, d := range drafters {
			for _, n := range noises {
				w := world{verify: m.verify, draft: m.draft, right: d.right, short: d.short, claim: d.claim, noise: n.noise}
				best := w.hindsight(1000)
				g, worst := 0.0, 9.0
				for seed := range uint64(seeds) {
					x := simulate(w, auto, firstSeed()+50+seed).until(1000).gain()
					g += x / float64(seeds)
					worst = min(worst, x)
				}
				t.Logf("case\t%s\t%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f", m.name, d.name, n.name, best, g, worst, g/best)
				if !(g >= least(d.name, n.name)*best) {
					t.Errorf("%s, %s, %s: speed %.3f, best %.3f: %.3f", m.name, d.name, n.name, g, best, g/best)
				}
				all, cases = all+g/best, cases+1
			}
		}
	}
	t.Logf("mean of %d cases %.4f", cases, all/float64(cases))
	if !(all/float64(cases) >= 0.96) {
		t.Errorf("%.3f of the best fixed choice in the mean", all/float64(cases))
	}
}

// TestUselessEverySeed: no run with a useless drafter loses more than 3 % over 512 tokens, on a shared machine 5 %.
func TestUselessEverySeed(t *testing.T) {
	for _, m := range hardMachines {
		for _, name := range []string{"honest", "modest", "boasting"} {
			claim := claims[name]
			for _, n := range noises {
				worst, at, mean := 9.0, 0, 0.0
				seeds := env("STROBE_SEEDS", 40)
				if n.noise == (noise{}) {
					seeds = 1 // all are alike
				}
				for seed := range uint64(seeds) {
					w := world{verify: m.verify, draft: m.draft, right: fixed(0), claim: claim, noise: n.noise}
					g := simulate(w, auto, firstSeed()+1000+seed).until(512).gain()
					mean += g / float64(seeds)
					if g < worst {
						worst, at = g, int(firstSeed()+1000+seed)
					}
				}
				bound := 0.97
				if n.name == "shared" {
					bound = 0.95
				}
				t.Logf("%s, %s, %s: worst %.4f, mean %.4f", m.name, name, n.name, worst, mean)
				if !(worst >= bound) {
					t.Errorf("%s, %s, %s: seed %d keeps %.4f", m.name, name, n.name, at, worst)
				}
			}
		}
	}
}

// TestSharedPasses: several streams lose no more than one, and gain nearly what the best fixed length would.
func TestSharedPasses(t *testing.T) {
	for _, m := range hardMachines {
		for _, streams := range []int{2, 4, 8} {
			for _, p := range []float64{0, mediocreP, goodP} {
				w := world{verify: m.verify, draft: m.draft, right: fixed(p), noise: jitter}
				best := 1.0
				for z := range 4 {
					size := 16/(z+1) - 1
					for k := 1; k <= size; k++ {
						e, q := 1.0, 1.0
						for range k {
							q *= p
							e += q
						}
						best = max(best, e*w.verify(streams)/(w.draft(streams*size)+w.verify(streams*(1+k))))
					}
				}
				for _, alone := range []int{0, 60} {
					g := 0.0
					for seed := range uint64(8) {
						g += afterOne(w, streams, 512, firstSeed()+seed, alone) / 8
					}
					t.Logf("%s, %d streams after %d rounds of one, right with %.2f: speed %.3f, best %.3f", m.name, streams, alone, p,
						g, best)
					bound := 0.92
					switch { // it takes some dear passes to see that still larger ones are cheap
					case m.name == "experts" && streams == 2:
						bound = 0.65
					case m.name == "experts":
						bound = 0.8
					}
					if !(g >= bound*best) || p == 0 && !(g >= 0.97) {
						t.Errorf("%s, %d streams after %d rounds of one, right with %.2f: speed %.3f, best %.3f: %.3f", m.name, streams,
							alone, p, g, best, g/best)
					}
				}
			}
		}
	}
}

// TestTwoDrafters: of two drafters the one that gains more is used, be it the better one or the cheaper one, also
// when that changes, and which comes first does not matter.
func TestTwoDrafters(t *testing.T) {
	honest := claims["honest"]
	good := world{right: fixed(goodP), draft: linear(0.3, 0.02), claim: honest}
	cheap := world{right: fixed(0.75), draft: linear(0.1, 0), claim: honest}
	bad := world{right: fixed(0.1), draft: linear(0.1, 0), claim: claims["boasting"]}
	late := world{right: collapsing(0, 600), draft: linear(0.15, 0), claim: claims["boasting"]}
	for _, m := range []int{0, 2} {
		m := hardMachines[m]
		for name, pair := range map[string][2]world{"good and cheap": {good, cheap}, "good and bad": {good, bad},
			"cheap and bad": {cheap, bad},
			"bad and worse": {bad, {right: fixed(0), draft: linear(0.2, 0), claim: honest}}, "cheap and late": {cheap, late}} {
			for i := range 2 {
				a, b := pair[i], pair[1-i]
				alone := func(w world) float64 {
					w.verify = m.verify
					return w.hindsight(2000)
				}
				best := max(alone(a), alone(b))
				a.verify, a.noise, a.second = m.verify, jitter, &b
				if g := a.mean(sources{true, false, true}, 2000); !(g >= 0.9*best) {
					t.Errorf("%s, %s, %d first: speed %.3f, the better one alone %.3f: %.3f", m.name, name, i, g, best, g/best)
				}
			}
		}
	}
}

// TestStreamsLeave: what several streams measured together holds for the one that goes on alone, although a plain
// pass is another one then.
func TestStreamsLeave(t *testing.T) {
	for _, m := range hardMachines {
		for _, n := range noises {
			for _, p := range []float64{0, goodP} {
				w := world{verify: m.verify, draft: m.draft, right: fixed(p), noise: n.noise, claim: claims["boasting"]}
				const seeds = 24
				g, worst := 0.0, 9.0
				for seed := range uint64(seeds) {
					x := together(w, auto, firstSeed()+seed, 4)
					for range 40 {
						x.round()
					}
					x.spent, x.plain = 0, 0
					for from := x.tokens; x.tokens < from+512; {
						x.roundOf(1)
					}
					g += x.gain() / seeds
					worst = min(worst, x.gain())
				}
				best := w.hindsight(500)
				if bound := 0.8 * best; p == 0 && !(worst >= 0.95) || p > 0 && best > 1.15 && !(g >= bound) {
					t.Errorf("%s, %s, right with %.2f: speed %.3f, at worst %.3f, best %.3f", m.name, n.name, p, g, worst, best)
				}
			}
		}
	}
}

// TestNewUnit: when the machine has changed and other streams than before run, plain decoding is measured all the same.
func TestNewUnit(t *testing.T) {
	c := New(block)
	pass := func(streams int, ms float64) {
		var ss []*Stream
		for range streams {
			ss = append(ss, c.NewStream(Options{}))
		}
		r := c.Begin(ss, 0)
		r.Choose(512)
		r.Passed(time.Duration(ms * float64(time.Millisecond)))
	}
	for range 40 {
		pass(1, 10)
	}
	for n := 0; c.Settled(); n++ {
		if pass(1, 40); n > 9 {
			t.Fatal("passes four times as long changed nothing")
		}
	}
	for range 4 {
		pass(5, 60)
	}
	if !c.Settled() {
		t.Error("plain passes of five streams are not believed")
	}
}

// TestBothSources: a text that repeats itself for some time, and a drafter beside.
func TestBothSources(t *testing.T) {
	for _, m := range hardMachines[:4] {
		for _, p := range []float64{0, goodP} {
			w := world{verify: m.verify, draft: m.draft, right: fixed(p), noise: jitter, text: func(i int) int32 {
				if i/200%2 == 1 {
					return int32(i % 10)
				}
				return int32(i + 100)
			}}
			best := 0.0
			for n := 1; n <= 24; n++ {
				best = max(best, float64(n+1)/m.verify(n+1))
			}
			drafted := w.hindsight(500)
			possible := 1000 / (500/max(best, drafted) + 500/drafted)
			g := w.mean(both, 1000)
			t.Logf("%s, drafter right with %.2f: speed %.3f, best %.3f", m.name, p, g, possible)
			if !(g >= 0.8*possible) {
				t.Errorf("%s, drafter right with %.2f: speed %.3f, best %.3f: %.3f", m.name, p, g, possible, g/possible)
			}
		}
	}
}

// afterOne runs streams at once, the first of them for some rounds alone, and returns their gain over plain passes of
// all of them.
func afterOne(w world, streams, tokens int, seed uint64, alone int) float64 {
	x := together(w, auto, seed, streams)
	for range alone {
		x.roundOf(1)
	}
	x.spent, x.plain = 0, 0
	for from := x.total(); x.total()-from < streams*tokens; {
		x.round()
	}
	return x.gain()
}

// total is the tokens of all streams.
func (x *rounds) total() (n int) {
	for _, s := range x.all {
		n += s.at
	}
	return n
}

// TestDeviceDraftsAtOnce: on a GPU passes cost nearly the same up to 16 rows, are over in milliseconds and differ
// little, and a draft costs 10 to 20 % of one. Three plain passes are enough to begin, and the block is verified
// nearly whole where the drafter is good.
func TestDeviceDraftsAtOnce(t *testing.T) {
	for _, cost := range []float64{0.1, 0.2} {
		for _, last := range []float64{1.02, 1.1, 1.3} { // a pass of 16 rows
			for _, p := range []float64{mediocreP, goodP, 0.95} {
				w := world{verify: through([2]float64{1, 1}, [2]float64{16, last}, [2]float64{64, last + 0.4}),
					draft: linear(cost, 0), right: fixed(p), noise: noise{0.01, 0}}
				const seeds = 12
				early, late, rows, n := 0.0, 0.0, 0, 0
				for seed := range uint64(seeds) {
					x := simulate(w, auto, firstSeed()+seed)
					for x.asked == 0 {
						x.round()
					}
					if x.tokens > 6 {
						t.Fatalf("the first draft came after %d tokens", x.tokens)
					}
					early += x.until(100).gain() / seeds
					late += x.until(1000).gain() / seeds
					for range 50 {
						if k := x.round(); k > 1 {
							rows, n = rows+k, n+1
						}
					}
				}
				best := w.hindsight(1000)
				what := fmt.Sprintf("draft %.1f, 16 rows %.2f, right with %.2f", cost, last, p)
				mean := float64(rows) / float64(n)
				t.Logf("%s: %.3f of the best %.2f over 100 tokens, %.3f over 1,000, %.1f rows", what, early/best, best, late/best,
					mean)
				if !(early >= 0.7*best) || !(late >= 0.93*best) || p >= goodP && last < 1.2 && mean < 12 {
					t.Errorf("%s: %.3f of the best %.2f over 100 tokens, %.3f over 1,000, %.1f rows", what, early/best, best,
						late/best, mean)
				}
			}
		}
	}
}

// TestColdPasses: many short streams that come and go, on a device where a pass of a size takes long the first few
// times. What passes took then must not make plain decoding look dear for good.
func TestColdPasses(t *testing.T) {
	for _, streams := range []int{2, 8, 32} {
		for _, p := range []float64{0, mediocreP, goodP} {
			for _, drafts := range []float64{0.3, 1.3} {
				w := world{verify: through([2]float64{1, 1}, [2]float64{8, 1.1}, [2]float64{64, 1.7}, [2]float64{512, 8}),
					draft: linear(drafts, 0.01*drafts),
					right: fixed(p), noise: jitter, cold: [2]float64{2.8, 10}}
				best := 1.0
				for z := range 4 {
					size := 16/(z+1) - 1
					e, q := 1.0, 1.0
					for k := 1; k <= size; k++ {
						q *= p
						e += q
						best = max(best, e*w.verify(streams)/(w.draft(streams*size)+w.verify(streams*(1+k))))
					}
				}
				g := 0.0
				const seeds = 4
				for seed := range uint64(seeds) {
					g += served(w, streams, firstSeed()+seed) / seeds
				}
				what := fmt.Sprintf("%d streams, right with %.2f, drafts of %.1f", streams, p, drafts)
				t.Logf("%s: speed %.3f, best %.3f", what, g, best)
				if !(g >= 0.97) {
					t.Errorf("%s: speed %.3f, best %.3f", what, g, best)
				}
			}
		}
	}
}

// TestTails: what takes long now and then, as a collection of garbage does, is no part of what a draft is expected to
// take; what it costs is seen all the same.
func TestTails(t *testing.T) {
	for _, tail := range []float64{0, 6, 12} {
		drafts := 0
		w := world{verify: through([2]float64{1, 1}, [2]float64{8, 1.13}, [2]float64{32, 1.73}, [2]float64{64, 2.5},
			[2]float64{512, 14}), right: fixed(0.75), noise: noise{0.03, 0}, draft: func(int) float64 {
			if drafts++; drafts%8 == 0 {
				return 1 + tail
			}
			return 1
		}}
		g := 0.0
		const seeds = 4
		for seed := range uint64(seeds) {
			g += served(w, 8, firstSeed()+seed) / seeds
		}
		t.Logf("every eighth draft %.0f longer: speed %.3f", tail, g)
		if least := map[float64]float64{0: 1.1, 6: 0.94, 12: 0.85}[tail]; !(g >= least) {
			t.Errorf("every eighth draft %.0f longer: speed %.3f, want at least %.2f", tail, g, least)
		}
	}
}

// served is the speed, relative to plain decoding on a device that knows all sizes, of streams of 128 tokens of which
// another one begins when one ends, after a calibration of single passes and the first 500 tokens of each.
func served(w world, streams int, seed uint64) float64 {
	x := together(w, auto, seed, streams)
	for range 4 {
		for _, rows := range []int{1, 1, 2, 4, 8, 16} {
			x.c.MeasuredPass(rows, x.target(rows))
		}
		for z := range BlockSizes {
			begin := x.now
			x.pass(w.draft(x.c.BlockLen(drafter, z)))
			x.c.MeasuredDraft(drafter, x.c.BlockLen(drafter, z), x.now-begin)
		}
	}
	ends := make([]int, streams)
	for i := range ends {
		ends[i] = 128 * (i + 1) / streams
	}
	for total := 0; total < 1500*streams; {
		if total < 500*streams { // every size has come
			x.spent, x.plain = 0, 0
		}
		total = 0
		x.round()
		for i, s := range x.all {
			if total += s.at; s.at >= ends[i] {
				ends[i] += 128
				x.c.End(s.Stream)
				s.Stream = x.c.NewStream(Options{})
				copy(s.Usable, auto)
				s.Limit = 63
			}
		}
	}
	return x.gain()
}
