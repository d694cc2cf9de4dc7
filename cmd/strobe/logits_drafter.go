package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/convert"
	"strobe/internal/draft"
	"strobe/internal/draft/dflash"
	"strobe/internal/draft/eagle3"
	"strobe/internal/draft/mtp"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/model"
)

const (
	compareTokens = 65 // random tokens that drafters are compared with
	compareRounds = 4  // places in the text where they draft
	// compareGuesses is the share of guesses that two forms of a drafter have in common at least: what chooses tokens
	// from the logits may be wrong where the logits are right, such as the map of a reduced vocabulary.
	compareGuesses = 0.5
)

// isDrafter reports whether --compare names a drafter and not the outputs of a reference.
func isDrafter(path string) bool {
	return isCheckpoint(path) || strings.EqualFold(filepath.Ext(path), ".gguf")
}

// drafted is what a drafter computes at one place of a text.
type drafted struct {
	logits  []float32 // [rows, outputs]
	rows    int
	guesses []int32
}

// compareDrafters says how far the drafter of a model is from another form of it, and what that means. It is an error
// if they are different drafters. They are loaded one after the other, each with the model.
func compareDrafters(cmd *cobra.Command, opt *logitsOptions) error {
	if opt.out != "" || opt.hidden || len(opt.moreDrafters) > 0 {
		return usagef("--compare with a drafter goes with one -d, without --out and --hidden")
	}
	other := opt.modelFlags
	m, err := opt.load()
	if err != nil {
		return err
	}
	d, err := onlyDrafter(m)
	var ids []int32
	if err == nil {
		ids, err = opt.draftedIDs(m.Target)
	}
	var got, want []drafted
	if err == nil {
		got, err = draftRounds(cmd, m, d, ids)
	}
	if err != nil {
		m.Close()
		return err
	}
	kind, file, arch := d.Name(), m.DrafterFile(d), m.Target.Arch
	m.Close()

	other.model, other.drafter = opt.model, opt.compare
	if isCheckpoint(opt.compare) {
		var remove func()
		if other.drafter, remove, err = exactDrafter(cmd, opt.compare, opt.model, file, arch); err != nil {
			return err
		}
		defer remove()
	}
	if m, err = other.load(); err != nil {
		return err
	}
	defer m.Close()
	if d, err = onlyDrafter(m); err != nil {
		return err
	}
	if d.Name() != kind {
		return fmt.Errorf("%s: a drafter of kind %s; %s is one of kind %s", opt.compare, d.Name(), file, kind)
	}
	if want, err = draftRounds(cmd, m, d, ids); err != nil {
		return err
	}
	return compareDrafted(cmd, opt.compare, got, want, kind != "dflash")
}

// onlyDrafter is the drafter of a model.
func onlyDrafter(m *engine.Model) (engine.Drafter, error) {
	ds := m.Drafters()
	if len(ds) != 1 {
		return nil, usagef("%s: has %d drafters to compare; give one with -d FILE", m.Path, len(ds))
	}
	return ds[0], nil
}

// draftedIDs are the tokens to draft after: those of --tokens, or random ones that are the same in every run.
func (o *logitsOptions) draftedIDs(t *model.Model) (ids []int32, err error) {
	if o.tokens == "" {
		rng := rand.New(rand.NewPCG(1, 2))
		for range min(compareTokens, t.Context) {
			ids = append(ids, rng.Int32N(int32(t.Vocab)))
		}
	} else if ids, err = readIDs(o.tokens); err != nil {
		return nil, err
	}
	if len(ids) < 2 || len(ids) > t.Context {
		return nil, fmt.Errorf("%d token ids; want 2 to the %d of the context", len(ids), t.Context)
	}
	return ids, nil
}

// exactDrafter converts the checkpoint of a drafter without loss to a file that remove deletes. file is the drafter it
// is compared with, arch the architecture of the model: a drafter of that one is a layer of the model for multi-token
// prediction, and the checkpoint has all of the model.
func exactDrafter(cmd *cobra.Command, dir, target, file, arch string) (path string, remove func(), err error) {
	if target == "" {
		return "", nil, usagef("--compare %s: a checkpoint; name the model it drafts for with -m", dir)
	}
	f, err := gguf.Open(target)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	drafter, err := gguf.Open(file)
	if err != nil {
		return "", nil, err
	}
	defer drafter.Close()
	folder, err := convertedDir() // a large file may be too much for the system's temporary folder
	if err != nil {
		return "", nil, err
	}
	if err = os.MkdirAll(folder, 0o777); err == nil {
		folder, err = os.MkdirTemp(folder, "compare-")
	}
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(folder, filepath.Base(filepath.Clean(dir))+".gguf")
	opt := convert.Options{Type: "f32", TargetFile: f, MTPOnly: drafter.Arch() == arch}
	err = writeModel(cmd, path, func(plan func(convert.Plan), progress func(int64)) error {
		opt.Plan, opt.Progress = plan, progress
		return convert.HF(cmd.Context(), dir, path, opt)
	})
	remove = func() { os.RemoveAll(folder) }
	if err != nil {
		remove()
	}
	return path, remove, err
}

