package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"strobe/internal/dialog"
	"strobe/internal/engine"
)

type chatOptions struct {
	modelFlags
	sampleFlags
	n           int
	system      string
	load        string
	raw         bool
	colorDrafts bool
	noHistory   bool
	hideStats   bool
	ubatch      int
}

func newChatCmd() *cobra.Command {
	var opt chatOptions
	cmd := &cobra.Command{
		Use:   "chat [MODEL] [-d DRAFTER]",
		Short: "Talk to a model in the terminal",
		Long: `Chat is a conversation with a model.

  Enter              sends the message
  Alt-Enter, Ctrl-J  begin a new line; so does a backslash at the end of a line
  Up, Down           go through earlier messages
  Ctrl-C             stops an answer; the conversation goes on
  Ctrl-D             leaves, as does /quit
  /help              lists the commands: save, load, retry, change settings ...

The conversation stays in the cache between turns, so a turn costs only what is new. A model without a chat
template continues the text instead of answering; --raw asks for that. When input or output is not a terminal,
chat reads and writes plain lines.`,
		Example: `  strobe chat qwen3.5-4b
  strobe chat -m target.gguf -d drafter.gguf --color-drafts
  echo "Why is the sky blue?" | strobe chat -m model.gguf`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runChat(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0.8)
	f := cmd.Flags()
	f.IntVarP(&opt.n, "predict", "n", 0,
		"most tokens per answer (default: until the model ends; 256 without a chat template)")
	f.IntVar(&opt.ubatch, "ubatch-size", 0, ubatchHelp)
	f.StringVar(&opt.system, "system", "", "system message")
	f.StringVar(&opt.load, "load", "", "continue a conversation that /save wrote")
	f.BoolVar(&opt.raw, "raw", false, "continue the text as it is, without the chat template; control tokens in it count")
	f.BoolVar(&opt.colorDrafts, "color-drafts", false, "colour the tokens that were drafted and accepted")
	f.BoolVar(&opt.noHistory, "no-history", false, "neither read nor write the file of earlier messages")
	f.BoolVar(&opt.hideStats, "no-stats", false, "no line of numbers after each answer")
	return cmd
}

func runChat(cmd *cobra.Command, opt *chatOptions) error {
	opt.prefill.log = func(string) {} // the screen belongs to the conversation
	m, err := opt.modelFlags.load()
	if err != nil {
		return err
	}
	// The loop of the engine owns the model from here on.
	s := dialog.New(m, opt.config(m))
	t, err := newTalk(s, cmd, opt)
	if err != nil {
		s.Close()
		return err
	}
	defer func() { t.Close() }() // the model of that time
	if opt.load != "" {
		if err := t.loadFile(opt.load); err != nil {
			return err
		}
	}
	stdin, stdout := cmd.InOrStdin(), cmd.OutOrStdout()
	if isTerminal(stdin) && canDraw(stdout) {
		return chatScreen(cmd, t)
	}
	return chatLines(cmd, t)
}

// config is how the engine of a chat runs a model.
func (o *chatOptions) config(m *engine.Model) engine.Config {
	return engine.Config{Parallel: 1, Context: o.ctx, Chunk: cmp.Or(o.ubatch, m.Chunk())}
}

// describe names the model, its device and its drafters.
func (t *talk) describe() string {
	m := t.model()
	s := modelName(m) + " on " + m.Backend().Name()
	for _, d := range m.Drafters() {
		s += ", drafter " + d.Name()
	}
	if t.continues() {
		s += "\nThe model has no chat template: it continues what you write."
	}
	return s
}

// greeting says what was loaded and how to begin.
func (t *talk) greeting() string {
	s := t.describe() + "\n"
	if t.opt.model == "" {
		s += "It is the one that is built in. \"strobe chat qwen3.5-4b\" fetches one that talks, " +
			"\"strobe list --known\" lists others.\n"
	}
	if n := len(t.messages); n > 0 {
		s += fmt.Sprintf("The conversation has %s.\n", count(n, "message"))
	}
	return s + "/help lists the commands, Ctrl-D leaves."
}
