package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"strobe"
	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/speculate"
)

type runOptions struct {
	modelFlags
	sampleFlags
	prompt, file string
	raw          bool
	n            int
	verbose      bool
	stops        []string
}

func newRunCmd() *cobra.Command {
	var opt runOptions
	cmd := &cobra.Command{
		Use:   "run [MODEL] [PROMPT]",
		Short: "Generate text from a prompt",
		Long: `Run loads a model, generates text from a prompt and streams it to standard
output. The model may be the name of one, which is downloaded when it is used for the first time. The prompt is
an argument or comes from -p, from a file with -f, or from standard input. A model with a chat
template answers the prompt as a message; --raw continues the text instead.

The last line (on standard error) shows tokens per second for prompt and generation and, when
drafts were used, how many tokens each pass yielded. Speculation never changes the text.`,
		Example: `  strobe run qwen3.5-4b "Why is the sky blue?"
  strobe run unsloth/Qwen3.5-4B-GGUF:Q8_0 -p "Why is the sky blue?"
  strobe run -m model.gguf --raw -p "package main" -n 200 --temp 0
  strobe run -m target.gguf -d drafter.gguf -f prompt.txt`,
		Args: opt.arguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPrompt(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0.8)
	f := cmd.Flags()
	f.StringVarP(&opt.prompt, "prompt", "p", "", "prompt text")
	f.StringVarP(&opt.file, "file", "f", "", "file with the prompt; - is standard input")
	f.BoolVar(&opt.raw, "raw", false, "continue the text as it is, without the chat template; control tokens in it count")
	f.IntVarP(&opt.n, "predict", "n", 0, "most tokens to generate (default: until the model ends or the context is full)")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "show what was loaded and what the controller did")
	f.StringArrayVar(&opt.stops, "stop", nil, "end the text before this string; may be repeated")
	return cmd
}

func runPrompt(cmd *cobra.Command, opt *runOptions) error {
	text, err := opt.promptText(cmd.InOrStdin())
	if err != nil {
		return err
	}
	set := strobe.Settings{MaxTokens: opt.n, Stops: opt.stops}
	if set.Drafting, err = opt.spec(); err != nil {
		return err
	}
	if set.Sampling, err = opt.params(0); err != nil {
		return err
	}
	loaded, err := opt.load()
	if err != nil {
		return err
	}
	if opt.verbose {
		fmt.Fprintln(cmd.ErrOrStderr(), loaded.Summary())
	}
	m := strobe.New(loaded, engine.Config{Parallel: 1, Context: opt.ctx, Chunk: loaded.Chunk(), CacheBytes: -1})
	defer m.Close()
	p, err := m.Format().Prompt([]chat.Message{{Role: "user", Content: text}}, opt.raw, dialog.Options{Whole: true})
	if err != nil {
		return err
	}
	a, err := m.Answer(cmd.Context(), p, set)
	if err != nil {
		return err
	}
	if err := a.Wait(func(p strobe.Piece) error {
		_, err := io.WriteString(cmd.OutOrStdout(), p.Text)
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout())
	if !isQuiet(cmd) {
		fmt.Fprintln(cmd.ErrOrStderr(), summary(&a.Result().Stats))
	}
	if opt.verbose {
		m.Close() // whoever runs the model writes down what passes cost
		fmt.Fprintln(cmd.ErrOrStderr(), loaded.Runner.Describe())
	}
	return nil
}

// arguments takes a model and a prompt from the command line. A single argument is a prompt if it has a space in it or
// the model is known already, and the model otherwise.
func (o *runOptions) arguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && o.model == "" && (len(args) > 1 || !strings.ContainsAny(args[0], " \t\n")) {
		o.model = args[0]
		if _, err := lookUp(o.model); err != nil {
			return err
		}
		args = args[1:]
	}
	if len(args) > 1 {
		return usagef("run: unexpected argument %q; a prompt of several words needs quotes", args[1])
	}
	if len(args) == 1 {
		if o.prompt != "" {
			return usagef("give the prompt as an argument or with -p, not both")
		}
		o.prompt = args[0]
	}
	return nil
}

// promptText reads the prompt from where the flags say.
func (o *runOptions) promptText(stdin io.Reader) (string, error) {
	switch {
	case o.prompt != "" && o.file != "":
		return "", usagef("give the prompt with -p or -f, not both")
	case o.prompt != "":
		return o.prompt, nil
	case o.file == "" || o.file == "-":
		b, err := io.ReadAll(stdin)
		return string(b), err
	}
	b, err := os.ReadFile(o.file)
	return string(b), err
}

// summary is the last line of a run.
func summary(st *speculate.Stats) string {
	s := fmt.Sprintf("prompt %d tokens, %.1f tokens/s; generated %d tokens, %.1f tokens/s", st.Prompt, st.PromptSpeed(),
		st.Tokens, st.Speed())
	if st.Guessed > 0 {
		s += fmt.Sprintf("; %.2f tokens per pass", st.Mean())
		if up := st.SpeedUp(); up > 0 {
			s += fmt.Sprintf(", about %.2fx plain decoding", up)
		}
		s += fmt.Sprintf("; accepted by position %s", st.Bars())
	}
	if st.Cold {
		s += "; the drafter had no context"
	}
	if st.DraftErr != nil {
		s += fmt.Sprintf("; the drafter failed: %v", st.DraftErr)
	}
	return s
}
