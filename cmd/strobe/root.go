package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// commands lists every subcommand in the order in which help shows them.
// A new command is one file with its constructor and one line here.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newRunCmd(),
		newChatCmd(),
		newDemoCmd(),
		newServeCmd(),
		newCheckCmd(),
		newBenchCmd(),
		newDevicesCmd(),
		newLogitsCmd(),
		newInspectCmd(),
		newConvertCmd(),
		newQuantizeCmd(),
		newSynthCmd(),
		newTokenizeCmd(),
		newDetokenizeCmd(),
		newPullCmd(),
		newListCmd(),
		newShowCmd(),
		newPsCmd(),
		newRmCmd(),
		newVersionCmd(),
	}
}

// Exit codes of the process.
const (
	exitOK          = 0
	exitError       = 1   // the command could not do its work
	exitUsage       = 2   // the command line was wrong; nothing was done
	exitInterrupted = 130 // SIGINT or SIGTERM, as shells report it
)

// run executes one command line and returns the exit code. Results go to stdout,
// everything written for people (progress, warnings, errors) to stderr.
// Cancelling ctx, or SIGINT/SIGTERM, ends the command at its next step; a second signal ends the process at once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// A reader that goes away ("strobe inspect FILE | head") must end us with an
	// error from Write, not with a signal that skips clean-up of temporary files.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // signals have their usual effect again

	root, started := newRootCmd()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)

	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, syscall.EPIPE):
		return exitOK
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		fmt.Fprintln(stderr, "strobe: interrupted")
		return exitInterrupted
	case errors.As(err, &usage) || !*started:
		fmt.Fprintf(stderr, "strobe: %s\n", oneLine(err))
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", helpPath(root, args))
		return exitUsage
	}
	fmt.Fprintf(stderr, "strobe: %s\n", oneLine(err))
	return exitError
}

// newRootCmd builds the command tree. The returned flag becomes true when a
// command's own code begins: errors before that are mistakes on the command line.
func newRootCmd() (root *cobra.Command, started *bool) {
	root = &cobra.Command{
		Use:   "strobe",
		Short: "Run large language models on your own machine",
		Long: `Strobe runs large language models on your own machine.

It reads GGUF files (the format of llama.cpp), makes them from Hugging Face
checkpoints, and speeds up generation by drafting whole blocks of tokens with a
small DFlash model and verifying them in one pass of the large one.`,
		Example: `  strobe inspect model.gguf                     what is in this file?
  strobe convert Qwen3-0.6B/ -o qwen3.gguf      make a GGUF from a checkpoint
  strobe quantize qwen3.gguf small.gguf Q4_K_M  make it smaller`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			msg := fmt.Sprintf("unknown command %q", args[0])
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				msg += fmt.Sprintf(", did you mean %q?", s[0])
			}
			return usageError{errors.New(msg)}
		},
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().BoolP("quiet", "q", false, "print nothing but results and errors")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(commands()...)

	started = new(bool)
	markStart(root, started)
	return root, started
}

func markStart(cmd *cobra.Command, started *bool) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			*started = true
			return inner(c, args)
		}
	}
	for _, sub := range cmd.Commands() {
		markStart(sub, started)
	}
}

// usageError marks an error in the command line itself (exit code 2).
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// positional accepts exactly the named arguments and says which one is missing.
func positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s: missing argument %s", cmd.Name(), strings.Join(names[len(args):], " "))
		}
		if len(args) > len(names) {
			return usagef("%s: unexpected argument %q", cmd.Name(), args[len(names)])
		}
		return nil
	}
}

// helpPath is the command whose help explains a usage error in args.
func helpPath(root *cobra.Command, args []string) string {
	if cmd, _, err := root.Find(args); err == nil {
		return cmd.CommandPath()
	}
	return root.CommandPath()
}

// oneLine keeps multi-line errors (from wrapped libraries) on one line.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}
