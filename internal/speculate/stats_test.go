package speculate

import (
	"testing"
	"time"
)

// TestSpeedUp: a ratio is stated only where the stream was long, drafted and undisturbed.
func TestSpeedUp(t *testing.T) {
	good := Stats{Tokens: 101, Rounds: 30, Guessed: 200, DecodeTime: time.Second, PlainCost: 20 * time.Millisecond,
		BySource: map[string]SourceStats{"dflash": {Rounds: 28}}}
	for _, c := range []struct {
		name   string
		change func(*Stats)
		want   float64
		paused bool
	}{
		{"a long answer", func(*Stats) {}, 2, false},
		{"a loss", func(s *Stats) { s.PlainCost = 9 * time.Millisecond }, 0.9, false},
		{"a few tokens", func(s *Stats) { s.Tokens = 12 }, 0, false},
		{"a few rounds", func(s *Stats) { s.Rounds = 5 }, 0, false},
		{"disturbed", func(s *Stats) { s.DecodeTime = 25 * time.Second }, 0, false},
		{"disturbed while plain decoding was measured", func(s *Stats) { s.PlainCost = 40 * time.Millisecond }, 0, false},
		{"plain decoding never measured", func(s *Stats) { s.PlainCost = 0 }, 0, false},
		{"no drafts", func(s *Stats) { s.Guessed, s.BySource = 0, nil }, 0, true},
		{"trials", func(s *Stats) {
			s.BySource = map[string]SourceStats{"dflash": {Rounds: 1}, "ngram": {Rounds: 1}}
		}, 0, true},
	} {
		s := good
		c.change(&s)
		if got := s.SpeedUp(); got < c.want-1e-9 || got > c.want+1e-9 || s.Paused() != c.paused {
			t.Errorf("%s: %.2fx, paused %v; want %.2fx, %v", c.name, got, s.Paused(), c.want, c.paused)
		}
	}
}
