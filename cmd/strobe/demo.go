package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/engine"
	"strobe/internal/termtext"
)

type demoOptions struct {
	modelFlags
	prompt, file string
	raw          bool
	n            int
	record       string
	still        bool
}

// demoCode is what the built-in model is good at: continuing Go code. It writes correct methods for this cache, and
// demoTokens is where the last of them ends (a greedy continuation has the same tokens on every CPU).
const (
	demoCode = `package cache

import "sync"

// Cache is a map that is safe for concurrent use.
type Cache[K comparable, V any] struct {
	mu    sync.RWMutex
	items map[K]V
}

// New returns an empty cache.
func New[K comparable, V any]() *Cache[K, V] {
	return &Cache[K, V]{items: make(map[K]V)}
}

// Get returns the value of a key and whether it is present.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.items[key]
	return v, ok
}

// Set stores a value under a key.
func (c *Cache[K, V]) Set(key K, value V) {
`
	demoTokens = 140
)

// demoQuestion is for models that answer.
const demoQuestion = "Write a Go function that returns the n most frequent words of a text, and explain how it works."

func newDemoCmd() *cobra.Command {
	var opt demoOptions
	cmd := &cobra.Command{
		Use:   "demo [MODEL] [-d DRAFTER]",
		Short: "See plain and drafted decoding race each other",
		Long: `Demo generates the same text twice, side by side: plainly, one token per pass, and with drafts that are
verified several tokens at a time. Tokens that were drafted and accepted are coloured. At the end it shows the
speeds and proves that both texts are the same.

The two take turns on the same processor, a twentieth of a second each, and each one's clock runs only in its own
turns: what else the machine does slows both alike. Without a terminal the result is printed as
plain text.`,
		Example: `  strobe demo -m target.gguf -d drafter.gguf
  strobe demo -m target.gguf -d drafter.gguf -p "Explain how a hash table works." -n 400
  strobe demo -m target.gguf -d drafter.gguf --record demo.svg`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	f := cmd.Flags()
	f.StringVarP(&opt.prompt, "prompt", "p", "", "prompt text (default: one that suits the model)")
	f.StringVarP(&opt.file, "file", "f", "", "file with the prompt; - is standard input")
	f.BoolVar(&opt.raw, "raw", false, "continue the text as it is, without the chat template; control tokens in it count")
	f.IntVarP(&opt.n, "predict", "n", 256, "most tokens to generate")
	f.StringVar(&opt.record, "record", "", "also write the race to this .svg file, as a picture that plays again and again")
	f.BoolVar(&opt.still, "still", false, "with --record: a picture of the end that does not move")
	return cmd
}

func runDemo(cmd *cobra.Command, opt *demoOptions) error {
	if opt.n < 2 {
		return usagef("--predict %d: a race needs at least 2 tokens", opt.n)
	}
	if opt.still && opt.record == "" {
		return usagef("--still needs --record FILE.svg")
	}
	if opt.record != "" && !strings.EqualFold(filepath.Ext(opt.record), ".svg") {
		return usagef("--record %s: the picture is SVG; want a name that ends in .svg", opt.record)
	}
	run := runOptions{prompt: opt.prompt, file: opt.file}
	m, err := opt.load()
	if err != nil {
		return err
	}
	defer m.Close()
	text, raw := demoCode, true
	switch {
	case opt.prompt != "" || opt.file != "":
		if text, err = run.promptText(cmd); err != nil {
			return err
		}
		if err := opt.tooLong(m, text); err != nil {
			return err
		}
		raw = opt.raw
	case m.Template != "" && !opt.raw:
		text, raw = demoQuestion, false
	case !cmd.Flags().Changed("predict"):
		opt.n = demoTokens
	}
	infof(cmd, "%s: reading the weights and the prompt", modelName(m))
	r, err := newRace(m, opt, text, raw)
	if err != nil {
		return err
	}
	defer r.close()
	out := cmd.OutOrStdout()
	if canDraw(out) && isTerminal(cmd.InOrStdin()) {
		err = demoScreen(cmd, r)
	} else if err = r.run(cmd.Context(), func() {}); err == nil {
		err = r.print(out)
	}
	if errors.Is(err, errQuit) {
		return nil
	}
	if err != nil {
		return err
	}
	if opt.record != "" {
		if err := os.WriteFile(opt.record, r.svg(!opt.still), 0o644); err != nil {
			return err
		}
		infof(cmd, "written: %s", opt.record)
	}
	if !r.identical() {
		return fmt.Errorf("the texts differ: drafting changed what the model says, which is a defect")
	}
	return nil
}

// demoTitle names the model and the machine.
func demoTitle(m *engine.Model) string {
	return fmt.Sprintf("strobe demo: %s on %s", modelName(m), m.Backend().Name())
}

// modelName is what people call a model: the name in its file, or that of the file.
func modelName(m *engine.Model) string {
	switch {
	case m.Target.Name != "":
		return termtext.Printable(m.Target.Name)
	case m.Path != "":
		return strings.TrimSuffix(filepath.Base(m.Path), ".gguf")
	}
	return m.Target.Arch
}
