package modeltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"strobe/internal/draft"
	"strobe/internal/model"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// wholeRows is a sampler that sees whole rows, whatever the device could choose.
type wholeRows struct{ s *sample.Sampler }

func (w wholeRows) Sample(logits []float32) int32 { return w.s.Sample(logits) }
func (w wholeRows) Accept(id int32)               { w.s.Accept(id) }

// third allows two of three tokens, and can judge single ones.
type third struct{}

func (third) Allows(id int32) bool { return id%3 != 1 }
func (third) Accept(int32)         {}
func (third) Mask(x []float32) {
	for i := range x {
		if i%3 == 1 {
			x[i] = float32(math.Inf(-1))
		}
	}
}

// samplers are settings that people use, and what each of their parts needs of a row.
func samplers() []sample.Params {
	never := float32(math.Inf(-1))
	return []sample.Params{
		{}, {LogitBias: map[int32]float32{5: never}}, {LogitBias: map[int32]float32{5: 2}}, {PresencePenalty: 1},
		{RepeatPenalty: 1.3}, {DRY: sample.DRYParams{Multiplier: 1, AllowedLength: 1}},
		{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}, {Temp: 0.7, TopK: 20, TopP: 0.8, PresencePenalty: 1.5},
		{Temp: 1, TopK: 64, TopP: 0.95, FrequencyPenalty: 0.5, LogitBias: map[int32]float32{7: never}},
		{Temp: 0.8, TopP: 0.9}, {Temp: 0.8, TopP: 0.9, RepeatPenalty: 1.1}, {Temp: 1, MinP: 0.1}, {Temp: 0.8},
		{Temp: 1, TypicalP: 0.7}, {Temp: 1, TopK: 300},
	}
}

// rareSamplers are settings that few people use. They look at whole rows, so a small vocabulary shows all they do.
func rareSamplers() []sample.Params {
	return []sample.Params{
		{Temp: 1, TopNSigma: 1, XTC: sample.XTCParams{Probability: 0.5, Threshold: 0.1}},
		{Temp: 1, TopK: 40, DynaTemp: sample.DynaTempParams{Range: 0.5, Exponent: 2}},
		{Temp: 1, Mirostat: sample.MirostatParams{Version: 1}}, {Temp: 1, Mirostat: sample.MirostatParams{Version: 2,
			Tau: 3}},
		{Temp: 0.7, TopK: 40, MinP: 0.1, RepeatPenalty: 1.2,
			Steps: []sample.Step{sample.StepTemperature, sample.StepMinP, sample.StepTopK, sample.StepPenalties}},
	}
}

// fewSamplers are those that devices in software have time for: one for each way of choosing.
var fewSamplers = []int{3, 6, 9}

// Samplers: every sampler, with and without a constraint, with and without drafts, says with what the device chose of
// each row what it says with whole rows. Two streams run side by side, so that one's wants do not spoil the other's.
func (s Suite) Samplers(t *testing.T, m *model.Model, prompt []int32, n int) {
	knows := &prophet{vocab: m.Vocab}
	run := func(o speculate.Options, make ...func() speculate.Sampler) (texts [][]int32) {
		r, err := speculate.NewRunner(m, draft.Source(knows))
		if err != nil {
			t.Fatal(err)
		}
		texts = slices.Repeat([][]int32{nil}, len(make))
		var streams []*speculate.Stream
		for i, sampler := range make {
			seq, ctxs := m.NewSeq(), r.NewContexts()
			defer seq.Close()
			defer speculate.CloseContexts(ctxs)
			st, err := r.NewStream(speculate.Config{Options: o, Seq: seq, Contexts: ctxs, Prompt: prompt, Sampler: sampler(),
				Max: n, Emit: func(t speculate.Token) bool { texts[i] = append(texts[i], t.ID); return true }})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			streams = append(streams, st)
		}
		for slices.ContainsFunc(streams, func(s *speculate.Stream) bool { return !s.Done() }) {
			if err := r.Step(streams, 64); err != nil {
				t.Fatal(err)
			}
		}
		return texts
	}
	var others func() speculate.Sampler // the sampler before: what runs beside
	list := samplers()
	if m.Vocab < 1000 {
		list = append(list, rareSamplers()...)
	}
	for i, p := range list {
		p.Seed = uint64(i)
		if s.Few > 0 && !slices.Contains(fewSamplers, i) {
			continue
		}
		for _, constrained := range []bool{false, true} {
			plain := func() *sample.Sampler {
				x := sample.New(p, m.Vocab)
				x.Prime(prompt)
				if constrained {
					x.SetConstraint(third{})
				}
				return x
			}
			t.Run(fmt.Sprintf("%d, constrained %t", i, constrained), func(t *testing.T) {
				whole := func() speculate.Sampler { return wholeRows{plain()} }
				want := run(speculate.Options{Draft: speculate.Off}, whole)[0]
				knows.texts = [][]int32{slices.Concat(prompt, want)}
				chosen := func() speculate.Sampler { return plain() }
				chain := speculate.Options{Draft: knows.Name(), Fixed: true, Max: 5, Tree: speculate.TreeOff}
				tree := speculate.Options{Draft: knows.Name(), Fixed: true, Tree: 12}
				modes := []speculate.Options{chain, tree, {Draft: speculate.Off}}
				if s.Few > 0 {
					modes = modes[:1]
				}
				for _, o := range modes {
					both := []func() speculate.Sampler{chosen}
					if others != nil {
						both = append(both, others)
					}
					if got := run(o, both...)[0]; !slices.Equal(got, want) {
						t.Errorf("%+v, %+v: %v, with whole rows %v", p, o, got, want)
					}
				}
				others = chosen
			})
		}
	}
}
