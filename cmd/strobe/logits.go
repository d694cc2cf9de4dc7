package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/draft"
	"strobe/internal/engine"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/safetensors"
)

type logitsOptions struct {
	modelFlags
	tokens, out, rounds string
	accept, compare     string
	hidden              bool
	batch, steps, last  int
	images              []string
	imageLike           string
}

func newLogitsCmd() *cobra.Command {
	var opt logitsOptions
	cmd := &cobra.Command{
		Use:   "logits -m FILE --tokens FILE.json --out FILE.safetensors",
		Short: "Write a model's raw outputs for comparison with a reference",
		Long: `Logits runs the token ids of a JSON array through a model and writes what it
computed to a safetensors file: "logits" [tokens, vocabulary] and, with --hidden, "hidden_states"
[layers+1, tokens, width], where 0 is the (scaled) embedding and the last one is after the final
norm. Everything is float32; keys and values are cached in float32 unless --kv says otherwise.

With --compare it says how far that is from the outputs in a file of that form, which another
program wrote for the same model and tokens, and what to make of it: the same computation, the same model
with other types of weights, or different (exit code 1). If the file has "hidden_states", it also says at which
layer they part, and if it has "tokens", --tokens is not needed.

With a drafter (-d) and --compare with another form of it, a GGUF file or the folder of its checkpoint, it says the same
of the two drafters: both get the features that the model computes for the same tokens, those of --tokens or random
ones, and draft at four places of the text. A checkpoint is read in float32.

With a drafter (-d) and --rounds, it writes the drafter's outputs instead: "roundI.logits" [block,
vocabulary] with the first START tokens as context and the token at START as the block's first
input, for each START of the list.

With a layer for multi-token prediction, --steps and --accept, it replays rounds: all ids but the last
are the prompt, and each round drafts as many tokens as there are steps, verifies them and keeps as
many as --accept says. It writes "roundI.h_in", "roundI.h_out" [steps, width], "roundI.logits" [steps,
vocabulary], "roundI.draft" [steps] and "roundI.verify_logits" [steps+1, vocabulary].

With --image, null among the ids stands for the rows of the next image. Besides "logits" it writes, for image I,
"embeddings.I" [rows, width], "positions.I" [3, rows], "resized.I" [height, width, 3] and "info.I": width and height of
the image, those it was resized to, columns and lines of its rows, rows, positions they take, whether there are three
axes of positions, and whether rows see each other. --image-like chooses between the ways in which the models were
trained and llama.cpp's, which keeps the aspect ratio between black bars and has other activations.`,
		Example: `  strobe logits -m model.gguf --tokens ids.json --out out.safetensors --hidden
  strobe logits -m model.gguf --compare reference.safetensors
  strobe logits -m target.gguf -d drafter.gguf --compare checkpoint-folder
  strobe logits -m target.gguf -d drafter.gguf --tokens ids.json --rounds 20,23,40 --out out.safetensors
  strobe logits -m target.gguf --tokens ids.json --steps 4 --accept 2,0,4,1 --out out.safetensors
  strobe logits -m model.gguf --mmproj mmproj.gguf --image a.png --tokens ids.json --last 4 --out out.safetensors`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return writeLogits(cmd, &opt) },
	}
	opt.modelFlags.add(cmd)
	f := cmd.Flags()
	f.StringVar(&opt.tokens, "tokens", "", "JSON file with an array of token ids")
	f.StringVarP(&opt.out, "output", "o", "", "safetensors file to write")
	f.StringVar(&opt.compare, "compare", "",
		"safetensors file with the outputs of a reference, or another form of the drafter")
	f.StringVar(&opt.rounds, "rounds", "", "comma-separated context lengths to draft at")
	f.IntVar(&opt.steps, "steps", 0, "tokens a round of multi-token prediction drafts")
	f.StringVar(&opt.accept, "accept", "", "comma-separated numbers of tokens that such rounds keep")
	f.BoolVar(&opt.hidden, "hidden", false, "also write the hidden states of every layer")
	f.IntVar(&opt.batch, "batch", 64, "tokens per forward pass")
	f.IntVar(&opt.last, "last", 0, "only write the logits of so many last tokens (default: all)")
	f.StringArrayVar(&opt.images, "image", nil, "image file, for the next null among the token ids; may be given again")
	f.StringVar(&opt.imageLike, "image-like", "reference", "how images are read: reference (as the models were trained) or llamacpp")
	f.Lookup("kv").DefValue, opt.kv = "f32", "f32"
	return cmd
}

