package control

import (
	"math"
	"slices"
	"testing"
	"time"

	"strobe/internal/draft"
)

// TestPlainAge: what plain passes took is known for as long as they were measured lately and agree.
func TestPlainAge(t *testing.T) {
	c := &costs{}
	pass := func(took time.Duration) { c.learn(&Round{rows: 1, base: 1}, took) }
	pass(10 * time.Millisecond)
	pass(90 * time.Millisecond)
	if d := c.plain(); d != 0 {
		t.Errorf("%v after two passes that differ", d)
	}
	for range 4 {
		pass(10 * time.Millisecond)
	}
	if d := c.plain(); d < 9*time.Millisecond || d > 11*time.Millisecond {
		t.Errorf("%v, want 10ms", d)
	}
	c.plainSeen = time.Now().Add(-90 * time.Second)
	if d := c.plain(); d != 0 {
		t.Errorf("%v, measured too long ago", d)
	}
}

// TestPlainFollowsTheMachine: a few slower plain passes are noise; many are how fast the machine is now.
func TestPlainFollowsTheMachine(t *testing.T) {
	c := &costs{}
	plain := func(n int, took time.Duration) time.Duration {
		for range n {
			c.learn(&Round{rows: 1, base: 1}, took)
		}
		return c.plain()
	}
	plain(40, 10*time.Millisecond)
	if d := plain(10, 14*time.Millisecond); d > 11*time.Millisecond {
		t.Errorf("%v after ten passes of 14ms and many of 10ms", d)
	}
	if d := plain(10, 14*time.Millisecond); d < 13*time.Millisecond {
		t.Errorf("%v after twenty passes of 14ms", d)
	}
}

// TestMeasuresPlainByGain: with a gain of 30 % plain decoding is measured every fourth pass until there are enough
// samples to be sure of the gain, then every 72nd.
func TestMeasuresPlainByGain(t *testing.T) {
	for _, x := range []struct {
		samples, passes int
		want            bool
	}{{4, 3, false}, {4, 4, true}, {10, 60, false}, {10, 80, true}} {
		c := &costs{}
		for range x.samples {
			c.learn(&Round{rows: 1, base: 1}, 10*time.Millisecond)
		}
		for range x.passes {
			c.learn(&Round{rows: 4, base: 1}, 12*time.Millisecond)
		}
		if got := c.stale(1.3, 1); got != x.want {
			t.Errorf("%d passes after %d plain ones: measure again: %v", x.passes, x.samples, got)
		}
	}
}

// TestTrees: a stream that is alone verifies a second candidate if that gains enough beyond its row, here a tenth of a
// plain pass; guesses that are hardly ever right are no part of a tree.
func TestTrees(t *testing.T) {
	for _, x := range []struct {
		second float64 // probability of the second candidate
		want   int     // guesses
	}{{0.115, 1}, {0.13, 2}} {
		c := New(1)
		for range firstSamples {
			for rows := 1; rows <= 4; rows++ {
				c.MeasuredPass(rows, 9*time.Millisecond+time.Duration(rows)*time.Millisecond)
			}
			c.MeasuredDraft(0, 1, 10*time.Microsecond)
		}
		s := c.NewStream(Options{})
		s.Usable[0], s.Limit = true, 8
		r := c.Begin([]*Stream{s}, 0)
		for a := r.Next(); a != nil; a = r.Next() {
			at := []draft.Candidate{{ID: 1, LogP: logp(0.5)}, {ID: 2, LogP: logp(x.second)}}
			r.Drafted(a, []draft.Proposal{{At: [][]draft.Candidate{at}}}, 10*time.Microsecond)
		}
		r.Choose(64)
		if tokens, _ := s.Guesses(); len(tokens) != x.want {
			t.Errorf("second candidate %.3f: guesses %v, want %d", x.second, tokens, x.want)
		}
	}
	s := New(1).NewStream(Options{})
	_, least := s.treeSize()
	p := draft.Proposal{At: [][]draft.Candidate{{{ID: 1, LogP: logp(0.9)}, {ID: 2, LogP: logp(0.015)},
		{ID: 3, LogP: logp(0.007)}}}}
	if got := s.accept[0].treeOf(&p, 9, least).tokens; !slices.Equal(got, []int32{1, 2}) {
		t.Errorf("the tree has %v, want 1 and 2", got)
	}
}

func logp(p float64) float32 { return float32(math.Log(p)) }

// TestTrialsAreBounded: however many tokens were generated, trials may lose one token at once.
func TestTrialsAreBounded(t *testing.T) {
	l := newLedger()
	l.earn(1e6, 1e6, 1, 1)
	if l.settle(1, 1, 0.7); l.trials <= 0 {
		t.Error("a trial that should lose 0.7 tokens empties the account")
	}
	if l.settle(1, 1, 0.4); l.trials > 0 {
		t.Error("trials that should lose 1.1 tokens do not empty the account")
	}
}

// TestFreeSource: a source is always asked if a draft costs less than a fiftieth of a plain pass.
func TestFreeSource(t *testing.T) {
	for _, x := range []struct {
		cost float64
		want bool
	}{{0.015, true}, {0.03, false}} {
		c := New(1)
		for range firstSamples {
			c.MeasuredPass(1, 10*time.Millisecond)
			c.MeasuredDraft(0, 1, time.Duration(x.cost*float64(10*time.Millisecond)))
		}
		if got := c.isFree(0, 1); got != x.want {
			t.Errorf("a draft of %v plain passes is free: %v", x.cost, got)
		}
	}
}
