package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/chat"
	"strobe/internal/dialog"
	"strobe/internal/engine"
	"strobe/internal/platform"
	"strobe/internal/sample/grammar"
	"strobe/internal/speculate"
	"strobe/internal/termtext"
	"strobe/internal/tokenizer"
)

type runOptions struct {
	modelFlags
	sampleFlags
	prompt, file string
	raw          bool
	n            int
	verbose      bool
	stops        []string
	system       string
	images       []string
	schema       string
	gbnf         string
	json         bool
	ubatch       int
	ignoreEOS    bool
}

// continued is the longest text of a model without a chat template if nothing else is asked for: such models seldom end
// by themselves.
const continued = 256

const ubatchHelp = "tokens of a prompt that one pass reads (default: as the device likes; beside other requests on a GPU as many as take 45 ms)"

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
	f.IntVarP(&opt.n, "predict", "n", 0,
		"most tokens to generate; 0 is no limit (default: until the model ends; 256 without a chat template)")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "show what was loaded and what the controller did")
	f.StringVar(&opt.system, "system", "", "message of the system, before the prompt")
	f.StringArrayVar(&opt.images, "image", nil, "image file that the prompt is about; may be given again")
	f.StringVar(&opt.schema, "json-schema", "",
		"the answer is JSON that fits this schema: JSON text or the name of a file")
	f.StringVar(&opt.gbnf, "grammar", "", "the answer fits this grammar (GBNF): its text or the name of a file")
	f.BoolVar(&opt.json, "json", false, "print the answer with its reason and counts as one JSON object")
	f.BoolVar(&opt.ignoreEOS, "ignore-eos", false, "go on after the model has ended its text, up to --predict tokens")
	f.IntVar(&opt.ubatch, "ubatch-size", 0, ubatchHelp)
	f.StringArrayVar(&opt.stops, "stop", nil, "end the text before this string; may be repeated")
	return cmd
}

