package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"strobe/internal/device"
	"strobe/internal/engine"
)

var listDevices = device.List // another one in tests

func newDevicesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "devices",
		Short: "List what can run models on this machine",
		Long: `Devices lists what can run models on this machine, by the names that --device takes: NVIDIA GPUs with their
memory, what Vulkan has with driver and self-test, and the processor. --device auto, the default, takes the first GPU on which a model fits, or several. What
does not fit runs on the processor: experts first, then layers.`,
		Example: `  strobe devices
  strobe run --device cuda:0 -m model.gguf -p "why is the sky blue"
  strobe serve --device cuda:0,cuda:1 -m model.gguf`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, d := range listDevices() {
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
