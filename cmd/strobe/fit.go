package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"strobe/internal/engine"
	"strobe/internal/gguf"
)

func newFitCmd() *cobra.Command {
	var m modelFlags
	var sizes, contexts string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fit",
		Short: "Say on which GPUs a model fits, with how long a context",
		Long: `Fit counts what a model with its drafter takes on a GPU: weights, memory of passes, what the driver takes for
itself, and the cache of one sequence. It needs no GPU and reads no weights. Where not everything fits, it says how many
layers do, or whose experts are left to the processor; "--kv turbo3" makes the cache five times smaller.`,
		Example: `  strobe fit -m model.gguf
  strobe fit -m model.gguf -d drafter.gguf --kv turbo3 --memory 24GiB --contexts 32768,262144`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return fit(cmd, &m, sizes, contexts, asJSON)
		},
	}
	m.add(cmd)
	f := cmd.Flags()
	f.StringVar(&sizes, "memory", "8GiB,12GiB,16GiB,24GiB,32GiB,48GiB", "memory of GPUs")
	f.StringVar(&contexts, "contexts", "8192,32768,131072,262144", "lengths of the context in tokens")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func fit(cmd *cobra.Command, m *modelFlags, sizes, contexts string, asJSON bool) error {
	var memory, tokens []int
	for word := range strings.SplitSeq(sizes, ",") {
		var size byteSize
		if err := size.Set(strings.TrimSpace(word)); err != nil || size <= 0 {
			return usagef("--memory: %q is not a size; want for instance 24GiB", word)
		}
		memory = append(memory, int(size))
	}
	for word := range strings.SplitSeq(contexts, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > 1<<24 {
			return usagef("--contexts: %q is not a number of tokens", word)
		}
		tokens = append(tokens, n)
	}
	slices.Sort(memory)
	slices.Sort(tokens)
	tokens = slices.Compact(tokens)
	if m.model == "" {
		return usagef("which model? give it with -m")
	}
	if err := m.find(); err != nil {
		return err
	}
	opt, err := m.options()
	if err != nil {
		return err
	}
	longest, err := contextOf(m.model)
	if err != nil {
		return err
	}
	if tokens = slices.DeleteFunc(tokens, func(n int) bool { return n > longest }); len(tokens) == 0 {
		tokens = []int{longest}
	}
	fits, parts, err := engine.FitTable(m.model, opt, memory, tokens)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(fits)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "weights %s, passes %s, driver %s\n\n", engine.Bytes(parts.Weights), engine.Bytes(parts.Passes),
		engine.Bytes(parts.Driver))
	head := "GPU"
	for _, n := range tokens {
		head += fmt.Sprintf("\t%d tokens", n)
	}
	fmt.Fprintln(w, head)
	for i, size := range memory {
		shown := byteSize(size)
		line := shown.String()
		for _, f := range fits[i*len(tokens):][:len(tokens)] {
			line += "\t" + fitText(f)
		}
		fmt.Fprintln(w, line)
	}
	return w.Flush()
}

// fitText is a cell of the table.
func fitText(f engine.Fit) string {
	switch {
	case f.All:
		return "fits: " + engine.Bytes(f.Need)
	case f.Layers == 0:
		return "no"
	case f.Experts > 0:
		return fmt.Sprintf("%d layers, experts of %d on the CPU", f.Layers, f.Experts)
	}
	return fmt.Sprintf("%d layers", f.Layers)
}

// contextOf is the longest context of a model.
func contextOf(path string) (int, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, _, err := f.Uint(f.Arch() + ".context_length")
	if err == nil && n == 0 {
		err = fmt.Errorf("%s: no context length", path)
	}
	return int(min(n, 1<<30)), err
}
