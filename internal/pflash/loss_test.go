package pflash

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
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
	t      testing.TB
	b      *placed
	m      *model.Model
	sparse *model.Model // the same with block-sparse attention over prompts
	s      *Scorer
}

func newMeasured(t testing.TB) *measured {
	t.Helper()
	f, drafter, err := models.Open()
	if err != nil {
		t.Skipf("needs the built-in pair: %v", err)
	}
	b := &placed{Backend: cpu.New(cpu.Options{})}
	x := &measured{t: t, b: b}
	if x.m, err = model.Open(f, b, model.Options{}); err == nil {
		x.s, err = NewScorer(f, b, quant.F16)
	}
	if err == nil {
		sparse := DefaultSparse()
		x.sparse, err = model.Open(f, b, model.Options{Sparse: &sparse})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		for _, f := range []*gguf.File{f, drafter} {
			if f != nil {
				f.Close()
			}
		}
	})
	return x
}

// reading is how a prompt is read. The zero value reads all of it as it is.
type reading struct {
	at     []int32 // positions of all tokens; nil for their numbers
	sparse bool    // --sparse-prefill
	window int     // --decode-window
}

// loss is the mean loss of the tokens of end, as if they were generated after those of prompt.
func (x *measured) loss(prompt, end []int32, r reading) float64 {
	x.t.Helper()
	x.b.of = r.at
	defer func() { x.b.of = nil }()
	m := x.m
	if r.sparse {
		m = x.sparse
	}
	seq := m.NewSeq()
	defer seq.Close()
	n := len(prompt) - 1
	seq.Expect(n)
	if r.window > 0 {
		seq.Limit(4, r.window) // as a prompt without messages has it
	}
	forward := func(tokens []int32, s model.Segment) *model.Output {
		s.Seq, s.Tokens = seq, tokens
		out, err := m.Forward([]model.Segment{s})
		if err != nil {
			x.t.Fatal(err)
		}
		return out
	}
	commit := func() {
		if err := seq.CommitAll(); err != nil {
			x.t.Fatal(err)
		}
	}
	for from := 0; from < n; from += 256 {
		forward(prompt[from:min(n, from+256)], model.Segment{Prompt: true, Logits: model.LogitsNone})
		commit()
	}
	sum := 0.0
	rest := append(prompt[n:len(prompt):len(prompt)], end[:len(end)-1]...)
	for from := 0; from < len(rest); from += 64 {
		part := rest[from:min(len(rest), from+64)]
		out := forward(part, model.Segment{Logits: model.LogitsAll})
		for i := range part {
			sum -= logProb(out.Row(0, i), end[from+i])
		}
		commit()
	}
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

// all measures the loss of the last 256 tokens of a text in several ways: after the whole of the rest; after the 0.3
// of it that is kept, at contiguous and at original positions; after as many tokens from its end; and after all of it,
// read or looked at in the other ways that cost something.
func (x *measured) all(ids []int32) (names []string, losses []float64) {
	x.t.Helper()
	const last = 256
	prompt, end := ids[:len(ids)-last], ids[len(ids)-last:]
	scores, err := x.s.Score(context.Background(), prompt)
	if err != nil {
		x.t.Fatal(err)
	}
	sel := SelectText(prompt, scores.Chunks, 0.3, x.s.Rule)
	var part, at []int32
	for _, s := range sel.Spans {
		for i := s[0]; i < s[1]; i++ {
			part, at = append(part, prompt[i]), append(at, int32(i))
		}
	}
	for i := range last {
		at = append(at, int32(len(prompt)+i))
	}
	add := func(name string, loss float64) { names, losses = append(names, name), append(losses, loss) }
	add("all", x.loss(prompt, end, reading{}))
	add("kept", x.loss(part, end, reading{}))
	add("cut", x.loss(prompt[len(prompt)-len(part):], end, reading{}))
	add("original-positions", x.loss(part, end, reading{at: at}))
	add("sparse", x.loss(prompt, end, reading{sparse: true}))
	for w := 512; w < len(prompt); w *= 2 {
		add(fmt.Sprintf("window-%d", w), x.loss(prompt, end, reading{window: w}))
	}
	return names, losses
}

// BenchmarkLoss measures what is lost of held-out files of the built-in model's corpus, in parts of several lengths.
// Run it with -benchtime Nx for N parts. It reports means, and those of differences with their standard errors.
func BenchmarkLoss(b *testing.B) {
	raw, err := os.ReadFile(testkit.Shared(b, "train/data/val.u16"))
	if err != nil {
		b.Fatal(err)
	}
	for _, length := range []int{1024, 2048, 4096} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			x := newMeasured(b)
			parts := partsOf(raw, length)
			if len(parts) < b.N {
				b.Fatalf("there are %d parts of %d tokens", len(parts), length)
			}
			var names []string
			var losses [][]float64
			for i := range b.N {
				var l []float64
				names, l = x.all(parts[i])
				losses = append(losses, l)
				b.Logf("part %d: %s %.4f", i+1, names, l)
			}
			report := func(name string, i, j int) {
				mean, se := difference(losses, i, j)
				b.ReportMetric(mean, name)
				b.ReportMetric(se, name+"±")
			}
			for i, name := range names {
				mean, _ := difference(losses, i, -1)
				b.ReportMetric(mean, name)
				if i > 0 {
					report(name+"-all", i, 0)
				}
			}
			report("kept-cut", 1, 2)
		})
	}
}

// partsOf are parts of so many tokens of all files: the first of each file that has so many, then the second ones, and
// so on.
func partsOf(raw []byte, length int) [][]int32 {
	const end = 8176 // token between files
	var parts [][][]int32
	var file []int32
	for ; len(raw) > 1; raw = raw[2:] {
		if id := int32(binary.LittleEndian.Uint16(raw)); id != end {
			file = append(file, id)
			continue
		}
		for i := 0; (i+1)*length <= len(file); i++ {
			if i == len(parts) {
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], file[i*length:][:length])
		}
		file = nil
	}
	return slices.Concat(parts...)
}

// difference is the mean of the differences between two columns, and its standard error; -1 is a column of zeros.
func difference(rows [][]float64, a, b int) (mean, se float64) {
	n := float64(len(rows))
	d := make([]float64, len(rows))
	for i, r := range rows {
		if d[i] = r[a]; b >= 0 {
			d[i] -= r[b]
		}
		mean += d[i] / n
	}
	for _, v := range d {
		se += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(se / (n - 1) / n)
}
