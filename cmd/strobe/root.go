package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/internal/platform"
	"strobe/internal/termtext"
)

// commands lists every subcommand in the order in which help shows them, by groups.
// A new command is one file with its constructor and one entry here.
func commands() []commandGroup {
	return []commandGroup{
		{"Every day:", []*cobra.Command{newRunCmd(), newChatCmd(), newServeCmd(), newDemoCmd()}},
		{"Models on this machine:", []*cobra.Command{newPullCmd(), newListCmd(), newShowCmd(), newRmCmd(), newPsCmd()}},
		{"Speed and health:", []*cobra.Command{newBenchCmd(), newAcceptCmd(), newDevicesCmd(), newFitCmd(), newCheckCmd()}},
		{"Model files:", []*cobra.Command{newInspectCmd(), newConvertCmd(), newQuantizeCmd(), newSynthCmd()}},
		{"To look inside:", []*cobra.Command{newTokenizeCmd(), newDetokenizeCmd(), newLogitsCmd(), newPflashCmd()}},
		{"Others:", []*cobra.Command{newConfigCmd(), newVersionCmd(), newLicensesCmd(), newManCmd()}},
	}
}

type commandGroup struct {
	title    string
	commands []*cobra.Command
}

// Exit codes of the process.
const (
	exitOK          = 0
	exitError       = 1   // the command could not do its work
	exitUsage       = 2   // the command line was wrong; nothing was done
	exitHungUp      = 129 // SIGHUP: the terminal was closed
	exitInterrupted = 130 // SIGINT, as shells report it
	exitTerminated  = 143 // SIGTERM
)

// run executes one command line and returns the exit code. Results go to stdout,
// everything written for people (progress, warnings, errors) to stderr.
// Cancelling ctx, or SIGINT/SIGTERM/SIGHUP, ends the command at its next step, or after a few seconds if that does not
// come: a file or a device may hang. A second signal ends the process at once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// A reader that goes away ("strobe inspect FILE | head") must end us with an
	// error from Write, not with a signal that skips clean-up of temporary files.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 1)
	notifyEnd(signals)
	var code atomic.Int32
	code.Store(exitInterrupted)
	go func() { // ends with this function
		select {
		case s := <-signals:
			switch s {
			case syscall.SIGTERM:
				code.Store(exitTerminated)
			case syscall.SIGHUP:
				code.Store(exitHungUp)
			}
			cancel()
		case <-ctx.Done():
		}
		signal.Stop(signals) // signals have their usual effect again
	}()

	root, started := newRootCmd()
	root.SetArgs(expand(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addHelp(root)

	limit := new(endLimit)
	limit.Store(int64(endWithin))
	err := limit.execute(context.WithValue(ctx, endLimitKey{}, limit), root)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, syscall.EPIPE):
		return exitOK
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if code.Load() == exitInterrupted {
			fmt.Fprintln(stderr, "strobe: interrupted")
		} else {
			fmt.Fprintln(stderr, "strobe: terminated")
		}
		return int(code.Load())
	case errors.As(err, &usage) || !*started:
		fmt.Fprintf(stderr, "strobe: %s\n", oneLine(err))
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", helpPath(root, args))
		return exitUsage
	}
	fmt.Fprintf(stderr, "strobe: %s\n", oneLine(err))
	return exitError
}

// notifyEnd sends the signals that ask the process to end to c. A terminal that is closed does so too, except for
// commands that were started to outlive it (nohup).
func notifyEnd(c chan<- os.Signal) {
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(c, syscall.SIGHUP)
	}
}

// endWithin is the time that commands have to end when they are interrupted, to delete what they wrote for instance.
var endWithin = 5 * time.Second

// endLimit is the same for one command, as a duration; the command's context has it.
type endLimit struct{ atomic.Int64 }

type endLimitKey struct{}

// allowEnding gives an interrupted command more time than others have.
func allowEnding(ctx context.Context, d time.Duration) {
	if l, ok := ctx.Value(endLimitKey{}).(*endLimit); ok {
		l.Store(int64(d + endWithin))
	}
}

// execute runs a command and returns its error, or that of ctx when it does not end in time after an interrupt. Its
// goroutine ends with the process then.
func (l *endLimit) execute(ctx context.Context, root *cobra.Command) error {
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Duration(l.Load())):
		return ctx.Err()
	}
}

