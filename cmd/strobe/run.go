package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"strobe/chat"
	"strobe/engine"
	"strobe/speculate"
	"strobe/tokenizer"
)

var negInf = float32(math.Inf(-1))

// promptChunk is how many prompt tokens run in one pass: enough to use the processor well, few
// enough that Ctrl-C is answered soon.
const promptChunk = 128

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
		Use:   "run -m FILE [-p TEXT | -f FILE]",
		Short: "Generate text from a prompt",
		Long: `Run loads a model, generates text from a prompt and streams it to standard
output. The prompt comes from -p, from a file with -f, or from standard input. A model with a chat
template answers the prompt as a message; --raw continues the text instead.

The last line (on standard error) shows tokens per second for prompt and generation and, when
drafts were used, how many tokens each pass yielded. Speculation never changes the text.`,
		Example: `  strobe run -m model.gguf -p "Why is the sky blue?"
  strobe run -m model.gguf --raw -p "package main" -n 200 --temp 0
  strobe run -m target.gguf -d drafter.gguf -f prompt.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPrompt(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0.8)
	f := cmd.Flags()
	f.StringVarP(&opt.prompt, "prompt", "p", "", "prompt text")
	f.StringVarP(&opt.file, "file", "f", "", "file with the prompt; - is standard input")
	f.BoolVar(&opt.raw, "raw", false, "continue the text as it is, without the chat template")
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
	m, err := opt.load()
	if err != nil {
		return err
	}
	defer m.Close()
	quiet, _ := cmd.Flags().GetBool("quiet")
	if opt.verbose {
		fmt.Fprintln(cmd.ErrOrStderr(), m.Summary())
	}
	ids, err := encodePrompt(m, text, opt.raw)
	if err != nil {
		return err
	}
	g := generation{model: m, prompt: ids, max: opt.n, ctx: opt.ctx, stops: opt.stops, out: cmd.OutOrStdout()}
	if g.spec, err = opt.spec(); err != nil {
		return err
	}
	sampler, err := opt.sampler(m)
	if err != nil {
		return err
	}
	sampler.Prime(ids)
	g.sampler = sampler
	st, err := g.run(cmd.Context())
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout())
	if !quiet {
		fmt.Fprintln(cmd.ErrOrStderr(), summary(&st))
	}
	if opt.verbose {
		fmt.Fprintln(cmd.ErrOrStderr(), m.Runner.Describe())
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

// encodePrompt turns text into tokens, through the model's chat template unless raw is set.
func encodePrompt(m *engine.Model, text string, raw bool) ([]int32, error) {
	if raw || m.Template == "" {
		ids := m.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if len(ids) == 0 {
			return nil, fmt.Errorf("the prompt is empty")
		}
		return ids, nil
	}
	return encodeChat(m, []chat.Message{{Role: "user", Content: text}})
}

// encodeChat renders messages with the model's template and asks for an answer.
func encodeChat(m *engine.Model, msgs []chat.Message) ([]int32, error) {
	t, err := chat.ParseTemplate(m.Path, m.Template)
	if err != nil {
		return nil, err
	}
	opt := chat.Options{AddGenerationPrompt: true}
	if id, ok := m.Tokenizer.BOS(); ok {
		opt.BOS = m.Tokenizer.Text(id)
	}
	if id, ok := m.Tokenizer.EOS(); ok {
		opt.EOS = m.Tokenizer.Text(id)
	}
	text, err := t.Render(msgs, opt)
	if err != nil {
		return nil, err
	}
	ids := m.Tokenizer.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	// Some templates write the beginning-of-text token themselves, others leave it to the tokenizer.
	if bos, ok := m.Tokenizer.BOS(); ok && m.Tokenizer.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids, nil
}

// generation is one run of a model on a prompt, written to out as it comes.
type generation struct {
	model   *engine.Model
	prompt  []int32
	max     int
	ctx     int
	stops   []string
	spec    speculate.Options
	sampler speculate.Sampler
	out     io.Writer
	accept  func(text []byte, drafted bool) // instead of out, when set
}

func (g *generation) run(ctx context.Context) (speculate.Stats, error) {
	m := g.model
	c := speculate.Config{
		Options: g.spec, Seq: m.Target.NewSeq(), Prompt: g.prompt, Sampler: g.sampler, Context: g.ctx, Max: g.max,
	}
	defer c.Seq.Close()
	c.Contexts = m.Runner.NewContexts()
	defer speculate.CloseContexts(c.Contexts)
	text := engine.NewText(m.Tokenizer, g.stops)
	var werr error
	emit := func(b []byte, drafted bool) {
		if g.accept != nil {
			g.accept(b, drafted)
		} else if werr == nil && len(b) > 0 {
			_, werr = g.out.Write(b)
		}
	}
	c.Emit = func(t speculate.Token) bool {
		if m.Tokenizer.IsEOG(t.ID) {
			return false
		}
		b, done := text.Push(t.ID)
		emit(b, t.Drafted)
		return !done && werr == nil
	}
	s, err := m.Runner.NewStream(c)
	if err != nil {
		return speculate.Stats{}, err
	}
	defer s.Close()
	for !s.Done() {
		if err := ctx.Err(); err != nil {
			return s.Stats(), err
		}
		if err := m.Runner.Step([]*speculate.Stream{s}, promptChunk); err != nil {
			return s.Stats(), err
		}
	}
	emit(text.Flush(), false)
	if werr != nil {
		return s.Stats(), werr
	}
	return s.Stats(), s.Err()
}

// summary is the last line of a run.
func summary(st *speculate.Stats) string {
	s := fmt.Sprintf("prompt %d tokens, %.1f tokens/s; generated %d tokens, %.1f tokens/s", st.Prompt, st.PromptSpeed(), st.Tokens, st.Speed())
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
