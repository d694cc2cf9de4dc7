package platform

import "testing"

func TestAnonymous(t *testing.T) {
	if n := AvailableMemory(); n < 1<<20 {
		t.Errorf("%d bytes of memory are available", n)
	}
	b := Anonymous(3<<20 + 5)
	if len(b) != 3<<20+5 {
		t.Fatalf("%d bytes", len(b))
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	b[0], b[len(b)-1] = 1, 2
	Free(b)
}