// newRootCmd builds the command tree. The returned flag becomes true when a
// command's own code begins: errors before that are mistakes on the command line.
func newRootCmd() (root *cobra.Command, started *bool) {
	// Not cobra's own version flag: text/template, which would write it, makes the linker keep every method of every
	// type, three megabytes of them.
	var showVersion bool
	root = &cobra.Command{
		Use:   "strobe",
		Short: "Run large language models on your own machine",
		Long: `Strobe runs large language models on your own machine.

It reads GGUF files (the format of llama.cpp), makes them from Hugging Face
checkpoints, and speeds up generation by drafting whole blocks of tokens with a
small DFlash model and verifying them in one pass of the large one.`,
		Example: `  strobe chat qwen3.5-4b                     talk to a model; it is downloaded the first time
  strobe run qwen3.5-4b "Why is the sky blue?"
  strobe serve qwen3.5-4b                    OpenAI, Anthropic and Ollama APIs and a web page
  strobe list --known                        which models have a name`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || showVersion {
				return nil
			}
			msg := fmt.Sprintf("unknown command %q", args[0])
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				msg += fmt.Sprintf(", did you mean %q?", s[0])
			}
			return usageError{errors.New(msg)}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if showVersion {
				return printVersion(cmd)
			}
			if isTerminal(cmd.InOrStdin()) && isTerminal(cmd.OutOrStdout()) {
				return chatInstead(cmd)
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return nil
			}
			warnVariables(cmd)
			switch cmd.Name() {
			case "serve", // reads more from its file
				"config", "help", "completion", "version", "licenses", "man": // work whatever is in it
				return nil
			}
			_, err := fillFlags(cmd, "")
			return err
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.PersistentFlags().BoolP("quiet", "q", false, "print nothing but results and errors")
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "version for strobe")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{flagError(cmd, err)} })
	cobra.EnableCommandSorting = false
	for _, g := range commands() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.SetHelpFunc(showHelp)
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := io.WriteString(cmd.OutOrStderr(), usageText(cmd, helpWidth(cmd.OutOrStderr())))
		return err
	})
	root.SetHelpCommandGroupID("Others:")
	root.SetCompletionCommandGroupID("Others:")
	for _, c := range root.Commands() {
		c.Flags().SortFlags = false
		c.Flags().SetNormalizeFunc(alias)
	}

	started = new(bool)
	markStart(root, started)
	return root, started
}

// addHelp adds the commands help and completion, with errors for what is not there. Completion writes to what is the
// output now.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, runHelp
		case "completion":
			c.Args = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usagef("completion: there is no shell %q here; want bash, zsh, fish or powershell", args[0])
				}
				return nil
			}
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// runHelp shows the help of a command, which must be there.
func runHelp(cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 && of.HasSubCommands() {
		return usagef("help: there is no command %q", strings.Join(args, " "))
	}
	of.InitDefaultHelpFlag()
	return of.Help()
}

// suggestFlag adds the flag that may have been meant to the error of one that does not exist.
func suggestFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if s := nearest(unknown.GetSpecifiedName(), names); s != "" {
		return fmt.Errorf("%w, did you mean --%s?", err, s)
	}
	return err
}

// chatInstead opens a chat with what the flags of another command say.
func chatInstead(cmd *cobra.Command) error {
	chat, _, err := cmd.Root().Find([]string{"chat"})
	if err != nil {
		return err
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if to := chat.Flags().Lookup(f.Name); to != nil && err == nil {
			err = chat.Flags().Set(f.Name, f.Value.String())
		}
	})
	if err != nil {
		return err
	}
	chat.SetContext(cmd.Context())
	if _, err := fillFlags(chat, ""); err != nil {
		return err
	}
	return chat.RunE(chat, nil)
}

// maxInput is the size limit of prompts, conversations and lists of tokens: more than the context of any model.
const maxInput = 64 << 20

// readInput reads standard input to its end, or until the command is interrupted.
func readInput(cmd *cobra.Command) ([]byte, error) {
	if isTerminal(cmd.InOrStdin()) {
		infof(cmd, "reading from the terminal; Ctrl-D ends the text")
	}
	type input struct {
		b   []byte
		err error
	}
	read := make(chan input, 1)
	go func() { // ends with its input or the process
		b, err := platform.ReadLimited(cmd.InOrStdin(), "standard input", maxInput)
		read <- input{b, err}
	}()
	select {
	case in := <-read:
		if in.err != nil {
			return nil, in.err
		}
		return in.b, nil
	case <-cmd.Context().Done():
		return nil, cmd.Context().Err()
	}
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

// positional accepts the named arguments, those in brackets if they are there and any number of one with dots, and says
// which one is missing.
func positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		need := slices.IndexFunc(names, func(name string) bool { return name[0] == '[' })
		if need < 0 {
			need = len(names)
		}
		if len(args) < need {
			return usagef("%s: missing argument %s", cmd.Name(), strings.Join(names[len(args):need], " "))
		}
		if n := len(names); len(args) > n && !(n > 0 && strings.HasSuffix(names[n-1], "...")) {
			return usagef("%s: unexpected argument %q", cmd.Name(), args[n])
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

// oneLine keeps multi-line errors (from wrapped libraries) on one line, and what a terminal would obey visible.
func oneLine(err error) string {
	return termtext.Printable(strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}
