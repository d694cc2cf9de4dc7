package strobe

import (
	"strings"
	"testing"
)

// TestContainerVersion: the container is built with the Go that the module asks for.
func TestContainerVersion(t *testing.T) {
	mod, docker := read(t, "go.mod"), read(t, "deploy/Dockerfile")
	_, rest, _ := strings.Cut(string(docker), " golang:")
	version, _, _ := strings.Cut(rest, " ")
	if version == "" || !strings.Contains(string(mod), "\ngo "+version) {
		t.Errorf("the container has Go %q, go.mod says otherwise", version)
	}
}
