package pflash

import (
	"context"
	"encoding/binary"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/internal/tokenizer"
	"strobe/models"
)

var losses = flag.Int("losses", 0, "measure losses on so many held-out files at the model's full context, and print a table")

// placed is a device whose rows are at other positions than their number in the sequence.
type placed struct {
	*cpu.Backend
	of    []int32 // position of each token; nil for its number
	first bool
}

func (p *placed) BeginStep(plan *backend.Plan) {
	p.first = true
	p.Backend.BeginStep(plan)
}

// SetInts changes the positions, which come first in a step.
func (p *placed) SetInts(dst backend.Ints, v []int32) {
	if p.first && p.of != nil {
		moved := make([]int32, len(v))
		for i, n := range v {
			moved[i] = p.of[n]
		}
		v = moved
	}
	p.first = false
	p.Backend.SetInts(dst, v)
}

// measured is the built-in model as its own scorer and as the reader of what is left.
type measured struct {
	t *testing.T
	b *placed
	m *model.Model
	s *Scorer
}

func newMeasured(t *testing.T) *measured {
	t.Helper()
	f, drafter, err := models.Open()
	if err != nil {
		t.Skip(err)
	}
	b := &placed{Backend: cpu.New(cpu.Options{})}
	x := &measured{t: t, b: b}
	if x.m, err = model.Open(f, b, model.Options{}); err == nil {
		x.s, err = NewScorer(f, b, quant.F16)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.s.Close()
		b.Close()
		for _, f := range []*gguf.File{f, drafter} {
			if f != nil {
				f.Close()
			}
		}
	})
	return x
}

// loss is the mean loss of the tokens of end after those of prompt, which are at the given positions.
func (x *measured) loss(prompt, end, at []int32) float64 {
	x.t.Helper()
	x.b.of = at
	defer func() { x.b.of = nil }()
	seq := x.m.NewSeq()
	defer seq.Close()
	sum := 0.0
	run := func(tokens []int32, logits model.LogitRows, want []int32) {
		for from := 0; from < len(tokens); from += 256 {
			part := tokens[from:min(len(tokens), from+256)]
			out, err := x.m.Forward([]model.Segment{{Seq: seq, Tokens: part, Prompt: true, Logits: logits}})
			if err != nil {
				x.t.Fatal(err)
			}
			for i := range part {
				if logits == model.LogitsAll {
					sum -= logProb(out.Row(0, i), want[from+i])
				}
			}
			if err := seq.CommitAll(); err != nil {
				x.t.Fatal(err)
			}
		}
	}
	n := len(prompt) - 1
	run(prompt[:n], model.LogitsNone, nil)
	run(append(prompt[n:len(prompt):len(prompt)], end[:len(end)-1]...), model.LogitsAll, end)
	return sum / float64(len(end))
}

func logProb(logits []float32, id int32) float64 {
	top, sum := float64(logits[0]), 0.0
	for _, v := range logits {
		top = max(top, float64(v))
	}
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}

// all measures a file: loss of its last 256 tokens after the whole of the rest, after what is kept of it at contiguous
// and at original positions, and after as many tokens from the end.
func (x *measured) all(ids []int32) (full, kept, original, cut float64, share float64) {
	x.t.Helper()
	const last = 256
	prompt, end := ids[:len(ids)-last], ids[len(ids)-last:]
	scores, err := x.s.Score(context.Background(), prompt)
	if err != nil {
		x.t.Fatal(err)
	}
	sel := within(prompt, scores.Chunks, 0.3, 0, x.s.Rule)
	var part, at []int32
	for _, s := range sel.Spans {
		for i := s[0]; i < s[1]; i++ {
			part, at = append(part, prompt[i]), append(at, int32(i))
		}
	}
	for i := range last {
		at = append(at, int32(len(prompt)+i))
	}
	return x.loss(prompt, end, nil), x.loss(part, end, nil), x.loss(part, end, at),
		x.loss(prompt[len(prompt)-len(part):], end, nil), float64(len(part)) / float64(len(prompt))
}

// TestLoss: what the scorer keeps is worth more than as many tokens from the end. The model has not seen the files of
// this repository; with -losses N it reads N held-out files of its corpus instead.
func TestLoss(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	x := newMeasured(t)
	var files [][]int32
	if *losses > 0 {
		raw, err := os.ReadFile(testkit.Shared(t, "train/data/val.u16"))
		if err != nil {
			t.Fatal(err)
		}
		var doc []int32
		for ; len(raw) > 1 && len(files) < *losses; raw = raw[2:] {
			id := int32(binary.LittleEndian.Uint16(raw))
			if doc = append(doc, id); id == 8176 {
				doc = nil
			} else if len(doc) == x.m.Context {
				files = append(files, doc)
				doc = nil
				for len(raw) > 3 && binary.LittleEndian.Uint16(raw) != 8176 { // one part of each file
					raw = raw[2:]
				}
			}
		}
	} else {
		for _, name := range []string{"internal/chat/jinja/value.go", "internal/gguf/write.go", "internal/hub/client.go"} {
			src, err := os.ReadFile(filepath.Join(testkit.Root(t), name))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, x.s.Tokenizer.Encode(string(src), tokenizer.EncodeOptions{})[:2048])
		}
	}
	var sum [5]float64
	t.Logf("%8s %8s %8s %8s %8s", "full", "pflash", "original", "cut", "kept")
	for _, ids := range files {
		full, kept, original, cut, share := x.all(ids)
		t.Logf("%8.4f %8.4f %8.4f %8.4f %8.3f", full, kept, original, cut, share)
		for i, v := range []float64{full, kept, original, cut, share} {
			sum[i] += v / float64(len(files))
		}
	}
	t.Logf("%8.4f %8.4f %8.4f %8.4f %8.3f  mean of %d files", sum[0], sum[1], sum[2], sum[3], sum[4], len(files))
	if sum[1] >= sum[3] {
		t.Errorf("loss %.4f with what was kept, %.4f with the end alone", sum[1], sum[3])
	}
}
