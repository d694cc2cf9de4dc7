package main

import (
	"testing"

	"github.com/spf13/cobra"

	"strobe/internal/engine"
)

// TestPlacementFlags: what the flags that place a model mean, and what they refuse.
func TestPlacementFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		want engine.Options
		err  string
	}{
		{"", engine.Options{Device: "auto", DraftDevice: "auto"}, ""},
		{"--device=cuda:0,cuda:1", engine.Options{Device: "cuda:0,cuda:1", DraftDevice: "auto"}, ""},
		{"--gpu-layers=0", engine.Options{Device: "auto", DraftDevice: "auto", GPULayers: -1}, ""},
		{"--gpu-layers=7", engine.Options{Device: "auto", DraftDevice: "auto", GPULayers: 7}, ""},
		{"--cpu-experts=0", engine.Options{Device: "auto", DraftDevice: "auto", CPUExperts: -1}, ""},
		{"--cpu-experts=7", engine.Options{Device: "auto", DraftDevice: "auto", CPUExperts: 7}, ""},
		{"--cpu-experts=all", engine.Options{Device: "auto", DraftDevice: "auto", CPUExperts: engine.AllExperts}, ""},
		{"--draft-device=cpu", engine.Options{Device: "auto", DraftDevice: "cpu"}, ""},
		{"--draft-gpu-layers=2", engine.Options{Device: "auto", DraftDevice: "auto", DraftGPULayers: 2}, ""},
		{"--device=tpu", engine.Options{}, `device "tpu": want auto, cpu, cuda, cuda:N, vulkan or vulkan:N`},
		{"--gpu-layers=-1", engine.Options{}, `--gpu-layers "-1": want auto or a number`},
		{"--cpu-experts=some", engine.Options{}, `--cpu-experts "some": want auto, all or a number of layers`},
		{"--draft-gpu-layers=all", engine.Options{}, `--draft-gpu-layers "all": want auto or a number`},
		{"--draft-device=tpu", engine.Options{}, `--draft-device: device "tpu": want auto, cpu, cuda, cuda:N, vulkan or vulkan:N`},
		{"--draft-device=cuda,cuda:1", engine.Options{}, `--draft-device "cuda,cuda:1": a drafter has one device`},
	} {
		var m modelFlags
		cmd := &cobra.Command{}
		m.add(cmd)
		var args []string
		if c.args != "" {
			args = []string{c.args}
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		got, err := m.options()
		if err != nil || c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: error %v, want %s", c.args, err, c.err)
			}
			continue
		}
		if got.Device != c.want.Device || got.GPULayers != c.want.GPULayers || got.CPUExperts != c.want.CPUExperts ||
			got.DraftDevice != c.want.DraftDevice || got.DraftGPULayers != c.want.DraftGPULayers {
			t.Errorf("%s: %+v", c.args, got)
		}
	}
}
