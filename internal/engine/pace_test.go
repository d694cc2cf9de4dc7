package engine

import (
	"testing"
	"time"
)

// TestPace: steps settle at the time they may take, whatever a token costs and wherever they begin. The end of a prompt
// makes no step larger.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		base, token time.Duration // a step takes base and token for every prompt token
		want        int
	}{
		{10 * time.Millisecond, 175 * time.Microsecond, 192}, // (45-10)/0.175 = 200
		{time.Millisecond, time.Microsecond, 512},
		{60 * time.Millisecond, time.Microsecond, 64},
		{time.Millisecond, time.Second, 64},
		{0, 0, 512},
	} {
		for _, first := range []int{64, 512} {
			p := pace{first, 512}
			for range 20 {
				p.learn(p.chunk, c.base+time.Duration(p.chunk)*c.token)
			}
			if p.chunk != c.want {
				t.Errorf("%v and %v for a token, from %d: %d tokens, want %d", c.base, c.token, first, p.chunk, c.want)
			}
		}
	}
	if p := newPace(512); p.chunk != firstChunk || p.most != 512 {
		t.Errorf("the first chunk is %+v", p)
	}
	if p := newPace(100); p.chunk != 100 {
		t.Errorf("the first chunk is %+v, 100 at most", p)
	}
	p := pace{256, 512}
	if p.learn(3, time.Millisecond); p.chunk != 256 {
		t.Errorf("the end of a prompt left %d tokens", p.chunk)
	}
	if p.learn(100, 90*time.Millisecond); p.chunk != 64 {
		t.Errorf("a part of a chunk that took twice the time left %d tokens", p.chunk)
	}
	if p.learn(64, time.Millisecond); p.chunk != 128 {
		t.Errorf("a quick step of 64 tokens was followed by one of %d", p.chunk)
	}
	p = pace{100, 100} // what is set by hand stays below the least, too
	if p.learn(100, time.Millisecond); p.chunk != 100 {
		t.Errorf("%d tokens, 100 at most", p.chunk)
	}
}