func writeLogits(cmd *cobra.Command, opt *logitsOptions) error {
	if opt.compare == "" && (opt.tokens == "" || opt.out == "") {
		return usagef("logits needs --tokens FILE.json and --out FILE.safetensors, or --compare FILE")
	}
	if opt.compare != "" && (opt.rounds != "" || opt.accept != "") {
		return usagef("--compare is for logits and hidden states, without --rounds and --accept")
	}
	if opt.batch < 1 || opt.batch > model.MaxRows {
		return usagef("--batch %d: want 1 to %d", opt.batch, model.MaxRows)
	}
	starts, err := parseRounds(opt.rounds)
	if err != nil {
		return err
	}
	if opt.last < 0 || opt.last > 0 && (opt.hidden || opt.compare != "" || starts != nil || opt.accept != "") {
		return usagef("--last N: want 0 or more, without --hidden, --compare, --rounds and --accept")
	}
	if opt.images != nil && (opt.tokens == "" || opt.hidden || opt.compare != "" || starts != nil || opt.accept != "") {
		return usagef("--image goes with --tokens and --last, not with --hidden, --compare, --rounds and --accept")
	}
	if isDrafter(opt.compare) {
		return compareDrafters(cmd, opt)
	}
	if opt.modelFlags.like, err = imageLike(opt.imageLike); err != nil {
		return err
	}
	var accepted []int
	if opt.steps != 0 || opt.accept != "" {
		if opt.steps < 1 || opt.accept == "" || starts != nil || opt.hidden {
			return usagef("--steps N and --accept LIST belong together, without --rounds and --hidden")
		}
		if accepted, err = parseAccepted(opt.accept, opt.steps); err != nil {
			return err
		}
		opt.mtp = true // load fails without
	}
	var ref *safetensors.File
	if opt.compare != "" {
		if ref, err = safetensors.Open(opt.compare); err != nil {
			return err
		}
		defer ref.Close()
		opt.hidden = opt.hidden || ref.Tensor("hidden_states") != nil
	}
	ids, err := opt.ids(ref)
	if err != nil {
		return err
	}
	if starts == nil && accepted == nil && opt.drafter == "" {
		opt.drafter = "none"
	}
	m, err := opt.load()
	if err != nil {
		return err
	}
	defer m.Close()
	if n := m.Target.Context; len(ids) > n {
		return fmt.Errorf("%d tokens; the context holds %d", len(ids), n)
	}
	var tensors []safetensors.Tensor
	switch {
	case accepted != nil:
		tensors, err = mtpRounds(m, ids, opt.steps, accepted)
	case starts != nil:
		tensors, err = draftLogits(m, ids, starts)
	case opt.images != nil:
		tensors, err = imageLogits(cmd, m, ids, opt)
	case opt.last > 0:
		var logits []float32
		if logits, err = tokenLogits(cmd, m.Target, ids, nil, opt); err == nil {
			tensors = []safetensors.Tensor{floatTensor("logits", logits, len(logits)/m.Target.Vocab, m.Target.Vocab)}
		}
	default:
		tensors, err = targetLogits(cmd, m, ids, opt)
	}
	for _, d := range m.Drafters() { // what was read from a device that failed is not what it had
		if err == nil {
			err = d.Memory().Sync()
		}
	}
	if err == nil {
		err = m.Target.Sync()
	}
	if err != nil {
		return err
	}
	if opt.out != "" {
		if err := safetensors.Write(opt.out, tensors, nil); err != nil {
			return err
		}
	}
	if ref != nil {
		return compareLogits(cmd.OutOrStdout(), opt.compare, ref, tensors)
	}
	return nil
}

// ids are the tokens to run: those of --tokens, or those of a reference.
func (o *logitsOptions) ids(ref *safetensors.File) (ids []int32, err error) {
	from := o.tokens
	if from == "" {
		from = o.compare
		if ids, err = referenceTokens(o.compare, ref); err == nil && ids == nil {
			err = usagef("%s says nothing of its tokens: give them with --tokens FILE.json", o.compare)
		}
	} else if o.images != nil {
		ids, err = readImageIDs(o.tokens)
	} else {
		ids, err = readIDs(o.tokens)
	}
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("%s: no token ids", from)
	}
	return ids, err
}

