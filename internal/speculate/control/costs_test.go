package control

import (
	"testing"
	"time"
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
