//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

// TestSourceOf: a device gets the newest code that runs on it.
func TestSourceOf(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{{8, 0, "sm_80"}, {8, 9, "sm_80"}, {9, 0, "sm_90"}, {12, 0, "sm_90"}} {
		s, err := sourceOf("small_add", c.major, c.minor)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(s.text()); s.arch != c.want || !strings.Contains(text, ".target "+c.want) ||
			!strings.HasSuffix(text, "\x00") {
			t.Errorf("capability %d.%d gets %s, want %s", c.major, c.minor, s.arch, c.want)
		}
	}
	if _, err := sourceOf("nothing", 9, 0); err == nil ||
		err.Error() != `no kernel "nothing" for compute capability 9.0` {
		t.Errorf("a kernel that does not exist: %v", err)
	}
}

// TestSources: what the driver compiles is one kernel with all that it needs, and kernels of a file share no variables.
func TestSources(t *testing.T) {
	kernels, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^(\.visible |\.weak )?\.(global|const|shared)`)
	for name, all := range kernels {
		for _, s := range all {
			text := string(s.text())
			if strings.Count(text, ".entry") != 1 || !strings.Contains(text, ".visible .entry "+name+"(") {
				t.Errorf("%s for %s is not one kernel", name, s.arch)
			}
			if v := own.FindString(text); v != "" {
				t.Errorf("%s for %s has variables (%s)", name, s.arch, v)
			}
		}
	}
}

func TestSupported(t *testing.T) {
	old := Device{Name: "NVIDIA Old", Major: 7, Minor: 5}
	if err := old.Supported(); err == nil ||
		err.Error() != "NVIDIA Old has compute capability 7.5, at least 8.0 is needed" {
		t.Errorf("an old device: %v", err)
	}
	for _, d := range []Device{{Major: 8}, {Major: 8, Minor: 6}, {Major: 12}} {
		if err := d.Supported(); err != nil {
			t.Errorf("capability %d.%d: %v", d.Major, d.Minor, err)
		}
	}
}

// TestNoDriver: on a machine without a GPU the error is the one that callers look for.
func TestNoDriver(t *testing.T) {
	ds, err := Devices()
	if err == nil && len(ds) > 0 {
		t.Skip("needs a machine without an NVIDIA driver; this one has one, with a GPU")
	}
	if err != nil && !errors.Is(err, ErrNoDriver) {
		t.Fatalf("listing devices: %v", err)
	}
	if _, err := Open(0); err == nil {
		t.Error("a device opened where there is none")
	}
}

// TestCatalogue: every embedded kernel is in the catalogue, and every kernel there that Vulkan does not have is
// embedded.
func TestCatalogue(t *testing.T) {
	known := map[string]bool{}
	for _, k := range gpu.Kernels() {
		name := k.Name()
		if known[name] = true; k.Shader().Module == "" && !slices.Contains(KernelNames(), name) {
			t.Errorf("%s of the catalogue is not embedded", name)
		}
	}
	for _, name := range KernelNames() {
		if !known[name] {
			t.Errorf("%s is embedded, but not in the catalogue", name)
		}
	}
}
