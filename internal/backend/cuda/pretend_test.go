package cuda

import (
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

// TestPretend: a GPU looks like the card that the environment names, unless that has more than it has itself.
func TestPretend(t *testing.T) {
	hopper := gpu.Props{Name: "H", Major: 9, SharedBlock: 227 << 10}
	ampere := gpu.Props{Name: "A", Major: 8, Minor: 6, SharedBlock: 99 << 10}
	for _, c := range []struct {
		as     string
		on     gpu.Props
		major  int
		minor  int
		shared int
		err    string
	}{
		{"", hopper, 9, 0, 227 << 10, ""},
		{"8.0", hopper, 8, 0, 163 << 10, ""},
		{"8.6", hopper, 8, 6, 99 << 10, ""},
		{"8.6", ampere, 8, 6, 99 << 10, ""},
		{"12.0", hopper, 12, 0, 99 << 10, ""},
		{"10.0", hopper, 10, 0, 227 << 10, ""},
		{"8.0", ampere, 0, 0, 0, "which has less"},
		{"12.0", ampere, 0, 0, 0, "which has less"},
		{"7.5", hopper, 0, 0, 0, "STROBE_CUDA_AS=7.5: want 8.0"},
	} {
		t.Setenv(asVariable, c.as)
		p := c.on
		err := Pretend(&p)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || p != c.on {
				t.Errorf("%s on %s: %v, %+v", c.as, c.on.Name, err, p)
			}
			continue
		}
		if err != nil || p.Major != c.major || p.Minor != c.minor || p.SharedBlock != c.shared {
			t.Errorf("%s on %s: %v, %+v", c.as, c.on.Name, err, p)
		}
	}
}
