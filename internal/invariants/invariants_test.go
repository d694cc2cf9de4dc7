package invariants

import (
	"strings"
	"testing"
)

// TestCheck: a violation is a panic that says what is wrong, in builds that check.
func TestCheck(t *testing.T) {
	defer func() {
		said, _ := recover().(string)
		if got := strings.Contains(said, "page 7 is free"); got != Enabled {
			t.Errorf("checks are enabled: %v; the panic says %q", Enabled, said)
		}
	}()
	Check(true, "never")
	Check(false, "page %d is free", 7)
}
