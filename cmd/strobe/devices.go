package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"strobe/internal/device"
	"strobe/internal/engine"
)

func newDevicesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "devices",
		Short: "List what can run models on this machine",
		Long: `Devices lists what can run models on this machine, by the names that --device takes: NVIDIA GPUs, what
Vulkan has with its driver and the result of its self-test, and the processor. --device auto, the default, takes the first
card on which a model fits; what does not fit runs on the processor, layer by layer.`,
		Example: `  strobe devices
  strobe run --device cuda:0 -m model.gguf -p "why is the sky blue"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, d := range device.List() {
				memory := ""
				switch {
				case d.Err != nil:
					memory = "cannot be used: " + d.Err.Error()
				case d.Total > 0:
					memory = fmt.Sprintf("%s of %s free", engine.Bytes(d.Free), engine.Bytes(d.Total))
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", d.Name, d.Description, memory)
			}
			return w.Flush()
		},
	}
}
