package engine

import (
	"fmt"

	"strobe/internal/backend"
	"strobe/internal/cache"
	"strobe/internal/device"
	"strobe/internal/draft"
	"strobe/internal/draft/ngram"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/sample"
	"strobe/internal/speculate"
)

// Footprint is the memory that a model with its drafters takes on a GPU that has all of it.
type Footprint struct {
	Weights int
	Passes  int // activations, what passes between kernels, and one sequence without tokens
	Driver  int // what the driver takes for itself
	// Contexts is what the tokens of one sequence take beside that, for each of the lengths asked for.
	Contexts []int
}

// Bytes is all of it without the tokens of sequences.
func (f Footprint) Bytes() int { return f.Weights + f.Passes + f.Driver }

// Measure counts what a model would take on a GPU like b: it is opened on a device that only counts memory, and passes
// of all kinds run there, without the weights' values. A sequence then grows to the given numbers of tokens, in
// ascending order, in chunks of so many.
func Measure(b backend.Backend, src Source, opt Options, chunk int, contexts ...int) (f Footprint, err error) {
	c, ok := b.(backend.Counted)
	if !ok {
		return f, fmt.Errorf("%s has no memory of its own", b.Name())
	}
	counting, used, err := c.Counting()
	if err != nil {
		return f, err
	}
	defer counting.Close()
	kv, err := cache.ParseTypes(opt.KV, opt.KVKey, opt.KVValue, opt.KVLayers)
	if err != nil {
		return f, err
	}
	m := &Model{Path: src.Target.Path(), backends: []backend.Backend{counting}}
	if m.Target, err = model.Open(src.Target, counting, model.Options{KV: kv}); err != nil {
		return f, err
	}
	opt.DraftDevice, opt.DraftGPULayers, opt.Say = "", 0, nil // the drafter lies with the target
	if err := m.loadDrafters(src, opt); err != nil {
		return f, err
	}
	f.Weights, f.Driver = used(), device.DriverBytes
	if m.Runner, err = m.newRunner(); err != nil {
		return f, err
	}
	if err := m.Runner.Rehearse(); err != nil {
		return f, err
	}
	f.Passes = used() - f.Weights
	if len(contexts) == 0 {
		return f, nil
	}
	most := contexts[len(contexts)-1]
	stream, err := m.Runner.NewStream(speculate.Config{Seq: m.Target.NewSeq(), Contexts: m.Runner.NewContexts(),
		Prompt: make([]int32, most), Context: most + 1, Sampler: sample.New(sample.Params{}, m.Target.Vocab),
		Emit: func(speculate.Token) bool { return false }})
	if err != nil {
		return f, err
	}
	for len(f.Contexts) < len(contexts) {
		if err := m.Runner.Step([]*speculate.Stream{stream}, chunk); err != nil {
			return f, err
		}
		for len(f.Contexts) < len(contexts) && stream.Seq.Len() >= contexts[len(f.Contexts)] {
			f.Contexts = append(f.Contexts, used()-f.Weights-f.Passes)
		}
	}
	return f, nil
}

// Fit is what of a model a GPU of some size holds beside one sequence of some length.
type Fit struct {
	Memory  int  `json:"memory"`  // of the GPU, in bytes
	Context int  `json:"context"` // tokens
	Need    int  `json:"need"`    // bytes, with everything on the GPU
	Layers  int  `json:"layers"`  // that fit
	Experts int  `json:"experts"` // layers among them whose experts are left to the processor
	All     bool `json:"all"`     // everything fits
}

// FitTable says what of the model in a file GPUs of several sizes hold, for several lengths of the context in ascending
// order, and how much its parts take.
func FitTable(path string, opt Options, sizes, contexts []int) (fits []Fit, f Footprint, err error) {
	src, err := open(path, opt)
	if err != nil {
		return nil, f, err
	}
	defer src.close()
	err = platform.Reading(path, func() error {
		for _, size := range sizes {
			b, err := device.Counting(size, false)
			if err != nil {
				return err
			}
			// Cards that are nearly full read prompts in chunks of half the size, see Chunk.
			if f, err = Measure(b, src, opt, model.MaxRows/2, contexts...); err != nil {
				return err
			}
			n := needs(b, src, true)
			for i, tokens := range contexts {
				beside := f.Passes + f.Driver + f.Contexts[i]
				d := n.divide([]int{size - beside}, opt)
				x := Fit{Memory: size, Context: tokens, Need: f.Weights + beside, Layers: d.layers,
					Experts: d.experts, All: d.layers == len(n.dense) && d.experts == 0}
				if !x.All && n.squeezed(src, opt, size, tokens) {
					x.Need, x.Layers, x.Experts, x.All = size, len(n.dense), 0, true
				}
				fits = append(fits, x)
			}
		}
		return nil
	})
	return fits, f, err
}

// squeezed reports whether all of a model fits on a GPU that is full then: devices do without what only makes them
// faster where memory is short.
func (n need) squeezed(src Source, opt Options, size, tokens int) bool {
	on, _ := n.sums(division{place: make([]int, len(n.dense))}, 1)
	if on[0] > size {
		return false
	}
	b, err := device.Counting(size, true)
	if err == nil {
		_, err = Measure(b, src, opt, model.MaxRows/2, tokens)
	}
	return err == nil
}

// newRunner returns a runner of the target and all of its sources.
func (m *Model) newRunner() (*speculate.Runner, error) {
	var sources []draft.Source
	for _, d := range m.Drafters() {
		sources = append(sources, d)
	}
	return speculate.NewRunner(m.Target, append(sources, ngram.Source{})...)
}