func runPrompt(cmd *cobra.Command, opt *runOptions) error {
	if opt.prompt == "" && opt.file == "" && isTerminal(cmd.InOrStdin()) && isTerminal(cmd.OutOrStdout()) {
		return chatInstead(cmd)
	}
	switch {
	case opt.n < 0:
		return usagef("--predict %d: want 0 or more", opt.n)
	case opt.ubatch < 0:
		return usagef("--ubatch-size %d: want 0 or more", opt.ubatch)
	case opt.raw && opt.images != nil:
		return usagef("--raw continues the text as it is; --image belongs to a conversation")
	case opt.raw && opt.system != "":
		return usagef("--raw continues the text as it is; --system belongs to a conversation")
	case opt.schema != "" && opt.gbnf != "":
		return usagef("give --json-schema or --grammar, not both")
	}
	guide, err := opt.grammar()
	if err != nil {
		return err
	}
	set := dialog.Settings{MaxTokens: opt.n, Stops: opt.stops, IgnoreEnd: opt.ignoreEOS}
	if set.Drafting, err = opt.spec(); err != nil {
		return err
	}
	if set.Sampling, err = opt.params(0); err != nil {
		return err
	}
	text, err := opt.promptText(cmd)
	if err != nil {
		return err
	}
	loaded, err := opt.load()
	if err != nil {
		return err
	}
	loaded.Sampling.Apply(&set.Sampling)
	given := givenSampling(cmd.Flags(), &opt.Params)
	given.Apply(&set.Sampling)
	if opt.verbose {
		fmt.Fprintln(cmd.ErrOrStderr(), loaded.Summary())
	}
	m := dialog.New(loaded, engine.Config{Parallel: 1, Context: opt.ctx, CacheBytes: -1,
		Chunk: cmp.Or(opt.ubatch, loaded.Chunk())})
	defer m.Close()
	if err := opt.tooLong(loaded, text); err != nil {
		return err
	}
	if !opt.raw && !m.Format().Converses() {
		infof(cmd, "note: the model has no chat template, so it continues the text")
		if !cmd.Flags().Changed("predict") {
			set.MaxTokens = continued
		}
	}
	content, err := withImages(loaded, text, opt.images)
	if err != nil {
		return err
	}
	messages := []chat.Message{{Role: "user", Content: content}}
	if opt.system != "" {
		messages = append([]chat.Message{{Role: "system", Content: opt.system}}, messages...)
	}
	how := dialog.Options{Whole: !opt.json, Context: m.Engine().Config().Context, Done: cmd.Context().Done()}
	if guide != nil {
		no := false
		how.Thinking = &no // the grammar is that of the answer
		set.Constraint = guide.NewMatcher(vocabulary(loaded.Tokenizer))
	}
	p, err := m.Format().Prompt(messages, opt.raw, how)
	if err != nil {
		return err
	}
	if opt.raw && opt.prefill.scorer != "" && p.Shortened.Seen == 0 {
		infof(cmd, "note: the prompt has control tokens, so it is read whole")
	}
	a, err := m.Answer(cmd.Context(), p, set)
	if err != nil {
		return err
	}
	slow := tell(cmd, func() string { return reading(a.Progress()) })
	defer slow.end()
	inLine := false // the text so far does not end with a line feed
	show := func(p dialog.Piece) error {
		slow.end()
		if err := cmd.Context().Err(); err != nil { // also while there is always more to show
			return err
		}
		if p.Text != "" {
			inLine = !strings.HasSuffix(p.Text, "\n")
		}
		if isTerminal(cmd.OutOrStdout()) {
			p.Text = termtext.Lines(p.Text)
		}
		_, err := io.WriteString(cmd.OutOrStdout(), p.Text)
		return err
	}
	if opt.json {
		show = nil
	}
	if err := a.Wait(show); err != nil {
		if inLine { // what follows is a line of its own
			fmt.Fprintln(cmd.OutOrStdout())
		}
		return err
	}
	if opt.json {
		err = printAnswer(cmd.OutOrStdout(), a)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	slow.end()
	if r := a.Result(); r.Reason == engine.ReasonLength && (opt.n == 0 || r.Generated < opt.n) {
		infof(cmd, "%s", cutNote(r, m.Engine()))
	}
	if !isQuiet(cmd) {
		drafts := len(loaded.Drafters()) > 0 && set.Drafting.Draft != speculate.Off
		fmt.Fprintln(cmd.ErrOrStderr(), shortened(a.Result())+summary(&a.Result().Stats, drafts))
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
		if _, err := lookUp(args[0]); err != nil {
			return err
		}
		if err := cmd.Flags().Set("model", args[0]); err != nil {
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
		return cmd.Flags().Set("prompt", args[0])
	}
	return nil
}

// promptText reads the prompt from where the flags say.
func (o *runOptions) promptText(cmd *cobra.Command) (string, error) {
	switch {
	case o.prompt != "" && o.file != "":
		return "", usagef("give the prompt with -p or -f, not both")
	case o.prompt != "":
		return o.prompt, nil
	case o.file == "" || o.file == "-":
		b, err := readInput(cmd)
		return string(b), err
	}
	b, err := platform.ReadFile(o.file, maxInput)
	return string(b), err
}

// tooLong refuses a prompt that cannot fit the context, whatever its tokens are, before they are looked for: that takes
// a long time for hundreds of megabytes.
func (m *modelFlags) tooLong(e *engine.Model, prompt string) error {
	if m.prefill.scorer != "" && m.prefill.mode != "off" {
		return nil // it shortens the prompt
	}
	longest := 0
	for id := range e.Tokenizer.Size() {
		longest = max(longest, len(e.Tokenizer.Piece(int32(id), true)))
	}
	context := cmp.Or(m.ctx, e.Target.Context)
	if most := context * longest; len(prompt) > most {
		return fmt.Errorf("the prompt has %d bytes; the context of %d tokens holds at most %d", len(prompt), context, most)
	}
	return nil
}

// grammar compiles what the answer has to fit; nil for anything.
func (o *runOptions) grammar() (*grammar.Grammar, error) {
	text := func(name, value, begins string) (string, error) {
		if strings.ContainsAny(value, begins) {
			return value, nil
		}
		b, err := platform.ReadFile(value, platform.MaxText)
		if err != nil {
			return "", usagef("--%s: %w", name, err)
		}
		return string(b), nil
	}
	switch {
	case o.schema != "":
		s, err := text("json-schema", o.schema, "{")
		if err != nil {
			return nil, err
		}
		g, err := grammar.CompileLoose([]byte(s))
		if err != nil {
			return nil, usagef("--json-schema: %w", err)
		}
		return g, nil
	case o.gbnf != "":
		s, err := text("grammar", o.gbnf, "=")
		if err != nil {
			return nil, err
		}
		g, err := grammar.CompileGBNF(s)
		if err != nil {
			return nil, usagef("--grammar: %w", err)
		}
		return g, nil
	}
	return nil, nil
}

// vocabulary is what grammars may write: no control tokens.
func vocabulary(tok *tokenizer.Tokenizer) *grammar.Vocab {
	pieces := make([][]byte, tok.Size())
	for id := range pieces {
		pieces[id] = tok.Piece(int32(id), false)
	}
	return grammar.NewVocab(pieces, tok.EOG())
}

// printAnswer writes an answer for programs.
func printAnswer(w io.Writer, a *dialog.Answer) error {
	m, r := a.Message(), a.Result()
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Text            string  `json:"text"`
		Reasoning       string  `json:"reasoning,omitempty"`
		Reason          string  `json:"reason"`
		PromptTokens    int     `json:"prompt_tokens"`
		SeenTokens      int     `json:"seen_tokens,omitempty"` // before the prompt was shortened
		Tokens          int     `json:"tokens"`
		TokensPerSecond float64 `json:"tokens_per_second"`
		Drafted         int     `json:"drafted"`
		Accepted        int     `json:"accepted"`
		Passes          int     `json:"passes"`
	}{a.Text(), m.Reasoning, r.Reason.String(), r.Prompt, r.Seen, r.Generated, r.Stats.Speed(),
		r.Stats.Guessed, r.Stats.Accepted,
		r.Stats.Rounds})
}

// cutNote says why an answer was cut.
func cutNote(r *engine.Result, e *engine.Engine) string {
	if n := e.Config().Context; r.Prompt+r.Generated >= n {
		return fmt.Sprintf("cut: the context of %d tokens is full", n)
	}
	return "cut after " + count(r.Generated, "token")
}

// summary is the last line of a run. drafts says whether someone could have drafted.
func summary(st *speculate.Stats, drafts bool) string {
	s := fmt.Sprintf("prompt %s, %.1f tokens/s; generated %s, %.1f tokens/s", count(st.Prompt, "token"), st.PromptSpeed(),
		count(st.Tokens, "token"), st.Speed())
	if st.Guessed > 0 {
		s += fmt.Sprintf("; %.2f tokens per pass", st.Mean())
		if up := st.SpeedUp(); up > 0 {
			s += fmt.Sprintf(", about %.2fx plain decoding", up)
		}
		s += fmt.Sprintf("; accepted by position %s", st.Bars())
	}
	if drafts && st.Paused() {
		s += "; drafting paused, it did not pay"
	}
	if st.Cold {
		s += "; the drafter had no context"
	}
	if st.DraftErr != nil {
		s += fmt.Sprintf("; the drafter failed: %v", st.DraftErr)
	}
	return s
}
