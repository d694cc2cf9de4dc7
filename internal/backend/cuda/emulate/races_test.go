//go:build linux && (amd64 || arm64)

package emulate

import (
	"os/exec"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

type raceArgs struct {
	out, in, counter gpu.Addr
	n                int32
}

// TestRaces: every kind of missing order is found, with the lines that are not ordered, and the same kernel with it is
// clean.
func TestRaces(t *testing.T) {
	_, err := exec.LookPath(symbolizer)
	lines := err == nil
	for _, c := range []struct {
		kernel               string
		grid, threads, bytes int
		want                 []string // of the message about the wrong one
	}{
		{"race_sync", 1, 64, 256, []string{"reads shared byte", "wrote", "races.cu:8", "races.cu:10"}},
		{"race_read", 1, 64, 256, []string{"writes shared byte", "read", "races.cu:17", "races.cu:19"}},
		{"race_warp", 1, 32, 128, []string{"races.cu:24", "races.cu:27"}},
		{"race_halves", 1, 64, 128, []string{"races.cu:32", "writes shared byte", "wrote"}},
		{"race_named", 1, 64, 128, []string{"races.cu:37", "races.cu:42"}},
		{"race_copy", 1, 32, 512, []string{"races.cu:48", "races.cu:53"}},
		{"race_copy_wait", 1, 32, 512, []string{"races.cu:57", "copies to", "races.cu:61"}},
		{"race_atomic", 1, 64, 128, []string{"races.cu:67", "races.cu:68", "changes"}},
		{"race_bar_fence", 1, 64, 512, []string{"fence for the asynchronous proxy", "races.cu:85"}},
		{"race_bulk_wait", 1, 64, 512, []string{"races.cu:94", "races.cu:97"}},
		{"race_bulk_again", 1, 64, 512, []string{"races.cu:107", "asynchronously writes", "races.cu:110"}},
		{"race_proxy_global", 1, 64, 512, []string{"races.cu:119", "races.cu:124", "asynchronously reads"}},
		{"race_blocks", 3, 32, 0, []string{"another block", "races.cu:131"}},
		{"race_last", 2, 32, 128, []string{"another block", "races.cu:136", "races.cu:144"}},
		{"race_wgmma_fence", 1, 128, 18 << 10, []string{"wgmma.cu:9", "wgmma.cu:14", "without a fence"}},
		{"race_wgmma_wait", 1, 128, 18 << 10, []string{"wgmma.cu:27", "still reads", "wgmma.cu:31"}},
	} {
		for n := range int32(2) {
			for order := range 2 { // forwards and backwards
				d := Emulated(t, Options{Sources: "testdata", Races: true})
				d.Launches += order
				a := raceArgs{upload(t, d, make([]float32, 1024)), upload(t, d, make([]float32, 1024)),
					upload(t, d, make([]uint32, 16)), n}
				call(t, d, c.kernel, c.grid, c.threads, c.bytes, a)
				err := d.Wait()
				if n == 1 {
					if err != nil {
						t.Errorf("%s, which is right: %v", c.kernel, err)
					}
					continue
				}
				for _, want := range c.want {
					if strings.Contains(want, ".cu:") && !lines {
						continue
					}
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error %v, want one with %q", c.kernel, err, want)
					}
				}
			}
		}
	}
}

// TestOverlap: a launch that may begin before the one before it has ended must wait before it writes what that writes.
func TestOverlap(t *testing.T) {
	for _, c := range []struct{ early, waits, between, bad bool }{
		{true, false, false, true}, {true, true, false, false}, {false, false, false, false}, {true, false, true, false},
	} {
		d := Emulated(t, Options{Sources: "testdata", Races: true})
		a := raceArgs{out: upload(t, d, make([]float32, 32))}
		if c.waits {
			a.n = 1
		}
		call(t, d, "race_before", 1, 32, 0, a)
		if c.between {
			d.Fill(a.out, 0, 4)
		}
		k, err := d.Kernel(named("race_after"))
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(&gpu.Launch{Kernel: k, Name: "race_after", Args: bytesOf([]raceArgs{a}),
			Config: gpu.Config{Grid: [3]int{1, 1, 1}, Threads: 32, Early: c.early}})
		err = d.Wait()
		if bad := err != nil && strings.Contains(err.Error(), "a launch that may still run wrote"); bad != c.bad {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
