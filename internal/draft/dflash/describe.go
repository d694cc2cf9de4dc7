package dflash

import (
	"fmt"
	"math"
	"strings"

	"strobe/internal/gguf"
)

// defaultBlock is the block of drafters whose file names none.
const defaultBlock = 16

// Description is what a drafter's file says about itself, in one convention for all dialects.
type Description struct {
	Dialect    string
	Block      int   // tokens of a draft, the last known one included
	Mask       int64 // token that stands for what is to be guessed, -1 when the file names none
	Layers     []int // target layers whose outputs it reads; see TargetLayers
	Projection string
	Features   int    // inputs of that tensor, 0 without it
	Head       string // the part that makes a guess depend on the one before; "" for none

	layersKey string
	offset    int // of the layers in the file
	spaced    int // layers that the file leaves to the target, 0 when it lists them
}

// Describe reads a drafter's file without its target. An error is about a value in the file, or says that it is no
// DFlash drafter.
func Describe(f *gguf.File) (*Description, error) {
	dia, err := dialectOf(f)
	if err != nil {
		return nil, err
	}
	d := &Description{Dialect: dia.name, Block: defaultBlock, Mask: -1, Projection: dia.fc,
		layersKey: dia.key(f, dia.idsKey), offset: dia.idsOffset}
	if v, ok, err := f.Uint(dia.key(f, dia.blockKey)); err != nil {
		return nil, err
	} else if ok {
		d.Block = int(min(v, 1<<40)) // absurd values stay representable; Open rejects them
	}
	if v, ok, err := f.Uint(dia.key(f, dia.maskKey)); err != nil {
		return nil, err
	} else if ok {
		d.Mask = int64(min(v, 1<<40))
	}
	if t := f.Tensor(dia.fc); t != nil {
		d.Features = t.Shape[0]
	}
	ids, ok, err := f.Ints(d.layersKey)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		d.Layers = append(d.Layers, int(min(max(id, math.MinInt32), math.MaxInt32))-dia.idsOffset)
	}
	if !ok && dia.name == lucebox.name && strings.HasPrefix(f.Arch(), "qwen") {
		if hidden, _, _ := f.Uint(f.Arch() + ".embedding_length"); hidden > 0 {
			d.spaced = int(uint64(d.Features) / hidden)
		}
	}
	switch {
	case f.Tensor(selectorName) != nil:
		d.Head = "a selector"
	case f.Tensor(markovName) != nil:
		d.Head = "a Markov head"
	}
	return d, nil
}

// key is the full name of a key in a file.
func (d dialect) key(f *gguf.File, key string) string {
	if strings.HasPrefix(key, "tokenizer.") {
		return key
	}
	return f.Arch() + "." + key
}

// TargetLayers returns the layers of a target with n of them whose outputs the drafter reads. Lucebox's files for Qwen
// list none; their run-time spaces the layers evenly.
func (d *Description) TargetLayers(n int) ([]int, error) {
	ids := d.Layers
	if d.spaced > 1 {
		for k := range d.spaced {
			ids = append(ids, 1+k*((n-2)/(d.spaced-1)))
		}
	}
	for _, id := range ids {
		// The input of layer 0, which upstream can name, is the embeddings.
		if id < -d.offset || id >= n {
			return ids, fmt.Errorf("key %s: entry %d; the target has %d layers", d.layersKey, id+d.offset, n)
		}
	}
	if ids == nil {
		return nil, fmt.Errorf("missing key %s", d.layersKey)
	}
	return ids, nil
}