// draftRounds lets a drafter draft at several places of a text, each time from the beginning.
func draftRounds(cmd *cobra.Command, m *engine.Model, d engine.Drafter, ids []int32) (out []drafted, err error) {
	if err := m.Target.Capture(d.Capture()); err != nil {
		return nil, err
	}
	for i := range compareRounds {
		at := (i + 1) * (len(ids) - 1) / compareRounds
		if at == 0 { // a short text has fewer places
			continue
		}
		if err := cmd.Context().Err(); err != nil {
			return nil, err
		}
		x, err := draftAt(m, d, ids[:at], ids[at])
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	if err := d.Memory().Sync(); err != nil { // what was read from a device that failed is not what it had
		return nil, err
	}
	return out, m.Target.Sync()
}

// draftAt is what a drafter computes after tokens and the last one.
func draftAt(m *engine.Model, d engine.Drafter, ids []int32, last int32) (x drafted, err error) {
	seq, ctx := m.Target.NewSeq(), d.Memory().NewSeq()
	defer seq.Close()
	defer ctx.Close()
	for part := range slices.Chunk(ids, m.Chunk()) {
		out, err := m.Target.Forward([]model.Segment{{Seq: seq, Tokens: part, Prompt: true}})
		if err != nil {
			return x, err
		}
		if err := seq.CommitAll(); err != nil {
			return x, err
		}
		rows := make([]int32, len(part))
		for r := range rows {
			rows[r] = int32(out.FeatureRow(0, r))
		}
		if err := d.Extend(out.Features, []draft.Rows{{Seq: ctx, Tokens: part, Rows: rows}}); err != nil {
			return x, err
		}
	}
	req := draft.Request{Seq: ctx, Target: seq, Last: last, N: d.Max()}
	x.rows = req.N
	switch d := d.(type) {
	case *dflash.Drafter:
		x.rows = d.Block()
		x.logits, err = d.BlockLogits(ctx, last)
		x.logits = slices.Clone(x.logits)
	case *eagle3.Drafter:
		x.logits, err = d.Logits(req)
	case *mtp.Drafter:
		var trace *mtp.Trace
		if trace, err = d.Trace(req); err == nil {
			x.logits = trace.Logits
		}
	}
	if err != nil {
		return x, err
	}
	ps, err := d.Draft([]draft.Request{req}, 1)
	if err == nil {
		x.guesses = ps[0].Chain(nil)
	}
	return x, err
}

// compareDrafted says how far drafts are from those of a reference. Where each step goes on from the guess before it
// (chain), steps after different guesses are left out.
func compareDrafted(cmd *cobra.Command, path string, got, want []drafted, chain bool) error {
	var a, b []float32
	same, guesses, width := 0, 0, 0
	for i, w := range want {
		g := got[i]
		if g.rows != w.rows || len(g.logits) != len(w.logits) {
			return fmt.Errorf("%s: drafts %d rows of %d outputs, the other drafter %d of %d", path, w.rows,
				len(w.logits)/w.rows, g.rows, len(g.logits)/g.rows)
		}
		width = len(w.logits) / w.rows
		rows := w.rows
		for k := range max(len(g.guesses), len(w.guesses)) {
			guesses++
			if k >= len(g.guesses) || k >= len(w.guesses) || g.guesses[k] != w.guesses[k] {
				if chain {
					rows = k + 1
				}
				break
			}
			same++
		}
		a, b = append(a, g.logits[:rows*width]...), append(b, w.logits[:rows*width]...)
	}
	distance, d := relative(a, b), distribute(a, b, width)
	largest := 0.0
	for i := range a {
		largest = max(largest, math.Abs(float64(a[i])-float64(b[i]))) // not a number if one is none
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "logits     differ by %.2e of their size, the largest difference is %.2e\n", distance, largest)
	fmt.Fprintf(out, "guesses    the same token at %d of %d positions\n", same, guesses)
	fmt.Fprintf(out, "chances    differ by %.2e nats on average, %.2e at row %d\n", d.mean, d.worst, d.at)
	if float64(same) < compareGuesses*float64(guesses) {
		distance = math.Inf(1)
	}
	return verdict(out, path, distance, d)
}
