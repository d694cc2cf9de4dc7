package pflash

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/gguf"
	"strobe/internal/model"
	"strobe/internal/quant"
	"strobe/internal/testkit"
	"strobe/models"
)

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
	t testing.TB
	b *placed
	m *model.Model
	s *Scorer
}

func newMeasured(t testing.TB) *measured {
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

// BenchmarkLoss measures what is lost of held-out files of the built-in model's corpus at its full context: the loss of
// the last 256 tokens after everything, after what is kept (0.3 of it), and after as many tokens from the end. Run it
// with -benchtime Nx for N files.
func BenchmarkLoss(b *testing.B) {
	raw, err := os.ReadFile(testkit.Shared(b, "train/data/val.u16"))
	if err != nil {
		b.Fatal(err)
	}
	x := newMeasured(b)
	const end = 8176 // token between files
	var doc []int32
	next := func() []int32 {
		for len(raw) > 1 {
			id := int32(binary.LittleEndian.Uint16(raw))
			raw = raw[2:]
			if doc = append(doc, id); id == end {
				doc = nil
			} else if len(doc) == x.m.Context {
				file := doc
				for doc = nil; len(raw) > 1 && binary.LittleEndian.Uint16(raw) != end; { // one part of each file
					raw = raw[2:]
				}
				return file
			}
		}
		return nil
	}
	var sums [5]float64
	for range b.N {
		ids := next()
		if ids == nil {
			b.Fatal("there are no more files")
		}
		full, kept, original, cut, share := x.all(ids)
		b.Logf("full %.4f kept %.4f at original positions %.4f cut %.4f, of %.3f", full, kept, original, cut, share)
		for i, v := range []float64{full, kept, original, cut, share} {
			sums[i] += v / float64(b.N)
		}
	}
	for i, name := range []string{"full", "kept", "original", "cut", "share"} {
		b.ReportMetric(sums[i], name)
	}
}