// readIDs reads a JSON file with an array of token ids. Whoever runs them checks that the vocabulary has them.
func readIDs(path string) (ids []int32, err error) {
	data, err := platform.ReadFile(path, maxInput)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &ids); err != nil {
		return nil, fmt.Errorf("%s: want a JSON array of token ids: %w", path, err)
	}
	return ids, nil
}

func parseRounds(s string) (starts []int, err error) {
	if s == "" {
		return nil, nil
	}
	last := 0
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < max(1, last) {
			return nil, usagef("--rounds %q: want increasing context lengths such as 20,23,40", s)
		}
		starts, last = append(starts, n), n
	}
	return starts, nil
}

// targetLogits runs all tokens and collects every row.
func targetLogits(cmd *cobra.Command, m *engine.Model, ids []int32, opt *logitsOptions) ([]safetensors.Tensor, error) {
	t := m.Target
	n := len(ids)
	logits := make([]float32, 0, n*t.Vocab)
	var hidden []float32
	var layers []int
	if opt.hidden {
		for l := -1; l < t.Layers-1; l++ {
			layers = append(layers, l)
		}
		hidden = make([]float32, (t.Layers+1)*n*t.Hidden)
	}
	if err := t.Capture(layers); err != nil {
		return nil, err
	}
	seq := t.NewSeq()
	defer seq.Close()
	for from := 0; from < n; from += opt.batch {
		if err := cmd.Context().Err(); err != nil {
			return nil, err
		}
		part := ids[from:min(from+opt.batch, n)]
		out, err := t.Forward([]model.Segment{{Seq: seq, Tokens: part, Logits: model.LogitsAll}})
		if err != nil {
			return nil, err
		}
		logits = append(logits, t.Backend().Read(out.Logits)...)
		if opt.hidden {
			for r := range part {
				at := func(l int) []float32 { return hidden[(l*n+from+r)*t.Hidden:][:t.Hidden] }
				f := t.Backend().Read(out.FeatureRows(0, r, 1))
				for l := range t.Layers {
					copy(at(l), f[l*t.Hidden:])
				}
				copy(at(t.Layers), t.Backend().Read(out.Final.Slice(r, 1)))
			}
		}
		if err := seq.CommitAll(); err != nil {
			return nil, err
		}
	}
	tensors := []safetensors.Tensor{floatTensor("logits", logits, n, t.Vocab)}
	if opt.hidden {
		tensors = append(tensors, floatTensor("hidden_states", hidden, t.Layers+1, n, t.Hidden))
	}
	return tensors, nil
}

// draftLogits commits tokens up to each start and runs a block from there.
func draftLogits(m *engine.Model, ids []int32, starts []int) ([]safetensors.Tensor, error) {
	if m.Drafter == nil {
		return nil, usagef("--rounds needs a drafter: give it with -d FILE")
	}
	if last := starts[len(starts)-1]; last >= len(ids) {
		return nil, fmt.Errorf("round at %d, but there are only %d tokens", last, len(ids))
	}
	t := m.Target
	if err := t.Capture(m.Drafter.Capture()); err != nil {
		return nil, err
	}
	seq, ctx := t.NewSeq(), m.Drafter.NewSeq()
	defer seq.Close()
	defer ctx.Close()
	var tensors []safetensors.Tensor
	for i, start := range starts {
		for seq.Len() < start {
			part := ids[seq.Len():min(start, seq.Len()+m.Chunk())]
			out, err := t.Forward([]model.Segment{{Seq: seq, Tokens: part, Prompt: true}})
			if err != nil {
				return nil, err
			}
			if err := seq.CommitAll(); err != nil {
				return nil, err
			}
			rows := make([]int32, len(part))
			for r := range rows {
				rows[r] = int32(r)
			}
			if err := m.Drafter.Extend(out.Features, []draft.Rows{{Seq: ctx, Rows: rows}}); err != nil {
				return nil, err
			}
		}
		logits, err := m.Drafter.BlockLogits(ctx, ids[start])
		if err != nil {
			return nil, err
		}
		rows := m.Drafter.Block()
		tensors = append(tensors, floatTensor(fmt.Sprintf("round%d.logits", i), logits, rows, len(logits)/rows))
	}
	return tensors, nil
}

func floatTensor(name string, v []float32, shape ...int) safetensors.Tensor {
	data := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x))
	}
	return safetensors.Tensor{Name: name, DType: "F32", Shape: shape, Data: data}
}
